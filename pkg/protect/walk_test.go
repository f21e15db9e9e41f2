package protect

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

// walker plays kubelet and runtime on a plain tree: pods come, change and go, and it records every write.
type walker struct {
	t         *testing.T
	rand      *rand.Rand
	tree      *cgroupfs.Tree
	protector *Protector
	settings  memoryqos.Settings
	runtimes  bool // the runtime writes the containers' values, and not the protector
	pods      []*walkedPod
	made      int
	wrong     string
	// files is what each protection file holds, below what sums up its children: the record.
	files, below map[string]uint64
}

type walkedPod struct {
	path cgroup.PodPath
	memoryqos.Pod
	names []string // of its containers' cgroups
}

// TestRandomWalkKeepsEveryAncestorTheSumOfTheLiving goes through 25,000 events. After each, every level holds what can be
// derived from the living pods; and no write, in between, leaves a parent with less than its children have.
func TestRandomWalkKeepsEveryAncestorTheSumOfTheLiving(t *testing.T) {
	events := 25_000
	if testing.Short() {
		events = 5_000
	}
	for _, policy := range []memoryqos.ReservationPolicy{memoryqos.TieredReservation, memoryqos.HardReservation} {
		for _, runtimes := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, written by the runtime %t", policy, runtimes), func(t *testing.T) {
				w := newWalker(t, policy)
				w.runtimes = runtimes
				for event := range events / 4 {
					what := w.step()
					if w.wrong != "" {
						t.Fatalf("event %d, %s: %s", event, what, w.wrong)
					}
					w.verify(event, what)
				}
				for len(w.pods) > 0 {
					w.remove(0)
				}
				w.verify(events, "the end")
				if len(w.protector.rows)+w.protector.containerRows() > 2 {
					t.Errorf("%d rows are left, %d of containers", len(w.protector.rows), w.protector.containerRows())
				}
				t.Logf("%d pods came and went", w.made)
			})
		}
	}
}

var walkSeed = flag.Uint64("seed", 1, "seed of the random walks")

func newWalker(t *testing.T, policy memoryqos.ReservationPolicy) *walker {
	root := cgroups.InMemory(t)
	factor := 0.9
	w := &walker{
		t: t, rand: rand.New(rand.NewPCG(*walkSeed, 0)), files: make(map[string]uint64), below: make(map[string]uint64),
		settings: memoryqos.Settings{Factor: &factor, Reservation: policy, GuaranteedHeadroom: 0.02, NodeAllocatable: 8 << 30, PageSize: 4096},
	}
	put(t, root, map[string]string{"kubepods/burstable/": "", "kubepods/besteffort/": ""})
	tree, err := cgroupfs.Open(root, cgroupfs.Plain(), cgroupfs.OnWrite(w.record))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	w.tree, w.protector = tree, New(Options{Tree: tree})
	w.protector.writeLimit = time.Hour // of a machine that is busy
	return w
}

// record enters a write and looks whether all parents still promise enough.
func (w *walker) record(write cgroupfs.Write) {
	if write.Knob == cgroup.MemoryHigh {
		return
	}
	v, err := strconv.ParseUint(write.Text, 10, 64)
	if err != nil {
		w.wrong = err.Error()
		return
	}
	file := path.Join(write.Cgroup, string(write.Knob))
	parent := path.Join(path.Dir(write.Cgroup), string(write.Knob))
	w.below[parent] += v - w.files[file]
	w.files[file] = v
	for _, f := range []string{file, parent} {
		if w.files[f] < w.below[f] && f != string(write.Knob) {
			w.wrong = fmt.Sprintf("after %s=%d, %s is %d, its children have %d", file, v, f, w.files[f], w.below[f])
		}
	}
}

// forget takes a removed cgroup out of the record.
func (w *walker) forget(dir string) {
	for _, knob := range []cgroup.Knob{cgroup.MemoryMin, cgroup.MemoryLow} {
		file := path.Join(dir, string(knob))
		w.below[path.Join(path.Dir(dir), string(knob))] -= w.files[file]
		delete(w.files, file)
		delete(w.below, file)
	}
}

// step makes one thing happen.
func (w *walker) step() string {
	switch n := w.rand.IntN(10); {
	case len(w.pods) == 0 || n < 2 && len(w.pods) < 12:
		w.add()
		return "a pod came"
	case n < 3:
		w.remove(w.rand.IntN(len(w.pods)))
		return "a pod went"
	case n < 4:
		gone := w.end(w.rand.IntN(len(w.pods)))
		w.add()
		w.rmdir(gone.path.Pod)
		return "a pod went as another came"
	case n < 6:
		w.grow(w.pods[w.rand.IntN(len(w.pods))])
		return "a container came"
	default:
		w.resize(w.pods[w.rand.IntN(len(w.pods))])
		return "a container was resized"
	}
}

func (w *walker) mkdir(cgroup string) {
	if err := cgroups.Folder(w.tree.Root()).Make(cgroup); err != nil {
		w.t.Fatal(err)
	}
}

func (w *walker) add() {
	w.made++
	parent := []string{"", "burstable/", "besteffort/"}[w.rand.IntN(3)]
	p := &walkedPod{path: mustPod(w.t, fmt.Sprintf("kubepods/%spod%d", parent, w.made))}
	p.Class = p.path.Class
	if w.rand.IntN(4) == 0 {
		p.Overhead = w.rand.Uint64N(64) << 20
	}
	if w.rand.IntN(6) == 0 && p.Class == memoryqos.Burstable {
		// Kubernetes admits none below what the containers ask for: up to four, of less than 1Gi each.
		p.PodRequest = ptr(4<<30 + w.rand.Uint64N(1<<30))
	}
	w.mkdir(p.path.Pod)
	w.pods = append(w.pods, p)
	w.grow(p)
}

// container is what the rules give to a container of a pod.
func (w *walker) container(p *walkedPod) memoryqos.PodContainer {
	c := memoryqos.PodContainer{Kind: memoryqos.Kind(2 * w.rand.IntN(2))} // app or sidecar: they have cgroups at once
	switch p.Class {
	case memoryqos.Guaranteed:
		c.Request = w.rand.Uint64N(1<<30) + 1
		c.Limit = c.Request
	case memoryqos.Burstable:
		c.Request = w.rand.Uint64N(1 << 30)
		c.Limit = uint64(w.rand.IntN(2)) * (c.Request + w.rand.Uint64N(1<<30))
	}
	values := w.settings.Container(memoryqos.Container{Class: p.Class, Request: c.Request, Limit: c.Limit}, memoryqos.Overrides{})
	c.Values = &values
	return c
}

// grow adds a container: first the parent cgroups, then its cgroup with its values.
func (w *walker) grow(p *walkedPod) {
	if len(p.Containers) > 3 {
		return
	}
	name := fmt.Sprintf("%s/c%d", p.path.Pod, len(p.names))
	p.Containers = append(p.Containers, w.container(p))
	p.names = append(p.names, name)
	if w.runtimes {
		w.apply()
		w.mkdir(name)
		w.runtime(p, len(p.names)-1)
		return
	}
	w.mkdir(name)
	if w.rand.IntN(2) == 0 {
		w.mkdir(name + "/container") // as crun does
	}
	w.apply()
}

// resize changes a container. Where the runtime does, what grows is raised above before, and what shrinks is lowered above
// afterwards; otherwise the order is the protector's.
func (w *walker) resize(p *walkedPod) {
	i := w.rand.IntN(len(p.Containers))
	old, new := p.Containers[i], w.container(p)
	new.Kind = old.Kind
	p.Containers[i] = new
	if w.runtimes {
		p.Containers[i].Values = &memoryqos.Values{Min: larger(old.Values.Min, new.Values.Min), Low: larger(old.Values.Low, new.Values.Low)}
		w.apply()
		p.Containers[i] = new
		w.runtime(p, i)
	}
	w.apply()
	if err := w.protector.Check(w.t.Context(), p.names[i]); err != nil {
		w.t.Fatal(err)
	}
}

func larger(a, b *uint64) *uint64 {
	if a == nil || b != nil && *b > *a {
		return b
	}
	return a
}

// runtime writes a container's values as a runtime does.
func (w *walker) runtime(p *walkedPod, i int) {
	for knob, v := range map[cgroup.Knob]*uint64{cgroup.MemoryMin: p.Containers[i].Values.Min, cgroup.MemoryLow: p.Containers[i].Values.Low} {
		if err := w.tree.Set(p.names[i], knob, number(v)); err != nil {
			w.t.Fatal(err)
		}
	}
}

func number(v *uint64) uint64 {
	if v == nil {
		return 0
	}
	return *v
}

// end ends a pod's containers; its own cgroup stays until the kubelet comes round to it.
func (w *walker) end(i int) *walkedPod {
	p := w.pods[i]
	w.pods = append(w.pods[:i], w.pods[i+1:]...)
	for _, name := range p.names {
		w.forget(name + "/container")
		w.rmdir(name)
	}
	return p
}

// remove ends a pod. Some pods' cgroups are gone before we hear of it.
func (w *walker) remove(i int) {
	p := w.end(i)
	if w.rand.IntN(2) == 0 {
		w.rmdir(p.path.Pod)
		w.apply()
		return
	}
	w.apply()
	w.rmdir(p.path.Pod)
}

func (w *walker) rmdir(cgroup string) {
	w.forget(cgroup)
	if err := cgroups.Folder(w.tree.Root()).Remove(cgroup); err != nil {
		w.t.Fatal(err)
	}
}

func (w *walker) apply() {
	pods := make([]Pod, 0, len(w.pods))
	for _, p := range w.pods {
		pod := Pod{Path: p.path, Values: w.settings.Pod(p.Pod)}
		for i, c := range p.Containers {
			pod.Containers = append(pod.Containers, Container{Cgroup: p.names[i], Values: *c.Values, ByRuntime: w.runtimes})
		}
		pods = append(pods, pod)
	}
	if err := w.protector.applyAll(w.t.Context(), Targets(pods)); err != nil {
		w.t.Fatal(err)
	}
}

// verify compares every level with sums that are made here, from the living pods alone: each time by the record and by the
// files of kubepods and the QoS level, and now and then by all files.
func (w *walker) verify(event int, what string) {
	want := map[string]uint64{"kubepods/memory.min": 0, "kubepods/memory.low": 0, "kubepods/burstable/memory.min": 0, "kubepods/burstable/memory.low": 0}
	for _, p := range w.pods {
		var min, low uint64
		for i, c := range p.Containers {
			min, low = min+number(c.Values.Min), low+number(c.Values.Low)
			want[p.names[i]+"/memory.min"], want[p.names[i]+"/memory.low"] = number(c.Values.Min), number(c.Values.Low)
		}
		own := &min
		if p.Class == memoryqos.Burstable && w.settings.Reservation == memoryqos.TieredReservation {
			own = &low
		}
		if p.Class != memoryqos.BestEffort {
			if p.PodRequest != nil {
				*own = *p.PodRequest
			}
			*own += p.Overhead
		}
		want[p.path.Pod+"/memory.min"], want[p.path.Pod+"/memory.low"] = min, low
		want["kubepods/memory.min"] += min + low
		want["kubepods/memory.low"] += low
		if p.Class == memoryqos.Burstable {
			want["kubepods/burstable/memory.min"] += min
			want["kubepods/burstable/memory.low"] += low
		}
	}
	for file, want := range want {
		if got := w.files[file]; got != want {
			w.t.Fatalf("event %d, %s: %s was set to %d, the living have %d", event, what, file, got, want)
		}
		if strings.Contains(file, "/pod") && event%50 > 0 {
			continue
		}
		got, err := cgroups.Folder(w.tree.Root()).Read(path.Split(file))
		if err != nil {
			w.t.Fatal(err)
		}
		if got = cmp.Or(got, "0"); got != strconv.FormatUint(want, 10) {
			w.t.Fatalf("event %d, %s: %s holds %s, the living have %d", event, what, file, got, want)
		}
	}
}

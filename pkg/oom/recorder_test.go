package oom

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

const (
	kubepods = "kubepods"
	podDir   = "kubepods/burstable/podu1"
	appDir   = podDir + "/app"
	besideID = podDir + "/beside"
)

// host is a folder in place of the kernel's files, with a pod of two containers.
type host struct {
	*testing.T
	root     string
	state    string
	view     *ledger.View
	changed  chan struct{}
	verdicts []Verdict
	log      *logrustest.Hook
}

func newHost(t *testing.T) *host {
	h := &host{T: t, root: t.TempDir(), state: t.TempDir(), changed: make(chan struct{}, 1)}
	h.view = &ledger.View{Conditions: []ledger.Condition{{Name: ledger.ConditionSynchronized, OK: true}}, Pods: []*ledger.PodView{{
		Namespace: "shop", Name: "web", UID: "u1", Cgroup: podDir,
		Containers: []ledger.ContainerView{
			{Name: "app", ID: "id-app", Cgroup: appDir, Limit: 64 * mib, Estimate: pods.Estimate{Request: 32 * mib}},
			{Name: "beside", ID: "id-beside", Cgroup: besideID, Limit: 64 * mib, Estimate: pods.Estimate{Request: 16 * mib}},
		},
	}}}
	for _, dir := range []string{kubepods, kubepods + "/burstable", podDir, appDir, besideID} {
		h.events(dir, 0, 0, 0, 0)
		h.held(dir, "max", Held{})
	}
	h.write("proc", "sys/vm/min_free_kbytes", "1024")
	h.write("proc", "sys/kernel/random/boot_id", "boot-1")
	return h
}

func (h *host) write(dir, file, text string) {
	h.Helper()
	path := filepath.Join(h.root, dir, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		h.Fatal(err)
	}
}

// events are the counters of a cgroup: its own limit hit, that or one below it, processes killed, whole cgroups killed.
func (h *host) events(dir string, own, below, kills, groups int) {
	h.Helper()
	h.write(dir, "memory.events.local", fmt.Sprintf("low 0\nhigh 0\nmax %d\noom %d\noom_kill 0\noom_group_kill 0", own, own))
	h.write(dir, "memory.events", fmt.Sprintf("low 0\nhigh 0\nmax %d\noom %d\noom_kill %d\noom_group_kill %d", below, below, kills, groups))
}

func (h *host) held(dir, limit string, held Held) {
	h.Helper()
	h.write(dir, "memory.max", limit)
	h.write(dir, "memory.current", fmt.Sprint(held.total()))
	h.write(dir, "memory.stat", fmt.Sprintf("anon %d\nfile %d\nshmem %d\nfile_dirty %d\nfile_writeback 0\nkernel %d\nsock 0",
		held.Processes, held.PageCache+held.Tmpfs, held.Tmpfs, held.Unwritten, held.Kernel))
	h.write(dir, "memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2000000")
	h.write(dir, "cpuset.mems.effective", "0-1")
}

func (h *host) recorder(options ...cgroupfs.Option) *Recorder {
	h.Helper()
	tree, err := cgroupfs.Open(h.root, append(options, cgroupfs.Plain())...)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { tree.Close() })
	log, hook := logrustest.NewNullLogger()
	h.log = hook
	return New(Options{Tree: tree, View: func() *ledger.View { return h.view }, Changed: h.changed, Path: filepath.Join(h.state, FileName),
		Proc: filepath.Join(h.root, "proc"), Log: log, OnVerdict: func(v Verdict) { h.verdicts = append(h.verdicts, v) }})
}

// said are the verdicts so far, in a word each.
func (h *host) said() string {
	var all []string
	for _, v := range h.verdicts {
		by := "-"
		if v.Culprit != nil {
			by = v.Culprit.Pod + "/" + v.Culprit.Container
		}
		for _, name := range v.Unread {
			by += " without " + name
		}
		all = append(all, fmt.Sprintf("%s %d %s %s by %s", v.Container, v.Kills, v.Level, v.Cause, by))
	}
	return strings.Join(all, "; ")
}

// look looks at the pod, and judges what it finds.
func (h *host) look(r *Recorder, now time.Time) {
	h.Helper()
	r.look(r.pods[podDir], now)
	r.judge(now.Add(settle))
	h.stored(r)
}

// stored waits until the file has what is known.
func (h *host) stored(r *Recorder) { _ = r.store.writer.Flush().Wait(h.Context()) }

func (h *host) sync(r *Recorder, now time.Time) {
	h.Helper()
	r.sync(now)
	r.judge(now.Add(settle))
	h.stored(r)
}

func (h *host) expect(want string) {
	h.Helper()
	if got := h.said(); got != want {
		h.Errorf("%s\nwant %s", got, want)
	}
	h.verdicts = nil
}

func TestKillsAreFoundInTheCounters(t *testing.T) {
	gone := func(kills, groups int) func(h *host) {
		return func(h *host) {
			h.events(podDir, 0, 1, kills, groups)
			h.held(podDir, "134217728", Held{Processes: 20 * mib, Tmpfs: 45 * mib})
			h.held(besideID, "max", Held{Processes: 20 * mib, Tmpfs: 5 * mib})
			h.remove(appDir)
		}
	}
	for name, test := range map[string]struct {
		happens func(h *host)
		want    string
	}{
		"its own limit": {func(h *host) {
			h.events(appDir, 1, 1, 1, 0)
			h.events(podDir, 0, 1, 1, 0)
			h.held(appDir, "67108864", Held{Processes: mib, Kernel: mib})
		}, "app 1 container processes by web/app"},
		"a whole container": {func(h *host) {
			h.events(appDir, 1, 1, 3, 1)
			h.events(podDir, 0, 1, 3, 1)
			h.held(appDir, "67108864", Held{Tmpfs: 50 * mib})
		}, "app 1 container tmpfs by web/app"},
		"the pod's limit": {func(h *host) {
			h.events(appDir, 0, 0, 1, 0)
			h.events(podDir, 1, 1, 1, 0)
			h.held(podDir, "67108864", Held{Processes: 50 * mib})
			h.held(besideID, "max", Held{Processes: 45 * mib})
			h.held(appDir, "max", Held{Processes: 5 * mib})
		}, "app 1 pod processes by web/beside"},
		"the pod's limit, by what was killed": {func(h *host) {
			h.events(appDir, 0, 0, 1, 0)
			h.events(podDir, 1, 1, 1, 0)
			h.held(podDir, "67108864", Held{Processes: 20 * mib})
			h.held(besideID, "max", Held{Processes: 19 * mib})
		}, "app 1 pod processes by web/app"},
		"kubepods": {func(h *host) {
			h.events(appDir, 0, 0, 1, 0)
			h.events(podDir, 0, 0, 1, 0)
			h.events(kubepods+"/burstable", 0, 1, 1, 0)
			h.events(kubepods, 1, 1, 1, 0)
			h.held(kubepods, "104857600", Held{PageCache: 60 * mib, Unwritten: 60 * mib})
		}, "app 1 parent page_cache by web/"},
		"the node": {func(h *host) {
			h.events(appDir, 0, 0, 1, 0)
			h.events(podDir, 0, 0, 1, 0)
		}, "app 1 node unknown by -"},
		"both containers": {func(h *host) {
			h.events(appDir, 1, 1, 1, 0)
			h.events(besideID, 0, 0, 1, 0)
			h.events(podDir, 1, 2, 2, 0)
			h.held(appDir, "67108864", Held{})
			h.held(podDir, "67108864", Held{Processes: 10 * mib})
		}, "app 1 container processes by web/app; beside 1 pod processes by web/beside"},
		"a container that has gone":       {gone(1, 0), "app 1 container tmpfs by web/app"},
		"a whole container that has gone": {gone(3, 1), "app 1 container tmpfs by web/app"},
		"a container that has gone, beside one that is being created": {func(h *host) {
			gone(1, 0)(h)
			p := h.view.Pods[0]
			p.Containers = append(p.Containers, ledger.ContainerView{Name: "app", ID: "id-next", Cgroup: podDir + "/next", State: ledger.Creating})
		}, "app 1 container tmpfs by web/app"},
		"one that is being created": {func(h *host) {
			h.events(podDir, 0, 1, 1, 0)
			p := h.view.Pods[0]
			p.Containers = append(p.Containers, ledger.ContainerView{Name: "next", ID: "id-next", Cgroup: podDir + "/next", State: ledger.Created})
		}, "next 1 container unknown by web/next"},
		"two that have gone": {func(h *host) {
			h.events(podDir, 0, 1, 1, 0)
			h.remove(appDir)
			h.remove(besideID)
		}, " 1 container unknown by web/"},
		"a limit that was hit without a kill": {func(h *host) {
			h.events(appDir, 1, 1, 0, 0)
			h.events(podDir, 0, 1, 0, 0)
		}, ""},
		"nothing": {func(*host) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			r := h.recorder()
			h.sync(r, noon)
			test.happens(h)
			h.look(r, noon.Add(time.Second))
			h.expect(test.want)
			h.look(r, noon.Add(2*time.Second))
			h.sync(r, noon.Add(3*time.Second))
			h.expect("") // each once
		})
	}
}

func (h *host) remove(dir string) {
	h.Helper()
	if err := os.RemoveAll(filepath.Join(h.root, dir)); err != nil {
		h.Fatal(err)
	}
}

// The kernel counts the hit of a limit, then the kill: a look may fall between them. And the limit of a cgroup that was hit for two pods
// explains both kills.
func TestAHitExplainsTheKillThatFollows(t *testing.T) {
	h := newHost(t)
	r := h.recorder()
	h.sync(r, noon)
	h.held(appDir, "67108864", Held{})
	h.events(appDir, 1, 1, 0, 0)
	h.events(podDir, 0, 1, 0, 0)
	h.look(r, noon.Add(time.Second))
	h.events(appDir, 1, 1, 1, 0)
	h.events(podDir, 0, 1, 1, 0)
	h.look(r, noon.Add(2*time.Second))
	h.expect("app 1 container processes by web/app")
	h.events(appDir, 1, 1, 2, 0)
	h.events(podDir, 0, 1, 2, 0)
	h.look(r, noon.Add(time.Minute))
	h.expect("app 1 node unknown by -")
}

// Kubepods' limit was hit twice, for two containers: the third kill has another reason.
func TestAHitAboveThePodExplainsOneKill(t *testing.T) {
	h := newHost(t)
	r := h.recorder()
	h.sync(r, noon)
	h.held(kubepods, "67108864", Held{})
	for i, dir := range []string{appDir, besideID, appDir} {
		h.events(kubepods, 2, 2, i+1, 0)
		h.events(dir, 0, 0, i/2+1, 0)
		h.events(podDir, 0, 0, i+1, 0)
		h.look(r, noon.Add(time.Duration(2*i+1)*time.Second))
	}
	h.expect("app 1 parent processes by web/; beside 1 parent processes by web/; app 1 node unknown by -")
}

// The kernel counts a kill in the container before it counts it in the pod, which is read first.
func TestAKillIsCountedOnce(t *testing.T) {
	h := newHost(t)
	killed := false
	r := h.recorder(cgroupfs.OnOpen(func(dir, file string) error {
		if killed && dir == appDir && file == "memory.events" {
			h.events(podDir, 0, 1, 1, 0)
		}
		return nil
	}))
	h.sync(r, noon)
	h.held(appDir, "67108864", Held{})
	h.events(appDir, 1, 1, 1, 0)
	h.events(podDir, 0, 1, 0, 0)
	killed = true
	h.look(r, noon.Add(time.Second))
	h.look(r, noon.Add(2*time.Second))
	h.expect("app 1 container processes by web/app")
	if got := r.Totals(); len(got) != 1 || got[Total{Processes, Container}] != 1 {
		t.Errorf("totals are %v", got)
	}
}

// A kill in a container that is not known yet is counted in the pod. Once the container is known, it is not counted again, nor are those before it.
func TestAKillOfAContainerThatIsNotKnownYet(t *testing.T) {
	h := newHost(t)
	known := h.view
	pod := *known.Pods[0]
	pod.Containers = pod.Containers[1:]
	h.view = &ledger.View{Conditions: known.Conditions, Pods: []*ledger.PodView{&pod}}
	r := h.recorder()
	h.sync(r, noon)
	for i, kills := range []int{1, 3, 3} {
		h.events(appDir, kills, kills, kills, 0)
		h.events(podDir, 0, kills, kills, 0)
		h.look(r, noon.Add(time.Duration(i)*time.Minute))
		h.view = known
	}
	h.expect(" 1 container unknown by web/; app 2 container unknown by web/app")
}

// killOnFullNode has the kernel kill a process of app, which may use node 0 only, when that node has no memory left.
func (h *host) killOnFullNode() {
	h.write(appDir, "cpuset.mems.effective", "0")
	h.write(appDir, "memory.numa_stat", "anon N0=1048576 N1=0\nshmem N0=0 N1=0")
	r := h.recorder()
	r.options.MemInfo = func() ([]deficit.MemInfo, error) {
		return []deficit.MemInfo{{Node: 0, Free: mib}, {Node: 1, Free: 500 * mib}}, nil
	}
	h.sync(r, noon)
	h.events(appDir, 0, 0, 1, 0)
	h.events(podDir, 0, 0, 1, 0)
	h.look(r, noon.Add(time.Second))
}

func TestANUMANodeThatIsFull(t *testing.T) {
	h := newHost(t)
	h.write(besideID, "memory.numa_stat", "anon N0=94371840 N1=0\nshmem N0=1048576 N1=0")
	h.killOnFullNode()
	if got := h.verdicts; len(got) != 1 || got[0].Nodes != nodeset.Of(0) || len(got[0].Memory) != 2 || got[0].Culprit.Used != 91*mib {
		t.Errorf("%+v", got)
	}
	h.expect("app 1 numa_node unknown by web/beside")
}

// A container that is throttled has the kernel tell of its pod hundreds of times a second. The pod is read ten times, and for the last time
// after the last of them.
func TestAMemoryHighThatIsReached(t *testing.T) {
	h := newHost(t)
	reads, told := 0, 0
	r := h.recorder(cgroupfs.OnOpen(func(dir, file string) error {
		if dir == podDir && file == "memory.events" {
			reads++
		}
		return nil
	}))
	r.options.OnHigh = func(pod string) {
		if told++; pod != podDir {
			t.Errorf("told of %s", pod)
		}
	}
	h.sync(r, noon)
	reads = 0
	for i := range 650 {
		h.write(podDir, "memory.events", fmt.Sprintf("low 0\nhigh %d\nmax 0\noom 0\noom_kill 0", i+1))
		now := noon.Add(time.Duration(i) * time.Second / 650)
		if !r.wake.IsZero() && !now.Before(r.wake) {
			r.wake = time.Time{}
			r.lookAgain(now)
		}
		r.notice(r.pods[podDir], now)
	}
	if reads != 10 || told != 10 {
		t.Errorf("read %d times and told %d times, want 10 in a second", reads, told)
	}
	if r.lookAgain(r.wake); r.pods[podDir].high != 650 {
		t.Errorf("the last that was seen is the event %d of 650", r.pods[podDir].high)
	}
}

// A container without a limit is not looked at closely, but the kernel keeps the most that it used.
func TestWhatAContainerWithoutALimitHeld(t *testing.T) {
	for name, test := range map[string]struct {
		peak uint64
		want string
	}{
		"it has grown":       {300 * mib, "app 1 node processes by web/"},
		"that was long ago":  {200 * mib, "app 1 node unknown by -"},
		"it cannot be known": {0, "app 1 node unknown by -"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.view.Pods[0].Containers[0].Limit = 0
			r := h.recorder()
			h.sync(r, noon)
			h.write(appDir, "memory.peak", fmt.Sprint(200*mib))
			r.round(noon, true)
			if test.peak > 0 {
				h.write(appDir, "memory.peak", fmt.Sprint(test.peak))
			} else {
				h.remove(appDir + "/memory.peak")
			}
			h.events(appDir, 0, 0, 1, 0)
			h.events(podDir, 0, 0, 1, 0)
			h.look(r, noon.Add(time.Second))
			h.expect(test.want)
		})
	}
}

// One that grows is looked at again before it has reached its limit, and one at rest with all others.
func TestWhoGrowsIsLookedAtMoreOften(t *testing.T) {
	h := newHost(t)
	r := h.recorder()
	h.sync(r, noon)
	looks, now, all := 0, noon, true
	for used := uint64(0); used < 64*mib; looks++ {
		used = 33*mib + uint64(now.Sub(noon)/time.Second)*mib/4
		h.held(appDir, "67108864", Held{Processes: used})
		r.wake = time.Time{}
		r.round(now, all)
		next := noon.Add(now.Sub(noon).Truncate(period) + period)
		if all = r.wake.IsZero() || !r.wake.Before(next); !all {
			next = r.wake
		}
		now = next
	}
	kept := r.pods[podDir].containers[appDir].samples
	if last := kept[len(kept)-1]; looks > 30 || len(kept) < 8 || last.Held.Processes < 63*mib {
		t.Errorf("%d looks, samples %+v", looks, kept)
	}
	for range 10 {
		now = now.Add(period)
		r.wake = time.Time{}
		r.round(now, true)
	}
	if !r.wake.IsZero() {
		t.Error("one at rest is looked at between two rounds")
	}
}

// One that is far from its limit is read each five minutes, unless it grows towards the half of it.
func TestOneFarFromItsLimitIsLookedAtSeldom(t *testing.T) {
	h := newHost(t)
	h.view.Pods[0].Containers = h.view.Pods[0].Containers[:1]
	reads := 0
	r := h.recorder(cgroupfs.OnOpen(func(cgroup, file string) error {
		if cgroup == appDir && file == "memory.current" {
			reads++
		}
		return nil
	}))
	now := noon
	rounds := func(count int) int {
		reads = 0
		for range count {
			now = now.Add(period)
			r.round(now, true)
		}
		return reads
	}
	h.sync(r, now)
	h.held(appDir, "67108864", Held{Processes: 4 * mib})
	rounds(2) // all of it may be new
	if got := rounds(50); got != 5 {
		t.Errorf("at rest it is read %d times in 50 rounds, want 5", got)
	}
	used := uint64(4 * mib)
	for rounds(1); len(r.pods[podDir].containers[appDir].samples) == 0 && used < 64*mib; rounds(1) {
		used += mib
		h.held(appDir, "67108864", Held{Processes: used})
	}
	if used > 34*mib {
		t.Errorf("it has grown to %d before it is looked at closely", used)
	}
}

// One above half of its limit that holds what it held takes one read a round, and all of them every five minutes. Its last sample says when it was
// read, and until when it held.
func TestOneThatHoldsWhatItHeldTakesOneRead(t *testing.T) {
	for _, test := range []struct {
		grows         uint64 // bytes a round
		usage, stalls int    // reads of memory.current and of memory.pressure in 10 rounds
		kept          string
	}{{0, 11, 1, "12:05:00-12:07:00"}, {1024, 11, 1, "12:05:00-12:07:00"}, {3 * mib, 20, 10, "12:06:30 12:07:00"}} {
		h := newHost(t)
		h.view.Pods[0].Containers = h.view.Pods[0].Containers[:1]
		reads := map[string]int{}
		r := h.recorder(cgroupfs.OnOpen(func(cgroup, file string) error {
			if cgroup == appDir {
				reads[file]++
			}
			return nil
		}))
		now := noon
		rounds := func(count int) {
			for range count {
				h.held(appDir, "67108864", Held{Processes: 33*mib + test.grows*uint64(now.Sub(noon)/period)})
				r.round(now, true)
				now = now.Add(period)
			}
		}
		h.sync(r, now)
		rounds(1)
		clear(reads)
		rounds(10)
		if reads["memory.current"] != test.usage || reads["memory.pressure"] != test.stalls {
			t.Errorf("with %d bytes more each round: %v", test.grows, reads)
		}
		rounds(4)
		var kept []string
		for _, s := range r.pods[podDir].containers[appDir].samples.since(now) {
			text := s.At.Format(time.TimeOnly)
			if !s.Until.IsZero() {
				text += "-" + s.Until.Format(time.TimeOnly)
			}
			kept = append(kept, text)
		}
		if text := strings.Join(kept, " "); text != test.kept {
			t.Errorf("with %d bytes more each round: the samples are of %s, want %s", test.grows, text, test.kept)
		}
	}
}

// A sample that stands for a later look, too, is another one: a verdict may have it. What grows then has grown since that look.
func TestASampleThatStandsForLaterLooks(t *testing.T) {
	first := samples{{At: noon, Current: 40 * mib, Held: Held{Processes: 40 * mib}}}
	last := first
	for _, after := range []time.Duration{time.Minute, 2 * time.Minute} {
		still := false
		if last, still = last.still(40*mib, 64*mib, noon.Add(after)); !still {
			t.Fatalf("after %v it does not hold what it held", after)
		}
	}
	if !first[0].Until.IsZero() {
		t.Errorf("a verdict's sample is until %v", first[0].Until)
	}
	if wait := last.again(Sample{At: noon.Add(150 * time.Second), Held: Held{Processes: 48 * mib}}, 64*mib); wait != 15*time.Second {
		t.Errorf("8 MiB more in half a minute, and 16 left: it is looked at again in %v", wait)
	}
}

// What a container held while it came near its limit is a part of the verdict, and says what it held where nothing else does.
func TestAContainerNearItsLimitIsLookedAt(t *testing.T) {
	for name, pin := range map[string]func(*ledger.ContainerView){
		"pinned": func(c *ledger.ContainerView) { c.Nodes = nodeset.Of(1) }, "confined": func(c *ledger.ContainerView) { c.Confined = nodeset.Of(1) },
	} {
		t.Run(name, func(t *testing.T) { looksNearItsLimit(t, pin) })
	}
}

func looksNearItsLimit(t *testing.T, pin func(*ledger.ContainerView)) {
	h := newHost(t)
	pin(&h.view.Pods[0].Containers[0])
	r := h.recorder()
	h.sync(r, noon)
	for i := range 100 { // ten times a second
		h.held(appDir, "67108864", Held{Processes: uint64(i) * mib / 2})
		h.write(appDir, "memory.numa_stat", fmt.Sprintf("anon N0=4096 N1=%d\nshmem N0=0 N1=%d", i*mib/4, i*mib/4))
		h.events(appDir, 0, 0, 0, 0)
		h.write(appDir, "memory.events", fmt.Sprintf("low 0\nhigh 0\nmax %d\noom 0\noom_kill 0", i))
		h.write(podDir, "memory.events", fmt.Sprintf("low 0\nhigh 0\nmax %d\noom 0\noom_kill 0", i))
		h.look(r, noon.Add(time.Duration(i)*100*time.Millisecond))
	}
	h.events(appDir, 0, 0, 1, 0)
	h.events(podDir, 0, 0, 1, 0)
	h.look(r, noon.Add(10*time.Second))
	got := h.verdicts
	if len(got) != 1 || len(got[0].Samples) != 10 || got[0].Cause != Processes || got[0].Held.Processes < 45*mib {
		t.Fatalf("%+v", got)
	}
	if s := got[0].Samples; s[0].Current >= s[9].Current || len(s[9].Nodes) != 1 || s[9].Nodes[1] != s[9].Held.Processes || s[9].Stalled != 2*time.Second {
		t.Errorf("%+v", s)
	}
}

func TestVerdictsOutliveTheDaemon(t *testing.T) {
	h := newHost(t)
	r := h.recorder()
	h.sync(r, noon)
	h.events(appDir, 1, 1, 1, 0)
	h.events(podDir, 0, 1, 1, 0)
	h.held(appDir, "67108864", Held{Tmpfs: 50 * mib})
	h.look(r, noon.Add(time.Second))
	h.expect("app 1 container tmpfs by web/app")
	r.sign(noon.Add(time.Minute))
	h.stored(r)

	// Nobody watches: of a kill in a container that lives, its own limit is known, and between which times it was.
	h.events(appDir, 2, 2, 2, 0)
	h.events(podDir, 0, 2, 2, 0)
	h.events(kubepods, 1, 3, 2, 0)
	synchronized := h.view
	h.view = &ledger.View{}
	r = h.recorder() // which ends before it knows the pods
	r.begin(noon.Add(time.Minute * 2))
	r.sign(noon.Add(time.Minute * 3))
	h.stored(r)
	h.view = synchronized
	r = h.recorder()
	h.sync(r, noon.Add(time.Hour))
	if len(h.verdicts) != 1 || !h.verdicts[0].After.Equal(noon.Add(time.Minute)) {
		t.Errorf("%+v", h.verdicts)
	}
	h.expect("app 1 container unknown by web/app")
	h.sync(r, noon.Add(2*time.Hour))
	h.expect("")

	// Or it is not.
	h.events(podDir, 0, 2, 3, 0)
	h.events(appDir, 2, 2, 3, 0)
	r = h.recorder()
	h.sync(r, noon.Add(3*time.Hour))
	h.expect("app 1 unknown unknown by -")

	kept, err := Read(h.state)
	if err != nil || len(kept) != 3 || kept[0].Level != UnknownLevel || kept[2].Cause != Tmpfs {
		t.Errorf("%v: %+v", err, kept)
	}

	// After a boot the counters begin again.
	h.write("proc", "sys/kernel/random/boot_id", "boot-2")
	h.events(appDir, 1, 1, 1, 0)
	h.events(podDir, 0, 1, 1, 0)
	r = h.recorder()
	h.sync(r, noon.Add(4*time.Hour))
	h.expect("app 1 container unknown by web/app")
}

// A clock that was set back while no daemon ran: the file is of a time to come, and says nothing of when the kill was.
func TestAKillIsNotBetweenALaterAndAnEarlierTime(t *testing.T) {
	h := newHost(t)
	r := h.recorder()
	h.sync(r, noon.Add(-time.Second))
	h.events(appDir, 1, 1, 1, 0)
	h.events(podDir, 0, 1, 1, 0)
	h.look(r, noon)
	r.sign(noon)
	h.stored(r)
	h.verdicts = nil
	h.events(appDir, 2, 2, 2, 0)
	h.events(podDir, 0, 2, 2, 0)
	h.sync(h.recorder(), noon.Add(-time.Hour))
	if len(h.verdicts) != 1 || h.verdicts[0].when() != "before 2026-05-04 11:00:00" {
		t.Errorf("%+v, want one before 11:00", h.verdicts)
	}
}

// A daemon that ends between the count of a kill and its verdict leaves the kill to the next one, also if it has written the file meanwhile.
func TestKillsThatWaitAreLeftToTheNextDaemon(t *testing.T) {
	for name, test := range map[string]struct {
		happens func(h *host, r *Recorder)
		want    string
	}{
		"its own limit": {func(h *host, _ *Recorder) {
			h.events(appDir, 1, 1, 2, 0)
			h.events(podDir, 0, 2, 3, 0)
		}, "app 2 container unknown by web/app"},
		"a whole container": {func(h *host, _ *Recorder) {
			h.events(appDir, 1, 1, 3, 1)
			h.events(podDir, 0, 2, 4, 1)
		}, "app 1 container unknown by web/app"},
		"the pod's limit": {func(h *host, _ *Recorder) {
			h.events(appDir, 0, 0, 1, 0)
			h.events(podDir, 1, 2, 2, 0)
		}, "app 1 pod unknown by -"},
		"a container that has gone": {func(h *host, _ *Recorder) {
			h.events(podDir, 0, 2, 2, 0)
			h.remove(appDir)
		}, "app 1 container unknown by web/app"},
		"a container that has gone, twice": {func(h *host, r *Recorder) {
			h.events(podDir, 0, 2, 2, 0)
			h.remove(appDir)
			r.look(r.pods[podDir], noon.Add(time.Second+settle/4))
			h.events(podDir, 0, 3, 3, 0)
		}, "app 2 container unknown by web/app"},
		"two containers at once": {func(h *host, _ *Recorder) {
			h.view.Pods[0].Containers = append(h.view.Pods[0].Containers, ledger.ContainerView{Name: "other", ID: "id-other", Cgroup: podDir + "/other"})
			h.events(appDir, 0, 0, 1, 0)
			h.events(podDir+"/other", 0, 0, 1, 0)
			h.events(podDir, 1, 2, 3, 0)
		}, "app 1 pod unknown by -; other 1 pod unknown by -"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			r := h.recorder()
			h.sync(r, noon)
			h.held(besideID, "67108864", Held{})
			h.events(besideID, 1, 1, 1, 0)
			h.events(podDir, 0, 1, 1, 0)
			r.look(r.pods[podDir], noon.Add(time.Second))
			test.happens(h, r)
			r.look(r.pods[podDir], noon.Add(time.Second+settle/2))
			r.judge(noon.Add(time.Second + settle))
			h.stored(r)
			h.expect("beside 1 container processes by web/beside")
			r = h.recorder()
			h.sync(r, noon.Add(2*time.Second))
			h.expect(test.want)
			h.sync(h.recorder(), noon.Add(3*time.Second))
			h.expect("")
		})
	}
}

// A daemon that starts without descriptors can read only some of a pod's files. It blames no container that it cannot read, and waits until it can.
func TestWhatCannotBeReadAtTheStart(t *testing.T) {
	ended := func(h *host) { // as a container that the runtime has forgotten meanwhile
		h.events(podDir, 0, 1, 1, 0)
		h.remove(appDir)
		h.view.Pods[0].Containers = h.view.Pods[0].Containers[1:]
	}
	beside := func(h *host) {
		h.events(besideID, 1, 1, 1, 0)
		h.events(podDir, 0, 1, 1, 0)
	}
	for name, test := range map[string]struct {
		happens func(h *host)
		unread  string
		first   string // while it cannot be read
		then    string
	}{
		"one beside the victim": {ended, besideID, "", " 1 container unknown by web/"},
		"the victim":            {beside, besideID, "", "beside 1 container unknown by web/beside"},
		"one beside it":         {beside, appDir, "beside 1 container unknown by web/beside without app", ""},
		"the pod":               {beside, podDir, "", "beside 1 container unknown by web/beside"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			r := h.recorder()
			r.begin(noon)
			r.sign(noon)
			h.stored(r)
			test.happens(h)
			r = h.recorder(cgroupfs.OnOpen(func(dir, _ string) error {
				if dir == test.unread {
					return syscall.EMFILE
				}
				return nil
			}))
			h.sync(r, noon.Add(time.Minute))
			all := h.verdicts
			h.expect(test.first)
			test.unread = ""
			r.lookAtUnwatched(noon.Add(2 * time.Minute))
			r.judge(noon.Add(3 * time.Minute))
			if all = append(all, h.verdicts...); len(all) != 1 || !all[0].After.Equal(noon) {
				t.Errorf("%+v", all)
			}
			h.expect(test.then)

			h.events(besideID, 2, 2, 2, 0) // what was counted before is not counted again
			if name == "one beside the victim" {
				h.events(besideID, 1, 1, 1, 0)
			}
			h.events(podDir, 0, 2, 2, 0)
			h.held(besideID, "67108864", Held{})
			h.look(r, noon.Add(4*time.Minute))
			h.look(r, noon.Add(5*time.Minute))
			h.expect("beside 1 container processes by web/beside")
		})
	}
}

// While the victim's files cannot be read, a kill is not counted, and the log says so once. Afterwards it gets one verdict.
func TestWhatCannotBeReadWhileWatched(t *testing.T) {
	for name, test := range map[string]struct {
		unread string
		state  ledger.Phase
	}{
		"the victim":                           {unread: besideID},
		"the victim before it has started":     {unread: besideID, state: ledger.Created},
		"the victim while it is being created": {unread: besideID, state: ledger.Creating},
		"the pod":                              {unread: podDir},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.view.Pods[0].Containers[1].State = test.state
			failing := ""
			r := h.recorder(cgroupfs.OnOpen(func(dir, _ string) error {
				if dir == failing {
					return syscall.EMFILE
				}
				return nil
			}))
			r.begin(noon)
			r.pods[podDir].watched = true
			for i, at := range []time.Time{noon.Add(time.Hour), noon.Add(2 * time.Hour)} {
				failing = test.unread
				h.events(besideID, i+1, i+1, i+1, 0)
				h.events(podDir, 0, i+1, i+1, 0)
				h.look(r, at)
				r.lookAtUnwatched(at.Add(time.Minute))
				r.judge(at.Add(2 * time.Minute))
				h.expect("")
				if lines := h.log.AllEntries(); len(lines) != 1 || !strings.HasPrefix(lines[0].Message, "OOM kills in this pod get no verdict until") ||
					lines[0].Data["pod"] != "shop/web" || lines[0].Data["error"] == nil {
					t.Errorf("the log has %v", lines)
				}
				failing = ""
				r.lookAtUnwatched(at.Add(3 * time.Minute))
				r.judge(at.Add(4 * time.Minute))
				if v := h.verdicts; len(v) != 1 || v[0].After.After(at) || at.Sub(v[0].After) > period || !v[0].Time.Equal(at.Add(3*time.Minute)) {
					t.Errorf("%+v", v)
				}
				h.expect("beside 1 container unknown by web/beside")
				h.log.Reset()
			}
			h.look(r, noon.Add(3*time.Hour))
			h.expect("")
		})
	}
}

// A kill that is read late may be older than a container that is being created.
func TestAKillIsNoLaterContainers(t *testing.T) {
	h := newHost(t)
	failing := ""
	r := h.recorder(cgroupfs.OnOpen(func(string, string) error {
		if failing != "" {
			return syscall.EMFILE
		}
		return nil
	}))
	h.sync(r, noon)
	failing = "all"
	h.events(podDir, 0, 1, 1, 0)
	h.remove(besideID)
	h.look(r, noon.Add(time.Minute))
	h.view.Pods[0].Containers[1] = ledger.ContainerView{Name: "beside", ID: "id-next", Cgroup: podDir + "/next", State: ledger.Creating}
	h.sync(r, noon.Add(2*time.Minute))
	failing = ""
	h.look(r, noon.Add(3*time.Minute))
	h.expect(" 1 container unknown by web/")
}

// A container that had ended before another was created is not blamed for its kill: an init container.
func TestAKillIsNoEarlierContainers(t *testing.T) {
	h := newHost(t)
	r := h.recorder()
	r.begin(noon)
	h.view.Pods[0].Containers[0].State = ledger.Stopped
	h.remove(appDir)
	h.view.Pods[0].Containers = append(h.view.Pods[0].Containers, ledger.ContainerView{Name: "next", ID: "id-next", Cgroup: podDir + "/next", State: ledger.Created})
	h.sync(r, noon.Add(time.Minute))
	h.events(podDir, 0, 1, 1, 0)
	h.look(r, noon.Add(time.Minute+time.Second))
	h.expect("next 1 container unknown by web/next")
}

// It is blamed where the pod could not be read since it ended.
func TestAKillBeforeAnotherContainerThatIsReadLater(t *testing.T) {
	h := newHost(t)
	failing := false
	r := h.recorder(cgroupfs.OnOpen(func(dir, _ string) error {
		if dir == podDir && failing {
			return syscall.EMFILE
		}
		return nil
	}))
	r.begin(noon)
	h.view.Pods[0].Containers[0].State = ledger.Stopped
	h.events(podDir, 0, 1, 1, 0)
	h.remove(appDir)
	h.view.Pods[0].Containers = append(h.view.Pods[0].Containers, ledger.ContainerView{Name: "next", ID: "id-next", Cgroup: podDir + "/next", State: ledger.Created})
	failing = true
	h.sync(r, noon.Add(time.Minute))
	failing = false
	h.look(r, noon.Add(2*time.Minute))
	h.expect("app 1 container processes by web/app")
}

// One container that can never be read keeps no other's kill from its verdict, which names it, and its own only until the pod ends.
func TestAContainerThatCanNeverBeRead(t *testing.T) {
	h := newHost(t)
	r := h.recorder(cgroupfs.OnOpen(func(dir, _ string) error {
		if dir == appDir {
			return syscall.EIO
		}
		return nil
	}))
	h.sync(r, noon)
	r.pods[podDir].watched = true
	at := noon
	again := func(want string) {
		h.Helper()
		at = at.Add(time.Minute)
		r.lookAtUnwatched(at)
		h.look(r, at)
		for _, v := range h.verdicts {
			if !v.After.IsZero() {
				t.Errorf("said to be since %v", v.After)
			}
		}
		h.expect(want)
	}
	h.events(besideID, 1, 1, 1, 0)
	h.events(podDir, 0, 1, 1, 0)
	again("beside 1 container unknown by web/beside without app")
	again("")
	h.held(podDir, "67108864", Held{Processes: 20 * mib})
	h.held(besideID, "67108864", Held{Processes: 15 * mib})
	h.events(besideID, 1, 1, 2, 0)
	h.events(podDir, 1, 2, 3, 0) // one of them in app
	h.log.Reset()
	again("beside 1 pod processes by - without app")
	again("")
	if lines := h.log.AllEntries(); len(lines) != 2 || !strings.HasPrefix(lines[0].Message, "OOM kills in this pod get no verdict until") {
		t.Errorf("the log has %v", lines)
	}
	h.events(besideID, 2, 2, 3, 0)
	h.events(podDir, 1, 3, 4, 0)
	again("beside 1 container processes by web/beside without app")
	again("")
	h.view = &ledger.View{Conditions: h.view.Conditions}
	h.sync(r, at.Add(time.Minute))
	text := h.verdicts[0].Text()
	h.expect("app 1 pod processes by - without app")
	if want := "; container app could not be read; what helps: raise the pod's limit"; !strings.Contains(text, want) {
		t.Errorf("the text is %q, want %q in it", text, want)
	}
}

// What a container that cannot be read may have lost is kept apart: it explains no later kill beside it, and gets its own verdict, of when it
// was counted, once the container can be read or is gone.
func TestKillsThatWaitForAContainer(t *testing.T) {
	own := func(h *host, r *Recorder, at time.Time) { // the limit of beside
		h.events(besideID, 1, 1, 1, 0)
		h.events(podDir, 1, 2, 2, 0)
		h.look(r, at)
	}
	readable := func(h *host, r *Recorder, at time.Time) {
		h.events(appDir, 0, 0, 1, 0)
		h.look(r, at)
	}
	for name, test := range map[string]struct {
		away    bool // the first kill was while no daemon watched
		own     bool // it was of its container's limit
		happens func(h *host, r *Recorder, at time.Time)
		want    string
		after   bool // it is said to be since the last look before the first kill
	}{
		"the node runs out later": {happens: func(h *host, r *Recorder, at time.Time) {
			h.events(besideID, 0, 0, 1, 0)
			h.events(podDir, 1, 1, 2, 0)
			h.look(r, at)
		}, want: "beside 1 node unknown by - without app"},
		"another's limit is hit later":                 {happens: own, want: "beside 1 container processes by web/beside without app"},
		"another's limit is hit once a daemon watches": {away: true, happens: own, want: "beside 1 container processes by web/beside without app"},
		"it can be read later":                         {happens: readable, want: "app 1 pod unknown by web/beside", after: true},
		"it can be read later, of before the daemon":   {away: true, happens: readable, want: "app 1 pod unknown by -", after: true},
		"it can be read later, when another is killed": {happens: func(h *host, r *Recorder, at time.Time) {
			h.events(besideID, 0, 0, 1, 0)
			h.events(appDir, 0, 0, 1, 0)
			h.events(podDir, 1, 1, 2, 0)
			h.look(r, at)
		}, want: "app 1 pod unknown by web/beside; beside 1 node unknown by -", after: true},
		"the pod is gone": {happens: func(h *host, r *Recorder, at time.Time) {
			if err := os.RemoveAll(filepath.Join(h.root, podDir)); err != nil {
				h.Fatal(err)
			}
			h.view = &ledger.View{Conditions: h.view.Conditions}
			h.sync(r, at)
		}, want: "app 1 pod unknown by -", after: true},
		"the pod ends after its limit was hit for another": {happens: func(h *host, r *Recorder, at time.Time) {
			h.events(besideID, 0, 0, 1, 0)
			h.events(podDir, 1, 2, 2, 0)
			h.look(r, at)
			h.verdicts = nil
			h.view = &ledger.View{Conditions: h.view.Conditions}
			h.sync(r, at.Add(time.Minute))
		}, own: true, want: "app 1 container processes by web/app without app", after: true},
		"the daemon ends": {happens: func(h *host, r *Recorder, at time.Time) {
			own(h, r, at)
			h.verdicts = nil
			r = h.recorder()
			h.sync(r, at.Add(time.Hour))
			h.sync(r, at.Add(2*time.Hour))
		}, want: " 1 pod unknown by -"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.held(besideID, "67108864", Held{Processes: 15 * mib})
			failing, hit := true, 1
			if test.own {
				hit = 0
			}
			r := h.recorder(cgroupfs.OnOpen(func(dir, _ string) error {
				if _, err := os.Stat(filepath.Join(h.root, dir)); dir == appDir && failing && err == nil {
					return syscall.EIO
				}
				return nil
			}))
			r.file.alive = noon
			if test.away {
				h.events(podDir, hit, 1, 1, 0)
			}
			h.sync(r, noon.Add(period))
			h.events(podDir, hit, 1, 1, 0)
			h.look(r, noon.Add(period))
			h.expect("")
			noticed := false // kills without a verdict make no difference for the stall guard
			r.options.OnHigh = func(string) { noticed = true }
			h.write(podDir, "memory.events", "low 0\nhigh 1\nmax 1\noom 1\noom_kill 1\noom_group_kill 0")
			if h.look(r, noon.Add(2*period)); !noticed {
				t.Error("a memory.high that is reached is not noticed")
			}
			failing = !strings.HasPrefix(name, "it can be read")
			test.happens(h, r, noon.Add(time.Hour))
			for _, v := range h.verdicts {
				if v.After.Equal(noon) != (test.after && v.Container != "beside") {
					t.Errorf("%s is said to be since %v", v.Container, v.After)
				}
			}
			h.expect(test.want)
			if r.pods[podDir] != nil {
				h.look(r, noon.Add(90*time.Minute))
				h.expect("")
			}
		})
	}
}

// What one that could not be read has lost was of the pod's limit, also if another one's limit was hit beside it. What it loses once it was
// read does not wait with the kills of another that cannot be read.
func TestAContainerThatIsReadAgain(t *testing.T) {
	h := newHost(t)
	failing := appDir
	r := h.recorder(cgroupfs.OnOpen(func(dir, _ string) error {
		if dir == failing {
			return syscall.EIO
		}
		return nil
	}))
	h.sync(r, noon)
	h.events(besideID, 1, 1, 1, 0)
	h.events(podDir, 1, 2, 2, 0) // one of them in app
	h.look(r, noon.Add(time.Minute))
	h.expect("beside 1 container unknown by web/beside without app")
	failing = ""
	h.events(appDir, 0, 0, 1, 0)
	h.look(r, noon.Add(2*time.Minute))
	h.expect("app 1 pod unknown by -")
	failing = besideID
	h.events(podDir, 2, 3, 3, 0) // one of them in beside
	h.look(r, noon.Add(3*time.Minute))
	h.events(appDir, 0, 0, 2, 0)
	h.events(podDir, 2, 3, 4, 0)
	h.look(r, noon.Add(4*time.Minute))
	h.expect("app 1 node unknown by - without beside")
}

func TestPodsThatComeAndGo(t *testing.T) {
	h := newHost(t)
	pods := h.view.Pods
	pods[0].Fresh = true
	h.view = &ledger.View{Conditions: h.view.Conditions}
	r := h.recorder()
	h.sync(r, noon)

	// A container that was killed before the daemon had heard of it.
	h.view = &ledger.View{Conditions: h.view.Conditions, Pods: pods}
	h.events(appDir, 1, 1, 1, 0)
	h.events(podDir, 0, 1, 1, 0)
	h.held(appDir, "67108864", Held{})
	h.sync(r, noon.Add(time.Second))
	h.expect("app 1 container processes by web/app")

	// One that is not known when its pod is looked at.
	more := *pods[0]
	const late = podDir + "/late"
	more.Containers = append(more.Containers[:2:2], ledger.ContainerView{Name: "late", Cgroup: late})
	h.view = &ledger.View{Conditions: h.view.Conditions, Pods: []*ledger.PodView{&more}}
	h.events(late, 1, 1, 1, 0)
	h.events(podDir, 0, 2, 2, 0)
	h.held(late, "67108864", Held{})
	h.look(r, noon.Add(10*time.Second))
	h.expect("late 1 container processes by web/late")

	// One that the runtime has removed with its pod.
	h.events(late, 2, 2, 2, 0)
	h.events(podDir, 0, 3, 3, 0)
	h.view = &ledger.View{Conditions: h.view.Conditions}
	h.sync(r, noon.Add(20*time.Second))
	h.expect("late 1 container processes by web/late")
	if len(r.pods) != 0 {
		t.Errorf("%d pods are still looked at", len(r.pods))
	}
}

// A container that has its children killed again and again drives out nobody else's verdict.
func TestALoopDrivesOutNoOtherVerdict(t *testing.T) {
	f := file{}
	for i := range 3 {
		f.add(Verdict{UID: fmt.Sprint("other-", i)})
	}
	long := Verdict{UID: "loop", Samples: make([]Sample, mostSamples)}
	for i := range 2 * mostVerdicts {
		long.Kills = uint64(i)
		f.add(long)
		if _, err := f.encode(f.Known); err != nil {
			t.Fatal(err)
		}
	}
	last := map[string]uint64{}
	for _, v := range f.Verdicts {
		last[v.UID] = v.Kills
	}
	if len(last) != 4 || last["loop"] != 2*mostVerdicts-1 {
		t.Errorf("the last verdicts are %v", last)
	}
}

// A Job with many pods that are killed once each drives out no verdict of another namespace.
func TestAJobDrivesOutNoOtherNamespacesVerdict(t *testing.T) {
	f := file{}
	for i := range 3 {
		f.add(Verdict{Namespace: "shop", UID: "db", Kills: uint64(i)})
	}
	for i := range 2 * mostVerdicts {
		f.add(Verdict{Namespace: "batch", UID: fmt.Sprint("job-", i)})
	}
	kept := map[string]int{}
	for _, v := range f.Verdicts {
		kept[v.UID]++
	}
	if kept["db"] != 3 || kept[fmt.Sprint("job-", 2*mostVerdicts-1)] != 1 || len(f.Verdicts) != mostVerdicts {
		t.Errorf("%d verdicts: %v", len(f.Verdicts), kept)
	}
}

// One container of a pod with many loses processes as fast as the kernel tells of it: the pod is read a few times, and no kill is lost.
func TestAStormOfKillsIsReadAFewTimes(t *testing.T) {
	h := newHost(t)
	r := h.recorder()
	reads := 0
	tree, err := cgroupfs.Open(h.root, cgroupfs.Plain(), cgroupfs.OnOpen(func(dir, file string) error {
		if dir == besideID && file == "memory.events" {
			reads++
		}
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	r.options.Tree = tree
	h.sync(r, noon)
	h.held(appDir, "67108864", Held{})
	reads = 0
	kills := 0
	for at := noon; at.Before(noon.Add(time.Second)); at = at.Add(10 * time.Millisecond) {
		kills++
		h.events(appDir, kills, kills, kills, 0)
		h.events(podDir, 0, kills, kills, 0)
		r.notice(r.pods[podDir], at)
		if !r.wake.IsZero() && !at.Before(r.wake) {
			r.wake = time.Time{}
			r.lookAgain(at)
		}
	}
	r.lookAgain(noon.Add(2 * time.Second))
	r.judge(noon.Add(3 * time.Second))
	judged := uint64(0)
	for _, v := range h.verdicts {
		judged += v.Kills
	}
	if reads > 10 || judged != uint64(kills) {
		t.Errorf("in a second the pod was read %d times, and of %d kills %d were judged", reads, kills, judged)
	}
}

// A limit of kubepods that was hit for a pod that nobody saw explains no later kill.
func TestAnOldHitAboveThePodExplainsNothing(t *testing.T) {
	h := newHost(t)
	r := h.recorder()
	h.sync(r, noon)
	h.held(kubepods, "1073741824", Held{})
	h.events(kubepods, 1, 1, 1, 0)
	r.round(noon.Add(period), true)
	h.events(kubepods, 1, 1, 2, 0)
	h.events(appDir, 0, 0, 1, 0)
	h.events(podDir, 0, 0, 1, 0)
	h.look(r, noon.Add(time.Hour))
	h.expect("app 1 node unknown by -")
}

// A pod that ran while the runtime was away: its kill may be as old as the last look, and its container may hold something else by now.
func TestAKillWhileTheRuntimeWasAway(t *testing.T) {
	h := newHost(t)
	all := *h.view
	none := all
	none.Pods = nil
	h.view = &none
	r := h.recorder()
	h.sync(r, noon)
	r.sign(noon.Add(time.Minute))
	gone := ledger.View{}
	h.view = &gone
	h.sync(r, noon.Add(2*time.Minute))
	r.sign(noon.Add(3 * time.Minute))
	h.view = &all
	h.events(appDir, 1, 1, 1, 0)
	h.events(podDir, 0, 1, 1, 0)
	h.held(appDir, "67108864", Held{PageCache: 60 * mib})
	h.sync(r, noon.Add(10*time.Minute))
	if v := h.verdicts; len(v) != 1 || v[0].Cause != UnknownCause || !v[0].After.Equal(noon.Add(time.Minute)) {
		t.Errorf("%+v", v)
	}
}

func TestTheFileIsBounded(t *testing.T) {
	f := file{}
	long := Verdict{Pod: strings.Repeat("x", 250), Samples: make([]Sample, mostSamples)}
	for range 2 * mostVerdicts {
		f.add(long)
		data, err := f.encode(f.Known)
		if err != nil || len(data) > mostBytes || len(f.Verdicts) > mostVerdicts {
			t.Fatalf("%v, %d bytes, %d verdicts", err, len(data), len(f.Verdicts))
		}
	}
	if len(f.Verdicts) < 10 {
		t.Errorf("%d verdicts", len(f.Verdicts))
	}
}

func TestAFileThatIsDamaged(t *testing.T) {
	h := newHost(t)
	if err := os.WriteFile(filepath.Join(h.state, FileName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := h.recorder()
	if entry := h.log.LastEntry(); entry == nil || !strings.Contains(entry.Message, "cannot be read") {
		t.Errorf("the log says %v", entry)
	}
	h.sync(r, noon)
	h.events(appDir, 1, 1, 1, 0)
	h.events(podDir, 0, 1, 1, 0)
	h.held(appDir, "67108864", Held{})
	h.look(r, noon.Add(time.Second))
	if kept, err := Read(h.state); err != nil || len(kept) != 1 {
		t.Errorf("%v, %d verdicts", err, len(kept))
	}
	set, _ := filepath.Glob(filepath.Join(h.state, FileName+".corrupt*"))
	if len(set) != 1 {
		t.Errorf("%d files were set aside", len(set))
	}
}

// A disk that takes nothing costs no verdict while the daemon lives.
func TestAFileThatCannotBeWritten(t *testing.T) {
	h := newHost(t)
	h.state = filepath.Join(h.state, "none")
	r := h.recorder()
	h.sync(r, noon)
	h.events(appDir, 1, 1, 1, 0)
	h.events(podDir, 0, 1, 1, 0)
	h.held(appDir, "67108864", Held{})
	h.look(r, noon.Add(time.Second))
	h.expect("app 1 container processes by web/app")
	for i := range 3 {
		r.sign(noon.Add(time.Duration(i) * time.Minute))
		h.stored(r)
	}
	warned := 0
	for _, entry := range h.log.AllEntries() {
		if entry.Level == logrus.WarnLevel && strings.Contains(entry.Message, "cannot be written") {
			warned++
		}
	}
	if warned != 1 {
		t.Errorf("warned %d times", warned)
	}
	if err := os.Mkdir(h.state, 0o700); err != nil {
		t.Fatal(err)
	}
	h.stored(r)
	if kept, err := Read(h.state); err != nil || len(kept) != 1 {
		t.Errorf("%v, %d verdicts", err, len(kept))
	}
}

// The kernel's notice of a counter is what has a pod looked at.
func TestRunIsToldByTheKernel(t *testing.T) {
	h := newHost(t)
	r := h.recorder()
	told := make(chan Verdict, 1)
	r.options.OnVerdict = func(v Verdict) { told <- v }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	h.held(appDir, "67108864", Held{})
	go func() { ended <- r.Run(ctx) }()
	for { // until it watches
		if _, err := os.Stat(filepath.Join(h.state, FileName)); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	h.events(appDir, 1, 1, 1, 0)
	h.events(podDir, 0, 1, 1, 0)
	select {
	case v := <-told:
		if v.Container != "app" || v.Level != Container {
			t.Errorf("%+v", v)
		}
	case <-time.After(time.Minute):
		t.Error("no verdict")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// With memory_localevents the kernel counts no kill of a container where it is looked for.
func TestAMountWithoutVerdictsIsSaid(t *testing.T) {
	for options, lines := range map[string]int{"rw,nosuid,memory_localevents": 1, "rw,memory_recursiveprot": 0} {
		t.Run(options, func(t *testing.T) {
			h := newHost(t)
			h.write("proc", "self/mounts", "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 "+options+" 0 0")
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := h.recorder().Run(ctx); err != nil {
				t.Fatal(err)
			}
			if all := h.log.AllEntries(); len(all) != lines || lines > 0 && !strings.Contains(all[0].Message, "memory_localevents") {
				t.Errorf("logged %v", all)
			}
		})
	}
}

// A container whose limit is full of clean page cache gets a heap and is killed for it: the last sample, half a second or most of a minute old,
// shows the page cache of before.
func TestPageCacheThatHasGoneIsNotBlamed(t *testing.T) {
	for name, after := range map[string]time.Duration{"at once": 500 * time.Millisecond, "later": 50 * time.Second} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			r := h.recorder()
			h.sync(r, noon)
			h.held(appDir, "67108864", Held{Processes: 2 * mib, PageCache: 61 * mib, Kernel: mib})
			h.write(appDir, "memory.events", "low 0\nhigh 0\nmax 10\noom 0\noom_kill 0\noom_group_kill 0")
			h.write(podDir, "memory.events", "low 0\nhigh 0\nmax 10\noom 0\noom_kill 0\noom_group_kill 0")
			h.look(r, noon.Add(time.Second))
			h.held(appDir, "67108864", Held{Processes: mib, PageCache: mib / 2, Kernel: mib})
			h.events(appDir, 1, 1, 1, 0)
			h.events(podDir, 0, 1, 1, 0)
			h.look(r, noon.Add(time.Second+after))
			h.expect("app 1 container processes by web/app")
		})
	}
}

// A static pod has the UID of its manifest: moved away and back, its cgroup has the same path, and its counters begin again.
func TestCountersBeginAgain(t *testing.T) {
	for name, away := range map[string]func(h *host, r *Recorder){
		"the recorder sees its end": func(h *host, r *Recorder) {
			pods := h.view.Pods
			h.view.Pods = nil
			h.remove(podDir)
			h.sync(r, noon.Add(10*time.Second))
			h.view.Pods = pods
		},
		"nobody sees it": func(*host, *Recorder) {},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			r := h.recorder()
			h.sync(r, noon)
			h.held(appDir, "67108864", Held{})
			h.events(appDir, 3, 3, 3, 0)
			h.events(podDir, 0, 3, 3, 0)
			h.look(r, noon.Add(time.Second))
			h.expect("app 3 container processes by web/app")
			away(h, r)
			h.held(podDir, "max", Held{})
			h.held(appDir, "67108864", Held{})
			h.events(appDir, 0, 0, 0, 0)
			h.events(podDir, 0, 0, 0, 0)
			h.sync(r, noon.Add(20*time.Second))
			for i := 1; i <= 3; i++ {
				h.events(appDir, i, i, i, 0)
				h.events(podDir, 0, i, i, 0)
				h.look(r, noon.Add(20*time.Second+time.Duration(i)*time.Minute))
				h.expect("app 1 container processes by web/app")
			}
		})
	}
}

// As many kills as in the cgroup before are new ones: its next container shows that the counters have begun again.
func TestCountersBeginAgainAndReachTheSame(t *testing.T) {
	h := newHost(t)
	r := h.recorder()
	h.sync(r, noon)
	for i, id := range []string{"app", "again", "third"} {
		dir := podDir + "/" + id
		pod := *h.view.Pods[0]
		pod.Containers = []ledger.ContainerView{{Name: "app", ID: id, Cgroup: dir, Limit: 64 * mib}}
		h.view.Pods = []*ledger.PodView{&pod}
		h.remove(podDir)
		h.events(podDir, 0, 0, 0, 0)
		h.events(dir, 0, 0, 0, 0)
		h.held(dir, "67108864", Held{})
		h.sync(r, noon.Add(time.Duration(i)*time.Minute))
		h.events(dir, 1, 1, 1, 0)
		h.events(podDir, 0, 1, 1, 0)
		h.look(r, noon.Add(time.Duration(i)*time.Minute+time.Second))
		h.expect("app 1 container processes by web/app")
	}
}

// A pod whose watch the kernel refuses, as beyond fs.inotify.max_user_watches, is looked at each period, and watched as soon as that can be.
func TestAWatchThatIsRefused(t *testing.T) {
	h := newHost(t)
	r := h.recorder()
	r.beginWatching()
	if err := r.watcher.Close(); err != nil { // what is asked of it is an error from now on
		t.Fatal(err)
	}
	h.sync(r, noon)
	h.held(appDir, "67108864", Held{})
	h.events(appDir, 1, 1, 1, 0)
	h.events(podDir, 0, 1, 1, 0)
	r.lookAtUnwatched(noon.Add(period))
	r.judge(noon.Add(period + settle))
	h.expect("app 1 container processes by web/app")
	r.lookAtUnwatched(noon.Add(2 * period))
	if len(h.log.AllEntries()) != 2 || r.pods[podDir].watched {
		t.Errorf("want a verdict and one warning, got %v", h.log.AllEntries())
	}
	r.beginWatching()
	defer r.watcher.Close()
	r.lookAtUnwatched(noon.Add(3 * period))
	if !r.pods[podDir].watched || r.watcher.Watches() != 1 {
		t.Error("it is not watched although that can be")
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"boot":"b","known":{"kubepods":{"OOM":1}},"verdicts":[{"time":"2026-05-04T12:00:00Z","level":"node","held":{"processes":1}}]}`))
	f.Add([]byte(`{"known":null,"verdicts":[{"level":"container","cause":"page_cache"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, FileName), data, 0o600); err != nil {
			t.Fatal(err)
		}
		verdicts, err := Read(dir)
		if err == nil {
			for _, v := range verdicts {
				_ = v.PodText()
			}
			_ = Write(&strings.Builder{}, verdicts)
		}
		var again file
		_ = again.load(filepath.Join(dir, FileName), dir)
	})
}

// A static pod that is moved away and back at once: the recorder never sees it gone, and the kernel tells nothing of its first cgroup any more.
func TestACgroupThatIsMadeAgainIsWatched(t *testing.T) {
	h := newHost(t)
	tree, err := cgroupfs.Open(h.root, cgroupfs.Plain())
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	r := h.recorder()
	if r.watcher, err = cgroupfs.NewWatcher(tree); err != nil {
		t.Fatal(err)
	}
	defer r.watcher.Close()
	h.sync(r, noon)
	h.remove(podDir)
	const again = podDir + "/again"
	pod := *h.view.Pods[0]
	pod.Containers = []ledger.ContainerView{{Name: "app", ID: "id-again", Cgroup: again, Limit: 64 * mib}}
	h.view.Pods = []*ledger.PodView{&pod}
	for _, dir := range []string{podDir, again} {
		h.events(dir, 0, 0, 0, 0)
		h.held(dir, "67108864", Held{})
	}
	h.sync(r, noon.Add(time.Second))
	h.events(podDir, 0, 1, 1, 0)
	select {
	case told := <-r.watcher.Changes():
		if !told[cgroupfs.Change{Cgroup: podDir, File: "memory.events"}] {
			t.Errorf("told of %v", told)
		}
	case <-time.After(time.Minute):
		t.Error("a kill in the new cgroup is not told")
	}
}

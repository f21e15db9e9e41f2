package agent

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// walker plays the kubelet in a random order of events, and knows what must be so after each.
type walker struct {
	*node
	record cri.Record
	rand   *rand.Rand
	next   int
	quiet  int // of so many occasions one is a kill
	pods   map[string]*walkedPod
	// held are the values that the files have, as the writes told.
	held   map[string]uint64
	bad    []string
	making string // the cgroup of a container that does not run yet
	// short counts how often a container was found to be allocated less than it asks for.
	short int
}

type walkedPod struct {
	Pod
	class      memoryqos.QOSClass
	containers map[string]*fakeContainer
}

// walkedCgroups are the cgroups of a walk; what the runtime writes there is checked, too.
type walkedCgroups struct {
	cgroups.Folder
	w *walker
}

func (c walkedCgroups) Write(dir, file, text string) error {
	c.w.written(cgroupfs.Write{Cgroup: dir, Knob: cgroup.Knob(file), Text: text})
	return c.Folder.Write(dir, file, text)
}

func (c walkedCgroups) Remove(dir string) error {
	c.w.forgetHeld(dir)
	return c.Folder.Remove(dir)
}

func newWalker(t *testing.T, seed uint64, yaml string, quiet int, options ...func(*node)) *walker {
	w := &walker{quiet: quiet, rand: rand.New(rand.NewPCG(seed, 0)), pods: map[string]*walkedPod{}, held: map[string]uint64{}}
	w.node = newNode(t, yaml, append(options, func(n *node) { n.onWrite, n.apply = w.written, w.update })...)
	w.log.discard()
	w.record.Cgroups = walkedCgroups{w.cgroups(), w}
	return w
}

// written checks that no parent promises less than its children at any moment.
func (w *walker) written(write cgroupfs.Write) {
	if write.Knob != cgroup.MemoryMin && write.Knob != cgroup.MemoryLow {
		return
	}
	value, _ := strconv.ParseUint(write.Text, 10, 64)
	w.held[write.Cgroup+"/"+string(write.Knob)] = value
	w.covers(write.Cgroup, write.Knob)
	w.covers(path.Dir(write.Cgroup), write.Knob)
}

// covers notes a parent that promises less than those of its children have that run.
func (w *walker) covers(parent string, knob cgroup.Knob) {
	sum := uint64(0)
	for file, bytes := range w.held {
		if path.Dir(path.Dir(file)) == parent && path.Base(file) == string(knob) && path.Dir(file) != w.making {
			sum += bytes
		}
	}
	if promised := w.held[parent+"/"+string(knob)]; parent != "." && promised < sum {
		w.bad = append(w.bad, fmt.Sprintf("%s of %s is %d, its children have %d", knob, parent, promised, sum))
	}
}

func (l *logBuffer) discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.off = true
}

func pick[T any](w *walker, all map[string]T) (T, bool) {
	var none T
	if len(all) == 0 {
		return none, false
	}
	keys := slices.Sorted(maps.Keys(all))
	return all[keys[w.rand.IntN(len(keys))]], true
}

// step is one random event.
func (w *walker) step() (event string) {
	ctx := context.Background()
	p, any := pick(w, w.pods)
	if !any || len(w.pods) < 12 && w.rand.IntN(6) == 0 {
		return w.newPod()
	}
	c, some := pick(w, p.containers)
	switch roll := w.rand.IntN(100); {
	case roll < 25:
		return w.createContainer(p)
	case roll < 40 && some:
		if !c.State.Alive() {
			return "nothing"
		}
		w.exit(c)
		w.noError(w.StopContainer(ctx, p.Pod, c.Container))
		return "stop " + c.ID
	case roll < 50 && some:
		w.exit(c)
		w.noError(w.RemoveContainer(ctx, p.Pod, c.Container))
		delete(p.containers, c.Name)
		return "remove " + c.ID
	case roll < 70 && some:
		return w.resize(p, c)
	case roll < 80:
		for _, c := range p.containers {
			w.exit(c)
		}
		w.noError(w.StopPodSandbox(ctx, p.Pod))
		if w.rand.IntN(2) == 0 {
			w.noError(w.RemovePodSandbox(ctx, p.Pod))
		}
		w.drop(p)
		w.endGone(w.ending())
		w.protect(ctx)
		return "stop pod " + p.Name
	case roll < 83: // its end is not told
		w.reconcile(ctx) // has been seen
		w.drop(p)
		w.reconcile(ctx)
		return "lose pod " + p.Name
	case roll < 84 && w.rand.IntN(w.quiet) == 0:
		w.kill()
		return "kill"
	case roll < 86:
		w.Disconnected(nil)
		w.Connected(w.runtime, w.apply)
		w.synchronize()
		return "restart of the runtime"
	}
	w.reconcile(ctx)
	return "reconcile"
}

func (w *walker) noError(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *walker) newPod() string {
	w.next++
	class := []memoryqos.QOSClass{memoryqos.Guaranteed, memoryqos.Guaranteed, memoryqos.Burstable, memoryqos.BestEffort}[w.rand.IntN(4)]
	p := &walkedPod{Pod: w.pod(fmt.Sprintf("pod%d", w.next), class), class: class, containers: map[string]*fakeContainer{}}
	w.pods[p.UID] = p
	w.noError(w.RunPodSandbox(context.Background(), p.Pod))
	return "run pod " + p.Name
}

func (w *walker) size(class memoryqos.QOSClass) uint64 {
	if class == memoryqos.BestEffort {
		return 0
	}
	if w.rand.IntN(10) == 0 {
		return uint64(1+w.rand.IntN(20)) * gi
	}
	return uint64(1+w.rand.IntN(2048)) * mi
}

func (w *walker) createContainer(p *walkedPod) string {
	w.next++
	name := string(rune('a' + w.rand.IntN(3)))
	if old := p.containers[name]; old != nil && old.State.Alive() {
		return "nothing"
	}
	c := ofPod(p.Pod, name, w.size(p.class))
	c.ID = fmt.Sprintf("%s-%d", c.ID, w.next)
	c.CgroupsPath = p.CgroupParent + "/" + c.ID
	if p.class == memoryqos.Burstable {
		adj := int64(3 + w.rand.IntN(997))
		c.Resources.OOMScoreAdj = &adj
	}
	adjustment, err := w.CreateContainer(context.Background(), p.Pod, c)
	delete(p.containers, name)
	if err != nil {
		return "refused " + c.ID
	}
	if w.rand.IntN(8) == 0 { // another plugin rejects it: nobody tells
		return w.retried(p, c)
	}
	w.begin(p, c, adjustment)
	return "create " + c.ID
}

// begin has the runtime create a container and run it.
func (w *walker) begin(p *walkedPod, asked Container, answer Adjustment) {
	c := &fakeContainer{Container: asked}
	if w.rand.IntN(2) == 0 { // or the runtime is faster than Run, and its start waits
		w.work(context.Background())
	}
	w.making = strings.TrimPrefix(asked.CgroupsPath, "/")
	w.noError(c.enter(&w.record, answer))
	w.noError(w.StartContainer(context.Background(), p.Pod, c.Container))
	above := path.Dir(w.making)
	w.making = ""
	w.covers(above, cgroup.MemoryMin)
	w.covers(above, cgroup.MemoryLow)
	c.run()
	p.containers[c.Name] = c
}

// retried is the kubelet's next try after a create that failed behind us; the sums must not count the first.
func (w *walker) retried(p *walkedPod, c Container) string {
	c.ID += "-retry"
	c.CgroupsPath += "-retry"
	adjustment, err := w.CreateContainer(context.Background(), p.Pod, c)
	if err != nil {
		w.Fatalf("a retry of what was admitted is refused: %v", err)
	}
	w.begin(p, c, adjustment)
	return "retry " + c.ID
}

func (w *walker) resize(p *walkedPod, c *fakeContainer) string {
	if !c.State.Alive() || p.class == memoryqos.BestEffort {
		return "nothing"
	}
	to := Resources{MemoryLimit: limit(int64(w.size(p.class)))}
	if w.rand.IntN(3) == 0 {
		to.Unified = map[string]string{"memory.high": "max", "memory.min": "0"}
	}
	got, err := w.UpdateContainer(context.Background(), p.Pod, c.Container, to)
	if err != nil {
		return "refused resize " + c.ID
	}
	if got == nil {
		got = &Adjustment{}
	}
	w.resized(c, to, *got)
	w.noError(w.PostUpdateContainer(context.Background(), p.Pod, c.Container))
	return "resize " + c.ID
}

// resized is the runtime's part in an update.
func (w *walker) resized(c *fakeContainer, to Resources, answer Adjustment) {
	w.noError(w.record.Update(c.record, resourcesOf(to, answer)))
	c.told()
}

// drop removes a pod's cgroups.
func (w *walker) drop(p *walkedPod) {
	for _, c := range p.containers {
		w.exit(c)
		w.record.Forget(c.ID)
	}
	w.rmdir(p.CgroupParent)
	w.forgetHeld(p.CgroupParent)
	delete(w.pods, p.UID)
}

// exit ends a container's processes; the runtime tells of it afterwards.
func (w *walker) exit(c *fakeContainer) {
	w.noError(w.record.Exit(c.record))
	c.told()
}

func (w *walker) forgetHeld(cgroup string) {
	for file := range w.held {
		if strings.HasPrefix(file, strings.TrimPrefix(cgroup, "/")+"/") {
			delete(w.held, file)
		}
	}
}

// kill starts another agent on the state folder as it is at this moment, as after a SIGKILL.
func (w *walker) kill() {
	copied := copyOf(w, w.state)
	w.stop()
	w.state = copied
	w.start()
	w.synchronize()
}

func (w *walker) synchronize() {
	var pods []Pod
	var containers []Container
	for _, p := range w.pods {
		pods = append(pods, p.Pod)
	}
	for _, c := range w.record.Living() {
		containers = append(containers, nriplugin.ContainerOf(c))
	}
	w.noError(w.update(context.Background(), w.sync(pods, containers)))
}

// update is the runtime's part in updates of running containers.
func (w *walker) update(_ context.Context, updates []Update) error {
	for _, update := range updates {
		for _, p := range w.pods {
			for _, c := range p.containers {
				if c.ID == update.ContainerID {
					w.resized(c, Resources{}, update.Adjustment)
				}
			}
		}
	}
	return nil
}

// check compares the agent's state and the files with what the runtime has.
func (w *walker) check(event string) {
	w.Helper()
	fail := func(format string, args ...any) {
		w.Helper()
		w.Fatalf("after %s: %s", event, fmt.Sprintf(format, args...))
	}
	if len(w.bad) > 0 {
		fail("%s", strings.Join(w.bad, "; "))
	}
	if state, ok := w.ledger.Allocations(); ok {
		w.checkAllocations(state, fail)
	}
	want := map[string]uint64{}
	for _, p := range w.pods {
		for _, c := range p.containers {
			if !c.State.Alive() {
				continue
			}
			for _, file := range []string{"memory.min", "memory.low"} {
				bytes, _ := strconv.ParseUint(c.Resources.Unified[file], 10, 64)
				want[p.CgroupParent+"/"+file] += bytes
				want["kubepods/"+file] += bytes
				if file == "memory.low" {
					want["kubepods/memory.min"] += bytes
				}
				if p.class == memoryqos.Burstable {
					want["kubepods/burstable/"+file] += bytes
				}
			}
		}
	}
	for file, bytes := range want {
		held := w.file(path.Dir(file), path.Base(file))
		if held == "" {
			held = "0"
		}
		if held != bytesOf(bytes) {
			fail("%s holds %s, the living containers have %d", file, held, bytes)
		}
	}
}

// allocations are those of the containers, by pod and name. The problem is that the node map is not their sum.
func allocations(state memorymanager.State) (allocated map[string][]memorymanager.Block, problem string) {
	type key struct {
		node int
		of   memorymanager.MemoryType
	}
	sums := map[key]uint64{}
	allocated = map[string][]memorymanager.Block{}
	whole := map[string]bool{}
	entries := state.Entries
	for _, entry := range state.Pods {
		whole[entry.Pod] = true
		entries = append(entries[:len(entries):len(entries)], memorymanager.Entry{Pod: entry.Pod, Blocks: entry.Blocks})
	}
	for _, entry := range entries {
		if entry.Container != "" {
			allocated[entry.Pod+"/"+entry.Container] = entry.Blocks
		}
		if entry.Container != "" && whole[entry.Pod] {
			continue
		}
		for _, block := range entry.Blocks {
			for _, amount := range block.PerNode {
				sums[key{amount.Node, block.Type}] += amount.Bytes
			}
		}
	}
	for _, node := range state.Nodes {
		for _, table := range node.Memory {
			sum := sums[key{node.ID, table.Type}]
			if len(whole) > 0 { // one that is allocated where its containers run may find too little there, and no table shows more than all
				sum = min(sum, table.Allocatable)
			}
			if sum != table.Reserved {
				return nil, fmt.Sprintf("node %d has %d of %s allocated, its containers have %d", node.ID, table.Reserved, table.Type, sum)
			}
		}
	}
	return allocated, ""
}

// checkAllocations compares the node map with the allocations, and the allocations with the pods.
func (w *walker) checkAllocations(state memorymanager.State, fail func(string, ...any)) {
	for _, entry := range state.Entries {
		if w.pods[entry.Pod] == nil {
			fail("pod %s is gone and has an allocation", entry.Pod)
		}
	}
	allocated, problem := allocations(state)
	if problem != "" {
		fail("%s", problem)
	}
	for _, p := range w.View().Pods {
		for _, c := range p.Containers {
			if difference := cmp.Diff(allocated[p.UID+"/"+c.Name], c.Blocks, cmpopts.EquateEmpty()); difference != "" {
				fail("allocations (-) and view (+) of container %s differ:\n%s", c.ID, difference)
			}
		}
	}
	for _, p := range w.pods {
		for _, c := range p.containers {
			blocks := allocated[p.UID+"/"+c.Name]
			if !c.State.Alive() || len(blocks) == 0 {
				continue
			}
			size, asked, nodes := blocks[0].Size, limitOf(c.Resources), blocks[0].Nodes
			if size < asked { // it is short, as nothing is free on its nodes
				w.short++
				for id := range nodes.All() {
					if free := state.Nodes[id].Memory[len(state.Nodes[id].Memory)-1].Free; free > 0 {
						fail("container %s has %d allocated and the limit %d, and node %d has %d free", c.ID, size, asked, id, free)
					}
				}
				nodes = nodeset.Of(0, 1)
			}
			if size > asked {
				fail("container %s has %d allocated and the limit %d", c.ID, size, asked)
			}
			if nodes.String() != c.Resources.Mems {
				fail("container %s belongs on %s and has cpuset.mems %q", c.ID, nodes, c.Resources.Mems)
			}
		}
	}
}

func limitOf(r Resources) uint64 {
	if r.MemoryLimit == nil {
		return 0
	}
	return uint64(*r.MemoryLimit)
}

var walkSeed = flag.Uint64("seed", 1, "seed of the random walks")

// walk takes steps.
func walk(t *testing.T, yaml string, steps, quiet int) {
	w := newWalker(t, *walkSeed, yaml, quiet)
	for range steps {
		event := w.step()
		w.work(context.Background()) // Run's part
		w.check(event)
	}
	t.Logf("containers were found short %d times", w.short)
	for _, p := range w.pods {
		for _, c := range p.containers {
			w.exit(c)
		}
		w.noError(w.StopPodSandbox(context.Background(), p.Pod))
		w.drop(p)
	}
	w.endGone(w.ending())
	w.protect(context.Background())
	w.check("the last pod")
	for _, file := range []string{"kubepods/memory.min", "kubepods/memory.low", "kubepods/burstable/memory.low"} {
		if held := w.held[file]; held != 0 {
			t.Errorf("%s holds %d after the last pod", file, held)
		}
	}
}

func TestNothingLeaksOnARandomWalk(t *testing.T) {
	steps := 1000
	if testing.Short() {
		steps = 300
	}
	for name, yaml := range map[string]string{
		"best-effort":       "",
		"restricted":        "topologyManagerPolicy: restricted",
		"single-numa-node":  "topologyManagerPolicy: single-numa-node\nmemoryReservationPolicy: HardReservation",
		"crowded":           "topologyManagerPolicy: restricted\nreservedMemory: 0:memory=12Gi;1:memory=11Gi",
		"crowded, Unpinned": "topologyManagerPolicy: single-numa-node\nonUnsatisfiable: Unpinned\nreservedMemory: 0:memory=12Gi;1:memory=12Gi",
	} {
		t.Run(name, func(t *testing.T) { walk(t, yaml, steps, 1) })
	}
}

// TestAncestorsHoldOnALongWalk has no allocations and so no disk to wait for. WALK_STEPS makes it longer.
func TestAncestorsHoldOnALongWalk(t *testing.T) {
	steps := 5_000
	if text := os.Getenv("WALK_STEPS"); text != "" {
		var err error
		if steps, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	walk(t, "memoryManagerPolicy: None\nreservedMemory: []", steps, 100)
}

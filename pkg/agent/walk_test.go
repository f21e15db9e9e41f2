package agent

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// walker plays the kubelet in a random order of events, so that there is something to replay.
type walker struct {
	*node
	record cri.Record
	rand   *rand.Rand
	next   int
	quiet  int // of so many occasions one is a kill
	pods   map[string]*walkedPod
}

type walkedPod struct {
	Pod
	class      memoryqos.QOSClass
	containers map[string]*fakeContainer
}

func newWalker(t *testing.T, seed uint64, yaml string, quiet int, options ...func(*node)) *walker {
	w := &walker{quiet: quiet, rand: rand.New(rand.NewPCG(seed, 0)), pods: map[string]*walkedPod{}}
	w.node = newNode(t, yaml, append(options, func(n *node) { n.apply = w.update })...)
	w.log.discard()
	w.record.Cgroups = w.cgroups()
	return w
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
	w.noError(c.enter(&w.record, answer))
	w.noError(w.StartContainer(context.Background(), p.Pod, c.Container))
	c.run()
	p.containers[c.Name] = c
}

// retried is the kubelet's next try after a create that failed behind us.
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
	delete(w.pods, p.UID)
}

// exit ends a container's processes; the runtime tells of it afterwards.
func (w *walker) exit(c *fakeContainer) {
	w.noError(w.record.Exit(c.record))
	c.told()
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

var walkSeed = flag.Uint64("seed", 1, "seed of the random walks")

// fakeContainer is a container as the runtime tells of it.
type fakeContainer struct {
	Container
	record *api.Container // nil until it is created
}

// told has a container be what the runtime's record says by now.
func (c *fakeContainer) told() { c.Container = nriplugin.ContainerOf(c.record) }

// enter has a runtime create a container.
func (c *fakeContainer) enter(runtime *cri.Record, answer Adjustment) error {
	c.record = &api.Container{Id: c.ID, PodSandboxId: c.PodID, Name: c.Name, Linux: &api.LinuxContainer{
		CgroupsPath: c.CgroupsPath, Resources: resourcesOf(c.Resources, answer),
	}}
	if score := c.Resources.OOMScoreAdj; score != nil {
		c.record.Linux.OomScoreAdj = &api.OptionalInt{Value: *score}
	}
	if err := runtime.Create(c.record); err != nil {
		return err
	}
	c.told()
	return nil
}

// resourcesOf is what the kubelet asks for with what the plugin answers, as NRI names it.
func resourcesOf(asked Resources, answer Adjustment) *api.LinuxResources {
	all := with(asked, answer)
	return &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(all.MemoryLimit)}, Cpu: &api.LinuxCPU{Mems: all.Mems}, Unified: all.Unified}
}

// run has a created container run.
func (c *fakeContainer) run() {
	c.record.State = api.ContainerState_CONTAINER_RUNNING
	c.told()
}

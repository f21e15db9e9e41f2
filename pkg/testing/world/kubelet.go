package world

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// Kubelet lives the pods of a scenario, as far as plugins of the runtime see that.
type Kubelet struct {
	kernel   processes
	runtime  *ContainerRuntime
	scenario Scenario
	memory   uint64 // of the node, in bytes
	began    time.Time
	api      *podAPI
	server   *apiServer // nil where nobody asks it
	cpus     *cpuManager
	driver   func(context.Context) (net.Conn, error)           // connects to the driver for claims
	answered func(began time.Time, claim heldClaim, err error) // is called with each answer to a prepare
	over     chan struct{}                                     // closed by EndPods
	finished chan struct{}                                     // closed once no pod is left

	mu       sync.Mutex
	quiet    bool
	hugeFree uint64                   // bytes of huge pages that no pod was admitted with
	living   []*pod                   // in the order in which they were admitted
	static   map[string]chan struct{} // by UID: closed when the last static pod with it has ended
}

// NewKubelet returns a kubelet that Run starts.
func NewKubelet(k processes, r *ContainerRuntime, s Scenario) *Kubelet {
	kubelet := &Kubelet{kernel: k, runtime: r, scenario: s, api: newPodAPI(), cpus: newCPUManager(s.Machine),
		over: make(chan struct{}), finished: make(chan struct{}), static: map[string]chan struct{}{}}
	for _, node := range s.Machine.Nodes {
		kubelet.memory += node.Memory
		kubelet.hugeFree += node.Hugepages * hugePage
	}
	return kubelet
}

// Provider is a new client of the kubelet's pod API.
func (k *Kubelet) Provider() podinfo.Provider { return k.api.client() }

// Silence has the pod API not answer, and its watch say nothing. After it all pods are told again.
func (k *Kubelet) Silence(silent bool) { k.api.silence(silent) }

// Quiet has nothing more happen by itself: no new pods, no ends, no changes, and what crashes runs after its back-off. What was refused
// is still tried again.
func (k *Kubelet) Quiet() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.quiet = true
}

func (k *Kubelet) isQuiet() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.quiet
}

// EndPods ends all pods, and waits until the runtime has nothing of them any more. It returns those that have not ended within an hour.
func (k *Kubelet) EndPods() []LivePod {
	close(k.over)
	select {
	case <-k.finished:
		return nil
	case <-time.After(time.Hour):
		return k.Pods()
	}
}

// Run lives all pods of the scenario until ctx ends; then nothing more happens.
func (k *Kubelet) Run(ctx context.Context) {
	k.began = time.Now()
	k.makeParents()
	var running sync.WaitGroup
	if k.scenario.hasClaims() {
		running.Go(func() { k.followDriver(ctx) })
	}
	for _, spec := range k.scenario.Pods {
		running.Go(func() { k.live(ctx, spec) })
	}
	running.Wait()
	close(k.finished)
}

// makeParents makes the cgroups above pods. That of all pods is bounded by what is not used outside of pods.
func (k *Kubelet) makeParents() {
	bytes := k.memory - k.scenario.Machine.Reserved
	for _, node := range k.scenario.Machine.Nodes {
		bytes -= min(node.Outside, bytes)
	}
	for _, class := range []string{"Guaranteed", "Burstable", "BestEffort"} {
		must(k.kernel.Make(k.Parent(class)))
	}
	must(k.kernel.Write(k.Parent("Guaranteed"), "memory.max", fmt.Sprint(bytes)))
}

// Parent is the cgroup that pods of a QoS class are in.
func (k *Kubelet) Parent(class string) string {
	names := []string{"kubepods"}
	if class != "Guaranteed" {
		names = append(names, strings.ToLower(class))
	}
	if !k.scenario.Machine.Systemd {
		return strings.Join(names, "/")
	}
	for i := range names {
		names[i] = strings.Join(names[:i+1], "-")
		if i > 0 {
			names[i] = "kubepods-" + strings.ToLower(class)
		}
	}
	return strings.Join(names, ".slice/") + ".slice"
}

// podCgroup is a pod's cgroup.
func (k *Kubelet) podCgroup(class, uid string) string {
	parent := k.Parent(class)
	if !k.scenario.Machine.Systemd {
		return parent + "/pod" + uid
	}
	last := strings.TrimSuffix(parent[strings.LastIndex(parent, "/")+1:], ".slice")
	return parent + "/" + last + "-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
}

// live is a pod's life.
func (k *Kubelet) live(ctx context.Context, spec Pod) {
	p := k.newPod(ctx, spec)
	select {
	case <-time.After(time.Until(p.at(spec.At))):
	case <-k.over:
	case <-ctx.Done():
	}
	finished, ok := k.follow(p)
	if !ok || !p.alive() || k.isQuiet() || !p.schedule() {
		finished()
		return
	}
	if !p.admit() {
		finished()
		return
	}
	for p.alive() {
		p.sync()
		p.wait()
	}
	if ctx.Err() == nil {
		p.terminate()
		finished()
		p.cleanUp()
	}
}

// follow waits until the static pod with the same UID that was before this one has ended.
func (k *Kubelet) follow(p *pod) (finished func(), ok bool) {
	if !p.spec.Static {
		return func() {}, true
	}
	k.mu.Lock()
	before, mine := k.static[p.facts.UID], make(chan struct{})
	k.static[p.facts.UID] = mine
	k.mu.Unlock()
	finished = func() { close(mine) }
	if before == nil {
		return finished, true
	}
	select {
	case <-before:
		return finished, true
	case <-p.ctx.Done():
		return finished, false
	}
}

// LivePod is a pod that the kubelet runs, or is about to end.
type LivePod struct {
	*pods.Pod
	Annotations map[string]string
	Labels      map[string]string
	Cgroup      string
	Sandboxes   []string // IDs, the newest last
	Containers  []LiveContainer
	Ending      bool
	Restarts    bool                 // a container has ended before
	Claims      map[string]heldClaim // by the name in the pod
	Unknown     bool                 // deleted by force while the pod API was silent, which has never told of it
}

// LiveContainer is a container that runs.
type LiveContainer struct {
	ID       string
	Cgroup   string
	Spec     pods.Container // as admitted
	Resizing bool           // it does not have that yet
	CPUs     []int          // its own
	Since    time.Time
	Claims   []string // names of the pod's
	// Score is its oom_score_adj, and KubeletScore what the kubelet asked for.
	Score, KubeletScore int64
}

// Pods are the pods that the kubelet runs.
func (k *Kubelet) Pods() (all []LivePod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.living {
		all = append(all, p.shown())
	}
	return all
}

func (k *Kubelet) drop(p *pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.living = slices.DeleteFunc(k.living, func(other *pod) bool { return other == p })
}

// identify makes an ID of 64 hexadecimal digits.
func identify(parts ...any) string {
	sum := sha256.Sum256([]byte(fmt.Sprint(parts...)))
	return hex.EncodeToString(sum[:])
}

// draws is a generator of a thing's own, so that what others draw changes nothing.
func draws(seed uint64, parts ...any) *rand.Rand {
	hash := fnv.New64a()
	fmt.Fprint(hash, parts...)
	return rand.New(rand.NewPCG(seed, hash.Sum64()))
}

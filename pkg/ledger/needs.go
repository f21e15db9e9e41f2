package ledger

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Needs are the facts that the ledger lacks to decide about an event. Only the driver can gather them, and it may have to wait for them.
type Needs struct {
	// Pod and Container are the event's. Refs name its pods to the pod APIs. The driver adds their newest data when the event is decided
	// (Gathered.PodInfos); that is not a need.
	Pod       Pod
	Container Container
	Refs      []pods.Ref

	// Annotations are pods whose annotations have not been read (Gathered.Ask).
	Annotations []Pod
	// PodInfo is set if the pod APIs have to be asked.
	PodInfo bool
	// Devices asks for the devices of the container and the others of its pod, CPUs for the exclusive CPUs of these others.
	Devices, CPUs bool
	// Ended are pods and containers that may have ended. Their Presence is an event of its own, before this one.
	Ended []CgroupRef
	// Claims have to be prepared again from the API server: as known here, they are not reserved for the pod.
	Claims []claims.Claim
	// NodeMemory is set if a NodeMemorySampled has to come before this event.
	NodeMemory bool
	// PageSizes are the sizes of huge pages, in bytes, whose free pages are needed.
	PageSizes []uint64
	// LimitOf, MemsOf and FilesOf are the cgroups whose memory.max, cpuset.mems.effective and Files are needed; "" if none.
	LimitOf, MemsOf, FilesOf string
	// Siblings are containers whose Presence is needed.
	Siblings []CgroupRef
	// Usage are cgroups for which the memory that would move is needed.
	Usage []string
	// Sandboxes and Listed are the pods and living containers that a runtime lists. A pod's memory.max is needed if its Files is set.
	// Unlisted are known containers that the runtime does not list.
	Sandboxes, Listed, Unlisted []CgroupRef

	node pods.Node
}

// None reports whether nothing is needed.
func (n Needs) None() bool {
	return len(n.Annotations)+len(n.Ended)+len(n.Claims)+len(n.PageSizes)+len(n.Siblings)+len(n.Usage)+len(n.Sandboxes)+len(n.Unlisted) == 0 &&
		!n.PodInfo && !n.Devices && !n.NodeMemory && n.LimitOf+n.MemsOf+n.FilesOf == ""
}

// Facts were gathered for an event. A fact that could not be found out is absent.
type Facts struct {
	// PodInfo is the newest data of the pod APIs about the pod.
	PodInfo pods.Answer `json:",omitzero"`
	// PodLimit is the memory.max of a Guaranteed pod's cgroup in bytes, with the pod's overhead.
	PodLimit *uint64 `json:",omitempty"`
	// Devices and CPUs are those of the pod's containers by name; CPUs are exclusive CPUs in the kernel's list format.
	Devices map[string][]topologymanager.Device `json:",omitempty"`
	CPUs    map[string]string                   `json:",omitempty"`
	// FreePages are the kernel's free huge pages of the sizes that the container requests; nil verifies nothing.
	FreePages []memorymanager.FreePages `json:",omitempty"`
	// Siblings says which of the pod's other containers are present.
	Siblings Presence `json:",omitzero"`
	// Mems are the NUMA nodes that the pod's cgroup may use.
	Mems nodeset.Set `json:",omitempty"`
	// Files are the files of a container that the ledger does not know.
	Files *Files `json:",omitempty"`
	// Usage is the memory of cgroups, by path.
	Usage map[string]Usage `json:",omitempty"`
}

// Gathered are the facts that the driver has gathered for an event so far. With adds them to the event.
type Gathered struct {
	Facts
	// PodInfos is the newest data of the pod APIs about the event's pods. Found is what the files of listed pods and containers show.
	PodInfos map[pods.Ref]pods.Answer
	Found    Found

	annotated map[string]*ReadAnnotations // by sandbox
	asked     int                         // number of calls of Ask: 0 asks for what depends on nothing, 1 for what depends on that, more for nothing
}

// Ask notes that n was asked for: later Needs do not ask for it again, whatever the result. It also reads the annotations. A tenant decides
// how long they are, so the driver calls it without its lock; it uses nothing that changes.
func (g *Gathered) Ask(n Needs) {
	g.asked++
	for _, pod := range n.Annotations {
		if g.annotated == nil {
			g.annotated = map[string]*ReadAnnotations{}
		}
		g.annotated[pod.ID] = read(pod, n.node)
	}
}

// Needs returns the facts that an event lacks beyond g. It changes nothing. A late event needs nothing. The event nil asks for what any
// event would need.
func (l *Ledger) Needs(event Event, g *Gathered) Needs {
	n := Needs{node: l.node}
	if l.late(event, headerOf(event).Epoch) != nil {
		return n
	}
	switch e := event.(type) {
	case nil:
		n.Ended = l.ending()
	case RunPod:
		n.forPods(l, g, e.Pod)
	case UpdatePod:
		n.forPods(l, g, e.Pod)
	case CreateContainer:
		n.forCreate(l, g, e)
	case UpdateContainer:
		if n.forContainer(l, g, e.Pod, e.Container) && g.asked == 0 {
			n.forFiles(l, e.Pod, e.Container)
			n.Usage = l.movableCgroups(e.Pod, e.Container)
		}
	case StartContainer:
		if n.forPods(l, g, e.Pod); g.asked == 0 {
			n.forFiles(l, e.Pod, e.Container)
		}
	case Synchronize:
		n.forPods(l, g, e.Pods...)
		for i := range e.Pods {
			n.Refs = append(n.Refs, e.Pods[i].Ref())
		}
		if g.asked == 0 {
			n.Sandboxes, n.Listed = e.refs()
			n.Unlisted = l.unlisted(e.Containers)
		}
	case SyncContainers:
		n.Usage = l.cgroupsToMove(e)
	case FinishUpdate:
		if g.asked == 0 && e.ID == "" {
			n.forWaiting(l)
		}
	case PrepareClaim:
		n.forClaim(l, g, e.Claim.UID)
	case UnprepareClaim:
		n.forClaim(l, g, e.UID)
	}
	n.Usage = slices.DeleteFunc(n.Usage, func(cgroup string) bool { _, ok := g.Usage[cgroup]; return ok || cgroup == "" })
	return n
}

// With returns an event with the facts that were gathered for it.
func With(event Event, g Gathered) Event {
	switch e := event.(type) {
	case RunPod:
		e.Pod, _ = g.of(e.Pod)
		return e
	case UpdatePod:
		e.Pod, _ = g.of(e.Pod)
		return e
	case CreateContainer:
		e.Pod, e.Facts = g.of(e.Pod)
		e.Container.Devices = g.Devices[e.Container.Name]
		return e
	case UpdateContainer:
		e.Pod, e.Facts = g.of(e.Pod)
		return e
	case StartContainer:
		e.Pod, e.Facts = g.of(e.Pod)
		return e
	case Synchronize:
		return e.with(g)
	case SyncContainers:
		e.Usage = g.Usage
		return e
	}
	return event
}

func (e Synchronize) with(g Gathered) Synchronize {
	e.Found, e.PodInfos, e.Pods = g.Found, make(map[string]pods.Answer, len(e.Pods)), slices.Clone(e.Pods)
	for _, c := range e.Containers { // a created container may be left over from a pod that has ended
		if c.State.Alive() && c.State != Created {
			delete(e.Found.Gone, c.PodID)
		}
	}
	for i := range e.Pods {
		var facts Facts
		if e.Pods[i], facts = g.of(e.Pods[i]); facts.PodInfo.Pod != nil {
			e.PodInfos[e.Pods[i].Key()] = facts.PodInfo
		}
	}
	return e
}

// of returns a pod of the event with its annotations, if they were read, and the facts about it.
func (g *Gathered) of(pod Pod) (Pod, Facts) {
	pod.Annotations = nil
	if annotated := g.annotated[pod.ID]; annotated != nil {
		pod.Annotated = annotated
	}
	facts := g.Facts
	facts.PodInfo = g.PodInfos[pod.Ref()]
	return pod, facts
}

// forPods asks for annotations, once for each sandbox.
func (n *Needs) forPods(l *Ledger, g *Gathered, received ...Pod) {
	for _, pod := range received {
		p := l.pods[pod.Key()]
		if current := p != nil && p.ID == pod.ID; g.asked == 0 && !current && pod.Annotated == nil && !l.stopped(pod) {
			n.Annotations = append(n.Annotations, pod)
		}
	}
}

// forContainer asks for what any decision about a container may need. It returns false if nothing will be decided. Files are not read for
// what the pod APIs say.
func (n *Needs) forContainer(l *Ledger, g *Gathered, pod Pod, c Container) bool {
	path, managed, _ := pod.Path()
	if !managed || l.stopped(pod) {
		return false
	}
	n.Pod, n.Container, n.Refs = pod, c, []pods.Ref{pod.Ref()}
	n.forPods(l, g, pod)
	p := l.pods[pod.Key()]
	switch described := p != nil && p.Info != nil || g.PodInfos[pod.Ref()].Pod != nil; {
	case g.asked == 0:
		n.PodInfo, n.Ended = p == nil || !p.knows(c.Name), l.ending()
	case g.asked == 1 && path.Class == memoryqos.Guaranteed && !described:
		n.LimitOf, n.Siblings = path.Pod, p.siblings(c.Name)
	}
	return true
}

// forWaiting asks for the claims of containers that run without them: these were created without an answer.
func (n *Needs) forWaiting(l *Ledger) {
	for _, p := range l.living {
		for _, c := range p.containers {
			if c.alive() && !c.HasClaims {
				n.Claims = append(n.Claims, l.state.Claims.Unreserved(c.Claims, p.UID)...)
			}
		}
	}
}

func (n *Needs) forCreate(l *Ledger, g *Gathered, e CreateContainer) {
	if !n.forContainer(l, g, e.Pod, e.Container) {
		return
	}
	path, _, _ := e.Pod.Path()
	placed := l.manager != nil && path.Class == memoryqos.Guaranteed
	switch g.asked {
	case 0:
		n.Devices, n.CPUs = true, placed && l.needsPodCPUs(e.Pod)
		n.Claims = l.state.Claims.Unreserved(e.Container.Claims, e.Pod.UID)
	case 1:
		if placed {
			n.PageSizes = l.pagesToVerify(e.Container)
		}
		sets := l.setsMemoryPolicies(e.Pod, path.Class, g, len(g.Devices[e.Container.Name]) > 0)
		if sets {
			n.MemsOf = path.Pod
		}
		n.NodeMemory = sets || placed && l.state.Resolved.Manager.Strategy == topologymanager.LeastUsed
	}
}

// forFiles asks for the files of a container whose creation was missed.
func (n *Needs) forFiles(l *Ledger, pod Pod, c Container) {
	if l.containers[c.ID] == nil {
		n.FilesOf = cgroupOf(pod, c)
	}
}

// forClaim asks whether the containers that use a claim are still present: runtimes do not report every end.
func (n *Needs) forClaim(l *Ledger, g *Gathered, uid string) {
	user := l.claimUser(uid)
	if user == nil || g.asked > 0 {
		return
	}
	for _, c := range user.containers {
		if c.HasClaims && c.namesClaim(uid) && c.Cgroup != "" {
			n.Ended = append(n.Ended, c.ref())
		}
	}
}

// refs returns the managed pods and their living containers.
func (e Synchronize) refs() (sandboxes, containers []CgroupRef) {
	paths := make(map[string]cgroup.PodPath, len(e.Pods))
	for i := range e.Pods {
		if path, managed, _ := e.Pods[i].Path(); managed {
			paths[e.Pods[i].ID] = path
			sandboxes = append(sandboxes, CgroupRef{ID: e.Pods[i].ID, Cgroup: path.Pod, Files: path.Class == memoryqos.Guaranteed})
		}
	}
	for i := range e.Containers {
		c := &e.Containers[i]
		if path, managed := paths[c.PodID]; managed && c.State.Alive() {
			if dir, err := path.Container(c.CgroupsPath, c.ID); err == nil {
				containers = append(containers, CgroupRef{ID: c.ID, Cgroup: dir})
			}
		}
	}
	return sandboxes, containers
}

// unlisted returns the living containers that a runtime does not list.
func (l *Ledger) unlisted(listed []Container) (refs []CgroupRef) {
	ids := make(map[string]bool, len(listed))
	for i := range listed {
		ids[listed[i].ID] = true
	}
	for id, c := range l.containers {
		if !ids[id] && c.Cgroup != "" {
			refs = append(refs, c.ref())
		}
	}
	return refs
}

// cgroupsToMove returns the cgroups of containers for which the runtime will be sent other nodes.
func (l *Ledger) cgroupsToMove(e SyncContainers) (cgroups []string) {
	for _, id := range e.IDs {
		if c := l.containers[id]; c != nil && c.Phase != Creating && !l.state.Resolved.Config.DryRun() {
			now := l.deriveRun(c)
			if update, _ := c.syncUpdate(&now); update.CpusetMems != "" {
				cgroups = append(cgroups, c.Cgroup)
			}
		}
	}
	return cgroups
}

// cgroupOf returns the cgroup of a container whose creation was missed; "" outside kubepods.
func cgroupOf(pod Pod, c Container) string {
	path, managed, _ := pod.Path()
	if !managed {
		return ""
	}
	dir, _ := path.Container(c.CgroupsPath, c.ID)
	return dir
}

// movableCgroups returns the cgroup of a container whose cpuset.mems an update may change.
func (l *Ledger) movableCgroups(pod Pod, received Container) []string {
	c := l.containers[received.ID]
	switch {
	case c == nil:
		return []string{cgroupOf(pod, received)}
	case c.Phase != Creating && l.manager != nil && (c.pod.class() == memoryqos.Guaranteed || c.Released || !c.Confined.Empty()):
		return []string{c.Cgroup}
	}
	return nil
}

// ending returns the pods without a sandbox, in no order: they end with their cgroups.
func (l *Ledger) ending() (refs []CgroupRef) {
	for _, p := range l.living {
		if p.ending() {
			refs = append(refs, p.ref())
		}
	}
	return refs
}

// siblings returns the other living containers of a pod. p may be nil.
func (p *pod) siblings(container string) (refs []CgroupRef) {
	if p == nil {
		return nil
	}
	for _, c := range p.containers {
		if c.alive() && c.Name != container && c.Cgroup != "" {
			refs = append(refs, c.ref())
		}
	}
	return refs
}

// podLimit returns the pod's limit without its overhead; nil if it is unknown or there is none.
func (f *Facts) podLimit(pod Pod) *uint64 {
	if f.PodLimit == nil || *f.PodLimit == cgroup.Max {
		return nil
	}
	limit := *f.PodLimit - min(*f.PodLimit, pod.Overhead)
	return &limit
}

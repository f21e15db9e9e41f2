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

// Needs are the facts that the ledger lacks for an event, each named by what it is about. Only the driver can find them out, and it may
// have to wait for them.
type Needs struct {
	// Pod and Container are those of the event; Refs name its pods to the pod APIs. The newest that these have said belongs to the moment
	// of the decision (Gathered.Answers), and is no need.
	Pod       Pod
	Container Container
	Refs      []pods.Ref

	// Annotations are pods of which the annotations have not been read (Gathered.Ask).
	Annotations []Pod
	// Answer is set where the pod APIs have to be asked.
	Answer bool
	// Devices is set where the devices of the container and its pod's others matter, CPUs where these others' exclusive CPUs do.
	Devices, CPUs bool
	// Ended are places of what may have ended: their Presence is an event before this one.
	Ended []Place
	// Claims are to be prepared again, as the API server has them now, because they are not known to be reserved for the pod.
	Claims []claims.Claim
	// NodeMemory is set where NodeMemorySampled is to come before this event.
	NodeMemory bool
	// PageSizes are those of the huge pages of which the free ones matter, in bytes.
	PageSizes []uint64
	// LimitOf, MemsOf and FilesOf are the cgroups whose memory.max, cpuset.mems.effective, and Files matter; "" is none.
	LimitOf, MemsOf, FilesOf string
	// Siblings are places of which it matters whether they are there.
	Siblings []Place
	// Usage are cgroups of which it matters what memory would move.
	Usage []string
	// Sandboxes and Listed are the pods that a runtime lists, and their containers that live; the memory.max of a pod matters where its
	// Files is set. Unlisted are containers that it does not list.
	Sandboxes, Listed, Unlisted []Place

	node pods.Node
}

// None reports whether nothing is lacking.
func (n Needs) None() bool {
	return len(n.Annotations)+len(n.Ended)+len(n.Claims)+len(n.PageSizes)+len(n.Siblings)+len(n.Usage)+len(n.Sandboxes)+len(n.Unlisted) == 0 &&
		!n.Answer && !n.Devices && !n.NodeMemory && n.LimitOf+n.MemsOf+n.FilesOf == ""
}

// Facts are what was found out for an event. What could not be found out is absent.
type Facts struct {
	// Known is the newest that the pod APIs know of the pod.
	Known pods.Answer `json:",omitzero"`
	// PodLimit is the memory.max of a Guaranteed pod's cgroup, with the pod's overhead, in bytes.
	PodLimit *uint64 `json:",omitempty"`
	// Devices are those of the pod's containers, and CPUs their exclusive CPUs in the kernel's list format, by name.
	Devices map[string][]topologymanager.Device `json:",omitempty"`
	CPUs    map[string]string                   `json:",omitempty"`
	// FreePages are what the kernel has free of the huge pages that the container asks for; nil verifies nothing.
	FreePages []memorymanager.FreePages `json:",omitempty"`
	// Siblings are those of the pod's other containers that were looked at.
	Siblings Presence `json:",omitzero"`
	// Mems are the NUMA nodes that the pod's cgroup may use.
	Mems nodeset.Set `json:",omitempty"`
	// Files is what those of a container hold that is not known.
	Files *Files `json:",omitempty"`
	// Usage is what the kernel shows of cgroups.
	Usage map[string]Usage `json:",omitempty"`
}

// Gathered is what the driver has found out so far for an event. It becomes a part of the event (With).
type Gathered struct {
	Facts
	// Answers are the newest of the pod APIs about all pods of the event, and Found what the files say of those that a runtime lists.
	Answers map[pods.Ref]pods.Answer
	Found   Found

	annotated map[string]*ReadAnnotations // by sandbox
	asked     int                         // how often: first for what depends on nothing, then for what depends on that, and then for nothing
}

// Ask notes that n is asked for: it is not asked for again, whatever is found out. It reads the annotations. A tenant decides how much
// there is to read, so the driver calls it without its lock; it uses nothing that changes.
func (g *Gathered) Ask(n Needs) {
	g.asked++
	for _, pod := range n.Annotations {
		if g.annotated == nil {
			g.annotated = map[string]*ReadAnnotations{}
		}
		g.annotated[pod.ID] = read(pod, n.node)
	}
}

// Needs returns what the ledger lacks for an event beside what was found out already; nothing for one that is late. It is a question, and
// changes nothing. An event of nil stands for any: what was found out for it serves all that come.
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
			n.Usage = l.movable(e.Pod, e.Container)
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
			n.Sandboxes, n.Listed = e.places()
			n.Unlisted = l.unlisted(e.Containers)
		}
	case SyncContainers:
		n.Usage = l.toMove(e)
	case PrepareClaim:
		n.forClaim(l, g, e.Claim.UID)
	case UnprepareClaim:
		n.forClaim(l, g, e.UID)
	}
	n.Usage = slices.DeleteFunc(n.Usage, func(cgroup string) bool { _, known := g.Usage[cgroup]; return known || cgroup == "" })
	return n
}

// With is an event with what was found out for it.
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
	e.Found, e.Known, e.Pods = g.Found, make(map[string]pods.Answer, len(e.Pods)), slices.Clone(e.Pods)
	for _, c := range e.Containers { // one that was created and never started may be left of a pod that has ended
		if c.State.Alive() && c.State != Created {
			delete(e.Found.Gone, c.PodID)
		}
	}
	for i := range e.Pods {
		var facts Facts
		if e.Pods[i], facts = g.of(e.Pods[i]); facts.Known.Pod != nil {
			e.Known[e.Pods[i].Key()] = facts.Known
		}
	}
	return e
}

// of is a pod of the event with what its annotations say, where they were read, and what was found out about it.
func (g *Gathered) of(pod Pod) (Pod, Facts) {
	pod.Annotations = nil
	if annotated := g.annotated[pod.ID]; annotated != nil {
		pod.Annotated = annotated
	}
	facts := g.Facts
	facts.Known = g.Answers[pod.Ref()]
	return pod, facts
}

// forPods asks for annotations, once for each sandbox.
func (n *Needs) forPods(l *Ledger, g *Gathered, received ...Pod) {
	for _, pod := range received {
		p := l.pods[pod.Key()]
		if known := p != nil && p.ID == pod.ID; g.asked == 0 && !known && pod.Annotated == nil && !l.stopped(pod) {
			n.Annotations = append(n.Annotations, pod)
		}
	}
}

// forContainer asks for what every decision about a container may need; false where nothing is decided. What the pod APIs say is not read
// from files.
func (n *Needs) forContainer(l *Ledger, g *Gathered, pod Pod, c Container) bool {
	path, managed, _ := pod.Path()
	if !managed || l.stopped(pod) {
		return false
	}
	n.Pod, n.Container, n.Refs = pod, c, []pods.Ref{pod.Ref()}
	n.forPods(l, g, pod)
	p := l.pods[pod.Key()]
	switch described := p != nil && p.Info != nil || g.Answers[pod.Ref()].Pod != nil; {
	case g.asked == 0:
		n.Answer, n.Ended = p == nil || !p.knows(c.Name), l.ending()
	case g.asked == 1 && path.Class == memoryqos.Guaranteed && !described:
		n.LimitOf, n.Siblings = path.Pod, p.siblings(c.Name)
	}
	return true
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

// forClaim asks whether the containers that have a claim are there: runtimes do not report every end.
func (n *Needs) forClaim(l *Ledger, g *Gathered, uid string) {
	user := l.claimUser(uid)
	if user == nil || g.asked > 0 {
		return
	}
	for _, c := range user.containers {
		if c.HasClaims && c.names(uid) && c.Cgroup != "" {
			n.Ended = append(n.Ended, c.place())
		}
	}
}

// places are those of the managed pods, and of their containers that live.
func (e Synchronize) places() (sandboxes, containers []Place) {
	paths := make(map[string]cgroup.PodPath, len(e.Pods))
	for i := range e.Pods {
		if path, managed, _ := e.Pods[i].Path(); managed {
			paths[e.Pods[i].ID] = path
			sandboxes = append(sandboxes, Place{ID: e.Pods[i].ID, Cgroup: path.Pod, Files: path.Class == memoryqos.Guaranteed})
		}
	}
	for i := range e.Containers {
		c := &e.Containers[i]
		if path, managed := paths[c.PodID]; managed && c.State.Alive() {
			if dir, err := path.Container(c.CgroupsPath, c.ID); err == nil {
				containers = append(containers, Place{ID: c.ID, Cgroup: dir})
			}
		}
	}
	return sandboxes, containers
}

// unlisted are the places of living containers that are not in a runtime's list.
func (l *Ledger) unlisted(listed []Container) (places []Place) {
	ids := make(map[string]bool, len(listed))
	for i := range listed {
		ids[listed[i].ID] = true
	}
	for id, c := range l.containers {
		if !ids[id] && c.Cgroup != "" {
			places = append(places, c.place())
		}
	}
	return places
}

// toMove are the cgroups of containers of which the runtime is to be told other nodes.
func (l *Ledger) toMove(e SyncContainers) (cgroups []string) {
	for _, id := range e.IDs {
		if c := l.containers[id]; c != nil && c.Phase != Creating && !l.state.Resolved.Config.DryRun() {
			now := l.deriveRun(c)
			if update, _ := c.lacks(&now); update.CpusetMems != "" {
				cgroups = append(cgroups, c.Cgroup)
			}
		}
	}
	return cgroups
}

// cgroupOf is the cgroup of a container whose creation was missed; "" outside kubepods.
func cgroupOf(pod Pod, c Container) string {
	path, managed, _ := pod.Path()
	if !managed {
		return ""
	}
	dir, _ := path.Container(c.CgroupsPath, c.ID)
	return dir
}

// movable is the cgroup of a container whose cpuset.mems may be ours; none of another one.
func (l *Ledger) movable(pod Pod, received Container) []string {
	c := l.containers[received.ID]
	switch {
	case c == nil:
		return []string{cgroupOf(pod, received)}
	case c.Phase != Creating && l.manager != nil && (c.pod.class() == memoryqos.Guaranteed || c.Released):
		return []string{c.Cgroup}
	}
	return nil
}

// ending are the pods without a sandbox, which end with their cgroups, in no order.
func (l *Ledger) ending() (places []Place) {
	for _, p := range l.living {
		if p.ending() {
			places = append(places, p.place())
		}
	}
	return places
}

// siblings are the places of the other living containers of a pod; nil has none.
func (p *pod) siblings(container string) (places []Place) {
	if p == nil {
		return nil
	}
	for _, c := range p.containers {
		if c.alive() && c.Name != container && c.Cgroup != "" {
			places = append(places, c.place())
		}
	}
	return places
}

// podLimit is the limit of the pod without its overhead; nil where it is not known, or there is none.
func (f *Facts) podLimit(pod Pod) *uint64 {
	if f.PodLimit == nil || *f.PodLimit == cgroup.Max {
		return nil
	}
	limit := *f.PodLimit - min(*f.PodLimit, pod.Overhead)
	return &limit
}

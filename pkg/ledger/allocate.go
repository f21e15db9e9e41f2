package ledger

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Reasons of refusals that are not the memory manager's.
var (
	// BadAnnotation: an annotation of the pod is wrong and onBadAnnotation is Reject.
	BadAnnotation = memorymanager.NewReason("BadAnnotation")
	// NotPreferred: the pod requires its NUMA nodes and could only have more nodes than needed.
	NotPreferred = memorymanager.NewReason("NotPreferred")
)

// unpinnable says why a container has no allocation whatever there is room for; "" is one that may have.
func (l *Ledger) unpinnable(c *container) string {
	switch {
	case c.byClaims():
		return hasClaims
	case l.manager == nil:
		return "not pinned: memoryManagerPolicy is None"
	case c.pod.class() != memoryqos.Guaranteed:
		return "not pinned: only Guaranteed pods are"
	case c.wishes().NUMA == config.NUMANone:
		return "not pinned: the pod's annotation numa is none"
	case c.pod.podLevel():
		return l.unpinnableOfPodLevel(c)
	}
	return ""
}

// allocate finds a container's nodes, or why it has none. The error refuses the container.
func (l *Ledger) allocate(c *container) error {
	if c.byClaims() {
		return l.allocateByClaims(c)
	}
	c.Placement = Placement{Pinning: l.unpinnable(c)}
	if c.Pinning != "" {
		l.release(c)
		l.respect(c)
		return nil
	}
	wanted := l.wanted(c)
	if len(wanted.Request) == 0 && !l.asWhole(c.pod) {
		c.Pinning = "not pinned: the container asks for no memory"
		l.release(c)
		l.respect(c)
		return nil
	}
	if l.respect(c) {
		return l.adopt(c, wanted.Request, "pinned by the kubelet")
	}
	l.state.Counters.PinningRequests++
	placement, err := l.place(c, wanted)
	if err != nil {
		if l.relieve(c, wanted, err) {
			l.state.Counters.PinningRequests-- // it comes again
			return err
		}
		l.state.Counters.PinningErrors++
		return l.unplaced(c, err)
	}
	l.allocated(c, placement)
	policy := l.state.Resolved.Config.TopologyManagerPolicy
	c.Pinning = "pinned under " + string(policy)
	if rules := policy.Rules(); rules.Insists && !rules.OneNode && !placement.Affinity.Preferred {
		c.Pinning += ", on nodes of its CPUs"
	}
	if l.asWhole(c.pod) {
		c.Pinning += ", with its pod (pod-level resources)"
	} else if wanted.Spread {
		c.Pinning += l.spreadOver(wanted, placement.Blocks)
	}
	if placement.Bounded {
		c.Pinning += ", by a search that was cut short"
	}
	return nil
}

// spreadEvenly is said of a container that is spread.
const spreadEvenly = ", spread evenly"

// even reports whether blocks are spread evenly over several nodes.
func even(blocks []memorymanager.Block) bool {
	return slices.ContainsFunc(blocks, func(b memorymanager.Block) bool { return b.Even })
}

// spreadOver says whether a container that is to be spread is.
func (l *Ledger) spreadOver(c memorymanager.Container, blocks []memorymanager.Block) string {
	switch {
	case even(blocks):
		return spreadEvenly
	case l.state.Resolved.Manager.Policy.Rules().OneNode:
		return ", which spreads nothing"
	case !l.manager.Spreads(c):
		return fmt.Sprintf(", not spread: its pod asks for less than 1/%d of each of two nodes", memorymanager.LeastEvenShare)
	}
	return ", not spread: no other node can have an even part"
}

// wanted is the container as the memory manager sees it.
func (l *Ledger) wanted(c *container) memorymanager.Container {
	return memorymanager.Container{
		Pod: c.pod.key(), Name: c.Name, Kind: c.kind(), Request: request(c), CPUs: c.CPUNodes, Devices: c.Devices,
		Required: c.wishes().NUMA == config.NUMARequired, Spread: c.wishes().NUMA == config.NUMASpread, PodBytes: c.pod.MemoryLimit,
	}
}

// place asks the memory manager. A container whose limit has changed since its last start does not run, so that it may go
// elsewhere; where there is no room, it goes on as after a resize.
func (l *Ledger) place(c *container, wanted memorymanager.Container) (memorymanager.Placement, error) {
	if l.asWhole(c.pod) {
		return l.placePart(c, wanted)
	}
	if !l.misfits(c) {
		return l.placeNew(c, wanted)
	}
	if placement, err := l.manager.Resize(wanted, true); err == nil {
		return placement, nil
	}
	blocks := l.manager.Blocks(wanted.Pod, wanted.Name)
	l.release(c)
	placement, err := l.placeNew(c, wanted)
	if err != nil && !l.state.Resolved.RefusesResize(c.wishes().NUMA) {
		return l.manager.Reinstate(wanted, blocks)
	}
	return placement, err
}

func (l *Ledger) placeNew(c *container, wanted memorymanager.Container) (memorymanager.Placement, error) {
	if err := l.align(c); err != nil {
		return memorymanager.Placement{}, err
	}
	wanted.FreePages = l.step.freePages
	placement, err := l.manager.Admit(wanted)
	if blocks := l.manager.Blocks(wanted.Pod, wanted.Name); err != nil && blocks != nil {
		placement, err = l.placeAgain(c, wanted, blocks)
	}
	if err != nil {
		return placement, err
	}
	if err := l.preferred(wanted, placement); err != nil {
		l.manager.Release(wanted.Pod, wanted.Name)
		return placement, err
	}
	return placement, nil
}

// placeAgain places a container whose CPUs or devices are no longer where its memory is. It does not run, so that it may go
// elsewhere; where there is no room, it keeps what it has.
func (l *Ledger) placeAgain(c *container, wanted memorymanager.Container, blocks []memorymanager.Block) (memorymanager.Placement, error) {
	l.release(c)
	placement, err := l.manager.Admit(wanted)
	if err != nil {
		return l.manager.Reinstate(wanted, blocks)
	}
	return placement, nil
}

// preferred refuses a new placement on more nodes than needed, where the pod requires its nodes.
func (l *Ledger) preferred(wanted memorymanager.Container, placement memorymanager.Placement) error {
	required := wanted.Required && l.state.Resolved.Manager.Policy.Rules().Aligns
	if required && !placement.Existing && !placement.Affinity.Preferred {
		return fmt.Errorf("the pod's annotation numa is required: it could only have nodes %s, which are more than it needs", placement.Nodes)
	}
	return nil
}

// align gives the whole pod one affinity before its first container is placed (scope pod). Without a pod API the pod's
// other containers are not known, and each is aligned by itself. The affinity of a pod that has allocations follows from
// them: a restart or a reload remembers nothing else.
func (l *Ledger) align(c *container) error {
	p := c.pod
	key := p.key()
	if l.state.Resolved.Manager.Scope != topologymanager.PodScope || l.manager.Aligned(key) {
		return nil
	}
	if p.Info == nil || l.manager.Spreads(l.wanted(c)) { // which has nodes of its own
		return nil
	}
	whole := p.ofSpec()
	for i := range whole {
		one := &whole[i]
		one.Required = c.wishes().NUMA == config.NUMARequired
		if one.Devices = l.step.podDevices[one.Name]; one.Name == c.Name {
			one.CPUs, one.Devices = c.CPUNodes, c.Devices
		}
	}
	_, err := l.manager.AdmitPod(key, whole)
	return err
}

// ofSpec are the containers of a pod's spec, in its order, with what they ask for.
func (p *pod) ofSpec() []memorymanager.Container {
	containers := make([]memorymanager.Container, 0, len(p.Info.Containers))
	for _, spec := range p.Info.Containers {
		request := slices.Clone(spec.Hugepages)
		if spec.Request > 0 {
			request = append(request, memorymanager.Amount{Type: memorymanager.Memory, Bytes: spec.Request})
		}
		sortRequest(request)
		containers = append(containers, memorymanager.Container{Pod: p.key(), Name: spec.Name, Kind: spec.Kind, Request: request})
	}
	return containers
}

// unplaced refuses a container that could not be placed, or lets it run without nodes of its own.
func (l *Ledger) unplaced(c *container, err error) error {
	refuse := l.state.Resolved.RefusesCreate(c.wishes().NUMA) && c.Phase == Creating // what runs is not refused
	rejection := l.reject(c, reasonOf(err), err, refuse)
	c.Unplaced = &rejection
	if refuse {
		return err
	}
	c.Pinning = "not pinned: " + rejection.Reason
	return nil
}

// reasonOf is the reason of an error of place: preferred's is the one that is not the memory manager's.
func reasonOf(err error) memorymanager.Reason {
	var rejection *memorymanager.Rejection
	if errors.As(err, &rejection) {
		return rejection.Reason
	}
	return NotPreferred
}

// textOf is a reason at length, with a line for each NUMA node where the memory manager gives one.
func textOf(err error) string {
	var rejection *memorymanager.Rejection
	if errors.As(err, &rejection) {
		return rejection.Text()
	}
	return err.Error()
}

// respect keeps the cpuset.mems that the kubelet has set: kubelet and plugin never both pin.
func (l *Ledger) respect(c *container) bool {
	nodes, err := nodeset.Parse(c.Resources.Mems)
	if err != nil || nodes.Empty() {
		return false
	}
	c.Nodes, c.Short, c.ByKubelet = nodes, nil, true
	return true
}

// adopt allocates a container's memory on the nodes that it has.
func (l *Ledger) adopt(c *container, request memorymanager.Request, how string) error {
	placement, err := l.adoptWhereItIs(c, request)
	if err != nil {
		c.Pinning = how + ", not allocated: " + err.Error()
		l.note(Warn, "a container's memory cannot be allocated on the nodes that it has", l.fields(c), err)
		return nil
	}
	c.Pinning = how
	if !c.ByKubelet {
		l.manager.MakeEven(l.wanted(c))
	}
	l.overcommitted(c, placement)
	l.note(Info, "container "+how+": its memory is allocated where it is", l.fields(c), nil)
	return nil
}

// overcommitted notes what is allocated where there is no room, because its container or pod runs there.
func (l *Ledger) overcommitted(c *container, placement memorymanager.Placement) {
	for _, over := range placement.Overcommitted {
		l.note(Warn, "a node has more allocated than it has", with(with(l.fields(c), "node", over.Node), "bytes", quantity.Log(over.Bytes)), nil)
	}
}

func (l *Ledger) adoptWhereItIs(c *container, request memorymanager.Request) (memorymanager.Placement, error) {
	if l.asWhole(c.pod) {
		return l.adoptPart(c)
	}
	key := c.pod.key()
	if blocks := l.manager.Blocks(key, c.Name); blocks != nil && (nodesOf(blocks) != c.Nodes || !holds(blocks, request)) {
		l.manager.Release(key, c.Name)
	}
	return l.manager.Adopt(key, c.Name, request, c.Nodes)
}

// release frees the allocation of a container that must not have one.
func (l *Ledger) release(c *container) {
	if l.manager != nil {
		l.manager.Release(c.pod.key(), c.Name)
	}
}

// holds reports whether blocks are of exactly this request.
func holds(blocks []memorymanager.Block, request memorymanager.Request) bool {
	return slices.EqualFunc(blocks, request, func(b memorymanager.Block, a memorymanager.Amount) bool {
		return b.Type == a.Type && b.Size == a.Bytes
	})
}

func nodesOf(blocks []memorymanager.Block) (nodes nodeset.Set) {
	for _, block := range blocks {
		nodes = nodes.Union(block.Nodes)
	}
	return nodes
}

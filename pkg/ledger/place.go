package ledger

import (
	"cmp"
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// The table shows where a container's memory is allocated. It depends on who decides, and on whether the present allocation matches the
// container's request. The first row that applies counts:
//
//	who decides   allocated   place: it is new            placeAll: it runs          resize: its request changes
//	its claims    released    on their nodes              same, or as found          unchanged
//	nobody        released    on all nodes                same                       unchanged
//	the kubelet   any         allocated on its nodes      kept, or where it is       allocated on its nodes
//	the memory    as asked    kept, or elsewhere with     kept                       kept, nothing pending
//	manager                   its CPUs and devices
//	              otherwise   all of it there, or else-   as far as there is room    as far as there is room, or refused where
//	                          where, or as far as there                              it asks for more (RefusesResize)
//	                          is room
//	              nothing     where there is room         where it is found, or      unchanged
//	                                                      where there is room
//
// Nobody decides about a container that is unpinnable or asks for no memory. In the first two rows, too, a container keeps the nodes that
// the kubelet has set. A container without room is refused, or runs on all nodes; a running container is never refused. A container that
// gets less than it asks for may use all nodes until fitPendingResizes finds room for the rest.

// assignment is a decision about a container's memory. The Memory Manager has allocated it already; assign writes it to the container.
type assignment struct {
	Placement
	// released is set if the container loses nodes that this plugin had set.
	released bool
	// claims is what it gets from its claims, if they are granted; nil changes nothing.
	claims  *claimGrant
	granted bool
	// notes are for the log, with fields in addition to the container's.
	notes []Note
}

// assign is the only function that writes a container's placement.
func (l *Ledger) assign(c *container, decided assignment) {
	switch {
	case !decided.Nodes.Empty():
		c.Had = 0
	case c.Phase != Creating && !c.Nodes.Empty() && !c.ByKubelet && len(c.PendingResize) == 0:
		c.Had = c.Nodes
	}
	c.Placement, c.Released = decided.Placement, c.Released || decided.released
	if c.Unplaced == nil && c.Refusal == nil && c.Pinning != "" { // a dry run does not place what it would reject for its annotations
		l.forgetRejections(func(r Rejection) bool { return c.pod.has(r) && r.Container == c.Name })
	}
	if decided.claims != nil {
		l.grantClaims(c, *decided.claims, decided.granted)
	}
	for _, n := range decided.notes {
		fields := l.fields(c)
		maps.Copy(fields, n.Fields)
		l.note(n.Level, n.Text, fields, n.Err)
	}
}

// place decides and assigns the nodes of a new container, or of a running one that has none. An error refuses the container.
func (l *Ledger) place(c *container) error {
	decided, err := l.decide(c)
	l.assign(c, decided)
	return err
}

// decide returns the placement of a new container, or of a running one that has none. An error refuses the container.
func (l *Ledger) decide(c *container) (assignment, error) {
	if decided, done, err := l.decideUnmanaged(c); done {
		return decided, err
	}
	wanted := l.managerContainer(c)
	if len(wanted.Request) == 0 && !l.asWhole(c.pod) {
		return l.unmanaged(c, "not pinned: the container asks for no memory"), nil
	}
	if by := c.withKubeletNodes(Placement{Pinning: "pinned by the kubelet", Refusal: c.Refusal}); by.ByKubelet {
		return l.adopt(c, by), nil
	}
	placement, err := l.allocate(c, wanted)
	l.state.Counters.PinningRequests++
	if err != nil {
		l.state.Counters.PinningErrors++
		return l.refuseOrUnpin(c, err)
	}
	l.step.affinity = &placement.Affinity
	decided := Placement{Pinning: l.howPlaced(c.pod, placement)}.withAllocation(placement)
	return assignment{Placement: decided, notes: overcommitted(placement)}, nil
}

// placeAll places running containers and returns how many new placements it made. First come containers that have an allocation or were found
// with nodes, the resized ones after the others; then containers whose cpuset.mems this plugin has set before; then all others. The order does
// not depend on the runtime's.
func (l *Ledger) placeAll(running []*container) (placed int) {
	var kept, spread, earlier, free []*container
	for _, c := range inOrder(running) {
		if decided, has := l.keep(c); has {
			l.assign(c, decided)
			kept = append(kept, c)
			continue
		}
		switch nodes := l.foundNodes(c); {
		case nodes.Empty() && c.Record.WrittenMems:
			earlier = append(earlier, c)
		case nodes.Empty():
			free = append(free, c)
		case l.manager.Spread(nodes):
			spread = append(spread, c)
		default:
			l.assign(c, l.adoptFound(c))
		}
	}
	for _, c := range spread { // the containers adopted above may have made all nodes one group
		if l.manager.Spread(l.foundNodes(c)) {
			free = append(free, c) // on all nodes: its resize was pending when the state file was lost
		} else {
			l.assign(c, l.adoptFound(c))
		}
	}
	for _, c := range kept {
		l.assign(c, l.fit(c))
	}
	fresh := append(earlier, free...) // a state file that could not be written may lack an earlier one
	// First what is to be where its memory is, before others get nodes there.
	for _, c := range slices.DeleteFunc(slices.Clone(fresh), l.placeBack) {
		_ = l.place(c) // a running container is never refused
	}
	for _, c := range fresh {
		if !c.Nodes.Empty() {
			placed++
		}
	}
	return placed
}

// placeBack allocates a container where it was allocated before, if there is room: a configuration had taken the allocation, and is taken back.
// A pod whose other containers have kept allocations of their own is allocated as a whole where these are.
func (l *Ledger) placeBack(c *container) bool {
	if c.Had.Empty() || c.Resources.Mems != "" || l.asWhole(c.pod) && l.hasOnlyParts(c.pod) {
		return false
	}
	placement, err := l.allocateOn(c, c.Had)
	switch over := len(placement.Overcommitted) > 0; {
	case over && l.asWhole(c.pod): // which was allocated with this container
		l.manager.ReleasePod(c.pod.Key())
		return false
	case over || err != nil:
		l.release(c)
		return false
	}
	l.assign(c, assignment{Placement: Placement{Nodes: placement.Nodes, Pinning: "pinned where it was before", Refusal: c.Refusal}})
	return true
}

// inOrder sorts containers by pod and name.
func inOrder(containers []*container) []*container {
	return slices.SortedFunc(slices.Values(containers), func(x, y *container) int {
		return cmp.Or(cmp.Compare(x.pod.Key(), y.pod.Key()), cmp.Compare(x.Name, y.Name))
	})
}

// resize changes a container's allocation from the request before to its new resources. An error refuses the change and keeps the
// allocation. Only a change that asks for more is refused: a container with a pending resize may ask for less, or for something else.
func (l *Ledger) resize(c *container, before memorymanager.Request, to Resources) (assignment, error) {
	switch {
	case l.manager == nil, c.ByKubelet && to.Mems == "" && c.Limit == 0:
		return assignment{Placement: c.Placement}, nil
	case c.ByKubelet && l.unpinnable(c) == "":
		return l.adopt(c, c.withKubeletNodes(c.Placement)), nil
	case c.ByKubelet:
		return assignment{Placement: c.withKubeletNodes(c.Placement)}, nil
	case !c.Confined.Empty() && to.Mems != "":
		by := c.withKubeletNodes(Placement{Pinning: "pinned by the kubelet", Refusal: c.Refusal})
		if l.unpinnable(c) == "" {
			return l.adopt(c, by), nil
		}
		return assignment{Placement: by}, nil
	case !l.misfits(c):
		return assignment{Placement: l.complete(c)}, nil
	}
	more := slices.ContainsFunc(request(c), func(a memorymanager.Amount) bool { return a.Bytes > before.Of(a.Type) })
	decided, err := l.reallocate(c, more && l.state.Resolved.RefusesResize(c.wishes().NUMA))
	if err != nil {
		decided.Refusal = l.rejectResize(c, err)
	}
	return assignment{Placement: decided}, err
}

// decideUnmanaged decides about a container that the Memory Manager does not place; done is false for any other. An error refuses the
// container.
func (l *Ledger) decideUnmanaged(c *container) (decided assignment, done bool, err error) {
	if c.byClaims() {
		decided, err = l.decideByClaims(c)
		return decided, true, err
	}
	if why := l.unpinnable(c); why != "" {
		return l.unmanaged(c, why), true, nil
	}
	return assignment{}, false, nil
}

// unmanaged lets a container run on all nodes, or on those that the kubelet has set.
func (l *Ledger) unmanaged(c *container, why string) assignment {
	return l.unallocated(c, l.unpin(c, why))
}

// unallocated confines a container without an allocation (nodesWithoutCPUs: Confine), or lets it run on all nodes.
func (l *Ledger) unallocated(c *container, as Placement) assignment {
	decided := assignment{Placement: as}
	switch {
	case as.ByKubelet:
	case !l.cpuNodes.Empty() && l.state.Resolved.Config.NodesWithoutCPUs == config.ConfineNodes:
		decided.Confined = l.confinedTo(c)
		decided.Pinning += ", confined to " + decided.Confined.Named()
	case !c.Released && c.FoundMems != "" && c.Record.WrittenMems:
		decided.released = true
		if c.pod.class() != memoryqos.Guaranteed { // it was confined
			decided.notes = []Note{{Info, "a container may use all NUMA nodes again", map[string]any{"nodes": c.FoundMems}, nil}}
		}
	}
	return decided
}

// confinedTo returns the nodes with CPUs and those of the container's devices. A running container keeps other nodes that this plugin has set,
// because after a restart of the plugin not all of its devices are known again, nor its claims if claims are off now.
func (l *Ledger) confinedTo(c *container) nodeset.Set {
	nodes := l.cpuNodes.Union(nodesOfDevices(c) & l.allNodes)
	has, err := nodeset.Parse(c.FoundMems)
	if err == nil && c.Record.WrittenMems && !c.Released && !has.SubsetOf(nodes) {
		return has
	}
	return nodes
}

// unpinnable says why a container has no allocation regardless of room; "" if it may have one.
func (l *Ledger) unpinnable(c *container) string {
	switch {
	case c.byClaims():
		return placedByClaims
	case l.manager == nil:
		return "not pinned: memoryManagerPolicy is None"
	case c.pod.class() != memoryqos.Guaranteed:
		return "not pinned: only Guaranteed pods are" + c.pod.whyNotGuaranteed()
	case c.wishes().NUMA == config.NUMANone && slices.Contains(c.wishes().Defaults, config.AnnotationNUMA):
		return "not pinned: numa is none by default of " + c.pod.rules.Rule
	case c.wishes().NUMA == config.NUMANone:
		return "not pinned: the pod's annotation numa is none"
	case c.pod.podLevel():
		return l.unpinnableOfPodLevel(c)
	}
	return ""
}

// unpin releases a container's allocation: it runs on all nodes, or on those that the kubelet has set.
func (l *Ledger) unpin(c *container, why string) Placement {
	l.release(c)
	return c.withKubeletNodes(Placement{Pinning: why, Refusal: c.Refusal})
}

// release frees a container's allocation.
func (l *Ledger) release(c *container) {
	if l.manager != nil {
		l.manager.Release(c.pod.Key(), c.Name)
	}
}

// releaseUnpinnable frees what is kept for containers of a pod that do not run, if they may not have it any more.
func (l *Ledger) releaseUnpinnable(p *pod) {
	if l.manager == nil {
		return
	}
	for _, entry := range l.manager.Allocations(p.Key()).Entries {
		c := p.container(entry.Container)
		if c == nil { // it has not run yet, or not since this start of the plugin
			c = &container{Slot: &Slot{Name: entry.Container, Run: Run{Phase: Stopped}}, pod: p}
		}
		if !c.alive() && l.unpinnable(c) != "" {
			l.release(c)
			l.dropSlot(c)
		}
	}
}

// withKubeletNodes returns a placement with the cpuset.mems that the kubelet has set, if any: kubelet and plugin never both pin.
func (c *container) withKubeletNodes(as Placement) Placement {
	if nodes, err := nodeset.Parse(c.Resources.Mems); err == nil && !nodes.Empty() {
		as.Nodes, as.PendingResize, as.ByKubelet = nodes, nil, true
	}
	return as
}

// keep returns a running container's present allocation. It returns false if the container has none but may have one.
func (l *Ledger) keep(c *container) (assignment, bool) {
	if decided, done, _ := l.decideUnmanaged(c); done { // a running container is never refused
		return decided, true
	}
	blocks, as := l.blocks(c), c.Placement
	as.Pinning = cmp.Or(as.Pinning, "pinned before this start of the plugin")
	// The checkpoint wins over what the runtime shows: CRI-O shows the values of the creation after its own restart.
	if len(as.PendingResize) == 0 { // fit knows whether it still is
		as.Nodes = nodesOf(blocks)
	}
	return assignment{Placement: as}, blocks != nil
}

// foundNodes returns the nodes that a running container was found with; none if nothing is to be allocated there. One that has no entry in
// the state file and may use all nodes with CPUs was confined.
func (l *Ledger) foundNodes(c *container) nodeset.Set {
	nodes, err := nodeset.Parse(c.FoundMems)
	confined := !c.Confined.Empty() || l.state.Restored && c.Record.WrittenMems && !l.cpuNodes.Empty() && l.cpuNodes.SubsetOf(nodes)
	if err != nil || c.Released || confined || len(request(c)) == 0 && !l.asWhole(c.pod) {
		return 0
	}
	return nodes
}

// adoptFound allocates a container without an allocation on the nodes that it was found with.
func (l *Ledger) adoptFound(c *container) assignment {
	return l.adopt(c, Placement{Nodes: l.foundNodes(c), Pinning: "found pinned", Refusal: c.Refusal})
}

// adopt allocates a container's memory on the nodes of a placement. If that fails, the container keeps these nodes without an allocation.
func (l *Ledger) adopt(c *container, as Placement) assignment {
	placement, err := l.allocateOn(c, as.Nodes)
	how := as.Pinning
	if err != nil {
		as.Pinning += ", not allocated: " + err.Error()
		return assignment{Placement: as, notes: []Note{{Warn, "a container's memory cannot be allocated on the nodes that it has", nil, err}}}
	}
	notes := append(overcommitted(placement), Note{Info, "container " + how + ": its memory is allocated where it is", nil, nil})
	return assignment{Placement: as, notes: notes}
}

func (l *Ledger) allocateOn(c *container, nodes nodeset.Set) (memorymanager.Placement, error) {
	if l.asWhole(c.pod) {
		return l.allocateWholeOn(c, nodes)
	}
	request := request(c)
	if blocks := l.blocks(c); blocks != nil && (nodesOf(blocks) != nodes || !blocksMatch(blocks, request)) {
		l.release(c)
	}
	return l.manager.Adopt(c.pod.Key(), c.Name, request, nodes)
}

// overcommitted returns notes about memory that is allocated without room, because its container or pod runs there.
func overcommitted(placement memorymanager.Placement) (notes []Note) {
	for _, over := range placement.Overcommitted {
		notes = append(notes, Note{Warn, "a node has more allocated than it has", map[string]any{"node": over.Node, "bytes": quantity.Log(over.Bytes)}, nil})
	}
	return notes
}

// managerContainer returns the container as the Memory Manager sees it.
func (l *Ledger) managerContainer(c *container) memorymanager.Container {
	return memorymanager.Container{
		Pod: c.pod.Key(), Name: c.Name, Kind: c.kind(), Request: request(c), CPUs: c.CPUNodes, Devices: c.Devices,
		Required: c.wishes().NUMA == config.NUMARequired,
	}
}

// blocks returns a container's allocation; nil if it has none.
func (l *Ledger) blocks(c *container) []memorymanager.Block {
	if l.manager == nil {
		return nil
	}
	return l.manager.Blocks(c.pod.Key(), c.Name)
}

// allocate places a container that does not run yet. If its old allocation no longer fits its request, or its CPUs and devices, it may get
// other nodes. If there is no room elsewhere, it keeps what it has, as after a resize.
func (l *Ledger) allocate(c *container, wanted memorymanager.Container) (memorymanager.Placement, error) {
	if l.asWhole(c.pod) {
		return l.allocateWhole(c, wanted)
	}
	blocks, resized := l.blocks(c), l.misfits(c)
	if resized {
		if placement, err := l.manager.Resize(wanted, true); err == nil {
			return placement, nil
		}
		l.release(c)
	}
	placement, err := l.allocateNew(c, wanted)
	if err != nil && blocks != nil && !resized {
		l.release(c)
		placement, err = l.allocateNew(c, wanted)
	}
	if err != nil && blocks != nil && !(resized && l.state.Resolved.RefusesResize(c.wishes().NUMA)) {
		placement, err = l.manager.Reinstate(wanted, blocks)
	}
	return placement, err
}

// allocateNew asks the Memory Manager to place a container; in scope pod, with the affinity of its whole pod. If no pod API has reported
// the pod's other containers, each container is aligned by itself. The affinity of a pod that has allocations follows from them, so it
// survives a restart or a reload.
func (l *Ledger) allocateNew(c *container, wanted memorymanager.Container) (memorymanager.Placement, error) {
	podScope := l.state.Resolved.Manager.Scope == topologymanager.PodScope && !l.manager.Aligned(wanted.Pod)
	if podScope && c.pod.Info != nil {
		var whole []memorymanager.Container
		for _, spec := range c.pod.Info.Containers {
			one := memorymanager.Container{
				Pod: wanted.Pod, Name: spec.Name, Kind: spec.Kind, Request: withMemory(slices.Clone(spec.Hugepages), spec.Request),
				CPUs: l.nodesOfCPUs(l.step.facts.CPUs[spec.Name]), Devices: l.step.facts.Devices[spec.Name], Required: wanted.Required,
			}
			if one.Name == c.Name {
				one.CPUs, one.Devices = c.CPUNodes, c.Devices
			}
			whole = append(whole, one)
		}
		if _, err := l.manager.AlignPod(wanted.Pod, whole); err != nil {
			return memorymanager.Placement{}, err
		}
	}
	wanted.FreePages = l.step.facts.FreePages
	placement, err := l.manager.Allocate(wanted)
	if err != nil && podScope {
		l.manager.ReleasePod(wanted.Pod) // the runtime tries again, and there may be room then
	}
	return placement, err
}

// withAllocation returns the placement with the nodes that the Memory Manager has allocated. It clears the refusal.
func (p Placement) withAllocation(by memorymanager.Placement) Placement {
	p.Nodes, p.PendingResize, p.Refusal = by.Nodes, by.PendingResize, nil
	return p
}

// refuseOrUnpin refuses a container that could not be placed, or lets it run without nodes of its own.
func (l *Ledger) refuseOrUnpin(c *container, err error) (assignment, error) {
	refuse := l.state.Resolved.RefusesCreate(c.wishes().NUMA) && c.Phase == Creating // a running container is never refused
	as := Placement{Unplaced: l.reject(c, l.causeOf(err), refuse), Refusal: c.Refusal}
	if refuse {
		return assignment{Placement: as}, err
	}
	as.Pinning = "not pinned: " + as.Unplaced.Reason
	return l.unallocated(c, as), nil
}

// howPlaced describes how the Memory Manager placed a container.
func (l *Ledger) howPlaced(p *pod, placement memorymanager.Placement) string {
	policy := l.state.Resolved.Config.TopologyManagerPolicy
	rules := policy.Rules()
	how := "pinned under " + string(policy)
	if rules.Insists && !rules.OneNode && !placement.Affinity.Preferred {
		how += ", on nodes of its CPUs"
	}
	if l.asWhole(p) {
		how += ", with its pod (pod-level resources)"
	}
	if placement.Bounded {
		how += ", by a search that was cut short"
	}
	return how
}

// complete returns the placement of a container whose allocation matches its request: no resize is pending any more.
func (l *Ledger) complete(c *container) Placement {
	as := c.Placement
	if len(as.PendingResize) > 0 {
		as.Nodes, as.PendingResize = nodesOf(l.blocks(c)), nil
	}
	return as
}

// misfits reports whether a container's allocation differs from its request. An init container does not count: its allocation shrinks when
// others of its pod reuse its memory.
func (l *Ledger) misfits(c *container) bool {
	blocks, request := l.blocks(c), request(c)
	return blocks != nil && c.kind() != memoryqos.Init && len(request) > 0 && !blocksMatch(blocks, request)
}

// fit resizes a running container's allocation to its request, as far as there is room.
func (l *Ledger) fit(c *container) assignment {
	switch {
	case !l.misfits(c):
		return assignment{Placement: l.complete(c)}
	case c.ByKubelet:
		return l.adopt(c, c.Placement)
	}
	as, err := l.reallocate(c, false)
	decided := assignment{Placement: as}
	if err != nil {
		decided.notes = []Note{{Warn, "a container cannot be allocated what it was resized to: its old allocation stays", nil, err}}
	} else if len(as.PendingResize) > 0 && !slices.Equal(as.PendingResize, c.PendingResize) {
		decided.notes = []Note{{Warn, "a container was resized and found no room: it is allocated less than its limit", nil, nil}}
	}
	return decided
}

// reallocate resizes a container's allocation to its request: completely if whole is set, else as far as there is room. On error the
// container keeps its placement.
func (l *Ledger) reallocate(c *container, whole bool) (Placement, error) {
	placement, err := l.manager.Resize(l.managerContainer(c), whole)
	if err != nil {
		return c.Placement, err
	}
	return c.Placement.withAllocation(placement), nil
}

// fitPendingResizes tries again to allocate pending resizes, once there may be room.
func (l *Ledger) fitPendingResizes() {
	frees := func(p *pod) bool { _, differs := l.unstored(p); return differs && !p.stored.Empty() }
	if l.manager == l.stored && !slices.ContainsFunc(l.step.changed, frees) {
		return
	}
	var pending []*container
	for _, c := range l.containers {
		if l.manager != nil && len(c.PendingResize) > 0 {
			pending = append(pending, c)
		}
	}
	for _, c := range inOrder(pending) {
		as, err := l.reallocate(c, false)
		if err == nil && !slices.Equal(as.PendingResize, c.PendingResize) {
			l.change(c.pod)
			l.assign(c, assignment{Placement: as, notes: []Note{{Info, "a container that was resized is allocated more of what it asks for", nil, nil}}})
		}
	}
}

// blocksMatch reports whether blocks are exactly this request.
func blocksMatch(blocks []memorymanager.Block, request memorymanager.Request) bool {
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

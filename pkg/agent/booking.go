package agent

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Reasons of refusals that are not the memory manager's.
const (
	// BadAnnotation: an annotation of the pod is wrong and onBadAnnotation is Reject.
	BadAnnotation = "BadAnnotation"
	// NotPreferred: the pod requires its NUMA nodes and could only have more nodes than needed.
	NotPreferred = "NotPreferred"
	// otherReason stands for an error of the memory manager without a reason.
	otherReason = "Other"
)

// unpinnable says why a container has no booking whatever there is room for; "" is one that may have.
func (a *Agent) unpinnable(c *container) string {
	switch {
	case a.manager == nil:
		return "not pinned: memoryManagerPolicy is None"
	case c.pod.class() != memoryqos.Guaranteed:
		return "not pinned: only Guaranteed pods are"
	case c.wishes.NUMA == config.NUMANone:
		return "not pinned: the pod's annotation numa is none"
	}
	return ""
}

// book finds a container's nodes, or why it has none. The error refuses the container. The lock is held.
func (a *Agent) book(c *container) error {
	c.nodes, c.short, c.byKubelet = 0, nil, false
	if c.pinning = a.unpinnable(c); c.pinning != "" {
		a.unbook(c)
		a.respect(c)
		return nil
	}
	wanted := a.wanted(c)
	if len(wanted.Request) == 0 {
		c.pinning = "not pinned: the container asks for no memory"
		a.unbook(c)
		a.respect(c)
		return nil
	}
	if a.respect(c) {
		return a.adopt(c, wanted.Request, "pinned by the kubelet")
	}
	a.counters.pinningRequests.Add(1)
	placement, err := a.place(c, wanted)
	if err != nil {
		a.counters.pinningErrors.Add(1)
		return a.unplaced(c, err)
	}
	a.allocated(c, placement)
	policy := a.resolved.Config.TopologyManagerPolicy
	c.pinning = "pinned under " + string(policy)
	if policy == topologymanager.Restricted && !placement.Affinity.Preferred {
		c.pinning += ", on nodes of its CPUs"
	}
	if placement.Bounded {
		c.pinning += ", by a search that was cut short"
	}
	a.record(c.pod)
	return nil
}

// wanted is the container as the memory manager sees it.
func (a *Agent) wanted(c *container) memorymanager.Container {
	return memorymanager.Container{
		Pod: keyOf(c.pod.Pod), Name: c.name, Kind: placementRole(c.kind), Request: request(c), CPUs: c.cpus,
		Required: c.wishes.NUMA == config.NUMARequired,
	}
}

// place asks the memory manager. A container whose limit has changed since its last start does not run, so that it may go
// elsewhere; where there is no room, it goes on as after a resize.
func (a *Agent) place(c *container, wanted memorymanager.Container) (memorymanager.Placement, error) {
	if !a.misfits(c) {
		return a.placeNew(c, wanted)
	}
	if placement, err := a.manager.Resize(wanted, true); err == nil {
		return placement, nil
	}
	blocks := a.manager.Blocks(wanted.Pod, wanted.Name)
	a.unbook(c)
	placement, err := a.placeNew(c, wanted)
	if err != nil && !a.resolved.RefusesResize(c.wishes.NUMA) {
		return a.manager.Reinstate(wanted, blocks)
	}
	return placement, err
}

func (a *Agent) placeNew(c *container, wanted memorymanager.Container) (memorymanager.Placement, error) {
	if err := a.align(c); err != nil {
		return memorymanager.Placement{}, err
	}
	placement, err := a.manager.Admit(wanted)
	if err != nil {
		return placement, err
	}
	required := wanted.Required && a.resolved.Manager.Policy != topologymanager.None
	if required && !placement.Existing && !placement.Affinity.Preferred {
		a.manager.Release(wanted.Pod, wanted.Name)
		return placement, fmt.Errorf("%w: it could only have nodes %s, which are more than it needs", errNotPreferred, placement.Nodes)
	}
	return placement, nil
}

var errNotPreferred = errors.New("the pod's annotation numa is required")

// align gives the whole pod one affinity before its first container is placed (scope pod). Without a pod API the pod's
// other containers are not known, and each is aligned by itself.
func (a *Agent) align(c *container) error {
	p := c.pod
	if a.resolved.Manager.Scope != topologymanager.PodScope || p.aligned || p.info == nil {
		return nil
	}
	key := keyOf(p.Pod)
	if len(a.manager.Entries(key)) > 0 { // placed before a restart of the plugin
		p.aligned = true
		return nil
	}
	var whole []memorymanager.Container
	for _, spec := range p.info.Containers {
		if spec.Kind == memoryqos.Ephemeral {
			continue
		}
		request := append(memorymanager.Request{}, spec.Hugepages...)
		if spec.Request > 0 {
			request = append(request, memorymanager.Amount{Type: memorymanager.Memory, Bytes: spec.Request})
		}
		sortRequest(request)
		whole = append(whole, memorymanager.Container{
			Pod: key, Name: spec.Name, Kind: placementRole(spec.Kind), Request: request, Required: c.wishes.NUMA == config.NUMARequired,
		})
	}
	if _, err := a.manager.AdmitPod(key, whole, c.cpus); err != nil {
		return err
	}
	p.aligned = true
	return nil
}

// unplaced refuses a container that could not be placed, or lets it run without nodes of its own.
func (a *Agent) unplaced(c *container, err error) error {
	refuse := a.resolved.RefusesCreate(c.wishes.NUMA) && c.state == Unknown // what runs is not refused
	reason := reasonOf(err)
	a.reject(c, reason, textOf(err), refuse)
	if refuse {
		return err
	}
	c.pinning = "not pinned: " + reason
	return nil
}

func reasonOf(err error) string {
	var rejection *memorymanager.Rejection
	switch {
	case errors.As(err, &rejection):
		return rejection.Reason()
	case errors.Is(err, errNotPreferred):
		return NotPreferred
	}
	return otherReason
}

// textOf is a reason at length, with a line for each NUMA node where the memory manager gives one.
func textOf(err error) string {
	var rejection *memorymanager.Rejection
	if errors.As(err, &rejection) {
		return rejection.Text()
	}
	return err.Error()
}

// respect takes over the cpuset.mems that the kubelet has set: kubelet and agent never both pin.
func (a *Agent) respect(c *container) bool {
	nodes, err := nodeset.Parse(c.resources.Mems)
	if err != nil || nodes.Empty() {
		return false
	}
	c.nodes, c.short, c.byKubelet = nodes, nil, true
	return true
}

// adopt books a container on the nodes that it has.
func (a *Agent) adopt(c *container, request memorymanager.Request, how string) error {
	key := keyOf(c.pod.Pod)
	if blocks := a.manager.Blocks(key, c.name); blocks != nil && (nodesOf(blocks) != c.nodes || !holds(blocks, request)) {
		a.manager.Release(key, c.name)
	}
	placement, err := a.manager.Adopt(key, c.name, request, c.nodes)
	if err != nil {
		c.pinning = how + ", not booked: " + err.Error()
		a.log.WithFields(c.fields()).WithError(err).Warn("the nodes of a container cannot be booked")
		return nil
	}
	c.pinning = how
	log := a.log.WithFields(c.fields())
	for _, over := range placement.Overcommitted {
		log.WithField("node", over.Node).WithField("bytes", over.Bytes).Warn("a node has more booked than it has")
	}
	log.Info("container " + how + ": booked as it is")
	if len(placement.Overcommitted) > 0 && !a.batch {
		c.pod.ticket = a.recordState() // only a whole state tells where bytes beyond a node's own are booked
		return nil
	}
	a.record(c.pod)
	return nil
}

// unbook frees a container that must not have a booking.
func (a *Agent) unbook(c *container) {
	if a.manager != nil && a.manager.Release(keyOf(c.pod.Pod), c.name) {
		a.record(c.pod)
	}
}

// record hands the pod's bookings to the checkpoint. The lock is held, so that decisions arrive in their order.
func (a *Agent) record(p *pod) {
	if a.anyShort {
		a.poke() // memory may have been released
	}
	if a.batch || !a.records() {
		return
	}
	key := keyOf(p.Pod)
	p.ticket = a.writer.Submit(a.manager.Nodes(), key, a.manager.Entries(key))
}

// records reports whether decisions go to the disk.
func (a *Agent) records() bool {
	return a.writer != nil && a.manager != nil && !a.resolved.Config.DryRun
}

// recordState hands all bookings to the checkpoint.
func (a *Agent) recordState() checkpoint.Ticket {
	if !a.records() {
		return checkpoint.Ticket{}
	}
	return a.writer.Replace(a.manager.State())
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

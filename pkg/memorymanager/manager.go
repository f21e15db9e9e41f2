package memorymanager

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Manager keeps the node map and the allocations. It is not safe for concurrent use: its owner holds one lock.
//
// The nodes that have allocations are partitioned into groups. A container is placed on exactly one group, on one node that is
// a group by itself, or on unused nodes, which then become a group.
//
// Aligned as the kubelet does (AlignToKubelet), a container whose affinity is one node of a group is put on that node alone.
// The node is then a group by itself as well, and no new container gets the wider group until all of it is released.
type Manager struct {
	options Options // with the defaults of what is empty
	rules   topologymanager.Rules
	// overlaps is set where one node of a group may be a container's.
	overlaps   bool
	budget     int
	nodeMemory []deficit.NodeMemory // for the strategy LeastUsed; nil when it is not known

	all       nodeset.Set
	columns   []*column
	distances *distances

	nodeGroups

	pods []*pod // sorted by UID

	hints   hints
	bounded uint64
}

// nodeGroups say which nodes are used together, by node.
type nodeGroups struct {
	assignments [nodeset.Max]int
	groups      [nodeset.Max]nodeset.Set
	// unused are the nodes without assignments.
	unused nodeset.Set
	// mixed are the nodes of groups whose containers do not all span the whole group, which are only adopted or restored ones.
	mixed nodeset.Set
}

// ungrouped are nodes without assignments.
func ungrouped(nodes nodeset.Set) (g nodeGroups) {
	g.unused = nodes
	for id := range nodes.All() {
		g.groups[id] = nodeset.Of(id)
	}
	return g
}

// pod holds its containers in the order in which they were allocated.
type pod struct {
	uid        string
	containers []container
	// blocks are the pod's own allocation, and its containers' blocks are parts of it; nil without pod-level resources.
	blocks []Block
	// affinity is what AlignPod decided.
	affinity *topologymanager.Hint
}

func (p *pod) compare(uid string) int { return cmp.Compare(p.uid, uid) }

type container struct {
	name   string
	kind   memoryqos.Kind
	blocks []Block
}

// New returns a manager of the given nodes without allocations. It refuses node ids that are out of range or there twice,
// and a node whose reservation and huge page pools together exceed its memory.
func New(nodes []NodeCapacity, opts Options) (*Manager, error) {
	opts = opts.completed()
	m := &Manager{
		options: opts, rules: opts.Policy.Rules(), overlaps: opts.AlignTo == topologymanager.AlignToKubelet, budget: searchBudget,
	}
	var err error
	if m.all, m.columns, err = columns(nodes); err != nil {
		return nil, fmt.Errorf("check NUMA nodes: %w", err)
	}
	if opts.PreferClosest {
		if m.distances, err = newDistances(nodes, m.all); err != nil {
			return nil, fmt.Errorf("check NUMA distances: %w", err)
		}
	}
	m.clear()
	return m, nil
}

// completed are the options with the defaults of what is empty. The configuration has refused names that are not known.
func (o Options) completed() Options {
	o.Policy = cmp.Or(o.Policy, topologymanager.None)
	o.Scope = cmp.Or(o.Scope, topologymanager.ContainerScope)
	o.Strategy = cmp.Or(o.Strategy, topologymanager.NoStrategy)
	o.AlignTo = cmp.Or(o.AlignTo, topologymanager.AlignToCPUs)
	o.FallBack = o.FallBack && !o.Policy.Rules().Insists
	return o
}

// clear ends all allocations.
func (m *Manager) clear() {
	m.nodeGroups = ungrouped(m.all)
	for _, c := range m.columns {
		c.allocated = [nodeset.Max]uint64{}
	}
	m.pods = nil
}

func (m *Manager) column(name MemoryType) *column {
	for _, c := range m.columns {
		if c.name == name {
			return c
		}
	}
	return nil
}

// index is the place of a container in its pod, -1 where it is not there.
func (p *pod) index(name string) int {
	if p == nil {
		return -1
	}
	return slices.IndexFunc(p.containers, func(c container) bool { return c.name == name })
}

// container is one with an allocation; nil where there is none.
func (m *Manager) container(pod, name string) *container {
	p := m.known(pod)
	if i := p.index(name); i >= 0 {
		return &p.containers[i]
	}
	return nil
}

// pod returns the pod's record, a new one if need be.
func (m *Manager) pod(uid string) *pod {
	at, there := slices.BinarySearchFunc(m.pods, uid, (*pod).compare)
	if !there {
		m.pods = slices.Insert(m.pods, at, &pod{uid: uid})
	}
	return m.pods[at]
}

// known returns the pod's record; nil where there is none.
func (m *Manager) known(uid string) *pod {
	if at, there := slices.BinarySearchFunc(m.pods, uid, (*pod).compare); there {
		return m.pods[at]
	}
	return nil
}

// forget drops a pod's record once nothing is left in it.
func (m *Manager) forget(p *pod) {
	if at, there := slices.BinarySearchFunc(m.pods, p.uid, (*pod).compare); there && len(p.containers) == 0 && p.affinity == nil {
		m.pods = slices.Delete(m.pods, at, at+1)
	}
}

// Bounded counts the decisions that ran into the search budget.
func (m *Manager) Bounded() uint64 { return m.bounded }

// Blocks returns a container's allocations sorted by type; nil when it has none. PerNode is left out.
func (m *Manager) Blocks(pod, container string) []Block {
	if c := m.container(pod, container); c != nil {
		return copied(c.blocks)
	}
	return nil
}

// span are the nodes that a pod has allocations on.
func (p *pod) span() (nodes nodeset.Set) {
	for b := range p.counted() {
		nodes |= b.Nodes
	}
	return nodes
}

func span(blocks []Block) (nodes nodeset.Set) {
	for _, b := range blocks {
		nodes |= b.Nodes
	}
	return nodes
}

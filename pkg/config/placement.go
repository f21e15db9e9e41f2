package config

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"

	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// placement fills in what the Memory Manager needs.
func (r *Resolved) placement(m machine.Machine, keep sums) error {
	c := r.Config
	prefer, _ := strconv.ParseBool(c.TopologyManagerPolicyOptions[preferClosest])
	strategy, weights := c.strategy()
	r.Manager = memorymanager.Options{Policy: c.TopologyManagerPolicy, Scope: c.TopologyManagerScope, PreferClosest: prefer,
		FallBack: c.OnConflict != FollowKubelet, FollowCPUs: c.OnConflict != FollowKubelet, AlignTo: topologymanager.AlignTo(c.OnConflict),
		Strategy: strategy, Weights: weights}

	if err := r.leaveOut(m); err != nil {
		return err
	}
	r.Manager.Nearest = r.nearest(m)
	for i, node := range m.Nodes {
		capacity := memorymanager.NodeCapacity{ID: node.ID, Total: node.Memory}
		for _, pool := range node.Hugepages {
			capacity.Pools = append(capacity.Pools, memorymanager.Pool(pool))
		}
		if r.leaves(node.ID) {
			if c.onlyClaims() && node.Memory > 0 {
				r.ClaimNodes = append(r.ClaimNodes, capacity)
			}
			continue
		}
		for j, distance := range m.Nodes[i].Distances {
			if j < len(m.Nodes) && !r.leaves(m.Nodes[j].ID) {
				capacity.Distances = append(capacity.Distances, distance)
			}
		}
		r.Nodes = append(r.Nodes, capacity)
	}
	if len(r.Nodes) == 0 {
		return c.Errorf("nodesWithoutCPUs", "no NUMA node of this machine has both memory and CPUs; want Include")
	}
	if len(c.ReservedMemory) == 0 {
		return r.spread(keep)
	}
	if err := r.checkSums(keep); err != nil {
		return err
	}
	for i, entry := range c.ReservedMemory {
		if r.leaves(entry.NUMANode) {
			r.Warnings = append(r.Warnings, fmt.Sprintf("reservedMemory[%d]: NUMA node %d is left out: what is reserved on it is kept on no other node", i, entry.NUMANode))
		}
	}
	r.Reserved = c.ReservedMemory
	r.reserve()
	return nil
}

// leaveOut leaves out nodes without memory and, unless they are wanted, nodes without CPUs. A machine whose description
// has no CPUs at all says nothing.
func (r *Resolved) leaveOut(m machine.Machine) error {
	hasCPUs := func(n machine.Node) bool { return !n.CPUs.IsEmpty() }
	exclude := r.Config.NodesWithoutCPUs != IncludeNodes && slices.ContainsFunc(m.Nodes, hasCPUs)
	var without, empty []int
	for _, node := range m.Nodes {
		out := node.Memory == 0 || exclude && !hasCPUs(node)
		switch {
		case out && node.Memory > 0 && !(node.ID >= nodeset.Max && r.Config.NodesWithoutCPUs == ConfineNodes):
			without = append(without, node.ID)
		case node.ID >= nodeset.Max && (node.Memory > 0 || hasCPUs(node)):
			key := "memoryManagerPolicy"
			if !hasCPUs(node) {
				key = "nodesWithoutCPUs"
			}
			return r.Config.Errorf(key, "NUMA node %d cannot be placed on: Static has nodes 0 to %d, as in the kubelet; want None (profile: QoS), or nodesWithoutCPUs: Exclude where it has no CPUs",
				node.ID, nodeset.Max-1)
		}
		if node.Memory == 0 && hasCPUs(node) {
			empty = append(empty, node.ID)
		}
		if out {
			r.LeftOut = r.LeftOut.Union(nodeset.Of(node.ID))
		}
	}
	if len(without) > 0 {
		are := "left out"
		if r.Config.onlyClaims() {
			are = "for resource claims only"
		}
		r.Warnings = append(r.Warnings, fmt.Sprintf("NUMA nodes without CPUs are %s (nodesWithoutCPUs: %s): %s", are, r.Config.NodesWithoutCPUs, cpuset.New(without...)))
	}
	if len(empty) > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("NUMA nodes with CPUs and without memory are left out: %s", cpuset.New(empty...)))
	}
	return nil
}

// onlyClaims reports whether the nodes that leaveOut leaves out have their memory for resource claims.
func (c Config) onlyClaims() bool { return c.DRA.Enabled && c.NodesWithoutCPUs == ConfineNodes }

// leaves reports whether a node is not in the node map.
func (r *Resolved) leaves(id int) bool { return id >= nodeset.Max || r.LeftOut.Has(id) }

// nearest returns, for each node that is left out, the nodes of the map at the smallest distance.
func (r *Resolved) nearest(m machine.Machine) map[int]memorymanager.Nearest {
	all := map[int]memorymanager.Nearest{}
	for _, node := range m.Nodes {
		if !r.leaves(node.ID) || len(node.Distances) != len(m.Nodes) {
			continue
		}
		nearest := memorymanager.Nearest{Why: "has no memory"}
		if node.Memory > 0 {
			nearest.Why = "has no CPUs and is left out"
		}
		least := math.MaxInt
		for i, distance := range node.Distances {
			switch other := m.Nodes[i].ID; {
			case r.leaves(other) || distance > least:
			case distance < least:
				least, nearest.Nodes = distance, nodeset.Of(other)
			default:
				nearest.Nodes = nearest.Nodes.Union(nodeset.Of(other))
			}
		}
		all[node.ID] = nearest
	}
	return all
}

// checkReserved checks each entry of reservedMemory against the node that it names.
func (c Config) checkReserved(m machine.Machine) error {
	if c.MemoryManagerPolicy != MemoryManagerStatic {
		return nil
	}
	var errs []error
	for i, entry := range c.ReservedMemory {
		field := fmt.Sprintf("reservedMemory[%d]", i)
		at := slices.IndexFunc(m.Nodes, func(n machine.Node) bool { return n.ID == entry.NUMANode })
		if at < 0 {
			errs = append(errs, c.Errorf(field+".numaNode", "this machine has no NUMA node %d, only %s", entry.NUMANode, m.NodeIDs()))
			continue
		}
		for _, memoryType := range slices.Sorted(maps.Keys(entry.Limits)) {
			errs = append(errs, c.checkLimit(field+".limits."+memoryType, m.Nodes[at], memoryType, uint64(entry.Limits[memoryType])))
		}
	}
	return strictyaml.Join(errs...)
}

// checkLimit checks what is reserved of one type of a node's memory.
func (c Config) checkLimit(limit string, node machine.Node, memoryType string, bytes uint64) error {
	if memoryType == string(memorymanager.Memory) {
		pools := uint64(0)
		for _, pool := range node.Hugepages {
			pools += pool.PageSize * pool.Count
		}
		return c.check(limit, bytes <= node.Memory-min(pools, node.Memory), "%s and huge pages of %s are more than the %s of NUMA node %d",
			amount(bytes), amount(pools), amount(node.Memory), node.ID)
	}
	pool := slices.IndexFunc(node.Hugepages, func(p machine.Pool) bool { return memoryType == string(memorymanager.Hugepages(p.PageSize)) })
	if pool < 0 {
		return c.Errorf(limit, "NUMA node %d has no %s", node.ID, strictyaml.Quote(memoryType))
	}
	size := node.Hugepages[pool].PageSize * node.Hugepages[pool].Count
	return c.check(limit, bytes <= size, "%s are more than the %s that NUMA node %d has", amount(bytes), amount(size), node.ID)
}

// checkSums compares what reservedMemory keeps of each type with Node Allocatable, where that is given.
func (r *Resolved) checkSums(keep sums) error {
	c := r.Config
	total := map[string]uint64{}
	for _, entry := range c.ReservedMemory {
		for memoryType, bytes := range entry.Limits {
			total[memoryType] += uint64(bytes)
		}
	}
	if total["memory"] == 0 {
		return c.Errorf("reservedMemory", "no memory is reserved: memoryManagerPolicy Static needs some on at least one NUMA node")
	}
	types := c.reservedTypes(keep)
	if !c.reserves(keep) {
		delete(types, "memory")
	}
	for _, memoryType := range slices.Sorted(maps.Keys(types)) {
		if got, want := total[memoryType], types[memoryType]; got != want.total() { // refused by the kubelet, too
			return c.Errorf("reservedMemory", "the NUMA nodes' %s adds up to %s, but %s: make them equal", memoryType, amount(got), want)
		}
	}
	return nil
}

// reservedTypes are the sums of memory and of each size of huge pages that kubeReserved or systemReserved names.
func (c Config) reservedTypes(memory sums) map[string]sums {
	types := map[string]sums{"memory": memory}
	for _, list := range []map[string]string{c.KubeReserved, c.SystemReserved} {
		for resource := range list {
			if resource != "memory" && isMemoryType(resource) {
				types[resource] = sums{kube: reserved(c.KubeReserved, resource), system: reserved(c.SystemReserved, resource)}
			}
		}
	}
	return types
}

// reserves reports whether one of kubeReserved, systemReserved and evictionHard is set.
func (c Config) reserves(keep sums) bool {
	return keep.kube+keep.system > 0 || c.Origin.EvictionHard || !maps.Equal(c.EvictionHard, defaultEvictionHard())
}

// reserve puts r.Reserved into the nodes.
func (r *Resolved) reserve() {
	for _, entry := range r.Reserved {
		for _, nodes := range [][]memorymanager.NodeCapacity{r.Nodes, r.ClaimNodes} {
			for i := range nodes {
				if nodes[i].ID != entry.NUMANode {
					continue
				}
				for memoryType, bytes := range entry.Limits {
					nodes[i].Reserved = nodes[i].Reserved.AtLeast(memorymanager.Amount{Type: memorymanager.MemoryType(memoryType), Bytes: uint64(bytes)})
				}
			}
		}
	}
}

// spread keeps the sum of Node Allocatable in proportion to the nodes' memory, and its huge pages in proportion to their pools.
func (r *Resolved) spread(keep sums) error {
	if keep.total() == 0 {
		return r.Config.Errorf("reservedMemory", "no memory is reserved: memoryManagerPolicy Static needs reservedMemory, kubeReserved, systemReserved or evictionHard")
	}
	for _, node := range r.Nodes {
		r.Reserved = append(r.Reserved, Reservation{NUMANode: node.ID, Limits: map[string]ReservedBytes{}})
	}
	types := r.Config.reservedTypes(keep)
	for _, memoryType := range slices.Sorted(maps.Keys(types)) {
		weights, room, page := r.roomFor(memoryType)
		shares, ok := proportional(types[memoryType].total(), weights, room, page)
		if !ok {
			where := "the NUMA nodes' " + memoryType
			if memoryType == "memory" {
				where = "what huge pages leave of the NUMA nodes' memory"
			}
			return r.Config.Errorf(types[memoryType].largest(), "%s do not fit %s", types[memoryType], where)
		}
		for i, share := range shares {
			if share > 0 {
				r.Reserved[i].Limits[memoryType] = ReservedBytes(share)
			}
		}
	}
	r.Reserved = slices.DeleteFunc(r.Reserved, func(on Reservation) bool { return len(on.Limits) == 0 })
	r.reserve()
	if !r.Config.reserves(keep) && len(types) == 1 {
		return nil // by default
	}
	r.Warnings = append(r.Warnings, fmt.Sprintf("reservedMemory is not set: %s are spread over the NUMA nodes in proportion to their memory: %s", keep, r.Reserved))
	return nil
}

// roomFor has how many bytes of a type of memory each node has, and can reserve. page is the size of a page in bytes.
func (r *Resolved) roomFor(memoryType string) (all, room []uint64, page uint64) {
	page = r.QoS.PageSize
	for _, node := range r.Nodes {
		pooled, rest := uint64(0), node.Total
		for _, pool := range node.Pools {
			size := pool.PageSize * pool.Count
			if rest -= min(size, rest); memoryType == string(memorymanager.Hugepages(pool.PageSize)) {
				pooled, page = size, pool.PageSize
			}
		}
		if memoryType == "memory" {
			all, room = append(all, node.Total), append(room, rest)
		} else {
			all, room = append(all, pooled), append(room, pooled)
		}
	}
	return all, room, page
}

// proportional splits a sum by weights into whole pages; the pages that rounding leaves over go to the first nodes that
// have room, one each, and what is less than a page to one of them. No share exceeds its room. False when the sum does not
// fit.
func proportional(sum uint64, weights, room []uint64, page uint64) ([]uint64, bool) {
	page = max(page, 1)
	shares := make([]uint64, len(weights))
	var whole uint64
	for _, weight := range weights {
		whole += weight // bounded by the machine's memory, which is less than 2^63
	}
	rest := sum
	for i := range shares {
		high, low := bits.Mul64(sum, weights[i])
		share := uint64(math.MaxUint64)
		if high < whole {
			share, _ = bits.Div64(high, low, whole)
		}
		shares[i] = min(share/page*page, room[i]/page*page, rest)
		rest -= shares[i]
	}
	for rest > 0 {
		before := rest
		// Large rests, of nodes without room, are split again; the last pages go one by one.
		step := max(rest/uint64(len(shares))/page*page, page)
		for i := range shares {
			more := min(step, rest, room[i]-shares[i])
			shares[i] += more
			rest -= more
		}
		if rest == before {
			return nil, false
		}
	}
	return shares, true
}

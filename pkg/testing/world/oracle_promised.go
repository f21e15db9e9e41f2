package world

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

const (
	promisedOnce Promise = "no byte of a NUMA node is promised twice"
	pinned       Promise = "a Guaranteed container that must be placed is pinned"
	allocated    Promise = "a container may use the NUMA nodes of its allocation alone"
	confined     Promise = "a container without an allocation keeps off NUMA nodes without CPUs where it must"
	released     Promise = "a container without an allocation may use all NUMA nodes, unless it is confined"
	nearest      Promise = "under single-numa-node memory is nearest to the CPUs"
	keeps        Promise = "a pod keeps its allocations until it ends"
	undone       Promise = "what a configuration took from a container it has again once that is undone"
)

// promisedOnce looks, for each set of NUMA nodes that is not all with memory, whether the containers that may use these alone have limits beyond
// their memory. Whoever may use all nodes may be there without an allocation.
func (n *simulation) promisedOnce() {
	nodes := len(n.scenario.Machine.Nodes)
	type held struct {
		who   string
		nodes int // bits
		bytes uint64
	}
	var all []held
	file := n.stateFile()
	claimed := map[int]uint64{} // by NUMA node
	if n.drives() {
		for _, h := range n.preparedClaims() {
			if h.prepared.Before(n.claims) { // others may have had its memory meanwhile
				continue
			}
			for _, node := range h.nodes {
				all = append(all, held{h.object, 1 << node, h.Memory})
				claimed[node] += h.Memory
			}
		}
	}
	for _, p := range n.kubelet.Pods() {
		if p.Class != "Guaranteed" {
			continue
		}
		for _, c := range p.Containers {
			if n.byClaims(c) { // which have its memory
				continue
			}
			bits := bits(n.text(c.Cgroup, "cpuset.mems"))
			// An init container that runs again, in a new sandbox, has the place of the app containers and what is free there.
			if c.Spec.Kind == memoryqos.Init && n.hasChange(p, NewSandbox) && bits&^file.others(p.UID, c.Spec.Name) == 0 {
				continue
			}
			bytes := min(n.limit(c), p.part(c.Spec))
			if !p.PodLevel() && c.Spec.Kind != memoryqos.Init { // one whose resize is pending is to be let to all NUMA nodes, in time
				bytes = min(bytes, cmp.Or(file.memory(p.UID, c.Spec.Name), bytes))
			}
			for _, whole := range file.PodEntries[p.UID].MemoryBlocks { // which the resize of a pod leaves as it is
				if whole.Type == "memory" {
					bytes = min(bytes, whole.Size)
				}
			}
			if bits != 0 && !(bits == n.confinedTo() && file.nodes(p.UID, c.Spec.Name) == 0) {
				all = append(all, held{p.Name + "/" + c.Spec.Name, bits, bytes})
			}
		}
	}
	for id, node := range file.MachineState {
		for kind, m := range node.MemoryMap {
			if m.Reserved > m.Allocatable {
				n.broken(promisedOnce, "the state file has %d bytes of %s allocated on NUMA node %d, which has %d", m.Reserved, kind, id, m.Allocatable)
			}
			if has, pods := n.scenario.Machine.Nodes[id].plain(), file.on(id); kind == "memory" && pods+claimed[id] > has {
				n.broken(promisedOnce, "the state file has %dMi allocated on NUMA node %d and claims %dMi, of %dMi", pods/mi, id, claimed[id]/mi, has/mi)
			}
			if has := n.scenario.Machine.Nodes[id].plain(); kind == "memory" && claimed[id] > 0 && m.Allocatable+claimed[id] > has && !n.trouble.calm(fits, time.Now()).After(time.Now()) {
				n.broken(promisedOnce, "the state file has %dMi for pods on NUMA node %d, and claims have %dMi, of %dMi", m.Allocatable/mi, id, claimed[id]/mi, has/mi)
			}
		}
	}
	for set := 1; set < 1<<nodes-1; set++ {
		if n.withMemory()&^set == 0 {
			continue
		}
		var size, sum uint64
		var who []string
		for i, node := range n.scenario.Machine.Nodes {
			if set&(1<<i) != 0 {
				size += node.plain()
			}
		}
		for _, h := range all {
			if h.nodes&^set == 0 {
				sum += h.bytes
				who = append(who, fmt.Sprintf("%s %dMi", h.who, h.bytes/mi))
			}
		}
		if sum > size {
			n.broken(promisedOnce, "NUMA nodes %0*b have %dMi, promised to %s", nodes, set, size/mi, strings.Join(who, ", "))
		}
	}
}

// part is what a container has of its pod's limit at most: where that is the pod's own and the container has none, the first of these has what
// the others leave of it.
func (p LivePod) part(c pods.Container) uint64 {
	if !p.PodLevel() || p.PodLimit == nil || c.Limit > 0 {
		return noLimit
	}
	left, first := *p.PodLimit, true
	for _, other := range p.Pod.Containers {
		left -= min(left, other.Limit)
		if other.Limit == 0 && other.Name == c.Name {
			break
		}
		first = first && other.Limit > 0
	}
	if !first {
		return 0
	}
	return left
}

// others are the NUMA nodes on which the other containers of a pod have allocations.
func (f stateFile) others(uid, container string) (bits int) {
	for name := range f.Entries[uid] {
		if name != container {
			bits |= f.nodes(uid, name)
		}
	}
	return bits
}

// nodes are the NUMA nodes on which a container has allocations.
func (f stateFile) nodes(uid, container string) (bits int) {
	for _, block := range f.Entries[uid][container] {
		for _, node := range block.NUMAAffinity {
			bits |= 1 << node
		}
	}
	return bits
}

// memory is how many bytes of memory a container is allocated.
func (f stateFile) memory(uid, container string) (sum uint64) {
	for _, block := range f.Entries[uid][container] {
		if block.Type == "memory" {
			sum += block.Size
		}
	}
	return sum
}

// blocks are all allocations: one that a pod's containers share, or have parts of, is there once.
func (f stateFile) blocks() (all []block) {
	for pod, containers := range f.Entries {
		if _, whole := f.PodEntries[pod]; whole {
			continue
		}
		for _, of := range containers {
			all = append(all, of...)
		}
	}
	for _, whole := range f.PodEntries {
		all = append(all, whole.MemoryBlocks...)
	}
	return all
}

// on are the bytes of memory that are allocated on a NUMA node, also where that is more than the node map has for pods.
func (f stateFile) on(node int) (sum uint64) {
	for _, b := range f.blocks() {
		if b.Type != "memory" || !slices.Contains(b.NUMAAffinity, node) {
			continue
		}
		if len(b.NUMAAffinity) > 1 {
			return f.MachineState[node].MemoryMap["memory"].Reserved
		}
		sum += b.Size
	}
	return max(sum, f.MachineState[node].MemoryMap["memory"].Reserved)
}

// whereAllocated looks whether containers may use the NUMA nodes of their allocations, and no others. One that is allocated less than its
// limit may use all: its resize is pending. That does not count where the resize of a pod leaves its allocation as it was, nor for an init
// container, whose memory those after it take over. Nor is one judged that a slow runtime is about to update.
func (n *simulation) whereAllocated(see seer) {
	if !n.settings().places() {
		return
	}
	file, confinedTo := n.stateFile(), n.confinedTo()
	for p, c := range n.containers() {
		if n.byClaims(c) || !n.runs(c) || !n.seesPlaced(c.Since) || c.Resizing && n.scenario.Runtime.Updates > 0 {
			continue
		}
		want, mems := file.nodes(p.UID, c.Spec.Name), n.text(c.Cgroup, "cpuset.mems")
		if want != 0 && !p.PodLevel() && c.Spec.Kind != memoryqos.Init && file.memory(p.UID, c.Spec.Name) < cmp.Or(n.limit(c), c.Spec.Limit) {
			want = n.withMemory()
		}
		if want != 0 && bits(mems) != want && n.kernel.mapped(c.Cgroup, n.withMemory()&^want) <= mostMoved {
			see(allocated, p.Name+"/"+c.ID, "has cpuset.mems %q and %+v", mems, file.Entries[p.UID][c.Spec.Name])
		}
		if want == 0 && !p.PodLevel() && confinedTo != 0 && bits(mems) != confinedTo && !n.takenOver(c) {
			see(confined, p.Name+"/"+c.ID, "has cpuset.mems %q, want the NUMA nodes %b", mems, confinedTo)
		}
		if want == 0 && !p.PodLevel() && confinedTo == 0 && mems != "" && n.withMemory()&^bits(mems) != 0 {
			see(released, p.Name+"/"+c.ID, "has cpuset.mems %q", mems)
		}
	}
}

// keepsAllocations looks for containers of living pods that have lost an allocation, or have it on other NUMA nodes, which another configuration or a
// resize may do.
func (n *simulation) keepsAllocations(see seer) {
	if !n.settings().places() || time.Now().Before(n.placed) {
		n.nodes = nil
		return
	}
	has, file := map[string]int{}, n.stateFile()
	for _, p := range n.kubelet.Pods() {
		if p.PodLevel() || p.Ending || len(p.Claims) > 0 || n.hasChange(p, Resize) {
			continue
		}
		for _, c := range p.Pod.Containers {
			if c.Kind == memoryqos.Init {
				continue
			}
			who := p.UID + "/" + c.Name
			now, before := file.nodes(p.UID, c.Name), n.nodes[who]
			if has[who] = cmp.Or(before, now); before != 0 && now != before {
				see(keeps, who, "of %s has NUMA nodes %b allocated, and had %b", p.Name, now, before)
			}
		}
	}
	n.nodes = has
}

// allocatedUnder are the NUMA nodes that are allocated, by container ID, for each configuration that a life of the daemon has had.
type allocatedUnder struct {
	by      *life
	configs map[string]map[string]int
}

// reconfigured notes what is allocated before another configuration is read. If that was in force before, containers that had NUMA nodes then have
// them again a little later, if there is room.
func (n *simulation) reconfigured(config string) {
	const later = 2 * time.Second
	now, by, file := map[string]int{}, n.current(), n.stateFile()
	for p, c := range n.containers() {
		if !p.PodLevel() && len(p.Claims) == 0 && !n.hasChange(p, Resize) {
			now[c.ID] = file.nodes(p.UID, c.Spec.Name)
		}
	}
	if n.under.by != by {
		n.under = allocatedUnder{by, map[string]map[string]int{}}
	}
	had := n.under.configs[config]
	n.under.configs[n.config] = now
	time.AfterFunc(later, func() {
		n.judge(func() {
			if n.current() != by || n.config != config || !n.settings().places() || n.trouble.calm(fits, time.Now()).After(time.Now().Add(-later)) {
				return
			}
			file := n.stateFile()
			for p, c := range n.containers() {
				was, has := had[c.ID], file.nodes(p.UID, c.Spec.Name)
				if was != 0 && was != has && n.runs(c) && file.free(was) >= n.limit(c) {
					n.broken(undone, "%s/%s had the NUMA nodes %b, and has %b", p.Name, c.Spec.Name, was, has)
				}
			}
		})
	})
}

// free are the bytes of memory that are left for allocations on NUMA nodes.
func (f stateFile) free(nodes int) (sum uint64) {
	for id, node := range f.MachineState {
		if nodes&(1<<id) != 0 {
			sum += node.MemoryMap["memory"].Free
		}
	}
	return sum
}

// takenOver reports whether a container was there before the daemon, which may take what a lost journal does not name for the kubelet's.
func (n *simulation) takenOver(c LiveContainer) bool {
	return c.Since.Before(n.current().since) && n.scenario.endsDuring(DiskHangs, DiskFails)
}

// withMemory are the NUMA nodes that have memory and CPUs: the others are left out.
func (n *simulation) withMemory() (bits int) {
	for i, node := range n.scenario.Machine.Nodes {
		if node.Memory > 0 && node.CPUs > 0 {
			bits |= 1 << i
		}
	}
	return bits
}

// confinedTo are the NUMA nodes that a container without an allocation may use; none where that is all.
func (n *simulation) confinedTo() int {
	bare := slices.ContainsFunc(n.scenario.Machine.Nodes, func(node NUMANode) bool { return node.Memory > 0 && node.CPUs == 0 })
	if s := n.settings(); !bare || !s.places() || s.WithoutCPUs != "Confine" {
		return 0
	}
	return n.withMemory()
}

// bits are the NUMA nodes of a cpuset.mems.
func bits(mems string) (bits int) {
	set, err := nodeset.Parse(mems)
	if err != nil {
		return 0
	}
	for id := range set.All() {
		bits |= 1 << id
	}
	return bits
}

// pinned looks for Guaranteed containers without NUMA nodes of their own where the policy rejects what cannot be placed.
func (n *simulation) pinned() {
	s := n.settings()
	if !slices.Contains([]string{"restricted", "single-numa-node"}, s.Policy) || !s.places() || s.OnFull == "Unpinned" {
		return
	}
	// A pod keeps what it was allocated under another policy.
	single := strings.Contains(n.scenario.Config, "single-numa-node") && !slices.ContainsFunc(n.scenario.Faults, func(f Fault) bool {
		return f.Kind == NewConfig && !strings.Contains(f.Target, "single-numa-node")
	})
	for _, p := range n.kubelet.Pods() {
		if p.Class != "Guaranteed" || p.PodLevel() || s.wish(p, "numa") != "" {
			continue
		}
		for _, c := range p.Containers {
			if n.byClaims(c) || !n.seesPlaced(c.Since) || !n.runs(c) {
				continue
			}
			mems := n.text(c.Cgroup, "cpuset.mems")
			if mems == "" {
				n.broken(pinned, "%s/%s has no cpuset.mems", p.Name, c.ID)
			}
			pending := n.stateFile().memory(p.UID, c.Spec.Name) < cmp.Or(n.limit(c), c.Spec.Limit) // it may use all NUMA nodes
			if single && strings.ContainsAny(mems, ",-") && !pending {
				n.broken(pinned, "%s/%s has cpuset.mems %s under single-numa-node", p.Name, c.ID, mems)
			}
			if want := n.nearest(c.CPUs); single && !pending && len(p.Pod.Containers) == 1 && want != "" && mems != want {
				n.broken(nearest, "%s/%s has CPUs %v and cpuset.mems %s, want %s", p.Name, c.ID, c.CPUs, mems, want)
			}
		}
	}
}

// nearest is the NUMA node with memory that is nearest to CPUs of one node; "" where they are of several, or there are none.
func (n *simulation) nearest(cpus []int) string {
	next := 0
	for id, node := range n.scenario.Machine.Nodes {
		first, last := next, next+node.CPUs-1
		next += node.CPUs
		if len(cpus) == 0 || slices.Min(cpus) < first || slices.Max(cpus) > last {
			continue
		}
		if node.Memory == 0 && node.Near != nil {
			id = *node.Near
		}
		return strconv.Itoa(id)
	}
	return ""
}

// limit is the memory.max of a container in bytes, 0 where there is none.
func (n *simulation) limit(c LiveContainer) uint64 {
	if limit := n.kernel.number(c.Cgroup, "memory.max"); limit != noLimit {
		return limit
	}
	return 0
}

// spec is a pod as the scenario has it.
func (n *simulation) spec(p LivePod) Pod {
	for _, spec := range n.scenario.Pods {
		if spec.Name == p.Name && spec.Namespace == p.Namespace {
			return spec
		}
	}
	return Pod{}
}

func (n *simulation) hasChange(p LivePod, kind string) bool {
	return slices.ContainsFunc(n.spec(p).Changes, func(c Change) bool { return c.Kind == kind })
}

// beyond are the bytes of allocations on several NUMA nodes, a node among them, for which the node map has no room: a share for claims came later.
// The file does not say which of the nodes has them.
func (f stateFile) beyond(node int) (bytes uint64) {
	several := false
	for _, b := range f.blocks() {
		if b.Type == "memory" {
			bytes += b.Size
			several = several || len(b.NUMAAffinity) > 1 && slices.Contains(b.NUMAAffinity, node)
		}
	}
	if !several {
		return 0
	}
	for _, state := range f.MachineState {
		bytes = less(bytes, state.MemoryMap["memory"].Reserved)
	}
	return bytes
}

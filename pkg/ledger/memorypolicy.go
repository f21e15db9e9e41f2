package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cover"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Covered is what the NUMA nodes owe to allocations and what covers it, as observed; no nodes when that is not known.
type Covered struct{ Nodes []cover.Node }

func (e Covered) apply(l *Ledger) {
	if l.manager != nil {
		l.manager.Observe(e.Nodes)
	}
}

// MemoryPolicy is a NUMA memory policy with which a container's process starts (set_mempolicy(2)). The zero value sets none.
type MemoryPolicy struct {
	Mode  MemoryPolicyMode
	Nodes nodeset.Set
}

// MemoryPolicyMode is a mode by its name in the OCI runtime specification.
type MemoryPolicyMode string

// The modes that are set.
const (
	PreferredMany      MemoryPolicyMode = "MPOL_PREFERRED_MANY"
	Interleave         MemoryPolicyMode = "MPOL_INTERLEAVE"
	WeightedInterleave MemoryPolicyMode = "MPOL_WEIGHTED_INTERLEAVE"
)

// String is the mode and its nodes; "" for none.
func (p MemoryPolicy) String() string {
	return strings.TrimSpace(string(p.Mode) + " " + p.Nodes.String())
}

// SetsMemoryPolicies reports whether a new container of a pod may start with a memory policy.
func (l *Ledger) SetsMemoryPolicies(pod Pod) bool {
	brought := pod.Brought
	if p := l.pods[pod.Key()]; p != nil && brought == nil {
		brought = p.brought
	}
	asks := brought != nil && !brought.Annotations.Empty()
	return l.runtime.MemoryPolicies && (asks || l.resolved.Config.UnpinnedMemoryPolicy != config.PolicyNone)
}

// memoryPolicy is the policy with which a container without nodes of its own starts, or why it has none although one is
// configured or asked for. allowed are the nodes that its pod may use: the kernel refuses a policy without one of them, and the
// container would not start.
func (l *Ledger) memoryPolicy(c *container, allowed nodeset.Set) (policy MemoryPolicy, why string) {
	wanted := cmp.Or(c.wishes.MemoryPolicy, l.resolved.Config.UnpinnedMemoryPolicy)
	prefers := c.wishes.MemoryPolicy == "" && c.wishes.NUMA == config.NUMAPreferred && c.pod.class() == memoryqos.Burstable
	if prefers {
		wanted = numaPreferred
	}
	switch {
	case !c.nodes.Empty() || wanted == config.PolicyNone:
		return MemoryPolicy{}, ""
	case !l.runtime.MemoryPolicies:
		return MemoryPolicy{}, fmt.Sprintf("%s: %s %s applies none", wanted, l.runtime.Name, l.runtime.Version)
	case allowed.Empty():
		return MemoryPolicy{}, fmt.Sprintf("%s: the nodes that the pod may use cannot be read", wanted)
	case prefers:
		return l.preferBest(allowed)
	case wanted == config.PolicyPreferSlack:
		return l.preferSlack(c, allowed)
	}
	nodes := l.slack(0) & allowed
	if nodes.Empty() { // it is not known, or all nodes are in debt alike
		nodes = l.allNodes & allowed
	}
	if nodes.Empty() {
		return MemoryPolicy{}, fmt.Sprintf("%s: the pod may use no NUMA node with memory", wanted)
	}
	mode := Interleave
	if wanted == config.PolicyWeightedInterleave {
		mode = WeightedInterleave
	}
	return MemoryPolicy{mode, nodes}, ""
}

// numaPreferred stands for the annotation numa: preferred of a Burstable pod.
const numaPreferred config.MemoryPolicy = "numa preferred"

// preferBest prefers the one NUMA node that has most room for another container, in the node map and in the kernel. Nothing is
// allocated there: pinned containers may still have all of it.
func (l *Ledger) preferBest(allowed nodeset.Set) (MemoryPolicy, string) {
	if l.manager == nil {
		return MemoryPolicy{}, "numa preferred: memoryManagerPolicy is None"
	}
	room := map[int]uint64{}
	for _, node := range l.manager.Nodes() {
		for _, table := range node.Memory {
			if table.Type == memorymanager.Memory && allowed.Has(node.ID) {
				room[node.ID] = table.Free
			}
		}
	}
	for _, node := range l.manager.Cover() {
		room[node.ID] = min(room[node.ID], node.Slack())
	}
	best, most := 0, uint64(0)
	for _, id := range slices.Sorted(maps.Keys(room)) {
		if room[id] > most {
			best, most = id, room[id]
		}
	}
	if most == 0 {
		return MemoryPolicy{}, "numa preferred: no NUMA node has room"
	}
	return MemoryPolicy{PreferredMany, nodeset.Of(best)}, ""
}

// preferSlack prefers the nodes whose slack has room for the container's request, else those that have any.
func (l *Ledger) preferSlack(c *container, allowed nodeset.Set) (MemoryPolicy, string) {
	nodes := l.slack(c.request.Request) & allowed
	if nodes.Empty() {
		nodes = l.slack(0) & allowed
	}
	switch {
	case l.manager == nil || len(l.manager.Cover()) == 0:
		return MemoryPolicy{}, "PreferSlack: what the NUMA nodes owe is not known"
	case nodes.Empty():
		return MemoryPolicy{}, "PreferSlack: no NUMA node has slack"
	case (l.allNodes & allowed).SubsetOf(nodes):
		return MemoryPolicy{}, "PreferSlack: every NUMA node has slack"
	}
	return MemoryPolicy{PreferredMany, nodes}, ""
}

// slack are the nodes that have more than so many bytes beyond what they owe.
func (l *Ledger) slack(bytes uint64) (nodes nodeset.Set) {
	if l.manager == nil {
		return 0
	}
	for _, n := range l.manager.Cover() {
		if n.Slack() > bytes {
			nodes = nodes.Union(nodeset.Of(n.ID))
		}
	}
	return nodes
}

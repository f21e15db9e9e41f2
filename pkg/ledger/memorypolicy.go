package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// MemoryPolicy is the NUMA memory policy of a container's process at its start (set_mempolicy(2)). The zero value sets none.
type MemoryPolicy struct {
	Mode  MemoryPolicyMode
	Nodes nodeset.Set
}

// MemoryPolicyMode is the name of a mode in the OCI runtime specification.
type MemoryPolicyMode string

// The modes that are set.
const (
	PreferredMany      MemoryPolicyMode = "MPOL_PREFERRED_MANY"
	Interleave         MemoryPolicyMode = "MPOL_INTERLEAVE"
	WeightedInterleave MemoryPolicyMode = "MPOL_WEIGHTED_INTERLEAVE"
)

// String returns the mode and its nodes; "" for none.
func (p MemoryPolicy) String() string {
	return strings.TrimSpace(string(p.Mode) + " " + p.Nodes.String())
}

// setsMemoryPolicies reports whether a new container of a pod may start with a memory policy. hasDevices is also false until the devices
// have been looked up.
func (l *Ledger) setsMemoryPolicies(pod Pod, class memoryqos.QOSClass, g *Gathered, hasDevices bool) bool {
	pod, _ = g.of(pod)
	annotated := pod.Annotated
	if p := l.pods[pod.Key()]; p != nil && annotated == nil {
		annotated = p.Annotated
	}
	asks := annotated != nil && !annotated.Annotations.Empty() || len(l.rulesFor(pod).Defaults) > 0
	near := class != memoryqos.Guaranteed && hasDevices
	return l.state.Runtime.MemoryPolicies && (asks || near || l.state.Resolved.Config.UnpinnedMemoryPolicy != config.PolicyNone)
}

// The policies beside those that the configuration and the annotation memory-policy name.
const (
	// numaPreferred stands for the annotation numa: preferred of a Burstable pod.
	numaPreferred config.MemoryPolicy = "numa preferred"
	// nearDevices prefers the NUMA nodes of the container's devices.
	nearDevices config.MemoryPolicy = "device"
)

// memoryPolicies returns the policies with which a container may start; the first that can be set applies. A container with several nodes
// of its own is interleaved over them if its annotation says so. A Burstable pod that prefers a node prefers the nodes of its devices.
func (l *Ledger) memoryPolicies(c *container) []config.MemoryPolicy {
	class := c.pod.class()
	prefers := c.wishes().NUMA == config.NUMAPreferred && class == memoryqos.Burstable
	near := class != memoryqos.Guaranteed && c.wishes().NUMA != config.NUMANone && !nodesOfDevices(c).Empty() &&
		(prefers || l.state.Resolved.Config.OnConflict != config.FollowKubelet)
	last := l.state.Resolved.Config.UnpinnedMemoryPolicy
	switch {
	case !c.Nodes.Empty():
		if wish := c.wishes().MemoryPolicy; wish.Interleaves() && c.Nodes.Len() > 1 && !c.ByKubelet && len(c.PendingResize) == 0 {
			return []config.MemoryPolicy{wish}
		}
		return nil
	case c.wishes().MemoryPolicy != "":
		return []config.MemoryPolicy{c.wishes().MemoryPolicy}
	case prefers:
		last = numaPreferred
	}
	if near {
		return []config.MemoryPolicy{nearDevices, last}
	}
	return []config.MemoryPolicy{last}
}

// memoryPolicy returns the policy with which a container starts and its source, or why it has none although one is configured or requested.
// allowed are the nodes that its pod may use: if a policy has none of them, the kernel refuses it and the container does not start.
func (l *Ledger) memoryPolicy(c *container, request uint64, allowed nodeset.Set) (p Policy) {
	if !c.Confined.Empty() { // the kernel ignores a cpuset.mems that has none of the parent's nodes
		allowed = cmp.Or(allowed&c.Confined, allowed)
	}
	for _, wanted := range l.memoryPolicies(c) {
		if wanted == config.PolicyNone {
			continue
		}
		policy, why := l.policyOf(c, wanted, request, allowed)
		if policy != (MemoryPolicy{}) {
			return Policy{MemoryPolicy: policy, From: c.policyFrom(wanted)}
		}
		p.Without = cmp.Or(p.Without, fmt.Sprintf("%s: %s", wanted, why))
	}
	return p
}

// policyFrom names the source of a container's memory policy.
func (c *container) policyFrom(policy config.MemoryPolicy) string {
	switch {
	case policy == nearDevices:
		var near []string
		for _, device := range topologymanager.Join(c.Devices) {
			if !device.Nodes.Empty() {
				near = append(near, device.String())
			}
		}
		return "device " + strings.Join(near, ", ")
	case policy == numaPreferred:
		return "annotation numa"
	case c.wishes().MemoryPolicy != "":
		return "annotation memory-policy"
	}
	return "unpinnedMemoryPolicy"
}

// policyOf returns one policy for nodes that the container may use, or why it cannot be set.
func (l *Ledger) policyOf(c *container, wanted config.MemoryPolicy, request uint64, allowed nodeset.Set) (policy MemoryPolicy, why string) {
	switch {
	case !l.state.Runtime.MemoryPolicies:
		return MemoryPolicy{}, fmt.Sprintf("%s %s applies none", l.state.Runtime.Name, l.state.Runtime.Version)
	case allowed.Empty():
		return MemoryPolicy{}, "the nodes that the pod may use cannot be read"
	case wanted == nearDevices:
		return l.preferDevices(c, allowed)
	case wanted == numaPreferred:
		return l.preferBest(allowed)
	case wanted == config.PolicyPreferAvailable:
		return l.preferSlack(request, allowed)
	}
	nodes := l.slack(0) & allowed
	if !c.Nodes.Empty() {
		nodes = c.Nodes & allowed
	} else if nodes.Empty() { // unknown, or no node has slack
		nodes = l.allNodes & allowed
	}
	if nodes.Empty() {
		return MemoryPolicy{}, "the pod may use no NUMA node with memory"
	}
	mode := Interleave
	if wanted == config.PolicyWeightedInterleave {
		mode = WeightedInterleave
	}
	return MemoryPolicy{mode, nodes}, ""
}

// nodesOfDevices returns the NUMA nodes of a container's devices.
func nodesOfDevices(c *container) (nodes nodeset.Set) {
	for _, device := range c.Devices {
		nodes = nodes.Union(device.Nodes)
	}
	return nodes
}

// preferDevices prefers the nodes of the container's devices, except those without available memory beyond their allocations.
func (l *Ledger) preferDevices(c *container, allowed nodeset.Set) (MemoryPolicy, string) {
	usable := l.allNodes & allowed
	nodes := nodesOfDevices(c) & usable
	switch {
	case nodes.Empty():
		return MemoryPolicy{}, "the pod may not use the memory of " + nodesOfDevices(c).Named()
	case usable.SubsetOf(nodes):
		return MemoryPolicy{}, "its devices are near every NUMA node that the pod may use"
	case l.manager == nil || len(l.manager.NodeMemory()) == 0:
		return MemoryPolicy{PreferredMany, nodes}, ""
	case (nodes & l.slack(0)).Empty():
		return MemoryPolicy{}, nodes.Named() + " has no memory available beyond its allocations"
	}
	return MemoryPolicy{PreferredMany, nodes & l.slack(0)}, ""
}

// preferBest prefers the NUMA node with the most room, in the node map and in the kernel, for one more container. Nothing is allocated
// there: pinned containers may still use all of the node.
func (l *Ledger) preferBest(allowed nodeset.Set) (MemoryPolicy, string) {
	if l.manager == nil {
		return MemoryPolicy{}, "memoryManagerPolicy is None"
	}
	room := map[int]uint64{}
	for _, node := range l.manager.Nodes() {
		if allowed.Has(node.ID) {
			room[node.ID] = node.Of(memorymanager.Memory).Free
		}
	}
	for _, node := range l.manager.NodeMemory() {
		room[node.ID] = min(room[node.ID], node.Slack())
	}
	best, most := 0, uint64(0)
	for _, id := range slices.Sorted(maps.Keys(room)) {
		if room[id] > most {
			best, most = id, room[id]
		}
	}
	if most == 0 {
		return MemoryPolicy{}, "no NUMA node has room"
	}
	return MemoryPolicy{PreferredMany, nodeset.Of(best)}, ""
}

// preferSlack prefers the nodes whose slack has room for the request, or else any nodes with slack.
func (l *Ledger) preferSlack(request uint64, allowed nodeset.Set) (MemoryPolicy, string) {
	nodes := l.slack(request) & allowed
	if nodes.Empty() {
		nodes = l.slack(0) & allowed
	}
	switch {
	case l.manager == nil || len(l.manager.NodeMemory()) == 0:
		return MemoryPolicy{}, "what the NUMA nodes have available is not known"
	case nodes.Empty():
		return MemoryPolicy{}, "no NUMA node has memory available beyond its allocations"
	case (l.allNodes & allowed).SubsetOf(nodes):
		return MemoryPolicy{}, "every NUMA node has memory available beyond its allocations"
	}
	return MemoryPolicy{PreferredMany, nodes}, ""
}

// slack returns the nodes that have more than bytes available beyond their allocations.
func (l *Ledger) slack(bytes uint64) (nodes nodeset.Set) {
	if l.manager == nil {
		return 0
	}
	for _, n := range l.manager.NodeMemory() {
		if n.Slack() > bytes {
			nodes = nodes.Union(nodeset.Of(n.ID))
		}
	}
	return nodes
}

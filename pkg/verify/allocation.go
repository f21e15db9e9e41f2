package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// rejected finds containers that are not created because they could not be placed.
func rejected(n Node, r *Report) {
	for pod, c := range n.Document.Containers() {
		if c.State != status.Rejected || !n.audits(pod) {
			continue
		}
		newest := slices.IndexFunc(n.Document.Rejections, func(why ledger.Rejection) bool { return why.UID == pod.UID && why.Container == c.Name })
		if newest >= 0 {
			r.find(Note, "rejected", place{pod, c}.object(), "it is not created: "+memorymanager.InLine(n.Document.Rejections[newest].Text),
				"explain names what is in the way, and what helps")
		}
	}
}

// unpinned finds a container that runs on all nodes because it could not be placed.
func unpinned(n Node, c place, r *Report) {
	if c.Unplaced != "" {
		r.find(Warning, "unpinned", c.object(),
			"no NUMA nodes had room for it, and it runs without nodes of its own: "+memorymanager.InLine(c.Unplaced),
			"make room (end or shrink another pinned pod, or lower this one's request) and delete the pod, so that it is placed again; to have such containers rejected instead set onUnsatisfiable: Reject, or the annotation numa: required on the pod")
	}
}

// unanswered finds a container that was created while the plugin did not answer, or before it came.
func unanswered(n Node, c place, r *Report) {
	if c.Unanswered {
		r.find(Note, "unanswered", c.object(),
			"it was created without an answer of the plugin, and got its values and NUMA nodes while it ran",
			"nothing has to be done, unless its first pages should be on its nodes: then restart it; docs/failure-modes.md says when the plugin does not answer")
	}
}

// unscored finds a container that has the kubelet's oom_score_adj although another one is configured or requested.
func unscored(n Node, c place, r *Report) {
	if c.NoOOMScore != "" && !n.Document.Policy.DryRun {
		r.find(Note, "oom-score-adj", c.object(), "its processes have the kubelet's oom_score_adj: "+c.NoOOMScore,
			"restart the container; PriorityClasses need a pod API among requestSources, and oom_score_adj needs containerd 1.7.26 or CRI-O 1.32")
	}
}

// short finds a container that is allocated less than a resize asks for.
func short(n Node, c place, r *Report) {
	if len(c.PendingResize) > 0 {
		r.find(Warning, "pending-resize", c.object(),
			fmt.Sprintf("a resize found no room for %s on %s: that much is not allocated, and the container may use all nodes", c.PendingResize, c.AllocatedOn().Named()),
			"release memory there (end or shrink another pinned pod), or resize the container back: it is tried again by itself")
	}
}

// farther finds a container whose memory could be nearer to its CPUs or devices on NUMA nodes that have none to allocate.
func farther(n Node, c place, r *Report) {
	if c.Farther != "" {
		r.find(Warning, "memory-farther", c.object(),
			"its memory is farther than need be from its CPUs or devices: "+c.Farther,
			"make room there and delete the pod, so that it is placed again; to have it rejected instead of placed elsewhere set the annotation numa: required on the pod")
	}
}

// aboveClaim finds a container that may use more memory than its resource claims have.
func aboveClaim(n Node, c place, r *Report) {
	if above := c.AboveClaim(); above != "" {
		r.find(Warning, "above-claim", c.object(),
			above+": the rest is allocated nowhere and not protected",
			"set limits.memory of the container to what its claim asks for (if the claim counts as a request, to what it needs beside that), or ask for more in the claim; the chart's admission policy (dra.limits) refuses such pods")
	}
}

func lostClaims(n Node, r *Report) {
	if n.Document.Claims == nil || n.Pod != nil {
		return
	}
	for _, m := range n.Document.Claims.Claimable {
		if m.Claimed <= m.Capacity {
			continue
		}
		sizes := quantity.Apart(m.Claimed, m.Capacity)
		r.find(Warning, "claims-above-node", nodeset.Of(m.Node).Named(),
			fmt.Sprintf("resource claims have %s of %s, and the node has %s for them: memory was plugged out, a pool of huge pages made smaller, or the node left out (nodesWithoutCPUs)", sizes[0], m.Type, sizes[1]),
			"plug it in again, restore the configuration, or delete pods with claims on this node")
	}
}

// unmappedClaims finds a ResourceSlice that does not say that claims count as requests of pods although the configuration wants it.
func unmappedClaims(n Node, r *Report) {
	if n.Document.Claims == nil || n.Document.Claims.Unmapped == "" || n.Pod != nil {
		return
	}
	r.find(Warning, "node-allocatable", "dra.publishNodeAllocatable",
		"claims do not count as requests of their pods: "+n.Document.Claims.Unmapped,
		"switch on the feature gate DRANodeAllocatableResources of kube-apiserver, kube-scheduler and kubelet, and restart the kubelet last; or set dra.publishNodeAllocatable: false. Until then, ask for the same memory in claim and limit")
}

// cpus finds containers whose exclusive CPUs are on more NUMA nodes than the policy admits for their memory.
func cpus(n Node, r *Report) {
	policy := n.Document.Policy.TopologyManager
	if !topologymanager.Policy(policy).Rules().Insists {
		return
	}
	for pod, c := range n.Document.Containers() {
		if !n.audits(pod) || c.State != status.Running && c.State != status.Rejected || len(c.CPUs) <= fewestNodes(n.Document.Nodes, c.Limit) {
			continue
		}
		nodes := nodeset.Of(slices.Collect(maps.Keys(c.CPUs))...)
		outcome := "its memory is on all nodes"
		if c.State == status.Rejected {
			outcome = "it is rejected"
		} else if mems := c.Mems(); !mems.Empty() {
			outcome = "its memory is on " + mems.Named()
		}
		r.find(Warning, "cpus-on-several-nodes", place{pod, c}.object(),
			fmt.Sprintf("its exclusive CPUs are on %s, more than the policy %s admits for its memory: %s", nodes.Named(), policy, outcome),
			fmt.Sprintf("set topologyManagerPolicy: %s in the kubelet's configuration, which then assigns CPUs on fewer nodes; for what happens until then see onConflict", policy))
	}
}

// fewestNodes is how many of the NUMA nodes would hold an amount of memory if they were free; at least 1.
func fewestNodes(nodes []status.Node, bytes uint64) int {
	var sizes []uint64
	for _, node := range nodes {
		sizes = append(sizes, node.Of(memorymanager.Memory).Allocatable)
	}
	slices.SortFunc(sizes, func(a, b uint64) int { return cmp.Compare(b, a) })
	fewest := 1
	for _, size := range sizes {
		if bytes <= size {
			break
		}
		bytes -= size
		fewest++
	}
	return fewest
}

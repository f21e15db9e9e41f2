package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/tables"
)

// Available says whether the allocations on a NUMA node hold, as sampled last.
type Available struct {
	// Unused is what is allocated on the node and not used yet.
	Unused uint64 `json:"unused"`
	// Free is the kernel's free memory of the node, Reclaimable its file pages that neither an allocation nor a protection keeps:
	// together they are what is available for that.
	Free        uint64 `json:"free"`
	Reclaimable uint64 `json:"reclaimable"`
	// Deficit is what is unused beyond that; absent while the allocations hold.
	Deficit uint64 `json:"deficit,omitempty"`
}

// NotCounted is a container, or a pod, whose memory is not known.
type NotCounted struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container,omitempty"`
	Why       string `json:"why"`
}

// addNotCounted puts into a document what the sample leaves out.
func (d *Document) addNotCounted(view *ledger.View) {
	if view.NodeMemory == nil {
		return
	}
	d.AvailableUnknown = view.NodeMemory.Unknown
	// Containers whose pages could not be read, or their pod where that has an allocation of its own.
	for _, pod := range view.Pods {
		if why := view.NodeMemory.Unread[pod.Cgroup]; why != "" {
			d.NotCounted = append(d.NotCounted, NotCounted{Namespace: pod.Namespace, Pod: pod.Name, Why: why})
		}
		for i := range pod.Containers {
			if why := view.NodeMemory.Unread[pod.Containers[i].Cgroup]; why != "" {
				d.NotCounted = append(d.NotCounted, NotCounted{Namespace: pod.Namespace, Pod: pod.Name, Container: pod.Containers[i].Name, Why: why})
			}
		}
	}
}

func (d *Document) writeAvailable(b *strings.Builder) {
	if !slices.ContainsFunc(d.Nodes, func(n Node) bool { return n.Available != nil }) {
		if d.AvailableUnknown != "" && len(d.Nodes) > 0 {
			fmt.Fprintf(b, "AVAILABLE MEMORY is not known: %s\n\n", d.AvailableUnknown)
		}
		return
	}
	fmt.Fprintln(b, "AVAILABLE MEMORY   (unused: allocated and not used yet; free and reclaimable: what the kernel has for it)")
	w := tables.New(b)
	fmt.Fprintln(w, "NODE\tUNUSED\tFREE\tRECLAIMABLE\t")
	for _, node := range d.Nodes {
		if c := node.Available; c != nil {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", node.ID, quantity.Short(c.Unused), quantity.Short(c.Free), quantity.Short(c.Reclaimable), c.verdict())
		}
	}
	w.Flush()
	for _, c := range d.NotCounted {
		fmt.Fprintf(b, "not counted: %s: %s\n", strings.TrimSpace(c.Namespace+"/"+c.Pod+" "+c.Container), c.Why)
	}
	fmt.Fprintln(b)
}

func (c *Available) verdict() string {
	if c.Deficit > 0 {
		return "LACKS " + quantity.Short(c.Deficit)
	}
	return "enough"
}

// Unused is what a container has allocated on a NUMA node and does not use, and whether the node has it.
type Unused struct {
	// Bytes are allocated to the container on the node and not used yet.
	Bytes uint64 `json:"bytes"`
	// Deficit is what the node lacks for all containers; absent while their allocations hold.
	Deficit uint64 `json:"nodeDeficit,omitempty"`
}

// unused is what a container has unused, by NUMA node; nil while that is not known.
func unused(sample *deficit.Sample, e *ledger.Explanation) map[int]Unused {
	if !sample.Known() || len(e.Container.Blocks) == 0 {
		return nil
	}
	path := e.Container.Cgroup
	if e.Pod.Blocks != nil { // they are its pod's
		path = e.Pod.Cgroup
	}
	on := map[int]Unused{}
	for _, a := range sample.Unused[path] {
		if n := sample.Node(a.Node); n != nil {
			on[a.Node] = Unused{Bytes: a.Bytes, Deficit: n.Deficit()}
		}
	}
	return on
}

// writeUnused says what a container has unused, a line for each NUMA node.
func (d *Explanation) writeUnused(b *strings.Builder) {
	for id := range nodeset.Max {
		o, is := d.Unused[id]
		switch {
		case !is:
		case o.Deficit > 0:
			fmt.Fprintf(b, "  %s of it on node %d are not used yet, and the node lacks %s for its allocations: it may run out of memory there\n",
				quantity.Short(o.Bytes), id, quantity.Short(o.Deficit))
		default:
			fmt.Fprintf(b, "  %s of it on node %d are not used yet, and the node has them\n", quantity.Short(o.Bytes), id)
		}
	}
}

// writeMemoryPolicy says with which memory policy containers without an allocation start, and when the runtime applies none.
func (d *Document) writeMemoryPolicy(b *strings.Builder) {
	if d.Policy.UnpinnedMemoryPolicy == "" {
		return
	}
	fmt.Fprintf(b, ", unpinned memory policy %s", d.Policy.UnpinnedMemoryPolicy)
	if d.Runtime != nil && !d.Runtime.MemoryPolicies {
		fmt.Fprintf(b, " (NOT APPLIED: %s applies none; containerd 2.3 and CRI-O 1.37 do)", d.Runtime)
	}
}

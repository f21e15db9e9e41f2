package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Group is a group of NUMA nodes that exists only because of containers that would fit single nodes of it. While it does,
// no container that needs one node is placed there, for its node would have to leave the group.
type Group struct {
	Nodes nodeset.Set `json:"numaNodes"`
	// Fits are the nodes on which the containers would fit together.
	Fits []Fit `json:"fits"`
}

// Fit is a container and a NUMA node on which it would fit.
type Fit struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Node      int    `json:"node"`
	// Held is why rebalance.consolidate does not move it there; absent where it does not try to.
	Held string `json:"held,omitempty"`
}

// dissolvable are the view's groups that would dissolve.
func dissolvable(view *ledger.View) []Group {
	pods, held := map[string]*ledger.PodView{}, map[string]string{}
	var tenants []memorymanager.Tenant
	for _, pod := range view.Pods {
		pods[pod.UID] = pod
		if pod.Blocks != nil {
			tenants = append(tenants, memorymanager.Tenant{Pod: pod.UID, Blocks: pod.Blocks})
			continue
		}
		for i := range pod.Containers {
			if c := &pod.Containers[i]; len(c.Blocks) > 0 && len(c.Claims) == 0 { // claims are beside the node map
				tenants = append(tenants, memorymanager.Tenant{Pod: pod.UID, Container: c.Name, Blocks: c.Blocks,
					CPUs: nodeset.Of(slices.Collect(maps.Keys(c.CPUs))...)})
			}
		}
	}
	for _, m := range view.NotMoved {
		if m.Reason != ledger.Deficit {
			held[m.UID+"/"+m.Container] = m.Why
		}
	}
	var groups []Group
	for _, found := range memorymanager.Dissolvable(view.Nodes, tenants) {
		if !found.Rest.Empty() {
			continue
		}
		group := Group{Nodes: found.Group}
		for _, m := range found.Moves {
			pod := pods[m.Pod]
			group.Fits = append(group.Fits, Fit{pod.Namespace, pod.Name, m.Container, m.To.First(), held[m.Pod+"/"+m.Container]})
		}
		groups = append(groups, group)
	}
	return groups
}

func (d *Document) writeGroups(b *strings.Builder) {
	for _, group := range d.Groups {
		fits := make([]string, len(group.Fits))
		for i, f := range group.Fits {
			fits[i] = fmt.Sprintf("%s/%s %s on node %d", f.Namespace, f.Pod, f.Container, f.Node)
			if f.Held != "" {
				fits[i] += " (" + f.Held + ")"
			}
		}
		fmt.Fprintf(b, "%s are a group only because of containers that would fit single nodes: %s\n\n",
			group.Nodes.Named(), strings.Join(fits, ", "))
	}
}

// fitsAlone is the node of its group on which a container would fit, with all others of the group on single nodes too; nil for one
// that is in no such group.
func fitsAlone(view *ledger.View, e *ledger.Explanation) *int {
	if view == nil || len(e.Container.Blocks) == 0 || e.Container.Blocks[0].Nodes.Len() < 2 {
		return nil
	}
	for _, group := range dissolvable(view) {
		for _, f := range group.Fits {
			if f.Namespace == e.Pod.Namespace && f.Pod == e.Pod.Name && f.Container == e.Container.Name {
				return &f.Node
			}
		}
	}
	return nil
}

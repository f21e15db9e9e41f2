package status

import (
	"fmt"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// ExplainState explains the containers of a pod from a state file alone. Only UIDs are in it, and no more of a container
// than its allocation. The nodes are what the file says; container "" is all of the pod's.
func ExplainState(s memorymanager.State, options memorymanager.Options, uid, container string) ([]Explanation, error) {
	nodes, err := capacities(s)
	if err != nil {
		return nil, err
	}
	manager, err := memorymanager.New(nodes, options)
	if err != nil {
		return nil, err
	}
	if _, err := manager.Restore(s, 0); err != nil {
		return nil, err
	}
	allocated := map[string][]memorymanager.Block{}
	for _, entry := range manager.State().Entries {
		if entry.Pod == uid {
			allocated[entry.Container] = entry.Blocks
		}
	}
	var documents []Explanation
	pods := 0
	for _, entry := range s.Entries {
		if entry.Pod != uid {
			continue
		}
		pods++
		if container != "" && entry.Container != container {
			continue
		}
		asked := memorymanager.Container{Pod: entry.Pod, Name: entry.Container}
		for _, block := range entry.Blocks {
			asked.Request = append(asked.Request, memorymanager.Amount{Type: block.Type, Bytes: block.Size})
		}
		explained := manager.Explain(asked)
		if explained.Existing {
			explained.Blocks = allocated[entry.Container]
		}
		documents = append(documents, Explanation{Pod: entry.Pod, Container: entry.Container, QOSClass: "Guaranteed",
			Pinning: "as the state file says", Placement: &explained})
	}
	switch {
	case pods == 0:
		return nil, fmt.Errorf("no allocation of pod %q; the state file knows pods by UID", uid)
	case len(documents) == 0:
		return nil, fmt.Errorf("no allocation of container %q of pod %q", container, uid)
	}
	return documents, nil
}

// capacities are the nodes as a state has them.
func capacities(s memorymanager.State) ([]memorymanager.NodeCapacity, error) {
	var nodes []memorymanager.NodeCapacity
	for _, state := range s.Nodes {
		node := memorymanager.NodeCapacity{ID: state.ID}
		for _, table := range state.Memory {
			if table.SystemReserved > 0 {
				node.Reserved = append(node.Reserved, memorymanager.Amount{Type: table.Type, Bytes: table.SystemReserved})
			}
			size, huge := strings.CutPrefix(string(table.Type), "hugepages-")
			if !huge {
				node.Total = table.Total
				continue
			}
			bytes, err := quantity.Parse(size)
			if err != nil || bytes == 0 {
				return nil, fmt.Errorf("node %d: %s is no size of huge pages", state.ID, table.Type)
			}
			node.Pools = append(node.Pools, memorymanager.Pool{PageSize: bytes, Count: table.Total / bytes})
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

package memorymanager

import (
	"encoding/json"
	"maps"
	"slices"
)

// MarshalJSON writes an object of bytes by type.
func (r Request) MarshalJSON() ([]byte, error) {
	byType := make(map[MemoryType]uint64, len(r))
	for _, amount := range r {
		byType[amount.Type] = amount.Bytes
	}
	return json.Marshal(byType)
}

// UnmarshalJSON reads an object of bytes by type.
func (r *Request) UnmarshalJSON(data []byte) error {
	var byType map[MemoryType]uint64
	if err := json.Unmarshal(data, &byType); err != nil {
		return err
	}
	*r = nil
	for _, name := range slices.Sorted(maps.Keys(byType)) {
		*r = append(*r, Amount{name, byType[name]})
	}
	return nil
}

// MarshalJSON writes an object of bytes by node.
func (a NodeAmounts) MarshalJSON() ([]byte, error) {
	byNode := make(map[int]uint64, len(a))
	for _, amount := range a {
		byNode[amount.Node] += amount.Bytes
	}
	return json.Marshal(byNode)
}

// UnmarshalJSON reads an object of bytes by node.
func (a *NodeAmounts) UnmarshalJSON(data []byte) error {
	var byNode map[int]uint64
	if err := json.Unmarshal(data, &byNode); err != nil {
		return err
	}
	*a = nil
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		*a = append(*a, NodeAmount{node, byNode[node]})
	}
	return nil
}

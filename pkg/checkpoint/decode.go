package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/utils/dump"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint/internal/state"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Decode reads a state file in any of the kubelet's layouts, compact, pretty-printed or with reordered keys. It refuses a wrong checksum,
// as the kubelet does. The kubelet accepts a text without checksum; here such a text must pass Check. So must the old layout, whose
// checksum cannot be verified.
func Decode(data []byte) (File, error) {
	file, mismatch, err := decode(data)
	if err = cmp.Or(mismatch, err); err != nil {
		return File{}, err
	}
	if !file.Verified {
		if findings := Check(file.State); len(findings) > 0 {
			return File{}, fmt.Errorf("no checksum vouches for this text and it contradicts itself (%d findings): %s: %s", len(findings), findings[0].Where, findings[0].What)
		}
	}
	return file, nil
}

// decode reads a text. mismatch is a wrong checksum; err is a content that is no state.
func decode(data []byte) (file File, mismatch, err error) {
	content, hashed, err := parse(data)
	if err != nil {
		return File{}, nil, err
	}
	file.Format = V1
	switch {
	case content.Data != "" || content.DataChecksum != 0:
		file.Format, file.Checksum = V3, uint32(content.DataChecksum)
		if sum := uint64(dataSum(content.Data)); sum != content.DataChecksum {
			mismatch = mismatchError("dataChecksum", content.DataChecksum, "data has", sum)
		}
		file.Verified = mismatch == nil
		if content, _, err = parse([]byte(content.Data)); err != nil {
			return file, mismatch, fmt.Errorf("data: %w", err)
		}
	case useOldGroups(content):
		file.Format, file.Checksum = Nodes, uint32(content.Checksum)
	case content.Checksum != 0:
		file.Checksum = uint32(content.Checksum)
		file.Format, file.Verified, mismatch = verify(hashed, content.PodEntries)
	}
	if file.Policy = content.PolicyName; file.Policy != PolicyStatic && file.Policy != policyNone {
		return file, mismatch, fmt.Errorf("policyName is %q, want %q or %q", file.Policy, PolicyStatic, policyNone)
	}
	file.State, err = convert(content)
	return file, mismatch, err
}

func mismatchError(key string, stored uint64, what string, sum uint64) error {
	return fmt.Errorf("%s is %d, but %s %d: the file was changed or damaged after it was written", key, stored, what, sum)
}

// parse returns the content also in the kubelet's types, for its checksum.
func parse(data []byte) (content document, hashed *state.MemoryManagerCheckpoint, err error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return content, nil, errors.New("is empty, want the kubelet's JSON text of a memory manager state")
	}
	hashed = &state.MemoryManagerCheckpoint{MachineState: state.NUMANodeMap{}, Entries: state.ContainerMemoryAssignments{}}
	for _, target := range []any{hashed, &content} {
		if err := json.Unmarshal(data, target); err != nil {
			return content, nil, describe(err)
		}
	}
	return content, hashed, nil
}

// describe says where in the text encoding/json stopped.
func describe(err error) error {
	var syntax *json.SyntaxError
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax) && strings.Contains(err.Error(), "after top-level value"):
		return fmt.Errorf("has text after the JSON, from byte %d on: %w", syntax.Offset, err)
	case errors.As(err, &syntax):
		return fmt.Errorf("is not JSON from byte %d on (cut short?): %w", syntax.Offset, err)
	case errors.As(err, &wrongType):
		return fmt.Errorf("key %q before byte %d: found %s, want %s", wrongType.Field, wrongType.Offset, wrongType.Value, inJSON(wrongType.Type.Kind()))
	}
	return err
}

func inJSON(kind reflect.Kind) string {
	switch kind {
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct, reflect.Pointer:
		return "an object"
	}
	return "a whole number"
}

// useOldGroups fills the groups from the old key, and reports whether the text has it.
func useOldGroups(content document) bool {
	used := false
	for _, node := range content.MachineState {
		if node != nil && node.Cells == nil && node.Nodes != nil {
			node.Cells, used = node.Nodes, true
		}
	}
	return used
}

// verify compares the stored checksum with the content's, as every kubelet from 1.21 does, and returns the layout in which it is right.
// V1's does not cover pod entries.
func verify(content *state.MemoryManagerCheckpoint, entries map[string]podEntry) (format Format, verified bool, mismatch error) {
	stored := content.Checksum
	content.Checksum = 0
	text := dump.ForHash(content)
	content.Checksum = stored
	sum := fnv1a([]byte(text))
	if uint64(stored) == uint64(sum) {
		return V1, len(entries) == 0, nil
	}
	pods := state.PodMemoryAssignments{}
	for pod, entry := range entries {
		var own state.PodEntry
		for _, block := range entry.MemoryBlocks {
			own.MemoryBlocks = append(own.MemoryBlocks, block.Block)
		}
		pods[pod] = own
	}
	withPods := strings.TrimSuffix(text, textEnd) + " PodEntries:" + dump.ForHash(pods) + textEnd
	if uint64(stored) == uint64(fnv1a([]byte(withPods))) {
		return V2, true, nil
	}
	return V1, false, mismatchError("checksum", uint64(stored), "the content has", uint64(sum))
}

func convert(content document) (memorymanager.State, error) {
	var s memorymanager.State
	for _, id := range slices.Sorted(maps.Keys(content.MachineState)) {
		node, err := convertNode(id, content.MachineState[id])
		if err != nil {
			return s, fmt.Errorf("machineState: node %d: %w", id, err)
		}
		s.Nodes = append(s.Nodes, node)
	}
	for _, pod := range slices.Sorted(maps.Keys(content.Entries)) {
		for _, container := range slices.Sorted(maps.Keys(content.Entries[pod])) {
			where := fmt.Sprintf("entries: pod %s container %s", pod, container)
			blocks, err := convertBlocks(where, content.Entries[pod][container])
			if err != nil {
				return s, err
			}
			s.Entries = append(s.Entries, memorymanager.Entry{Pod: pod, Container: container, Blocks: blocks})
		}
	}
	for _, pod := range slices.Sorted(maps.Keys(content.PodEntries)) {
		blocks, err := convertBlocks("podEntries: pod "+pod, content.PodEntries[pod].MemoryBlocks)
		if err != nil {
			return s, err
		}
		if len(blocks) > 0 {
			s.Pods = append(s.Pods, memorymanager.PodEntry{Pod: pod, Blocks: blocks})
		}
	}
	if sum := amountsSum(s); sum != content.PerNodeChecksum {
		return s, mismatchError("perNodeChecksum", uint64(content.PerNodeChecksum), "the perNode amounts have", uint64(sum))
	}
	return s, nil
}

// convertBlocks sorts blocks by type: a kubelet writes them in any order.
func convertBlocks(where string, blocks []block) (converted []memorymanager.Block, err error) {
	for _, block := range blocks {
		one, err := convertBlock(block)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		converted = append(converted, one)
	}
	slices.SortStableFunc(converted, func(a, b memorymanager.Block) int { return cmp.Compare(a.Type, b.Type) })
	return converted, nil
}

func convertNode(id int, node *node) (memorymanager.NodeState, error) {
	out := memorymanager.NodeState{ID: id}
	switch {
	case id < 0 || id >= nodeset.Max:
		return out, fmt.Errorf("is out of range, want an id of 0 to %d", nodeset.Max-1)
	case node == nil:
		return out, errors.New("is null, want an object")
	case node.NumberOfAssignments < 0:
		return out, fmt.Errorf("numberOfAssignments is %d, want 0 or more", node.NumberOfAssignments)
	}
	out.Assignments = node.NumberOfAssignments
	for _, name := range slices.Sorted(maps.Keys(node.MemoryMap)) {
		table := node.MemoryMap[name]
		if table == nil {
			return out, fmt.Errorf("memoryMap: %s is null, want an object", name)
		}
		out.Memory = append(out.Memory, memorymanager.TypeTable{
			Type: memorymanager.MemoryType(name),
			Table: memorymanager.Table{
				Total: table.TotalMemSize, SystemReserved: table.SystemReserved, Allocatable: table.Allocatable,
				Reserved: table.Reserved, Free: table.Free,
			},
		})
	}
	var err error
	if out.Cells, err = convertSet("cells", node.Cells); err != nil {
		return out, err
	}
	return out, nil
}

func convertBlock(block block) (memorymanager.Block, error) {
	nodes, err := convertSet("numaAffinity", block.NUMAAffinity)
	if err == nil && block.Type == "" {
		err = errors.New("a block has no type, want memory or hugepages-<size>")
	}
	return memorymanager.Block{Nodes: nodes, Type: memorymanager.MemoryType(block.Type), Size: block.Size, PerNode: perNode(block.PerNode)}, err
}

func convertSet(key string, ids []int) (nodeset.Set, error) {
	set := nodeset.Of(ids...)
	if set.Empty() || set.Len() != len(ids) {
		return set, fmt.Errorf("%s is %v, want one or more distinct ids of 0 to %d", key, ids, nodeset.Max-1)
	}
	return set, nil
}

func perNode(amounts map[int]uint64) []memorymanager.NodeAmount {
	if amounts == nil {
		return nil
	}
	out := make([]memorymanager.NodeAmount, 0, len(amounts))
	for _, id := range slices.Sorted(maps.Keys(amounts)) {
		out = append(out, memorymanager.NodeAmount{Node: id, Bytes: amounts[id]})
	}
	return out
}

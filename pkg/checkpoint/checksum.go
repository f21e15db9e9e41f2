package checkpoint

import (
	"strconv"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// The text under the kubelet's checksum: its types as Go syntax, the way k8s.io/utils/dump.ForHash prints them, with a
// checksum of 0 at the end. Keys are sorted, numbers as numbers.
const (
	textPolicy  = "(*state.MemoryManagerCheckpoint){PolicyName:(string)"
	textNodes   = " MachineState:(state.NUMANodeMap)"
	textEntries = " Entries:(state.ContainerMemoryAssignments)"
	textEnd     = " Checksum:(checksum.Checksum)0}"
	// textPodEntries stands before textEnd in layout V2.
	textPodEntries = " PodEntries:(state.PodMemoryAssignments)"
)

func appendNodeText(b []byte, node memorymanager.NodeState) []byte {
	b = strconv.AppendInt(b, int64(node.ID), 10)
	b = append(b, ":<*>{NumberOfAssignments:(int)"...)
	b = strconv.AppendInt(b, int64(node.Assignments), 10)
	b = append(b, " MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map["...)
	for i, table := range node.Memory {
		if i > 0 {
			b = append(b, ' ')
		}
		b = append(b, validUTF8(string(table.Type))...)
		b = appendField(b, ":<*>{TotalMemSize:(uint64)", table.Total)
		b = appendField(b, " SystemReserved:(uint64)", table.SystemReserved)
		b = appendField(b, " Allocatable:(uint64)", table.Allocatable)
		b = appendField(b, " Reserved:(uint64)", table.Reserved)
		b = appendField(b, " Free:(uint64)", table.Free)
		b = append(b, '}')
	}
	b = append(b, "] Cells:([]int)["...)
	b = appendSet(b, node.Cells, ' ')
	return append(b, "]}"...)
}

func appendPodText(b []byte, pod string, entries []memorymanager.Entry) []byte {
	b = append(append(b, pod...), ":map["...)
	for i, entry := range entries {
		if i > 0 {
			b = append(b, ' ')
		}
		b = appendEntryText(b, entry)
	}
	return append(b, ']')
}

func appendPodEntryText(b []byte, pod string, blocks []memorymanager.Block) []byte {
	b = append(append(b, pod...), ":{MemoryBlocks:([]state.Block)"...)
	return append(appendBlocksText(b, blocks), '}')
}

func appendEntryText(b []byte, entry memorymanager.Entry) []byte {
	b = append(append(b, validUTF8(entry.Container)...), ':')
	return appendBlocksText(b, entry.Blocks)
}

func appendBlocksText(b []byte, blocks []memorymanager.Block) []byte {
	b = append(b, '[')
	for i, block := range blocks {
		if i > 0 {
			b = append(b, ' ')
		}
		b = append(b, "{NUMAAffinity:([]int)["...)
		b = appendSet(b, block.Nodes, ' ')
		b = append(b, "] Type:(v1.ResourceName)"...)
		b = append(b, validUTF8(string(block.Type))...)
		b = appendField(b, " Size:(uint64)", block.Size)
		b = append(b, '}')
	}
	return append(b, ']')
}

// amountsSum is the checksum of a pod's per-node amounts, which the kubelet's does not cover. A file holds the sum over
// its pods, so that a change of one pod does not touch the others.
func amountsSum(pod memorymanager.PodAllocations) uint32 {
	b := appendAmountsText(nil, pod.Pod, "", pod.Blocks)
	for _, entry := range pod.Entries {
		b = appendAmountsText(b, pod.Pod, validUTF8(entry.Container), entry.Blocks)
	}
	if b == nil {
		return 0
	}
	return fnv1a(fnvOffset, b)
}

func appendAmountsText(b []byte, pod, container string, blocks []memorymanager.Block) []byte {
	for _, block := range blocks {
		if block.PerNode == nil {
			continue
		}
		b = append(b, pod...)
		b = append(b, '/')
		b = append(b, container...)
		b = append(b, '/')
		b = append(b, validUTF8(string(block.Type))...)
		for _, amount := range block.PerNode {
			b = append(b, ' ')
			b = strconv.AppendInt(b, int64(amount.Node), 10)
			b = appendField(b, "=", amount.Bytes)
		}
		b = append(b, '\n')
	}
	return b
}

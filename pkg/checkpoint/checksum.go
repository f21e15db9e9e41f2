package checkpoint

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// appendHashText appends the text that the kubelet hashes for the checksum of layouts V1 and V2: its types as Go syntax, as
// k8s.io/utils/dump.ForHash prints them, with the checksum 0. Keys are sorted, numbers by value.
func appendHashText(b []byte, s memorymanager.State, format Format, policy string) []byte {
	b = append(append(b, "(*state.MemoryManagerCheckpoint){PolicyName:(string)"...), validUTF8(policy)...)
	b = appendList(append(b, " MachineState:(state.NUMANodeMap)map["...), ' ', s.Nodes, appendNodeText)
	b = appendList(append(b, "] Entries:(state.ContainerMemoryAssignments)map["...), ' ', byPod(s.Entries, nil), appendPodText)
	if format == V2 {
		b = appendList(append(b, "] PodEntries:(state.PodMemoryAssignments)map["...), ' ', s.Pods, appendPodEntryText)
	}
	return append(b, "]"+textEnd...)
}

const textEnd = " Checksum:(checksum.Checksum)0}"

func appendNodeText(b []byte, node memorymanager.NodeState) []byte {
	b = appendField(appendInt(b, node.ID), ":<*>{NumberOfAssignments:(int)", uint64(node.Assignments))
	b = appendList(append(b, " MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map["...), ' ', node.Memory, appendTableText)
	b = appendList(append(b, "] Cells:([]int)["...), ' ', node.Cells.IDs(), appendInt)
	return append(b, "]}"...)
}

func appendTableText(b []byte, table memorymanager.TypeTable) []byte {
	b = append(b, validUTF8(string(table.Type))...)
	b = appendField(b, ":<*>{TotalMemSize:(uint64)", table.Total)
	b = appendField(b, " SystemReserved:(uint64)", table.SystemReserved)
	b = appendField(b, " Allocatable:(uint64)", table.Allocatable)
	b = appendField(b, " Reserved:(uint64)", table.Reserved)
	b = appendField(b, " Free:(uint64)", table.Free)
	return append(b, '}')
}

func appendPodText(b []byte, pod memorymanager.PodAllocations) []byte {
	b = append(append(b, validUTF8(pod.Pod)...), ":map["...)
	return append(appendList(b, ' ', pod.Entries, appendEntryText), ']')
}

func appendEntryText(b []byte, entry memorymanager.Entry) []byte {
	b = append(append(b, validUTF8(entry.Container)...), ":["...)
	return append(appendList(b, ' ', entry.Blocks, appendBlockText), ']')
}

func appendPodEntryText(b []byte, entry memorymanager.PodEntry) []byte {
	b = append(append(b, validUTF8(entry.Pod)...), ":{MemoryBlocks:([]state.Block)["...)
	return append(appendList(b, ' ', entry.Blocks, appendBlockText), "]}"...)
}

func appendBlockText(b []byte, block memorymanager.Block) []byte {
	b = appendList(append(b, "{NUMAAffinity:([]int)["...), ' ', block.Nodes.IDs(), appendInt)
	b = append(append(b, "] Type:(v1.ResourceName)"...), validUTF8(string(block.Type))...)
	return append(appendField(b, " Size:(uint64)", block.Size), '}')
}

// dataSum is the checksum of layout V3.
func dataSum(data string) uint32 { return fnv1a([]byte("(string)" + data)) }

func fnv1a(text []byte) uint32 {
	sum := fnv.New32a()
	_, _ = sum.Write(text) // which cannot fail
	return sum.Sum32()
}

// amountsSum returns the checksum of the per-node amounts, which the kubelet's checksum does not cover. It is the sum of the pods'
// checksums; 0 without amounts.
func amountsSum(s memorymanager.State) (sum uint32) {
	for _, pod := range byPod(s.Entries, s.Pods) {
		text := amountsText(pod.Pod, "", pod.Blocks)
		for _, entry := range pod.Entries {
			text += amountsText(pod.Pod, entry.Container, entry.Blocks)
		}
		if text != "" {
			sum += fnv1a([]byte(text))
		}
	}
	return sum
}

func amountsText(pod, container string, blocks []memorymanager.Block) string {
	var text strings.Builder
	for _, block := range blocks {
		if block.PerNode == nil {
			continue
		}
		fmt.Fprintf(&text, "%s/%s/%s", validUTF8(pod), validUTF8(container), validUTF8(string(block.Type)))
		for _, amount := range block.PerNode {
			fmt.Fprintf(&text, " %d=%d", amount.Node, amount.Bytes)
		}
		text.WriteByte('\n')
	}
	return text.String()
}

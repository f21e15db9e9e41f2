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
	b = fmt.Appendf(b, "(*state.MemoryManagerCheckpoint){PolicyName:(string)%s MachineState:(state.NUMANodeMap)map[", validUTF8(policy))
	b = append(appendList(b, s.Nodes, appendNodeText), "] Entries:(state.ContainerMemoryAssignments)map["...)
	b = appendList(b, byPod(s.Entries, nil), appendPodText)
	if format == V2 {
		b = appendList(append(b, "] PodEntries:(state.PodMemoryAssignments)map["...), s.Pods, appendPodEntryText)
	}
	return append(b, "]"+textEnd...)
}

const textEnd = " Checksum:(checksum.Checksum)0}"

func appendNodeText(b []byte, node memorymanager.NodeState) []byte {
	b = fmt.Appendf(b, "%d:<*>{NumberOfAssignments:(int)%d MemoryMap:(map[v1.ResourceName]*state.MemoryTable)map[", node.ID, node.Assignments)
	return fmt.Appendf(appendList(b, node.Memory, appendTableText), "] Cells:([]int)%v}", node.Cells.IDs())
}

func appendTableText(b []byte, t memorymanager.TypeTable) []byte {
	return fmt.Appendf(b, "%s:<*>{TotalMemSize:(uint64)%d SystemReserved:(uint64)%d Allocatable:(uint64)%d Reserved:(uint64)%d Free:(uint64)%d}",
		validUTF8(string(t.Type)), t.Total, t.SystemReserved, t.Allocatable, t.Reserved, t.Free)
}

func appendPodText(b []byte, pod memorymanager.PodAllocations) []byte {
	b = append(append(b, validUTF8(pod.Pod)...), ":map["...)
	return append(appendList(b, pod.Entries, appendEntryText), ']')
}

func appendEntryText(b []byte, entry memorymanager.Entry) []byte {
	b = append(append(b, validUTF8(entry.Container)...), ":["...)
	return append(appendList(b, entry.Blocks, appendBlockText), ']')
}

func appendPodEntryText(b []byte, entry memorymanager.PodEntry) []byte {
	b = append(append(b, validUTF8(entry.Pod)...), ":{MemoryBlocks:([]state.Block)["...)
	return append(appendList(b, entry.Blocks, appendBlockText), "]}"...)
}

func appendBlockText(b []byte, block memorymanager.Block) []byte {
	return fmt.Appendf(b, "{NUMAAffinity:([]int)%v Type:(v1.ResourceName)%s Size:(uint64)%d}", block.Nodes.IDs(), validUTF8(string(block.Type)), block.Size)
}

func appendList[T any](b []byte, all []T, one func([]byte, T) []byte) []byte {
	for i, each := range all {
		if i > 0 {
			b = append(b, ' ')
		}
		b = one(b, each)
	}
	return b
}

// validUTF8 replaces what JSON cannot hold, so that the checksum matches what a reader sees.
func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

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

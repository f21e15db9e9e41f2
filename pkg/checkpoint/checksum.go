package checkpoint

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

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
	if !hasAmounts(s) {
		return 0
	}
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

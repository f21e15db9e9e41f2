package checkpoint

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Encode returns the state file's text in the oldest layout that holds the state: V1, which every kubelet from 1.21 reads, or V3 if pods
// are allocated as a whole.
//
// The nodes' reserved bytes normally show how much of a group's blocks is on each node, so the blocks' PerNode amounts are left out. If
// more is allocated than a node has, the nodes do not show it. Then each block has a key "perNode", and the file ends with a key
// "perNodeChecksum". The kubelet skips both.
func Encode(policy string, s memorymanager.State) []byte {
	return appendFile(nil, withAmountsNeeded(s), "", policy)
}

// appendFile appends the file in a layout; "" is the oldest that holds the state.
func appendFile(b []byte, s memorymanager.State, format Format, policy string) []byte {
	switch {
	case format == "" && len(s.Pods) == 0:
		format = V1
	case format == "":
		format = V3
	}
	whole := s
	if format == V3 { // the part outside of data is for kubelets that read V1
		s = withoutAmounts(s)
	}
	if format != V2 {
		s.Pods = nil
	}
	sum := fnv1a(appendHashText(b, s, format, policy)[len(b):])
	b = appendAmountsSum(appendField(appendFileState(b, s, policy), `,"checksum":`, sum), s)
	if format == V3 {
		data := string(append(appendAmountsSum(appendFileState(nil, whole, policy), whole), '}'))
		b = appendField(appendQuoted(append(b, `,"data":`...), data), `,"dataChecksum":`, dataSum(data))
	}
	return append(b, '}')
}

// byPod groups allocations by pod. The entries must be sorted by pod. Pods without allocated containers come last.
func byPod(entries []memorymanager.Entry, whole []memorymanager.PodEntry) (pods []memorymanager.PodAllocations) {
	own := make(map[string][]memorymanager.Block, len(whole))
	for _, entry := range whole {
		own[entry.Pod] = entry.Blocks
	}
	pods = make([]memorymanager.PodAllocations, 0, len(entries)+len(whole))
	for rest := entries; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(entry memorymanager.Entry) bool { return entry.Pod != rest[0].Pod })
		if n < 0 {
			n = len(rest)
		}
		pods = append(pods, memorymanager.PodAllocations{Pod: rest[0].Pod, Blocks: own[rest[0].Pod], Entries: rest[:n]})
		delete(own, rest[0].Pod)
		rest = rest[n:]
	}
	for pod, blocks := range own { // without containers, as a crashed kubelet may leave a pod
		pods = append(pods, memorymanager.PodAllocations{Pod: pod, Blocks: blocks})
	}
	return pods
}

// withAmountsNeeded returns the state with PerNode amounts only if its nodes do not show them.
func withAmountsNeeded(s memorymanager.State) memorymanager.State {
	if hasAmounts(s) && nodesShowAmounts(s) {
		return withoutAmounts(s)
	}
	return s
}

func hasAmounts(s memorymanager.State) bool {
	has := func(b memorymanager.Block) bool { return b.PerNode != nil }
	return slices.ContainsFunc(s.Entries, func(e memorymanager.Entry) bool { return slices.ContainsFunc(e.Blocks, has) }) ||
		slices.ContainsFunc(s.Pods, func(e memorymanager.PodEntry) bool { return slices.ContainsFunc(e.Blocks, has) })
}

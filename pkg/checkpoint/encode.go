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
	return encodeState(withAmountsNeeded(s)).appendFile(nil, "", policy)
}

// encodedState is a state with the encoded containers of each pod. These are most of the text, and few change at a decision.
type encodedState struct {
	memorymanager.State
	pods    []*encodedPod // from Entries
	amounts bool          // some block has PerNode
}

// encodedPod is the encoding of a pod's containers: in the file, and in the text that the kubelet hashes.
type encodedPod struct {
	pod            string
	json, hashText []byte
}

func encodeState(s memorymanager.State) encodedState {
	t := encodedState{State: s, amounts: hasAmounts(s)}
	for _, pod := range byPod(memorymanager.State{Entries: s.Entries}) {
		t.pods = append(t.pods, &encodedPod{pod.Pod, appendPodJSON(nil, pod), appendPodText(nil, pod)})
	}
	return t
}

// appendFile appends the file in a layout; "" is the oldest that holds the state.
func (t encodedState) appendFile(b []byte, format Format, policy string) []byte {
	switch {
	case format == "" && len(t.Pods) == 0:
		format = V1
	case format == "":
		format = V3
	}
	whole := t
	if format == V3 && t.amounts { // the part outside of data is for kubelets that read V1
		t = encodeState(withoutAmounts(t.State))
	}
	if format != V2 {
		t.Pods = nil
	}
	b = t.appendState(b, policy)
	end := len(b)
	b = t.appendHashText(b, format, policy)
	sum := fnv1a(b[end:])
	b = appendField(b[:end], `,"checksum":`, uint64(sum))
	b = t.appendAmountsSum(b)
	if format == V3 {
		data := string(append(whole.appendAmountsSum(whole.appendState(nil, policy)), '}'))
		b = appendString(append(b, `,"data":`...), data)
		b = appendField(b, `,"dataChecksum":`, uint64(dataSum(data)))
	}
	return append(b, '}')
}

// appendAmountsSum appends the checksum of the per-node amounts, if there are any.
func (t encodedState) appendAmountsSum(b []byte) []byte {
	if !t.amounts {
		return b
	}
	return appendField(b, `,"perNodeChecksum":`, uint64(amountsSum(t.State)))
}

// byPod groups a state's allocations by pod. The entries must be sorted by pod. Pods without allocated containers come last.
func byPod(s memorymanager.State) (pods []memorymanager.PodAllocations) {
	own := make(map[string][]memorymanager.Block, len(s.Pods))
	for _, entry := range s.Pods {
		own[entry.Pod] = entry.Blocks
	}
	pods = make([]memorymanager.PodAllocations, 0, len(s.Entries))
	for rest := s.Entries; len(rest) > 0; {
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

package checkpoint

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Encode returns the state file's text in the oldest layout that holds the state: V1, which every kubelet from 1.21 reads,
// or V3 when pods have allocations of their own.
//
// How much of a group's blocks is on each of its nodes is what the nodes have reserved, so the blocks' PerNode amounts
// are left out. They are written where the nodes do not show it, because containers are allocated beyond what a node has: in a key of
// each block, "perNode", and a key "perNodeChecksum" at the end. The kubelet skips both.
func Encode(policy string, s memorymanager.State) []byte {
	return textsOf(withAmountsNeeded(s)).appendFile(nil, "", policy)
}

// texts are a state with what each pod's containers are in its text, which is most of it and the same after most decisions.
type texts struct {
	memorymanager.State
	pods    []*podText // of Entries
	amounts bool       // there are PerNode amounts
}

// podText is a pod's containers in the file, and in the text that the kubelet's checksum is of.
type podText struct {
	pod        string
	file, text []byte
}

func textsOf(s memorymanager.State) texts {
	t := texts{State: s, amounts: hasAmounts(s)}
	for _, pod := range byPod(memorymanager.State{Entries: s.Entries}) {
		t.pods = append(t.pods, &podText{pod.Pod, appendPodJSON(nil, pod), appendPodText(nil, pod)})
	}
	return t
}

// appendFile appends a layout, or the oldest that holds the state.
func (t texts) appendFile(b []byte, format Format, policy string) []byte {
	switch {
	case format == "" && len(t.Pods) == 0:
		format = V1
	case format == "":
		format = V3
	}
	whole := t
	if format == V3 && t.amounts { // what stands beside the data is for kubelets that read V1
		t = textsOf(withoutAmounts(t.State))
	}
	if format != V2 {
		t.Pods = nil
	}
	b = t.appendState(b, policy)
	end := len(b)
	b = t.appendText(b, format, policy)
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

// appendAmountsSum appends the checksum of the per-node amounts, where there are any.
func (t texts) appendAmountsSum(b []byte) []byte {
	if !t.amounts {
		return b
	}
	return appendField(b, `,"perNodeChecksum":`, uint64(amountsSum(t.State)))
}

// byPod groups a state's allocations by pod; its entries are sorted by pod. Pods without allocated containers come last.
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
	for pod, blocks := range own { // of no container, as a kubelet leaves one that crashed
		pods = append(pods, memorymanager.PodAllocations{Pod: pod, Blocks: blocks})
	}
	return pods
}

// withAmountsNeeded is a state that has PerNode amounts only where its nodes do not show them.
func withAmountsNeeded(s memorymanager.State) memorymanager.State {
	if hasAmounts(s) && nodesTellAmounts(s) {
		return withoutAmounts(s)
	}
	return s
}

func hasAmounts(s memorymanager.State) bool {
	has := func(b memorymanager.Block) bool { return b.PerNode != nil }
	return slices.ContainsFunc(s.Entries, func(e memorymanager.Entry) bool { return slices.ContainsFunc(e.Blocks, has) }) ||
		slices.ContainsFunc(s.Pods, func(e memorymanager.PodEntry) bool { return slices.ContainsFunc(e.Blocks, has) })
}

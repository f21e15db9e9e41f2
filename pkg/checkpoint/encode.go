package checkpoint

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Encode returns the state file's text in the oldest layout that holds the state: V1, which every kubelet from 1.21 reads,
// or V3 when pods have allocations of their own.
//
// How much of a group's blocks is on each of its nodes is what the nodes have reserved, so the blocks' PerNode amounts
// are left out. They are written where the nodes do not show it, because containers are allocated beyond what a node has: in a key of
// each block, "perNode", and a key "perNodeChecksum" at the end. The kubelet skips both.
func Encode(policy string, s memorymanager.State) []byte { return encode("", policy, s) }

// encode writes a layout, or the oldest that holds the state.
func encode(format Format, policy string, s memorymanager.State) []byte {
	e := newEncoder(policy)
	e.format = format
	e.replace(s)
	return e.appendTo(nil)
}

// An encoder keeps the text of each node and pod, so that a decision re-encodes what it changed, not the state.
type encoder struct {
	policy  string
	format  Format     // empty for the oldest that holds the state
	nodes   []nodeText // by id
	order   []int      // of nodes in the file: encoding/json sorts "10" before "2"
	pods    []*podText // by UID
	sums    sums       // over pods
	amounts bool       // the pods' per-node amounts are written
	scratch podText
}

// nodeText is one node's part of the file.
type nodeText struct {
	node memorymanager.NodeState
	json []byte // "ID":{...}
	span *span  // ID:<*>{...}, under the checksum
}

// podText is one pod's part of the file.
type podText struct {
	pod     string
	entries piece  // of its containers: "POD":{"CONTAINER":[...]}, and POD:map[CONTAINER:[...]] under the checksum
	own     piece  // of a pod with pod-level resources: "POD":{"memoryBlocks":[...]}, and POD:{MemoryBlocks:...}
	amounts uint32 // checksum of all per-node amounts that it has
	span    *span  // of entries.text
}

// sums are what pods add up to, kept up to date because a decision changes one pod of a thousand.
type sums struct {
	own     int    // pods with a part of their own
	amounts uint32 // checksum of per-node amounts
}

func (s *sums) add(p *podText) {
	s.amounts += p.amounts
	if len(p.own.json) > 0 {
		s.own++
	}
}

func (s *sums) remove(p *podText) {
	s.amounts -= p.amounts
	if len(p.own.json) > 0 {
		s.own--
	}
}

// piece is a part of the file; its texts are empty where the pod has no such part.
type piece struct {
	json        []byte
	jsonAmounts []byte // the same with the per-node amounts of all blocks; empty when it has none
	text        []byte // under the checksum
}

func newEncoder(policy string) *encoder { return &encoder{policy: validUTF8(policy)} }

// setNodes takes over the node map, which is sorted by id; false when nothing changed.
func (e *encoder) setNodes(nodes []memorymanager.NodeState) bool {
	sameID := func(text nodeText, node memorymanager.NodeState) bool { return text.node.ID == node.ID }
	changed := !slices.EqualFunc(e.nodes, nodes, sameID)
	if changed {
		e.nodes = make([]nodeText, len(nodes))
		e.order = e.order[:0]
		for i := range nodes {
			e.order = append(e.order, i)
		}
		slices.SortFunc(e.order, func(a, b int) int {
			return strings.Compare(strconv.Itoa(nodes[a].ID), strconv.Itoa(nodes[b].ID))
		})
	}
	for i, node := range nodes {
		text := &e.nodes[i]
		if text.span != nil && text.shows(node) {
			continue
		}
		changed = true
		node.Memory = append(text.node.Memory[:0], node.Memory...)
		*text = nodeText{node: node, json: appendNodeJSON(text.json[:0], node), span: newSpan(appendNodeText(nil, node))}
	}
	return changed
}

func (t *nodeText) shows(node memorymanager.NodeState) bool {
	return t.node.Assignments == node.Assignments && t.node.Cells == node.Cells && slices.Equal(t.node.Memory, node.Memory)
}

// decide takes over what one decision changed, a pod without allocations is gone; false when nothing changed. Per-node
// amounts of a state before it are no longer true.
func (e *encoder) decide(nodes []memorymanager.NodeState, pod memorymanager.PodAllocations) bool {
	changed := e.setNodes(nodes)
	changed = e.setPod(pod, false) || changed
	changed = changed || e.amounts
	e.amounts = false
	return changed
}

// replace takes over a whole state; false when nothing changed.
func (e *encoder) replace(s memorymanager.State) bool {
	changed := e.setNodes(s.Nodes)
	pods := byPod(s)
	amounts := slices.ContainsFunc(pods, hasAmounts) && !nodesTellAmounts(s)
	changed = changed || amounts != e.amounts
	e.amounts = amounts
	there := make(map[string]bool, len(pods))
	for _, pod := range pods {
		there[validUTF8(pod.Pod)] = true
		changed = e.setPod(pod, amounts) || changed
	}
	before := len(e.pods)
	e.pods = slices.DeleteFunc(e.pods, func(p *podText) bool {
		if there[p.pod] {
			return false
		}
		e.sums.remove(p)
		return true
	})
	return changed || len(e.pods) != before
}

// byPod are the allocations of a state, whose entries are sorted by pod.
func byPod(s memorymanager.State) (pods []memorymanager.PodAllocations) {
	own := make(map[string][]memorymanager.Block, len(s.Pods))
	for _, entry := range s.Pods {
		own[entry.Pod] = entry.Blocks
	}
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

// setPod takes over all that a pod has; without anything the pod goes. It is false when nothing changed.
func (e *encoder) setPod(pod memorymanager.PodAllocations, amounts bool) bool {
	pod.Pod = validUTF8(pod.Pod)
	at, found := slices.BinarySearchFunc(e.pods, pod.Pod, func(p *podText, uid string) int { return strings.Compare(p.pod, uid) })
	gone := pod.Empty()
	if !gone {
		e.scratch.encode(pod, amounts)
	}
	if gone && !found || !gone && found && e.pods[at].equal(&e.scratch) {
		return false
	}
	if found {
		e.sums.remove(e.pods[at])
	}
	if gone {
		e.pods = slices.Delete(e.pods, at, at+1)
		return true
	}
	p := e.scratch.clone()
	e.sums.add(p)
	if found {
		e.pods[at] = p
	} else {
		e.pods = slices.Insert(e.pods, at, p)
	}
	return true
}

// appendTo appends the file's text: the kept pieces behind each other, and their checksum.
func (e *encoder) appendTo(b []byte) []byte {
	format := e.format
	if format == "" {
		format = V1
		if e.sums.own > 0 {
			format = V3
		}
	}
	amounts := e.amounts && format != V3 // V3 has them in its data
	b = e.appendContent(b, format == V2, amounts)
	b = appendField(b, `,"checksum":`, uint64(e.checksum(format == V2)))
	if amounts {
		b = e.appendAmountsSum(b)
	}
	if format == V3 {
		data := e.appendContent(nil, true, e.amounts)
		if e.amounts {
			data = e.appendAmountsSum(data)
		}
		data = append(data, '}')
		b = appendString(append(b, `,"data":`...), string(data))
		b = appendField(b, `,"dataChecksum":`, uint64(dataSum(data)))
	}
	return append(b, '}')
}

// dataSum is the checksum of layout V3.
func dataSum[T string | []byte](data T) uint32 { return fnv1a(fnv1a(fnvOffset, "(string)"), data) }

// appendContent appends everything before the checksum.
func (e *encoder) appendContent(b []byte, podEntries, amounts bool) []byte {
	b = append(b, `{"policyName":`...)
	b = appendString(b, e.policy)
	b = append(b, `,"machineState":{`...)
	for i, at := range e.order {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, e.nodes[at].json...)
	}
	b = append(b, '}')
	b = e.appendPieces(b, `,"entries":{`, amounts, func(p *podText) *piece { return &p.entries })
	if podEntries {
		b = e.appendPieces(b, `,"podEntries":{`, amounts, func(p *podText) *piece { return &p.own })
	}
	return b
}

// appendPieces appends an object with one piece of each pod that has it; nothing when no pod has.
func (e *encoder) appendPieces(b []byte, open string, amounts bool, of func(*podText) *piece) []byte {
	begun := false
	for _, p := range e.pods {
		piece := of(p)
		if len(piece.json) == 0 {
			continue
		}
		if begun {
			b = append(b, ',')
		} else {
			b, begun = append(b, open...), true
		}
		if amounts && len(piece.jsonAmounts) > 0 {
			b = append(b, piece.jsonAmounts...)
		} else {
			b = append(b, piece.json...)
		}
	}
	if begun {
		b = append(b, '}')
	}
	return b
}

// checksum is that of layout V1, or of V2.
func (e *encoder) checksum(podEntries bool) uint32 {
	hash := fnv1a(fnvOffset, textPolicy)
	hash = fnv1a(hash, e.policy)
	hash = fnv1a(hash, textNodes+"map[")
	for i := range e.nodes {
		if i > 0 {
			hash = fnv1a(hash, " ")
		}
		hash = e.nodes[i].span.extend(hash)
	}
	hash = fnv1a(hash, "]"+textEntries+"map[")
	separator := ""
	for _, p := range e.pods {
		if len(p.entries.text) > 0 {
			hash = p.span.extend(fnv1a(hash, separator))
			separator = " "
		}
	}
	if podEntries {
		hash = fnv1a(hash, "]"+textPodEntries+"map[")
		separator = ""
		for _, p := range e.pods {
			if len(p.own.text) > 0 {
				hash = fnv1a(fnv1a(hash, separator), p.own.text)
				separator = " "
			}
		}
	}
	return fnv1a(hash, "]"+textEnd)
}

// appendAmountsSum appends the checksum of the per-node amounts.
func (e *encoder) appendAmountsSum(b []byte) []byte {
	return appendField(b, `,"perNodeChecksum":`, uint64(e.sums.amounts))
}

func (p *podText) encode(pod memorymanager.PodAllocations, amounts bool) {
	amounts = amounts && hasAmounts(pod)
	p.pod = pod.Pod
	p.entries.reset()
	p.own.reset()
	if len(pod.Entries) > 0 {
		p.entries.json = appendPodJSON(p.entries.json, pod.Pod, pod.Entries, false)
		p.entries.text = appendPodText(p.entries.text, pod.Pod, pod.Entries)
	}
	if pod.Blocks != nil {
		p.own.json = appendPodEntryJSON(p.own.json, pod.Pod, pod.Blocks, false)
		p.own.text = appendPodEntryText(p.own.text, pod.Pod, pod.Blocks)
	}
	p.amounts = 0
	if !amounts {
		return
	}
	p.amounts = amountsSum(pod)
	if len(pod.Entries) > 0 {
		p.entries.jsonAmounts = appendPodJSON(p.entries.jsonAmounts, pod.Pod, pod.Entries, true)
	}
	if pod.Blocks != nil {
		p.own.jsonAmounts = appendPodEntryJSON(p.own.jsonAmounts, pod.Pod, pod.Blocks, true)
	}
}

func hasAmounts(pod memorymanager.PodAllocations) bool {
	has := func(b memorymanager.Block) bool { return b.PerNode != nil }
	return slices.ContainsFunc(pod.Blocks, has) || slices.ContainsFunc(pod.Entries, func(e memorymanager.Entry) bool {
		return slices.ContainsFunc(e.Blocks, has)
	})
}

func (p *podText) equal(other *podText) bool {
	return p.entries.equal(&other.entries) && p.own.equal(&other.own)
}

func (p *podText) clone() *podText {
	c := &podText{pod: p.pod, entries: p.entries.clone(), own: p.own.clone(), amounts: p.amounts}
	c.span = newSpan(c.entries.text)
	return c
}

func (p *piece) reset() { p.json, p.jsonAmounts, p.text = p.json[:0], p.jsonAmounts[:0], p.text[:0] }

func (p *piece) equal(other *piece) bool {
	return bytes.Equal(p.json, other.json) && bytes.Equal(p.text, other.text) && bytes.Equal(p.jsonAmounts, other.jsonAmounts)
}

func (p *piece) clone() piece {
	return piece{json: slices.Clone(p.json), jsonAmounts: slices.Clone(p.jsonAmounts), text: slices.Clone(p.text)}
}

// validUTF8 replaces what JSON can not hold, so that the checksum is of what a reader sees.
func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

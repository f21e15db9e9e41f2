package checkpoint

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Encode returns the state file's text, which every kubelet from 1.21 reads.
//
// How much of a group's blocks is on each of its nodes is what the nodes have reserved, so the blocks' PerNode amounts
// are left out. They are written where the nodes do not show it, because containers are allocated beyond what a node has: in
// a key of each block, "perNode", and a key "perNodeChecksum" at the end, both of which the kubelet skips.
func Encode(policy string, s memorymanager.State) []byte {
	e := newEncoder(policy)
	e.replace(s)
	return e.appendTo(nil)
}

// An encoder keeps the text of each node and pod, so that a decision re-encodes what it changed, not the state.
type encoder struct {
	policy  string
	nodes   []nodeText // by id
	order   []int      // of nodes in the file: encoding/json sorts "10" before "2"
	pods    []*podText // by UID
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
	pod         string
	json        []byte // "POD":{"CONTAINER":[...]}
	jsonAmounts []byte // the same with per-node amounts; empty when it has none
	amounts     uint32 // their checksum
	text        []byte // POD:map[CONTAINER:[...]], under the checksum
	span        *span  // of the text
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

// decide takes over what one decision changed, a pod without entries is gone; false when nothing changed. Per-node
// amounts of a state before it are no longer true.
func (e *encoder) decide(nodes []memorymanager.NodeState, pod string, entries []memorymanager.Entry) bool {
	changed := e.setNodes(nodes)
	changed = e.setPod(validUTF8(pod), entries, false) || changed
	changed = changed || e.amounts
	e.amounts = false
	return changed
}

// replace takes over a whole state; false when nothing changed.
func (e *encoder) replace(s memorymanager.State) bool {
	changed := e.setNodes(s.Nodes)
	amounts := slices.ContainsFunc(s.Entries, hasAmounts) && !nodesTellAmounts(s)
	changed = changed || amounts != e.amounts
	e.amounts = amounts
	there := make(map[string]bool, len(s.Entries))
	for rest := s.Entries; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(entry memorymanager.Entry) bool { return entry.Pod != rest[0].Pod })
		if n < 0 {
			n = len(rest)
		}
		pod := validUTF8(rest[0].Pod)
		there[pod] = true
		changed = e.setPod(pod, rest[:n], amounts) || changed
		rest = rest[n:]
	}
	before := len(e.pods)
	e.pods = slices.DeleteFunc(e.pods, func(p *podText) bool { return !there[p.pod] })
	return changed || len(e.pods) != before
}

// setPod takes over all entries of a pod, which are sorted by container; without any the pod goes. It is false when
// nothing changed.
func (e *encoder) setPod(pod string, entries []memorymanager.Entry, amounts bool) bool {
	at, found := slices.BinarySearchFunc(e.pods, pod, func(p *podText, pod string) int { return strings.Compare(p.pod, pod) })
	if len(entries) == 0 {
		if found {
			e.pods = slices.Delete(e.pods, at, at+1)
		}
		return found
	}
	e.scratch.encode(pod, entries, amounts)
	switch {
	case found && e.pods[at].equal(&e.scratch):
		return false
	case found:
		e.pods[at] = e.scratch.clone()
	default:
		e.pods = slices.Insert(e.pods, at, e.scratch.clone())
	}
	return true
}

// appendTo appends the file's text: the kept pieces behind each other, and their checksum.
func (e *encoder) appendTo(b []byte) []byte {
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

	amounts := uint32(0)
	for i, p := range e.pods {
		if i == 0 {
			b = append(b, `,"entries":{`...)
		} else {
			b = append(b, ',')
			hash = fnv1a(hash, " ")
		}
		hash = p.span.extend(hash)
		if e.amounts && len(p.jsonAmounts) > 0 {
			b = append(b, p.jsonAmounts...)
			amounts += p.amounts
		} else {
			b = append(b, p.json...)
		}
	}
	if len(e.pods) > 0 {
		b = append(b, '}')
	}
	hash = fnv1a(hash, "]"+textEnd)
	b = appendField(b, `,"checksum":`, uint64(hash))
	if e.amounts {
		b = appendField(b, `,"perNodeChecksum":`, uint64(amounts))
	}
	return append(b, '}')
}

func (p *podText) encode(pod string, entries []memorymanager.Entry, amounts bool) {
	p.pod = pod
	p.json = appendPodJSON(p.json[:0], pod, entries, false)
	p.text = appendPodText(p.text[:0], pod, entries)
	p.jsonAmounts, p.amounts = p.jsonAmounts[:0], 0
	if amounts && slices.ContainsFunc(entries, hasAmounts) {
		p.jsonAmounts = appendPodJSON(p.jsonAmounts, pod, entries, true)
		p.amounts = amountsSum(pod, entries)
	}
}

func hasAmounts(entry memorymanager.Entry) bool {
	return slices.ContainsFunc(entry.Blocks, func(b memorymanager.Block) bool { return b.PerNode != nil })
}

func (p *podText) equal(other *podText) bool {
	return bytes.Equal(p.json, other.json) && bytes.Equal(p.text, other.text) && bytes.Equal(p.jsonAmounts, other.jsonAmounts)
}

func (p *podText) clone() *podText {
	text := slices.Clone(p.text)
	return &podText{
		pod: p.pod, json: slices.Clone(p.json), jsonAmounts: slices.Clone(p.jsonAmounts), amounts: p.amounts,
		text: text, span: newSpan(text),
	}
}

// validUTF8 replaces what JSON can not hold, so that the checksum is of what a reader sees.
func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

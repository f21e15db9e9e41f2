package checkpoint

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Encode returns the state file's text, which every kubelet from 1.21 reads. Blocks that know their per-node amounts
// carry them in a key that the kubelet skips.
func Encode(policy string, s memorymanager.State) []byte {
	e := newEncoder(policy)
	e.replace(s)
	return e.appendTo(nil)
}

// An encoder keeps the text of each pod, so that a decision re-encodes one pod and the node map, not the state.
type encoder struct {
	policy    string
	nodesJSON []byte // the object's inside, in the order of the ids' text as encoding/json sorts them
	nodesText []byte // the map's inside, in the order of the ids
	pods      []*podText
	scratch   podText
}

// podText is one pod's part of the file.
type podText struct {
	pod     string
	json    []byte // "POD":{"CONTAINER":[...]}
	text    []byte // POD:map[CONTAINER:[...]], under the checksum
	span    *span  // of text
	amounts uint32 // amountsSum
	perNode bool   // some block has per-node amounts
}

func newEncoder(policy string) *encoder { return &encoder{policy: validUTF8(policy)} }

// setNodes takes over the node map, which is sorted by id; false when nothing changed.
func (e *encoder) setNodes(nodes []memorymanager.NodeState) bool {
	text := make([]byte, 0, len(e.nodesText)+64)
	for i, node := range nodes {
		if i > 0 {
			text = append(text, ' ')
		}
		text = appendNodeText(text, node)
	}
	if bytes.Equal(text, e.nodesText) {
		return false
	}
	e.nodesText = text
	e.nodesJSON = e.nodesJSON[:0]
	for i, node := range inTextOrder(nodes) {
		if i > 0 {
			e.nodesJSON = append(e.nodesJSON, ',')
		}
		e.nodesJSON = appendNodeJSON(e.nodesJSON, node)
	}
	return true
}

// inTextOrder sorts nodes as encoding/json sorts integer keys: "10" before "2".
func inTextOrder(nodes []memorymanager.NodeState) []memorymanager.NodeState {
	if len(nodes) == 0 || nodes[len(nodes)-1].ID < 10 {
		return nodes
	}
	return slices.SortedFunc(slices.Values(nodes), func(a, b memorymanager.NodeState) int {
		return strings.Compare(strconv.Itoa(a.ID), strconv.Itoa(b.ID))
	})
}

// setPod takes over all entries of a pod, which are sorted by container; without any the pod goes. It is false when
// nothing changed.
func (e *encoder) setPod(pod string, entries []memorymanager.Entry) bool {
	pod = validUTF8(pod)
	at, found := slices.BinarySearchFunc(e.pods, pod, func(p *podText, pod string) int { return cmp.Compare(p.pod, pod) })
	if len(entries) == 0 {
		if found {
			e.pods = slices.Delete(e.pods, at, at+1)
		}
		return found
	}
	e.scratch.encode(pod, entries)
	if found && e.pods[at].equal(&e.scratch) {
		return false
	}
	fresh := e.scratch.clone()
	if found {
		e.pods[at] = fresh
	} else {
		e.pods = slices.Insert(e.pods, at, fresh)
	}
	return true
}

// replace takes over a whole state; false when nothing changed.
func (e *encoder) replace(s memorymanager.State) bool {
	changed := e.setNodes(s.Nodes)
	there := make(map[string]bool, len(s.Entries))
	for rest := s.Entries; len(rest) > 0; {
		pod := rest[0].Pod
		n := slices.IndexFunc(rest, func(entry memorymanager.Entry) bool { return entry.Pod != pod })
		if n < 0 {
			n = len(rest)
		}
		changed = e.setPod(pod, rest[:n]) || changed
		there[validUTF8(pod)] = true
		rest = rest[n:]
	}
	before := len(e.pods)
	e.pods = slices.DeleteFunc(e.pods, func(p *podText) bool { return !there[p.pod] })
	return changed || len(e.pods) != before
}

// appendTo appends the file's text: the kept pieces behind each other, and their checksum.
func (e *encoder) appendTo(b []byte) []byte {
	b = append(b, `{"policyName":`...)
	b = appendString(b, e.policy)
	b = append(b, `,"machineState":{`...)
	b = append(b, e.nodesJSON...)
	b = append(b, '}')

	hash := fnv1a(fnvOffset, textPolicy)
	hash = fnv1a(hash, e.policy)
	hash = fnv1a(hash, textNodes+"map[")
	hash = fnv1a(hash, e.nodesText)
	hash = fnv1a(hash, "]"+textEntries+"map[")

	amounts, perNode := uint32(0), false
	for i, p := range e.pods {
		if i == 0 {
			b = append(b, `,"entries":{`...)
		} else {
			b = append(b, ',')
			hash = fnv1a(hash, " ")
		}
		b = append(b, p.json...)
		hash = p.span.extend(hash)
		amounts += p.amounts
		perNode = perNode || p.perNode
	}
	if len(e.pods) > 0 {
		b = append(b, '}')
	}
	hash = fnv1a(hash, "]"+textEnd)
	b = appendField(b, `,"checksum":`, uint64(hash))
	if perNode {
		b = appendField(b, `,"perNodeChecksum":`, uint64(amounts))
	}
	return append(b, '}')
}

func (p *podText) encode(pod string, entries []memorymanager.Entry) {
	p.pod = pod
	p.json = append(appendString(p.json[:0], pod), `:{`...)
	p.text = append(append(p.text[:0], pod...), ":map["...)
	p.perNode = false
	for i, entry := range entries {
		entry.Container = validUTF8(entry.Container)
		if i > 0 {
			p.json = append(p.json, ',')
			p.text = append(p.text, ' ')
		}
		p.json = appendEntryJSON(p.json, entry)
		p.text = appendEntryText(p.text, entry)
		for _, block := range entry.Blocks {
			p.perNode = p.perNode || block.PerNode != nil
		}
	}
	p.json = append(p.json, '}')
	p.text = append(p.text, ']')
	p.amounts = amountsSum(pod, entries)
}

func (p *podText) equal(other *podText) bool {
	return bytes.Equal(p.json, other.json) && bytes.Equal(p.text, other.text)
}

func (p *podText) clone() *podText {
	text := slices.Clone(p.text)
	return &podText{pod: p.pod, json: slices.Clone(p.json), text: text, span: newSpan(text), amounts: p.amounts, perNode: p.perNode}
}

// validUTF8 replaces what JSON can not hold, so that the checksum is of what a reader sees.
func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

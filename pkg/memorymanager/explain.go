package memorymanager

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// maxCandidates bounds an explanation.
const maxCandidates = 2*nodeset.Max + 2

// Explanation is how a container would be placed now.
type Explanation struct {
	// Placement is the outcome; Err the rejection instead.
	Placement Placement
	Err       error
	// Candidates are the sets of nodes that were considered: the one taken first, then single nodes, groups, and the
	// narrowest set of unused nodes.
	Candidates []Candidate
}

// Candidate is one set of nodes.
type Candidate struct {
	Nodes nodeset.Set
	// Preferred as in the Topology Manager's hints.
	Preferred bool
	// Chosen is set for the one that was taken.
	Chosen bool
	// Why it was not taken; empty when it was.
	Why string
}

// Explain says how a container would be placed, and why not elsewhere, without allocation anything.
func (m *Manager) Explain(c Container) Explanation {
	var e Explanation
	if cause := c.Request.invalid(); cause != "" {
		return Explanation{Err: m.reject(c, InvalidRequest, cause)}
	}
	if existing := m.container(c.Pod, c.Name); existing != nil {
		e.Placement = Placement{
			Affinity: m.regenerated(c.Pod, c.Request, existing.blocks),
			Blocks:   copied(existing.blocks), Nodes: span(existing.blocks), Existing: true,
		}
	} else if hint, nodes, rejected := m.place(c); rejected != nil {
		e.Err = rejected
	} else {
		e.Placement = Placement{Affinity: hint, Nodes: nodes, Bounded: m.hints.bounded}
		for _, amount := range c.Request {
			e.Placement.Blocks = append(e.Placement.Blocks, Block{Nodes: nodes, Type: amount.Type, Size: amount.Bytes})
		}
	}
	h, known := m.hintsFor(c.Pod, c.Request)
	seen := map[nodeset.Set]bool{}
	consider := func(nodes nodeset.Set) {
		if nodes.Empty() || seen[nodes] || len(e.Candidates) == maxCandidates {
			return
		}
		seen[nodes] = true
		candidate := Candidate{Nodes: nodes, Chosen: nodes == e.Placement.Nodes, Why: m.why(nodes, c)}
		candidate.Preferred = candidate.Why == "" && known && h.minimal(nodes.Len())
		switch {
		case candidate.Chosen:
			candidate.Why = ""
		case candidate.Why == "" && e.Err != nil:
			candidate.Why = "not as the policy " + string(m.policy) + " wants it"
		case candidate.Why == "":
			candidate.Why = "has room, but comes after " + e.Placement.Nodes.Named()
		}
		e.Candidates = append(e.Candidates, candidate)
	}
	consider(e.Placement.Nodes)
	for id := range m.all.All() {
		consider(nodeset.Of(id))
	}
	for group := range m.groupsOfMany() {
		consider(group)
	}
	consider(h.narrow())
	consider(m.unused)
	return e
}

package memorymanager

import (
	"fmt"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Explanation is how a container is placed, or would be now; its JSON is a part of explain.
type Explanation struct {
	// Nodes, Preferred, Existing, Bounded and Blocks are a Placement's; Rejected says why there is none.
	Nodes     nodeset.Set `json:"numaNodes,omitempty"`
	Preferred bool        `json:"preferred"`
	Existing  bool        `json:"existing"`
	Bounded   bool        `json:"bounded,omitempty"`
	Blocks    []Block     `json:"blocks,omitempty"`
	Rejected  string      `json:"rejected,omitempty"`
	// Candidates are the sets of nodes to consider now, without the container's own allocation: the chosen one first, then
	// single nodes, groups, and the narrowest set of unused nodes.
	Candidates []Candidate `json:"candidates"`
	// Strategy says in one line what numa-allocation-strategy decides now; empty when nothing.
	Strategy string `json:"strategy,omitempty"`
	// Aligned says in one line whether CPUs or devices count, where these disagree, and what is nearest to those that are on no node of the
	// map; empty where they agree on nodes of the map.
	Aligned string `json:"aligned,omitempty"`
}

// Candidate is one set of nodes.
type Candidate struct {
	Nodes nodeset.Set `json:"numaNodes"`
	// Preferred as in the Topology Manager's hints.
	Preferred bool `json:"preferred"`
	// Chosen is set for the one that the container has, or would have now.
	Chosen bool `json:"chosen"`
	// Why it is not; empty when it is.
	Why string `json:"why,omitempty"`
}

// Explain says how a container would be placed, and why not elsewhere; it allocates nothing. A container that has an
// allocation keeps it; the candidates are judged as if it came now, without its own allocation.
func (m *Manager) Explain(c Container) Explanation {
	if cause := c.Request.invalid(); cause != "" {
		return Explanation{Rejected: m.reject(c, InvalidRequest, cause).Text(), Candidates: []Candidate{}}
	}
	spare := m.Clone()
	existing := spare.container(c.Pod, c.Name)
	if existing == nil {
		return spare.judge(c, Explanation{})
	}
	has, err := spare.Allocate(c)
	if err != nil { // its CPUs have moved since
		has = Placement{Blocks: copied(existing.blocks), Nodes: span(existing.blocks), Existing: true}
	}
	if own := spare.PodBlocks(c.Pod); own != nil { // what was placed is the pod
		c.Request = sizes(own)
		spare.ReleasePod(c.Pod)
	}
	spare.Release(c.Pod, c.Name)
	return spare.judge(c, explanationOf(has))
}

func explanationOf(p Placement) Explanation {
	return Explanation{Nodes: p.Nodes, Preferred: p.Affinity.Preferred, Existing: p.Existing, Bounded: p.Bounded, Blocks: p.Blocks}
}

// judge makes the decision about a container without an allocation, and says what it has considered. e has an allocation that the
// container keeps all the same.
func (m *Manager) judge(c Container, e Explanation) Explanation {
	keeps := e.Existing
	placement, rejected := m.chooseNodes(c)
	now := placement.Nodes
	switch {
	case rejected == nil && !keeps:
		e = explanationOf(placement)
	case !keeps:
		e.Rejected = rejected.Text()
	}
	if rejected == nil {
		e.Strategy = m.hints.byStrategy()
	}
	e.Candidates = []Candidate{}
	e.Aligned = m.whoCounts(c, e.Nodes)
	h, known := m.hintsFor(c.Pod, c.Request)
	consider := func(nodes nodeset.Set) {
		if nodes.Empty() || slices.ContainsFunc(e.Candidates, func(c Candidate) bool { return c.Nodes == nodes }) {
			return
		}
		candidate := Candidate{Nodes: nodes, Chosen: nodes == e.Nodes, Why: m.why(nodes, c)}
		candidate.Preferred = candidate.Why == "" && known && h.minimal(nodes.Len())
		switch {
		case candidate.Chosen:
			candidate.Why = ""
		case candidate.Why == "" && rejected != nil:
			candidate.Why = "not as the policy " + string(m.options.Policy) + " wants it"
		case candidate.Why == "" && nodes == now:
			candidate.Why = "has room now, and would be chosen now"
		case candidate.Why == "":
			candidate.Why = "has room, but comes after " + now.Named()
		}
		e.Candidates = append(e.Candidates, candidate)
	}
	consider(e.Nodes)
	for id := range m.all.All() {
		consider(nodeset.Of(id))
	}
	for group := range m.groupsOfMany() {
		consider(group)
	}
	consider(h.narrow())
	consider(m.unused)
	if rejected == nil && !keeps {
		e.Blocks = m.enter(c, now)
	}
	return e
}

// whoCounts says what decides where a container's CPUs and devices disagree, and where its memory is away from its devices;
// empty where there is nothing to say.
func (m *Manager) whoCounts(c Container, placed nodeset.Set) string {
	in := m.providers(c)
	if !m.rules.Aligns {
		return ""
	}
	where := m.misaligned(c)
	if len(in.Devices) == 0 || in.Agree() {
		away := func(d topologymanager.Device) bool { return d.Nodes&placed == 0 }
		if placed.Empty() || !slices.ContainsFunc(in.Devices, away) {
			return m.offMap(c.attached())
		}
		return where + ": its memory is not there"
	}
	aligned, counts := m.aligned(c, in), "the nodes of all of them count"
	switch {
	case c.Required:
		return where + ": the pod's annotation numa is required, and they have no NUMA node in common"
	case m.options.AlignTo == topologymanager.AlignToKubelet:
		return where + ": onConflict Kubelet prefers none of these"
	case len(aligned.Devices) == 0:
		counts = "the CPUs count"
	case !in.CPUs.Empty() && aligned.CPUs.Empty():
		counts = "the devices count"
	}
	return where + fmt.Sprintf(": onConflict %s, so that %s", m.options.AlignTo, counts)
}

// Clone returns a copy that shares nothing with the manager that either of them changes.
func (m *Manager) Clone() *Manager {
	spare := *m
	spare.columns, spare.hints = make([]*column, len(m.columns)), hints{}
	for i, c := range m.columns {
		own := *c // what containers have is in arrays of its own
		spare.columns[i] = &own
	}
	spare.pods = make([]*pod, len(m.pods))
	for at, p := range m.pods {
		own := &pod{uid: p.uid, affinity: p.affinity, containers: slices.Clone(p.containers), blocks: slices.Clone(p.blocks)}
		for i := range own.containers {
			own.containers[i].blocks = slices.Clone(own.containers[i].blocks)
		}
		spare.pods[at] = own
	}
	return &spare
}

package ledger

import (
	"maps"
	"slices"
)

// Snapshot is everything that the ledger remembers. It shares with the ledger what never changes, and may be encoded outside of the
// driver's lock.
func (l *Ledger) Snapshot() State {
	s := l.state
	s.Claims, s.Raises = maps.Clone(s.Claims), maps.Clone(s.Raises)
	s.StoppedSandboxes, s.EndedContainers = slices.Clone(s.StoppedSandboxes), slices.Clone(s.EndedContainers)
	s.Parents, s.Counters = slices.Clone(s.Parents), l.Counters()
	s.Pods = make([]*PodState, len(l.state.Pods))
	for i, p := range l.state.Pods {
		s.Pods[i] = p.clone()
	}
	if l.manager != nil {
		allocations := l.manager.Snapshot()
		s.Allocations = &allocations
	}
	return s
}

func (p *PodState) clone() *PodState {
	copied := *p
	copied.Sandboxes = slices.Clone(p.Sandboxes)
	slots := make([]Slot, len(p.Slots))
	copied.Slots = make([]*Slot, len(p.Slots))
	for i, slot := range p.Slots {
		slots[i] = *slot
		copied.Slots[i] = &slots[i]
	}
	return &copied
}

// Open returns a ledger that goes on from a snapshot, which it owns from then on.
func Open(s State) (*Ledger, error) {
	allocations, states := s.Allocations, s.Pods
	s.Allocations, s.Pods = nil, nil
	l, err := startWith(s)
	if err != nil {
		return nil, err
	}
	if l.manager != nil && allocations != nil {
		if err := l.manager.Open(*allocations); err != nil {
			return nil, err
		}
		l.manager.Observe(s.NodeMemory)
	}
	for _, state := range states {
		l.openPod(state)
	}
	for _, p := range l.living {
		if l.manager != nil {
			p.stored = l.manager.Allocations(p.key())
		}
		p.derived = l.derive(p)
		for i, c := range p.containers {
			p.derived.runs[i].ours = p.derived.runs[i].cgroup != "" && c.Record.Ours
		}
	}
	return l, nil
}

// openPod has a pod of a snapshot among the living ones.
func (l *Ledger) openPod(s *PodState) {
	p := l.add(s, s.Key())
	path, managed, _ := s.Path() // it was good when the pod came
	l.locate(p, path, managed)
	for _, slot := range s.Slots {
		c := p.hold(slot)
		if c.alive() {
			l.containers[c.ID] = c
			if c.HasClaims {
				c.HasClaims = false
				has, err := l.judgeClaims(c)
				l.takeClaims(c, has, err == nil) // it had them
			} else {
				c.judged.names = l.state.Claims.Names(c.Claims)
			}
		}
	}
	l.takeRules(p)
	p.problems = p.findProblems()
	l.learnRoles(p)
}

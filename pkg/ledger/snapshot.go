package ledger

import (
	"maps"
	"slices"
)

// Snapshot returns a copy of the state. It shares with the ledger only what never changes, so it can be encoded without the driver's lock.
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

// Open returns a ledger that continues from a snapshot, and owns the snapshot.
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
		l.manager.SetNodeMemory(s.NodeMemory)
	}
	for _, state := range states {
		l.openPod(state)
	}
	for _, p := range l.living {
		p.derived = l.derive(p)
		for i, c := range p.containers {
			p.derived.runs[i].written = p.derived.runs[i].cgroup != "" && c.Record.Written
		}
	}
	return l, nil
}

// openPod adds a pod of a snapshot.
func (l *Ledger) openPod(s *PodState) {
	p := l.add(s, s.Key())
	path, managed, _ := s.Path() // it was valid when the pod was added
	l.locate(p, path, managed)
	for _, slot := range s.Slots {
		c := p.addContainer(slot)
		if c.alive() {
			l.containers[c.ID] = c
			if c.HasClaims {
				c.HasClaims = false
				has, err := l.resolveClaims(c)
				l.grantClaims(c, has, err == nil) // they were granted before
			} else {
				c.grant.names = l.state.Claims.Names(c.Claims)
			}
		}
	}
	l.setRules(p)
	p.problems = p.findProblems()
	l.learnRoles(p)
}

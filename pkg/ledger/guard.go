package ledger

import (
	"fmt"
	"maps"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// HighContainer is a running container with a memory.high of ours.
type HighContainer struct {
	ID, Name           string
	Namespace, PodName string
	// Cgroup is relative to the cgroup mount.
	Cgroup string
	// High is what Memory QoS gives, in bytes; Raised is what the stall guard has set instead, 0 when nothing.
	High, Raised uint64
	// Request is what it may count on: its request, or memory.min or memory.low where that is more.
	Request uint64
	// Limit is memory.max; 0 when there is none.
	Limit uint64
	// GuardOff is set where the pod or the configuration wants the container left alone by the stall guard.
	GuardOff bool
	// CacheRoom is set where High only leaves room to page cache.
	CacheRoom bool
}

// High returns the running containers that have a memory.high of ours.
func (l *Ledger) High() []HighContainer {
	if l.state.Resolved.Config.DryRun() {
		return nil
	}
	var all []HighContainer
	for _, p := range l.living {
		for i, c := range p.containers {
			if w := p.derived.runs[i].watched; w != (watched{}) {
				all = append(all, HighContainer{
					ID: c.ID, Name: c.Name, Namespace: p.Namespace, PodName: p.Name,
					Cgroup: c.Cgroup, High: w.high, Raised: c.Raised, Request: w.request, Limit: w.limit, GuardOff: w.off, CacheRoom: w.cacheRoom,
				})
			}
		}
	}
	return all
}

// guardOff reports whether the stall guard has to leave a container alone.
func (l *Ledger) guardOff(c *container) bool {
	return c.wishes().StallGuardOff || !l.state.Resolved.Config.StallGuard
}

// Raise makes the memory.high of a running container stand at so many bytes, cgroup.Max for "max"; the value that Memory
// QoS gives, or less, ends the raise. A resize or a reload recomputes what stands below it.
type Raise struct {
	ID    string
	Bytes uint64
}

func (e Raise) apply(l *Ledger) {
	out := &l.step.effects
	c := l.changeContainer(e.ID)
	var high *uint64
	if c != nil && c.Cgroup != "" {
		high = l.deriveRun(c).qos.High
	}
	if high == nil {
		out.Err = fmt.Errorf("container %s has no memory.high of ours", e.ID)
		return
	}
	if l.state.Resolved.Config.DryRun() {
		return
	}
	raise := e.Bytes > *high
	if raise && l.guardOff(c) { // decided before that was
		return
	}
	c.Raised = 0
	if raise {
		c.Raised = e.Bytes
	}
	l.journal(c, Adjustment{Unified: map[string]string{string(cgroup.MemoryHigh): ""}}, nil, nil)
}

// Raises are the raised memory.high values by container id: those of living containers, and those of Options whose
// containers have not been seen yet.
func (l *Ledger) Raises() map[string]uint64 {
	all := map[string]uint64{}
	maps.Copy(all, l.state.Raises)
	for id, c := range l.containers {
		if c.Raised > 0 {
			all[id] = c.Raised
		}
	}
	return all
}

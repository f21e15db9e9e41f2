package ledger

import (
	"fmt"
	"maps"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// HighContainer is a running container whose memory.high this plugin sets.
type HighContainer struct {
	ID, Name           string
	Namespace, PodName string
	// Cgroup is relative to the cgroup mount.
	Cgroup string
	// High is the memory.high of Memory QoS in bytes. Raised is what the stall guard has set instead; 0 if nothing.
	High, Raised uint64
	// Request is its memory request, or memory.min or memory.low if that is more.
	Request uint64
	// Limit is memory.max; 0 if there is none.
	Limit uint64
	// GuardOff is set if the pod or the configuration excludes the container from the stall guard.
	GuardOff bool
	// CacheRoom is set if High only leaves room for page cache.
	CacheRoom bool
}

// High returns the running containers whose memory.high this plugin sets.
func (l *Ledger) High() []HighContainer {
	if l.state.Resolved.Config.DryRun() {
		return nil
	}
	var all []HighContainer
	for _, p := range l.living {
		for i, c := range p.containers {
			if high := p.derived.runs[i].guarded; high.ID != "" {
				high.Raised = c.Raised
				all = append(all, high)
			}
		}
	}
	return all
}

// guardOff reports whether the stall guard does not apply to a container.
func (l *Ledger) guardOff(c *container) bool {
	return c.wishes().StallGuardOff || !l.state.Resolved.Config.StallGuard
}

// Raise sets the memory.high of a running container to Bytes; cgroup.Max is "max". Memory QoS's own value, or less, ends the raise. A
// resize or a reload recomputes that value and keeps the raise.
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
	if raise && l.guardOff(c) { // decided before the guard was switched off
		return
	}
	c.Raised = 0
	if raise {
		c.Raised = e.Bytes
	}
	l.journal(c, Adjustment{Unified: map[string]string{string(cgroup.MemoryHigh): ""}}, nil, nil)
}

// Raises returns the raised memory.high values by container id, including those from Options whose containers have not been seen yet.
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

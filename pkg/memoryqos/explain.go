package memoryqos

import (
	"cmp"
	"fmt"
	"math"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Steps say how a container's values come about, a line for each decision.
type Steps struct {
	// High is about memory.high, Protection about memory.min and memory.low. OOMGroup is about memory.oom.group, "" where that is the
	// kubelet's.
	High, Protection, OOMGroup string
	// Formula is what memory.high follows from; zero where it is not set, chosen by the pod, or the room for page cache.
	Formula Formula
}

// Formula is KEP-2570's for memory.high: request + Factor * (Top - request).
type Formula struct {
	Factor float64
	Top    uint64 // the limit or what stands in for it, in bytes
}

// EnoughRequest is the smallest request, in bytes, with which memory.high is so many bytes, less than a page short; 0 where none is.
func (f Formula) EnoughRequest(high uint64) uint64 {
	if f.Factor <= 0 || f.Factor >= 1 || high >= f.Top {
		return 0
	}
	return uint64(max(0, math.Ceil((float64(high)-f.Factor*float64(f.Top))/(1-f.Factor))))
}

// Explain gives what Container gives, with the steps that lead there.
func (s Settings) Explain(c Container, o Overrides) (Values, Steps) {
	t, p := s.throttling(c, o), s.protection(c, o)
	v := p.values()
	v.High, v.OOMGroup = positive(t.bytes), o.OOMGroup
	steps := Steps{High: s.explainHigh(t, c), Protection: s.explainProtection(p, c, o), OOMGroup: explainOOMGroup(o.OOMGroup)}
	if t.bytes > 0 && t.room == 0 && t.factor > 0 {
		steps.Formula = Formula{t.factor, t.top}
	}
	return v, steps
}

func explainOOMGroup(wish *uint64) string {
	switch {
	case wish == nil:
		return ""
	case *wish == 0:
		return "memory.oom.group = 0, from the pod's annotation: an OOM kill ends one process"
	}
	return "memory.oom.group = 1, from the pod's annotation: an OOM kill ends the whole container"
}

func (s Settings) explainHigh(t throttling, c Container) string {
	what := "limit"
	if c.ownLimit() == 0 {
		what = "node allocatable"
	}
	switch {
	case t.room > 0:
		sizes := quantity.Apart(c.Limit, t.bytes)
		return fmt.Sprintf("memory.high = limit %s less a share of %g for page cache = %s, where what writes files waits for the disk", sizes[0], t.room, sizes[1])
	case t.why == noRoom:
		return fmt.Sprintf("memory.high is not set: %s the %s of %s", t.why, what, quantity.Short(t.top))
	case t.why != "":
		return fmt.Sprintf("memory.high is not set: %s", t.why)
	case t.factor == 0:
		return fmt.Sprintf("memory.high = %s, from the pod's annotation, within its request and %s", quantity.Short(t.bytes), what)
	}
	page, sizes := cmp.Or(s.PageSize, defaultPageSize), quantity.Apart(c.Request, t.top, t.bytes)
	return fmt.Sprintf("memory.high = request %s + (%s %s - request) * %g = %s, in whole pages of %s",
		sizes[0], what, sizes[1], t.factor, sizes[2], quantity.Short(page))
}

func (s Settings) explainProtection(p protection, c Container, o Overrides) string {
	policy := string(s.Reservation)
	if o.Reservation != "" {
		policy = "annotation " + string(o.Reservation)
	}
	switch {
	case s.Off:
		return "no memory.min and no memory.low: " + string(off)
	case c.Request == 0:
		return "no memory.min and no memory.low: the container has no request, or none that is known"
	case p.file == ReserveNone:
		return fmt.Sprintf("no memory.min and no memory.low (%s, %s)", c.Class, policy)
	case p.bytes == c.Request:
		return fmt.Sprintf("memory.%s = request = %s, %s", p.file, quantity.Short(p.bytes), policy)
	case p.bytes == 0:
		return fmt.Sprintf("no memory.min (%s): the limit less a share of %g that stays reclaimable is no whole page", policy, s.GuaranteedHeadroom)
	}
	return fmt.Sprintf("memory.min = %s, %s: the limit less a share of %g that stays reclaimable", quantity.Short(p.bytes), policy, s.GuaranteedHeadroom)
}

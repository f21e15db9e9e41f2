package status

import (
	"fmt"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Throttling is how memory.high has held a running container up since it started, and what ends that.
type Throttling struct {
	// HighEvents counts how often it was reached (memory.events).
	HighEvents uint64 `json:"highEvents"`
	// Waited is the time in seconds in which some of its processes waited for memory, Stopped that in which all of them did, and Lately
	// the share of the last five minutes in which some did, in percent (memory.pressure). Other reasons to wait for memory count, too.
	Waited  float64 `json:"waitedSeconds"`
	Stopped float64 `json:"stoppedSeconds"`
	Lately  float64 `json:"waitedLatelyPercent"`
	// Fixed is what reclaim cannot take of what it uses, in bytes: all but page cache.
	Fixed uint64 `json:"fixed"`
	// Helps says what ends it.
	Helps string `json:"helps"`
}

// String describes the throttling.
func (t *Throttling) String() string {
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)).Round(time.Second / 10) }
	return fmt.Sprintf("memory.high was reached %d times since it started; processes waited %v for memory, all of them %v, in the last five minutes %.3g %% of the time",
		t.HighEvents, seconds(t.Waited), seconds(t.Stopped), t.Lately)
}

// throttling is nil for a container that has not reached its memory.high, or whose files cannot be read.
func (s Sources) throttling(e *ledger.Explanation) *Throttling {
	c := &e.Container
	if s.Tree == nil || c.State != ledger.Running || c.High == nil {
		return nil
	}
	events, err := s.Tree.Events(c.Cgroup)
	if err != nil || events.High == 0 {
		return nil
	}
	current, err := s.Tree.Current(c.Cgroup)
	stat, err2 := s.Tree.Stat(c.Cgroup)
	if err != nil || err2 != nil { // it has just ended
		return nil
	}
	pressure, _, err := s.Tree.Pressure(c.Cgroup)
	if err != nil {
		pressure = cgroupfs.Pressure{}
	}
	t := &Throttling{HighEvents: events.High, Waited: float64(pressure.Some.Total) / 1e6, Stopped: float64(pressure.Full.Total) / 1e6,
		Lately: pressure.Some.Avg300, Fixed: current - min(current, stat["active_file"]+stat["inactive_file"])}
	t.Helps = helps(t.Fixed, *c.High, c.Limit, e.High)
	return t
}

// spare divides what a container uses: so much more than that its memory.high should be.
const spare = 10

// helps says what ends the throttling of a container by its memory.high, all in bytes, a limit of 0 is none.
func helps(fixed, high, limit uint64, formula memoryqos.Formula) string {
	if fixed < high-high/spare {
		return fmt.Sprintf("%s of it cannot be reclaimed, the rest is page cache, which a larger request or limit would leave it more of", quantity.Short(fixed))
	}
	uses := fmt.Sprintf("%s of it cannot be reclaimed", quantity.Short(fixed))
	wanted := fixed + fixed/spare
	if limit > 0 && wanted >= limit {
		return uses + ": raise its limit"
	}
	if request := formula.EnoughRequest(wanted); request > 0 {
		return fmt.Sprintf("%s: a request of %s puts memory.high at %s; the annotation throttling-factor: 1, or memory-high: off, without one", uses,
			quantity.Short(request), quantity.Short(wanted))
	}
	return uses + ": the annotation memory-high with more, or off"
}

package guard

import (
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Episode describes one time when a container was stopped by its memory.high and given room.
type Episode struct {
	Container Container
	From, To  uint64        // memory.high before and after, bytes; Unlimited for "max"
	Raises    int           // steps taken
	Reclaimed uint64        // bytes of page cache freed instead
	Stalled   time.Duration // full stall during the episode
}

// Totals count since New.
type Totals struct {
	Episodes, Raises, Restores uint64
	Reclaimed                  uint64        // bytes
	Stalled                    time.Duration // full stall inside episodes
	Raised                     time.Duration // sum of the times that containers had a raised memory.high
}

// Status is the state of one container.
type Status struct {
	Container Container
	High      uint64 // memory.high, bytes; Unlimited for "max"
	Raised    bool
	Since     time.Time // of the first raise; zero if it is not raised
	Stopped   bool      // an episode is under way
	// FullBroken is set if full of memory.pressure does not advance although the container is stopped.
	FullBroken bool
}

func (g *Guard) beginEpisode(w *watched, high uint64) {
	if w.episode != nil {
		return
	}
	w.episode = &Episode{Container: w.Container, From: high, To: high}
	w.before = w.stall - min(w.stall, g.settings.Stall) // the trigger fired after this much stall
	g.totals.Episodes++
}

func (g *Guard) endEpisode(w *watched) {
	e := w.episode
	if e == nil {
		return
	}
	w.episode = nil
	e.Stalled = w.stall - w.before
	g.totals.Stalled += e.Stalled
	high := cgroup.LogApart(e.From, e.To)
	g.log.WithFields(w.fields()).WithFields(logrus.Fields{"memoryHigh": high[0], "raisedTo": high[1], "raises": e.Raises,
		"reclaimedBytes": quantity.Log(e.Reclaimed), "stalled": e.Stalled.String()}).
		Info("stall guard: the container was stopped by its memory.high and was given room")
	if g.onEpisode != nil {
		g.onEpisode(*e)
	}
}

func (g *Guard) endRaise(w *watched, now time.Time) {
	if !w.raisedAt.IsZero() {
		g.totals.Raised += now.Sub(w.raisedAt)
		w.raisedAt = time.Time{}
	}
}

// Totals returns the totals.
func (g *Guard) Totals() Totals {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.totals
	for _, w := range g.watched {
		if !w.raisedAt.IsZero() {
			t.Raised += time.Since(w.raisedAt)
		}
	}
	return t
}

// Statuses returns the status of watched containers, by container ID.
func (g *Guard) Statuses() map[string]Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[string]Status, len(g.watched))
	for id, w := range g.watched {
		all[id] = Status{Container: w.Container, High: w.brake.High(), Raised: w.brake.Raised(), Since: w.raisedAt, Stopped: w.episode != nil,
			FullBroken: w.noFull}
	}
	return all
}

func (c *Container) fields() logrus.Fields {
	return logrus.Fields{"pod": c.Pod, "container": c.Name, "id": c.ID}
}

// Package history keeps the last hour of a few values of the node, so that the page can show how it came to be as it is. It
// reads what the agent and the stall guard have in memory, and no cgroup.
package history

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

const (
	// every is the time between two points.
	every = 30 * time.Second
	// mostPoints bounds what is kept: an hour.
	mostPoints = 120
)

// Sources are what is kept.
type Sources struct {
	View func() *ledger.View
	// Rejections counts containers and resizes refused since the daemon started.
	Rejections func() uint64
	// Kills counts OOM kills in containers since the daemon started.
	Kills func() uint64
	// Throttled is the number of containers that are stopped by their memory.high or have been given room; nil without the
	// stall guard.
	Throttled func() uint64
}

// point is what held at one time.
type point struct {
	at         time.Time
	allocated  map[int]uint64 // bytes of memory by NUMA node
	rejections uint64         // since the daemon started, as kills
	kills      uint64
	throttled  uint64
}

// History is safe for concurrent use.
type History struct {
	sources Sources

	mu     sync.Mutex
	points []point // oldest first
}

// New returns a history that begins now.
func New(sources Sources) *History {
	h := &History{sources: sources}
	h.add(h.now())
	return h
}

// Run adds points until the context ends.
func (h *History) Run(ctx context.Context) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			h.add(h.now())
		}
	}
}

func (h *History) now() point {
	view := h.sources.View()
	p := point{at: view.Taken, allocated: make(map[int]uint64, len(view.Nodes)), rejections: h.sources.Rejections(), kills: h.sources.Kills()}
	for _, node := range view.Nodes {
		p.allocated[node.ID] = node.Of(memorymanager.Memory).Reserved
	}
	if h.sources.Throttled != nil {
		p.throttled = h.sources.Throttled()
	}
	return p
}

func (h *History) add(p point) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.points) == mostPoints {
		h.points = slices.Delete(h.points, 0, 1)
	}
	h.points = append(h.points, p)
}

// Document is behind /history: series of values, oldest first and the present one last, all of the same length.
type Document struct {
	Times []time.Time `json:"times"`
	// Nodes are the NUMA nodes that are there now.
	Nodes []Node `json:"nodes"`
	// Rejections are containers and resizes refused since the value before.
	Rejections []uint64 `json:"rejections"`
	// OOMKills are processes of containers that the kernel killed since the value before.
	OOMKills []uint64 `json:"oomKills"`
	// Throttled are containers that are stopped by their memory.high or have been given room.
	Throttled []uint64 `json:"throttled"`
}

// Node is the history of a NUMA node.
type Node struct {
	ID int `json:"id"`
	// Allocated is in bytes of memory, 0 while the node was not there.
	Allocated []uint64 `json:"allocated"`
}

// Document returns what is kept, and what holds now.
func (h *History) Document() *Document {
	now := h.now()
	h.mu.Lock()
	points := append(slices.Clone(h.points), now)
	h.mu.Unlock()
	d := &Document{Nodes: []Node{}}
	for id := range now.allocated {
		d.Nodes = append(d.Nodes, Node{ID: id})
	}
	slices.SortFunc(d.Nodes, func(a, b Node) int { return a.ID - b.ID })
	before := points[0]
	for _, p := range points {
		d.Times = append(d.Times, p.at)
		d.Rejections = append(d.Rejections, p.rejections-min(p.rejections, before.rejections))
		d.OOMKills = append(d.OOMKills, p.kills-min(p.kills, before.kills))
		d.Throttled = append(d.Throttled, p.throttled)
		for i := range d.Nodes {
			d.Nodes[i].Allocated = append(d.Nodes[i].Allocated, p.allocated[d.Nodes[i].ID])
		}
		before = p
	}
	return d
}

package agent

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cover"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

const (
	// coverPeriod is the time between two samples of what the NUMA nodes owe and what covers it.
	coverPeriod = 2 * time.Second
	// coverReads is how many containers' memory.numa_stat are read for one sample, so that its cost does not grow with the node:
	// those that were read longest ago.
	coverReads = 100
)

// coverage samples whether allocations hold. It belongs to one goroutine but for its last sample.
type coverage struct {
	last  atomic.Pointer[cover.Sample]
	seen  []cover.Node          // by the ledger; guarded by the agent's lock
	debt  debt                  // as logged
	pages map[string]*pagesRead // by cgroup
	round uint64
}

// pagesRead is what was read of a cgroup last; its round is 0 before the first time.
type pagesRead struct {
	pages   []cover.Pages
	round   uint64
	unknown error
	listed  uint64 // the last round in which there was such a cgroup
}

// sampleCover samples until ctx ends.
func (a *Agent) sampleCover(ctx context.Context) {
	ticker := time.NewTicker(coverPeriod)
	defer ticker.Stop()
	for {
		a.takeCover(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// takeCover takes one sample, and has the ledger decide by it. Its reads are outside of all locks: first those of the container whose
// memory is on its way, so that what else is read is not from before its arrival.
func (a *Agent) takeCover(ctx context.Context) {
	event := ledger.NodeMemorySampled{Usage: a.usageOfMove(ctx), Covers: true}
	view, before := a.View(), a.coverage.last.Load()
	sample := &cover.Sample{}
	switch memory, err := a.nodeMemory(view); {
	case err != nil:
		sample.Unknown = err.Error()
	default:
		cgroups := view.Holding(before.InDebt())
		a.coverage.read(a.tree, cgroups)
		switch waiting, err := a.coverage.fill(cgroups); {
		case err != nil:
			sample.Unknown = err.Error()
		case waiting && !before.Known():
			sample.Unknown = "not all containers have been looked at yet"
		default:
			sample = cover.Take(a.now(), memory, cgroups)
			sample.Moves = view.Plan(sample.Nodes, cgroups)
			event.Nodes, event.Complete = sample.Nodes, before.InDebt() && !waiting
			event.Cgroups = slices.DeleteFunc(cgroups, func(c cover.Cgroup) bool { return c.Order == cover.Stays && c.Off.Empty() })
		}
	}
	sample.At = a.now()
	a.coverage.last.Store(sample)
	a.decideBySample(ctx, event)
	if sample.Known() {
		a.coverage.debt.log(a.log, sample, a.View().NotMoved)
	}
}

// nodeMemory reads what the NUMA nodes have; an error where nothing is to be known of them.
func (a *Agent) nodeMemory(view *ledger.View) ([]cover.Memory, error) {
	switch {
	case !view.Config.Static:
		return nil, errors.New("memoryManagerPolicy is None: nothing is allocated")
	case a.sysfs == "":
		return nil, errors.New("the machine is described by a file: there is no kernel to ask")
	}
	return sysfs.NodeMemory(a.sysfs, a.hardware())
}

// decideBySample has the ledger decide by a sample where it may decide anything, and begins what it has decided.
func (a *Agent) decideBySample(ctx context.Context, event ledger.NodeMemorySampled) {
	a.mu.Lock()
	heeds := a.ledger.HeedsSample(event.Nodes)
	a.mu.Unlock()
	if !heeds {
		return
	}
	a.sampled(ctx, event)
	if move, dir, ticket := a.moving(); move != nil && !move.Allocates() && move.Stage == ledger.Allocated {
		a.storeMove(ctx, move, dir, ticket)
	}
	a.protect(ctx)
}

// read reads the cgroups that were read longest ago, and forgets those that are no more.
func (c *coverage) read(tree *cgroupfs.Tree, cgroups []cover.Cgroup) {
	c.round++
	if c.pages == nil {
		c.pages = map[string]*pagesRead{}
	}
	due := make([]string, 0, len(cgroups))
	for _, held := range cgroups {
		p := c.pages[held.Path]
		if p == nil {
			p = &pagesRead{}
			c.pages[held.Path] = p
		}
		if p.listed != c.round && held.Path != "" {
			due = append(due, held.Path)
		}
		p.listed = c.round
	}
	for path, p := range c.pages {
		if p.listed != c.round {
			delete(c.pages, path)
		}
	}
	for _, path := range c.oldest(due) {
		c.pages[path].take(tree.Pages(path))
		c.pages[path].round = c.round
	}
}

// oldest are the cgroups whose turn it is.
func (c *coverage) oldest(due []string) []string {
	if len(due) > coverReads {
		slices.SortStableFunc(due, func(x, y string) int { return cmp.Compare(c.pages[x].round, c.pages[y].round) })
		due = due[:coverReads]
	}
	return due
}

// take keeps what was read. A cgroup that is gone, or not made yet, has no pages.
func (p *pagesRead) take(found map[int]cgroupfs.NodePages, err error) {
	p.pages, p.unknown = nil, nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.unknown = err
		return
	}
	for node, pages := range found {
		p.pages = append(p.pages, cover.Pages{Node: node, Resident: pages.Resident, File: pages.File, Anon: pages.Anon, Mapped: pages.Mapped})
	}
}

// fill puts what was read into the cgroups, and reports whether some have not been read yet. One that cannot be read is not counted;
// the error is that of the first where none can.
func (c *coverage) fill(cgroups []cover.Cgroup) (waiting bool, err error) {
	known := false
	for i := range cgroups {
		p := c.pages[cgroups[i].Path]
		if p.unknown != nil {
			cgroups[i].Unread = p.unknown.Error()
			err = cmp.Or(err, p.unknown)
			continue
		}
		waiting = waiting || p.round == 0 && cgroups[i].Path != ""
		known = known || p.round > 0
		cgroups[i].Pages = p.pages
	}
	if known {
		err = nil
	}
	return waiting, err
}

// observeCover has the ledger know the last sample before it decides by it about a new container, with what is free at this moment:
// much may have been taken since the sample. Samples that nothing is decided by are no events, so that a recording holds none of them.
func (a *Agent) observeCover(pod ledger.Pod, container ledger.Container) {
	a.mu.Lock()
	heeds := a.ledger.HeedsCover(pod, container)
	a.mu.Unlock()
	if !heeds {
		return
	}
	var nodes []cover.Node
	if sample := a.coverage.last.Load(); sample.Known() {
		nodes = a.freeNow(sample.Nodes)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(nodes, a.coverage.seen) {
		a.coverage.seen = nodes
		a.stepLocked(ledger.NodeMemorySampled{Nodes: nodes})
	}
}

// freeNow are the nodes of a sample with the memory that the kernel has free now, as they are where that cannot be read.
func (a *Agent) freeNow(nodes []cover.Node) []cover.Node {
	found, err := sysfs.NodeMemory(a.sysfs, a.hardware())
	if err != nil {
		return nodes
	}
	nodes = slices.Clone(nodes)
	for i := range nodes {
		for _, m := range found {
			if n := &nodes[i]; n.ID == m.Node {
				n.Free, n.Reclaimable = m.Free, min(n.Reclaimable, m.File)
			}
		}
	}
	return nodes
}

// podMems reads the NUMA nodes that a pod's cgroup may use, for a memory policy of a container; empty where none is set, or
// they cannot be read.
func (a *Agent) podMems(pod ledger.Pod, container ledger.Container) nodeset.Set {
	a.mu.Lock()
	wanted := a.ledger.SetsMemoryPolicies(pod, container)
	a.mu.Unlock()
	path, managed, err := pod.Path()
	if !wanted || !managed || err != nil {
		return 0
	}
	nodes, _ := a.tree.EffectiveNodes(path.Pod) // none where they cannot be read
	return nodes
}

// debt is what the log says of deficits: when one begins, what would cover it, and when there is none any more.
type debt struct{ begun, planned bool }

func (d *debt) log(log logrus.FieldLogger, sample *cover.Sample, all []ledger.NotMoved) {
	notMoved := slices.DeleteFunc(slices.Clone(all), func(n ledger.NotMoved) bool { return n.Reason != ledger.Deficit })
	switch {
	case d.begun && sample.Deficit() == 0:
		log.Info("the NUMA nodes have enough memory available again for what is allocated on them")
		*d = debt{}
	case !d.begun && sample.InDebt():
		d.begun = true
		log.WithField("bytes", quantity.Log(sample.Deficit())).Warn("NUMA nodes have less memory available than is allocated on them and not used yet")
	}
	if d.begun && !d.planned && len(sample.Moves)+len(notMoved) > 0 {
		d.planned = true
		for _, n := range notMoved[:min(len(notMoved), mostMovesLogged)] {
			log.WithFields(logrus.Fields{"cgroup": n.Cgroup, "reason": n.Why}).Warn("memory is not moved off a NUMA node that lacks memory for its allocations")
		}
		for _, m := range sample.Moves[:min(len(sample.Moves), mostMovesLogged)] {
			log.WithFields(logrus.Fields{"cgroup": m.Path, "from": m.From, "to": m.To, "bytes": quantity.Log(m.Bytes)}).
				Info("moving this memory would give a NUMA node what its allocations need")
		}
	}
}

// mostMovesLogged bounds the lines of one deficit; status shows all moves.
const mostMovesLogged = 10

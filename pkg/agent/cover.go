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
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cover"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
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
	cure  cure
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

// takeCover takes one sample, and acts on it where memory is moved. Its reads are outside of all locks.
func (a *Agent) takeCover(ctx context.Context) {
	view := a.View()
	moves, moving := coversDeficits(view.Config.Config), a.moving()
	switch {
	case !view.Config.Static:
		a.coverage.unknown(a.now(), "memoryManagerPolicy is None: nothing is allocated")
		return
	case a.sysfs == "":
		a.coverage.unknown(a.now(), "the machine is described by a file: there is no kernel to ask")
		return
	}
	found, err := a.hardware().NodeMemory(a.sysfs)
	if err != nil {
		a.coverage.unknown(a.now(), err.Error())
		return
	}
	memory := make([]cover.Memory, len(found))
	for i, m := range found {
		memory[i] = cover.Memory{Node: m.Node, Free: m.Free, File: m.File}
	}
	plans := view.Config.Config.CoverDeficits != config.DeficitsOff
	movable := plans && a.coverage.last.Load().InDebt()
	cgroups := holding(view, movable)
	a.coverage.read(a.tree, cgroups)
	switch waiting, err := a.coverage.fill(cgroups); {
	case err != nil:
		a.coverage.unknown(a.now(), err.Error())
	case waiting && !a.coverage.last.Load().Known():
		a.coverage.unknown(a.now(), "not all containers have been looked at yet")
	default:
		sample := cover.Take(a.now(), memory, cgroups)
		switch {
		case moves:
			a.takeBack(ctx, view, sample, cgroups)
			if movable && !waiting && !moving {
				sample.NotMoved = a.makeStep(ctx, view, sample, cgroups)
			}
		case plans:
			sample.Moves = cover.Plan(sample.Nodes, cgroups)
		}
		a.coverage.last.Store(sample)
		a.coverage.debt.log(a.log, sample)
	}
}

func (c *coverage) unknown(at time.Time, why string) {
	clear(c.cure.calm)
	c.last.Store(&cover.Sample{At: at, Unknown: why})
}

// holding are the cgroups that have an allocation, are protected, or are kept off nodes, and with movable those whose memory may be
// moved. Those of a pod with an allocation of its own are one.
func holding(view *ledger.View, movable bool) (cgroups []cover.Cgroup) {
	for _, pod := range view.Pods {
		if pod.Blocks != nil {
			cgroups = append(cgroups, cover.Cgroup{Path: pod.Cgroup, Allocated: allocatedMemory(pod.Blocks)})
			continue
		}
		for i := range pod.Containers {
			c := &pod.Containers[i]
			held := cover.Cgroup{Path: c.Cgroup, Allocated: allocatedMemory(c.Blocks), Protected: protectedBytes(c), Order: order(pod.Class, c)}
			if c.KeptOff != nil {
				held.Off, held.Moved = c.KeptOff.Nodes, c.KeptOff.Moved
			}
			if len(held.Allocated) > 0 || c.State.Alive() && (held.Protected > 0 || !held.Off.Empty() || movable && held.Order != cover.Stays) {
				cgroups = append(cgroups, held)
			}
		}
	}
	return cgroups
}

// allocatedMemory is what blocks have of ordinary memory on each node: huge pages are in pools of their own.
func allocatedMemory(blocks []memorymanager.Block) (amounts []cover.Amount) {
	for _, block := range blocks {
		if block.Type != memorymanager.Memory {
			continue
		}
		for _, part := range block.PerNode {
			amounts = append(amounts, cover.Amount{Node: part.Node, Bytes: part.Bytes})
		}
	}
	return amounts
}

// order is when a container's memory may be moved: never that of Guaranteed pods, of containers with nodes or resource claims of their
// own, and of pods that say by annotation where they want to be.
func order(class memoryqos.QOSClass, c *ledger.ContainerView) cover.Order {
	switch {
	case c.State != ledger.Running || c.Cgroup == "" || c.Stays || !c.Nodes.Empty() || len(c.Claims) > 0:
		return cover.Stays
	case class == memoryqos.BestEffort:
		return cover.BestEffortFirst
	case class == memoryqos.Burstable:
		return cover.BurstableNext
	}
	return cover.Stays
}

func protectedBytes(c *ledger.ContainerView) (bytes uint64) {
	for _, value := range []*uint64{c.Values.Min, c.Values.Low} {
		if value != nil {
			bytes = max(bytes, *value)
		}
	}
	return bytes
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
		a.stepLocked(ledger.Covered{Nodes: nodes})
	}
}

// freeNow are the nodes of a sample with the memory that the kernel has free now, as they are where that cannot be read.
func (a *Agent) freeNow(nodes []cover.Node) []cover.Node {
	found, err := a.hardware().NodeMemory(a.sysfs)
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

func (d *debt) log(log logrus.FieldLogger, sample *cover.Sample) {
	switch {
	case d.begun && sample.Deficit() == 0:
		log.Info("the NUMA nodes have again what they owe to pinned containers")
		*d = debt{}
	case !d.begun && sample.InDebt():
		d.begun = true
		log.WithField("bytes", quantity.Log(sample.Deficit())).Warn("NUMA nodes owe pinned containers more memory than they have")
	}
	if d.begun && !d.planned && len(sample.Moves)+len(sample.NotMoved) > 0 {
		d.planned = true
		for _, m := range sample.NotMoved[:min(len(sample.NotMoved), mostMovesLogged)] {
			log.WithFields(logrus.Fields{"cgroup": m.Path, "reason": m.Why}).Warn("memory is not moved off a NUMA node that owes more than it has")
		}
		for _, m := range sample.Moves[:min(len(sample.Moves), mostMovesLogged)] {
			log.WithFields(logrus.Fields{"cgroup": m.Path, "from": m.From, "to": m.To, "bytes": quantity.Log(m.Bytes)}).
				Info("moving this memory would cover what a NUMA node owes")
		}
	}
}

// mostMovesLogged bounds the lines of one deficit; status shows all moves.
const mostMovesLogged = 10

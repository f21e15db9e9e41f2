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
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

const (
	// samplePeriod is the time between two samples of what is allocated and unused on the NUMA nodes, and available.
	samplePeriod = 2 * time.Second
	// sampleReads is how many containers' memory.numa_stat are read for one sample, so that its cost does not grow with the node:
	// those that were read longest ago.
	sampleReads = 100
	// sampleAge is how old a sample may become on a node with more containers than that, while nothing is decided by samples and none
	// of the NUMA nodes loses memory.
	sampleAge = 20 * time.Second
)

// deficits samples whether allocations hold. It belongs to one goroutine but for its last sample.
type deficits struct {
	last  atomic.Pointer[deficit.Sample]
	of    uint64                // the generation of the view that the last sample was taken of
	seen  []deficit.Node        // by the ledger; guarded by the agent's lock
	begun bool                  // a deficit is in the log
	pages map[string]*pagesRead // by cgroup
	round uint64
}

// pagesRead is what was read of a cgroup last; its round is 0 before the first time.
type pagesRead struct {
	pages   []deficit.Pages
	round   uint64
	unknown error
	listed  uint64 // the last round in which there was such a cgroup
}

// sampleDeficits samples until ctx ends.
func (a *Agent) sampleDeficits(ctx context.Context) {
	ticker := time.NewTicker(samplePeriod)
	defer ticker.Stop()
	for {
		a.takeSample()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// takeSample takes one sample. Its reads are outside of all locks.
func (a *Agent) takeSample() {
	view, before := a.View(), a.deficits.last.Load()
	sample := &deficit.Sample{}
	memory, err := a.nodeMemory(view)
	if err == nil && a.stands(before, view, memory) {
		return
	}
	a.deficits.of = view.Generation
	switch {
	case err != nil:
		sample.Unknown = err.Error()
	default:
		cgroups := view.Holding()
		a.deficits.read(a.tree, cgroups)
		switch waiting, err := a.deficits.fill(cgroups); {
		case err != nil:
			sample.Unknown = err.Error()
		case waiting && !before.Known():
			sample.Unknown = "not all containers have been looked at yet"
		default:
			sample = deficit.Take(a.now(), memory, cgroups)
		}
	}
	sample.At = a.now()
	a.deficits.last.Store(sample)
	if sample.Known() {
		a.deficits.log(a.log, sample)
	}
}

// stands reports whether another sample would cost much and tell nothing.
func (a *Agent) stands(last *deficit.Sample, view *ledger.View, memory []deficit.Memory) bool {
	return view.Generation == a.deficits.of && len(a.deficits.pages) > sampleReads && last.Stands(memory) && a.now().Sub(last.At) < sampleAge
}

// nodeMemory reads what the NUMA nodes have; an error where nothing is to be known of them.
func (a *Agent) nodeMemory(view *ledger.View) ([]deficit.Memory, error) {
	switch {
	case !view.Config.Static:
		return nil, errors.New("memoryManagerPolicy is None: nothing is allocated")
	case a.sysfs == "":
		return nil, errors.New("the machine is described by a file: there is no kernel to ask")
	}
	return sysfs.NodeMemory(a.sysfs, a.hardware())
}

// read reads the cgroups that were read longest ago, and forgets those that are no more.
func (c *deficits) read(tree *cgroupfs.Tree, cgroups []deficit.Cgroup) {
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
func (c *deficits) oldest(due []string) []string {
	if len(due) > sampleReads {
		slices.SortStableFunc(due, func(x, y string) int { return cmp.Compare(c.pages[x].round, c.pages[y].round) })
		due = due[:sampleReads]
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
		p.pages = append(p.pages, deficit.Pages{Node: node, Resident: pages.Resident, File: pages.File})
	}
}

// fill puts what was read into the cgroups, and reports whether some have not been read yet. One that cannot be read is not counted;
// the error is that of the first where none can.
func (c *deficits) fill(cgroups []deficit.Cgroup) (waiting bool, err error) {
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

// observeSample has the ledger know the last sample before it decides by it about a new container, with what is free at this moment:
// much may have been taken since the sample. Samples that nothing is decided by are no events, so that a recording holds none of them.
func (a *Agent) observeSample() {
	var nodes []deficit.Node
	if sample := a.deficits.last.Load(); sample.Known() {
		nodes = a.freeNow(sample.Nodes)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(nodes, a.deficits.seen) {
		a.deficits.seen = nodes
		a.stepLocked(ledger.NodeMemorySampled{Nodes: nodes})
	}
}

// freeNow are the nodes of a sample with the memory that the kernel has free now, as they are where that cannot be read.
func (a *Agent) freeNow(nodes []deficit.Node) []deficit.Node {
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

// log says when a deficit begins, and when there is none any more.
func (c *deficits) log(log logrus.FieldLogger, sample *deficit.Sample) {
	switch {
	case c.begun && sample.Deficit() == 0:
		c.begun = false
		log.Info("the NUMA nodes have enough memory available again for what is allocated on them")
	case !c.begun && sample.Overcommitted():
		c.begun = true
		log.WithField("bytes", quantity.Log(sample.Deficit())).Warn("NUMA nodes have less memory available than is allocated on them and not used yet")
	}
}

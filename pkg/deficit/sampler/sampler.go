// Package sampler samples what is allocated and unused on NUMA nodes, and what the kernel has available for it.
package sampler

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
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

const (
	// samplePeriod is the time between two samples of what is allocated and unused on the NUMA nodes, and available.
	samplePeriod = 2 * time.Second
	// restPeriod is the same while no pod or configuration changes and no NUMA node has a deficit.
	restPeriod = 10 * time.Second
	// sampleReads is how many containers' memory.numa_stat are read for one sample, so that its cost does not grow with the node:
	// those that were read longest ago.
	sampleReads = 100
	// sampleAge is how old a sample may become on a node with more containers than that, while nothing is decided by samples and none
	// of the NUMA nodes loses memory.
	sampleAge = 20 * time.Second
)

// Sampler samples whether allocations hold. Its exported fields are set before its first use.
type Sampler struct {
	View    func() *ledger.View
	Machine func() machine.Machine // as read last
	Tree    *cgroupfs.Tree
	Sysfs   string // "" where the machine is described by a file
	Log     logrus.FieldLogger
	Now     func() time.Time

	last   atomic.Pointer[deficit.Sample]
	of     uint64                // the generation of the view that the last sample was taken of
	looked time.Time             // when the kernel was asked last
	begun  bool                  // a deficit is in the log
	pages  map[string]*pagesRead // by cgroup
	round  uint64
}

// pagesRead is what was read of a cgroup last; its round is 0 before the first time.
type pagesRead struct {
	pages   []deficit.Pages
	round   uint64
	unknown error
	listed  uint64 // the last round in which there was such a cgroup
}

// Last is the last sample; nil before the first. It may be called from any goroutine.
func (s *Sampler) Last() *deficit.Sample { return s.last.Load() }

// Run samples until ctx ends.
func (s *Sampler) Run(ctx context.Context) {
	ticker := time.NewTicker(samplePeriod)
	defer ticker.Stop()
	for {
		if !s.rests() {
			s.Sample()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// rests reports whether the last sample is recent enough for a node on which nothing happens.
func (s *Sampler) rests() bool {
	last := s.Last()
	return last.Known() && last.Deficit() == 0 && s.View().Generation == s.of && s.Now().Sub(s.looked) < restPeriod
}

// Sample takes one sample. It belongs to one goroutine.
func (s *Sampler) Sample() {
	view, before := s.View(), s.Last()
	s.looked = s.Now()
	sample := &deficit.Sample{}
	memInfo, err := s.memInfo(view)
	if err == nil && s.stands(before, view, memInfo) {
		return
	}
	s.of = view.Generation
	switch {
	case err != nil:
		sample.Unknown = err.Error()
	default:
		cgroups := view.SampledCgroups()
		s.read(cgroups)
		switch waiting, err := s.fill(cgroups); {
		case err != nil:
			sample.Unknown = err.Error()
		case waiting && !before.Known():
			sample.Unknown = "not all containers have been looked at yet"
		default:
			sample = deficit.NewSample(s.Now(), memInfo, cgroups)
		}
	}
	sample.At = s.Now()
	s.last.Store(sample)
	if sample.Known() {
		s.log(sample)
	}
}

// stands reports whether the last sample still holds on a node with so many containers that another one would cost much.
func (s *Sampler) stands(last *deficit.Sample, view *ledger.View, memInfo []deficit.MemInfo) bool {
	return view.Generation == s.of && len(s.pages) > sampleReads && last.Stands(memInfo) && s.Now().Sub(last.At) < sampleAge
}

// memInfo reads what the NUMA nodes have; an error where nothing is to be known of them.
func (s *Sampler) memInfo(view *ledger.View) ([]deficit.MemInfo, error) {
	switch {
	case !view.Config.Static:
		return nil, errors.New("memoryManagerPolicy is None: nothing is allocated")
	case s.Sysfs == "":
		return nil, errors.New("the machine is described by a file: there is no kernel to ask")
	}
	return sysfs.MemInfo(s.Sysfs, s.Machine())
}

// read reads the cgroups that were read longest ago, and forgets those that are no more.
func (s *Sampler) read(cgroups []deficit.Cgroup) {
	s.round++
	if s.pages == nil {
		s.pages = map[string]*pagesRead{}
	}
	due := make([]string, 0, len(cgroups))
	for _, held := range cgroups {
		p := s.pages[held.Path]
		if p == nil {
			p = &pagesRead{}
			s.pages[held.Path] = p
		}
		if p.listed != s.round && held.Path != "" {
			due = append(due, held.Path)
		}
		p.listed = s.round
	}
	for path, p := range s.pages {
		if p.listed != s.round {
			delete(s.pages, path)
		}
	}
	for _, path := range s.oldest(due) {
		s.pages[path].store(s.Tree.Pages(path))
		s.pages[path].round = s.round
	}
}

// oldest are the cgroups whose turn it is.
func (s *Sampler) oldest(due []string) []string {
	if len(due) > sampleReads {
		slices.SortStableFunc(due, func(x, y string) int { return cmp.Compare(s.pages[x].round, s.pages[y].round) })
		due = due[:sampleReads]
	}
	return due
}

// store keeps what was read. A cgroup that is gone, or not made yet, has no pages.
func (p *pagesRead) store(found map[int]cgroupfs.NodePages, err error) {
	p.pages, p.unknown = nil, nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.unknown = err
		return
	}
	for node, pages := range found {
		p.pages = append(p.pages, deficit.Pages{Node: node, Resident: pages.Resident, File: pages.File})
	}
}

// fill copies the pages that were read into the cgroups, and reports whether some have not been read yet. A cgroup that cannot be read is not
// counted. If none can be read, fill returns the first one's error.
func (s *Sampler) fill(cgroups []deficit.Cgroup) (waiting bool, err error) {
	known := false
	for i := range cgroups {
		p := s.pages[cgroups[i].Path]
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

// NodeMemoryNow are the nodes of the last sample with the memory that the kernel has free now, as they are where that cannot be read; nil
// where the sample is not known. It may be called from any goroutine.
func (s *Sampler) NodeMemoryNow() []deficit.NodeMemory {
	sample := s.Last()
	if !sample.Known() {
		return nil
	}
	found, err := sysfs.MemInfo(s.Sysfs, s.Machine())
	if err != nil {
		return sample.Nodes
	}
	nodes := slices.Clone(sample.Nodes)
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
func (s *Sampler) log(sample *deficit.Sample) {
	switch {
	case s.begun && sample.Deficit() == 0:
		s.begun = false
		s.Log.Info("the NUMA nodes have enough memory available again for what is allocated on them")
	case !s.begun && sample.Overcommitted():
		s.begun = true
		s.Log.WithField("bytes", quantity.Log(sample.Deficit())).Warn("NUMA nodes have less memory available than is allocated on them and not used yet")
	}
}

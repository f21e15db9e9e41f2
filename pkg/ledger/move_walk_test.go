package ledger

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// mover is a node on which containers come and go, with a disk and a kernel that take their time, and a plugin that is killed.
type mover struct {
	*testing.T
	*rand.Rand
	yaml   string
	l      *Ledger
	now    time.Time
	disk   memorymanager.State // the state file
	bound  map[string]*bound
	next   int
	last   map[string]nodeset.Set // where a container was moved from since containers came or went, by id
	counts struct{ moves, waits, restarts int }
}

// bound is a container with its cgroup.
type bound struct {
	pod       Pod
	c         Container
	limit     uint64
	allocated bool
	desired   string      // cpuset.mems
	file      nodeset.Set // cpuset.mems of the file; empty is none
	pages     [2]uint64
}

const capacity = 16<<30 - 512<<20 // of a node, for pods

func (m *mover) usage(dir string) Usage {
	for _, b := range m.bound {
		if "/"+dir == b.c.CgroupsPath {
			nodes := b.file
			if nodes.Empty() {
				nodes = nodeset.Of(0, 1)
			}
			return Usage{Mapped: cgroup.Mapped{Nodes: nodes, Bytes: map[int]uint64{0: b.pages[0], 1: b.pages[1]}}}
		}
	}
	return Usage{}
}

// step applies an event, with all that it asks for.
func (m *mover) step(event Event) Effects {
	m.Helper()
	for {
		m.now = m.now.Add(time.Second)
		before := m.l.state.Move
		effects := m.l.Step(m.now, event)
		checkDerived(m.T, m.l, event)
		files := effects.Files
		if effects.AllFiles {
			files = m.l.Targets()
		}
		for _, target := range files {
			for _, b := range m.bound {
				if target.Level == cgroup.LevelContainer && "/"+target.Cgroup == b.c.CgroupsPath {
					b.desired = target.Mems
				}
			}
		}
		for id := range m.last {
			if c := m.l.containers[id]; c != nil && m.l.state.Move == nil && !m.bound[id].allocated && c.Off.Nodes.Empty() { // it may use all nodes again
				delete(m.last, id)
			}
		}
		if move := m.l.state.Move; before == nil && move != nil && move.Reason != Resumption {
			m.counts.moves++
			if from, again := m.last[move.ID]; again && (move.Allocates() || !from.Intersect(move.To).Empty()) {
				m.Fatalf("%+v is moved again, it was on %s", move, from)
			}
			m.last[move.ID] = move.From
		}
		again := effects.Again
		if again == nil || again.Moved {
			return effects
		}
		known := map[string]Usage{}
		for _, dir := range again.Measure {
			known[dir] = m.usage(dir)
		}
		switch e := event.(type) {
		case CreateContainer:
			maps.Copy(known, e.Usage)
			e.Usage, e.Relieved = known, again.Relieved
			event = e
		case NodeMemorySampled:
			maps.Copy(known, e.Usage)
			e.Usage = known
			event = e
		}
	}
}

// kernel writes files that are to be written, and has some more pages of each container arrive.
func (m *mover) kernel() {
	for _, b := range m.sorted() {
		stored := m.l.state.Move == nil || m.l.state.Move.ID != b.c.ID || m.l.state.Move.Stage == Written
		if nodes, err := nodeset.Parse(b.desired); err == nil && stored && m.IntN(3) > 0 {
			b.file = nodes
		}
		for id := range b.pages {
			if to := nodeset.Of(0, 1).Remap(id, b.file); !b.file.Empty() && !b.file.Has(id) && b.file.Has(to) {
				moved := b.pages[id]
				if moved > 64<<20 && m.IntN(2) == 0 {
					moved /= 2
				}
				b.pages[id], b.pages[to] = b.pages[id]-moved, b.pages[to]+moved
			}
		}
	}
}

func (m *mover) sorted() []*bound {
	var all []*bound
	for _, id := range slices.Sorted(maps.Keys(m.bound)) {
		all = append(all, m.bound[id])
	}
	return all
}

// sample is what the kernel shows.
func (m *mover) sample() NodeMemorySampled {
	e := NodeMemorySampled{Groups: true, HasCgroups: true, Complete: true, Usage: map[string]Usage{}}
	if _, dir := m.l.Moving(); dir != "" {
		e.Usage[dir] = m.usage(dir)
	}
	var memory []deficit.Memory
	for id := range 2 {
		free := uint64(16 << 30)
		for _, b := range m.bound {
			free -= min(free, b.pages[id])
		}
		memory = append(memory, deficit.Memory{Node: id, Free: free})
	}
	view := m.l.View()
	e.Cgroups = view.Holding(true)
	for i := range e.Cgroups {
		used := m.usage(e.Cgroups[i].Path)
		for id := range 2 {
			e.Cgroups[i].Pages = append(e.Cgroups[i].Pages, deficit.Pages{Node: id, Resident: used.Bytes[id], Anon: used.Bytes[id], Mapped: used.Bytes[id]})
		}
	}
	e.Nodes = deficit.Take(m.now, memory, e.Cgroups).Nodes
	return e
}

// advance carries out the next stage of a move, if the disk does.
func (m *mover) advance() {
	if move, _ := m.l.Moving(); move != nil && move.Stage == Allocated && m.IntN(3) > 0 {
		m.disk = m.l.manager.State()
		m.step(MoveStored{})
	}
	m.kernel()
	m.step(m.sample())
}

// create has a container created, which waits for moves or does not.
func (m *mover) create() {
	m.next++
	class := []string{"", "", "burstable/"}[m.IntN(3)]
	pod := claimPod(fmt.Sprint("p", m.next), class)
	limit := uint64(1+m.IntN(20)) << 29
	e := claimed(pod, "main", limit)
	b := &bound{pod: pod, c: e.Container, limit: limit, allocated: class == ""}
	m.bound[e.Container.ID] = b
	clear(m.last)
	for tries := 0; ; tries++ {
		effects := m.step(e)
		if effects.Err == nil {
			break
		}
		if effects.Again == nil || tries > 5 || m.IntN(4) == 0 { // past the deadline
			delete(m.bound, e.Container.ID)
			return
		}
		m.counts.waits++
		e.Usage, e.Relieved = nil, effects.Again.Relieved
		for range 4 {
			m.advance()
		}
	}
	m.disk = m.l.manager.State() // the answer waits for it
	b.file, _ = nodeset.Parse(m.l.containers[e.Container.ID].file().Mems)
	m.step(StartContainer{Pod: pod, Container: e.Container})
	nodes := b.file
	if nodes.Empty() {
		nodes = nodeset.Of(m.IntN(2))
	}
	b.pages[nodes.First()] = limit / 8 * uint64(m.IntN(9))
}

func (m *mover) end() {
	if all := m.sorted(); len(all) > 0 {
		b := all[m.IntN(len(all))]
		delete(m.bound, b.c.ID)
		clear(m.last)
		m.step(EndPod{Pod: b.pod, Gone: true})
		m.disk = m.l.manager.State()
	}
}

// restart kills the plugin: what is not on disk is lost.
func (m *mover) restart() {
	m.counts.restarts++
	if move := m.l.state.Move; move != nil && move.Stage == Allocated { // it may be lost
		delete(m.last, move.ID)
	}
	m.l = newLedger(m.T, m.yaml)
	if _, err := m.l.Restore(m.disk); err != nil {
		m.Fatal(err)
	}
	found := Synchronize{Found: Found{Files: map[string]Files{}}}
	for _, b := range m.sorted() {
		c, mems := b.c, b.file.String()
		c.State = Running
		found.Pods, found.Containers = append(found.Pods, b.pod), append(found.Containers, c)
		found.Found.Files[c.ID] = Files{Mems: &mems, Ours: map[cgroup.Knob]bool{cgroup.CpusetMems: mems != ""}}
	}
	m.step(Connected{Runtime: Runtime{Name: "containerd"}})
	m.step(found)
	if got := m.l.manager.State().Entries; fmt.Sprint(got) != fmt.Sprint(m.disk.Entries) {
		m.Fatalf("after a restart the allocations are\n%v\nwant\n%v", got, m.disk.Entries)
	}
	m.disk = m.l.manager.State()
}

// check compares what is promised on each node with what is there: allocations, and pages that have not left yet.
func (m *mover) check() {
	m.Helper()
	var taken [2]uint64
	for _, b := range m.bound {
		var nodes nodeset.Set
		for _, block := range m.l.manager.Blocks(b.pod.UID, "main") {
			nodes = nodes.Union(block.Nodes)
			taken[block.Nodes.First()] += block.Size
		}
		for id, pages := range b.pages {
			if b.allocated && !nodes.Has(id) && pages > staysBehind {
				taken[id] += pages
			}
		}
	}
	for id, bytes := range taken {
		if bytes > capacity {
			m.Fatalf("%d bytes are promised on node %d: %+v", bytes, id, m.l.state.Move)
		}
	}
}

// TestMovesOfARandomWalk: whatever comes, goes, waits and is killed, moves end. No memory is promised twice, none is moved back and forth,
// and a restart leaves allocations as they are on disk.
func TestMovesOfARandomWalk(t *testing.T) {
	const yaml = "topologyManagerPolicy: single-numa-node\nrebalance: {consolidate: true, deficits: On, maxBytes: 1Pi}"
	var moves, waits, restarts int
	for walk := range uint64(40) {
		m := &mover{T: t, Rand: rand.New(rand.NewPCG(*eventSeed, walk)), yaml: yaml, l: newLedger(t, yaml), now: time.Unix(0, 0),
			bound: map[string]*bound{}, last: map[string]nodeset.Set{}}
		m.restart()
		for range 150 {
			switch m.IntN(10) {
			case 0, 1, 2:
				m.create()
			case 3:
				m.end()
			case 4:
				m.restart()
			default:
				m.advance()
			}
			m.check()
		}
		for rounds := 0; m.l.state.Move != nil || rounds < 30; rounds++ {
			if rounds > 300 {
				t.Fatalf("walk %d: no end: %+v", walk, m.l.state.Move)
			}
			m.advance()
			m.check()
		}
		for _, b := range m.sorted() {
			if nodes := nodesOf(m.l.manager.Blocks(b.pod.UID, "main")); b.allocated && b.file != nodes {
				t.Errorf("walk %d: %s is allocated on %s, its cpuset.mems is %s", walk, b.c.ID, nodes, b.file)
			}
		}
		moves, waits, restarts = moves+m.counts.moves, waits+m.counts.waits, restarts+m.counts.restarts
	}
	t.Logf("%d moves, %d waits, %d restarts", moves, waits, restarts)
	if moves < 40 || waits < 5 {
		t.Errorf("%d moves and %d waits say little", moves, waits)
	}
}

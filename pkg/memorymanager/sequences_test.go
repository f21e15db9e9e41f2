package memorymanager_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// The nodes of a sequence have room for nodeSize each, and containers ask for whole units of it.
const nodeSize = 8

// sequenceEvent is a container of a size that comes, or one that goes: the one at a position among those that there are.
type sequenceEvent struct {
	size, goes int
}

// newSequence is a node on which containers of various sizes come and go, so that it is nearly full after a while.
func newSequence(r *rand.Rand, nodes int) (events []sequenceEvent) {
	for i := range 15 * nodes {
		size := 1 + r.IntN(3)
		switch kind := r.IntN(10); {
		case kind >= 9:
			size = nodeSize + 1 + r.IntN(nodeSize)
		case kind >= 6:
			size = 4 + r.IntN(4)
		}
		if i > 4*nodes && r.IntN(2) == 0 {
			size = 0
		}
		events = append(events, sequenceEvent{size, r.IntN(1 << 16)})
	}
	return events
}

// sequenceMode is what is done beside the kubelet's rules: groups are dissolved between events, and containers are moved to make
// room for one that is rejected.
type sequenceMode struct{ dissolves, moves bool }

// sequenceResult counts creates, those rejected, and the rejections that moving containers would have avoided: all, and those for
// which one or at most two moves are found.
type sequenceResult struct{ creates, rejected, avoidable, one, two int }

func (s *sequenceResult) add(other sequenceResult) {
	s.creates, s.rejected, s.avoidable = s.creates+other.creates, s.rejected+other.rejected, s.avoidable+other.avoidable
	s.one, s.two = s.one+other.one, s.two+other.two
}

// play takes a sequence to its end.
func play(t *testing.T, nodes int, policy topologymanager.Policy, events []sequenceEvent, mode sequenceMode) (result sequenceResult) {
	t.Helper()
	var capacity []memorymanager.NodeCapacity
	for id := range nodes {
		capacity = append(capacity, memorymanager.NodeCapacity{ID: id, Total: nodeSize})
	}
	options := memorymanager.Options{Policy: policy}
	m, err := memorymanager.New(capacity, options)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range events {
		if tenants := m.Tenants(); e.size == 0 && len(tenants) > 0 {
			gone := tenants[e.goes%len(tenants)]
			m.Release(gone.Pod, gone.Container)
		} else if e.size > 0 {
			result.creates++
			create(m, policy, nodes, fmt.Sprintf("%03d", i), e.size, mode, &result)
		}
		if mode.dissolves {
			for _, d := range memorymanager.Dissolvable(m.Nodes(), m.Tenants()) {
				for _, move := range d.Moves {
					if !m.Move(move.Pod, move.Container, move.To) {
						t.Fatalf("event %d: %+v cannot be moved: %+v", i, move, m.State())
					}
				}
			}
		}
		if i%10 != 0 {
			continue
		}
		if again, err := memorymanager.New(capacity, options); err != nil {
			t.Fatal(err)
		} else if report, err := again.Restore(m.State(), 0); err != nil || len(report.Problems)+len(report.Lost) > 0 {
			t.Fatalf("event %d: the state cannot be restored: %v %+v", i, err, report)
		}
	}
	return result
}

func create(m *memorymanager.Manager, policy topologymanager.Policy, nodes int, pod string, size int, mode sequenceMode, result *sequenceResult) {
	c := memorymanager.Container{Pod: pod, Name: "app", Request: memorymanager.Request{{Type: memorymanager.Memory, Bytes: uint64(size)}}}
	if _, err := m.Admit(c); err == nil {
		return
	}
	generation, tenants := m.Generation(), m.Tenants()
	var moves []memorymanager.Relocation
	var where nodeset.Set
	if mode.moves || !mode.dissolves {
		moves, where = m.Relief(c, tenants, 2)
	}
	if m.Generation() != generation || !reflect.DeepEqual(m.Tenants(), tenants) {
		panic(fmt.Sprintf("the search has changed %+v", m.State()))
	}
	if mode.moves && moves != nil {
		for _, move := range moves {
			if !m.Move(move.Pod, move.Container, move.To) {
				panic(fmt.Sprintf("%+v cannot be moved: %+v", move, m.State()))
			}
		}
		if placement, err := m.Admit(c); err != nil || placement.Nodes != where {
			panic(fmt.Sprintf("after the moves %+v: %+v %v, want nodes %s", moves, placement, err, where))
		}
		return
	}
	result.rejected++
	if !avoidable(nodes, policy, tenants, size) {
		if moves != nil {
			panic(fmt.Sprintf("%+v would make room, and the solver knows none", moves))
		}
		return
	}
	result.avoidable++
	if len(moves) == 1 {
		result.one++
	}
	if len(moves) > 0 {
		result.two++
	}
}

// avoidable reports whether there is any distribution of the tenants, none of them on more nodes than now, with which a container
// of a size would be placed. All nodes are alike, so that a distribution is one of the numbers of nodes that each group has.
func avoidable(nodes int, policy topologymanager.Policy, tenants []memorymanager.Tenant, size int) bool {
	items := []solverItem{{size: size, least: 1, most: nodes}}
	if policy == topologymanager.Restricted {
		items[0].least = (size + nodeSize - 1) / nodeSize
		items[0].most = items[0].least
	}
	sum := size
	for _, t := range tenants {
		items = append(items, solverItem{size: int(t.Blocks[0].Size), least: 1, most: t.Blocks[0].Nodes.Len()})
		sum += int(t.Blocks[0].Size)
	}
	if sum > nodes*nodeSize {
		return false
	}
	slices.SortFunc(items, func(a, b solverItem) int { return cmp.Compare(b.size, a.size) })
	found := false
	partitions(nodes, nodes, nil, func(groups []int) {
		if !found {
			s := solver{items: items, groups: groups, load: make([]int, len(groups)), failed: map[solverKey]bool{}}
			found = s.solve(0)
		}
	})
	return found
}

// partitions yields every way to write n as a sum of numbers of at most largest.
func partitions(n, largest int, chosen []int, yield func([]int)) {
	if n == 0 {
		yield(slices.Clone(chosen))
	}
	for part := min(n, largest); part > 0; part-- {
		partitions(n-part, part, append(chosen, part), yield)
	}
}

// solverItem is a container that may be in a group of at least and at most so many nodes.
type solverItem struct{ size, least, most int }

// solver is a brute force over the groups that containers may be in.
type solver struct {
	items  []solverItem
	groups []int
	load   []int
	failed map[solverKey]bool
}

func (s *solver) solve(next int) bool {
	if next == len(s.items) {
		return true
	}
	key := s.key(next)
	if s.failed[key] {
		return false
	}
	item := s.items[next]
	for i, nodes := range s.groups {
		if nodes < item.least || nodes > item.most || s.load[i]+item.size > nodes*nodeSize {
			continue
		}
		s.load[i] += item.size
		fits := s.solve(next + 1)
		s.load[i] -= item.size
		if fits {
			return true
		}
	}
	s.failed[key] = true
	return false
}

// solverKey is how many items are placed, and what each group has.
type solverKey struct {
	next  int
	loads [8]int
}

// key is the same for loads that differ only in which of several equal groups has them.
func (s *solver) key(next int) solverKey {
	key := solverKey{next: next}
	for i, nodes := range s.groups {
		key.loads[i] = nodes<<16 + s.load[i]
	}
	slices.Sort(key.loads[:len(s.groups)])
	return key
}

// TestMovesAvoidRejections plays 1,000 sequences of creates and removals. An exact solver says which rejections any moves could have
// avoided; at least half of them are gone with at most two moves each.
func TestMovesAvoidRejections(t *testing.T) {
	modes := []sequenceMode{{}, {dissolves: true}, {dissolves: true, moves: true}}
	sizes := []int{2, 4, 8}
	results := map[int][]sequenceResult{}
	for i := range uint64(min(1000, *cases/210)) {
		nodes := sizes[i%3]
		policy := []topologymanager.Policy{topologymanager.BestEffort, topologymanager.Restricted}[i/3%2]
		events := newSequence(rand.New(rand.NewPCG(i, 3)), nodes)
		if results[nodes] == nil {
			results[nodes] = make([]sequenceResult, len(modes))
		}
		for j, mode := range modes {
			results[nodes][j].add(play(t, nodes, policy, events, mode))
		}
	}
	var table strings.Builder
	for _, nodes := range sizes {
		off, between, on := results[nodes][0], results[nodes][1], results[nodes][2]
		fmt.Fprintf(&table, "| %d | %d | %d | %d | %d | %d | %d | %d |\n",
			nodes, off.creates, off.rejected, off.avoidable, off.one, off.two, between.avoidable, on.avoidable)
		if 2*off.two < off.avoidable {
			t.Errorf("%d nodes: at most two moves avoid %d of %d rejections, want half", nodes, off.two, off.avoidable)
		}
		if 2*on.avoidable > off.avoidable {
			t.Errorf("%d nodes: %d rejections that moves could avoid are left of %d, want half at most", nodes, on.avoidable, off.avoidable)
		}
	}
	t.Logf("nodes, creates, rejected, of these avoidable by any moves, by one move, by at most two; left with groups dissolved between events; left with moves at create\n%s", table.String())
}

package memorymanager_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// TestAllocationsBalanceWhateverComes mixes admissions with adopted containers on any nodes, resizes and restores, and adds up
// the node map after every one of them.
func TestAllocationsBalanceWhateverComes(t *testing.T) {
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 7))
		policy := []topologymanager.Policy{
			topologymanager.None, topologymanager.BestEffort, topologymanager.Restricted, topologymanager.SingleNUMANode,
		}[r.IntN(4)]
		nodes := benchNodes(1 + r.IntN(6))
		m, err := memorymanager.New(nodes, memorymanager.Options{Policy: policy})
		if err != nil {
			t.Fatal(err)
		}
		names := []string{"a", "b", "c"}
		for step := range 40 {
			pod, name := fmt.Sprint(r.IntN(4)), names[r.IntN(3)]
			request := memorymanager.Request{{Type: memorymanager.Memory, Bytes: r.Uint64N(400 * gi)}}
			if r.IntN(2) == 0 {
				request = append(memorymanager.Request{{Type: memorymanager.Hugepages(gi), Bytes: r.Uint64N(20) * gi}}, request...)
			}
			c := memorymanager.Container{Pod: pod, Name: name, Kind: memoryqos.Kind(r.IntN(3)), Request: request}
			before := m.State()
			var what string
			switch r.IntN(8) {
			case 0, 1:
				_, err := m.Allocate(c)
				what = fmt.Sprint("admit ", err)
			case 2:
				_, err := m.Adopt(pod, name, request, nodeset.Set(r.Uint64())&nodeset.Set(1<<len(nodes)-1))
				what = fmt.Sprint("adopt ", err)
			case 3, 4:
				p, err := m.Resize(c, r.IntN(2) == 0)
				what = fmt.Sprint("resize ", p, err)
				if err == nil {
					if problem := misallocated(request, p); problem != "" {
						t.Fatalf("seed %d step %d: after %s: %s", seed, step, what, problem)
					}
				}
				if err != nil && !cmp.Equal(before, m.State()) {
					t.Fatalf("seed %d step %d: a rejected resize changed the state", seed, step)
				}
			case 5:
				what = fmt.Sprint("release ", m.Release(pod, name))
			case 6:
				what = fmt.Sprint("release pod ", m.ReleasePod(pod))
			case 7:
				report, err := m.Restore(m.State(), 0)
				what = fmt.Sprint("restore ", report, err)
			}
			if problem := unbalanced(m.State()); problem != "" {
				t.Fatalf("seed %d step %d: after %s: %s", seed, step, what, problem)
			}
		}
		for pod := range 4 {
			m.ReleasePod(fmt.Sprint(pod))
		}
		for _, n := range m.Nodes() {
			for _, table := range n.Memory {
				if n.Assignments != 0 || n.Cells != nodeset.Of(n.ID) || table.Reserved != 0 || table.Free != table.Allocatable {
					t.Fatalf("seed %d: node %d is not free at the end: %+v", seed, n.ID, n)
				}
			}
		}
	}
}

// unbalanced says what does not add up in a state.
func unbalanced(s memorymanager.State) string {
	type place struct {
		node int
		name memorymanager.MemoryType
	}
	allocated, count := map[place]uint64{}, map[int]int{}
	groups := map[int]nodeset.Set{}
	for _, n := range s.Nodes {
		groups[n.ID] = nodeset.Of(n.ID)
	}
	whole := map[string][]memorymanager.Block{}
	var counted []memorymanager.Entry
	for _, e := range s.Pods {
		whole[e.Pod] = e.Blocks
		counted = append(counted, memorymanager.Entry{Pod: e.Pod, Container: "as a whole", Blocks: e.Blocks})
	}
	parts := map[string]int{}
	for _, e := range s.Entries {
		if whole[e.Pod] == nil {
			counted = append(counted, e)
			continue
		}
		parts[e.Pod]++
		for _, part := range e.Blocks {
			if !slices.ContainsFunc(whole[e.Pod], func(b memorymanager.Block) bool {
				return b.Type == part.Type && b.Nodes == part.Nodes && b.Size >= part.Size
			}) {
				return fmt.Sprintf("%s %s: %+v is no part of its pod's %+v", e.Pod, e.Container, part, whole[e.Pod])
			}
		}
	}
	for pod := range whole {
		if parts[pod] == 0 {
			return fmt.Sprintf("%s has an allocation and no containers", pod)
		}
	}
	for _, e := range counted {
		for _, b := range e.Blocks {
			var sum uint64
			for _, amount := range b.PerNode {
				sum += amount.Bytes
				allocated[place{amount.Node, b.Type}] += amount.Bytes
				if !b.Nodes.Has(amount.Node) {
					return fmt.Sprintf("%s %s: %+v is allocated outside of its nodes", e.Pod, e.Container, b)
				}
			}
			if sum != b.Size {
				return fmt.Sprintf("%s %s: %+v says where %d bytes are", e.Pod, e.Container, b, sum)
			}
			joined := b.Nodes
			for id := range b.Nodes.All() {
				count[id]++
				joined |= groups[id]
			}
			for id := range joined.All() {
				groups[id] = joined
			}
		}
	}
	for _, n := range s.Nodes {
		if n.Assignments != count[n.ID] || n.Cells != groups[n.ID] {
			return fmt.Sprintf("node %d: %d in %s, its entries make %d in %s", n.ID, n.Assignments, n.Cells, count[n.ID], groups[n.ID])
		}
		for _, table := range n.Memory {
			want := allocated[place{n.ID, table.Type}]
			if table.Reserved != min(want, table.Allocatable) || table.Free != table.Allocatable-table.Reserved {
				return fmt.Sprintf("node %d: %+v, its entries have %d", n.ID, table, want)
			}
		}
	}
	return ""
}

// misallocated says what a resize promises and does not hold: a request is its blocks and what is short.
func misallocated(request memorymanager.Request, p memorymanager.Placement) string {
	short := map[memorymanager.MemoryType]uint64{}
	for _, amount := range p.PendingResize {
		short[amount.Type] = amount.Bytes
	}
	for i, amount := range request {
		if p.Blocks[i].Size+short[amount.Type] != amount.Bytes {
			return fmt.Sprintf("%d of %+v are allocated and %d short", p.Blocks[i].Size, amount, short[amount.Type])
		}
	}
	return ""
}

package memorymanager_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// A clone and the manager that it was made of decide alike, and a decision of one leaves the other as it is.
func TestACloneIsIndependent(t *testing.T) {
	grouped := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 17))
		g := newGame(t, r, 2+r.IntN(6), 1+r.IntN(3), anyPolicy(r), 0)
		g.play()
		before := g.m.State()
		if slices.ContainsFunc(before.Nodes, memorymanager.NodeState.Grouped) {
			grouped++
		}
		var decisions []func(m *memorymanager.Manager) string
		for _, e := range before.Entries {
			if r.IntN(3) == 0 {
				decisions = append(decisions, func(m *memorymanager.Manager) string { return fmt.Sprint(m.Release(e.Pod, e.Container)) })
			}
		}
		for i := range 4 {
			c := memorymanager.Container{Pod: fmt.Sprint("new", i), Name: "c", Request: g.request()}
			if n := len(before.Entries); i == 3 && n > 0 { // it may take over what an init container has left
				c.Pod = before.Entries[r.IntN(n)].Pod
			}
			decisions = append(decisions, func(m *memorymanager.Manager) string {
				placement, err := m.Allocate(c)
				return fmt.Sprint(placement, err)
			})
		}
		decide := func(m *memorymanager.Manager) (all []string) {
			for _, d := range decisions {
				all = append(all, d(m))
			}
			return all
		}
		first, second := g.m.Clone(), g.m.Clone()
		outcome := decide(first)
		if difference := cmp.Diff(before, g.m.State()); difference != "" {
			t.Fatalf("seed %d: the clone has changed its manager: %s", seed, difference)
		}
		if difference := cmp.Diff(outcome, decide(g.m)); difference != "" {
			t.Fatalf("seed %d: the clone decides otherwise: %s", seed, difference)
		}
		if difference := cmp.Diff(first.State(), g.m.State()); difference != "" {
			t.Fatalf("seed %d: the clone is in another state: %s", seed, difference)
		}
		if difference := cmp.Diff(before, second.State()); difference != "" {
			t.Fatalf("seed %d: the manager has changed its clone: %s", seed, difference)
		}
	}
	if grouped == 0 {
		t.Error("no manager had a group of NUMA nodes")
	}
}

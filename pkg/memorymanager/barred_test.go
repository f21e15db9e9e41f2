package memorymanager_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// TestWhatHelpsHelps: a container that was barred has its place once the named ones end, and a smaller one now.
func TestWhatHelpsHelps(t *testing.T) {
	ended, smaller := 0, 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := manager(t, plain(2+r.IntN(4)), []topologymanager.Policy{topologymanager.Restricted, topologymanager.BestEffort}[r.IntN(2)])
		fits := func(m *memorymanager.Manager, c memorymanager.Container) *memorymanager.Rejection {
			p, err := m.Admit(c)
			var rejected *memorymanager.Rejection
			if !errors.As(err, &rejected) && c.Required && !p.Affinity.Preferred {
				m.Release(c.Pod, c.Name)
				rejected = &memorymanager.Rejection{Cause: "not preferred"}
			}
			return rejected
		}
		for i := range 12 {
			c := memorymanager.Container{Pod: fmt.Sprint(i), Name: "c", Request: memory(uint64(1+r.IntN(24)) * gi), Required: r.IntN(3) == 0}
			rejected := fits(m, c)
			if rejected == nil || rejected.Helps == "" {
				continue
			}
			now, free, more := m.Clone(), uint64(0), 0
			for _, node := range rejected.Nodes {
				if node.Group.Len() == 1 || len(rejected.Holders) == 0 {
					free = max(free, node.Availability[0].Free)
				}
			}
			if less := c; free > 0 && strings.Contains(rejected.Helps, "a request that fewer NUMA nodes") {
				smaller++
				less.Request = memory(free)
				if again := fits(now, less); again != nil {
					t.Fatalf("seed %d: %s\nhelps: %s\nwith %s: %v", seed, rejected.Text(), rejected.Helps, less.Request, again)
				}
			}
			for _, h := range rejected.Holders {
				m.Release(h.Pod, h.Container)
				more += h.More
			}
			if len(rejected.Holders) > 0 && more == 0 {
				ended++
				if again := fits(m, c); again != nil {
					t.Fatalf("seed %d: %s\nhelps: %s\nafter the end of %v: %v", seed, rejected.Text(), rejected.Helps, rejected.Holders, again)
				}
			}
		}
	}
	if ended < 1000 || smaller < 100 {
		t.Errorf("%d containers had their place after others ended, and %d with a smaller request: too few", ended, smaller)
	}
}

package memorymanager_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// TestWhatHelpsHelps: a container that was barred has its place once the named ones end, and a smaller one now.
func TestWhatHelpsHelps(t *testing.T) {
	ended, smaller, towards := 0, 0, 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		options := memorymanager.Options{
			Policy:  []topologymanager.Policy{topologymanager.Restricted, topologymanager.BestEffort, topologymanager.SingleNUMANode}[r.IntN(3)],
			AlignTo: []topologymanager.AlignTo{topologymanager.AlignToKubelet, topologymanager.AlignToCPUs}[r.IntN(2)], FallBack: r.IntN(2) == 0,
		}
		nodes := 2 + r.IntN(4)
		m, err := memorymanager.New(plain(nodes), options)
		if err != nil {
			t.Fatal(err)
		}
		fits := func(m *memorymanager.Manager, c memorymanager.Container) *memorymanager.AllocationError {
			_, err := m.Allocate(c)
			rejected, _ := errors.AsType[*memorymanager.AllocationError](err)
			return rejected
		}
		for i := range 12 {
			c := memorymanager.Container{Pod: fmt.Sprint(i / 2), Name: fmt.Sprint(i), Request: memory(uint64(1+r.IntN(24)) * gi), Required: r.IntN(3) == 0}
			if r.IntN(3) == 0 {
				c.CPUs = nodeset.Of(r.IntN(nodes), r.IntN(nodes))
			}
			rejected := fits(m, c)
			if rejected == nil || rejected.Helps == "" {
				continue
			}
			now, free, more := m.Clone(), uint64(0), 0
			for _, node := range rejected.Nodes {
				if node.Group.Len() == 1 || !strings.Contains(rejected.Helps, "outside of a group") {
					free = max(free, node.Availability[0].Free)
				}
			}
			if less := c; free > 0 && c.CPUs.Empty() && strings.Contains(rejected.Helps, "a request that") {
				smaller++
				less.Request = memory(free)
				if again := fits(now, less); again != nil {
					t.Fatalf("seed %d: %s\nhelps: %s\nwith %s: %v", seed, rejected.Text(), rejected.Helps, less.Request, again)
				}
			}
			for _, h := range rejected.Holders {
				if h.Pod == c.Pod {
					t.Fatalf("seed %d: %s\nits own container %s is in the way", seed, rejected.Text(), h.Container)
				}
				m.Release(h.Pod, h.Container)
				more += h.More
			}
			if strings.HasPrefix(rejected.Helps, "all of these containers end") && more == 0 {
				ended++
				if !c.CPUs.Empty() {
					towards++
				}
				if again := fits(m, c); again != nil {
					t.Fatalf("seed %d: %s\nhelps: %s\nafter the end of %v: %v", seed, rejected.Text(), rejected.Helps, rejected.Holders, again)
				}
			}
		}
	}
	if ended < 1000 || smaller < 100 || towards < 100 {
		t.Errorf("%d containers had their place after others ended, %d of them with CPUs, and %d with a smaller request: too few", ended, towards, smaller)
	}
}

// TestARejectionAllocatesOnce: what helps is tried with all who are in the way released together. A group whose containers do not all span it is
// allocated again for each release, and a thousand of those would take seconds, in which nobody else is served.
func TestARejectionAllocatesOnce(t *testing.T) {
	const containers = 300
	m := manager(t, plain(8), topologymanager.Restricted)
	for i := range containers {
		nodes := nodeset.Of(i % 8)
		if i%8 == 0 {
			nodes = nodeset.Of(0, 1, 2, 3, 4, 5, 6, 7)
		}
		if _, err := m.Adopt(fmt.Sprint(i), "c", memory(gi/8), nodes); err != nil {
			t.Fatal(err)
		}
	}
	var rejected *memorymanager.AllocationError
	allocations := testing.AllocsPerRun(1, func() {
		_, err := m.Allocate(app("large", 12*gi))
		rejected, _ = errors.AsType[*memorymanager.AllocationError](err)
	})
	if rejected == nil || !strings.HasPrefix(rejected.Helps, "all of these containers end") {
		t.Fatalf("rejected: %v", rejected)
	}
	if allocations > 20*containers {
		t.Errorf("%v allocations for a rejection beside %d containers", allocations, containers)
	}
}

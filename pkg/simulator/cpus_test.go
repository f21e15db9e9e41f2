package simulator

import (
	"testing"

	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

// The rows whose names begin with "take" are the kubelet's (pkg/kubelet/cm/cpumanager/cpu_assignment_test.go).
func TestExclusiveCPUsArePackedAsByTheKubelet(t *testing.T) {
	cores := func(list ...[]int) map[int]int {
		of := map[int]int{}
		for _, core := range list {
			for _, cpu := range core {
				of[cpu] = core[0]
			}
		}
		return of
	}
	single := cpuManager{ // one socket of four cores
		nodes: []machine.Node{{ID: 0, CPUs: cpuset.New(0, 1, 2, 3, 4, 5, 6, 7)}}, cores: cores([]int{0, 4}, []int{1, 5}, []int{2, 6}, []int{3, 7}),
	}
	dual := cpuManager{ // two sockets of three cores
		nodes: []machine.Node{{ID: 0, CPUs: cpuset.New(0, 2, 4, 6, 8, 10)}, {ID: 1, CPUs: cpuset.New(1, 3, 5, 7, 9, 11)}},
		cores: cores([]int{0, 6}, []int{1, 7}, []int{2, 8}, []int{3, 9}, []int{4, 10}, []int{5, 11}),
	}
	four := cpuManager{cores: map[int]int{}} // four NUMA nodes of ten cores
	for node := range 4 {
		var cpus []int
		for cpu := node * 10; cpu < node*10+10; cpu++ {
			cpus = append(cpus, cpu, cpu+40)
			four.cores[cpu], four.cores[cpu+40] = cpu, cpu
		}
		four.nodes = append(four.nodes, machine.Node{ID: node, CPUs: cpuset.New(cpus...)})
	}
	for name, test := range map[string]struct {
		manager   cpuManager
		available string
		number    int
		want      string
	}{
		"take one CPU":                       {single, "0-7", 1, "0"},
		"take two CPUs":                      {single, "0-7", 2, "0,4"},
		"take all CPUs":                      {single, "0-7", 8, "0-7"},
		"take one CPU, some are taken":       {single, "1,3,5-7", 1, "6"},
		"take two CPUs, one core is free":    {single, "0-3,6", 2, "2,6"},
		"a core of two sockets":              {dual, "0-11", 2, "0,6"},
		"take one CPU, a core is taken":      {dual, "1-5,7-11", 1, "2"},
		"take two NUMA nodes":                {four, "0-79", 40, "0-19,40-59"},
		"take a NUMA node":                   {four, "0-79", 20, "0-9,40-49"},
		"take a NUMA node, one is taken":     {four, "10-39,50-79", 20, "10-19,50-59"},
		"take a socket":                      {dual, "0-11", 6, "0,2,4,6,8,10"},
		"a socket, some are taken":           {dual, "1-11", 6, "1,3,5,7,9,11"},
		"a socket and a core":                {dual, "0-11", 8, "0-2,4,6-8,10"},
		"a core, and the rest of one in use": {dual, "1-11", 3, "2,6,8"},
		"take none":                          {dual, "0-11", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			available, err := cpuset.Parse(test.available)
			if err != nil {
				t.Fatal(err)
			}
			if got := test.manager.pack(available, test.number).String(); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// The search for the narrowest nodes must find what a look at all sets of nodes finds.
func TestTheNarrowestNodesAreThoseOfAllSets(t *testing.T) {
	ids := []int{0, 1, 3, 4, 6}
	m := cpuManager{}
	for _, id := range ids {
		m.nodes = append(m.nodes, machine.Node{ID: id})
	}
	for seed := range 4000 {
		room := map[int]int{}
		for i, id := range ids {
			room[id] = (seed*7919 + i*104729) / (i + 3) % 9
		}
		number := 1 + seed%23
		want, size := uint64(0), len(ids)+1
		for mask := uint64(1); mask < 1<<7; mask++ { // ascending: of one size the first is the smallest
			sum, count, known := 0, 0, true
			for id := range 7 {
				if mask&(1<<id) == 0 {
					continue
				}
				has, there := room[id]
				sum, count, known = sum+has, count+1, known && there
			}
			if known && sum >= number && count < size {
				want, size = mask, count
			}
		}
		got, fits := m.narrowest(number, 0, func(n machine.Node) int { return room[n.ID] })
		if uint64(got) != want || fits != (want > 0) {
			t.Fatalf("%d of %v: got %s, want %b", number, room, got, want)
		}
	}
}

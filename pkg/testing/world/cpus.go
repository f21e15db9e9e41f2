package world

import (
	"slices"
	"strconv"
	"strings"
	"sync"
)

// cpuManager hands out whole CPUs, as the kubelet's CPU Manager with the policy static: of one NUMA node where one has enough.
type cpuManager struct {
	nodes [][]int
	mu    sync.Mutex
	taken map[int]bool
}

func newCPUManager(m Machine) *cpuManager {
	c, next := &cpuManager{taken: map[int]bool{}}, 0
	for _, node := range m.Nodes {
		var cpus []int
		for range node.CPUs {
			cpus = append(cpus, next)
			next++
		}
		c.nodes = append(c.nodes, cpus)
	}
	return c
}

// take returns nil where there are not enough.
func (c *cpuManager) take(n int) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cpus := range append(slices.Clone(c.nodes), slices.Concat(c.nodes...)) {
		free := slices.DeleteFunc(slices.Clone(cpus), func(cpu int) bool { return c.taken[cpu] })
		if len(free) < n {
			continue
		}
		for _, cpu := range free[:n] {
			c.taken[cpu] = true
		}
		return free[:n]
	}
	return nil
}

func (c *cpuManager) give(cpus []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cpu := range cpus {
		delete(c.taken, cpu)
	}
}

// list is the kernel's list format.
func list(cpus []int) string {
	texts := make([]string, len(cpus))
	for i, cpu := range cpus {
		texts[i] = strconv.Itoa(cpu)
	}
	return strings.Join(texts, ",")
}

package memorymanager_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

const (
	mi = 1 << 20
	gi = 1 << 30
)

// benchNodes are nodes of 256Gi, of which 16Gi are 2Mi pages, 16Gi are 1Gi pages and 1Gi is reserved.
func benchNodes(n int) (nodes []memorymanager.NodeCapacity) {
	for id := range n {
		nodes = append(nodes, memorymanager.NodeCapacity{
			ID: id, Total: 256 * gi,
			Pools:    []memorymanager.Pool{{PageSize: 2 * mi, Count: 8192}, {PageSize: gi, Count: 16}},
			Reserved: memorymanager.Request{{Type: memorymanager.Memory, Bytes: gi}},
		})
	}
	return nodes
}

// benchManager has containers of 64Mi, spread over all nodes.
func benchManager(b *testing.B, nodes, existing int) *memorymanager.Manager {
	b.Helper()
	m, err := memorymanager.New(benchNodes(nodes), memorymanager.Options{Policy: topologymanager.Restricted})
	if err != nil {
		b.Fatal(err)
	}
	fill(b, m, nodes, existing)
	return m
}

// fill has containers of 64Mi, spread over all nodes.
func fill(b *testing.B, m *memorymanager.Manager, nodes, existing int) {
	b.Helper()
	for i := range existing {
		request := memorymanager.Request{{Type: memorymanager.Memory, Bytes: 64 * mi}}
		if _, err := m.Adopt(fmt.Sprint("pod-", i), "app", request, 1<<(i%nodes)); err != nil {
			b.Fatal(err)
		}
	}
}

func benchRequest(types int) memorymanager.Request {
	return []memorymanager.Request{
		{{Type: memorymanager.Memory, Bytes: 3 * gi}},
		{{Type: memorymanager.Hugepages(2 * mi), Bytes: 512 * mi}, {Type: memorymanager.Memory, Bytes: 3 * gi}},
		{
			{Type: memorymanager.Hugepages(gi), Bytes: gi}, {Type: memorymanager.Hugepages(2 * mi), Bytes: 512 * mi},
			{Type: memorymanager.Memory, Bytes: 3 * gi},
		},
	}[types-1]
}

// BenchmarkCycle measures hints, merge, allocation and release of one container under restricted.
func BenchmarkCycle(b *testing.B) {
	for _, nodes := range []int{2, 4, 8, 16, 32, 64} {
		for _, existing := range []int{0, 100, 1000} {
			for types := 1; types <= 3; types++ {
				b.Run(fmt.Sprintf("mem/numa=%d/existing=%d/types=%d/spread", nodes, existing, types), func(b *testing.B) {
					m := benchManager(b, nodes, existing)
					c := memorymanager.Container{Pod: "measured", Name: "app", Request: benchRequest(types)}
					b.ReportAllocs()
					for b.Loop() {
						if _, err := m.Allocate(c); err != nil {
							b.Fatal(err)
						}
						m.Release(c.Pod, c.Name)
					}
				})
			}
		}
	}
}

// BenchmarkStrategy is the cycle for each strategy, with containers on all nodes; none is what BenchmarkCycle measures.
func BenchmarkStrategy(b *testing.B) {
	for _, nodes := range []int{2, 8, 64} {
		for types := 1; types <= 3; types++ {
			for _, strategy := range topologymanager.Strategies() {
				b.Run(fmt.Sprintf("numa=%d/types=%d/%s", nodes, types, strategy), func(b *testing.B) {
					m, err := memorymanager.New(benchNodes(nodes), memorymanager.Options{Policy: topologymanager.Restricted, Strategy: strategy})
					if err != nil {
						b.Fatal(err)
					}
					fill(b, m, nodes, 100)
					c := memorymanager.Container{Pod: "measured", Name: "app", Request: benchRequest(types)}
					b.ReportAllocs()
					for b.Loop() {
						if _, err := m.Allocate(c); err != nil {
							b.Fatal(err)
						}
						m.Release(c.Pod, c.Name)
					}
				})
			}
		}
	}
}

// BenchmarkHard measures requests that span nodes which are all different: the search, where it has to look.
func BenchmarkHard(b *testing.B) {
	for _, nodes := range []int{8, 16, 64} {
		for types := 1; types <= 3; types++ {
			for _, policy := range []topologymanager.Policy{topologymanager.BestEffort, topologymanager.Restricted} {
				for _, closest := range []bool{false, true} {
					b.Run(fmt.Sprintf("numa=%d/types=%d/%s/closest=%v", nodes, types, policy, closest), func(b *testing.B) {
						unequal := benchNodes(nodes)
						var request memorymanager.Request
						for i := range unequal {
							unequal[i].Pools[0].Count += uint64(i * 7919 % 64 * 37)
							unequal[i].Pools[1].Count += uint64(i * 104729 % 61)
							unequal[i].Total += uint64(i*15485863%127) * gi
							unequal[i].Distances = make([]int, nodes)
							for j := range unequal {
								unequal[i].Distances[j] = 10 + (i^j)*(i^j)%23
							}
						}
						m, err := memorymanager.New(unequal, memorymanager.Options{Policy: policy, PreferClosest: closest})
						if err != nil {
							b.Fatal(err)
						}
						for _, amount := range benchRequest(types) {
							var all uint64
							for _, n := range m.Nodes() {
								for _, table := range n.Memory {
									if table.Type == amount.Type {
										all += table.Allocatable
									}
								}
							}
							request = append(request, memorymanager.Amount{Type: amount.Type, Bytes: all / 100 * 43})
						}
						c := memorymanager.Container{Pod: "measured", Name: "app", Request: request}
						b.ReportAllocs()
						before := processorTime(b)
						for b.Loop() {
							_, _ = m.Allocate(c)
							m.Release(c.Pod, c.Name)
						}
						b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
						b.ReportMetric(float64(m.Bounded())/float64(b.N), "bounded/op")
					})
				}
			}
		}
	}
}

// processorTime is what this process has computed, whatever else the machine does.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

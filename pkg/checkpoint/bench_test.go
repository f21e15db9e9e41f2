package checkpoint

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// benchFolder is a fresh folder under BENCH_STATE_DIR, or on a tmpfs where there is one.
func benchFolder(b *testing.B) string {
	b.Helper()
	root := os.Getenv("BENCH_STATE_DIR")
	if root == "" {
		if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
			root = "/dev/shm"
		}
	}
	dir, err := os.MkdirTemp(root, "nri-memory-manager-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// benchManager is a machine of 256Gi a node, 16Gi of 2Mi and 16Gi of 1Gi pages, 1Gi reserved, with containers of 64Mi
// on all nodes in turn.
func benchManager(b testing.TB, nodes, existing int) *memorymanager.Manager {
	b.Helper()
	var capacities []memorymanager.NodeCapacity
	for id := range nodes {
		capacities = append(capacities, memorymanager.NodeCapacity{
			ID: id, Total: 256 * gib,
			Pools:    []memorymanager.Pool{{PageSize: 2 * mib, Count: 8192}, {PageSize: gib, Count: 16}},
			Reserved: memorymanager.Request{{Type: memorymanager.Memory, Bytes: gib}},
		})
	}
	m, err := memorymanager.New(capacities, memorymanager.Options{Policy: topologymanager.Restricted})
	if err != nil {
		b.Fatal(err)
	}
	for i := range existing {
		request := memorymanager.Request{{Type: memorymanager.Memory, Bytes: 64 * mib}}
		if _, err := m.Adopt(podUID(i), "container", request, nodeset.Of(i%nodes)); err != nil {
			b.Fatal(err)
		}
	}
	return m
}

func podUID(i int) string { return fmt.Sprintf("%08x-6df9-4cf9-aa67-8c4814da37a8", i*2654435761) }

func benchContainer(pod string, types int) memorymanager.Container {
	request := memorymanager.Request{
		{Type: "hugepages-1Gi", Bytes: gib}, {Type: "hugepages-2Mi", Bytes: 512 * mib}, {Type: memorymanager.Memory, Bytes: 3 * gib},
	}
	return memorymanager.Container{Pod: pod, Name: "container", Request: request[3-types:]}
}

// BenchmarkCycle admits and releases one container, each with its decision in the state file.
func BenchmarkCycle(b *testing.B) {
	for _, nodes := range []int{2, 8, 64} {
		for _, existing := range []int{0, 100, 1000} {
			for _, types := range []int{1, 3} {
				b.Run(fmt.Sprintf("file/numa=%d/existing=%d/types=%d/spread", nodes, existing, types), func(b *testing.B) {
					benchmarkCycle(b, nodes, existing, types)
				})
			}
		}
	}
}

func benchmarkCycle(b *testing.B, nodes, existing, types int) {
	m := benchManager(b, nodes, existing)
	_, w := benchWriter(b)
	ctx := context.Background()
	if err := w.Replace(m.State()).Wait(ctx); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	c := benchContainer("fa9bdd38-6df9-4cf9-aa67-8c4814da37a8", types)
	for b.Loop() {
		if _, err := m.Allocate(c); err != nil {
			b.Fatal(err)
		}
		if err := w.Submit(m.Nodes(), m.Allocations(c.Pod)).Wait(ctx); err != nil {
			b.Fatal(err)
		}
		m.Release(c.Pod, c.Name)
		if err := w.Submit(m.Nodes(), m.Allocations(c.Pod)).Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(w.Stats().Size), "file-bytes")
}

func benchWriter(b *testing.B) (*Store, *Writer) {
	b.Helper()
	store, err := Open(benchFolder(b))
	if err == nil {
		err = store.Lock()
	}
	if err != nil {
		b.Fatal(err)
	}
	w := NewWriter(store)
	b.Cleanup(func() {
		if err := w.Close(context.Background()); err != nil {
			b.Error(err)
		}
		store.Close()
	})
	return store, w
}

// BenchmarkWriter is a storm: 500 containers start at once beside 500 others, each decided under one lock and answered
// when it is in the state file.
func BenchmarkWriter(b *testing.B) {
	for _, storm := range []int{1, 50, 500} {
		b.Run(fmt.Sprintf("storm=%d", storm), func(b *testing.B) {
			_, w := benchWriter(b)
			ctx := context.Background()
			var lock sync.Mutex
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				m := benchManager(b, 8, 500)
				if err := w.Replace(m.State()).Wait(ctx); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				var group sync.WaitGroup
				for i := range storm {
					group.Go(func() {
						c := memorymanager.Container{Pod: podUID(1000 + i), Name: "container", Request: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 64 * mib}}}
						lock.Lock()
						_, err := m.Allocate(c)
						ticket := w.Submit(m.Nodes(), m.Allocations(c.Pod))
						lock.Unlock()
						if err == nil {
							err = ticket.Wait(ctx)
						}
						if err != nil {
							b.Error(err)
						}
					})
				}
				group.Wait()
			}
			stats := w.Stats()
			b.ReportMetric(float64(stats.Writes)/float64(b.N), "writes/op")
		})
	}
}

// BenchmarkEncode is a change of one pod, and the text of the state after it.
func BenchmarkEncode(b *testing.B) {
	for _, existing := range []int{100, 250, 1000} {
		b.Run(fmt.Sprintf("existing=%d", existing), func(b *testing.B) {
			m := benchManager(b, 8, existing)
			w := Writer{state: withoutAmounts(m.State())}
			c := benchContainer("fa9bdd38-6df9-4cf9-aa67-8c4814da37a8", 1)
			if _, err := m.Allocate(c); err != nil {
				b.Fatal(err)
			}
			pods := []memorymanager.PodAllocations{m.Allocations(c.Pod), {Pod: c.Pod}} // there, and gone
			var buffer []byte
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.state = decided(w.state, m.Nodes(), pods[i%2])
				buffer, _ = w.content(buffer[:0])
			}
		})
	}
}

// BenchmarkDecode reads a state file of 1,000 containers.
func BenchmarkDecode(b *testing.B) {
	text := Encode(PolicyStatic, benchManager(b, 8, 1000).State())
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := Decode(text); err != nil {
			b.Fatal(err)
		}
	}
}

package checkpoint

import (
	"context"
	"slices"
	"sort"
	"sync"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Ticket stands for a decision that is being written.
type Ticket = durable.Ticket

// Stats are a Writer's counters since its start.
type Stats = durable.Stats

// Writer saves decisions in a Store. Decisions that arrive during a write share the next one. Its methods are safe for concurrent use. Only
// Ticket.Wait and Close wait for the disk.
type Writer struct {
	file *durable.Writer

	mu    sync.Mutex
	state memorymanager.State // the desired content; its slices are never modified
}

// NewWriter starts a writer for a store that the caller has locked. The caller stops it with Close.
func NewWriter(store *Store) *Writer {
	return &Writer{file: durable.NewWriter(durable.Options{Path: store.Path(), Write: store.write, Sync: store.sync})}
}

// Submit writes what a decision has changed: the node map and all allocations of its pod, empty if the pod is gone. The writer owns the
// slices then. The caller holds its own lock, so that decisions arrive in their order. A decision that allocates more than a node has needs
// Replace, which also writes on which nodes the bytes are.
func (w *Writer) Submit(nodes []memorymanager.NodeState, pod memorymanager.PodAllocations) Ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = decided(w.state, nodes, pod)
	return w.file.Submit(w.content)
}

// Release is Submit for a pod that is gone. Its allocations leave the disk with the next decision, or within a second. A daemon that reads
// them before that, after a crash, drops them, because the runtime does not have the pod. A container that gets their memory is itself a
// decision, so no file has both.
func (w *Writer) Release(nodes []memorymanager.NodeState, pod string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = decided(w.state, nodes, memorymanager.PodAllocations{Pod: pod})
	w.file.Defer(w.content)
}

// Replace writes a whole state, at the start and after a Synchronize.
func (w *Writer) Replace(s memorymanager.State) Ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = withAmountsNeeded(s)
	return w.file.Submit(w.content)
}

// decided returns the state after a decision. It drops the PerNode amounts, which would be wrong.
func decided(s memorymanager.State, nodes []memorymanager.NodeState, pod memorymanager.PodAllocations) memorymanager.State {
	s = withoutAmounts(s)
	var own []memorymanager.PodEntry
	if pod.Blocks != nil {
		own = []memorymanager.PodEntry{{Pod: pod.Pod, Blocks: pod.Blocks}}
	}
	return memorymanager.State{
		Nodes:   nodes,
		Entries: replaced(s.Entries, pod.Entries, pod.Pod, func(e memorymanager.Entry) string { return e.Pod }),
		Pods:    replaced(s.Pods, own, pod.Pod, func(e memorymanager.PodEntry) string { return e.Pod }),
	}
}

// replaced replaces the elements of a pod by others. all is sorted by pod.
func replaced[E any](all, others []E, pod string, of func(E) string) []E {
	from := sort.Search(len(all), func(i int) bool { return of(all[i]) >= pod })
	to := sort.Search(len(all), func(i int) bool { return of(all[i]) > pod })
	return slices.Concat(all[:from], others, all[to:])
}

func (w *Writer) content(buffer []byte) ([]byte, error) {
	w.mu.Lock()
	s := w.state
	w.mu.Unlock()
	return appendFile(buffer, s, "", PolicyStatic), nil // without the lock, which decisions wait for
}

// Stats returns the counters.
func (w *Writer) Stats() Stats { return w.file.Stats() }

// Close writes pending decisions, retries a failed write once, and ends the writer. The error is the last write's, or the context's if the
// disk does not answer.
func (w *Writer) Close(ctx context.Context) error { return w.file.Close(ctx) }

package checkpoint

import (
	"context"
	"slices"
	"sort"
	"sync"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Ticket stands for one decision on its way to the disk.
type Ticket = durable.Ticket

// Stats are a Writer's counters since its start.
type Stats = durable.Stats

// Writer saves decisions in a Store: those that arrive while a write is under way share the next one. Its methods are safe
// for concurrent use, and none but Ticket.Wait and Close waits for the disk.
type Writer struct {
	file *durable.Writer

	mu    sync.Mutex
	state texts // what the file should have; its slices are never changed
}

// NewWriter starts a writer for a store that the caller has locked. The caller stops it with Close.
func NewWriter(store *Store) *Writer {
	return &Writer{file: durable.NewWriter(durable.Options{Path: store.Path(), Write: store.write, Sync: store.sync})}
}

// Submit hands over what one decision changed: the node map and all allocations of the pod that it was about (none: the
// pod is gone). The slices are the writer's then. The caller holds its own lock, so that decisions arrive in their order.
// A decision that allocates more than a node has is for Replace, which writes where the bytes are.
func (w *Writer) Submit(nodes []memorymanager.NodeState, pod memorymanager.PodAllocations) Ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = w.state.decided(nodes, pod)
	return w.file.Submit(w.content)
}

// Release is Submit for a pod that is gone. Its allocations leave the disk with the next decision, or within a second: a daemon that
// reads them before that, after a crash, finds a pod that the runtime does not have, and drops them. What needs their memory is itself a
// decision, so that no file has both.
func (w *Writer) Release(nodes []memorymanager.NodeState, pod string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = w.state.decided(nodes, memorymanager.PodAllocations{Pod: pod})
	w.file.Defer(w.content)
}

// Replace hands over a whole state, at the start and after a Synchronize.
func (w *Writer) Replace(s memorymanager.State) Ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = textsOf(withAmountsNeeded(s))
	return w.file.Submit(w.content)
}

// decided is a state after a decision. Its PerNode amounts would not be true any more.
func (t texts) decided(nodes []memorymanager.NodeState, pod memorymanager.PodAllocations) texts {
	if t.amounts {
		t = textsOf(withoutAmounts(t.State))
	}
	own := memorymanager.State{Entries: pod.Entries}
	if pod.Blocks != nil {
		own.Pods = []memorymanager.PodEntry{{Pod: pod.Pod, Blocks: pod.Blocks}}
	}
	its := textsOf(own)
	return texts{
		State: memorymanager.State{
			Nodes:   nodes,
			Entries: replaced(t.Entries, pod.Entries, pod.Pod, func(e memorymanager.Entry) string { return e.Pod }),
			Pods:    replaced(t.Pods, own.Pods, pod.Pod, func(e memorymanager.PodEntry) string { return e.Pod }),
		},
		pods:    replaced(t.pods, its.pods, pod.Pod, func(p *podText) string { return p.pod }),
		amounts: its.amounts,
	}
}

// replaced has others in place of all of a pod's. They are sorted by pod.
func replaced[E any](all, others []E, pod string, of func(E) string) []E {
	from := sort.Search(len(all), func(i int) bool { return of(all[i]) >= pod })
	to := sort.Search(len(all), func(i int) bool { return of(all[i]) > pod })
	return slices.Concat(all[:from], others, all[to:])
}

// content is the text of the newest state.
func (w *Writer) content(buffer []byte) ([]byte, error) {
	w.mu.Lock()
	s := w.state
	w.mu.Unlock()
	return s.appendFile(buffer, "", PolicyStatic), nil // outside of the lock, which decisions wait for
}

// Stats returns the counters.
func (w *Writer) Stats() Stats { return w.file.Stats() }

// Close writes what is pending, tries once more what failed, and ends the writer. The error is the last write's, or the
// context's when the disk does not answer.
func (w *Writer) Close(ctx context.Context) error { return w.file.Close(ctx) }

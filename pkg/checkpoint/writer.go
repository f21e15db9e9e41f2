package checkpoint

import (
	"context"
	"reflect"
	"slices"
	"sort"
	"strings"
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
	state memorymanager.State // what the file should have; its slices are never changed
	begun bool                // there is a state
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
	return w.submit(decided(w.state, nodes, pod))
}

// Release is Submit for a pod that is gone. Its allocations leave the disk with the next decision, or within a second: a daemon that
// reads them before that, after a crash, finds a pod that the runtime does not have, and drops them. What needs their memory is itself a
// decision, so that no file has both.
func (w *Writer) Release(nodes []memorymanager.NodeState, pod string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.change(decided(w.state, nodes, memorymanager.PodAllocations{Pod: pod})) {
		w.file.Defer(w.content)
	}
}

// Replace hands over a whole state, at the start and after a Synchronize. What has not changed costs no write.
func (w *Writer) Replace(s memorymanager.State) Ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.submit(withAmountsNeeded(s))
}

// submit has a state written, unless it is the one that was written last.
func (w *Writer) submit(s memorymanager.State) Ticket {
	if !w.change(s) && w.begun {
		return w.file.Flush()
	}
	w.begun = true
	return w.file.Submit(w.content)
}

// change reports whether a state is another one. The lock is held.
func (w *Writer) change(s memorymanager.State) bool {
	changed := !reflect.DeepEqual(w.state, s)
	w.state = s
	return changed
}

// decided is a state after a decision. Its PerNode amounts would not be true any more.
func decided(s memorymanager.State, nodes []memorymanager.NodeState, pod memorymanager.PodAllocations) memorymanager.State {
	if hasAmounts(s) {
		s = withoutAmounts(s)
	}
	var own []memorymanager.PodEntry
	if pod.Blocks != nil {
		own = []memorymanager.PodEntry{{Pod: pod.Pod, Blocks: pod.Blocks}}
	}
	return memorymanager.State{
		Nodes:   nodes,
		Entries: replaced(s.Entries, pod.Entries, func(e memorymanager.Entry) int { return strings.Compare(e.Pod, pod.Pod) }),
		Pods:    replaced(s.Pods, own, func(e memorymanager.PodEntry) int { return strings.Compare(e.Pod, pod.Pod) }),
	}
}

// replaced has other entries in place of a pod's. Entries are sorted by pod; of compares that of one with it.
func replaced[E any](all, others []E, of func(E) int) []E {
	from := sort.Search(len(all), func(i int) bool { return of(all[i]) >= 0 })
	to := sort.Search(len(all), func(i int) bool { return of(all[i]) > 0 })
	return slices.Concat(all[:from], others, all[to:])
}

// content is the text of the newest state.
func (w *Writer) content(buffer []byte) ([]byte, error) {
	w.mu.Lock()
	s := w.state
	w.mu.Unlock()
	return appendFile(buffer, "", PolicyStatic, s), nil // outside of the lock, which decisions wait for
}

// Stats returns the counters.
func (w *Writer) Stats() Stats { return w.file.Stats() }

// Close writes what is pending, tries once more what failed, and ends the writer. The error is the last write's, or the
// context's when the disk does not answer.
func (w *Writer) Close(ctx context.Context) error { return w.file.Close(ctx) }

package checkpoint

import (
	"context"
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

	mu      sync.Mutex
	encoder *encoder // what should be on disk
	begun   bool     // encoder has a state
}

// NewWriter starts a writer for a store that the caller has locked. The caller stops it with Close.
func NewWriter(store *Store) *Writer {
	return &Writer{
		file:    durable.NewWriter(durable.Options{Path: store.Path(), Write: store.write, Settle: store.settle}),
		encoder: newEncoder(PolicyStatic),
	}
}

// Submit hands over what one decision changed: the node map and all allocations of the pod that it was about (none: the
// pod is gone). The slices are not kept. The caller holds its own lock, so that decisions arrive in their order.
// A decision that allocates more than a node has is for Replace, which writes where the bytes are.
func (w *Writer) Submit(nodes []memorymanager.NodeState, pod memorymanager.PodAllocations) Ticket {
	return w.change(func(e *encoder) bool { return e.decide(nodes, pod) })
}

// Release is Submit for a pod that is gone. Its allocations leave the disk with the next decision, or within a second: a daemon that
// reads them before that, after a crash, finds a pod that the runtime does not have, and drops them. What needs their memory is itself a
// decision, so that no file has both.
func (w *Writer) Release(nodes []memorymanager.NodeState, pod string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.encoder.decide(nodes, memorymanager.PodAllocations{Pod: pod}) {
		w.file.Defer(w.content)
	}
}

// Replace hands over a whole state, at the start and after a Synchronize. What has not changed costs no write.
func (w *Writer) Replace(s memorymanager.State) Ticket {
	return w.change(func(e *encoder) bool { return e.replace(s) })
}

func (w *Writer) change(apply func(*encoder) bool) Ticket {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !apply(w.encoder) && w.begun {
		return w.file.Flush()
	}
	w.begun = true
	return w.file.Submit(w.content)
}

// content is the text of the newest state.
func (w *Writer) content(buffer []byte) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.encoder.appendTo(buffer), nil
}

// Stats returns the counters.
func (w *Writer) Stats() Stats { return w.file.Stats() }

// Close writes what is pending, tries once more what failed, and ends the writer. The error is the last write's, or the
// context's when the disk does not answer.
func (w *Writer) Close(ctx context.Context) error { return w.file.Close(ctx) }

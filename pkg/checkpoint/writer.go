package checkpoint

import (
	"context"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// Writer saves decisions in a Store from one goroutine of its own: decisions that arrive while a write is under way
// share the next one. Its methods are safe for concurrent use, and none but Ticket.Wait and Close waits for the disk.
type Writer struct{}

// NewWriter starts a writer. The caller stops it with Close.
func NewWriter(store *Store) *Writer { return &Writer{} }

// Submit hands over what one decision changed: the node map and all entries of the pod that it was about (none: the pod
// is gone). The caller keeps its slices and holds its own lock, so that decisions arrive in their order.
func (w *Writer) Submit(nodes []memorymanager.NodeState, pod string, entries []memorymanager.Entry) Ticket {
	return Ticket{}
}

// Replace hands over a whole state, at the start and after a Synchronize. What has not changed costs no write.
func (w *Writer) Replace(s memorymanager.State) Ticket { return Ticket{} }

// Ticket stands for one decision on its way to the disk. The zero Ticket is one that needs no write.
type Ticket struct{}

// Wait returns when a write that contains the decision is durable or has failed, or with the context's error. The
// decision of a failed write is part of the next write, which the writer tries by itself after a while.
func (t Ticket) Wait(ctx context.Context) error { return nil }

// Stats are a Writer's counters since its start.
type Stats struct {
	// Decisions is how many were submitted, Writes and Failures how many writes ended well and badly.
	Decisions, Writes, Failures uint64
	// Seconds is the time spent in writes, Bytes what they wrote.
	Seconds float64
	Bytes   uint64
	// Size is the state file's size in bytes.
	Size int
	// Pending is set while a decision is not on disk; PendingSince is since when.
	Pending      bool
	PendingSince time.Time
	// LastError is the text of the last write's error; empty when it went well.
	LastError string
}

// Stats returns the counters.
func (w *Writer) Stats() Stats { return Stats{} }

// Close writes what is pending and ends the writer. The error is the last write's, or the context's.
func (w *Writer) Close(ctx context.Context) error { return nil }

package checkpoint

import "time"

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
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	stats := w.stats
	switch {
	case w.writing != nil:
		stats.Pending, stats.PendingSince = true, w.writing.since
	case w.dirty:
		stats.Pending, stats.PendingSince = true, w.since
	}
	if w.last != nil {
		stats.LastError = w.last.Error()
	}
	return stats
}

// Package recording keeps what a ledger was given and what it decided, and runs it through a ledger again.
//
// A recording is a ring of files, the segments. Each begins with the state of the whole ledger at that moment, followed by
// every event with its moment and its outcome: the effects without the lines for the log. Nothing else is needed to replay a
// segment, so that the oldest can be removed at any time, a segment can be sent to somebody on its own, and nothing has to be
// assumed about what came before.
//
// The state is written field by field, those that are private to the ledger and to the memory manager included. Two simpler
// forms were considered. Recording only from the start of the process is exact as well, but the ring loses the start within
// days, and nothing can be replayed from then on. Beginning with a Synchronize instead is not exact: it does not say which
// answers are on their way, what a resize was before, or which pod was aligned how, so that a replay would report
// differences where the ledger made none. A type with copies of all fields would be exact and would have to follow every
// change of the ledger; Encode follows by itself. Its price is a pause: the state is encoded under the lock of the ledger's
// driver, once for each segment (see BenchmarkSnapshot), which is every few hours or days.
//
// Events and outcomes are encoded by a goroutine of the Recorder. Neither changes after a Step. The queue before it is
// bounded: events that find it full are not recorded, and the recording goes on with a new segment, which says how many
// are missing. What is before and behind such a gap is still replayed exactly.
//
// Moments are wall clock times at the beginning of a segment, and go on with the monotonic clock: durations between them are
// those that the ledger has seen, whatever became of the wall clock.
//
// Annotations other than this plugin's, are not written.
package recording

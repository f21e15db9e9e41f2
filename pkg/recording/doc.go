// Package recording writes down what a ledger was given and what it decided, and runs it through a ledger again.
//
// A recording is a folder of files, the segments. The first line of a segment is the state of the whole ledger at that moment;
// each of the others is an event with its moment and its effects, without the lines for the log. Nothing else is needed to replay
// a segment, so that the oldest can be removed at any time and one can be sent to somebody on its own.
//
// State, events and effects are the JSON of the ledger's own types, written by a goroutine of the Recorder: none of them changes
// after a Step. The queue before it is bounded: events that find it full are not recorded, and the recording goes on with a new
// segment. What is before and behind such a gap is still replayed exactly.
//
// Moments are wall clock times at the beginning of a segment, and go on with the monotonic clock: durations between them are
// those that the ledger has seen, whatever became of the wall clock.
//
// Annotations other than this plugin's are not written.
package recording

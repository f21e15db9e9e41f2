package ledger

import (
	"errors"
	"fmt"
)

// Header says when an event of a runtime was received. The zero value belongs to an event of the driver itself, which is never late.
type Header struct {
	// Epoch is the number of the connection (Connected.Epoch).
	Epoch uint64
	// Seq numbers the events in the order in which they were received, from 1.
	Seq uint64
}

func (h Header) header() Header { return h }

// headerOf returns an event's header; zero for an event of the driver itself.
func headerOf(event Event) Header {
	if received, ok := event.(interface{ header() Header }); ok {
		return received.header()
	}
	return Header{}
}

// An event is late if the runtime no longer waits for it, so that nobody needs its decision.
var (
	errConnectionEnded = errors.New("late: the connection that it came by has ended")
	errOvertaken       = errors.New("late: a newer event has decided about it")
)

// late returns an error for an event of a connection that has ended: what it reports may have changed since. The end of a container or a
// pod is never late, because its id is never used again.
func (l *Ledger) late(event Event, epoch uint64) error {
	if _, end := event.(EndContainer); end || epoch == 0 || epoch == l.state.Epoch {
		return nil
	}
	return errConnectionEnded
}

// overtaken returns an error for an event that was received before the container of this name was changed, or before the container with
// this id ended: the runtime has abandoned it since. c is nil if the pod has no container of the name.
func (l *Ledger) overtaken(c *container, id string) error {
	if l.step.seq != 0 && (c != nil && l.step.seq < c.Seq || l.state.EndedContainers.has(id, l.step.seq+1)) {
		return fmt.Errorf("container %s: %w", id, errOvertaken)
	}
	return nil
}

// overtaken returns an error for an event of a sandbox that was received before the pod got a newer sandbox.
func (p *pod) overtaken(received Pod, seq uint64) error {
	if seq != 0 && seq < p.Seq && p.ID != received.ID {
		return fmt.Errorf("pod %s/%s: %w", received.Namespace, received.Name, errOvertaken)
	}
	return nil
}

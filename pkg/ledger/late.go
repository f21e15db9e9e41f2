package ledger

import (
	"errors"
	"fmt"
)

// Header says when an event of a runtime was received, before anything about it was waited for. The zero value belongs to an event
// of the driver's own, which is never late.
type Header struct {
	// Epoch is the number of the connection, as in Connected.
	Epoch uint64
	// Seq is the event's place in the order in which events were received, from 1.
	Seq uint64
}

func (h Header) header() Header { return h }

// headerOf is an event's header; zero for one of the driver's own.
func headerOf(event Event) Header {
	if received, ok := event.(interface{ header() Header }); ok {
		return received.header()
	}
	return Header{}
}

// Why an event is late. The runtime has given up waiting for it, so that nobody misses what it would have decided.
var (
	errSessionOver = errors.New("late: the connection that it came by has ended")
	errOvertaken   = errors.New("late: a newer event has decided about it")
)

// late returns an error for an event of a connection that has ended. What such an event reports may have changed since. The end of
// a container or a pod names an id that is never used again, and is true whenever it arrives.
func (l *Ledger) late(event Event, epoch uint64) error {
	if _, end := event.(EndContainer); end || epoch == 0 || epoch == l.state.Epoch {
		return nil
	}
	return errSessionOver
}

// overtaken returns an error for an event that was received before the container of this name was changed, or before the container
// with this id ended: the runtime has given it up since. c is nil where the pod has no container of the name.
func (l *Ledger) overtaken(c *container, id string) error {
	if l.step.seq != 0 && (c != nil && l.step.seq < c.Seq || l.state.EndedContainers.has(id, l.step.seq+1)) {
		return fmt.Errorf("container %s: %w", id, errOvertaken)
	}
	return nil
}

// overtakes returns an error for an event of a sandbox that was received before the pod got another one.
func (p *pod) overtakes(received Pod, seq uint64) error {
	if seq != 0 && seq < p.Seq && p.ID != received.ID {
		return fmt.Errorf("pod %s/%s: %w", received.Namespace, received.Name, errOvertaken)
	}
	return nil
}

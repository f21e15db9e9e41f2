package main

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

// logLines is how many lines wait for a reader before further ones are left out.
const logLines = 1024

// logWriter writes a log's lines from a goroutine of its own: a reader that does not read, such as a container runtime whose
// disk is full, delays no event. Lines that find no room are left out and counted.
type logWriter struct {
	to    io.Writer
	lines chan []byte
	lost  atomic.Uint64
	stop  chan struct{}
	ended chan struct{}
}

// logTo has a log write to w.
func logTo(log *logrus.Logger, w io.Writer) *logWriter {
	l := &logWriter{to: w, lines: make(chan []byte, logLines), stop: make(chan struct{}), ended: make(chan struct{})}
	log.SetOutput(l)
	go l.run(log)
	return l
}

// Write takes a line. It never waits, and never fails.
func (l *logWriter) Write(line []byte) (int, error) {
	select {
	case l.lines <- append([]byte(nil), line...): // logrus uses its buffer again
	default:
		l.lost.Add(1)
	}
	return len(line), nil
}

func (l *logWriter) run(log *logrus.Logger) {
	defer close(l.ended)
	for {
		select {
		case line := <-l.lines:
			l.write(log, line)
			continue
		default:
		}
		select {
		case line := <-l.lines:
			l.write(log, line)
		case <-l.stop:
			return // with nothing left
		}
	}
}

func (l *logWriter) write(log *logrus.Logger, line []byte) {
	_, _ = l.to.Write(line) // there is nowhere to report an error
	if lost := l.lost.Swap(0); lost > 0 {
		log.WithField("lines", lost).Warn("log lines were left out: they are read too slowly")
	}
}

// Close writes what waits, as long as it may take.
func (l *logWriter) Close(timeout time.Duration) {
	close(l.stop)
	select {
	case <-l.ended:
	case <-time.After(timeout):
	}
}

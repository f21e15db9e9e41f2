package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
)

// logLines is how many lines wait for a reader before further ones are left out.
const logLines = 1024

// logLater is how long the first line waits: it is mostly of an event whose answer is on its way, and needs the processor.
const logLater = 10 * time.Millisecond

// logWriter formats and writes a log's lines in a goroutine of its own: no event waits for its line, nor for a reader that does
// not read, such as a container runtime whose disk is full. Lines that find no room are left out and counted.
type logWriter struct {
	log    *logrus.Logger
	to     io.Writer
	format atomic.Pointer[logrus.Formatter] // of the lines
	lines  chan *logrus.Entry
	lost   atomic.Uint64
	stop   chan struct{}
	ended  chan struct{}
}

// logTo has a log write to w, in the format that it has until writeAs sets another.
func logTo(log *logrus.Logger, w io.Writer) *logWriter {
	l := &logWriter{
		log: log, to: w, lines: make(chan *logrus.Entry, logLines), stop: make(chan struct{}), ended: make(chan struct{}),
	}
	format := log.Formatter
	l.format.Store(&format)
	log.SetFormatter(l)
	log.SetOutput(io.Discard)
	go l.run()
	return l
}

// The formats of a log.
const (
	logText = "text"
	logJSON = "json"
)

func (l *logWriter) writeAs(name string) error {
	var format logrus.Formatter
	switch name {
	case logText:
		format = &logrus.TextFormatter{FullTimestamp: true}
	case logJSON:
		format = &logrus.JSONFormatter{}
	default:
		return fmt.Errorf("--log-format %q: want %s or %s", name, logText, logJSON)
	}
	l.format.Store(&format)
	return nil
}

// configure applies the configuration's level; -v asks for more than it, never for less.
func (l *logWriter) configure(configured config.LogLevel, verbose int) {
	level, err := logrus.ParseLevel(string(configured))
	if err != nil {
		level = logrus.InfoLevel // the configuration has been checked
	}
	switch {
	case verbose > 1:
		level = logrus.TraceLevel
	case verbose == 1:
		level = max(level, logrus.DebugLevel)
	}
	l.log.SetLevel(level)
}

// Format keeps a line for the goroutine, and has logrus write nothing. It never waits, and never fails.
func (l *logWriter) Format(line *logrus.Entry) ([]byte, error) {
	kept := &logrus.Entry{Logger: line.Logger, Data: line.Data, Time: line.Time, Level: line.Level, Message: line.Message} // not its buffer
	select {
	case l.lines <- kept:
	default:
		l.lost.Add(1)
	}
	return nil, nil
}

func (l *logWriter) run() {
	defer close(l.ended)
	for {
		select {
		case line := <-l.lines:
			l.write(line)
			continue
		default:
		}
		select {
		case line := <-l.lines:
			time.Sleep(logLater)
			l.write(line)
		case <-l.stop:
			return // with nothing left
		}
	}
}

func (l *logWriter) write(line *logrus.Entry) {
	if text, err := (*l.format.Load()).Format(line); err == nil { // there is nowhere to report an error
		_, _ = l.to.Write(text)
	}
	if lost := l.lost.Swap(0); lost > 0 {
		l.log.WithField("lines", lost).Warn("log lines were left out: they are read too slowly")
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

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

// A pipe that nobody reads takes no line; when it is read again, the log says how many are missing.
func TestALogThatNobodyReadsHoldsNothingUp(t *testing.T) {
	t.Parallel()
	reader, pipe := io.Pipe()
	log := logrus.New()
	writer := logTo(log, pipe)
	const lines = logLines + 100
	for range lines {
		log.Info("a line")
	}
	text := make(chan string)
	go func() {
		data, _ := io.ReadAll(reader)
		text <- string(data)
	}()
	writer.Close(time.Minute)
	pipe.Close()
	read := <-text
	if got := strings.Count(read, "a line"); got < logLines || got >= lines {
		t.Errorf("%d of %d lines were read, want %d or one more", got, lines, logLines)
	}
	if !strings.Contains(read, "log lines were left out: they are read too slowly") {
		t.Errorf("the log does not say so:\n%.300s", read)
	}
}

func TestTheLogsLastLinesAreWritten(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	log := logrus.New()
	writer := logTo(log, &text)
	log.Info("the last line")
	writer.Close(time.Minute)
	if !strings.Contains(text.String(), "the last line") {
		t.Errorf("the log has %q", text.String())
	}
}

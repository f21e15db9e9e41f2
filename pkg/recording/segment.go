package recording

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// format is the version of what a segment contains.
const format = 1

// A segment's file is named after the moment at which it begins, so that names sort by time.
const (
	prefix   = "recording-"
	suffix   = ".jsonl.gz"
	nameTime = "20060102T150405.000000000Z"
)

// header is the first line of a segment.
type header struct {
	// Recording is the format.
	Recording int `json:"recording"`
	// Version is the program's.
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	// First is the number of the first event, Lost how many before it were not recorded.
	First uint64 `json:"first"`
	Lost  uint64 `json:"lost,omitempty"`
	// Ledger is the state before the first event, Sum its SHA-256.
	Ledger json.RawMessage `json:"ledger"`
	Sum    string          `json:"sum"`
}

func sumOf(state []byte) string {
	sum := sha256.Sum256(state)
	return hex.EncodeToString(sum[:])
}

// line is an event and its outcome.
type line struct {
	Number uint64    `json:"n"`
	At     time.Time `json:"at"`
	// Kind and Event are the event; Same is the number of an earlier one of the segment that it equals.
	Kind  string          `json:"kind,omitempty"`
	Event json.RawMessage `json:"event,omitempty"`
	Same  uint64          `json:"same,omitempty"`
	// Outcome are the effects; absent when there are none.
	Outcome json.RawMessage `json:"outcome,omitempty"`
}

// segment is a file that is being written.
type segment struct {
	name   string
	file   *os.File
	size   counter
	packed *gzip.Writer
	anchor time.Time
	// begins is the size of the header.
	begins int64
	// last is the number of the last event.
	last uint64
	// events are those that an equal one can refer to, by their sum.
	events map[[sha256.Size]byte]uint64
}

// counter counts the bytes that reach the file.
type counter struct {
	to    io.Writer
	bytes int64
}

func (c *counter) Write(data []byte) (int, error) {
	n, err := c.to.Write(data)
	c.bytes += int64(n)
	return n, err
}

// leastRepeated is the size in bytes from which an event that equals an earlier one refers to it.
const leastRepeated = 64

// begin makes the file of a new segment with its header.
func begin(dir, version string, s start) (*segment, error) {
	g := &segment{
		name: prefix + s.at.UTC().Format(nameTime) + suffix, anchor: s.at, events: map[[sha256.Size]byte]uint64{},
	}
	var err error
	if g.file, err = os.OpenFile(filepath.Join(dir, g.name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	g.size.to = g.file
	if g.packed, err = gzip.NewWriterLevel(&g.size, gzip.BestSpeed); err != nil {
		return nil, err
	}
	err = g.put(header{
		Recording: format, Version: version, At: s.at.Round(0).UTC(), First: s.first, Lost: s.lost, Ledger: s.state, Sum: sumOf(s.state),
	})
	if err == nil {
		err = g.flush()
	}
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	g.begins = g.size.bytes
	return g, nil
}

// full reports whether the events of a segment take up its share of a ring of so many bytes.
func (g *segment) full(size uint64) bool { return g.size.bytes-g.begins > int64(size/segments) }

func (g *segment) put(value any) error {
	out := json.NewEncoder(g.packed)
	out.SetEscapeHTML(false) // outcomes are compared byte by byte
	return out.Encode(value)
}

// add writes an event.
func (g *segment) add(e entry) error {
	l := line{Number: e.number, At: (&encoder{anchor: g.anchor}).moment(e.at), Kind: kindOf(e.event)}
	event, err := encode(e.event, g.anchor, false)
	if err != nil {
		return err
	}
	outcome, err := encode(&e.effects, g.anchor, false)
	if err != nil {
		return err
	}
	if len(event) >= leastRepeated {
		sum := sha256.Sum256(append([]byte(l.Kind), event...))
		if l.Same = g.events[sum]; l.Same == 0 {
			g.events[sum] = e.number
		}
	}
	if l.Same > 0 {
		l.Kind = ""
	} else {
		l.Event = event
	}
	if string(outcome) != noOutcome {
		l.Outcome = outcome
	}
	g.last = e.number
	return g.put(l)
}

// noOutcome is that of an event from which nothing follows.
const noOutcome = "{}"

// flush brings to the kernel what was written so far.
func (g *segment) flush() error { return g.packed.Flush() }

func (g *segment) close() error { return errors.Join(g.packed.Close(), g.file.Sync(), g.file.Close()) }

// segmentsIn are the names of a folder's segments, the oldest first, and their sizes.
func segmentsIn(dir string) (names []string, sizes map[string]int64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	sizes = map[string]int64{}
	for _, entry := range entries {
		name := entry.Name()
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || !strings.HasPrefix(name, prefix) || !strings.HasSuffix(name, suffix) {
			continue
		}
		names, sizes[name] = append(names, name), info.Size()
	}
	slices.Sort(names)
	return names, sizes, nil
}

// open returns the lines of a segment, which may be packed or not.
func open(path string) (*bufio.Reader, io.Closer, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	in := bufio.NewReader(file)
	magic, err := in.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, errors.Join(err, file.Close())
	}
	if string(magic) != "\x1f\x8b" {
		return in, file, nil
	}
	unpacked, err := gzip.NewReader(in)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return bufio.NewReader(unpacked), file, nil
}

package recording

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// format is the version of what a segment contains.
const format = 6

// A segment's file is named after the moment at which it begins, so that names sort by time.
const (
	prefix   = "recording-"
	suffix   = ".jsonl.gz"
	nameTime = "20060102T150405.000000000Z"
)

func nameAt(t time.Time) string { return prefix + t.UTC().Format(nameTime) + suffix }

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
	// State is that of the ledger before the first event.
	State json.RawMessage `json:"state"`
}

// line is an event and what followed from it.
type line struct {
	Number uint64    `json:"n"`
	At     time.Time `json:"at"`
	// Kind and Event are the event; Same is the number of an earlier one of the segment that it equals.
	Kind  string          `json:"kind,omitempty"`
	Event json.RawMessage `json:"event,omitempty"`
	Same  uint64          `json:"same,omitempty"`
	// Effects are absent when there are none.
	Effects json.RawMessage `json:"effects,omitempty"`
}

// segment is a file that is being written.
type segment struct {
	name   string
	file   *os.File
	packed *gzip.Writer
	anchor time.Time
	// begins is the size of the header.
	begins int64
	// events are those that an equal one can refer to, by their sum.
	events map[[sha256.Size]byte]uint64
}

// leastRepeated is the size in bytes from which an event that equals an earlier one refers to it.
const leastRepeated = 64

// begin makes the file of a new segment with its header.
func begin(dir, version string, s start) (*segment, error) {
	g := &segment{name: nameAt(s.at), anchor: s.at, events: map[[sha256.Size]byte]uint64{}}
	state, err := json.Marshal(s.state)
	if err != nil {
		return nil, err
	}
	if g.file, err = os.OpenFile(filepath.Join(dir, g.name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	g.packed, _ = gzip.NewWriterLevel(g.file, gzip.BestSpeed) // which is a level
	err = g.put(header{Recording: format, Version: version, At: g.moment(s.at), First: s.first, Lost: s.lost, State: state})
	if err == nil {
		err = g.flush()
	}
	if err != nil {
		return nil, errors.Join(err, g.close())
	}
	g.begins = g.size()
	return g, nil
}

// size is the number of bytes that have reached the file.
func (g *segment) size() int64 {
	size, _ := g.file.Seek(0, io.SeekCurrent) // an error shows at the next write
	return size
}

// full reports whether the events of a segment take up its share of a ring of so many bytes.
func (g *segment) full(size uint64) bool { return g.size()-g.begins > int64(size/segments) }

// moment is a time counted from the segment's beginning by the monotonic clock.
func (g *segment) moment(t time.Time) time.Time { return g.anchor.Add(t.Sub(g.anchor)).Round(0).UTC() }

func (g *segment) put(value any) error { return json.NewEncoder(g.packed).Encode(value) }

// add writes an event.
func (g *segment) add(e entry) error {
	l := line{Number: e.number, At: g.moment(e.at), Kind: kindOf(e.event)}
	event, err := json.Marshal(e.event)
	if err != nil {
		return err
	}
	effects, err := encodeEffects(e.effects)
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
	if string(effects) != noEffects {
		l.Effects = effects
	}
	return g.put(l)
}

// noEffects are those of an event from which nothing follows.
const noEffects = "{}"

// flush brings to the kernel what was written so far.
func (g *segment) flush() error { return g.packed.Flush() }

func (g *segment) close() error { return errors.Join(g.packed.Close(), g.file.Sync(), g.file.Close()) }

// segmentsIn are a folder's segments, the oldest first.
func segmentsIn(dir string) (files []os.FileInfo, err error) {
	entries, err := os.ReadDir(dir) // sorted by name
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), prefix) || !strings.HasSuffix(entry.Name(), suffix) {
			continue
		}
		if file, err := entry.Info(); err == nil && file.Mode().IsRegular() {
			files = append(files, file)
		}
	}
	return files, err
}

// open returns the lines of a segment, which may be packed or not.
func open(path string) (io.Reader, io.Closer, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	in := bufio.NewReader(file)
	if magic, _ := in.Peek(2); string(magic) != "\x1f\x8b" { // an error shows at the first line
		return in, file, nil
	}
	unpacked, err := gzip.NewReader(in)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return unpacked, file, nil
}

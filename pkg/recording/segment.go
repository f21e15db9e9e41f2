package recording

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// format is the version of what a segment contains.
const format = 7

// A segment's file is named after the moment at which it begins, so that names sort by time.
const (
	prefix   = "recording-"
	suffix   = ".jsonl"
	nameTime = "20060102T150405.000000000Z"
	packed   = ".gz" // ends the names of versions before v0.3.0
)

// header is the first line of a segment.
type header struct {
	// Recording is the format.
	Recording int `json:"recording"`
	// Version is the program's.
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	// First is the number of the first event.
	First uint64 `json:"first"`
	// State is that of the ledger before the first event.
	State json.RawMessage `json:"state"`
}

// line is an event and what followed from it.
type line struct {
	Number  uint64          `json:"n"`
	At      time.Time       `json:"at"`
	Kind    string          `json:"kind"`
	Event   json.RawMessage `json:"event"`
	Effects json.RawMessage `json:"effects"`
}

// segment is a file that is being written.
type segment struct {
	file   *os.File
	anchor time.Time
	// begins is the size of the header.
	begins int64
}

func begin(dir, version string, s start) (*segment, error) {
	state, err := json.Marshal(s.state)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(dir, prefix+s.at.UTC().Format(nameTime)+suffix)
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	g := &segment{file: file, anchor: s.at}
	if err := g.put(header{Recording: format, Version: version, At: g.moment(s.at), First: s.first, State: state}); err != nil {
		return nil, errors.Join(err, g.close(), os.Remove(name)) // else each try would leave one on a full disk
	}
	g.begins = g.size()
	return g, nil
}

func (g *segment) size() int64 {
	size, _ := g.file.Seek(0, io.SeekCurrent) // an error shows at the next write
	return size
}

// moment is a time counted from the segment's beginning by the monotonic clock.
func (g *segment) moment(t time.Time) time.Time { return g.anchor.Add(t.Sub(g.anchor)).Round(0).UTC() }

func (g *segment) put(value any) error { return json.NewEncoder(g.file).Encode(value) }

func (g *segment) add(e entry) error {
	event, err := json.Marshal(e.event)
	if err != nil {
		return err
	}
	effects, err := encodeEffects(e.effects)
	if err != nil {
		return err
	}
	return g.put(line{Number: e.number, At: g.moment(e.at), Kind: kindOf(e.event), Event: event, Effects: effects})
}

func (g *segment) close() error { return errors.Join(g.file.Sync(), g.file.Close()) }

// segmentsIn are the paths of a folder's segments, the oldest first, also of those that older versions have packed.
func segmentsIn(dir string) (paths []string, err error) {
	entries, err := os.ReadDir(dir) // sorted by name
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) && entry.Type().IsRegular() {
			paths = append(paths, filepath.Join(dir, entry.Name()))
		}
	}
	return paths, err
}

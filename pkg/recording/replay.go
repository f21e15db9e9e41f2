package recording

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// Decision is an event from which something follows, or one whose outcome differs when it is replayed.
type Decision struct {
	File  string    `json:"file"`
	Event uint64    `json:"event"`
	At    time.Time `json:"at"`
	Kind  string    `json:"kind"`
	// Pod and Container are what the event is about; absent when it is about many.
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	// Outcome is what was recorded. Replayed is what was decided now; absent when it is the same.
	Outcome  json.RawMessage `json:"outcome,omitempty"`
	Replayed json.RawMessage `json:"replayed,omitempty"`
	// Fields are those of the log.
	Fields map[string]any `json:"-"`
	// Err is why something was refused.
	Err error `json:"-"`
}

// Differs reports whether the outcome is another one than the recorded one.
func (d *Decision) Differs() bool { return d.Replayed != nil }

// Summary counts what was replayed.
type Summary struct {
	Events    uint64 `json:"events"`
	Decisions uint64 `json:"decisions"`
	Differ    uint64 `json:"differ"`
	// Missing are events between those of the files that were not recorded.
	Missing uint64 `json:"missing"`
	// Older are files of versions before v0.3.0, which are left out.
	Older []string `json:"older,omitempty"`
	// Cut are files whose last line is incomplete, as after a loss of power.
	Cut []string `json:"cut,omitempty"`
}

// Replay runs a segment, or all those in a folder, through a ledger, and compares what it decides with what was recorded. An
// error about the input names the file and the line, or is one of visit, which receives the decisions in their order; nil receives none.
func Replay(path string, visit func(Decision) error) (Summary, error) {
	r := replay{visit: visit}
	info, err := os.Stat(path)
	if err != nil {
		return r.Summary, fmt.Errorf("replay: %w", err)
	}
	files := []string{path}
	if r.folder = info.IsDir(); r.folder {
		all, unreadable := segmentsIn(path)
		files, err = nil, unreadable
		for _, file := range all {
			if strings.HasSuffix(file, packed) {
				r.Older = append(r.Older, file)
			} else {
				files = append(files, file)
			}
		}
		switch {
		case err != nil || len(files) > 0:
		case len(r.Older) > 0:
			err = older(r.Older[0])
		default:
			err = fmt.Errorf("%s has no recordings: want files named %s…%s", path, prefix, suffix)
		}
	}
	for i := 0; err == nil && i < len(files); i++ {
		err = r.file(files[i])
	}
	if err != nil {
		return r.Summary, fmt.Errorf("replay: %w", err)
	}
	return r.Summary, nil
}

// older is the error of a file of before, which does not say which version wrote it.
func older(path string) error {
	return fmt.Errorf("%s: recorded by a version before v0.3.0: replay it with that version", path)
}

// replay is a Replay under way.
type replay struct {
	Summary
	visit  func(Decision) error
	folder bool // files may be what a loss of power has left

	name   string
	ledger *ledger.Ledger
	next   uint64
}

func (r *replay) file(path string) error {
	if strings.HasSuffix(path, packed) {
		return older(path)
	}
	text, err := durable.ReadFile(path)
	if err != nil {
		return err
	}
	return r.segment(path, text)
}

func (r *replay) segment(name string, text []byte) error {
	r.name, r.ledger = name, nil
	if len(text) == 0 && !r.folder {
		return fmt.Errorf("%s:1: the file is empty, want the header of a recording", name)
	}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		if line[len(line)-1] != '\n' && (number > 1 || r.folder) {
			number = 0 // what a loss of power has left of the last one
			break
		}
		if err := r.line(number, line); err != nil {
			return fmt.Errorf("%s:%d: %w", name, number, err)
		}
	}
	if number == 0 {
		r.Cut = append(r.Cut, name)
	}
	return nil
}

func (r *replay) line(number int, text []byte) error {
	if number == 1 {
		return r.header(text)
	}
	var l line
	if err := strict(text, &l); err != nil {
		return fmt.Errorf("want an event: %w", err)
	}
	if l.Number != r.next {
		return fmt.Errorf("want event %d, got %d: lines are missing", r.next, l.Number)
	}
	r.next++
	if err := r.step(l); err != nil {
		return fmt.Errorf("event %d: %w", l.Number, err)
	}
	return nil
}

// header makes the ledger.
func (r *replay) header(text []byte) error {
	var h header
	err := json.Unmarshal(text, &h) // other formats have other fields
	if err == nil && h.Recording == 0 {
		err = errors.New("it has no format")
	}
	if err != nil {
		return fmt.Errorf(`want the header of a recording, {"recording":%d,…}: %w`, format, err)
	}
	if h.Recording != format {
		return fmt.Errorf("want a recording of format %d, got %d: replay it with version %s", format, h.Recording, h.Version)
	}
	if r.ledger, err = resume(h.State); err != nil {
		return fmt.Errorf("the state of the ledger of version %s cannot be read: %w", h.Version, err)
	}
	r.Missing += h.First - min(h.First, cmp.Or(r.next, h.First)) // a daemon that starts counts from the beginning
	r.next = h.First
	return nil
}

// resume makes the ledger of a segment's state.
func resume(text json.RawMessage) (*ledger.Ledger, error) {
	var state ledger.State
	if err := strict(text, &state); err != nil {
		return nil, err
	}
	return ledger.Open(state)
}

// step applies an event and compares its effects.
func (r *replay) step(l line) error {
	event, err := decodeEvent(l.Kind, l.Event)
	if err != nil {
		return err
	}
	effects, err := apply(r.ledger, l.At, event)
	if err != nil {
		return err
	}
	replayed, err := encodeEffects(effects)
	if err != nil {
		return err
	}
	r.Events++
	d := Decision{File: r.name, Event: l.Number, At: l.At, Kind: l.Kind, Outcome: l.Effects, Err: effects.Err}
	if !bytes.Equal(l.Effects, replayed) {
		d.Replayed = replayed
		r.Differ++
	}
	decides := decides(replayed) || decides(l.Effects)
	if decides {
		r.Decisions++
	}
	if !decides && !d.Differs() || r.visit == nil {
		return nil
	}
	d.Pod, d.Container = about(l.Event)
	if effects.Decision != nil {
		d.Fields = effects.Decision.Fields()
	}
	return r.visit(d)
}

// apply is Step for an event that may be none that a runtime sends.
func apply(l *ledger.Ledger, at time.Time, event ledger.Event) (effects ledger.Effects, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("cannot be applied (%v): the file is damaged, or this is a defect of the version that replays it", problem)
		}
	}()
	return l.Step(at, event), nil
}

// decides reports whether effects are such that a person asks about.
func decides(effects json.RawMessage) bool {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(effects, &fields) // what is no object decides nothing
	for _, name := range []string{"Err", "Decision", "Answer", "Updates", "Allocations"} {
		if _, there := fields[name]; there {
			return true
		}
	}
	return false
}

// about names the pod and the container of an event; "" where it is about many.
func about(event json.RawMessage) (pod, container string) {
	var named struct {
		UID, ID        string
		Pod, Container struct{ Namespace, Name string }
	}
	_ = json.Unmarshal(event, &named) // some events name none
	if pod = named.UID; named.Pod.Name != "" {
		pod = named.Pod.Namespace + "/" + named.Pod.Name
	}
	if container = named.ID; named.Container.Name != "" {
		container = named.Container.Name
	}
	return pod, container
}

// String is the decision in a line, and in two more what differs.
func (d Decision) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %d  %s", d.At.UTC().Format("2006-01-02T15:04:05.000Z"), d.Event, d.Kind)
	for _, name := range []string{d.Pod, d.Container} {
		if name != "" {
			b.WriteString(" " + name)
		}
	}
	if d.Err != nil {
		fmt.Fprintf(&b, ": refused: %v", d.Err)
	} else {
		for _, field := range slices.Sorted(maps.Keys(d.Fields)) {
			text := fmt.Sprint(d.Fields[field])
			if text == "" || slices.Contains(subjects, field) {
				continue
			}
			if strings.ContainsAny(text, " \"\n") {
				text = strconv.Quote(text)
			}
			fmt.Fprintf(&b, " %s=%s", field, text)
		}
	}
	if d.Differs() {
		recorded, replayed := differing(d.Outcome, d.Replayed)
		fmt.Fprintf(&b, "\nDIFFERS  recorded %s\n         replayed %s", recorded, replayed)
	}
	return b.String()
}

// differing returns only the fields in which two objects differ; both whole if one is no object.
func differing(one, other json.RawMessage) (json.RawMessage, json.RawMessage) {
	var a, b map[string]json.RawMessage
	if json.Unmarshal(one, &a) != nil || json.Unmarshal(other, &b) != nil {
		return one, other
	}
	for name, value := range a {
		if bytes.Equal(value, b[name]) {
			delete(a, name)
			delete(b, name)
		}
	}
	one, _ = json.Marshal(a) // both were JSON
	other, _ = json.Marshal(b)
	return one, other
}

// subjects are the fields of the log that say what a decision is about, not what was decided.
var subjects = []string{"pod", "namespace", "uid", "container", "containerID"}

// String is the summary's line.
func (s Summary) String() string {
	text := fmt.Sprintf("%d events, %d decisions, %d differ", s.Events, s.Decisions, s.Differ)
	if s.Missing > 0 {
		text += fmt.Sprintf(", %d events between them were not recorded", s.Missing)
	}
	return text
}

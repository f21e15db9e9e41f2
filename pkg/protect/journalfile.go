package protect

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// journalVersion is the version of the format: a line with the whole state, then one line for each change of a cgroup, in order.
const journalVersion = 1

type journalFile struct {
	Version int           `json:"version"`
	Cgroups []journalLine `json:"cgroups"`
}

type journalLine struct {
	Cgroup string        `json:"cgroup"`
	Knobs  []cgroup.Knob `json:"knobs"`
	Unit   string        `json:"unit,omitempty"`
	Noted  int64         `json:"noted"` // seconds since 1970
	Seen   bool          `json:"seen,omitempty"`
	// Restore holds the kubelet's values that are not the kernel's default. Older releases skip the field and restore the default.
	Restore map[cgroup.Knob]string `json:"restore,omitempty"`
	Found   map[cgroup.Knob]string `json:"found,omitempty"`
}

func encodeJournal(cgroups map[string]journalRecord) []byte {
	f := journalFile{Version: journalVersion, Cgroups: make([]journalLine, 0, len(cgroups))}
	for _, cgroup := range slices.Sorted(maps.Keys(cgroups)) {
		f.Cgroups = append(f.Cgroups, cgroups[cgroup].line(cgroup))
	}
	data, _ := json.Marshal(f) // strings, numbers and booleans cannot fail
	return append(data, '\n')
}

// line returns the line of a cgroup; the zero value is the line of one without knobs.
func (c journalRecord) line(dir string) journalLine {
	restore := maps.Clone(c.knobs)
	maps.DeleteFunc(restore, func(_ cgroup.Knob, text string) bool { return text == "" })
	return journalLine{
		Cgroup: dir, Knobs: slices.Sorted(maps.Keys(c.knobs)), Unit: c.unit, Noted: c.noted, Seen: c.seen, Restore: restore, Found: c.found,
	}
}

func appendLine(data []byte, line journalLine) []byte {
	text, _ := json.Marshal(line)
	return append(append(data, text...), '\n')
}

// decodeJournal decodes the file. The error names the first part that this release does not know. All other entries are returned all the
// same, so that rollback can restore them.
func decodeJournal(data []byte) (map[string]journalRecord, error) {
	cgroups := make(map[string]journalRecord)
	var f journalFile
	state, changes, _ := bytes.Cut(data, []byte{'\n'})
	if json.Unmarshal(state, &f) != nil { // damaged, or indented over several lines
		changes = nil
		if err := json.Unmarshal(data, &f); err != nil {
			return cgroups, err
		}
	}
	var unknown error
	if f.Version != journalVersion {
		unknown = fmt.Errorf("version is %d, want %d", f.Version, journalVersion)
	}
	for _, line := range f.Cgroups {
		unknown = cmp.Or(unknown, line.decode(cgroups))
	}
	for number := 2; len(changes) > 0; number++ {
		text, rest, whole := bytes.Cut(changes, []byte{'\n'})
		if !whole { // the process was killed during the write, before it changed the cgroup
			break
		}
		changes = rest
		var line journalLine
		err := json.Unmarshal(text, &line)
		if err == nil {
			err = line.decode(cgroups)
		}
		if err != nil {
			unknown = cmp.Or(unknown, fmt.Errorf("line %d: %w", number, err))
		}
	}
	return cgroups, unknown
}

// decode replaces a cgroup by what the line says. The error is as decodeJournal's.
func (line journalLine) decode(cgroups map[string]journalRecord) (unknown error) {
	if !cgroup.Inside(line.Cgroup) {
		return fmt.Errorf("cgroup %q is not below kubepods", line.Cgroup)
	}
	c := journalRecord{knobs: make(map[cgroup.Knob]string, len(line.Knobs)), unit: line.Unit, noted: line.Noted, seen: line.Seen, found: line.Found}
	for _, knob := range line.Knobs {
		if !slices.Contains(knobs[:], knob) {
			unknown = cmp.Or(unknown, fmt.Errorf("cgroup %q: unknown knob %q", line.Cgroup, knob))
			continue
		}
		c.knobs[knob] = ""
	}
	for _, knob := range slices.Sorted(maps.Keys(line.Restore)) {
		restore, err := restorable(knob, line.Restore[knob])
		if err != nil {
			unknown = cmp.Or(unknown, fmt.Errorf("cgroup %q: restore of %s: %w", line.Cgroup, knob, err))
		} else if _, written := c.knobs[knob]; written {
			c.knobs[knob] = restore
		}
	}
	delete(cgroups, line.Cgroup)
	if len(c.knobs) > 0 {
		cgroups[line.Cgroup] = c
	}
	return unknown
}

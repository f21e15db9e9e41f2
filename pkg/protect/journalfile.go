package protect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// journalVersion is the form of the file.
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
	// Restore is the text of the files that the kubelet wants another value in than the kernel's default. Releases that do
	// not know it skip it, and restore the default.
	Restore map[cgroup.Knob]string `json:"restore,omitempty"`
}

func encodeJournal(cgroups map[string]*journaled) []byte {
	f := journalFile{Version: journalVersion, Cgroups: make([]journalLine, 0, len(cgroups))}
	for _, cgroup := range slices.Sorted(maps.Keys(cgroups)) {
		c := cgroups[cgroup]
		f.Cgroups = append(f.Cgroups, journalLine{
			Cgroup: cgroup, Knobs: slices.Sorted(maps.Keys(c.knobs)), Unit: c.unit, Noted: c.noted.Unix(), Seen: c.seen,
			Restore: c.restores(),
		})
	}
	data, _ := json.Marshal(f) // texts, numbers and booleans cannot fail
	return append(data, '\n')
}

// restores are the knobs that the kubelet wants another value in than the kernel's default.
func (c *journaled) restores() map[cgroup.Knob]string {
	var values map[cgroup.Knob]string
	for knob, text := range c.knobs {
		if text == "" {
			continue
		}
		if values == nil {
			values = make(map[cgroup.Knob]string, 1)
		}
		values[knob] = text
	}
	return values
}

// decodeJournal reads the file. The error names the first thing in it that this release does not know; what it knows of
// the rest is returned all the same, so that rollback can take it back.
func decodeJournal(data []byte) (map[string]*journaled, error) {
	cgroups := make(map[string]*journaled)
	var f journalFile
	if err := json.Unmarshal(data, &f); err != nil {
		return cgroups, err
	}
	var unknown error
	if f.Version != journalVersion {
		unknown = fmt.Errorf("version is %d, want %d", f.Version, journalVersion)
	}
	for _, line := range f.Cgroups {
		if !cgroup.Inside(line.Cgroup) {
			unknown = cmp.Or(unknown, fmt.Errorf("cgroup %q is not below kubepods", line.Cgroup))
			continue
		}
		c := &journaled{knobs: make(map[cgroup.Knob]string, len(line.Knobs)), unit: line.Unit, noted: time.Unix(line.Noted, 0), seen: line.Seen}
		for _, knob := range line.Knobs {
			if !known(knob) {
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
		if len(c.knobs) > 0 {
			cgroups[line.Cgroup] = c
		}
	}
	return cgroups, unknown
}

func known(knob cgroup.Knob) bool {
	_, ok := property[knob]
	return ok
}

package cgroup

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// journalVersion is the form of the file.
const journalVersion = 1

type journalFile struct {
	Version int           `json:"version"`
	Cgroups []journalLine `json:"cgroups"`
}

type journalLine struct {
	Cgroup string `json:"cgroup"`
	Knobs  []Knob `json:"knobs"`
	Unit   string `json:"unit,omitempty"`
	Noted  int64  `json:"noted"` // seconds since 1970
	Seen   bool   `json:"seen,omitempty"`
}

func encodeJournal(cgroups map[string]*journaled) []byte {
	f := journalFile{Version: journalVersion, Cgroups: make([]journalLine, 0, len(cgroups))}
	for _, cgroup := range slices.Sorted(maps.Keys(cgroups)) {
		c := cgroups[cgroup]
		f.Cgroups = append(f.Cgroups, journalLine{
			Cgroup: cgroup, Knobs: slices.Sorted(maps.Keys(c.knobs)), Unit: c.unit, Noted: c.noted.Unix(), Seen: c.seen,
		})
	}
	data, _ := json.Marshal(f) // texts, numbers and booleans cannot fail
	return append(data, '\n')
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
		if !inside(line.Cgroup) {
			unknown = cmp.Or(unknown, fmt.Errorf("cgroup %q is not below kubepods", line.Cgroup))
			continue
		}
		c := &journaled{knobs: make(map[Knob]bool, len(line.Knobs)), unit: line.Unit, noted: time.Unix(line.Noted, 0), seen: line.Seen}
		for _, knob := range line.Knobs {
			if !known(knob) {
				unknown = cmp.Or(unknown, fmt.Errorf("cgroup %q: unknown knob %q", line.Cgroup, knob))
				continue
			}
			c.knobs[knob] = true
		}
		if len(c.knobs) > 0 {
			cgroups[line.Cgroup] = c
		}
	}
	return cgroups, unknown
}

func known(knob Knob) bool {
	_, ok := property[knob]
	return ok
}

package cgroup

import "context"

// Entry is a knob that was written and has not been restored.
type Entry struct {
	Cgroup string `json:"cgroup"`
	Knob   Knob   `json:"knob"`
	// Unit is the systemd unit whose property was set with it, if any.
	Unit string `json:"unit,omitempty"`
}

// JournalFile is the journal's name in the state folder.
const JournalFile = "knobs.json"

// Journal remembers every knob that was written on this node and has not been restored. A goroutine writes it to the
// disk, so that a hanging disk holds nobody. It is safe for concurrent use.
type Journal struct{}

// OpenJournal reads the journal in folder dir. A corrupt file is set aside as knobs.json.corrupt-<time>, which the second
// value tells.
func OpenJournal(dir string) (j *Journal, quarantined string, err error) { return nil, "", errNotYet }

// Note adds a knob. It does not wait for the disk. Call it before the knob is written; the cgroup need not exist yet.
func (j *Journal) Note(e Entry) {}

// Forget drops a knob that has been restored.
func (j *Journal) Forget(cgroup string, knob Knob) {}

// Entries are the knobs known, sorted by cgroup and knob.
func (j *Journal) Entries() []Entry { return nil }

// Prune drops the knobs of cgroups that are gone. One that has not been seen yet has an hour to come.
func (j *Journal) Prune(exists func(cgroup string) bool) {}

// Flush waits until what was noted before is on the disk, and tells the last write's error.
func (j *Journal) Flush(ctx context.Context) error { return errNotYet }

// Err is the last write's error; nil after one that succeeded.
func (j *Journal) Err() error { return nil }

// Close flushes within ctx and ends the goroutine.
func (j *Journal) Close(ctx context.Context) error { return nil }

package protect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
)

// Entry is a knob that was written and has not been restored.
type Entry struct {
	Cgroup string      `json:"cgroup"`
	Knob   cgroup.Knob `json:"knob"`
	// Unit is the systemd unit whose property was set too, if any. Note derives it for a scope, where runtimes set a container's values.
	Unit string `json:"unit,omitempty"`
	// Restore is the kubelet's value of the file; "" if that is the kernel's default, or unknown.
	Restore string `json:"restore,omitempty"`
}

// JournalFile is the name of the journal in the state folder.
const JournalFile = "knobs.json"

// Journal records every knob that was written on this node and has not been restored. Only Wait, Flush and Close wait for the disk. It is
// safe for concurrent use.
//
// Cgroups outlive the process but not the machine, so a change is appended to the file without fsync. Sometimes the whole file is
// replaced.
type Journal struct {
	now  func() time.Time
	path string
	file *durable.Writer

	mu        sync.Mutex
	cgroups   map[string]journalRecord
	newest    durable.Ticket  // of the newest entry
	unpruned  []string        // cgroups for the next calls of prune
	pruning   map[string]bool // cgroups of the current prune about which nothing was noted since
	unwritten map[string]bool // cgroups with changes that are not in the file
	whole     bool            // the next write replaces the file
	closed    bool            // so does every later write
	replacing bool            // the current write replaces the file
	size      int             // bytes of the file when it was last replaced
	added     int             // bytes since then
}

// journalRecord holds the entries of one cgroup.
type journalRecord struct {
	knobs map[cgroup.Knob]string // with Entry.Restore
	found map[cgroup.Knob]string // see restoring
	unit  string
	noted int64 // seconds since 1970
	seen  bool  // prune has found the cgroup
}

const (
	// creationLimit is how long the runtime may take to create a noted cgroup: a container's knobs are noted before.
	creationLimit = time.Hour
	// writeInterval is the minimum time between two writes that no caller waits for.
	writeInterval = time.Second
	// leastAdded is how many bytes may be appended before the file is replaced; a larger file may double.
	leastAdded = 64 << 10
)

// OpenJournal reads the journal in folder dir. A file that is damaged or written by a newer release is renamed to
// knobs.json.corrupt-<time>, and damage says why; the entries that can be read are kept.
func OpenJournal(dir string) (j *Journal, damage, err error) {
	path := filepath.Join(dir, JournalFile)
	j = &Journal{now: time.Now, path: path, cgroups: make(map[string]journalRecord), unwritten: make(map[string]bool), whole: true}
	j.file = durable.NewWriter(durable.Options{Path: path, Interval: writeInterval, Write: j.write})
	err = durable.Load(path, func(data []byte) (err error) {
		j.cgroups, err = decodeJournal(data)
		return err
	})
	damaged, _ := errors.AsType[*durable.DamagedError](err)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return j, nil, nil
	case damaged != nil && damaged.Kept != "":
		j.file.Submit(j.content) // writes the entries that were read
		return j, err, nil
	}
	return nil, nil, fmt.Errorf("read the journal of written knobs: %w", err)
}

// ReadJournal reads the journal in folder dir for a dry run, and leaves the file as it is. damage is as for OpenJournal; nothing is to be noted.
func ReadJournal(dir string) (j *Journal, damage, err error) {
	j = &Journal{path: filepath.Join(dir, JournalFile)}
	data, err := durable.ReadFile(j.path)
	if err != nil {
		return nil, nil, fmt.Errorf("read the journal of written knobs: %w", err)
	}
	if j.cgroups, err = decodeJournal(data); err != nil {
		damage = &durable.DamagedError{Path: j.path, Err: err}
	}
	return j, damage, nil
}

// Note adds a knob and reports whether it is new. Call it, and then Wait, before the knob is written; the cgroup need not exist yet.
// Entry.Restore counts only for a new knob: later the file holds a value of this plugin.
func (j *Journal) Note(e Entry) bool {
	if !slices.Contains(knobs[:], e.Knob) || !cgroup.Inside(e.Cgroup) {
		return false // Rollback could not restore it
	}
	if e.Unit == "" && strings.HasSuffix(e.Cgroup, ".scope") {
		e.Unit = cgroup.Unit(e.Cgroup)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.pruning, e.Cgroup)
	c, known := j.cgroups[e.Cgroup]
	if !known {
		c = journalRecord{knobs: make(map[cgroup.Knob]string, 1), noted: j.now().Unix()}
	}
	restore, there := c.knobs[e.Knob]
	if there && (e.Unit == "" || c.unit == e.Unit) && c.found[e.Knob] == "" {
		return false
	}
	delete(c.found, e.Knob)
	if !there && e.Restore != "" {
		restore, _ = restorable(e.Knob, e.Restore)
	}
	c.knobs[e.Knob] = restore
	c.unit = cmp.Or(e.Unit, c.unit)
	j.cgroups[e.Cgroup] = c
	j.submit(e.Cgroup)
	j.newest = j.file.Flush()
	return !there
}

// Written returns the knobs of a cgroup that were written and have not been restored; nil if there are none.
func (j *Journal) Written(dir string) map[cgroup.Knob]bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	var written map[cgroup.Knob]bool
	for knob := range j.cgroups[dir].knobs {
		if written == nil {
			written = make(map[cgroup.Knob]bool, len(knobs))
		}
		written[knob] = true
	}
	return written
}

// before returns Entry.Restore of a knob, and whether the knob is in the journal.
func (j *Journal) before(dir string, knob cgroup.Knob) (restore string, written bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	restore, written = j.cgroups[dir].knobs[knob]
	return restore, written
}

// SetRestore sets the kubelet's values of files of a cgroup, by name. Files that are not in the journal are skipped.
func (j *Journal) SetRestore(cgroup string, files map[string]string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := j.cgroups[cgroup].knobs
	for knob, before := range all {
		text, named := files[string(knob)]
		if !named {
			continue
		}
		if restore, err := restorable(knob, text); err == nil && restore != before {
			all[knob] = restore
			j.submit(cgroup)
			j.newest = j.file.Flush()
		}
	}
}

// restorable returns the text that Rollback writes to restore a value; "" for the kernel's default.
func restorable(knob cgroup.Knob, text string) (string, error) {
	if !slices.Contains(knobs[:mems], knob) {
		return "", fmt.Errorf("want one of %s, %s, %s, %s", cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh, cgroup.MemoryOOMGroup)
	}
	bytes, err := knob.Parse([]byte(text))
	if err != nil || bytes == knob.Default() {
		return "", err
	}
	return knob.Format(bytes), nil
}

// restoring records the text of a file before its kubelet's value is restored, and reports whether to restore it. If an earlier rollback found
// another text, it has restored the file and was killed before the journal had that: the text is the kubelet's, perhaps a newer one.
func (j *Journal) restoring(ctx context.Context, dir string, knob cgroup.Knob, text string) bool {
	j.mu.Lock()
	c := j.cgroups[dir]
	found := c.found[knob]
	if found == "" && c.knobs[knob] != "" {
		if c.found == nil {
			c.found = make(map[cgroup.Knob]string, 1)
		}
		c.found[knob] = text
		j.cgroups[dir] = c
		j.submit(dir)
	}
	j.mu.Unlock()
	_ = j.file.Await(ctx, j.file.Flush()) // a journal that cannot be written stops nothing
	return found == "" || found == text
}

// failed drops the text of a file that could not be written: its next text may be an older value of this plugin, which the runtime wrote.
func (j *Journal) failed(dir string, knob cgroup.Knob, text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if found := j.cgroups[dir].found; found[knob] == text {
		delete(found, knob)
		j.submit(dir)
	}
}

// forget drops a knob that has been restored. Where its file holds the kernel's default, one in which the kubelet wants another value
// stays.
func (j *Journal) forget(dir string, knob cgroup.Knob, atDefault bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := j.cgroups[dir].knobs
	if restore, there := all[knob]; !there || atDefault && restore != "" {
		return
	}
	delete(all, knob)
	delete(j.cgroups[dir].found, knob)
	if len(all) == 0 {
		delete(j.cgroups, dir)
	}
	j.submit(dir)
}

// End removes a cgroup that is gone: nothing is left to restore.
func (j *Journal) End(dir string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, known := j.cgroups[dir]; known {
		delete(j.cgroups, dir)
		j.submit(dir)
	}
}

// Entries returns all entries, sorted by cgroup and knob.
func (j *Journal) Entries() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	var entries []Entry
	for cgroup, c := range j.cgroups {
		for knob, restore := range c.knobs {
			entries = append(entries, Entry{Cgroup: cgroup, Knob: knob, Unit: c.unit, Restore: restore})
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Cgroup, b.Cgroup), cmp.Compare(a.Knob, b.Knob))
	})
	return entries
}

// prune removes those of up to count cgroups that are gone; the next call takes the next ones. A cgroup that was never seen has an hour to be
// created. If exists fails, the cgroup is kept. exists is called without the lock, because the runtime's events wait for the lock.
func (j *Journal) prune(count int, exists func(cgroup string) (bool, error)) {
	for _, dir := range j.toPrune(count) {
		if there, err := exists(dir); err == nil {
			j.recordPresence(dir, there)
		}
	}
}

func (j *Journal) toPrune(count int) []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.unpruned) == 0 {
		j.unpruned = slices.Collect(maps.Keys(j.cgroups))
	}
	count = min(count, len(j.unpruned))
	next := j.unpruned[:count]
	j.unpruned, j.pruning = j.unpruned[count:], make(map[string]bool, count)
	for _, dir := range next {
		j.pruning[dir] = true
	}
	return next
}

// recordPresence records whether a cgroup exists, unless something was noted about it since.
func (j *Journal) recordPresence(dir string, there bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c, noted := j.cgroups[dir]
	switch {
	case !noted || !j.pruning[dir]:
	case there && !c.seen:
		c.seen = true
		j.cgroups[dir] = c
		j.submit(dir)
	case !there && (c.seen || j.now().Sub(time.Unix(c.noted, 0)) > creationLimit):
		delete(j.cgroups, dir)
		j.submit(dir)
	}
}

// submit schedules a write of a cgroup's new state. The caller holds the lock.
func (j *Journal) submit(cgroup string) {
	j.unwritten[cgroup] = true
	j.file.Submit(j.content)
}

// content returns the lines of changed cgroups, or the whole file. The writer's goroutine calls it before write.
func (j *Journal) content(buffer []byte) ([]byte, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.replacing = j.whole || j.closed || j.added > max(j.size, leastAdded); j.replacing {
		clear(j.unwritten)
		return encodeJournal(j.cgroups), nil
	}
	for _, cgroup := range slices.Sorted(maps.Keys(j.unwritten)) {
		buffer = appendLine(buffer, j.cgroups[cgroup].line(cgroup))
	}
	clear(j.unwritten)
	j.added += len(buffer)
	return buffer, nil
}

// write appends data to the file, or replaces the file, also if appending fails.
func (j *Journal) write(data []byte) error {
	if !j.replacing {
		if durable.AppendFile(j.path, data) == nil {
			return nil
		}
		j.mu.Lock()
		data = encodeJournal(j.cgroups)
		j.mu.Unlock()
	}
	err := durable.WriteFile(j.path, data, 0o600)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.whole, j.size, j.added = err != nil, len(data), 0
	return err
}

// Wait waits until earlier notes are in the file, where rollback finds them after the process was killed. It fails if the write failed or
// ctx ended. For a disk that hangs only one call waits until it answers.
func (j *Journal) Wait(ctx context.Context) error {
	j.mu.Lock()
	noted := j.newest
	j.mu.Unlock()
	return writeError(j.file.Await(ctx, noted))
}

// Stats returns the statistics of the file.
func (j *Journal) Stats() durable.Stats { return j.file.Stats() }

// Flush waits until earlier notes are on disk, or their write has failed.
func (j *Journal) Flush(ctx context.Context) error { return writeError(j.file.Flush().Wait(ctx)) }

// Close writes pending notes within ctx, and replaces a file with appended lines, which older releases cannot read. On return nothing is
// written any more, unless ctx ended first.
func (j *Journal) Close(ctx context.Context) error {
	j.mu.Lock()
	if j.closed = true; j.added > 0 {
		j.file.Submit(j.content)
	}
	j.mu.Unlock()
	return writeError(j.file.Close(ctx))
}

func writeError(err error) error {
	if err != nil {
		return fmt.Errorf("write the journal of written knobs: %w", err)
	}
	return nil
}

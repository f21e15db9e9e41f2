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
	// Unit is the systemd unit whose property was set with it, if any. It may be left out for a scope: runtimes set a
	// container's values as properties of its scope.
	Unit string `json:"unit,omitempty"`
	// Restore is the text that the kubelet wants in the file; "" where that is the kernel's default, or not known.
	Restore string `json:"restore,omitempty"`
}

// JournalFile is the journal's name in the state folder.
const JournalFile = "knobs.json"

// Journal remembers every knob that was written on this node and has not been restored. Only Wait, Flush and Close wait for the
// disk. It is safe for concurrent use.
//
// Its file has the values of this boot's cgroups, which outlive the process and not the machine. So a change is a line at the file's end
// without an fsync; now and then the whole file is replaced.
type Journal struct {
	now  func() time.Time
	path string
	file *durable.Writer

	mu        sync.Mutex
	cgroups   map[string]journalRecord
	newest    durable.Ticket  // of the newest knob
	unpruned  []string        // cgroups that prune has yet to look at
	pruning   map[string]bool // those that it is looking at, unless something was noted since
	unwritten map[string]bool // cgroups whose change is not in the file
	whole     bool            // the next write replaces the file
	closed    bool            // so does each from now on
	replacing bool            // the write under way does
	size      int             // of the file when it was replaced, in bytes
	added     int             // bytes since then
}

// journalRecord is what the journal knows of one cgroup.
type journalRecord struct {
	knobs map[cgroup.Knob]string // with Entry.Restore
	unit  string
	noted int64 // seconds since 1970
	seen  bool  // it existed when the journal was last pruned
}

const (
	// creationLimit is how long a noted cgroup may take to come: a container's knobs are noted before the runtime makes it.
	creationLimit = time.Hour
	// writeInterval is the least time between two writes of the file when no caller waits for one.
	writeInterval = time.Second
	// leastAdded is how many bytes the file grows by, at least, before it is replaced; beyond that it may double.
	leastAdded = 64 << 10
)

// OpenJournal reads the journal in folder dir. A file that is damaged, or has more in it than this release knows, is set
// aside as knobs.json.corrupt-<time>, and damage says why; what can be read of it is kept.
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
		j.file.Submit(j.content) // writes what is known
		return j, err, nil
	}
	return nil, nil, fmt.Errorf("read the journal of written knobs: %w", err)
}

// Note adds a knob, and reports whether it was not there. Call it, and then Wait, before the knob is written; the cgroup need not exist
// yet. Entry.Restore counts for a knob that is new: later on the file holds a value of ours.
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
	if there && (e.Unit == "" || c.unit == e.Unit) {
		return false
	}
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

// Written are the knobs of a cgroup that were written and have not been restored; nil where there are none.
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

// before is Entry.Restore of a knob, and whether it was written and has not been restored.
func (j *Journal) before(dir string, knob cgroup.Knob) (restore string, written bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	restore, written = j.cgroups[dir].knobs[knob]
	return restore, written
}

// SetRestore takes note of what the kubelet wants from now on in files of a cgroup, by name. Those that are not in the journal
// hold nothing of ours, and are left out.
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

// restorable is the text that Rollback writes to give a value back; "" for the kernel's default.
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
	if len(all) == 0 {
		delete(j.cgroups, dir)
	}
	j.submit(dir)
}

// End removes a pod or container that has ended: nothing of it is left to restore.
func (j *Journal) End(dir string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, known := j.cgroups[dir]; known {
		delete(j.cgroups, dir)
		j.submit(dir)
	}
}

// Entries are the knobs known, sorted by cgroup and knob.
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

// prune drops the knobs of those of up to count cgroups that are gone, and looks at the next ones at the next call. One that has not
// been seen yet has an hour to come; of one that cannot be looked at nothing is known. It looks without the lock, for which the runtime's
// events wait.
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

// recordPresence enters whether a cgroup was there, unless something was noted of it since.
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

// submit has a cgroup's new state written. The caller holds the lock.
func (j *Journal) submit(cgroup string) {
	j.unwritten[cgroup] = true
	j.file.Submit(j.content)
}

// content is what is to be written: the lines of what has changed, or the whole file. The writer's goroutine calls it, and write then.
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

// write adds data to the file, or replaces it. A file that takes no more is replaced.
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

// Wait waits until what was noted before is in the file, where rollback finds it after the process was killed. The error says that it is
// not: the write has failed, or ctx has ended. A disk that hangs is waited for once, and not again before it has answered.
func (j *Journal) Wait(ctx context.Context) error {
	j.mu.Lock()
	noted := j.newest
	j.mu.Unlock()
	return writeError(j.file.Await(ctx, noted))
}

// Stats are the file's.
func (j *Journal) Stats() durable.Stats { return j.file.Stats() }

// Flush waits until what was noted before is on the disk, or its write has failed.
func (j *Journal) Flush(ctx context.Context) error { return writeError(j.file.Flush().Wait(ctx)) }

// Close writes what is pending within ctx, and a file without lines of changes, which older releases read. On return nothing is written
// any more, unless ctx ended first.
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

package world

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Kinds of faults. Each lasts for its length, but for those that are done in a moment.
const (
	PodAPISilent     = "pod API silent"
	SlowReads        = "slow reads"
	SlowWrites       = "slow writes"
	HangingWrites    = "hanging writes" // of memory.high of some cgroups, as the kernel's while it reclaims
	FailingWrites    = "failing writes"
	WatchesRefused   = "inotify refused"
	QueueOverflow    = "inotify queue overflows"
	DiskHangs        = "disk hangs"
	DiskFails        = "disk fails"
	SlowSyncs        = "slow syncs"      // fsync(2) takes its time, and has what was written before it began
	DaemonKilled     = "daemon killed"   // and started again after its length
	DaemonEnds       = "daemon ends"     // SIGTERM, the same
	DaemonReplaced   = "daemon replaced" // another one waits for its state folder for its length, then it ends
	DaemonFrozen     = "daemon frozen"
	RuntimeRestarted = "runtime restarted"  // it is away for its length
	NRIAway          = "NRI away"           // the runtime serves the kubelet without plugins
	NewConfig        = "configuration"      // Target takes the file's place, in a moment
	Overwritten      = "values overwritten" // as by a daemon-reload of systemd, in a moment
	Reset            = "controller reset"   // -memory +memory in cgroup.subtree_control, in a moment
)

// FaultKinds are all of them.
var FaultKinds = []string{PodAPISilent, SlowReads, SlowWrites, HangingWrites, FailingWrites, WatchesRefused, QueueOverflow, DiskHangs, DiskFails,
	DaemonKilled, DaemonEnds, DaemonFrozen, RuntimeRestarted, NewConfig, Overwritten, Reset}

// trouble is what goes wrong at the moment. It stands between the daemon and the kernel, and between the daemon and its disk.
type trouble struct {
	mu    sync.Mutex
	until map[string]time.Time
	spans []span
	seed  uint64
	draws map[string]*rand.Rand // by what they are for: goroutines may come in any order
}

// span is when something went wrong.
type span struct {
	kind     string
	from, to time.Time
	target   string
}

func newTrouble() *trouble {
	return &trouble{until: map[string]time.Time{}, seed: 1, draws: map[string]*rand.Rand{}}
}

func (t *trouble) begin(f Fault) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	to := now.Add(time.Duration(f.Length))
	if to.After(t.until[f.Kind]) {
		t.until[f.Kind] = to
	}
	if f.Kind == DaemonKilled || f.Kind == DaemonEnds || f.Kind == DaemonReplaced {
		to = now.Add(time.Hour) // it may take its time to end
	}
	t.spans = append(t.spans, span{f.Kind, now, to, f.Target})
	t.seed = f.Draw
	clear(t.draws)
}

// lasted has the last fault of a kind end now.
func (t *trouble) lasted(kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.spans) - 1; i >= 0; i-- {
		if t.spans[i].kind == kind {
			t.spans[i].to = time.Now()
			return
		}
	}
}

// calm is when the last fault up to then that delays a promise had passed, with what it leaves to be made good.
func (t *trouble) calm(p Promise, until time.Time) (since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.spans {
		if after, delays := promises[p].delays[s.kind]; delays && !s.from.After(until) && s.to.Add(after).After(since) {
			since = s.to.Add(after)
		}
	}
	return since
}

// hangs reports whether a cgroup is one of those whose writes hang.
func (t *trouble) hangs(cgroup string) bool {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(cgroup))
	return hash.Sum32()%4 == 0
}

func (t *trouble) left(kind string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(0, time.Until(t.until[kind]))
}

// draw is one of the draws for a purpose, such as one file of a cgroup.
func (t *trouble) draw(of string, n int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.draws[of] == nil {
		t.draws[of] = draws(t.seed, of)
	}
	return t.draws[of].IntN(n)
}

// thaw waits while the daemon is frozen.
func (t *trouble) thaw() { time.Sleep(t.left(DaemonFrozen)) }

// Read, Write, Watch and Overflow are world.Faults.
func (t *trouble) Read(cgroup, file string) error {
	t.thaw()
	if of := "read " + cgroup + file; t.left(SlowReads) > 0 && t.draw(of, 30) == 0 {
		time.Sleep(time.Duration(50+t.draw(of, 1500)) * time.Millisecond)
	}
	return t.opens(cgroup, file)
}

func (t *trouble) Write(cgroup, file, _ string) error {
	t.thaw()
	of := "write " + cgroup + file
	switch {
	case t.left(SlowWrites) > 0 && t.draw(of, 4) == 0:
		time.Sleep(time.Duration(200+t.draw(of, 8000)) * time.Millisecond)
	case file == "memory.high" && t.left(HangingWrites) > 0 && t.hangs(cgroup):
		time.Sleep(t.left(HangingWrites))
	case t.left(FailingWrites) > 0 && t.draw(of, 3) == 0:
		return []error{unix.EIO, unix.EBUSY, unix.ENOMEM}[t.draw(of, 3)]
	}
	return t.opens(cgroup, file)
}

func (t *trouble) Watch() error { // which waits for nothing: it may be called with a lock held
	if t.left(WatchesRefused) > 0 {
		return unix.ENOSPC
	}
	return nil
}

func (t *trouble) Overflow() bool { return t.left(QueueOverflow) > 0 && t.draw("overflow", 3) == 0 }

// disk comes before each system call that changes a file of the state folder.
func (t *trouble) disk(call, path string) error {
	t.thaw()
	time.Sleep(t.left(DiskHangs))
	if call == "sync" && t.left(SlowSyncs) > 0 {
		time.Sleep(time.Duration(t.draw("sync "+path, 200)) * time.Millisecond)
	}
	if t.left(DiskFails) > 0 && t.draw(path, 2) == 0 {
		return []error{unix.ENOSPC, unix.EIO}[t.draw(path, 2)]
	}
	return nil
}

// longest is how long the last of what goes wrong lasts.
func (t *trouble) longest() (longest time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, until := range t.until {
		longest = max(longest, time.Until(until))
	}
	return longest
}

// endsDuring reports whether a daemon ends while something does not take what it gives it, or before it has tried again. The next one does not
// know of it: it takes values of a lost journal for the kubelet's, and those in the files for systemd's.
func (s Scenario) endsDuring(kinds ...string) bool { return s.lastEnd(kinds...) >= 0 }

// lastEnd is when the last such daemon ends; -1 if there is none.
func (s Scenario) lastEnd(kinds ...string) Duration {
	const again = 30 * time.Second
	last := Duration(-1)
	for _, f := range s.Faults {
		for _, end := range s.Faults {
			ends := end.Kind == DaemonKilled || end.Kind == DaemonEnds || end.Kind == DaemonReplaced
			if ends && slices.Contains(kinds, f.Kind) && end.At >= f.At && time.Duration(end.At-f.At) <= time.Duration(f.Length)+again {
				last = max(last, end.At)
			}
		}
	}
	return last
}

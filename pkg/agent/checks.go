package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// calmAfterRepair is how long a container's files are left alone after a repair, so that another writer who does not give
// in is not fought at every write.
const calmAfterRepair = 5 * time.Second

// checks are the containers whose files have to be compared with what they should hold.
type checks struct {
	mu       sync.Mutex
	due      map[string]bool      // by the runtime's id
	watched  map[string]string    // ids by cgroup
	repaired map[string]time.Time // when files were last found otherwise, by id
	held     map[string]bool      // ids that become due at the end of the calm
}

func newChecks() checks {
	return checks{due: map[string]bool{}, watched: map[string]string{}, repaired: map[string]time.Time{}, held: map[string]bool{}}
}

func (c *checks) mark(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		c.due[id] = true
	}
}

// take returns what is due.
func (c *checks) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := slices.Sorted(maps.Keys(c.due))
	clear(c.due)
	return ids
}

// done reports whether the container was due, and is not any more.
func (c *checks) done(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := c.due[id]
	delete(c.due, id)
	return due
}

// prune drops containers that have ended.
func (c *checks) prune(lives func(id string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := func(id string) bool { return !lives(id) }
	maps.DeleteFunc(c.due, func(id string, _ bool) bool { return ended(id) })
	maps.DeleteFunc(c.held, func(id string, _ bool) bool { return ended(id) })
	maps.DeleteFunc(c.repaired, func(id string, _ time.Time) bool { return ended(id) })
	maps.DeleteFunc(c.watched, func(_, id string) bool { return ended(id) })
}

// written receives writes to watched files, ours and the runtime's among them.
func (a *Agent) written(change cgroup.Change) {
	c := &a.checks
	c.mu.Lock()
	defer c.mu.Unlock()
	id, watched := c.watched[change.Cgroup]
	if !watched || c.held[id] {
		return
	}
	if rest := calmAfterRepair - a.now().Sub(c.repaired[id]); rest > 0 {
		c.held[id] = true
		time.AfterFunc(rest, func() { a.calmed(id) })
		return
	}
	c.due[id] = true
	a.poke()
}

// calmed has the files looked at that were written in the calm after a repair.
func (a *Agent) calmed(id string) {
	c := &a.checks
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[id] {
		delete(c.held, id)
		c.due[id] = true
		a.poke()
	}
}

// checkDue compares the files of the containers that are due.
func (a *Agent) checkDue(ctx context.Context) {
	for _, id := range a.checks.take() {
		if ctx.Err() != nil {
			a.checks.mark(id)
			continue
		}
		a.checkFiles(ctx, id)
	}
}

// checkMarked compares a container's files now, if that is due.
func (a *Agent) checkMarked(ctx context.Context, id string) {
	if a.checks.done(id) {
		a.checkFiles(ctx, id)
	}
}

// checkFiles reads a container's files, tells the ledger, and writes those that do not hold what they should. What cannot
// be read or written now is tried again.
func (a *Agent) checkFiles(ctx context.Context, id string) {
	a.mu.Lock()
	at, _ := a.ledger.Place(id)
	desired, ours := a.ledger.Desired(id)
	a.mu.Unlock()
	if !ours {
		return
	}
	a.watch(id, desired)
	if err := a.compare(ctx, at); err != nil {
		a.counters.containerWriteErrors.Add(1)
		a.log.WithField("containerID", id).WithError(err).Debug("a container's cgroup files could not be checked; trying again")
		a.checks.mark(id)
	}
}

func (a *Agent) compare(ctx context.Context, at ledger.Place) error {
	leaves := a.tree.Leaves(at.Cgroup)
	held := make([]ledger.Files, len(leaves))
	for i, leaf := range leaves {
		var err error
		if held[i], err = a.readFiles(leaf); err != nil {
			return err
		}
	}
	a.mu.Lock()
	effects := a.stepLocked(ledger.Observed{ID: at.ID, Revision: at.Revision, Files: held[0]})
	desired, ours := a.ledger.Desired(at.ID) // what was observed may have changed it
	pending := a.ledger.Updating(at.ID)
	a.mu.Unlock()
	a.logNotes(effects.Notes)
	differ := a.differing(desired, held)
	if !ours || pending || differ.Mems == "" && differ.Values == (memoryqos.Values{}) {
		return nil
	}
	a.protect(ctx)
	err := a.protector.SetContainer(ctx, differ)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, cgroup.ErrOwn): // it has ended, or only the runtime can
		return nil
	case err != nil:
		return fmt.Errorf("cgroup %s: %w", at.Cgroup, err)
	}
	a.counters.containerRepairs.Add(1)
	a.checks.mu.Lock()
	a.checks.repaired[at.ID] = a.now()
	a.checks.mu.Unlock()
	if files, err := a.readFiles(at.Cgroup); err == nil {
		a.step(ledger.Observed{ID: at.ID, Revision: at.Revision, Files: files})
		a.protect(ctx)
	}
	return nil
}

// differing keeps of the desired values those that a file of any leaf does not hold.
func (a *Agent) differing(desired protect.ContainerKnobs, held []ledger.Files) protect.ContainerKnobs {
	differ := protect.ContainerKnobs{Cgroup: desired.Cgroup, Driver: desired.Driver}
	for i := range held {
		leaf := held[i].Differing(desired, uint64(a.machine.PageSize))
		differ.Values = memoryqos.Values{
			Min: cmp.Or(differ.Values.Min, leaf.Values.Min), Low: cmp.Or(differ.Values.Low, leaf.Values.Low),
			High: cmp.Or(differ.Values.High, leaf.Values.High),
		}
		differ.Mems = cmp.Or(differ.Mems, leaf.Mems)
	}
	return differ
}

// watch asks for news of a container's files that hold values of ours. What cannot be watched is found by the periodic
// check.
func (a *Agent) watch(id string, desired protect.ContainerKnobs) {
	if a.watcher == nil {
		return
	}
	files := make([]string, 0, 2)
	if desired.Mems != "" {
		files = append(files, string(cgroup.CpusetMems))
	}
	if desired.Values.High != nil {
		files = append(files, string(cgroup.MemoryHigh))
	}
	if len(files) == 0 {
		return
	}
	a.checks.mu.Lock()
	a.checks.watched[desired.Cgroup] = id
	a.checks.mu.Unlock()
	if err := a.watcher.Watch(desired.Cgroup, files...); err != nil {
		a.log.WithError(err).WithField("cgroup", desired.Cgroup).Debug("writes to a container's files are found by the periodic check only")
	}
}

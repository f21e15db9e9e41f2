package protect

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"maps"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// Reconcile reads what the cgroups hold (all when none are named), compares with what is wanted and repairs. It tells
// when it wants to be called again because it held a repair back; 0 is never.
func (p *Protector) Reconcile(ctx context.Context, cgroups ...string) (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(cgroups) == 0 {
		return p.reconcile(maps.Keys(p.held))
	}
	// Those with a repair held back are always among them, so that the answer is the earliest of all.
	for _, cgroup := range cgroups {
		p.fighting[cgroup] = true
	}
	return p.reconcile(maps.Keys(p.fighting))
}

// resume makes the repairs that were held back and are due.
func (p *Protector) resume() (time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reconcile(maps.Keys(p.fighting))
}

func (p *Protector) reconcile(cgroups iter.Seq[string]) (next time.Duration, err error) {
	var changes []change
	var errs []error
	now := p.now()
	for cgroup := range cgroups {
		fighting := false
		h := p.held[cgroup]
		for i := range protected {
			if h == nil {
				break
			}
			wait, due, err := p.check(h, i, now)
			errs = append(errs, err)
			if due {
				changes = append(changes, change{h, i})
			}
			if wait > 0 && (next == 0 || wait < next) {
				next = wait
			}
			fighting = fighting || wait > 0
		}
		if fighting {
			p.fighting[cgroup] = true
		} else {
			delete(p.fighting, cgroup)
		}
	}
	errs = append(errs, p.write(changes)...)
	for _, c := range changes {
		if c.file().settled() {
			c.file().fight.open = false
		}
	}
	return next, errors.Join(errs...)
}

// check compares one file. It tells whether the file is to be repaired now, or how long a repair is held back.
func (p *Protector) check(h *held, index int, now time.Time) (wait time.Duration, due bool, err error) {
	f := &h.files[index]
	if !f.wanted {
		return 0, false, nil
	}
	wrote := f.settled() // as far as we knew
	switch err := p.look(h, index); {
	case errors.Is(err, fs.ErrNotExist):
		return 0, false, nil
	case err != nil:
		return 0, true, err // what cannot be understood is written anew
	case f.settled():
		f.fight.open = false
		return 0, false, nil
	case wrote:
		f.fight.hit(now)
		p.overwritten(change{h, index})
	}
	if wait := f.fight.due.Sub(now); f.fight.open && wait > 0 {
		return wait, false, nil
	}
	return 0, true, nil
}

// Run reconciles every period and whenever the watcher tells of a write, until ctx ends.
func (p *Protector) Run(ctx context.Context, period time.Duration) {
	var changes <-chan cgroup.Change
	if p.watcher != nil {
		changes = p.watcher.Changes()
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	held := time.NewTimer(time.Hour) // repairs that were held back
	defer held.Stop()
	for {
		var next time.Duration
		var err error
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.prune()
			next, err = p.Reconcile(ctx)
		case <-held.C:
			next, err = p.resume()
		case c, ok := <-changes:
			if !ok {
				changes = nil
				continue
			}
			if !p.holds(c) {
				continue
			}
			next, err = p.Reconcile(ctx, c.Cgroup)
		}
		if next > 0 {
			held.Reset(next)
		}
		p.complain(err)
	}
}

// holds tells whether a change is of a file that is ours to repair. The others are passed on.
func (p *Protector) holds(c cgroup.Change) bool {
	p.mu.Lock()
	h := p.held[c.Cgroup]
	p.mu.Unlock()
	if h != nil {
		return true
	}
	if p.changed != nil {
		p.changed(c)
	}
	return false
}

// prune lets go of what hangs on cgroups that are gone, and watches those that came late or were made anew.
func (p *Protector) prune() {
	if p.journal != nil {
		p.journal.Prune(p.tree.Exists)
	}
	if p.watcher == nil {
		return
	}
	p.watcher.Prune()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.held {
		_ = p.watch(h) // said when it failed first
	}
}

func (p *Protector) complain(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.complaint.new(err, p.now()) {
		p.log.WithError(err).Warn("memory protection could not be checked or restored everywhere")
	}
}

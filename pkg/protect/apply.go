package protect

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"iter"
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// Apply makes the targets the wanted state, as a whole: a cgroup that was among the last ones and is not among these is
// put back to the kernel's default. Writes lower bottom-up, then raise top-down, so that at no moment a parent promises
// less than its children. A cgroup that is gone is no error. It does all that it can and returns all errors joined.
//
// For a container that shrinks, the caller applies the smaller sums after the container has its smaller value.
func (p *Protector) Apply(ctx context.Context, targets []Target) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want(targets)
	return p.settle(ctx, maps.Values(p.held))
}

// Update is Apply for a part: the targets become wanted, the cgroups that are gone are put back, and what else is wanted
// stays as it is. Its cost does not grow with the number of pods. Where it fails, Apply tries all again.
func (p *Protector) Update(ctx context.Context, targets []Target, gone []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	touched := make(map[string]*held, len(targets)+len(gone))
	for _, cgroup := range gone {
		if h := p.held[cgroup]; h != nil {
			h.generation = noTarget
			h.set(memoryqos.Values{})
			touched[cgroup] = h
		}
	}
	for _, t := range targets {
		touched[t.Cgroup] = p.take(t)
	}
	return p.settle(ctx, maps.Values(touched))
}

// noTarget is the generation of a cgroup that is not wanted any more.
const noTarget = -1

// settle makes these cgroups hold what is wanted, and forgets those that are no target any more.
func (p *Protector) settle(ctx context.Context, cgroups iter.Seq[*held]) error {
	var changes []change
	var errs []error
	for h := range cgroups {
		for i := range h.files {
			f := &h.files[i]
			if f.settled() {
				continue
			}
			if !f.known {
				err := p.look(h, i)
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					errs = append(errs, err)
				}
			}
			changes = append(changes, change{h, i})
		}
	}
	errs = append(errs, p.write(ctx, changes)...)
	for h := range cgroups {
		if h.generation != p.generation && !h.left(p.tree) {
			p.drop(h)
		}
	}
	return errors.Join(errs...)
}

// left reports whether something of ours is, or may be, left in a cgroup that is no target any more.
func (h *held) left(t *cgroup.Tree) bool {
	some := h.behind
	for i := range h.files {
		some = some || h.files[i].ours && !h.files[i].settled()
	}
	return some && !t.Ended(h.cgroup)
}

// change is a file that does not hold what is wanted.
type change struct {
	*held
	index int
}

func (c change) file() *file { return &c.files[c.index] }

// lowers tells whether the change takes something away.
func (c change) lowers() bool { f := c.file(); return f.known && f.want < f.have }

// look reads what a file holds.
func (p *Protector) look(h *held, index int) error {
	f := &h.files[index]
	v, err := p.tree.Get(h.cgroup, protected[index])
	f.known = err == nil
	if !f.known {
		return err
	}
	if f.have = v; memoryqos.Holds(v, f.want, p.page) {
		f.have = f.want
	}
	return nil
}

// write makes the changes: first those that lower, children before parents; then those that raise, parents before children.
// In between each cgroup holds the smaller of its old and new value, so that the sum of children never exceeds their parent's
// old value while it is lowered, nor its new one while they are raised.
func (p *Protector) write(ctx context.Context, changes []change) []error {
	slices.SortFunc(changes, func(a, b change) int {
		down, up := a.lowers(), b.lowers()
		deeper := cmp.Compare(depth(b.cgroup), depth(a.cgroup))
		switch {
		case down != up:
			if down {
				return -1
			}
			return 1
		case !down:
			deeper = -deeper
		}
		return cmp.Or(deeper, cmp.Compare(a.cgroup, b.cgroup), cmp.Compare(a.index, b.index))
	})
	var errs []error
	for len(changes) > 0 {
		// What belongs to one cgroup goes to systemd in one call.
		n := 1
		for n < len(changes) && changes[n].held == changes[0].held && changes[n].lowers() == changes[0].lowers() {
			n++
		}
		if err := p.writeCgroup(ctx, changes[:n]); err != nil {
			errs = append(errs, err)
		}
		changes = changes[n:]
	}
	return errs
}

// writeCgroup makes changes of one cgroup: as unit properties where systemd manages it, then as files where those do not say
// the same yet.
func (p *Protector) writeCgroup(ctx context.Context, changes []change) error {
	h := changes[0].held
	unit := p.unit(h.cgroup, h.driver)
	for _, c := range changes {
		p.note(Entry{Cgroup: h.cgroup, Knob: protected[c.index], Unit: unit, Restore: c.before()})
	}
	var errs []error
	if unit != "" {
		values := make(map[cgroup.Knob]uint64, len(changes))
		for _, c := range changes {
			values[protected[c.index]] = c.file().want
			c.file().told = true
		}
		sure, err := p.units.set(ctx, unit, values)
		if err != nil {
			errs = append(errs, err)
		}
		h.behind = h.behind || !sure
	}
	for _, c := range changes {
		f := c.file()
		if unit != "" {
			p.look(h, c.index) // what cannot be read is written
		}
		if !f.settled() {
			err := p.tree.Set(h.cgroup, protected[c.index], f.want)
			if errors.Is(err, fs.ErrNotExist) {
				f.known = false
				continue
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
			f.have, f.known = f.want, true
		}
		f.ours = f.want != initial[c.index]
		if !f.ours && !h.behind {
			p.forget(h.cgroup, protected[c.index])
		}
	}
	return errors.Join(errs...)
}

// catchUp tells systemd again what it may not have heard: a property that it holds comes back into the file at its next
// look at the unit, long after a value was taken back.
func (p *Protector) catchUp(ctx context.Context, h *held) error {
	values := make(map[cgroup.Knob]uint64)
	for i := range h.files {
		if f := &h.files[i]; f.told {
			values[protected[i]] = f.want
		}
	}
	sure, err := p.units.set(ctx, cgroup.Unit(h.cgroup), values)
	if !sure {
		return err
	}
	h.behind = false
	for i := range h.files {
		if f := &h.files[i]; f.told && !f.ours {
			p.forget(h.cgroup, protected[i])
		}
	}
	if h.generation != p.generation && !h.left(p.tree) {
		p.drop(h)
	}
	return nil
}

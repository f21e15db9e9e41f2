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
	return p.settle(maps.Values(p.held))
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
			p.set(h, memoryqos.Values{})
			touched[cgroup] = h
		}
	}
	for _, t := range targets {
		touched[t.Cgroup] = p.take(t)
	}
	return p.settle(maps.Values(touched))
}

// noTarget is the generation of a cgroup that is not wanted any more.
const noTarget = -1

// settle makes these cgroups hold what is wanted, and forgets those that are no target any more.
func (p *Protector) settle(cgroups iter.Seq[*held]) error {
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
	errs = append(errs, p.write(changes)...)
	for h := range cgroups {
		if h.generation != p.generation && !p.left(h) {
			p.drop(h)
		}
	}
	return errors.Join(errs...)
}

// left reports whether something of ours is, or may be, left in a cgroup that is no target any more.
func (p *Protector) left(h *held) bool {
	some := p.unconfirmed(h.cgroup)
	for i := range h.files {
		some = some || h.files[i].ours && !h.files[i].settled()
	}
	return some && !p.tree.Ended(h.cgroup)
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
func (p *Protector) write(changes []change) []error {
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
		// What belongs to one unit goes to systemd in one call.
		n := 1
		for n < len(changes) && changes[n].held == changes[0].held && changes[n].lowers() == changes[0].lowers() {
			n++
		}
		if err := p.writeCgroup(changes[:n]); err != nil {
			errs = append(errs, err)
		}
		changes = changes[n:]
	}
	return errs
}

// writeCgroup makes changes of one cgroup: the files, and then the properties of its unit, which systemd is to hold too.
func (p *Protector) writeCgroup(changes []change) error {
	h := changes[0].held
	unit := p.unit(h.cgroup, h.driver)
	values := make(map[cgroup.Knob]uint64, len(changes))
	var errs []error
	for _, c := range changes {
		f, knob := c.file(), protected[c.index]
		p.note(Entry{Cgroup: h.cgroup, Knob: knob, Unit: unit, Restore: c.before()})
		if !f.settled() {
			err := p.tree.Set(h.cgroup, knob, f.want)
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
		values[knob] = f.want
	}
	if unit != "" && len(values) > 0 {
		p.systemd.set(h.cgroup, unit, values)
	}
	p.forgetRestored(h)
	return errors.Join(errs...)
}

// forgetRestored takes the files of a cgroup out of the journal that hold the kernel's default again, once systemd cannot
// overwrite them any more.
func (p *Protector) forgetRestored(h *held) {
	if p.unconfirmed(h.cgroup) {
		return
	}
	for i := range h.files {
		if f := &h.files[i]; f.wanted && f.settled() && !f.ours {
			p.forget(h.cgroup, protected[i])
		}
	}
}

// confirmed receives the values that systemd has confirmed. It has written all values of the unit into the files, so that
// they are compared.
func (p *Protector) confirmed(dir string, values map[cgroup.Knob]uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.held[dir]
	if h == nil {
		for knob, v := range values {
			if knob != cgroup.CpusetMems && v == byDefault(knob) {
				p.forget(dir, knob)
			}
		}
		return
	}
	if p.unconfirmed(dir) {
		return // of newer values
	}
	_, err := p.reconcile(slices.Values([]string{dir}))
	if p.complaint.new(err, p.now()) {
		p.log.WithError(err).Warn("a cgroup that systemd has written could not be compared")
	}
	p.forgetRestored(h)
	if h.generation != p.generation && !p.left(h) {
		p.drop(h)
	}
}

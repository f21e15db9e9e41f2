package world

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// ErrKilled is the answer to a daemon that was killed.
var ErrKilled = errors.New("this daemon was killed")

// Faults are what goes wrong between a daemon and the kernel. Each may wait, in virtual time, before it returns; nil is nothing.
type Faults interface {
	// Read is asked before a file is read; a cgroup that is looked for or listed is the file ".".
	Read(cgroup, file string) error
	Write(cgroup, file, text string) error
	// Late is called after a file was read, or looked for, and before the daemon has the answer.
	Late(cgroup, file string)
	// ReclaimRate is what a write of memory.reclaim frees in a second, in bytes; 0 takes no time.
	ReclaimRate(cgroup string) uint64
	// Watch is asked before a watch is added.
	Watch() error
	// Overflow has IN_Q_OVERFLOW delivered in place of the events that are read next.
	Overflow() bool
}

// Port is the kernel as one life of a daemon reaches it: cgroupfs.Kernel.
type Port struct {
	kernel *Kernel
	faults Faults
	dead   atomic.Bool
	writes atomic.Uint64
	reads  atomic.Uint64

	// Guarded by Kernel.mu:
	wd      int
	watched map[watchKey]*group
	sets    []interface{ Close() error }
}

type watchKey struct {
	in *inotify
	wd int
}

var _ cgroupfs.Kernel = (*Port)(nil)

// Port is a new life of a daemon.
func (k *Kernel) Port(f Faults) *Port {
	return &Port{kernel: k, faults: f, watched: map[watchKey]*group{}}
}

// Kill ends it: what it calls from now on returns ErrKilled and does nothing, and its watches and triggers are gone.
func (p *Port) Kill() {
	p.dead.Store(true)
	p.kernel.mu.Lock()
	sets := p.sets
	p.sets = nil
	p.kernel.mu.Unlock()
	for _, set := range sets {
		_ = set.Close()
	}
}

// Reads is the number of files that it has read.
func (p *Port) Reads() uint64 { return p.reads.Load() }

// Writes is the number of writes to files that succeeded, without memory.reclaim, which is no value.
func (p *Port) Writes() uint64 { return p.writes.Load() }

// watching are the cgroups of pods and containers that it watches or has triggers of, also those that are gone.
func (p *Port) watching() (cgroups []string) {
	p.kernel.mu.Lock()
	defer p.kernel.mu.Unlock()
	for _, g := range p.watched {
		if level := cgroup.LevelOf(g.name); level == cgroup.LevelPod || level == cgroup.LevelContainer {
			cgroups = append(cgroups, g.name)
		}
	}
	for _, set := range p.sets {
		if triggers, are := set.(*triggerSet); are {
			cgroups = slices.AppendSeq(cgroups, maps.Values(triggers.open))
		}
	}
	return cgroups
}

// before is what precedes each call that reads.
func (p *Port) before(cgroup, file string) error {
	return p.opened(cgroup, func() error { return p.faults.Read(cgroup, file) })
}

// delivered is what follows: what happens meanwhile is not in the answer.
func (p *Port) delivered(cgroup, file string, err error) error {
	late := p.living(func() error { p.faults.Late(cgroup, file); return nil })
	return cmp.Or(late, err)
}

// opened has faults asked while a cgroup's file is open: one that is removed meanwhile is ENODEV, also where there is a new one of its name
// (fs/kernfs/file.c, kernfs_get_active).
func (p *Port) opened(cgroup string, ask func() error) error {
	was := p.find(cgroup)
	err := p.living(ask)
	if err == nil && was != nil && was != p.find(cgroup) {
		err = unix.ENODEV
	}
	return err
}

func (p *Port) find(cgroup string) *group {
	return seen(p.kernel, cgroup, func(g *group) *group { return g })
}

// living has faults asked, unless the daemon was killed before, or was while they waited.
func (p *Port) living(ask func() error) error {
	if p.dead.Load() {
		return ErrKilled
	}
	err := ask()
	if p.dead.Load() {
		return ErrKilled
	}
	return err
}

// unwatch ends a watch; Kernel.mu is held.
func (p *Port) unwatch(key watchKey) bool {
	g := p.watched[key]
	if g == nil {
		return false
	}
	delete(p.watched, key)
	for i, w := range g.watches {
		if w.in == key.in && w.wd == key.wd {
			g.watches = append(g.watches[:i:i], g.watches[i+1:]...)
			break
		}
	}
	return true
}

// Look implements cgroupfs.Kernel.
func (p *Port) Look(cgroup string) error {
	_, err := p.List(cgroup)
	return err
}

// List implements cgroupfs.Kernel.
func (p *Port) List(cgroup string) ([]string, error) {
	if err := p.before(cgroup, "."); err != nil {
		return nil, err
	}
	names, err := p.kernel.names(cgroup)
	return names, p.delivered(cgroup, ".", err)
}

func (k *Kernel) names(cgroup string) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.at(cgroup)
	if g == nil {
		return nil, unix.ENOENT
	}
	return k.list(g), nil
}

// Read implements cgroupfs.Kernel.
func (p *Port) Read(cgroup, file string, last int, buffer []byte) ([]byte, error) {
	if err := p.before(cgroup, file); err != nil {
		return buffer, err
	}
	p.reads.Add(1)
	text, err := p.kernel.whole(cgroup, file)
	if line, _, cut := strings.Cut(text, "\n"); cut && last == '\n' {
		text = line + "\n"
	}
	return append(buffer, text...), p.delivered(cgroup, file, err)
}

// Write implements cgroupfs.Kernel.
func (p *Port) Write(cgroup, file, text string, flags int) error {
	err := p.opened(cgroup, func() error { return p.faults.Write(cgroup, file, text) })
	if err == nil && file == "memory.reclaim" {
		return p.reclaim(cgroup, text, p.faults.ReclaimRate(cgroup))
	}
	if err == nil {
		err = p.put(cgroup, file, text, flags)
	}
	if err == nil {
		p.writes.Add(1)
	}
	return err
}

func (p *Port) put(name, file, text string, flags int) error {
	k := p.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.at(name)
	if g == nil {
		return unix.ENOENT
	}
	compare := k.beforeWrite(g, file)
	err := k.write(g, file, text, flags)
	k.tell()
	compare()
	return err
}

// reclaim is a write of memory.reclaim that takes its time: what it has freed until it fails is free.
func (p *Port) reclaim(cgroup, text string, rate uint64) error {
	if rate == 0 {
		return p.kernel.put(cgroup, "memory.reclaim", text, 0)
	}
	const step = 8 << 20
	amount, option, _ := strings.Cut(text, " ")
	want, err := memparse(amount)
	for ; err == nil && want > 0; want -= min(want, step) {
		part := min(want, step)
		err = p.opened(cgroup, func() error {
			time.Sleep(time.Duration(float64(part) / float64(rate) * float64(time.Second)))
			return nil
		})
		if err == nil {
			err = p.kernel.put(cgroup, "memory.reclaim", strings.TrimSpace(fmt.Sprint(part, " ", option)), 0)
		}
	}
	return err
}

// Inotify implements cgroupfs.Kernel.
func (p *Port) Inotify() (cgroupfs.Inotify, error) {
	if p.dead.Load() {
		return nil, ErrKilled
	}
	in := &inotify{port: p, wake: make(bell, 1)}
	p.keep(in)
	return in, nil
}

// Triggers implements cgroupfs.Kernel.
func (p *Port) Triggers() (cgroupfs.Triggers, error) {
	if p.dead.Load() {
		return nil, ErrKilled
	}
	set := &triggerSet{port: p, wake: make(bell, 1), open: map[int32]string{}}
	p.keep(set)
	return set, nil
}

func (p *Port) keep(set interface{ Close() error }) {
	p.kernel.mu.Lock()
	defer p.kernel.mu.Unlock()
	p.sets = append(p.sets, set)
}

// bell wakes who waits for it: a channel, so that virtual time passes meanwhile.
type bell chan struct{}

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// none is without faults.
type none struct{}

func (none) Read(string, string) error          { return nil }
func (none) Write(string, string, string) error { return nil }
func (none) Late(_, _ string)                   {}
func (none) ReclaimRate(string) uint64          { return 0 }
func (none) Watch() error                       { return nil }
func (none) Overflow() bool                     { return false }

package systemd

import (
	"context"
	"errors"
	"maps"
	"path"
	"strings"
	"sync"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Units play a systemd without its socket (protect.Units). They hold properties of units, and write all that they hold for a unit
// whenever they are asked to set one.
type Units struct {
	// Folder has the units' cgroups.
	Folder Folder
	// NoSystemd and NoUnit are the answers of one that is absent, and for a unit that it has not loaded; with nil it takes those, too.
	NoSystemd, NoUnit error
	// OOMGroup has it write memory.oom.group 0 to a scope with every property (src/core/cgroup.c, cgroup_context_apply).
	OOMGroup bool

	mu      sync.Mutex
	mode    Mode
	held    map[string]map[cgroup.Knob]uint64 // by cgroup
	release chan struct{}                     // closed when a call that waits may go on
	orphans []func()                          // calls whose caller did not wait for their end
}

// Folder is a cgroup hierarchy. Its calls do not wait.
type Folder interface {
	Exists(cgroup string) bool
	Write(cgroup, file, text string) error
	Remove(cgroup string) error
}

// Mode is how systemd answers.
type Mode int

// The modes.
const (
	Answers Mode = iota
	Absent       // nobody listens
	Fails        // an error
	Loses        // it sets the properties, and its answer is lost
	Slow         // it answers when it has been turned to another mode
)

func (m Mode) String() string {
	return [...]string{"answers", "is absent", "fails", "loses its answers", "is slow"}[m]
}

// SetMemory implements protect.Units.
func (u *Units) SetMemory(ctx context.Context, unit string, values map[cgroup.Knob]uint64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	dir := u.dir(unit)
	switch u.mode {
	case Absent:
		return u.NoSystemd
	case Fails:
		return errors.New("systemd: an error of the test")
	case Loses:
		u.set(dir, values)
		return context.DeadlineExceeded
	case Slow:
		if err := u.wait(ctx); err != nil { // it has the request all the same
			u.orphans = append(u.orphans, func() { u.set(dir, values) })
			return err
		}
	}
	if dir == "" {
		return u.NoUnit
	}
	u.set(dir, values)
	return nil
}

// wait waits for another mode.
func (u *Units) wait(ctx context.Context) error {
	release := u.release
	u.mu.Unlock()
	defer u.mu.Lock()
	select {
	case <-release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dir finds a unit's cgroup; "" when there is none.
func (u *Units) dir(unit string) string {
	for dir := range u.held {
		if path.Base(dir) == unit {
			return dir
		}
	}
	return ""
}

// Load makes units known by their cgroups.
func (u *Units) Load(dirs ...string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.load(dirs...)
}

func (u *Units) load(dirs ...string) {
	for _, dir := range dirs {
		if u.held[dir] == nil {
			if u.held == nil {
				u.held = map[string]map[cgroup.Knob]uint64{}
			}
			u.held[dir] = map[cgroup.Knob]uint64{}
		}
	}
}

// set sets properties of a unit that is loaded and writes all that it has.
func (u *Units) set(dir string, values map[cgroup.Knob]uint64) {
	if u.held[dir] == nil || !u.Folder.Exists(dir) {
		return
	}
	maps.Copy(u.held[dir], values)
	u.rewrite(dir)
	if u.OOMGroup && strings.HasSuffix(dir, ".scope") {
		u.write(dir, cgroup.MemoryOOMGroup, "0")
	}
}

func (u *Units) rewrite(dir string) {
	for knob, value := range u.held[dir] {
		text := cgroup.FormatLimit(value)
		if knob == cgroup.CpusetMems {
			text = nodeset.Set(value).String()
		}
		u.write(dir, knob, text)
	}
}

func (u *Units) write(dir string, knob cgroup.Knob, text string) {
	if err := u.Folder.Write(dir, string(knob), text); err != nil {
		panic(err)
	}
}

// Applied takes the properties that a runtime sets with a container's files, and loads its unit.
func (u *Units) Applied(dir string, files map[string]string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.load(dir)
	for file, text := range files {
		switch knob := cgroup.Knob(file); knob {
		case cgroup.CpusetMems:
			nodes, err := nodeset.Parse(text)
			if err != nil {
				return err
			}
			u.held[dir][knob] = uint64(nodes)
		case cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh:
			value, err := cgroup.ParseLimit([]byte(text))
			if err != nil {
				return err
			}
			u.held[dir][knob] = value
		}
	}
	return nil
}

// Remove removes a cgroup, and its unit with what that holds; nothing is written into it meanwhile.
func (u *Units) Remove(dir string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.Folder.Remove(dir); err != nil {
		return err
	}
	maps.DeleteFunc(u.held, func(unit string, _ map[cgroup.Knob]uint64) bool {
		return unit == dir || strings.HasPrefix(unit, dir+"/")
	})
	return nil
}

// Held is what it holds for the unit of a cgroup; a slice's files have the kernel's default where it holds nothing.
func (u *Units) Held(dir string) map[cgroup.Knob]uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.held[dir])
}

// Holds reports whether it has properties of any unit.
func (u *Units) Holds() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, held := range u.held {
		if len(held) > 0 {
			return true
		}
	}
	return false
}

// Reload is a daemon-reload: every unit's files hold what systemd holds, and a slice's the kernel's default where it holds
// nothing.
func (u *Units) Reload() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for dir, held := range u.held {
		if !u.Folder.Exists(dir) {
			delete(u.held, dir)
			continue
		}
		if strings.HasSuffix(dir, ".slice") {
			for _, knob := range []cgroup.Knob{cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh} {
				if _, set := held[knob]; !set {
					u.write(dir, knob, cgroup.Default(string(knob)))
				}
			}
		}
		u.rewrite(dir)
	}
}

// Turn changes the mode. Calls that wait go on, and those that were abandoned are carried out.
func (u *Units) Turn(mode Mode) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.release != nil {
		close(u.release)
	}
	u.mode, u.release = mode, make(chan struct{})
	orphans := u.orphans
	u.orphans = nil
	for _, call := range orphans {
		call()
	}
}

package world

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/systemd"
)

// Kinds of faults of systemd, on a node whose kubelet uses the systemd cgroup driver.
const (
	DaemonReload = "daemon-reload" // it writes what it holds for its units, in a moment (moby#51446, systemd#40438)
	SystemdHangs = "systemd hangs" // what it is asked it does afterwards, also where nobody waits for the answer any more
	SystemdAway  = "systemd away"  // nobody listens
)

const survives Promise = "systemd holds what the files have, so that a daemon-reload changes nothing"

// managed is the kernel beside a systemd, which has a unit for each slice, and one for each scope that the runtime sets properties of.
type managed struct {
	*Kernel
	units *systemd.Units
}

func newManaged(k *Kernel) managed {
	m := managed{k, &systemd.Units{Folder: k, NoSystemd: protect.ErrNoSystemd, NoUnit: protect.ErrNoUnit, OOMGroup: true}}
	m.units.Turn(systemd.Answers)
	return m
}

func (m managed) Make(name string) error {
	for dir := name; dir != "."; dir = path.Dir(dir) {
		if strings.HasSuffix(dir, ".slice") {
			m.units.Load(dir)
		}
	}
	return m.Kernel.Make(name)
}

func (m managed) Remove(name string) error { return m.units.Remove(name) }

// Exists reports whether there is such a cgroup.
func (k *Kernel) Exists(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.at(name) != nil
}

// unitsOf is systemd as one life of the daemon reaches it.
type unitsOf struct {
	*simulation
	*life
}

// SetMemory implements protect.Units.
func (u unitsOf) SetMemory(ctx context.Context, unit string, values map[cgroup.Knob]uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	u.trouble.thaw()
	if u.killed.Load() {
		return ErrKilled
	}
	err := u.units.SetMemory(ctx, unit, values)
	u.trouble.thaw()
	return err
}

// turn has systemd answer as its faults have it at the moment.
func (n *simulation) turn() {
	switch {
	case n.trouble.left(SystemdHangs) > 0:
		n.units.Turn(systemd.Slow)
	case n.trouble.left(SystemdAway) > 0:
		n.units.Turn(systemd.Absent)
	default:
		n.units.Turn(systemd.Answers)
	}
}

// survives compares what systemd holds with the files of slices and containers.
func (n *simulation) survives() {
	found := n.unconfirmed()
	if len(found) == 0 {
		return
	}
	time.AfterFunc(2*time.Second, func() { // what changes just now is confirmed
		n.judge(func() {
			for _, text := range n.unconfirmed() {
				if slices.Contains(found, text) {
					n.broken(survives, "%s", text)
				}
			}
		})
	})
}

// unconfirmed are the values that systemd does not hold.
func (n *simulation) unconfirmed() (all []string) {
	if n.units == nil || !n.settings().writes() || n.scenario.endsDuring(SystemdHangs, SystemdAway) {
		return nil
	}
	cgroups := []string{n.kubelet.Parent("Guaranteed"), n.kubelet.Parent("Burstable")}
	for _, p := range n.kubelet.Pods() {
		cgroups = append(cgroups, p.Cgroup)
		for _, c := range p.Containers {
			if n.runs(c) && !n.writesItself(p, c.Spec.Name) {
				cgroups = append(cgroups, c.Cgroup)
			}
		}
	}
	for _, dir := range cgroups {
		have, held := n.values(dir), n.units.Held(dir)
		for knob, value := range map[cgroup.Knob]uint64{cgroup.MemoryMin: have.min, cgroup.MemoryLow: have.low, cgroup.MemoryHigh: have.high} {
			if holds, set := held[knob]; (set || strings.HasSuffix(dir, ".slice")) && !near(value, orDefault(holds, set, knob)) { // the kernel rounds down to a page
				all = append(all, fmt.Sprintf("%s of %s is %d, and systemd holds %v", knob, dir, value, held))
			}
		}
	}
	return all
}

func orDefault(value uint64, set bool, knob cgroup.Knob) uint64 {
	if !set {
		return knob.Default()
	}
	return value
}

// systemd has half of the nodes with containerd use the systemd cgroup driver, and adds what goes wrong with it.
func (d drawer) systemd(s *Scenario) {
	d.Rand = draws(s.Seed, "systemd")
	if s.Runtime.Name == "containerd" {
		s.Machine.Systemd = d.oneIn(2)
	}
	if !s.Machine.Systemd {
		return
	}
	for range 1 + d.IntN(3) {
		s.Faults = append(s.Faults, Fault{At: d.when(d.between(10*time.Second, d.length)), Kind: DaemonReload})
	}
	for _, kind := range []string{SystemdHangs, SystemdAway} {
		if d.oneIn(2) {
			at, length := d.between(10*time.Second, d.length), d.between(time.Second, 2*time.Minute)
			s.Faults = append(s.Faults, Fault{At: d.when(at), Kind: kind, Length: Duration(length)}, Fault{At: d.when(at + d.between(0, length)), Kind: DaemonReload})
		}
	}
}

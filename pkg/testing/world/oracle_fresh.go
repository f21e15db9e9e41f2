package world

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const fresh Promise = "a daemon that starts now changes nothing"

// picture is what must be the same beside a daemon that starts.
type picture struct {
	runs   map[string]bool // whether containers, with their limits, run: a resize that was refused may get through meanwhile
	values map[string]string
	state  []byte
	placed bool // every container that asks for NUMA nodes of its own has them
	lost   bool // only the daemon knows a container's limit
}

func (n *simulation) picture() picture {
	p := picture{runs: map[string]bool{}, values: map[string]string{}, placed: true}
	note := func(cgroup string, files ...string) {
		for _, file := range files {
			p.values[cgroup+"/"+file] = n.text(cgroup, file)
		}
	}
	memory := []string{"memory.min", "memory.low", "memory.high"}
	note(n.kubelet.Parent("Guaranteed"), memory...)
	note(n.kubelet.Parent("Burstable"), memory...)
	for _, pod := range n.kubelet.Pods() {
		note(pod.Cgroup, memory...)
		for _, c := range pod.Containers {
			p.runs[c.ID+" "+n.text(c.Cgroup, "memory.max")] = n.runs(c)
			p.placed = p.placed && (pod.Class != "Guaranteed" || pod.PodLevel() || !n.settings().places() || n.settings().wish(pod, "numa") == "none" || n.stateFile().Entries[pod.UID][c.Spec.Name] != nil)
			note(c.Cgroup, "memory.min", "memory.low", "memory.oom.group", "cpuset.mems")
			if !n.reachedHigh(c) && !pod.isDaemon() { // else the stall guard gives room, and takes it back
				note(c.Cgroup, "memory.high")
			}
			// A limit that was lost with a controller is back with the next update of the runtime's, and with it what follows from it. Until then only
			// the runtime's record has it, and CRI-O's has the first one again after its own restart.
			lost := n.limit(c) == 0 && pod.limitOf(c.Spec) > 0
			p.lost = p.lost || lost && n.scenario.Runtime.Name == "cri-o"
			if lost || n.writesItself(pod, c.Spec.Name) || n.sharesClaims(pod) {
				maps.DeleteFunc(p.values, func(file, _ string) bool { return strings.HasPrefix(file, c.Cgroup+"/") })
			}
		}
	}
	p.state, _ = os.ReadFile(filepath.Join(n.current().state, "memory_manager_state"))
	return p
}

// sharesClaims reports whether another pod has a claim of this one, as in a dry run: a daemon that starts grants it to the one that it reads first.
func (n *simulation) sharesClaims(p LivePod) bool {
	return slices.ContainsFunc(n.kubelet.Pods(), func(other LivePod) bool {
		for _, mine := range p.Claims {
			for _, theirs := range other.Claims {
				if other.UID != p.UID && mine.uid == theirs.uid {
					return true
				}
			}
		}
		return false
	})
}

// startsAgain ends the daemon of every second scenario, and compares what the next one makes of what that has left. What runs may not change
// meanwhile, and what found no room may find it.
func (n *simulation) startsAgain() {
	d := draws(n.scenario.Seed, "fresh") // drawn by itself
	// A start may have claims on or off.
	turned := n.settings().DRA.Enabled != n.current().driver.listens.Load()
	if d.IntN(2) == 0 || len(n.scenario.Pods) == 0 || turned {
		return
	}
	for p, c := range n.containers() {
		if n.lostResize(p, c) { // the one before may know more
			return
		}
	}
	for range 5 {
		var before, after picture
		n.judge(func() { before = n.picture() })
		n.fault(Fault{Kind: pick(drawer{Rand: d}, DaemonKilled, DaemonEnds)})
		time.Sleep(25 * time.Second) // it has connected, and has looked twice
		same := false
		n.judge(func() {
			after = n.picture()
			if same = maps.Equal(before.runs, after.runs) && before.placed; !same {
				return
			}
			n.report.Fresh++
			for _, file := range slices.Sorted(maps.Keys(before.values)) {
				if before.values[file] != after.values[file] && before.values[file] != "" && after.values[file] != "" {
					n.broken(fresh, "%s was %s and is %s", file, before.values[file], after.values[file])
				}
			}
			if !before.lost && !bytes.Equal(before.state, after.state) {
				n.broken(fresh, "the state file was %s and is %s", before.state, after.state)
			}
			for write, times := range n.current().written {
				if _, judged := before.values[write]; judged {
					n.broken(fresh, "it has written %s %d times, which was right", write, times)
				}
			}
		})
		if same || !before.placed {
			return
		}
	}
}

// Write implements Faults: what a life writes is counted until it is a minute old.
func (w writing) Write(cgroup, file, text string) error {
	journaled := w.simulation.journaled(w.life, cgroup, file, text)
	if file == "memory.high" && !w.life.killed.Load() {
		w.simulation.judge(func() { w.simulation.raisedInRoom(cgroup, text) })
	}
	if file == "memory.reclaim" {
		w.simulation.judge(func() { w.life.reclaims++ })
	}
	if n := w.simulation; time.Since(w.life.since) < time.Minute && file != "memory.reclaim" && !(file == "memory.oom.group" && n.units != nil) && n.kubelet.isQuiet() { // systemd writes its own before
		n.judge(func() { w.life.written[fmt.Sprint(cgroup, "/", file)]++ })
	}
	err := w.Faults.Write(cgroup, file, text)
	if err == nil && !journaled {
		w.simulation.broken(beforeWrite, "%s of %s is written, and is not in the journal", file, cgroup)
	}
	return err
}

// writing are faults with a look at what a daemon writes.
type writing struct {
	Faults
	simulation *simulation
	life       *life
}

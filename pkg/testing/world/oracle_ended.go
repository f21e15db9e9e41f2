package world

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const (
	nothingLeft Promise = "nothing of ended pods is left"
	freed       Promise = "an ended pod's allocation is free at once"
	endsHold    Promise = "the runtime's ends never fail"
	initsFree   Promise = "an ended init container keeps nothing once all containers of its pod run"
	podsEnd     Promise = "every pod can end"
	endsSoon    Promise = "the daemon ends within the half minute that it is given"
)

// stateFile is what the oracles read of memory_manager_state.
type stateFile struct {
	Entries      map[string]map[string][]block             `json:"entries"`
	PodEntries   map[string]struct{ MemoryBlocks []block } `json:"podEntries"` // of pods whose containers share one allocation
	MachineState map[int]struct {                          // by NUMA node
		NumberOfAssignments int
		MemoryMap           map[string]struct{ Allocatable, Reserved, Free uint64 }
		Cells               []int
	} `json:"machineState"`
	Data string `json:"data"` // all of it again, where there are such pods
}

// block is memory of one type on some NUMA nodes.
type block struct {
	NUMAAffinity []int
	Type         string
	Size         uint64
}

func (n *simulation) stateFile() stateFile {
	if changed := n.look(&n.allocated.lastRead, "memory_manager_state"); changed {
		n.allocated.file = stateFile{}
		err := json.Unmarshal(n.allocated.text, &n.allocated.file)
		if data := n.allocated.file.Data; err == nil && data != "" {
			err = json.Unmarshal([]byte(data), &n.allocated.file)
		}
		if err != nil && n.allocated.is != nil {
			n.broken(nothingLeft, "the state file cannot be read: %v", err)
		}
	}
	return n.allocated.file
}

// lastRead is a file as it was read last. The files of the state folder are replaced when they change.
type lastRead struct {
	path   string
	looked time.Time
	is     os.FileInfo
	text   []byte // none where there is no file
}

// look reads a file of the state folder again if it is another one, and reports whether its text is. What was looked at after the moment of the
// last change need not be looked at: a change takes no virtual time.
func (n *simulation) look(l *lastRead, file string) (changed bool) {
	path := filepath.Join(n.current().state, file)
	n.mu.Lock()
	last := n.changed
	n.mu.Unlock()
	if l.path == path && l.looked.After(last) {
		return false
	}
	was := l.is
	l.path, l.looked = path, time.Now()
	if l.is, _ = os.Stat(path); was != nil && l.is != nil && os.SameFile(l.is, was) && l.is.ModTime().Equal(was.ModTime()) && l.is.Size() == was.Size() {
		return false
	}
	before := l.text
	l.text, _ = os.ReadFile(path)
	return !bytes.Equal(l.text, before)
}

// journal are the cgroups that the journal of what was written names.
func (n *simulation) journal() map[string]bool {
	data, _ := os.ReadFile(filepath.Join(n.current().state, "knobs.json"))
	type line struct {
		Cgroup string   `json:"cgroup"`
		Knobs  []string `json:"knobs"`
	}
	cgroups := map[string]bool{}
	whole, rest, _ := bytes.Cut(data, []byte("\n"))
	var first struct{ Cgroups []line }
	_ = json.Unmarshal(whole, &first)
	for _, l := range first.Cgroups {
		cgroups[l.Cgroup] = true
	}
	for text := range bytes.Lines(rest) {
		var l line
		if json.Unmarshal(text, &l) == nil {
			if cgroups[l.Cgroup] = true; len(l.Knobs) == 0 {
				delete(cgroups, l.Cgroup)
			}
		}
	}
	return cgroups
}

// onlyTheLiving looks for pods in the state file that have ended, and for init containers of those that run.
func (n *simulation) onlyTheLiving(see seer) {
	if !n.settings().places() {
		return
	}
	living, entries := map[string]bool{}, n.stateFile().Entries
	for _, p := range n.kubelet.Pods() {
		living[p.UID] = true
		for _, c := range p.Pod.Containers {
			if c.Kind == memoryqos.Init && entries[p.UID][c.Name] != nil && p.settled() && !p.Ending { // of one deleted by force the pod API tells nothing
				see(initsFree, p.Name+"/"+c.Name, "has %+v", entries[p.UID][c.Name])
			}
		}
	}
	for uid := range entries {
		if !living[uid] {
			see(freed, uid, "has ended and has an allocation")
		}
	}
}

// settled reports whether all containers of a pod but its init containers run.
func (p LivePod) settled() bool {
	runs := map[string]bool{}
	for _, c := range p.Containers {
		runs[c.Spec.Name] = true
	}
	for _, c := range p.Pod.Containers {
		if runs[c.Name] == (c.Kind == memoryqos.Init) {
			return false
		}
	}
	return true
}

// nothingLeft looks once all pods have ended.
func (n *simulation) nothingLeft() {
	if entries := n.stateFile().Entries; len(entries) > 0 && n.settings().places() {
		n.broken(nothingLeft, "all pods have ended, and the state file has %d entries", len(entries))
	}
	if n.settings().writes() {
		for _, cgroup := range []string{n.kubelet.Parent("Guaranteed"), n.kubelet.Parent("Burstable")} {
			if have := n.values(cgroup); have.min != 0 || have.low != 0 {
				n.broken(nothingLeft, "all pods have ended, and %s has memory.min %d and memory.low %d", cgroup, have.min, have.low)
			}
		}
	}
	if left := n.current().port.watching(); len(left) > 0 {
		n.broken(nothingLeft, "all pods have ended, and it watches %q", left)
	}
	if now := runtime.NumGoroutine(); now > n.current().goroutines+20 {
		n.broken(nothingLeft, "all pods have ended, and there are %d goroutines, %d before the first", now, n.current().goroutines)
	}
}

// journalEmpty looks long after all pods have ended.
func (n *simulation) journalEmpty() {
	for cgroup := range n.journal() {
		if n.text(cgroup, "cgroup.procs") == "" && n.text(cgroup, "memory.max") == "" {
			n.broken(nothingLeft, "all pods have ended long ago, and the journal has %s", cgroup)
		}
	}
}

// podsForgotten looks long after all pods have ended at what the daemon has kept of them for the next one.
func (n *simulation) podsForgotten() {
	var kept []struct{ Pod struct{ Name string } }
	text, err := os.ReadFile(filepath.Join(n.current().state, "requests.json"))
	if err == nil && json.Unmarshal(text, &kept) != nil || len(kept) > 0 {
		n.broken(nothingLeft, "all pods have ended long ago, and requests.json has %d: %.200s", len(kept), text)
	}
}

// ends are what the runtime has been answered.
func (n *simulation) ends() {
	for _, failed := range n.runtime.Calls().Ends {
		n.broken(endsHold, "%+v", failed)
	}
}

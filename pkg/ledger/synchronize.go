package ledger

import (
	"cmp"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// Synchronize has all pods and containers of a runtime, in any order. Pods that are gone are freed. Containers without an allocation are
// adopted, and Guaranteed containers that were created while the plugin was away are placed. The driver answers with the updates of
// SyncContainers.
type Synchronize struct {
	Pods       []Pod
	Containers []Container
	// Found is what the files show.
	Found Found
	// PodInfos is the newest data of the pod APIs, by Pod.Key.
	PodInfos map[string]pods.Answer
	Header
}

// Found is what the files show about the pods and containers that a runtime lists.
type Found struct {
	// Gone are the ended sandboxes: they have no container and no cgroup.
	Gone map[string]bool
	// Seen are the existing cgroups of containers.
	Seen map[string]bool
	// PodLimits are the memory.max of Guaranteed pods' cgroups in bytes, by sandbox.
	PodLimits map[string]uint64
	// Files are the files of containers, by the runtime's id.
	Files map[string]Files
	// Populated are containers that the runtime does not list although their cgroups have processes, by the runtime's id: they still live.
	Populated map[string]bool
}

func (e Synchronize) apply(l *Ledger) {
	l.step.all = true
	l.dropGone(e.Pods, e.Found)
	sandboxes := l.addPods(e)
	present := make(map[string]bool, len(e.Containers))
	var listed []*container
	for i := range e.Containers {
		received := &e.Containers[i]
		p := sandboxes[received.PodID]
		if p == nil || !received.State.Alive() {
			continue
		}
		if err := p.check(*received); err != nil {
			l.note(Warn, "a container is left alone", p.fields(), err)
			continue
		}
		present[received.ID] = true
		listed = append(listed, l.observeFound(p, *received, e.Found))
	}
	for _, p := range l.living {
		l.change(p)
		for _, c := range slices.Clone(p.containers) {
			if c.alive() && !present[c.ID] && !e.Found.Populated[c.ID] {
				l.end(c)
				l.dropSlot(c)
			}
			c.Present = e.Found.Seen[c.Cgroup]
		}
		p.compareLimits()
		l.findShared(p)
		l.releaseUnpinnable(p)
	}
	clear(l.state.Raises) // the remaining containers have ended
	placed := l.placeAll(listed)
	l.correct(listed, e.Found)
	l.state.Synchronized.set(l.step.now, "")
	l.note(Info, "synchronized with the runtime", map[string]any{
		"pods": len(l.living), "containers": len(l.containers), "placed": placed, "updates": len(l.step.effects.Sync),
	}, nil)
}

// correct asks the runtime to update the containers whose files do not hold the desired values. If the files hold them, the answer to its next
// update corrects its record, unless that is known to this process alone.
func (l *Ledger) correct(listed []*container, found Found) {
	if l.state.Resolved.Config.DryRun() {
		return
	}
	for _, c := range listed {
		l.journalFound(c)
		now := l.deriveRun(c)
		files, read := found.Files[c.ID]
		match := read && l.filesMatch(&now, files)
		now.values = now.qos                                                  // no record needs the stall guard's memory.high: it changes all the time
		forgotten := c.remembered && !sameValues(c.Record.Values, now.values) // at the next start
		if _, lacks := c.syncUpdate(&now); lacks && (!match || forgotten) {
			l.step.effects.Sync = append(l.step.effects.Sync, c.ID)
			if c.Unanswered {
				l.note(Info, "a container was created without an answer of ours, and is taken in", l.fields(c), nil)
			}
		}
	}
}

// filesMatch reports whether the files were read and hold the desired values, or the kernel's defaults where none is desired.
func (l *Ledger) filesMatch(now *derivedRun, files Files) bool {
	holds := func(shown, wanted *uint64, knob cgroup.Knob) bool {
		initial := knob.Default()
		if wanted == nil {
			wanted = &initial
		}
		return shown != nil && memoryqos.Holds(*shown, *wanted, l.page())
	}
	values, mems := now.values, now.mems
	return holds(files.Min, values.Min, cgroup.MemoryMin) && holds(files.Low, values.Low, cgroup.MemoryLow) &&
		holds(files.High, values.High, cgroup.MemoryHigh) && files.Mems != nil && (mems == "" || *files.Mems == mems)
}

// dropGone frees the pods that the runtime no longer lists and that have no processes.
func (l *Ledger) dropGone(pods []Pod, found Found) {
	present := make(map[string]bool, len(pods))
	for i := range pods {
		if !found.Gone[pods[i].ID] {
			present[pods[i].Key()] = true
		}
	}
	for id := range found.Populated {
		if c := l.containers[id]; c != nil {
			present[c.pod.Key()] = true
		}
	}
	for _, p := range slices.Clone(l.living) {
		if !present[p.Key()] {
			l.endPod(p)
		}
	}
	if l.manager == nil {
		return
	}
	// Entries of the state file whose pods ended while the plugin was away.
	for _, entry := range l.manager.State().Entries {
		if !present[entry.Pod] {
			l.manager.ReleasePod(entry.Pod)
		}
	}
}

// addPods adds or updates the listed pods, and returns them by sandbox id. If a pod has several sandboxes, the one with containers is
// current.
func (l *Ledger) addPods(e Synchronize) map[string]*pod {
	used := make(map[string]bool, len(e.Pods))
	for i := range e.Containers {
		used[e.Containers[i].PodID] = true
	}
	ordered := make([]*Pod, 0, len(e.Pods))
	for i := range e.Pods {
		if !e.Found.Gone[e.Pods[i].ID] {
			ordered = append(ordered, &e.Pods[i])
		}
	}
	slices.SortStableFunc(ordered, func(x, y *Pod) int {
		if used[x.ID] != used[y.ID] {
			if used[y.ID] {
				return -1
			}
			return 1
		}
		return cmp.Compare(x.ID, y.ID)
	})
	sandboxes := make(map[string]*pod, len(e.Pods))
	for _, p := range l.living {
		p.Sandboxes = nil // those that have not ended are listed
	}
	for _, received := range ordered {
		p, err := l.podOf(*received)
		if err != nil {
			l.note(Warn, "a pod is left alone", nil, err)
			continue
		}
		if !p.managed {
			continue
		}
		sandboxes[received.ID] = p
		if limit, ok := e.Found.PodLimits[received.ID]; ok && limit != cgroup.Max {
			p.setLimit(limit - min(limit, received.Overhead))
		}
		p.Seen = true // or unreadable: Found.Gone has those that are not there
		l.learn(p, e.PodInfos[p.Key()])
	}
	return sandboxes
}

// Refs returns the living managed pods, as the pod APIs name them.
func (l *Ledger) Refs() []pods.Ref {
	refs := make([]pods.Ref, 0, len(l.living))
	for _, p := range l.living {
		if p.managed {
			refs = append(refs, p.Ref())
		}
	}
	return refs
}

// Connected is a runtime that has accepted the plugin.
type Connected struct {
	Runtime Runtime
	// Epoch is the number of the connection, which its events have in their Header. It increases with each connection.
	Epoch uint64
}

func (e Connected) apply(l *Ledger) {
	l.state.Runtime, l.state.Epoch = e.Runtime, e.Epoch
	l.state.Connected.set(l.step.now, "")
}

// Disconnected is the end of a connection, and its reason.
type Disconnected struct{ Reason string }

func (e Disconnected) apply(l *Ledger) {
	l.state.Epoch = 0
	l.state.Connected.set(l.step.now, e.Reason)
	l.state.Synchronized.set(l.step.now, "not connected to a runtime")
}

// Restore restores the allocations of a state file. Synchronize then releases those of pods that are gone.
func (l *Ledger) Restore(state memorymanager.State) (memorymanager.RestoreReport, error) {
	if l.manager == nil {
		return memorymanager.RestoreReport{}, nil
	}
	report, err := l.manager.Restore(state, l.state.Resolved.StateTolerance)
	l.state.Restored = err == nil
	return report, err
}

// Allocations returns the Memory Manager's allocations; false under the policy None.
func (l *Ledger) Allocations() (memorymanager.State, bool) {
	if l.manager == nil {
		return memorymanager.State{}, false
	}
	return l.manager.State(), true
}

// Package ledger computes what this node's pods get: on which nodes each container's memory is allocated, and which values the cgroup files
// should hold.
//
// It is a state machine without side effects. Step applies one event and returns its effects; the driver, package agent, carries them out.
// The package has no log, disk, clock, lock or goroutine, so the same events always give the same effects.
//
// State holds facts, and decisions that do not follow from them. Events change only these. One function derives the rest from a pod's state
// at the end of each Step that may have changed it: what the cgroups should hold, what a view shows, what the stall guard watches. Most
// effects are differences from what was derived before.
package ledger

import (
	"fmt"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Options are the inputs of New.
type Options struct {
	Config config.Resolved
	// Raises are the memory.high values that the stall guard had set when the plugin ended, by container id.
	Raises map[string]uint64
	// Claims are the claims that were allocated when the plugin ended.
	Claims []claims.Claim
}

// Ledger is the state of this node's pods and what is derived from it. It is not safe for concurrent use: its driver holds one lock around
// every call.
type Ledger struct {
	state State

	// The fields below are derived from the state, or index it.
	allNodes nodeset.Set // the NUMA nodes with memory
	cpuNodes nodeset.Set // those with CPUs; empty if all have some, or under the policy None
	node     pods.Node
	manager  *memorymanager.Manager // nil under the policy None
	stored   *memorymanager.Manager // manager at the last deltas
	reserved []claims.Claimable     // for claims, and not part of the manager's nodes

	pods       map[string]*pod       // every living pod, by UID
	byCgroup   map[string]*pod       // the managed ones
	living     []*pod                // the same pods, in the order of state.Pods
	added      int                   // number of pods so far
	containers map[string]*container // every container that has not ended, by the runtime's id
	used       map[claims.Ref]use    // the parts of resource claims that containers have

	step step // the current Step
}

// step collects the results of one Step.
type step struct {
	now     time.Time
	seq     uint64 // of the event's Header
	effects Effects
	changed []*pod // pods that may have changed, or have ended
	all     bool   // reconcile all files
	syncAll bool   // compare the runtime's records of all containers
	// recheck are pods whose annotations are checked again.
	recheck []*pod
	// synced are containers whose runtime record this Step has updated.
	synced []*container
	// facts are about the container that is being created.
	facts Facts
	// affinity is the Topology Manager's result for that container; nil if there is none.
	affinity *topologymanager.Hint
}

// New returns a ledger without pods.
func New(now time.Time, o Options) (*Ledger, error) {
	s := State{
		Resolved: o.Config, Claims: claims.Prepared{}, Raises: o.Raises, Counters: newCounters(),
	}
	s.Connected.set(now, "not connected to a runtime yet")
	s.Synchronized.set(now, "not synchronized with a runtime yet")
	s.Configured.set(now, "")
	for i := range o.Claims {
		s.Claims[o.Claims[i].UID] = &o.Claims[i]
	}
	return startWith(s)
}

// startWith returns a ledger with a state that has no pods or allocations.
func startWith(s State) (*Ledger, error) {
	if s.Claims == nil { // the JSON has no empty map
		s.Claims = claims.Prepared{}
	}
	l := &Ledger{state: s, pods: map[string]*pod{}, byCgroup: map[string]*pod{}, containers: map[string]*container{}, used: map[claims.Ref]use{}}
	l.setMachine()
	l.reserved = s.Claims.Reserved(s.Resolved.Claimable, s.Resolved.Nodes)
	var err error
	l.manager, err = managerFor(s.Resolved, l.reserved)
	l.stored = l.manager // nothing is allocated yet
	return l, err
}

// setMachine updates the fields that depend only on the machine.
func (l *Ledger) setMachine() {
	m := l.state.Resolved.Machine
	l.allNodes, l.cpuNodes = 0, 0
	l.node = pods.Node{MemTotal: m.MemTotal, SwapTotal: m.Swap}
	for _, node := range m.Nodes {
		if node.Memory > 0 {
			l.allNodes = l.allNodes.Union(nodeset.Of(node.ID))
			if !node.CPUs.IsEmpty() {
				l.cpuNodes = l.cpuNodes.Union(nodeset.Of(node.ID))
			}
		}
	}
	if l.cpuNodes == l.allNodes || !l.state.Resolved.Static {
		l.cpuNodes = 0
	}
}

// managerFor returns nil under the policy None.
func managerFor(resolved config.Resolved, reserved []claims.Claimable) (*memorymanager.Manager, error) {
	if !resolved.Static {
		return nil, nil
	}
	manager, err := memorymanager.New(claims.WithReserved(resolved.Nodes, reserved), resolved.Manager)
	if err != nil {
		return nil, fmt.Errorf("memory manager: %w", err)
	}
	return manager, nil
}

// Event is something that has happened, with the facts that the ledger may use to decide about it.
type Event interface {
	apply(l *Ledger)
}

// Step applies an event that happened at now, and returns its effects. It decides only by the facts that the event has: the driver gathers
// missing ones before (Needs).
func (l *Ledger) Step(now time.Time, event Event) Effects {
	header := headerOf(event)
	l.step = step{now: now, seq: header.Seq}
	if err := l.late(event, header.Epoch); err != nil {
		l.step.effects.Err = err
		l.note(Debug, "an event decides nothing", map[string]any{"event": fmt.Sprintf("%T", event)}, err)
	} else {
		l.state.Newest = max(l.state.Newest, header.Seq)
		event.apply(l)
		for _, p := range l.step.changed {
			l.releaseInits(p)
			l.placeParts(p)
		}
		l.fitPendingResizes()
		l.reportAnnotations()
	}
	l.publish()
	effects := l.step.effects
	switch event.(type) {
	case Presence, Observed, FinishUpdate: // the periodic look: no View has more of it than the pods that it changed
		effects.ViewStays = len(l.step.changed) == 0
	}
	l.step = step{}
	return effects
}

// Effects are what the driver has to do after a Step. The answer waits for Allocations and Journal; the start of a container waits for
// Files. A failed effect is not undone: the driver observes the result, and a later event corrects it. Errors and empty fields are not in
// the JSON.
type Effects struct {
	// Err refuses the container of the event, or its change.
	Err error `json:"-"`
	// Allocations must be in the state file, in the order of the Steps, before the answer is sent.
	Allocations []Delta `json:",omitzero"`
	// Journal are the container files that the answer or the updates will write.
	Journal []Journaled `json:",omitzero"`
	Finished
	Desired
	// Answer is for the container of the event.
	Answer Adjustment `json:",omitzero"`
	// Decision is the log's entry about the container; nil if there is none.
	Decision *Decision `json:",omitzero"`
	// Updates are for running containers whose record in the runtime is outdated: the runtime would write the old values again at its next
	// update. Only SyncContainers returns them.
	Updates []Update `json:",omitzero"`
	Later
	// HighChanged is set if the result of High has changed.
	HighChanged bool `json:",omitzero"`
	// ViewStays is set if View is known to be as it was.
	ViewStays bool `json:"-"`
	// DryRun is set if the configuration wants everything computed and nothing done.
	DryRun bool `json:",omitzero"`
	// Notes are for the log.
	Notes []Note `json:"-"`
}

// Finished is what has ended. The cgroups in Removed have nothing left to restore, and the pod APIs can forget the pods in Forget.
type Finished struct {
	Removed []string   `json:",omitzero"`
	Forget  []pods.Ref `json:",omitzero"`
}

// Desired are the cgroups whose desired values have changed; nothing is desired any more in those of Ended. If AllFiles is set, any may
// have changed: see Targets.
type Desired struct {
	Files    []cgroup.Target `json:",omitzero"`
	Ended    []string        `json:",omitzero"`
	AllFiles bool            `json:",omitzero"`
}

// Later are effects that nothing waits for.
type Later struct {
	// Sync are containers whose record in the runtime is outdated; the driver applies SyncContainers to them.
	Sync []string `json:",omitzero"`
	// ReadLimits are containers whose memory.max is read once the runtime has written it.
	ReadLimits []CgroupRef `json:",omitzero"`
}

// Delta is a change of the allocations of one pod, or of all pods if State is set.
type Delta struct {
	// Pods are the UIDs of the changed pods: one, or any number with State.
	Pods []string
	// Nodes and Allocations are the node map and the pod's allocations.
	Nodes       []memorymanager.NodeState
	Allocations memorymanager.PodAllocations
	State       *memorymanager.State
}

// Journaled are files of a container's cgroup that will be written. The journal keeps them for a rollback.
type Journaled struct {
	Cgroup string
	// Adjustment has the files with their new values.
	Adjustment Adjustment
	// Asked are the kubelet's values for files of the adjustment, which a rollback restores. Wanted replaces those of earlier writes.
	Asked  map[string]string
	Wanted map[string]string
}

// unstored returns a pod's allocations, and whether they have changed since its last delta.
func (l *Ledger) unstored(p *pod) (has memorymanager.PodAllocations, differs bool) {
	if l.manager == nil {
		return has, false
	}
	has = l.manager.Allocations(p.Key())
	return has, !has.Equal(p.stored)
}

// deltas returns the allocations that have changed since the last deltas.
func (l *Ledger) deltas() (deltas []Delta) {
	if l.manager == nil {
		return nil
	}
	var pods []string
	for _, p := range l.step.changed {
		if has, differs := l.unstored(p); differs {
			p.stored, pods = has, append(pods, has.Pod)
			deltas = append(deltas, Delta{Pods: pods[len(pods)-1:], Nodes: l.manager.Nodes(), Allocations: has})
		}
	}
	if l.step.all || l.manager != l.stored || len(deltas) > 0 && l.manager.Overcommitted() {
		state := l.manager.State()
		l.stored, deltas = l.manager, []Delta{{Pods: pods, State: &state}}
	}
	return deltas
}

// change marks a pod as changed, so that it is derived again at the end of the Step. It returns p, which may be nil.
func (l *Ledger) change(p *pod) *pod {
	if p != nil && !p.changed {
		p.changed = true
		l.step.changed = append(l.step.changed, p)
	}
	return p
}

// changeContainer returns a living container by the runtime's id and marks its pod as changed; nil if there is none.
func (l *Ledger) changeContainer(id string) *container {
	c := l.containers[id]
	if c != nil {
		l.change(c.pod)
	}
	return c
}

// readLimit asks the driver to read a container's memory.max.
func (l *Ledger) readLimit(c *container) {
	if c.Cgroup != "" {
		l.step.effects.ReadLimits = append(l.step.effects.ReadLimits, c.ref())
	}
}

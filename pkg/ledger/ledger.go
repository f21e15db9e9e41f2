// Package ledger computes what this node's pods get: where the memory of each container is allocated, and which values
// the cgroup files should hold.
//
// It is a state machine without effects. Step applies one event and returns everything that has to happen because of it;
// the driver, package agent, carries that out. There is no log, disk, clock, lock or goroutine in here, so the same
// events always give the same effects.
//
// What it remembers is its State: facts, and decisions that do not follow from them. An event changes these and nothing else.
// What the cgroups should hold, what a view shows and what the stall guard watches is derived from the state of a pod by one function,
// at the end of each Step in which it may have changed; most effects are the difference to what was derived before.
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

// Options are what a Ledger starts with.
type Options struct {
	Config config.Resolved
	// Raises are the memory.high values that the stall guard had set when the plugin ended, by container id.
	Raises map[string]uint64
	// Claims are those that had an allocation when the plugin ended.
	Claims []claims.Claim
}

// Ledger is the state of this node's pods, with what follows from it. It is not safe for concurrent use: its driver holds one lock
// around every call.
type Ledger struct {
	state State

	// What follows is derived from the state, or an index of it.

	allNodes nodeset.Set // the NUMA nodes with memory
	node     pods.Node
	manager  *memorymanager.Manager // of the allocations; nil under the policy None
	stored   *memorymanager.Manager // the one of the last deltas
	aside    []claims.Claimable     // what the manager's nodes lack of the configuration's, for claims

	pods       map[string]*pod       // every living pod, by UID
	byCgroup   map[string]*pod       // the managed ones
	living     []*pod                // the same pods, as state.Pods
	added      int                   // pods so far
	containers map[string]*container // every container that has not ended, by the runtime's id
	used       map[claims.Ref]use    // the parts of resource claims that containers have

	step step // of the Step under way
}

// step is what a Step collects.
type step struct {
	now     time.Time
	seq     uint64 // of the event's Header
	effects Effects
	changed []*pod // pods that may have changed, or have ended
	all     bool   // all files are to be looked at, whatever has changed
	syncAll bool   // so are the runtime's records of all containers
	// annotated are pods whose annotations are to be judged again.
	annotated []*pod
	// answered are containers of which the runtime's record has just been made what it should be.
	answered []*container
	// facts are of the container that is about to be created.
	facts Facts
	// affinity is the Topology Manager's answer for that container; nil where there is none.
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

// startWith is a ledger of a state without pods and allocations.
func startWith(s State) (*Ledger, error) {
	if s.Claims == nil { // JSON leaves an empty one out
		s.Claims = claims.Prepared{}
	}
	l := &Ledger{state: s, pods: map[string]*pod{}, byCgroup: map[string]*pod{}, containers: map[string]*container{}, used: map[claims.Ref]use{}}
	l.takeMachine()
	l.aside = s.Claims.SetAside(s.Resolved.Claimable, s.Resolved.Nodes)
	var err error
	l.manager, err = managerFor(s.Resolved, l.aside)
	l.stored = l.manager // nothing is allocated yet
	return l, err
}

// takeMachine derives what follows from the machine alone.
func (l *Ledger) takeMachine() {
	m := l.state.Resolved.Machine
	l.allNodes = 0
	l.node = pods.Node{MemTotal: m.MemTotal, SwapTotal: m.Swap}
	for _, node := range m.Nodes {
		if node.Memory > 0 {
			l.allNodes = l.allNodes.Union(nodeset.Of(node.ID))
		}
	}
}

// managerFor is nil under the policy None.
func managerFor(resolved config.Resolved, aside []claims.Claimable) (*memorymanager.Manager, error) {
	if !resolved.Static {
		return nil, nil
	}
	manager, err := memorymanager.New(claims.NodesForPods(resolved.Nodes, aside), resolved.Manager)
	if err != nil {
		return nil, fmt.Errorf("memory manager: %w", err)
	}
	return manager, nil
}

// Event is something that has happened, with everything that the ledger may know about it.
type Event interface {
	apply(l *Ledger)
}

// Step applies one event at a moment and returns what has to happen because of it: what the event asks for, and what is different
// from before. It decides by the facts that the event has: the driver asks before what is lacking (Needs).
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
		}
		l.fitPendingResizes()
		l.judgeAnnotations()
	}
	l.publish()
	effects := l.step.effects
	l.step = step{} // nothing of it is state
	return effects
}

// Effects are what a driver has to do after a Step. The answer waits for Allocations and Journal, and the start of a container for Files. An
// effect that fails is not undone: what
// the driver observes next is. Their JSON leaves out errors and what is empty.
type Effects struct {
	// Err refuses the container, or the change of a container, that the event was about.
	Err error `json:"-"`
	// Allocations must be in the state file before the answer goes out; their order is that of the Steps.
	Allocations []Delta `json:",omitzero"`
	// Journal are the container files that the answer or the updates are going to write.
	Journal []Journaled `json:",omitzero"`
	Finished
	Desired
	// Answer is for the container of the event.
	Answer Adjustment `json:",omitzero"`
	// Decision is what the log says about it; nil is nothing.
	Decision *Decision `json:",omitzero"`
	// Updates are for running containers of which the runtime's own record is another one than Files: it would write that
	// again at its next update of theirs. SyncContainers has them.
	Updates []Update `json:",omitzero"`
	Later
	// HighChanged is set when High returns something else now.
	HighChanged bool `json:",omitzero"`
	// DryRun is set when the configuration wants everything computed and nothing done.
	DryRun bool `json:",omitzero"`
	// Notes are for the log.
	Notes []Note `json:"-"`
}

// Finished is what has ended. Nothing is left to restore in the cgroups of Over, and the pod APIs need not say more about Forget.
type Finished struct {
	Over   []string   `json:",omitzero"`
	Forget []pods.Ref `json:",omitzero"`
}

// Desired are the cgroups whose desired values have changed, and Ended those that are desired no more. AllFiles is set when all may have
// changed: Targets has them.
type Desired struct {
	Files    []cgroup.Target `json:",omitzero"`
	Ended    []string        `json:",omitzero"`
	AllFiles bool            `json:",omitzero"`
}

// Later is what nobody waits for.
type Later struct {
	// Sync are containers of which the runtime's record is not what it should be; the driver applies SyncContainers to them.
	Sync []string `json:",omitzero"`
	// Look are containers whose memory.max is to be read once the runtime has done its part.
	Look []Place `json:",omitzero"`
}

// Delta is a change of the allocations: of one pod, or of all when State is set.
type Delta struct {
	// Pods are the UIDs of the pods that it was made for: one, or with a State any number.
	Pods []string
	// Nodes and Allocations are the node map and the one pod's allocations.
	Nodes       []memorymanager.NodeState
	Allocations memorymanager.PodAllocations
	State       *memorymanager.State
}

// Journaled are files of a container's cgroup that are going to be written, so that rollback finds them.
type Journaled struct {
	Cgroup string
	// Adjustment are the files and what they get.
	Adjustment Adjustment
	// Asked are the values that the kubelet wants in files of the adjustment: rollback restores them. Wanted is set when
	// they replace those of an earlier write.
	Asked  map[string]string
	Wanted map[string]string
}

// unstored are a pod's allocations, and whether they are others than those of its last delta.
func (l *Ledger) unstored(p *pod) (has memorymanager.PodAllocations, differs bool) {
	if l.manager == nil {
		return has, false
	}
	has = l.manager.Allocations(p.key())
	return has, !has.Equal(p.stored)
}

// deltas are the allocations that are others than those of the last deltas.
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

// change returns a pod to be changed; nil is none. What follows from it is derived at the end of the Step.
func (l *Ledger) change(p *pod) *pod {
	if p != nil && !p.changed {
		p.changed = true
		l.step.changed = append(l.step.changed, p)
	}
	return p
}

// changeContainer returns a living container to be changed, by the runtime's id; nil where there is none.
func (l *Ledger) changeContainer(id string) *container {
	c := l.containers[id]
	if c != nil {
		l.change(c.pod)
	}
	return c
}

// look has the driver read a container's memory.max.
func (l *Ledger) look(c *container) {
	if c.Cgroup != "" {
		l.step.effects.Look = append(l.step.effects.Look, c.place())
	}
}

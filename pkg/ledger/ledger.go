// Package ledger computes what this node's pods get: where the memory of each container is allocated, and which values
// the cgroup files should hold.
//
// It is a state machine without effects. Step applies one event and returns everything that has to happen because of it;
// the driver, package agent, carries that out. There is no log, disk, clock, lock or goroutine in here, so the same
// events always give the same effects.
//
// What the ledger holds about a container is either desired (it follows from the pod, the configuration and the
// allocations) or observed (the runtime or the kernel has shown it). An answer counts as observed until the files show
// something else.
package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cover"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Options are what a Ledger starts with.
type Options struct {
	Config  config.Resolved
	Machine machine.Machine
	// Raises are the memory.high values that the stall guard had set when the plugin ended, by container id.
	Raises map[string]uint64
	// Claims are those that had an allocation when the plugin ended.
	Claims []claims.Claim
	// MemoryOnly is set where no state file keeps the allocations: they are not moved.
	MemoryOnly bool
}

// Ledger is the state of this node's pods. It is not safe for concurrent use: its driver holds one lock around every
// call.
type Ledger struct {
	machine  machine.Machine
	allNodes nodeset.Set // the NUMA nodes with memory
	node     pods.Node

	resolved config.Resolved
	manager  *memorymanager.Manager // nil under the policy None
	runtime  Runtime                // as connected last

	claims claims.Prepared    // every claim that has an allocation, by UID
	aside  []claims.Claimable // what the manager's nodes lack of the configuration's, for claims

	pods       map[string]*pod       // every living pod, by UID
	ending     map[string]*pod       // those without a sandbox
	living     []*pod                // the same pods; pod.index is the position
	values     []memoryqos.PodValues // values[i] are living[i].values, contiguous because they are summed at many events
	containers map[string]*container // every container that has not ended, by the runtime's id
	levels     []level               // the cgroups above managed pods, those that have ended included until the next full pass
	stopped    recent                // sandboxes that have ended: a late event of theirs brings nothing back
	ended      recent                // containers that have ended, likewise
	epoch      uint64                // of the connection that there is; 0 when there is none
	newest     uint64                // the highest Header.Seq so far
	raises     map[string]uint64     // Options.Raises of containers that have not been seen yet

	move     *Move                 // nil when no container is on its way
	leaving  []memorymanager.Block // what it had allocated where its pages come from
	calm     cover.Calm            // since when nodes have had room for what was moved off them
	notMoved []NotMoved
	// memoryOnly is Options.MemoryOnly.
	memoryOnly bool

	generation uint64 // moves with every change that a view shows
	rejections []Rejection
	anyShort   bool   // false only when no container is short
	roomBefore uint64 // room of the managers before this one
	fitted     uint64 // room when short containers were looked at last
	counters   Counters

	connected, synchronized, configured condition

	step step // of the Step under way
}

// step is what a Step collects.
type step struct {
	now     time.Time
	seq     uint64 // of the event's Header
	effects Effects
	durable []*pod // pods whose allocations have changed
	whole   bool   // so have those of many
	dirty   []*pod // pods whose values have changed
	touched []*pod // pods of which anything has changed
	all     bool   // so have those of many
	// annotated are pods whose annotations are to be judged again.
	annotated []*pod
	// freePages are for the container that is about to be created.
	freePages []memorymanager.FreePages
	// creating is the event of a container that is about to be created; nil for others.
	creating *CreateContainer
	// podDevices are those of the other containers of its pod.
	podDevices map[string][]topologymanager.Device
}

// New returns a ledger without pods.
func New(now time.Time, o Options) (*Ledger, error) {
	l := &Ledger{
		node:       pods.Node{MemTotal: o.Machine.MemTotal, SwapTotal: o.Machine.Swap},
		resolved:   o.Config,
		pods:       map[string]*pod{},
		ending:     map[string]*pod{},
		containers: map[string]*container{},
		raises:     o.Raises,
		claims:     claims.Prepared{},
		counters:   newCounters(),
		memoryOnly: o.MemoryOnly,
	}
	l.connected.set(now, "not connected to a runtime yet")
	l.synchronized.set(now, "not synchronized with a runtime yet")
	l.configured.set(now, "")
	l.takeMachine(o.Machine)
	for i := range o.Claims {
		l.claims[o.Claims[i].UID] = &o.Claims[i]
	}
	l.aside = l.claims.SetAside(o.Config.Claimable, o.Config.Nodes)
	var err error
	l.manager, err = managerFor(o.Config, l.aside)
	return l, err
}

func (l *Ledger) takeMachine(m machine.Machine) {
	l.machine, l.allNodes = m, 0
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
	options := resolved.Manager
	options.EvenShare = memorymanager.LeastEvenShare
	manager, err := memorymanager.New(claims.NodesForPods(resolved.Nodes, aside), options)
	if err != nil {
		return nil, fmt.Errorf("memory manager: %w", err)
	}
	return manager, nil
}

// Event is something that has happened, with everything that the ledger may know about it.
type Event interface {
	apply(l *Ledger)
}

// Step applies one event at a moment and returns what has to happen because of it.
func (l *Ledger) Step(now time.Time, event Event) Effects {
	header := headerOf(event)
	l.step = step{now: now, seq: header.Seq}
	if err := l.late(event, header.Epoch); err != nil {
		l.step.effects.Err = err
		l.note(Debug, "an event decides nothing", map[string]any{"event": fmt.Sprintf("%T", event)}, err)
	} else {
		l.newest = max(l.newest, header.Seq)
		event.apply(l)
		l.fitShort()
		l.judgeAnnotations()
	}
	l.finish()
	effects := l.step.effects
	l.step = step{} // nothing of it is state
	return effects
}

// finish derives what depends on all changes of a Step.
func (l *Ledger) finish() {
	out := &l.step.effects
	l.finishFiles(out)
	if out.DryRun = l.resolved.Config.DryRun; out.DryRun {
		out.Answer, out.Updates, out.Journal, out.Files, out.Ended = Adjustment{}, nil, nil, nil, nil
		out.Look, out.Bring = nil, nil
		return
	}
	out.Allocations = l.deltas()
}

// Effects are what a driver has to do after a Step, in the order of the fields. An effect that fails is not undone: what
// the driver observes next is.
type Effects struct {
	// Err refuses the container, or the change of a container, that the event was about.
	Err error
	// Again has the event come again: nothing but a move has been decided. nil is an event that is decided.
	Again *Again
	// Allocations must be on disk before the answer goes out; their order is that of the Steps.
	Allocations []Delta
	// Journal are the container files that the answer or the updates are going to write.
	Journal []Journaled
	// Over are the cgroups of pods and containers that have ended: nothing of them is left to restore.
	Over []string
	// Files are the cgroups whose desired values have changed, and Ended those that are desired no more. AllFiles is set
	// when all may have changed: Targets has them.
	Files    []cgroup.Target
	Ended    []string
	AllFiles bool
	// Answer is for the container of the event.
	Answer Adjustment
	// Decision is what the log says about it; nil is nothing.
	Decision *Decision
	// Updates are for running containers of which the runtime's own record is another one than Files: it would write that
	// again at its next update of theirs.
	Updates []Update
	// Bring are containers that may lack something; the driver applies Bring to them outside the event's answer.
	Bring []string
	// Look are containers whose memory.max is to be read once the runtime has done its part.
	Look []string
	// Ask are pods of which the pod APIs have to be asked, Forget those that have ended.
	Ask, Forget []pods.Ref
	// HighChanged is set when High returns something else now.
	HighChanged bool
	// DryRun is set when the configuration wants everything computed and nothing done.
	DryRun bool
	// Notes are for the log.
	Notes []Note
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

// deltas collects the allocations that have changed, each pod once and as they are now.
func (l *Ledger) deltas() []Delta {
	if l.manager == nil || len(l.step.durable) == 0 && !l.step.whole {
		return nil
	}
	var pods []string
	for _, p := range l.step.durable {
		if !slices.Contains(pods, p.key()) {
			pods = append(pods, p.key())
		}
	}
	if l.step.whole {
		state := l.manager.State()
		return []Delta{{Pods: pods, State: &state}}
	}
	deltas := make([]Delta, len(pods))
	for i, pod := range pods {
		deltas[i] = Delta{Pods: pods[i : i+1], Nodes: l.manager.Nodes(), Allocations: l.manager.Allocations(pod)}
	}
	return deltas
}

// room is a number that moves whenever the memory manager's answers may have become others. It never has an earlier value again, not
// even when the configuration, the machine or a claim makes another memory manager.
func (l *Ledger) room() uint64 { return l.roomBefore + l.manager.Generation() }

// changed marks the state as another one than the last View shows.
func (l *Ledger) changed() { l.generation++ }

// touch marks a pod as another one than the last View shows.
func (l *Ledger) touch(p *pod) {
	p.view = nil
	l.changed()
	if !p.touched {
		p.touched = true
		l.step.touched = append(l.step.touched, p)
	}
}

// look has the driver read a container's memory.max.
func (l *Ledger) look(c *container) {
	l.step.effects.Look = append(l.step.effects.Look, c.id)
}

// bring has the driver bring a container to what it should have.
func (l *Ledger) bring(c *container) {
	l.step.effects.Bring = append(l.step.effects.Bring, c.id)
}

// highChanged has the driver wake the stall guard.
func (l *Ledger) highChanged() { l.step.effects.HighChanged = true }

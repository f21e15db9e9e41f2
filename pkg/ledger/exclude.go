package ledger

import (
	"fmt"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// exclude has a running container without nodes of its own use all NUMA nodes but these, which are overcommitted; no nodes let
// it use all again. Its memory moves with the write of cpuset.mems; a wider one moves nothing. bytes is what was mapped on nodes that are
// new to it. It returns false where memory may not be moved, or not any more.
func (l *Ledger) exclude(c *container, nodes nodeset.Set, bytes uint64) bool {
	if c.Off.Nodes == nodes || l.state.Resolved.Config.DryRun() || l.allNodes.SubsetOf(nodes) || !l.excludable(c) {
		return false
	}
	l.hasChanged(c.pod)
	fields := with(l.fields(c), "nodes", nodes.String())
	if further := nodes.Minus(c.Off.Nodes); further.Empty() {
		l.note(Info, "a container may use NUMA nodes again that it was kept off", fields, nil)
	} else {
		l.state.Counters.DeficitMoves++
		l.state.Counters.DeficitBytes += bytes
		c.Off.Bytes += bytes
		c.Off.Since = l.step.now
		l.note(Info, "a container's memory is moved off NUMA nodes that lack memory for their allocations",
			with(fields, "bytes", quantity.Log(bytes)), nil)
	}
	if c.Off.Nodes = nodes; c.Off.Nodes.Empty() {
		l.useAllNodes(c)
	}
	c.FoundMems = l.mems(c)
	return true
}

// includeAgain lets containers use the nodes again that have been quiet for long enough.
func (l *Ledger) includeAgain(e *NodeMemorySampled) {
	if len(e.Nodes) == 0 || l.manager == nil || l.state.Resolved.Config.DryRun() || l.state.Resolved.Config.Rebalance.Deficits != config.DeficitsOn {
		l.state.Quiet = nil
		return
	}
	if l.state.Quiet == nil {
		l.state.Quiet = deficit.Quiet{}
	}
	over := l.state.Quiet.Over(l.step.now, e.Nodes, e.Cgroups)
	for i := range e.Cgroups {
		if c := l.at(e.Cgroups[i].Path); c != nil && !c.Off.Nodes.Intersect(over).Empty() {
			l.exclude(c, c.Off.Nodes.Minus(over), 0)
		}
	}
}

// IncludeAll lets all containers use all nodes again. It comes before a dry run, which writes nothing.
type IncludeAll struct{}

func (e IncludeAll) apply(l *Ledger) {
	if l.state.Move != nil && !l.state.Move.Allocates() {
		l.endMove()
	}
	for _, p := range l.living {
		for _, c := range p.containers {
			if c.alive() && !c.Off.Nodes.Empty() {
				l.exclude(c, 0, 0)
			}
		}
	}
}

// useAllNodes ends that a container is kept off nodes.
func (l *Ledger) useAllNodes(c *container) {
	c.Off = Exclusion{}
	c.Released = !l.keepKubeletMems(c)
}

// includeBarred ends that containers are kept off nodes that must not be any more.
func (l *Ledger) includeBarred() {
	for _, p := range l.step.changed {
		for _, c := range p.containers {
			if !c.Off.Nodes.Empty() && c.alive() && !l.excludable(c) {
				l.useAllNodes(c)
			}
		}
	}
}

// excludable reports whether a container may be kept off nodes that are overcommitted, whether it runs or not yet.
func (l *Ledger) excludable(c *container) bool {
	m := candidate{l: l, c: c, Move: Move{Reason: Deficit}}
	_, blocked := m.blocked(excluding)
	return l.manager != nil && l.state.Resolved.Config.Rebalance.Deficits == config.DeficitsOn && !blocked
}

// stays reports whether the pod's annotation wants the container's memory where it is: on any node, near one that it prefers, or
// even over several.
func (c *container) stays() bool {
	return c.wishes().NUMA == config.NUMANone || c.wishes().NUMA == config.NUMAPreferred || c.wishes().NUMA == config.NUMASpread
}

// excludeAgain has a container that is found stay off the nodes that an earlier run has moved its memory off.
func (l *Ledger) excludeAgain(c *container, files Files) {
	nodes, err := nodeset.Parse(c.FoundMems)
	if err == nil && !nodes.Empty() && files.Ours[cgroup.CpusetMems] && l.excludable(c) {
		c.Off.Nodes, c.Off.Since = l.allNodes.Minus(nodes), l.step.now
	}
}

// KeptOff is a container that is kept off NUMA nodes which were overcommitted.
type KeptOff struct {
	// Nodes are those, Mems what its cpuset.mems should be.
	Nodes nodeset.Set `json:"numaNodes"`
	Mems  nodeset.Set `json:"-"`
	// Moved are the bytes that were mapped on the nodes; 0 when that was before this start of the plugin.
	Moved uint64 `json:"moved,omitempty"`
	// Since is the last move, or the start of the plugin.
	Since time.Time `json:"since"`
}

// String is a sentence about the container.
func (k *KeptOff) String() string {
	what := "kept off " + k.Nodes.Named()
	if k.Moved > 0 {
		what = fmt.Sprintf("%s of it were moved off %s", quantity.Short(k.Moved), k.Nodes.Named())
	}
	return fmt.Sprintf("%s at %s UTC, for what is allocated there to pinned containers", what, k.Since.UTC().Format(time.DateTime))
}

// keptOff is what a view shows of it; nil for a container that may use all nodes.
func (l *Ledger) keptOff(c *container) *KeptOff {
	if c.Off.Nodes.Empty() || !c.alive() {
		return nil
	}
	return &KeptOff{Nodes: c.Off.Nodes, Mems: l.allNodes.Minus(c.Off.Nodes), Moved: c.Off.Bytes, Since: c.Off.Since}
}

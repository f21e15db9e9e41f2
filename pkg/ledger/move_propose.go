package ledger

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

const (
	// mostRelief is how many containers are moved to make room for a new one.
	mostRelief = 2
	// mostMeasured is how many containers one look at the groups measures, so that its cost does not grow with the node.
	mostMeasured = 100
	// measuredAtOnce is how many containers are measured before it is decided whether to measure more.
	measuredAtOnce = 10
)

// NodeMemorySampled is what the kernel has shown of the NUMA nodes, and of cgroups.
type NodeMemorySampled struct {
	// Nodes are what is allocated and unused on the NUMA nodes, and available; none when that is not known.
	Nodes []deficit.Node
	// HasCgroups is set where Cgroups are those of View.Holding that are kept off nodes, or may be, with their pages. Complete is set when
	// those that may be are among them, and all have been read.
	HasCgroups bool
	Cgroups    []deficit.Cgroup
	Complete   bool
	// Groups is set at a periodic look: groups of nodes that are not needed are ended.
	Groups bool
	// Usage is of the cgroups that an earlier try of the event has asked for (Effects.Again), and of the move under way.
	Usage map[string]Usage
}

// apply takes one step at most: a container's memory is moved only after that of the last one was seen to have arrived.
func (e NodeMemorySampled) apply(l *Ledger) {
	if l.state.NodeMemory = e.Nodes; l.manager != nil {
		l.manager.Observe(e.Nodes)
	}
	l.observeMove(e.Usage)
	if e.HasCgroups {
		l.includeAgain(&e)
		l.relieveDeficit(&e)
	}
	if e.Groups {
		l.consolidate(&e)
	}
}

// HeedsSample reports whether a sample of the nodes may decide about memory in use, or ends what is said of it.
func (l *Ledger) HeedsSample(nodes []deficit.Node) bool {
	if l.state.Move != nil || len(l.state.Quiet) > 0 || l.keeps(false) {
		return true
	}
	relieves := !l.closed(Deficit)
	sample := deficit.Sample{Nodes: nodes}
	for _, c := range l.containers {
		if relieves && !c.Off.Nodes.Empty() {
			return true
		}
	}
	return relieves && sample.Overcommitted()
}

// HeedsGroups reports whether a look at the groups of nodes may decide about memory in use, or ends what is said of it.
func (l *Ledger) HeedsGroups(now time.Time) bool {
	switch {
	case l.keeps(true):
		return true
	case l.closed(Consolidation):
		return false
	}
	nodes := l.manager.Nodes()
	return slices.ContainsFunc(nodes, memorymanager.NodeState.Grouped) && len(memorymanager.Dissolvable(nodes, l.tenants(Consolidation, now))) > 0
}

// Again is an event about which nothing has been decided: it is to come again, with what it asks for.
type Again struct {
	// Measure are cgroups that the event's Usage lacks.
	Measure []string
	// Moved is set where the move under way has to end first.
	Moved bool
	// Relieved is for CreateContainer.
	Relieved int
}

func (l *Ledger) measure(cgroups []string) {
	l.step.effects.Again = &Again{Measure: cgroups}
}

// kubepods is the cgroup of all pods.
func (l *Ledger) kubepods() string {
	for _, p := range l.living {
		if p.managed {
			return p.path.Kubepods
		}
	}
	return ""
}

// unmeasured are the cgroups among these of which a sample says nothing.
func unmeasured(usage map[string]Usage, cgroups ...string) (missing []string) {
	for _, cgroup := range cgroups {
		if _, known := usage[cgroup]; !known && cgroup != "" {
			missing = append(missing, cgroup)
		}
	}
	return missing
}

// allocation is a move of a container's allocation. Its usage is that of a sample, where it runs.
func (l *Ledger) allocation(reason MoveReason, m memorymanager.Relocation, why string) *candidate {
	c := l.container(m.Pod, m.Container)
	return &candidate{l: l, c: c, Move: Move{
		UID: m.Pod, Container: m.Container, ID: c.ID, Reason: reason, From: m.From, To: m.To, Why: why,
	}}
}

// cgroup is where a candidate's pages are; "" for one that does not run.
func (m *candidate) cgroup() string {
	if !m.c.alive() {
		return ""
	}
	return m.c.Cgroup
}

// settleMoves asks the gates about moves of allocations of which all are to be made, and begins the first. It returns what is not moved,
// and whether the sample lacks something.
func (l *Ledger) settleMoves(moves []*candidate, nodes []deficit.Node, usage map[string]Usage) (kept []NotMoved, begun, lacks bool) {
	var cgroups []string
	for _, m := range moves {
		if at := m.cgroup(); at != "" {
			cgroups = append(cgroups, at)
		}
	}
	if len(cgroups) > 0 {
		cgroups = append(cgroups, l.kubepods())
	}
	if missing := unmeasured(usage, cgroups...); missing != nil {
		l.measure(missing)
		return nil, false, true
	}
	all := usage[l.kubepods()]
	for _, m := range moves {
		if m.cgroup() == "" {
			continue
		}
		used := usage[m.cgroup()]
		m.usage, m.nodes, m.Bytes = &used, nodes, used.Migration(m.To).Bytes
		if n, blocked := m.blocked(sampled); blocked {
			kept = append(kept, n)
		} else if why := all.pressed(); why != "" {
			kept = append(kept, l.notMovedOf(m.Reason, m.c, "pressure", "no memory is moved while all pods wait for it: "+why))
		}
	}
	return kept, len(kept) == 0 && l.begin(moves[0]), false
}

// tenants are the containers and pods with an allocation, with what keeps them where they are.
func (l *Ledger) tenants(reason MoveReason, now time.Time) []memorymanager.Tenant {
	tenants := l.manager.Tenants()
	for i := range tenants {
		t := &tenants[i]
		t.Stays = true
		if c := l.container(t.Pod, t.Container); c != nil {
			m := candidate{l: l, c: c, now: now, Move: Move{Reason: reason}}
			_, t.Stays = m.blocked(standing)
			t.CPUs = c.CPUNodes
		}
	}
	return tenants
}

// container is a pod's container by name; nil where there is none.
func (l *Ledger) container(uid, name string) *container {
	if p := l.pods[uid]; p != nil {
		return p.named(name)
	}
	return nil
}

// consolidate begins the first move of a group of NUMA nodes that is not needed any more, or could be smaller. A group stays where
// one of its containers must not be moved: moving the others would gain nothing.
func (l *Ledger) consolidate(e *NodeMemorySampled) {
	if l.closed(Consolidation) {
		if l.state.Move == nil { // what is said stays while a container is on its way
			l.keepWhereItIs(Admission, nil)
			l.keepWhereItIs(Consolidation, nil)
		}
		return
	}
	l.keepWhereItIs(Admission, nil)
	var kept []NotMoved
	count := 0
	for _, d := range memorymanager.Dissolvable(l.manager.Nodes(), l.tenants(Consolidation, l.step.now)) {
		var moves []*candidate
		for _, m := range d.Moves {
			moves = append(moves, l.allocation(Consolidation, m, "its group of nodes is not needed any more"))
		}
		if count += len(moves); count > mostMeasured {
			break
		}
		stay, begun, lacks := l.settleMoves(moves, e.Nodes, e.Usage)
		if lacks {
			return
		}
		if kept = append(kept, stay...); begun {
			break
		}
	}
	l.keepWhereItIs(Consolidation, kept)
}

// relieve makes room for a new container that was rejected, by moves of others, and reports whether its event is to come again. Where one
// move would do, the rejection says so.
func (l *Ledger) relieve(c *container, wanted memorymanager.Container, err error) bool {
	var rejection *memorymanager.Rejection
	if l.step.creating == nil || !errors.As(err, &rejection) || len(rejection.Nodes) == 0 || l.asWhole(c.pod) {
		return false
	}
	create := l.step.creating
	if l.state.Move != nil && !l.state.Resolved.Config.DryRun() && l.manager.FitsLater(wanted) {
		l.step.effects.Again = &Again{Moved: true, Relieved: create.Relieved}
		return true
	}
	most, perform := 1, create.Relieved < mostRelief && !l.closed(Admission)
	if perform {
		most = mostRelief - create.Relieved
	}
	found, nodes := l.manager.Relief(wanted, l.tenants(Admission, l.step.now), most)
	if len(found) == 0 {
		return false
	}
	if len(found) == 1 {
		l.nameRelief(rejection, c, found[0], nodes)
	}
	if !perform {
		return false
	}
	moves := make([]*candidate, len(found))
	for i, m := range found {
		moves[i] = l.allocation(Admission, m, fmt.Sprintf("to make room for %s/%s %s", c.pod.Namespace, c.pod.Name, c.Name))
	}
	kept, begun, lacks := l.settleMoves(moves, l.manager.Available(), create.Usage)
	if !lacks {
		l.keepWhereItIs(Admission, kept)
	}
	if begun {
		l.step.effects.Again = &Again{Moved: l.state.Move != nil, Relieved: create.Relieved + 1}
	} else if lacks {
		l.step.effects.Again.Relieved = create.Relieved
	}
	return begun || lacks
}

// nameRelief has a rejection name the one move that would have made room.
func (l *Ledger) nameRelief(rejection *memorymanager.Rejection, c *container, m memorymanager.Relocation, nodes nodeset.Set) {
	moved := l.container(m.Pod, m.Container)
	const relief = "it would fit %s if %s were on %s"
	name := fmt.Sprintf("%s/%s %s (%s)", moved.pod.Namespace, moved.pod.Name, moved.Name, quantity.Short(m.Bytes))
	rejection.Relief = fmt.Sprintf(relief, nodes.Named(), name, m.To.Named())
	if moved.pod.Namespace != c.pod.Namespace {
		name = "a container of another namespace"
	}
	rejection.PodRelief = fmt.Sprintf(relief, nodes.Named(), name, m.To.Named())
}

// relieveDeficit begins the move of at most one container off the nodes that are overcommitted.
func (l *Ledger) relieveDeficit(e *NodeMemorySampled) {
	sample := deficit.Sample{Nodes: e.Nodes}
	switch {
	case l.state.Move != nil:
		return
	case l.closed(Deficit), !sample.Overcommitted():
		l.keepWhereItIs(Deficit, nil)
		return
	case !e.Complete:
		return
	}
	if missing := unmeasured(e.Usage, l.kubepods()); missing != nil {
		l.measure(missing)
		return
	}
	all := e.Usage[l.kubepods()]
	if why := all.pressed(); why != "" {
		l.keepWhereItIs(Deficit, []NotMoved{{Reason: Deficit, Gate: "pressure", Why: "no memory is moved while all pods wait for it: " + why}})
		return
	}
	var missing []string
	var kept []NotMoved
	var found *candidate
	for node, step := range deficit.Steps(e.Nodes, e.Cgroups) {
		if step == nil {
			kept = append(kept, NotMoved{Reason: Deficit, Gate: "candidates", Why: fmt.Sprintf(
				"node %d lacks %s for its allocations, and no other container has memory there that may be moved", node.ID, quantity.Short(node.Deficit()))})
			continue
		}
		c := l.at(step.Path)
		if c == nil { // it has ended
			continue
		}
		if len(missing) >= measuredAtOnce {
			break
		}
		used := e.Usage[step.Path]
		m := &candidate{l: l, c: c, nodes: e.Nodes, usage: &used, step: step, Move: Move{
			UID: c.pod.key(), Container: c.Name, ID: c.ID, Reason: Deficit, From: l.allNodes.Minus(c.Off.Nodes), To: l.allNodes.Minus(step.Off), Bytes: step.Bytes,
		}}
		if _, blocked := m.blocked(standing); blocked { // since the sample
			continue
		}
		if more := unmeasured(e.Usage, step.Path); more != nil {
			missing = append(missing, more...)
			continue
		}
		if n, blocked := m.blocked(sampled); blocked {
			kept = append(kept, n)
			continue
		}
		found = m
		break
	}
	if missing != nil {
		l.measure(missing)
		return
	}
	l.keepWhereItIs(Deficit, kept)
	if found != nil {
		l.begin(found)
	}
}

// at is the living container with a cgroup; nil where there is none.
func (l *Ledger) at(cgroup string) *container {
	for _, c := range l.containers {
		if c.Cgroup == cgroup {
			return c
		}
	}
	return nil
}

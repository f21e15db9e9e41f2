package ledger

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Move is a container that is to be allocated on other NUMA nodes while it lives.
type Move struct {
	// UID is its pod's Key.
	UID, Container string
	// Cgroup is where its pages are counted; "" for one that does not run.
	Cgroup   string
	From, To nodeset.Set
	// Why is the rest of a sentence that begins with its move.
	Why string
}

// moveResult is how a move ended, an index of MoveResults.
type moveResult int

const (
	// moveDone: the container's memory is on its new nodes.
	moveDone moveResult = iota
	// moveIncomplete: some of it stays on others.
	moveIncomplete
)

// MoveResults are the results of moves, for metrics.
var MoveResults = [...]string{moveDone: "done", moveIncomplete: "incomplete"}

const (
	// moveTakes is how long a container's memory may take to its new nodes before the next one is moved.
	moveTakes = time.Minute
	// staysBehind is how many bytes may stay on other nodes: the kernel moves no page that is pinned, or that others have mapped.
	staysBehind = 4 << 20
	// mostRelief is how many containers are moved to make room for a new one.
	mostRelief = 2
)

// moving is a container on its way to other nodes. There is one at a time.
type moving struct {
	id  string
	to  nodeset.Set
	why string
	// stored is when its allocation was on disk; zero before. Until then it has the cpuset.mems that it had.
	stored time.Time
}

// moves reports whether containers are moved at all, now.
func (l *Ledger) moves() bool {
	c := l.resolved.Config
	return c.DissolveGroups && !c.DryRun && l.manager != nil && l.manager.Movable() && l.connected.message == "" && l.synchronized.message == ""
}

// stays reports whether a container's memory must not be moved. Huge pages do not move with cpuset.mems, devices are near their own
// nodes, and a resize that is under way or waits for room is decided where the container is.
func (l *Ledger) stays(c *container, now time.Time) bool {
	resizes := len(c.short) > 0 || !c.updating.IsZero() || c.refusal != nil && now.Sub(c.refusal.Last) < grace
	notYet := c.alive() && (!c.ran() || c.cgroup == "")
	huge := slices.ContainsFunc(l.manager.Blocks(c.pod.key(), c.name), func(b memorymanager.Block) bool {
		return b.Type != memorymanager.Memory && b.Size > 0
	})
	return resizes || notYet || huge || !nodesOfDevices(c).Empty() || c.byKubelet || l.unpinnable(c) != ""
}

// tenants are the containers and pods with an allocation, with what keeps them where they are.
func (l *Ledger) tenants(now time.Time) []memorymanager.Tenant {
	tenants := l.manager.Tenants()
	for i := range tenants {
		t := &tenants[i]
		if c := l.container(t.Pod, t.Container); c != nil {
			t.CPUs, t.Stays = c.cpus, l.stays(c, now)
		} else {
			t.Stays = true
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

// GroupMoves are, for each group of NUMA nodes that is not needed any more, the moves that end it, or make it smaller, in their
// order. There are none while a container is on its way.
func (l *Ledger) GroupMoves(now time.Time) (groups [][]Move) {
	if !l.moves() || l.moving != nil {
		return nil
	}
	for _, d := range memorymanager.Dissolvable(l.manager.Nodes(), l.tenants(now)) {
		var moves []Move
		for _, place := range d.Places {
			moves = append(moves, l.move(place.Pod, place.Container, d.Group, place.Nodes, "its group of nodes is not needed any more"))
		}
		groups = append(groups, moves)
	}
	return groups
}

func (l *Ledger) move(uid, name string, from, to nodeset.Set, why string) Move {
	m := Move{UID: uid, Container: name, From: from, To: to, Why: why}
	if c := l.container(uid, name); c != nil && c.alive() {
		m.Cgroup = c.cgroup
	}
	return m
}

// MoveContainer allocates a container on other nodes. Its cpuset.mems follows once that is on disk: see MoveStored. Nothing happens
// where it may not be moved any more, or another one is on its way.
type MoveContainer struct {
	Move Move
	// Bytes are what the kernel has to move for it.
	Bytes uint64
}

func (e MoveContainer) apply(l *Ledger) {
	c := l.container(e.Move.UID, e.Move.Container)
	if c == nil || !l.moves() || l.moving != nil || l.stays(c, l.step.now) || nodesOf(l.manager.Blocks(e.Move.UID, c.name)) != e.Move.From {
		return
	}
	if migration := l.resolved.Config.Migration; e.Bytes > migration.Most() {
		l.hold(c, fmt.Sprintf("not moved there: that is %s of memory, and migration (%s) does not allow it", quantity.Short(e.Bytes), migration))
		return
	}
	if !c.cpus.SubsetOf(e.Move.To) || !l.manager.Move(e.Move.UID, c.name, e.Move.To) {
		return
	}
	c.held, c.movedTo = "", e.Move.To
	c.moved = fmt.Sprintf("moved from %s: %s", e.Move.From.Named(), e.Move.Why)
	l.step.whole = true // the bytes of the others in a group may be on other nodes of it now
	l.persist(c.pod)
	l.touch(c.pod)
	if !c.alive() { // its next start finds its nodes
		c.nodes = e.Move.To
		l.counters.moved(moveDone)
		return
	}
	l.moving = &moving{id: c.id, to: e.Move.To, why: e.Move.Why}
	l.note(Info, "moving the memory of a container to other NUMA nodes", c.moveFields(l.moving, e.Bytes), nil)
}

// hold notes why a container is not moved, once.
func (l *Ledger) hold(c *container, why string) {
	if c.held != why {
		l.note(Warn, "a container is not moved to other NUMA nodes", with(c.fields(), "why", why), nil)
		c.held = why
		l.touch(c.pod)
	}
}

func (c *container) moveFields(m *moving, bytes uint64) map[string]any {
	return with(with(with(c.fields(), "to", m.to.String()), "why", m.why), "bytes", quantity.Log(bytes))
}

// MoveStored is the allocation of the container on its way that is on disk: from now on it has the cpuset.mems of it.
type MoveStored struct{}

func (e MoveStored) apply(l *Ledger) {
	if l.moving == nil || !l.moving.stored.IsZero() {
		return
	}
	l.moving.stored = l.step.now
	if c := l.containers[l.moving.id]; c != nil && l.manager != nil && len(c.short) == 0 {
		c.nodes = nodesOf(l.manager.Blocks(c.pod.key(), c.name))
		l.touch(c.pod)
		l.bring(c)
	}
}

// MoveObserved is the memory that the container on its way has on other nodes than its new ones, in bytes; nil where it could not be
// counted.
type MoveObserved struct{ Elsewhere *uint64 }

func (e MoveObserved) apply(l *Ledger) {
	m := l.moving
	if m == nil || m.stored.IsZero() {
		return
	}
	c := l.containers[m.id]
	switch {
	case c == nil:
	case e.Elsewhere != nil && *e.Elsewhere <= staysBehind:
		l.counters.moved(moveDone)
		l.note(Info, "the memory of a container is on its new NUMA nodes", c.moveFields(m, *e.Elsewhere), nil)
	case l.step.now.Sub(m.stored) < moveTakes:
		return
	default:
		var bytes uint64
		if e.Elsewhere != nil {
			bytes = *e.Elsewhere
		}
		l.counters.moved(moveIncomplete)
		l.note(Warn, "not all memory of a container is on its new NUMA nodes", c.moveFields(m, bytes), nil)
	}
	l.moving = nil
}

// Moving is where the container is whose memory is on its way to nodes, and whether its allocation is on disk; false when there is
// none, and in a dry run, which leaves it where it is.
func (l *Ledger) Moving() (cgroup string, to nodeset.Set, stored, moving bool) {
	if l.moving == nil || l.resolved.Config.DryRun {
		return "", 0, false, false
	}
	if c := l.containers[l.moving.id]; c != nil {
		cgroup = c.cgroup
	}
	return cgroup, l.moving.to, !l.moving.stored.IsZero(), true
}

// relieve finds the moves that make room for a new container that was rejected; none where they are not to be made. Where one would
// do, the rejection says so.
func (l *Ledger) relieve(c *container, wanted memorymanager.Container, err error) []Move {
	var rejection *memorymanager.Rejection
	if !l.step.creating || !errors.As(err, &rejection) || len(rejection.Nodes) == 0 || l.asWhole(c.pod) {
		return nil
	}
	most, perform := 1, l.step.relieves && l.moving == nil && l.moves()
	if perform {
		most = mostRelief
	}
	found, nodes := l.manager.Relief(wanted, l.tenants(l.step.now), most)
	if len(found) == 0 {
		return nil
	}
	if len(found) == 1 {
		m := found[0]
		moved := l.container(m.Pod, m.Container)
		const relief = "it would fit %s if %s were on %s"
		name := fmt.Sprintf("%s/%s %s (%s)", moved.pod.Namespace, moved.pod.Name, moved.name, quantity.Short(m.Bytes))
		rejection.Relief = fmt.Sprintf(relief, nodes.Named(), name, m.To.Named())
		if moved.pod.Namespace != c.pod.Namespace {
			name = "a container of another namespace"
		}
		rejection.PodRelief = fmt.Sprintf(relief, nodes.Named(), name, m.To.Named())
	}
	if !perform {
		return nil
	}
	moves := make([]Move, len(found))
	for i, m := range found {
		moves[i] = l.move(m.Pod, m.Container, m.From, m.To, fmt.Sprintf("to make room for %s/%s %s", c.pod.Namespace, c.pod.Name, c.name))
	}
	return moves
}

// howPinned is how a container got its nodes, and why it is on others since.
func (c *container) howPinned(blocks []memorymanager.Block) string {
	if c.moved == "" || nodesOf(blocks) != c.movedTo {
		return c.pinning
	}
	return strings.TrimPrefix(c.pinning+", "+c.moved, ", ")
}

func (c *Counters) moved(result moveResult) { c.Moves[MoveResults[result]]++ }

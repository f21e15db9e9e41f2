package ledger

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Usage is what the kernel shows of a cgroup.
type Usage struct {
	// Mapped is where it has memory that a write of cpuset.mems can move, and Unread why that is not known.
	cgroup.Mapped
	Unread string
	// Mems is its cpuset.mems; "" where it has none of its own.
	Mems string
	// Gone is set where the cgroup is not there: what has none has no pages.
	Gone bool
	// Pressure is full avg10 of memory.pressure: the share of time, in percent, in which all its tasks waited for memory. It is 0 where
	// the kernel does not say.
	Pressure float64
	// Blocked is set while its cpuset.mems is not written, because that would move too much.
	Blocked bool
}

// allows reports whether a write of cpuset.mems moves no more than so many bytes.
func (u *Usage) allows(to nodeset.Set, most uint64) bool {
	return u.Gone || most == math.MaxUint64 && u.Unread != "" || u.Unread == "" && u.Migration(to).Bytes <= most
}

// elsewhere is what a cgroup has mapped on other nodes than these, in bytes.
func (u *Usage) elsewhere(nodes nodeset.Set) (bytes uint64) {
	for node, on := range u.Bytes {
		if !nodes.Has(node) {
			bytes += on
		}
	}
	return bytes
}

// received is what each of the new nodes gets where a cgroup may use others instead.
func (u *Usage) received(to nodeset.Set) []deficit.Amount {
	return deficit.Received(u.Nodes, to, func(node int) uint64 { return u.Bytes[node] })
}

// NotMoved is memory that stays where it is although there is a reason to move it.
type NotMoved struct {
	Reason MoveReason
	// Gate is the name of what keeps it there.
	Gate string
	// UID, Namespace, Pod, Container and its Cgroup are empty where that is nothing of a single container.
	UID, Namespace, Pod, Container, Cgroup string
	Why                                    string
}

// candidate is a move that is proposed.
type candidate struct {
	Move
	l   *Ledger
	c   *container
	now time.Time
	// usage is the container's; nil for one that does not run.
	usage *Usage
	// nodes are those of the sample; nil when they are not known.
	nodes []deficit.Node
	// step is what takes it off overcommitted nodes; nil for other reasons.
	step *deficit.Step
}

// mostPressure is the share of time, in percent, in which all tasks of a cgroup wait for memory and beyond which no memory of it is
// moved: moving takes memory and time from tasks that lack both.
const mostPressure = 10

// gate keeps memory where it is.
type gate struct {
	name string
	// asked are the reasons of which it is asked.
	asked []MoveReason
	// why says why the memory stays, "" where it may be moved.
	why func(m *candidate) string
}

var (
	allocating = []MoveReason{Admission, Consolidation, Resumption}
	anyReason  = []MoveReason{Admission, Deficit, Consolidation}
)

// standing are the gates that need no sample. The searches for moves go by them: what they name is an obstacle, and nothing is said of it.
var standing = []gate{
	{"not running", allocating, func(m *candidate) string {
		c := m.c
		return when(c.alive() && (!c.ran() || c.Cgroup == ""), "it does not run yet")
	}},
	{"resize", allocating, func(m *candidate) string {
		c := m.c // a resize that is under way or waits for room is decided where the container is
		return when(len(c.PendingResize) > 0 || c.Pending != nil || c.Refusal != nil && m.now.Sub(c.Refusal.Last) < moveAfterRefusal, "it is being resized")
	}},
	{"huge pages", allocating, func(m *candidate) string {
		return when(slices.ContainsFunc(m.l.manager.Blocks(m.c.pod.key(), m.c.Name), func(b memorymanager.Block) bool {
			return b.Type != memorymanager.Memory && b.Size > 0
		}), "huge pages do not move with cpuset.mems")
	}},
	{"devices", allocating, func(m *candidate) string { return when(!nodesOfDevices(m.c).Empty(), "its devices are near its nodes") }},
	{"kubelet", allocating, func(m *candidate) string { return when(m.c.ByKubelet, "the kubelet has set its nodes") }},
	{"kind", allocating, func(m *candidate) string { return m.l.unpinnable(m.c) }},
	{"not running", []MoveReason{Deficit}, func(m *candidate) string { return when(m.c.Phase != Running || m.c.Cgroup == "", "it does not run") }},
	excluding[0], excluding[1], excluding[2],
}

// excluding are those of them that end that a container is kept off nodes, too.
var excluding = []gate{
	{"own nodes", []MoveReason{Deficit}, func(m *candidate) string {
		return when(!m.c.Nodes.Empty() || m.c.Resources.Mems != "" || m.c.byClaims(), "it has nodes of its own")
	}},
	{"QoS class", []MoveReason{Deficit}, func(m *candidate) string {
		class := m.c.pod.class()
		return when(class != memoryqos.BestEffort && class != memoryqos.Burstable, "it is neither BestEffort nor Burstable")
	}},
	{"annotation", []MoveReason{Deficit}, func(m *candidate) string { return when(m.c.stays(), "its pod's annotation numa wants it there") }},
}

// moveAfterRefusal is how long a container stays where it is after a refused resize, which the kubelet tries again.
const moveAfterRefusal = time.Minute

// sampled are the gates that go by a sample. Each text is why a container is not moved, and the first one counts.
var sampled = []gate{
	{"other nodes", []MoveReason{Deficit}, func(m *candidate) string { return when(m.To.Empty(), "it could use no other NUMA node") }},
	{"unread", allocating, func(m *candidate) string {
		return when(m.usage.Unread != "", "its memory cannot be counted: "+m.usage.Unread)
	}},
	{"migration", []MoveReason{Deficit}, func(m *candidate) string {
		return when(max(m.Bytes, m.usage.Migration(m.To).Bytes) > m.l.state.Resolved.MostMoved(), fmt.Sprintf("it has %s there, more than rebalance.maxBytes (%s)", quantity.Short(m.Bytes),
			m.l.state.Resolved.Config.Rebalance.MaxBytes))
	}},
	{"migration", allocating, func(m *candidate) string {
		return when(m.Bytes > m.l.state.Resolved.MostMoved(), fmt.Sprintf("not moved there: that is %s of memory, more than rebalance.maxBytes (%s)",
			quantity.Short(m.Bytes), m.l.state.Resolved.Config.Rebalance.MaxBytes))
	}},
	{"room", []MoveReason{Deficit}, func(m *candidate) string {
		received, over := m.step.Overfills(m.nodes)
		return when(over, fmt.Sprintf("its %s would go to node %d, which has no room for them beside its allocations", quantity.Short(received.Bytes), received.Node))
	}},
	{"room", allocating, func(m *candidate) string {
		for _, received := range m.usage.received(m.To) {
			for _, n := range m.nodes {
				if n.ID == received.Node && received.Bytes > n.Slack() {
					return fmt.Sprintf("not moved there: its %s would go to node %d, which has no room for them beside its allocations",
						quantity.Short(received.Bytes), received.Node)
				}
			}
		}
		return ""
	}},
	{"unread", []MoveReason{Deficit}, func(m *candidate) string { return m.usage.Unread }},
	{"other writer", []MoveReason{Deficit}, func(m *candidate) string {
		return when(!m.l.allNodes.Minus(m.c.Off.Nodes).SubsetOf(m.usage.Nodes), fmt.Sprintf("it has nodes of its own: its cpuset.mems.effective is %q", m.usage.Nodes))
	}},
	{"pressure", anyReason, func(m *candidate) string { return m.usage.pressed() }},
}

func when(holds bool, why string) string {
	if holds {
		return why
	}
	return ""
}

// pressed says that a cgroup waits for memory too much; "" where it does not.
func (u *Usage) pressed() string {
	return when(u.Pressure > mostPressure, fmt.Sprintf("full avg10 of its memory.pressure is %.1f, more than %d", u.Pressure, mostPressure))
}

// blocked is the first of the gates that keeps a candidate where it is.
func (m *candidate) blocked(gates []gate) (NotMoved, bool) {
	for _, g := range gates {
		if !slices.Contains(g.asked, m.Reason) {
			continue
		}
		if why := g.why(m); why != "" {
			return m.l.notMovedOf(m.Reason, m.c, g.name, why), true
		}
	}
	return NotMoved{}, false
}

func (l *Ledger) notMovedOf(reason MoveReason, c *container, gate, why string) NotMoved {
	return NotMoved{Reason: reason, Gate: gate, UID: c.pod.key(), Namespace: c.pod.Namespace, Pod: c.pod.Name, Container: c.Name, Cgroup: c.Cgroup, Why: why}
}

// closed reports whether nothing at all is moved now for a reason.
func (l *Ledger) closed(reason MoveReason) bool {
	c := l.state.Resolved.Config
	if c.DryRun() || l.manager == nil || l.state.Move != nil {
		return true
	}
	if reasons[reason].allocates { // an allocation is on disk before its container moves
		return !c.Rebalance.Consolidate || l.state.MemoryOnly || !l.manager.Movable() || l.state.Connected.Message != "" || l.state.Synchronized.Message != ""
	}
	return c.Rebalance.Deficits != config.DeficitsOn
}

// keepWhereItIs has these be all that is not moved for a reason. What is new of moves of allocations is logged.
func (l *Ledger) keepWhereItIs(reason MoveReason, list []NotMoved) {
	var rest, before []NotMoved
	for _, n := range l.state.NotMoved {
		if n.Reason == reason {
			before = append(before, n)
		} else {
			rest = append(rest, n)
		}
	}
	if slices.Equal(before, list) {
		return
	}
	for _, n := range list {
		c := l.container(n.UID, n.Container)
		known := slices.ContainsFunc(before, func(b NotMoved) bool {
			return b.UID == n.UID && b.Container == n.Container && b.Gate == n.Gate
		})
		if reasons[reason].allocates && c != nil && !known {
			l.note(Warn, "a container is not moved to other NUMA nodes", with(l.fields(c), "why", n.Why), nil)
		}
	}
	l.state.NotMoved = append(rest, list...)
}

// keeps reports whether something is not moved, of moves of allocations or of others.
func (l *Ledger) keeps(allocations bool) bool {
	return slices.ContainsFunc(l.state.NotMoved, func(n NotMoved) bool { return reasons[n.Reason].allocates == allocations })
}

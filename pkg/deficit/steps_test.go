package deficit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

func TestNext(t *testing.T) {
	lacking := []Node{{ID: 0, Unused: 2 * gi, Free: gi}, {ID: 1, Unused: gi, Free: 6 * gi}}
	pod := func(path string, order Order, mapped ...uint64) Cgroup {
		c := Cgroup{Path: path, Order: order}
		for node, bytes := range mapped {
			c.Pages = append(c.Pages, Pages{Node: node, Resident: bytes, Anon: bytes, Mapped: bytes})
		}
		return c
	}
	off := func(c Cgroup, nodes ...int) Cgroup { c.Off = nodeset.Of(nodes...); return c }
	for name, test := range map[string]struct {
		nodes   []Node
		cgroups []Cgroup
		want    *Step
		passed  []notMoved
	}{
		"no deficit": {[]Node{{ID: 0, Unused: gi, Free: gi}, {ID: 1, Free: gi}}, []Cgroup{pod("a", BestEffortFirst, gi)}, nil, nil},
		"the smallest that relieves it": {lacking, []Cgroup{pod("a", BurstableNext, 3*gi), pod("b", BurstableNext, 2*gi), pod("c", BurstableNext, gi/2)},
			&Step{"b", nodeset.Of(0), 2 * gi, []Amount{{1, 2 * gi}}}, nil},
		"one that relieves it to the byte": {lacking, []Cgroup{pod("a", BurstableNext, 2*gi), pod("b", BurstableNext, gi)},
			&Step{"b", nodeset.Of(0), gi, []Amount{{1, gi}}}, nil},
		"the least that is moved": {lacking, []Cgroup{pod("a", BurstableNext, mi)}, &Step{"a", nodeset.Of(0), mi, []Amount{{1, mi}}}, nil},
		"room beyond the least deficit, to the byte": {[]Node{{ID: 0, Unused: gi}, {ID: 1, Free: gi + leastDeficit}}, []Cgroup{pod("a", BestEffortFirst, gi)},
			&Step{"a", nodeset.Of(0), gi, []Amount{{1, gi}}}, nil},
		"a byte less room": {[]Node{{ID: 0, Unused: gi}, {ID: 1, Free: gi + leastDeficit - 1}}, []Cgroup{pod("a", BestEffortFirst, gi)}, nil,
			[]notMoved{{"a", "node 1 has no room for 1073741824"}}},
		"else the largest": {lacking, []Cgroup{pod("a", BurstableNext, gi/4), pod("b", BurstableNext, gi/2)}, &Step{"b", nodeset.Of(0), gi / 2, []Amount{{1, gi / 2}}}, nil},
		"BestEffort first": {lacking, []Cgroup{pod("a", BurstableNext, gi), pod("b", BestEffortFirst, gi/2)}, &Step{"b", nodeset.Of(0), gi / 2, []Amount{{1, gi / 2}}}, nil},
		"more than the bound": {lacking, []Cgroup{pod("a", BestEffortFirst, 5*gi), pod("b", BurstableNext, gi)}, &Step{"b", nodeset.Of(0), gi, []Amount{{1, gi}}},
			[]notMoved{{"a", "too much"}}},
		"no room": {[]Node{{ID: 0, Unused: gi}, {ID: 1, Unused: gi, Free: 2 * gi}}, []Cgroup{pod("a", BestEffortFirst, gi), pod("b", BestEffortFirst, gi/2)},
			&Step{"b", nodeset.Of(0), gi / 2, []Amount{{1, gi / 2}}}, []notMoved{{"a", "node 1 has no room for 1073741824"}}},
		"page cache is no room": {[]Node{{ID: 0, Unused: gi}, {ID: 1, Reclaimable: 8 * gi}}, []Cgroup{pod("a", BestEffortFirst, gi)}, nil,
			[]notMoved{{"a", "node 1 has no room for 1073741824"}}},
		"a hindered one": {lacking, []Cgroup{pod("hindered", BestEffortFirst, gi), pod("b", BurstableNext, gi)}, &Step{"b", nodeset.Of(0), gi, []Amount{{1, gi}}},
			[]notMoved{{"hindered", "no"}}},
		"what stays, has little, or has an allocation": {lacking, []Cgroup{pod("a", Stays, gi), pod("b", BestEffortFirst, mi/2),
			{Path: "c", Order: BestEffortFirst, Allocated: []Amount{{0, gi}}, Pages: []Pages{{Node: 0, Anon: gi}}}}, nil,
			[]notMoved{{"", "node 0 without a candidate"}}},
		"kept off already": {lacking, []Cgroup{off(pod("a", BestEffortFirst, gi), 0)}, nil,
			[]notMoved{{"", "node 0 without a candidate"}}},
		"never to a node that it is kept off": {[]Node{{ID: 0, Free: 8 * gi}, {ID: 1, Unused: gi}}, []Cgroup{off(pod("a", BestEffortFirst, 0, gi), 0)}, nil,
			[]notMoved{{"a", "no other node"}}},
		"both nodes": {[]Node{{ID: 0, Unused: gi}, {ID: 1, Unused: gi}}, []Cgroup{pod("a", BestEffortFirst, gi, gi)}, nil,
			[]notMoved{{"a", "no other node"}}},
		"two of four": {[]Node{{ID: 0, Unused: gi}, {ID: 1, Unused: gi}, {ID: 2, Free: 8 * gi}, {ID: 3, Free: gi}},
			[]Cgroup{pod("a", BestEffortFirst, gi/4, gi, 2*gi), pod("b", BestEffortFirst, gi/2, gi/2)}, &Step{"b", nodeset.Of(0, 1), gi, []Amount{{2, gi / 2}, {3, gi / 2}}}, nil},
		"off one more": {[]Node{{ID: 0, Free: 8 * gi}, {ID: 1, Unused: gi}, {ID: 2, Free: 8 * gi}}, []Cgroup{off(pod("a", BestEffortFirst, 0, gi), 0)},
			&Step{"a", nodeset.Of(0, 1), gi, []Amount{{2, gi}}}, nil},
		"nothing is known": {nil, []Cgroup{pod("a", BestEffortFirst, gi)}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			step, passed := next(test.nodes, test.cgroups, func(step *Step) string {
				if step.Path == "hindered" {
					return "no"
				}
				return refused(test.nodes, step, 4*gi)
			})
			if difference := cmp.Diff(test.want, step) + cmp.Diff(test.passed, passed); difference != "" {
				t.Error(difference)
			}
		})
	}
}

// notMoved is a cgroup that is passed over, or a node without one.
type notMoved struct{ Path, Why string }

// next is the first step that nothing keeps from being made, with what was passed over before it.
func next(nodes []Node, cgroups []Cgroup, why func(*Step) string) (found *Step, passed []notMoved) {
	for node, step := range Steps(nodes, cgroups) {
		if step == nil {
			passed = append(passed, notMoved{Why: fmt.Sprintf("node %d without a candidate", node.ID)})
		} else if why := why(step); why != "" {
			passed = append(passed, notMoved{step.Path, why})
		} else {
			return step, passed
		}
	}
	return nil, passed
}

// refused is why a step is not made that moves at most so many bytes and overfills no node.
func refused(nodes []Node, step *Step, upTo uint64) string {
	all := nodeset.Set(0)
	for _, n := range nodes {
		all = all.Union(nodeset.Of(n.ID))
	}
	overfilled, over := step.Overfills(nodes)
	switch {
	case all.SubsetOf(step.Off):
		return "no other node"
	case step.Bytes > upTo:
		return "too much"
	case over:
		return fmt.Sprintf("node %d has no room for %d", overfilled.Node, overfilled.Bytes)
	}
	return ""
}

func TestQuiet(t *testing.T) {
	begin := time.Unix(1000, 0)
	c := Cgroup{Off: nodeset.Of(0), Moved: gi, Pages: []Pages{{Node: 1, Mapped: 2 * gi}}}
	for name, test := range map[string]struct {
		cgroup Cgroup
		free   []uint64 // of node 0, a minute after the other
		want   []bool
	}{
		"room for all of it": {c, []uint64{2 * gi, 2 * gi, 2 * gi, 2 * gi, 2 * gi, 2 * gi}, []bool{false, false, false, false, false, true}},
		"a moment without": {c, []uint64{2 * gi, 2 * gi, gi, 2 * gi, 2 * gi, 2 * gi, 2 * gi, 2 * gi, 2 * gi},
			[]bool{false, false, false, false, false, false, false, false, true}},
		"no margin": {c, []uint64{gi, gi, gi, gi, gi, gi, gi}, make([]bool, 7)},
		"it has given most of it back": {Cgroup{Off: nodeset.Of(0), Moved: gi, Pages: []Pages{{Node: 1, Mapped: mi}}},
			[]uint64{gi / 2, gi / 2, gi / 2, gi / 2, gi / 2, gi / 2}, []bool{false, false, false, false, false, true}},
		"moved before the start": {Cgroup{Off: nodeset.Of(0), Pages: []Pages{{Node: 1, Mapped: 3 * gi}}}, []uint64{2 * gi, 2 * gi, 2 * gi, 2 * gi, 2 * gi, 2 * gi}, make([]bool, 6)},
		"kept off nothing":       {Cgroup{}, []uint64{gi, gi, gi, gi, gi, gi, gi}, make([]bool, 7)},
	} {
		t.Run(name, func(t *testing.T) {
			quiet := Quiet{}
			for i, free := range test.free {
				over := quiet.Over(begin.Add(time.Duration(i)*time.Minute), []Node{{ID: 0, Free: free}, {ID: 1}}, []Cgroup{test.cgroup})
				if over.Has(0) != test.want[i] || over.Has(1) {
					t.Errorf("minute %d: quiet nodes are %q", i, over)
				}
			}
		})
	}
}

// TestStepsEnd: on random machines steps end, whatever order deficits have and whoever is left alone for a while. No step
// takes what is unused on another node. Once a node is quiet and all of the memory is back on it, no node is overcommitted again: a cgroup
// leaves a node at most once.
func TestStepsEnd(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 11))
	steps, returned := 0, 0
	for range machines {
		m := randomMachine(random)
		now, quiet, left := time.Unix(0, 0), Quiet{}, map[[2]any]bool{}
		for range 2 { // times of need, and quiet ones
			for rounds := 0; ; rounds++ {
				if rounds > 1000 {
					t.Fatalf("no end: %+v", m)
				}
				hindered := false
				step, _ := next(m.nodes, m.cgroups, func(step *Step) string {
					if why := refused(m.nodes, step, gi); why != "" {
						return why
					}
					if random.IntN(3) == 0 {
						hindered = true
						return "not now"
					}
					return ""
				})
				if step == nil && hindered {
					continue
				}
				if step == nil {
					break
				}
				m.leave(t, step, left)
				steps++
			}
			for i := range m.nodes {
				m.nodes[i].Free += random.Uint64N(2 * gi)
			}
			quiet.Over(now, m.nodes, m.cgroups)
			now = now.Add(QuietTime)
			over := quiet.Over(now, m.nodes, m.cgroups)
			returned += over.Len()
			m.comeBack(t, over)
		}
	}
	if steps < machines/10 || returned < machines/10 {
		t.Errorf("%d steps and %d returns say little", steps, returned)
	}
}

// leave makes a step as the kernel does.
func (m *overcommittedMachine) leave(t *testing.T, step *Step, left map[[2]any]bool) {
	t.Helper()
	c := &m.cgroups[step.Path[0]-'a']
	before, bytes := append([]Node{}, m.nodes...), uint64(0)
	all := nodeset.Of()
	for i := range m.nodes {
		all = all.Union(nodeset.Of(i))
	}
	for id := range step.Off.Minus(c.Off).All() {
		if left[[2]any{c.Path, id}] {
			t.Fatalf("%+v leaves node %d once more: %+v", step, id, m)
		}
		left[[2]any{c.Path, id}] = true
		to := all.Minus(c.Off).Remap(id, all.Minus(step.Off))
		moved := c.Pages[id].Anon
		if m.nodes[to].Free < moved {
			t.Fatalf("%+v: node %d has no room: %+v", step, to, m)
		}
		m.nodes[id].Free += moved
		m.nodes[to].Free -= moved
		c.Pages[to] = Pages{to, c.Pages[to].Resident + moved, 0, c.Pages[to].Anon + moved, c.Pages[to].Mapped + moved}
		c.Pages[id], bytes = Pages{Node: id}, bytes+moved
	}
	if c.Order == Stays || bytes != step.Bytes || bytes > gi || step.Off == c.Off {
		t.Fatalf("%+v moves %d: %+v", step, bytes, m)
	}
	c.Off, c.Moved = step.Off, c.Moved+bytes
	for i := range m.nodes {
		if m.nodes[i].Deficit() > before[i].Deficit() {
			t.Fatalf("%+v takes what is unused on node %d: %+v", step, i, m)
		}
	}
}

// comeBack lets cgroups use quiet nodes again, and has all that was moved come back to one of them.
func (m *overcommittedMachine) comeBack(t *testing.T, over nodeset.Set) {
	t.Helper()
	for i := range m.cgroups {
		c := &m.cgroups[i]
		back := c.Off.Intersect(over)
		if c.Off = c.Off.Minus(over); back.Empty() {
			continue
		}
		id := back.First()
		for from := range c.Pages {
			bytes := min(c.Moved, c.Pages[from].Anon)
			if from == id {
				continue
			}
			m.nodes[from].Free += bytes
			m.nodes[id].Free -= min(bytes, m.nodes[id].Free)
			c.Pages[from] = Pages{from, c.Pages[from].Resident - bytes, 0, c.Pages[from].Anon - bytes, c.Pages[from].Mapped - bytes}
			c.Pages[id] = Pages{id, c.Pages[id].Resident + bytes, 0, c.Pages[id].Anon + bytes, c.Pages[id].Mapped + bytes}
			c.Moved -= bytes
		}
	}
	for i := range m.nodes {
		if over.Has(i) && m.nodes[i].overcommitted() {
			t.Fatalf("node %d is overcommitted again: %+v", i, m)
		}
	}
}

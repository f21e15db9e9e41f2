package deficit

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	mi = 1 << 20
	// machines is how many random machines a property is tried on.
	machines = 100_000
)

func TestPlan(t *testing.T) {
	lacking := []Node{{ID: 0, Unused: 2 * gi, Free: gi}, {ID: 1, Unused: gi, Free: 4 * gi}}
	pod := func(path string, order Order, anon uint64) Cgroup {
		return Cgroup{Path: path, Order: order, Pages: []Pages{{Node: 0, Resident: anon, Anon: anon}}}
	}
	for name, test := range map[string]struct {
		nodes   []Node
		cgroups []Cgroup
		want    []Move
	}{
		"no deficit":              {[]Node{{ID: 0, Unused: gi, Free: gi}, {ID: 1, Free: gi}}, []Cgroup{pod("a", BestEffortFirst, gi)}, nil},
		"a deficit of few pages":  {[]Node{{ID: 0, Unused: gi + mi, Free: gi}, {ID: 1, Free: gi}}, []Cgroup{pod("a", BestEffortFirst, gi)}, nil},
		"no more than is lacking": {lacking, []Cgroup{pod("a", BestEffortFirst, 8*gi)}, []Move{{"a", 0, 1, gi}}},
		"BestEffort first":        {lacking, []Cgroup{pod("a", BurstableNext, 8*gi), pod("b", BestEffortFirst, gi/2)}, []Move{{"b", 0, 1, gi / 2}, {"a", 0, 1, gi / 2}}},
		"the largest first":       {lacking, []Cgroup{pod("a", BurstableNext, gi/2), pod("b", BurstableNext, 2*gi)}, []Move{{"b", 0, 1, gi}}},
		"what stays":              {lacking, []Cgroup{pod("a", Stays, 8*gi)}, nil},
		"what has an allocation":  {lacking, []Cgroup{{Path: "a", Order: BestEffortFirst, Allocated: []Amount{{0, gi}}, Pages: []Pages{{Node: 0, Anon: gi}}}}, nil},
		"no more than there is room for": {
			[]Node{{ID: 0, Unused: 2 * gi}, {ID: 1, Unused: gi, Free: gi + gi/2}}, []Cgroup{pod("a", BestEffortFirst, 8*gi)}, []Move{{"a", 0, 1, gi / 2}}},
		"no room that must be reclaimed first": {
			[]Node{{ID: 0, Unused: gi}, {ID: 1, Free: gi / 4, Reclaimable: 8 * gi}}, []Cgroup{pod("a", BestEffortFirst, gi)}, []Move{{"a", 0, 1, gi / 4}}},
		"to several nodes": {
			[]Node{{ID: 0, Unused: gi}, {ID: 1, Free: gi / 4}, {ID: 2, Free: gi / 2}}, []Cgroup{pod("a", BestEffortFirst, gi)},
			[]Move{{"a", 0, 2, gi / 2}, {"a", 0, 1, gi / 4}}},
		"the least that is moved":          {lacking, []Cgroup{pod("a", BestEffortFirst, mi)}, []Move{{"a", 0, 1, mi}}},
		"less than that":                   {lacking, []Cgroup{pod("a", BestEffortFirst, mi-1)}, nil},
		"room for the least that is moved": {[]Node{{ID: 0, Unused: gi}, {ID: 1, Free: mi}}, []Cgroup{pod("a", BestEffortFirst, gi)}, []Move{{"a", 0, 1, mi}}},
		"the lowest node of the same room": {[]Node{{ID: 0, Unused: gi}, {ID: 1, Free: 2 * gi}, {ID: 2, Free: 2 * gi}}, []Cgroup{pod("a", BestEffortFirst, gi)}, []Move{{"a", 0, 1, gi}}},
		"nothing is known":                 {nil, []Cgroup{pod("a", BestEffortFirst, gi)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if difference := cmp.Diff(test.want, Plan(test.nodes, test.cgroups)); difference != "" {
				t.Error(difference)
			}
		})
	}
}

// TestPlansEnd: on random machines, carrying out plan after plan in bounded steps ends, no step lowers what is available to any
// node below what is unused there or enlarges a deficit, and no cgroup is ever moved back to where it came from: two pods that pull
// at the same node never exchange places.
func TestPlansEnd(t *testing.T) {
	random := rand.New(rand.NewPCG(17, 5))
	for range machines {
		m := randomMachine(random)
		left := map[[2]any]bool{} // cgroup and node that memory was moved off
		for rounds := 0; ; rounds++ {
			moves := Plan(m.nodes, m.cgroups)
			if len(moves) == 0 {
				break
			}
			if rounds > 2000 {
				t.Fatalf("no end: %+v", m)
			}
			for _, move := range moves[:1+random.IntN(len(moves))] { // interrupted anywhere, then planned again
				move.Bytes = min(move.Bytes, 256*mi)
				if left[[2]any{move.Path, move.To}] {
					t.Fatalf("%+v moves back: %+v", move, m)
				}
				left[[2]any{move.Path, move.From}] = true
				m.apply(t, move)
			}
		}
	}
}

// overcommittedMachine is a machine as a test carries plans out on it.
type overcommittedMachine struct {
	nodes   []Node
	cgroups []Cgroup
}

func randomMachine(random *rand.Rand) *overcommittedMachine {
	some := func(most uint64) uint64 {
		if random.IntN(3) == 0 {
			return 0
		}
		return random.Uint64N(most)
	}
	m := &overcommittedMachine{}
	for id := range 1 + random.IntN(8) {
		m.nodes = append(m.nodes, Node{ID: id, Unused: some(4 * gi), Free: some(2 * gi), Reclaimable: some(gi)})
	}
	for i := range random.IntN(12) {
		c := Cgroup{Path: string(rune('a' + i)), Order: Order(random.IntN(3))}
		for id := range m.nodes {
			anon := some(2 * gi)
			c.Pages = append(c.Pages, Pages{Node: id, Resident: anon, Anon: anon, Mapped: anon})
		}
		m.cgroups = append(m.cgroups, c)
	}
	return m
}

func (m *overcommittedMachine) apply(t *testing.T, move Move) {
	t.Helper()
	from, to := &m.nodes[move.From], &m.nodes[move.To]
	relieved := to.Deficit() == 0
	c := &m.cgroups[move.Path[0]-'a']
	if c.Order == Stays || c.Pages[move.From].Anon < move.Bytes || to.Free < move.Bytes || move.Bytes == 0 || move.From == move.To {
		t.Fatalf("%+v cannot be made: %+v", move, m)
	}
	c.Pages[move.From].Anon -= move.Bytes
	c.Pages[move.To].Anon += move.Bytes
	from.Free += move.Bytes
	to.Free -= move.Bytes
	if !relieved || to.Deficit() > 0 {
		t.Fatalf("%+v takes what is unused on a node: %+v", move, m)
	}
}

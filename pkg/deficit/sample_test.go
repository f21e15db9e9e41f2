package deficit

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const gi = 1 << 30

func TestUnused(t *testing.T) {
	for name, test := range map[string]struct {
		cgroup Cgroup
		want   []Amount
	}{
		"no allocation": {Cgroup{Pages: []Pages{{Node: 0, Resident: gi, File: 0}}}, nil},
		"not started":   {Cgroup{Allocated: []Amount{{0, 4 * gi}}}, []Amount{{0, 4 * gi}}},
		"half used":     {Cgroup{Allocated: []Amount{{0, 4 * gi}}, Pages: []Pages{{Node: 0, Resident: 2 * gi, File: gi}}}, []Amount{{0, 2 * gi}}},
		"all used":      {Cgroup{Allocated: []Amount{{0, 4 * gi}}, Pages: []Pages{{Node: 0, Resident: 4 * gi, File: 0}}}, nil},
		"elsewhere":     {Cgroup{Allocated: []Amount{{0, 4 * gi}}, Pages: []Pages{{Node: 1, Resident: 4 * gi, File: 0}}}, []Amount{{0, 4 * gi}}},
		"a group that uses the other node first": {
			Cgroup{Allocated: []Amount{{0, 10 * gi}, {1, 5 * gi}}, Pages: []Pages{{Node: 1, Resident: 10 * gi, File: 0}}}, []Amount{{0, 5 * gi}}},
		"a group in use, unevenly": {
			Cgroup{Allocated: []Amount{{0, 10 * gi}, {1, 5 * gi}}, Pages: []Pages{{Node: 0, Resident: 5 * gi, File: 0}, {Node: 1, Resident: 10 * gi, File: 0}}}, nil},
		"what one node has more is not unused on the others": {
			Cgroup{Allocated: []Amount{{0, 4 * gi}, {1, 4 * gi}, {2, 4 * gi}}, Pages: []Pages{{Node: 2, Resident: 8 * gi, File: 0}}}, []Amount{{0, 2 * gi}, {1, 2 * gi}}},
	} {
		t.Run(name, func(t *testing.T) {
			if difference := cmp.Diff(test.want, test.cgroup.unused()); difference != "" {
				t.Error(difference)
			}
		})
	}
}

func TestStands(t *testing.T) {
	memory := []MemInfo{{0, 4 * gi, 4 * gi}, {1, gi, 0}}
	sample := NewSample(time.Time{}, memory, []Cgroup{{Path: "a", Allocated: []Amount{{0, 2 * gi}}}, {Path: "b", Allocated: []Amount{{1, 2 * gi}}}})
	for name, test := range map[string]struct {
		sample *Sample
		later  []MemInfo
		want   bool
	}{
		"nothing changed":             {sample, memory, true},
		"memory became a file's":      {sample, []MemInfo{{0, 0, 8 * gi}, {1, gi, 0}}, true},
		"half of the slack is taken":  {sample, []MemInfo{{0, gi, 4 * gi}, {1, gi, 0}}, true},
		"more is taken":               {sample, []MemInfo{{0, gi - 1, 4 * gi}, {1, gi, 0}}, false},
		"there is more":               {sample, []MemInfo{{0, 8 * gi, 4 * gi}, {1, 2 * gi, 0}}, true},
		"a page of one without slack": {sample, []MemInfo{{0, 4 * gi, 4 * gi}, {1, gi - 4096, 0}}, false},
		"a node is gone":              {sample, memory[:1], false},
		"nothing is known":            {&Sample{Unknown: "no kernel"}, memory, false},
		"nothing was taken":           {nil, memory, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := test.sample.Stands(test.later); got != test.want {
				t.Errorf("stands: %v", got)
			}
		})
	}
}

func TestTake(t *testing.T) {
	memory := []MemInfo{{1, 2 * gi, 6 * gi}, {0, gi, 4 * gi}}
	for name, test := range map[string]struct {
		cgroups []Cgroup
		want    []NodeMemory
	}{
		"nothing allocated": {nil, []NodeMemory{{ID: 0, Unused: 0, Free: gi, Reclaimable: 4 * gi}, {ID: 1, Unused: 0, Free: 2 * gi, Reclaimable: 6 * gi}}},
		"the file pages of an allocation are not available": {
			[]Cgroup{{Path: "a", Allocated: []Amount{{0, 4 * gi}}, Pages: []Pages{{Node: 0, Resident: 3 * gi, File: 2 * gi}}}},
			[]NodeMemory{{ID: 0, Unused: gi, Free: gi, Reclaimable: 2 * gi}, {ID: 1, Unused: 0, Free: 2 * gi, Reclaimable: 6 * gi}}},
		"nor do those within a protection": {
			[]Cgroup{{Path: "a", Protected: 3 * gi, Pages: []Pages{{Node: 0, Resident: 2 * gi, File: 2 * gi}, {Node: 1, Resident: 2 * gi, File: 2 * gi}}}}, // 1 Gi of 4 can go
			[]NodeMemory{{ID: 0, Unused: 0, Free: gi, Reclaimable: 2*gi + gi/2}, {ID: 1, Unused: 0, Free: 2 * gi, Reclaimable: 4*gi + gi/2}}},
		"a protection that is not used keeps nothing more": {
			[]Cgroup{{Path: "a", Protected: 64 * gi, Pages: []Pages{{Node: 0, Resident: gi, File: 0}}}}, []NodeMemory{{ID: 0, Unused: 0, Free: gi, Reclaimable: 4 * gi}, {ID: 1, Unused: 0, Free: 2 * gi, Reclaimable: 6 * gi}}},
		"readings of different moments": {
			[]Cgroup{{Path: "a", Allocated: []Amount{{7, gi}, {0, gi}}, Pages: []Pages{{Node: 0, Resident: 9 * gi, File: 9 * gi}, {Node: 7, Resident: gi, File: gi}}}},
			[]NodeMemory{{ID: 0, Unused: 0, Free: gi, Reclaimable: 0}, {ID: 1, Unused: 0, Free: 2 * gi, Reclaimable: 6 * gi}}},
	} {
		t.Run(name, func(t *testing.T) {
			if difference := cmp.Diff(test.want, NewSample(time.Time{}, memory, test.cgroups).Nodes, cmpopts.IgnoreFields(NodeMemory{}, "Allocated")); difference != "" {
				t.Error(difference)
			}
		})
	}
}

func TestAfter(t *testing.T) {
	s := NewSample(time.Time{}, []MemInfo{{0, 8 * gi, 0}}, []Cgroup{{Path: "a", Allocated: []Amount{{0, 4 * gi}}, Pages: []Pages{{Node: 0, Resident: gi, File: 0}}}})
	for allocated, want := range map[uint64]uint64{4 * gi: 3 * gi, 6 * gi: 5 * gi, 2 * gi: gi, 0: 0} {
		if n := s.Nodes[0].After(allocated); n.Unused != want || n.Allocated != allocated || n.Free != 8*gi {
			t.Errorf("with %d allocated: %+v, want %d unused", allocated, n, want)
		}
	}
}

func TestDeficitAndSlack(t *testing.T) {
	for _, test := range []struct {
		node           NodeMemory
		deficit, slack uint64
	}{
		{NodeMemory{Unused: 5, Free: 2, Reclaimable: 1}, 2, 0},
		{NodeMemory{Unused: 3, Free: 2, Reclaimable: 1}, 0, 0},
		{NodeMemory{Unused: 1, Free: 2, Reclaimable: 1}, 0, 2},
	} {
		if test.node.Deficit() != test.deficit || test.node.Slack() != test.slack {
			t.Errorf("%+v: deficit %d and slack %d, want %d and %d", test.node, test.node.Deficit(), test.node.Slack(), test.deficit, test.slack)
		}
	}
}

func TestASampleThatIsNotKnown(t *testing.T) {
	for _, s := range []*Sample{nil, {Unknown: "why"}, {}} {
		if s.Known() || s.Node(0) != nil || s.Deficit() != 0 || s.Overcommitted() {
			t.Errorf("%+v is known", s)
		}
	}
}

func TestTheDeficitOfASample(t *testing.T) {
	const mi = 1 << 20
	for name, test := range map[string]struct {
		nodes         []NodeMemory
		unknown       string
		deficit       uint64
		overcommitted bool
		node          *NodeMemory // the one with id 2
	}{
		"available":         {nodes: []NodeMemory{{ID: 0, Unused: gi, Free: gi}, {ID: 2, Free: gi}}, node: &NodeMemory{ID: 2, Free: gi}},
		"on two nodes":      {nodes: []NodeMemory{{ID: 0, Unused: 2 * gi, Free: gi}, {ID: 1, Unused: gi}}, deficit: 2 * gi, overcommitted: true},
		"little on many":    {nodes: []NodeMemory{{ID: 0, Unused: 15 * mi}, {ID: 1, Unused: 15 * mi}}, deficit: 30 * mi},
		"just so much":      {nodes: []NodeMemory{{ID: 0, Free: gi}, {ID: 2, Unused: 16 * mi}}, deficit: 16 * mi, overcommitted: true, node: &NodeMemory{ID: 2, Unused: 16 * mi}},
		"read and not sure": {nodes: []NodeMemory{{ID: 2, Unused: gi}}, unknown: "a file is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Sample{Nodes: test.nodes, Unknown: test.unknown}
			if s.Deficit() != test.deficit || s.Overcommitted() != test.overcommitted {
				t.Errorf("deficit %d, overcommitted %v; want %d, %v", s.Deficit(), s.Overcommitted(), test.deficit, test.overcommitted)
			}
			if diff := cmp.Diff(test.node, s.Node(2)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestWhatEachCgroupHasUnused: those that use all that they were allocated, or have no allocation, are in no list.
func TestWhatEachCgroupHasUnused(t *testing.T) {
	used := []Pages{{Node: 0, Resident: gi}}
	sample := NewSample(time.Time{}, []MemInfo{{0, 4 * gi, 0}}, []Cgroup{
		{Path: "part", Allocated: []Amount{{0, 2 * gi}}, Pages: used}, {Path: "all", Allocated: []Amount{{0, gi}}, Pages: used}, {Path: "none", Pages: used},
	})
	if diff := cmp.Diff(map[string][]Amount{"part": {{0, gi}}}, sample.Unused); diff != "" {
		t.Error(diff)
	}
}

// Whatever is read, no more is unused of a cgroup than it has allocated and does not use, on each node and in all.
func TestUnusedIsBounded(t *testing.T) {
	random := rand.New(rand.NewPCG(17, 1))
	some := func() uint64 { return random.Uint64N(1 << random.UintN(60)) }
	for range 100_000 {
		var c Cgroup
		var allocated, resident, unused uint64
		for node := range 1 + random.IntN(8) {
			a, p := Amount{node, some()}, Pages{Node: node, Resident: some()}
			p.File = min(p.Resident, some())
			c.Allocated, c.Pages = append(c.Allocated, a), append(c.Pages, p)
			allocated, resident = allocated+a.Bytes, resident+p.Resident
		}
		for _, a := range c.unused() {
			if a.Bytes == 0 || a.Bytes > c.Allocated[a.Node].Bytes {
				t.Fatalf("%+v has unused %+v", c, a)
			}
			unused += a.Bytes
		}
		if most := allocated - min(allocated, resident); unused > most || most-unused > 8 {
			t.Fatalf("%+v has unused %d, want %d", c, unused, most)
		}
	}
}

func FuzzTake(f *testing.F) {
	f.Add(uint64(1), uint64(2), uint64(3), uint64(4), uint64(5))
	f.Add(uint64(math.MaxUint64), uint64(math.MaxUint64), uint64(math.MaxUint64), uint64(0), uint64(math.MaxUint64))
	f.Fuzz(func(t *testing.T, free, file, allocated, resident, protected uint64) {
		s := NewSample(time.Time{}, []MemInfo{{0, free, file}}, []Cgroup{
			{Path: "a", Allocated: []Amount{{0, allocated}}, Pages: []Pages{{Node: 0, Resident: resident, File: file}}},
			{Path: "b", Protected: protected, Pages: []Pages{{Node: 0, Resident: resident, File: file}, {Node: 1, Resident: file, File: resident}}},
		})
		if n := s.Nodes[0]; n.Reclaimable > file || n.Deficit() > n.Unused {
			t.Errorf("%+v", n)
		}
	})
}

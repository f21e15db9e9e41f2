package topologymanager

import (
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

func TestStrategiesScore(t *testing.T) {
	for _, s := range Strategies() {
		if s.Scores() != (s != "none") {
			t.Errorf("%s scores: %v", s, s.Scores())
		}
	}
}

func TestStrategiesPrefer(t *testing.T) {
	for _, test := range []struct {
		score, other      int
		none, most, least bool
	}{
		{40, 1, false, true, false}, {1, 40, false, false, true}, {40, 40, false, false, false},
		{0, 40, false, false, false}, {40, 0, false, false, false}, // not scored
	} {
		for strategy, want := range map[Strategy]bool{NoStrategy: test.none, MostAllocated: test.most, LeastAllocated: test.least, LeastUsed: test.most, "other": false} {
			if got := strategy.Prefers(test.score, test.other); got != want {
				t.Errorf("%s: %d before %d is %v, want %v", strategy, test.score, test.other, got, want)
			}
		}
	}
}

func TestRulesOfThePolicies(t *testing.T) {
	want := map[Policy]Rules{
		"none":             {},
		"best-effort":      {Aligns: true},
		"restricted":       {Aligns: true, Insists: true},
		"single-numa-node": {Aligns: true, Insists: true, OneNode: true},
	}
	if got := Policies(); len(got) != len(want) {
		t.Errorf("the policies are %v", got)
	}
	for policy, want := range want {
		if got := policy.Rules(); got != want {
			t.Errorf("%s: %+v, want %+v", policy, got, want)
		}
	}
	if got := Policy("Restricted").Rules(); got != (Rules{}) {
		t.Errorf("an unknown policy has rules: %+v", got)
	}
}

// listed are hints that are few enough to list, in the order of narrowness.
type listed []Hint

func (l listed) Empty() bool { return len(l) == 0 }

func (l listed) PreferredAt(nodes nodeset.Set) bool {
	for _, hint := range l {
		if hint.Nodes == nodes {
			return hint.Preferred
		}
	}
	return false
}

func (l listed) PreferredSingle(within nodeset.Set) (nodeset.Set, bool) {
	for _, hint := range l {
		if hint.Preferred && hint.Nodes.Len() == 1 && hint.Nodes.SubsetOf(within) {
			return hint.Nodes, true
		}
	}
	return 0, false
}

func (l listed) BestPreferred() (nodeset.Set, bool) {
	if l[0].Preferred {
		return l[0].Nodes, true
	}
	return 0, false
}

func (l listed) BestIntersection() nodeset.Set { return l[0].Nodes }

func (l listed) BestOverlap(nodes nodeset.Set) (best nodeset.Set) {
	for _, hint := range l {
		if overlap := hint.Nodes & nodes; overlap.Len() > best.Len() {
			best = overlap
		}
	}
	return best
}

func TestMerge(t *testing.T) {
	one, two, three := nodeset.Of(0), nodeset.Of(1, 2), nodeset.Of(0, 1, 2)
	tests := map[string]struct {
		policy   Policy
		all      nodeset.Set
		memory   listed
		cpus     nodeset.Set
		want     Hint
		admitted bool
	}{
		"none asks nobody":                    {policy: None, memory: listed{{one, true}}, admitted: true},
		"best effort, preferred":              {policy: BestEffort, memory: listed{{one, true}, {two, false}}, want: Hint{one, true}, admitted: true},
		"best effort, not preferred":          {policy: BestEffort, memory: listed{{two, false}}, want: Hint{Nodes: two}, admitted: true},
		"best effort, nothing fits":           {policy: BestEffort, want: Hint{three, true}, admitted: true},
		"best effort, nothing fits, CPUs":     {policy: BestEffort, cpus: one, want: Hint{one, true}, admitted: true},
		"best effort, CPUs agree":             {policy: BestEffort, memory: listed{{one, true}}, cpus: one, want: Hint{one, true}, admitted: true},
		"best effort, CPUs overlap":           {policy: BestEffort, memory: listed{{two, true}}, cpus: nodeset.Of(0, 2), want: Hint{Nodes: nodeset.Of(2)}, admitted: true},
		"best effort, CPUs elsewhere":         {policy: BestEffort, memory: listed{{two, true}}, cpus: one, want: Hint{Nodes: three}, admitted: true},
		"restricted, preferred":               {policy: Restricted, memory: listed{{two, true}}, want: Hint{two, true}, admitted: true},
		"restricted, not preferred":           {policy: Restricted, memory: listed{{two, false}}},
		"restricted, nothing fits":            {policy: Restricted, want: Hint{three, true}, admitted: true},
		"restricted, CPUs elsewhere":          {policy: Restricted, memory: listed{{two, true}}, cpus: one},
		"single, one node":                    {policy: SingleNUMANode, memory: listed{{one, true}}, want: Hint{one, true}, admitted: true},
		"single, two nodes":                   {policy: SingleNUMANode, memory: listed{{two, true}}},
		"single, nothing fits":                {policy: SingleNUMANode, want: Hint{0, true}, admitted: true},
		"single, the only node":               {policy: SingleNUMANode, all: one, memory: listed{{one, true}}, want: Hint{0, true}, admitted: true},
		"single, CPUs agree":                  {policy: SingleNUMANode, memory: listed{{one, true}}, cpus: one, want: Hint{one, true}, admitted: true},
		"single, CPUs elsewhere":              {policy: SingleNUMANode, memory: listed{{one, true}}, cpus: nodeset.Of(1)},
		"single, CPUs on two nodes":           {policy: SingleNUMANode, memory: listed{{one, true}}, cpus: two},
		"single, nothing fits, CPUs":          {policy: SingleNUMANode, cpus: one, want: Hint{one, true}, admitted: true},
		"single, nothing fits, CPUs on two":   {policy: SingleNUMANode, cpus: two},
		"a policy that is none of these":      {policy: "other", admitted: true},
		"restricted, CPUs agree, three nodes": {policy: Restricted, memory: listed{{three, true}}, cpus: three, want: Hint{three, true}, admitted: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.all.Empty() {
				test.all = three
			}
			got, admitted := test.policy.Merge(Providers{All: test.all, Memory: test.memory, CPUs: test.cpus})
			if got != test.want || admitted != test.admitted {
				t.Errorf("got %s %v, admitted %v; want %s %v, admitted %v",
					got.Nodes, got.Preferred, admitted, test.want.Nodes, test.want.Preferred, test.admitted)
			}
		})
	}
}

func TestHintsOfContainersThatAreNotAsked(t *testing.T) {
	all, one := nodeset.Of(0, 1), nodeset.Of(1)
	tests := map[Policy]struct{ noPreference, one, all Hint }{
		None:           {},
		BestEffort:     {Hint{all, true}, Hint{one, true}, Hint{all, true}},
		Restricted:     {Hint{all, true}, Hint{one, true}, Hint{all, true}},
		SingleNUMANode: {Hint{0, true}, Hint{one, true}, Hint{}},
	}
	for policy, want := range tests {
		if got, _ := policy.Merge(Providers{All: all}); got != want.noPreference {
			t.Errorf("%s without preference: %v, want %v", policy, got, want.noPreference)
		}
		if got := policy.Regenerated(all, one); got != want.one {
			t.Errorf("%s on node 1: %v, want %v", policy, got, want.one)
		}
		if got := policy.Regenerated(all, all); got != want.all {
			t.Errorf("%s on all: %v, want %v", policy, got, want.all)
		}
	}
	if got := SingleNUMANode.Regenerated(one, one); got != (Hint{0, true}) {
		t.Errorf("the only node: %v", got)
	}
}

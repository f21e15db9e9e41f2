package claims

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

func TestOrder(t *testing.T) {
	view := func(claimed ...uint64) (views []Capacity) {
		for node, bytes := range claimed {
			views = append(views, Capacity{Node: node, Type: "hugepages-2Mi", Capacity: gi},
				Capacity{Node: node, Type: memorymanager.Memory, Capacity: 100 * gi, Claimed: bytes * gi})
		}
		return views
	}
	for name, test := range map[string]struct {
		claimed   []uint64
		was, want []int
	}{
		"at first":              {[]uint64{0, 0}, nil, []int{0, 1}},
		"a little behind":       {[]uint64{10, 0}, []int{0, 1}, []int{0, 1}},
		"far behind":            {[]uint64{11, 0}, []int{0, 1}, []int{1, 0}},
		"and not back at once":  {[]uint64{11, 20}, []int{1, 0}, []int{1, 0}},
		"after a start":         {[]uint64{50, 0, 20}, nil, []int{1, 2, 0}},
		"another set of nodes":  {[]uint64{5, 0}, []int{0, 1, 2}, []int{1, 0}},
		"more than there is":    {[]uint64{200, 95}, []int{0, 1}, []int{0, 1}},
		"nothing for any claim": {nil, []int{0}, nil},
		"without another tier":  {[]uint64{10, 0, 90, 90, 90, 90, 90, 90, 90, 0}, []int{9, 0, 1, 2, 3, 4, 5, 6, 7, 8}, []int{0, 1, 2, 3, 4, 5, 6, 7, 8}},
	} {
		if diff := cmp.Diff(test.want, Order(view(test.claimed...), nil, test.was, func(node int) bool { return node == 9 })); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// slack is a sample in which nodes 0, 1 … have this much available beyond their allocations.
func slack(at time.Time, bytes ...uint64) *deficit.Sample {
	s := &deficit.Sample{At: at}
	for id, n := range bytes {
		s.Nodes = append(s.Nodes, deficit.NodeMemory{ID: id, Unused: 1000, Free: 900 + n, Reclaimable: 100})
	}
	return s
}

func TestOrderByAvailable(t *testing.T) {
	var views []Capacity
	for id, claimed := range []uint64{0, 20, 40} {
		views = append(views, Capacity{Node: id, Type: memorymanager.Memory, Capacity: 100, Claimed: claimed})
	}
	for name, test := range map[string]struct {
		sample *deficit.Sample
		was    []int
		want   []int
	}{
		"not known":                          {&deficit.Sample{Unknown: "no kernel"}, nil, []int{0, 1, 2}},
		"more slack than is free for claims": {slack(time.Time{}, 500, 600, 700), nil, []int{0, 1, 2}},
		"the free one is used by others":     {slack(time.Time{}, 30, 200, 50), nil, []int{1, 2, 0}},
		"one is overcommitted":               {&deficit.Sample{Nodes: []deficit.NodeMemory{{ID: 0, Unused: 9, Free: 1}, {ID: 1, Free: 70}, {ID: 2, Free: 1}}}, nil, []int{1, 2, 0}},
		"a node that was not sampled":        {slack(time.Time{}, 30, 40), nil, []int{2, 1, 0}},
		"a little behind":                    {slack(time.Time{}, 65, 70, 75), []int{2, 0, 1}, []int{2, 0, 1}},
		"far behind":                         {slack(time.Time{}, 65, 71, 60), []int{2, 0, 1}, []int{1, 0, 2}},
	} {
		if diff := cmp.Diff(test.want, Order(views, test.sample, test.was, func(int) bool { return false })); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

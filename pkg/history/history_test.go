package history

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// node is a daemon whose values a test sets.
type node struct {
	at                    time.Time
	allocated             map[int]uint64
	rejections, throttled uint64
	kills                 uint64
}

func (n *node) sources() Sources {
	return Sources{
		View: func() *ledger.View {
			view := &ledger.View{Taken: n.at}
			for id, bytes := range n.allocated {
				state := memorymanager.NodeState{ID: id}
				state.Memory = []memorymanager.TypeTable{{Type: "hugepages-2Mi", Table: memorymanager.Table{Reserved: 5}},
					{Type: memorymanager.Memory, Table: memorymanager.Table{Reserved: bytes}}}
				view.Nodes = append(view.Nodes, state)
			}
			return view
		},
		Rejections: func() uint64 { return n.rejections },
		Kills:      func() uint64 { return n.kills },
		Throttled:  func() uint64 { return n.throttled },
	}
}

func TestDocument(t *testing.T) {
	start := time.Unix(1700000000, 0).UTC()
	n := &node{at: start, allocated: map[int]uint64{0: 10}, rejections: 7}
	h := New(n.sources())
	n.at, n.allocated, n.rejections, n.throttled, n.kills = start.Add(every), map[int]uint64{1: 20, 0: 11}, 9, 3, 1
	h.add(h.now())
	n.at, n.throttled = start.Add(every+time.Second), 2
	want := &Document{
		Times:      []time.Time{start, start.Add(every), start.Add(every + time.Second)},
		Nodes:      []Node{{0, []uint64{10, 11, 11}}, {1, []uint64{0, 20, 20}}},
		Rejections: []uint64{0, 2, 0},
		OOMKills:   []uint64{0, 1, 0},
		Throttled:  []uint64{0, 3, 2},
	}
	if diff := cmp.Diff(want, h.Document()); diff != "" {
		t.Errorf("the history after two points (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, h.Document()); diff != "" {
		t.Errorf("asking has changed it (-want +got):\n%s", diff)
	}
}

func TestNewDaemon(t *testing.T) {
	sources := (&node{}).sources()
	sources.Throttled = nil
	want := &Document{Times: []time.Time{{}, {}}, Nodes: []Node{}, Rejections: []uint64{0, 0}, OOMKills: []uint64{0, 0}, Throttled: []uint64{0, 0}}
	if diff := cmp.Diff(want, New(sources).Document()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	n := &node{allocated: map[int]uint64{0: 1}}
	h := New(n.sources())
	for i := range 3 * mostPoints {
		n.at = time.Unix(int64(i), 0)
		h.add(h.now())
	}
	d := h.Document()
	if len(d.Times) != mostPoints+1 || len(d.Nodes[0].Allocated) != mostPoints+1 || d.Times[0] != time.Unix(2*mostPoints, 0) {
		t.Errorf("%d times from %v on, want %d from the %dth on", len(d.Times), d.Times[0], mostPoints+1, 2*mostPoints)
	}
	if cap(h.points) > 2*mostPoints {
		t.Errorf("room for %d points is kept, want about %d", cap(h.points), mostPoints)
	}
}

func BenchmarkPoint(b *testing.B) {
	n := &node{allocated: map[int]uint64{0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: 8}}
	h := New(n.sources())
	for b.Loop() {
		h.add(h.now())
	}
}

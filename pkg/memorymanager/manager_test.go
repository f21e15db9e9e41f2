package memorymanager_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// plain are n nodes of 10Gi without reservation.
func plain(n int) (nodes []memorymanager.NodeCapacity) {
	for id := range n {
		nodes = append(nodes, memorymanager.NodeCapacity{ID: id, Total: 10 * gi})
	}
	return nodes
}

func manager(t testing.TB, nodes []memorymanager.NodeCapacity, policy topologymanager.Policy) *memorymanager.Manager {
	t.Helper()
	m, err := memorymanager.New(nodes, memorymanager.Options{Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func memory(bytes uint64) memorymanager.Request {
	return memorymanager.Request{{Type: memorymanager.Memory, Bytes: bytes}}
}

func app(pod string, bytes uint64) memorymanager.Container {
	return memorymanager.Container{Pod: pod, Name: "c", Request: memory(bytes)}
}

func mustAdmit(t testing.TB, m *memorymanager.Manager, c memorymanager.Container) memorymanager.Placement {
	t.Helper()
	p, err := m.Allocate(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// allocated shows the memory table of each node as "reserved/free group" in Gi.
func reservedBytes(m *memorymanager.Manager) (reserved []uint64) {
	for _, n := range m.Nodes() {
		for _, table := range n.Memory {
			if table.Type == memorymanager.Memory {
				reserved = append(reserved, table.Reserved)
			}
		}
	}
	return reserved
}

func TestHugepages(t *testing.T) {
	for size, want := range map[uint64]memorymanager.MemoryType{
		2 * mi: "hugepages-2Mi", gi: "hugepages-1Gi", 64 << 10: "hugepages-64Ki", 1000: "hugepages-1000", 0: "hugepages-0",
	} {
		if got := memorymanager.Hugepages(size); got != want {
			t.Errorf("%d: got %s, want %s", size, got, want)
		}
	}
}

func TestNewRefusesWhatDoesNotAddUp(t *testing.T) {
	pool := func(size, count uint64) []memorymanager.Pool {
		return []memorymanager.Pool{{PageSize: size, Count: count}}
	}
	tests := map[string]struct {
		nodes []memorymanager.NodeCapacity
		opts  memorymanager.Options
		err   string
	}{
		"no nodes":          {err: "check NUMA nodes: no NUMA nodes"},
		"id above the last": {nodes: []memorymanager.NodeCapacity{{ID: 64}}, err: "check NUMA nodes: NUMA node id 64 is not in 0 to 63"},
		"negative id":       {nodes: []memorymanager.NodeCapacity{{ID: -1}}, err: "check NUMA nodes: NUMA node id -1 is not in 0 to 63"},
		"node twice":        {nodes: []memorymanager.NodeCapacity{{ID: 3}, {ID: 3}}, err: "check NUMA nodes: NUMA node 3 is there twice"},
		"reservation above the node": {
			nodes: []memorymanager.NodeCapacity{{Total: 10, Reserved: memory(11)}},
			err:   "check NUMA nodes: NUMA node 0: memory: reserved 11 and huge page pools of 0 exceed its memory of 10",
		},
		"reservation and pools above the node": {
			nodes: []memorymanager.NodeCapacity{{Total: 10, Pools: pool(2, 3), Reserved: memory(5)}},
			err:   "check NUMA nodes: NUMA node 0: memory: reserved 5 and huge page pools of 6 exceed its memory of 10",
		},
		"pools above the node": {
			nodes: []memorymanager.NodeCapacity{{Total: 10, Pools: pool(2, 6)}},
			err:   "check NUMA nodes: NUMA node 0: the huge page pools exceed its memory of 10",
		},
		"pool beyond 64 bits": {
			nodes: []memorymanager.NodeCapacity{{Total: 10, Pools: pool(1<<33, 1<<33)}},
			err:   "check NUMA nodes: NUMA node 0: 8589934592 pages of 8Gi are not a pool",
		},
		"page size zero": {
			nodes: []memorymanager.NodeCapacity{{Total: 10, Pools: pool(0, 1)}},
			err:   "check NUMA nodes: NUMA node 0: 1 pages of 0 are not a pool",
		},
		"pool twice": {
			nodes: []memorymanager.NodeCapacity{{Total: 10, Pools: append(pool(2, 1), pool(2, 1)...)}},
			err:   "check NUMA nodes: NUMA node 0: hugepages-2 is listed twice",
		},
		"reservation above the pool": {
			nodes: []memorymanager.NodeCapacity{{Total: 10, Pools: pool(2, 1), Reserved: memorymanager.Request{{Type: "hugepages-2", Bytes: 3}}}},
			err:   "check NUMA nodes: NUMA node 0: hugepages-2: reserved 3 exceed the pool of 2",
		},
		"reservation of what is not there": {
			nodes: []memorymanager.NodeCapacity{{Total: 10, Reserved: memorymanager.Request{{Type: "hugepages-4", Bytes: 3}}}},
			err:   "check NUMA nodes: NUMA node 0: hugepages-4 is reserved but not there",
		},
		"reservation twice": {
			nodes: []memorymanager.NodeCapacity{{Total: 10, Reserved: append(memory(1), memory(1)...)}},
			err:   "check NUMA nodes: NUMA node 0: memory is reserved twice",
		},
		"sum beyond 64 bits": {
			nodes: []memorymanager.NodeCapacity{{ID: 0, Total: 1 << 63}, {ID: 1, Total: 1 << 63}},
			err:   "check NUMA nodes: memory of all NUMA nodes exceeds 2^64 bytes",
		},
		"no distances": {
			nodes: plain(2), opts: memorymanager.Options{PreferClosest: true},
			err: "check NUMA distances: NUMA node 0 has 0 distances, want one for each of the 2 nodes",
		},
		"negative distance": {
			nodes: []memorymanager.NodeCapacity{{ID: 5, Distances: []int{-1}}}, opts: memorymanager.Options{PreferClosest: true},
			err: "check NUMA distances: NUMA node 5: distance -1 to node 5 is not in 0 to 65535",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := memorymanager.New(test.nodes, test.opts); err == nil || err.Error() != test.err {
				t.Errorf("got  %v\nwant %s", err, test.err)
			}
		})
	}
}

func TestRejections(t *testing.T) {
	seed := []memorymanager.NodeCapacity{
		{ID: 0, Total: 134987354112, Reserved: memory(3 * gi)}, {ID: 1, Total: 135286722560, Reserved: memory(2148 * mi)},
	}
	tests := map[string]struct {
		nodes  []memorymanager.NodeCapacity
		policy topologymanager.Policy
		first  []memorymanager.Container
		c      memorymanager.Container
		reason memorymanager.Reason
		err    string
		// holders are who keeps the container from nodes with room
		holders []memorymanager.Holder
		helps   string
	}{
		"one node by itself is too small": {
			nodes: seed, policy: topologymanager.SingleNUMANode, c: app("p", 150*gi), reason: memorymanager.TopologyAffinityError,
			err: "policy single-numa-node, scope container: only nodes 0-1 together have room, not one by itself: " +
				"node 0: 122.7Gi of 122.7Gi free, 150Gi needed; node 1: 123.9Gi of 123.9Gi free, 150Gi needed",
		},
		"fewer nodes would do if they were free": {
			nodes: plain(2), policy: topologymanager.Restricted, first: []memorymanager.Container{app("a", 15*gi)}, c: app("b", gi+1),
			reason: memorymanager.TopologyAffinityError,
			err: "policy restricted, scope container: only nodes 0-1 together have room, although fewer nodes would hold the request if they were free: " +
				"node 1 has room, but only a container that gets all of nodes 0-1 may join the containers there: " +
				"node 0 (group 0-1): 0 of 10Gi free, 1Gi needed; node 1 (group 0-1): 5Gi of 10Gi free, 1Gi needed",
			holders: []memorymanager.Holder{{Pod: "a", Container: "c", Nodes: nodeset.Of(0, 1)}},
			helps:   "all of these containers end",
		},
		"one container alone on a node bars the group": {
			nodes: plain(2), policy: topologymanager.Restricted, first: []memorymanager.Container{app("a", gi)}, c: app("b", 16*gi),
			reason: memorymanager.UnexpectedAdmissionError,
			err: "policy restricted, scope container: nodes 0-1 together have room, but containers use node 0 already: " +
				"a container gets several nodes only if they are unused, or if all containers on them have exactly these nodes: " +
				"node 0: 9Gi of 10Gi free, 16Gi needed; node 1: 10Gi of 10Gi free, 16Gi needed",
			holders: []memorymanager.Holder{{Pod: "a", Container: "c", Nodes: nodeset.Of(0)}},
			helps:   "all of these containers end, or a request that one NUMA node has free",
		},
		"of many containers on a node three are named": {
			nodes: plain(2), policy: topologymanager.Restricted,
			first: []memorymanager.Container{app("a", gi), app("b", gi), app("d", gi), app("e", gi), app("f", gi)}, c: app("g", 12*gi),
			reason: memorymanager.UnexpectedAdmissionError, err: "nodes 0-1 together have room, but containers use node 0 already",
			holders: []memorymanager.Holder{
				{Pod: "a", Container: "c", Nodes: nodeset.Of(0)}, {Pod: "b", Container: "c", Nodes: nodeset.Of(0)}, {Pod: "d", Container: "c", Nodes: nodeset.Of(0), More: 2}},
			helps: "all of these containers end, or a request that one NUMA node has free",
		},
		"a container on each node bars the group, and one of those needed is named": {
			nodes: plain(3), policy: topologymanager.BestEffort,
			first: []memorymanager.Container{app("a", 6*gi), app("b", 6*gi), app("d", gi)}, c: app("e", 12*gi),
			reason: memorymanager.UnexpectedAdmissionError,
			err: "policy best-effort, scope container: nodes 1-2 together have room, but containers use node 1 already: " +
				"a container gets several nodes only if they are unused, or if all containers on them have exactly these nodes: " +
				"node 0: 3Gi of 10Gi free, 12Gi needed; node 1: 4Gi of 10Gi free, 12Gi needed; node 2: 10Gi of 10Gi free, 12Gi needed",
			holders: []memorymanager.Holder{{Pod: "b", Container: "c", Nodes: nodeset.Of(1)}},
			helps:   "all of these containers end, or a request that one NUMA node has free",
		},
		"the policy wants as few nodes as an empty machine needs": {
			nodes: plain(2), policy: topologymanager.Restricted, first: []memorymanager.Container{app("a", 7*gi), app("b", 7*gi)}, c: app("c", 5*gi),
			reason: memorymanager.UnexpectedAdmissionError,
			err: "policy restricted, scope container: nodes 0-1 together have room, but the policy admits no more nodes than an empty machine needs: " +
				"node 0: 3Gi of 10Gi free, 5Gi needed; node 1: 3Gi of 10Gi free, 5Gi needed",
			helps: "a request that fewer NUMA nodes have free",
		},
		"the policy wants as few nodes as an empty machine needs, and groups bar more": {
			nodes: plain(3), policy: topologymanager.Restricted, first: []memorymanager.Container{app("a", 14*gi), app("b", 7*gi)}, c: app("c", 8*gi),
			reason: memorymanager.UnexpectedAdmissionError, err: "nodes 1-2 together have room, but the policy admits no more nodes than an empty machine needs",
			holders: []memorymanager.Holder{{Pod: "a", Container: "c", Nodes: nodeset.Of(0, 1)}},
			helps:   "all of these containers end, or a request that fewer NUMA nodes outside of a group have free",
		},
		"its nodes are required, and every node is in a group": {
			nodes: plain(4), policy: topologymanager.BestEffort, first: []memorymanager.Container{app("a", 14*gi), app("b", 14*gi)},
			c:      memorymanager.Container{Pod: "c", Name: "c", Request: memory(8 * gi), Required: true},
			reason: memorymanager.UnexpectedAdmissionError, err: "nodes 1,3 together have room, but the annotation numa: required admits no more nodes than an empty machine needs",
			holders: []memorymanager.Holder{{Pod: "a", Container: "c", Nodes: nodeset.Of(0, 1)}, {Pod: "b", Container: "c", Nodes: nodeset.Of(2, 3)}},
			helps:   "all of these containers end",
		},
		"its nodes are required, and containers are alone on theirs": {
			nodes: plain(2), policy: topologymanager.BestEffort, first: []memorymanager.Container{app("a", 7*gi), app("b", 7*gi)},
			c:      memorymanager.Container{Pod: "c", Name: "c", Request: memory(5 * gi), Required: true},
			reason: memorymanager.UnexpectedAdmissionError, err: "nodes 0-1 together have room, but the annotation numa: required admits no more nodes than an empty machine needs",
			helps: "a request that fewer NUMA nodes have free",
		},
		"the policy wants one node": {
			nodes: plain(2), policy: topologymanager.SingleNUMANode, first: []memorymanager.Container{app("a", gi)}, c: app("b", 16*gi),
			reason: memorymanager.UnexpectedAdmissionError,
			err: "policy single-numa-node, scope container: nodes 0-1 together have room, but the policy admits one node: " +
				"node 0: 9Gi of 10Gi free, 16Gi needed; node 1: 10Gi of 10Gi free, 16Gi needed",
			helps: "a request that one NUMA node has free",
		},
		"everything is full": {
			nodes: plain(1), policy: topologymanager.BestEffort, first: []memorymanager.Container{app("a", 8*gi)}, c: app("b", 3*gi),
			reason: memorymanager.UnexpectedAdmissionError,
			err:    "policy best-effort, scope container: no set of NUMA nodes has room: node 0: 2Gi of 10Gi free, 3Gi needed",
		},
		"a page too much": {
			nodes: plain(1), policy: topologymanager.BestEffort, first: []memorymanager.Container{app("a", 4096)}, c: app("b", 10*gi),
			reason: memorymanager.UnexpectedAdmissionError,
			err:    "policy best-effort, scope container: no set of NUMA nodes has room: node 0: 9.999996Gi of 10Gi free, 10Gi needed",
		},
		"several types": {
			nodes: []memorymanager.NodeCapacity{
				{ID: 0, Total: 12 * gi, Pools: []memorymanager.Pool{{PageSize: 2 * mi, Count: 1024}}, Reserved: memory(gi)}, {ID: 1, Total: 10 * gi},
			},
			policy: topologymanager.Restricted,
			c: memorymanager.Container{Pod: "p", Name: "c", Request: memorymanager.Request{
				{Type: "hugepages-2Mi", Bytes: 4 * gi}, {Type: memorymanager.Memory, Bytes: gi},
			}},
			reason: memorymanager.UnexpectedAdmissionError,
			err: "policy restricted, scope container: no set of NUMA nodes has room: " +
				"node 0: hugepages-2Mi 2Gi of 2Gi free, 4Gi needed, memory 9Gi of 9Gi free, 1Gi needed; " +
				"node 1: no hugepages-2Mi, memory 10Gi of 10Gi free, 1Gi needed",
		},
		"no such pages": {
			nodes: plain(1), c: memorymanager.Container{Pod: "p", Name: "c", Request: memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 1}}},
			reason: memorymanager.UnexpectedAdmissionError,
			err:    "policy none, scope container: no NUMA node has hugepages-2Mi",
		},
		"not with these CPUs": {
			nodes: plain(2), policy: topologymanager.Restricted, first: []memorymanager.Container{app("a", 8*gi)},
			c:      memorymanager.Container{Pod: "b", Name: "c", Request: memory(4 * gi), CPUs: nodeset.Of(0)},
			reason: memorymanager.TopologyAffinityError,
			err: "policy restricted, scope container: there is room on node 1, but its exclusive CPUs are on node 0: " +
				"node 0: 2Gi of 10Gi free, 4Gi needed; node 1: 10Gi of 10Gi free, 4Gi needed",
		},
		"CPUs on a group's node": {
			nodes: plain(3), policy: topologymanager.BestEffort, first: []memorymanager.Container{app("a", 15*gi)},
			c:      memorymanager.Container{Pod: "b", Name: "c", Request: memory(8 * gi), CPUs: nodeset.Of(0)},
			reason: memorymanager.TopologyAffinityError,
			err: "the affinity 0-2 cuts through a group of NUMA nodes: containers use nodes 0-1 already: a container gets several nodes only if " +
				"they are unused, or if all containers on them have exactly these nodes: node 0",
			holders: []memorymanager.Holder{{Pod: "a", Container: "c", Nodes: nodeset.Of(0, 1)}},
			helps:   "all of these containers end",
		},
		"CPUs on nodes that are no group": {
			nodes: plain(4), policy: topologymanager.BestEffort, first: []memorymanager.Container{app("a", 25*gi)},
			c:       memorymanager.Container{Pod: "b", Name: "c", Request: memory(2 * gi), CPUs: nodeset.Of(1, 2)},
			reason:  memorymanager.TopologyAffinityError,
			err:     "the affinity 1-2 cuts through a group of NUMA nodes: containers use nodes 0-2 already",
			holders: []memorymanager.Holder{{Pod: "a", Container: "c", Nodes: nodeset.Of(0, 1, 2)}},
			helps:   "all of these containers end",
		},
		"CPUs on a group's node, of which a pair is full": {
			nodes: plain(2), policy: topologymanager.Restricted, first: []memorymanager.Container{app("a", 12*gi)},
			c:       memorymanager.Container{Pod: "b", Name: "c", Request: memory(4 * gi), CPUs: nodeset.Of(1)},
			reason:  memorymanager.TopologyAffinityError,
			err:     "only nodes 0-1 together have room, although fewer nodes would hold the request if they were free: node 1 has room, but only a container that gets all",
			holders: []memorymanager.Holder{{Pod: "a", Container: "c", Nodes: nodeset.Of(0, 1)}},
			helps:   "all of these containers end",
		},
		"CPUs on a group's node, and another is free": {
			nodes: plain(3), policy: topologymanager.Restricted, first: []memorymanager.Container{app("a", 12*gi)},
			c:       memorymanager.Container{Pod: "b", Name: "c", Request: memory(4 * gi), CPUs: nodeset.Of(1)},
			reason:  memorymanager.TopologyAffinityError,
			err:     "there is room on node 2, but its exclusive CPUs are on node 1: only a container that gets all of nodes 0-1 may join the containers there: node 0",
			holders: []memorymanager.Holder{{Pod: "a", Container: "c", Nodes: nodeset.Of(0, 1)}},
			helps:   "all of these containers end",
		},
		"parts of two groups have room": {
			nodes: plain(5), policy: topologymanager.BestEffort, first: []memorymanager.Container{app("a", 14*gi), app("b", 14*gi), app("d", 9*gi)},
			c: app("c", 11*gi), reason: memorymanager.UnexpectedAdmissionError,
			err:     "nodes 1,3 together have room, but containers use nodes 0-1 and nodes 2-3 already: ",
			holders: []memorymanager.Holder{{Pod: "a", Container: "c", Nodes: nodeset.Of(0, 1)}, {Pod: "b", Container: "c", Nodes: nodeset.Of(2, 3)}},
			helps:   "all of these containers end, or a request that one NUMA node outside of a group has free",
		},
		"its own pod's container is on a part of them": {
			nodes: plain(2), policy: topologymanager.BestEffort, first: []memorymanager.Container{app("a", gi)},
			c:      memorymanager.Container{Pod: "a", Name: "d", Request: memory(12 * gi)},
			reason: memorymanager.UnexpectedAdmissionError, err: "nodes 0-1 together have room, but containers use node 0 already: ",
			helps: "a request that one NUMA node has free",
		},
		"its own pod's container has the group": {
			nodes: plain(2), policy: topologymanager.Restricted, first: []memorymanager.Container{app("a", 12*gi)},
			c:      memorymanager.Container{Pod: "a", Name: "d", Request: memory(gi)},
			reason: memorymanager.TopologyAffinityError,
			err: "only nodes 0-1 together have room, although fewer nodes would hold the request if they were free: " +
				"node 1 has room, but only a container that gets all of nodes 0-1 may join the containers there: node 0",
		},
		"its own pod's container and another's are on a part of them": {
			nodes: plain(3), policy: topologymanager.BestEffort, first: []memorymanager.Container{app("a", 6*gi), app("b", 6*gi), app("d", 5*gi)},
			c:      memorymanager.Container{Pod: "a", Name: "d", Request: memory(8 * gi)},
			reason: memorymanager.UnexpectedAdmissionError, err: "nodes 0,2 together have room, but containers use node 0 and node 2 already",
			holders: []memorymanager.Holder{{Pod: "d", Container: "c", Nodes: nodeset.Of(2)}},
			helps:   "all of these containers end, or a request that one NUMA node has free",
		},
		"a container alone on a node bars the group, and CPUs on one node bar it, too": {
			nodes: plain(2), policy: topologymanager.Restricted, first: []memorymanager.Container{app("a", gi)},
			c:      memorymanager.Container{Pod: "b", Name: "c", Request: memory(16 * gi), CPUs: nodeset.Of(0)},
			reason: memorymanager.UnexpectedAdmissionError,
			err: "nodes 0-1 together have room, but containers use node 0 already: a container gets several nodes only if they are unused, or if all containers on " +
				"them have exactly these nodes, and its exclusive CPUs are on node 0: node 0",
			helps: "a request that one NUMA node has free",
		},
		"a smaller request would not be placed where its CPUs are": {
			nodes: plain(3), policy: topologymanager.Restricted, first: []memorymanager.Container{app("a", 10*gi), app("b", 7*gi), app("d", 7*gi)},
			c:      memorymanager.Container{Pod: "e", Name: "c", Request: memory(5 * gi), CPUs: nodeset.Of(0)},
			reason: memorymanager.UnexpectedAdmissionError,
			err:    "nodes 1-2 together have room, but the policy admits no more nodes than an empty machine needs, and its exclusive CPUs are on node 0: node 0",
		},
		"nothing asked for": {
			nodes: plain(1), c: memorymanager.Container{Pod: "p", Name: "c"}, reason: memorymanager.InvalidRequest,
			err: "policy none, scope container: the request names no memory",
		},
		"not sorted": {
			nodes: plain(1), c: memorymanager.Container{Pod: "p", Name: "c", Request: append(memory(1), memory(1)...)},
			reason: memorymanager.InvalidRequest, err: "the request is not sorted by memory type, or names one twice",
		},
		"too many types": {
			nodes: plain(1), c: memorymanager.Container{Pod: "p", Name: "c", Request: make(memorymanager.Request, 9)},
			reason: memorymanager.InvalidRequest, err: "the request names too many memory types",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := manager(t, test.nodes, test.policy)
			for _, c := range test.first {
				mustAdmit(t, m, c)
			}
			before := m.State()
			_, err := m.Allocate(test.c)
			var rejected *memorymanager.AllocationError
			if !errors.As(err, &rejected) {
				t.Fatalf("got %v, want a rejection", err)
			}
			if rejected.Reason != test.reason {
				t.Errorf("reason is %s, want %s", rejected.Reason, test.reason)
			}
			if !strings.Contains(err.Error(), test.err) {
				t.Errorf("got  %s\nwant %s", err, test.err)
			}
			if diff := cmp.Diff(test.holders, rejected.Holders); diff != "" {
				t.Errorf("who keeps it from nodes with room: %s", diff)
			}
			if rejected.Helps != test.helps {
				t.Errorf("what helps is %q, want %q", rejected.Helps, test.helps)
			}
			if diff := cmp.Diff(before, m.State()); diff != "" {
				t.Errorf("the state changed: %s", diff)
			}
		})
	}
}

// TestFreesInAnotherOrder is kubernetes#113130: 240G over two nodes, 20G beside it; the 20G go, 10G come, and a restart
// must find what it left.
func TestFreesInAnotherOrder(t *testing.T) {
	nodes := []memorymanager.NodeCapacity{{ID: 0, Total: 220 * gi}, {ID: 1, Total: 220 * gi}}
	m := manager(t, nodes, topologymanager.BestEffort)
	mustAdmit(t, m, app("a", 240*gi))
	mustAdmit(t, m, app("b", 20*gi))
	m.ReleasePod("b")
	mustAdmit(t, m, app("c", 10*gi))
	restarted := manager(t, nodes, topologymanager.BestEffort)
	report, err := restarted.Restore(m.State(), 0)
	if err != nil || report.Restored != 2 || len(report.Problems) > 0 {
		t.Errorf("%+v, %v", report, err)
	}
	if diff := cmp.Diff(m.State(), restarted.State()); diff != "" {
		t.Error(diff)
	}
}

// TestPoolsOfTwoNodes is kubernetes#104682.
func TestPoolsOfTwoNodes(t *testing.T) {
	pages := memorymanager.Hugepages(2 * mi)
	var nodes []memorymanager.NodeCapacity
	for id := range 2 {
		nodes = append(nodes, memorymanager.NodeCapacity{ID: id, Total: gi, Pools: []memorymanager.Pool{{PageSize: 2 * mi, Count: 10}}})
	}
	m := manager(t, nodes, topologymanager.Restricted)
	request := func(bytes uint64) memorymanager.Request { return memorymanager.Request{{Type: pages, Bytes: bytes}} }
	p := mustAdmit(t, m, memorymanager.Container{Pod: "a", Name: "c", Request: request(24 * mi)})
	if p.Nodes != nodeset.Of(0, 1) {
		t.Errorf("24Mi are on %s", p.Nodes)
	}
	if _, err := m.Allocate(memorymanager.Container{Pod: "b", Name: "c", Request: request(4 * mi)}); err == nil {
		t.Error("what one node could hold is preferred on both")
	}
}

func TestAdmitAgainKeepsTheAllocation(t *testing.T) {
	m := manager(t, plain(2), topologymanager.Restricted)
	first := mustAdmit(t, m, app("p", 4*gi))
	before := m.State()
	again := mustAdmit(t, m, app("p", 4*gi))
	if !again.Existing || again.Nodes != first.Nodes || again.Affinity != first.Affinity || !cmp.Equal(before, m.State()) {
		t.Errorf("got %+v, had %+v", again, first)
	}
	if other := mustAdmit(t, m, app("p", 5*gi)); other.Affinity.Nodes != nodeset.Of(0, 1) || other.Blocks[0].Size != 4*gi {
		t.Errorf("another request changed the allocation: %+v", other)
	}
	two := append(memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 1}}, memory(4*gi)...)
	if other := mustAdmit(t, m, memorymanager.Container{Pod: "p", Name: "c", Request: two}); !other.Existing {
		t.Errorf("another request changed the allocation: %+v", other)
	}
	if !m.Release("p", "c") || m.Release("p", "c") || m.Release("q", "c") || m.ReleasePod("p") {
		t.Error("an allocation was released more or less than once")
	}
	if m.Blocks("p", "c") != nil || m.Allocations("p").Entries != nil {
		t.Error("a released allocation is still there")
	}
}

// TestPodsByTurns has the containers of two pods come by turns, as a runtime creates them.
func TestPodsByTurns(t *testing.T) {
	m := manager(t, plain(1), topologymanager.BestEffort)
	container := func(pod, name string, kind memoryqos.Kind, bytes uint64) memorymanager.Container {
		return memorymanager.Container{Pod: pod, Name: name, Kind: kind, Request: memory(bytes)}
	}
	mustAdmit(t, m, container("a", "init", memoryqos.Init, 4*gi))
	mustAdmit(t, m, container("b", "init", memoryqos.Init, 5*gi))
	mustAdmit(t, m, container("a", "app", memoryqos.App, 3*gi))
	mustAdmit(t, m, container("b", "proxy", memoryqos.Sidecar, gi))
	mustAdmit(t, m, container("b", "app", memoryqos.App, 5*gi))
	want := map[string]uint64{"a/init": gi, "a/app": 3 * gi, "b/init": 0, "b/proxy": gi, "b/app": 5 * gi}
	for _, pod := range []string{"a", "b"} {
		for _, e := range m.Allocations(pod).Entries {
			if got := e.Blocks[0].Size; got != want[pod+"/"+e.Container] {
				t.Errorf("%s of %s has %d", e.Container, pod, got)
			}
		}
	}
	if got := reservedBytes(m); !slices.Equal(got, []uint64{10 * gi}) {
		t.Errorf("allocated %d", got)
	}
	if problem := unbalanced(m.State()); problem != "" {
		t.Error(problem)
	}
	// b's sandbox starts again: its init container takes the app container's place.
	m.Release("b", "init")
	p := mustAdmit(t, m, container("b", "init", memoryqos.Init, 5*gi))
	if p.Blocks[0].Size != 0 || p.Nodes != nodeset.Of(0) {
		t.Errorf("the init container that runs again has %+v", p)
	}
	c := container("b", "init2", memoryqos.Init, 1)
	if c.Request[0].Type = "hugepages-2Mi"; c.Request[0].Type != memorymanager.Memory {
		if _, err := m.Allocate(c); err == nil {
			t.Error("an init container that runs again got pages that are not there")
		}
	}
}

func TestPodScope(t *testing.T) {
	m, err := memorymanager.New(plain(2), memorymanager.Options{Policy: topologymanager.Restricted, Scope: topologymanager.PodScope})
	if err != nil {
		t.Fatal(err)
	}
	pod := func(uid string, sizes ...uint64) (containers []memorymanager.Container) {
		for i, size := range sizes {
			containers = append(containers, memorymanager.Container{Pod: uid, Name: string(rune('a' + i)), Request: memory(size)})
		}
		return containers
	}
	both := pod("p", 6*gi, 5*gi)
	hint, err := m.AlignPod("p", both)
	if err != nil || hint.Nodes != nodeset.Of(0, 1) {
		t.Fatalf("%v, %v", hint, err)
	}
	for _, c := range both {
		if p := mustAdmit(t, m, c); p.Nodes != nodeset.Of(0, 1) || p.Affinity != hint {
			t.Errorf("%s is on %s", c.Name, p.Nodes)
		}
	}
	if again, err := m.AlignPod("p", both); err != nil || !again.Preferred {
		t.Errorf("again: %v, %v", again, err)
	}
	tests := map[string]struct {
		containers []memorymanager.Container
		reason     memorymanager.Reason
		err        string
	}{
		"not preferred": {pod("q", gi), memorymanager.TopologyAffinityError, "the pod's containers together, policy restricted, scope pod: only nodes 0-1"},
		"no containers": {nil, memorymanager.InvalidRequest, "the pod's containers together, policy restricted, scope pod: the request names no memory"},
		"no such pages": {
			[]memorymanager.Container{{Pod: "q", Name: "c", Request: memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 1}}}},
			memorymanager.UnexpectedAdmissionError, "no NUMA node has hugepages-2Mi",
		},
		"more than there are bytes": {pod("q", 1<<63, 1<<63, 1<<63), memorymanager.Reason{}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := m.AlignPod("q", test.containers)
			var rejected *memorymanager.AllocationError
			if errors.As(err, &rejected) != (test.reason != memorymanager.Reason{}) {
				t.Fatal(err)
			}
			if rejected != nil && (rejected.Reason != test.reason || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("%s: %v", rejected.Reason, err)
			}
			m.ReleasePod("q")
		})
	}
}

func TestResize(t *testing.T) {
	required := func(c memorymanager.Container) memorymanager.Container { c.Required = true; return c }
	tests := map[string]struct {
		policy topologymanager.Policy
		first  []memorymanager.Container
		c      memorymanager.Container
		nodes  nodeset.Set
		want   []uint64
		err    string
		// Where there is an err: what is allocated, and what is short, of a resize that is not refused.
		partly []uint64
		short  uint64
	}{
		"grow in place":                 {first: []memorymanager.Container{app("p", 4*gi)}, c: app("p", 6*gi), nodes: nodeset.Of(0), want: []uint64{6 * gi, 0, 0}},
		"shrink":                        {first: []memorymanager.Container{app("p", 4*gi)}, c: app("p", gi), nodes: nodeset.Of(0), want: []uint64{gi, 0, 0}},
		"shrink in a group":             {first: []memorymanager.Container{app("p", 14*gi)}, c: app("p", 12*gi), nodes: nodeset.Of(0, 1), want: []uint64{8 * gi, 4 * gi, 0}},
		"to a superset":                 {first: []memorymanager.Container{app("p", 4*gi)}, c: app("p", 16*gi), nodes: nodeset.Of(0, 1), want: []uint64{10 * gi, 6 * gi, 0}},
		"to all":                        {policy: topologymanager.BestEffort, first: []memorymanager.Container{app("p", 14*gi)}, c: app("p", 24*gi), nodes: nodeset.Of(0, 1, 2), want: []uint64{10 * gi, 10 * gi, 4 * gi}},
		"one node only":                 {policy: topologymanager.SingleNUMANode, first: []memorymanager.Container{app("p", 4*gi)}, c: app("p", 16*gi), err: "node 0 has no room for more, and the policy allows no second one: node 0: 6Gi of 10Gi free, 12Gi more needed; node 1: 10Gi of 10Gi free, 12Gi more needed", partly: []uint64{10 * gi, 0, 0}, short: 6 * gi},
		"others keep the node":          {first: []memorymanager.Container{app("p", 4*gi), app("q", 4*gi)}, c: app("p", 8*gi), err: "node 0 has no room for more, and other containers there keep it from getting more nodes", partly: []uint64{10 * gi, 0, 0}, short: 2 * gi},
		"others keep the group":         {first: []memorymanager.Container{app("p", 14*gi), app("r", 10*gi), app("q", 5*gi)}, c: app("p", 16*gi), err: "nodes 0-1 have no room for more, and other containers there keep it from getting more nodes", partly: []uint64{10 * gi, 10 * gi, 10 * gi}, short: gi},
		"larger than the machine":       {first: []memorymanager.Container{app("p", 4*gi)}, c: app("p", 40*gi), err: "node 0 has no room for more, nor with unused nodes", partly: []uint64{10 * gi, 0, 0}, short: 30 * gi},
		"a node that is full":           {first: []memorymanager.Container{app("p", 4*gi), app("q", 6*gi)}, c: app("p", 5*gi), err: "node 0 has no room for more", partly: []uint64{10 * gi, 0, 0}, short: gi},
		"in a group of others":          {policy: topologymanager.Restricted, first: []memorymanager.Container{app("p", 14*gi), app("q", 9*gi)}, c: app("p", 16*gi), nodes: nodeset.Of(0, 1), want: []uint64{10 * gi, 6 * gi, 9 * gi}},
		"pages that are not there":      {first: []memorymanager.Container{app("p", gi)}, c: memorymanager.Container{Pod: "p", Name: "c", Request: memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 1}}}, err: "no NUMA node has hugepages-2Mi"},
		"without an allocation":         {c: app("p", gi), err: "the container has no allocation to resize"},
		"without a request":             {c: memorymanager.Container{Pod: "p", Name: "c"}, err: "the request names no memory"},
		"restricted to a preferred two": {policy: topologymanager.Restricted, first: []memorymanager.Container{app("p", 4*gi)}, c: app("p", 12*gi), nodes: nodeset.Of(0, 1), want: []uint64{10 * gi, 2 * gi, 0}},
		"required, to a preferred two":  {policy: topologymanager.BestEffort, first: []memorymanager.Container{app("p", 4*gi)}, c: required(app("p", 12*gi)), nodes: nodeset.Of(0, 1), want: []uint64{10 * gi, 2 * gi, 0}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := manager(t, plain(3), test.policy)
			for _, c := range test.first {
				mustAdmit(t, m, c)
			}
			before := m.State()
			p, err := m.Resize(test.c, true)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want %s", err, test.err)
				}
				if diff := cmp.Diff(before, m.State()); diff != "" {
					t.Errorf("the state changed: %s", diff)
				}
				testShort(t, m, test.c, test.partly, test.short)
				return
			}
			if err != nil || p.Nodes != test.nodes || p.PendingResize != nil {
				t.Fatalf("got %s, short of %s (%v), want %s", p.Nodes, p.PendingResize, err, test.nodes)
			}
			if got := reservedBytes(m); !slices.Equal(got, test.want) {
				t.Errorf("allocated %d, want %d", got, test.want)
			}
			if problem := unbalanced(m.State()); problem != "" {
				t.Error(problem)
			}
			m.ReleasePod("p")
			m.ReleasePod("q")
			if got := reservedBytes(m); !slices.Equal(got, []uint64{0, 0, 0}) {
				t.Errorf("allocated %d at the end", got)
			}
		})
	}
	for name, test := range map[string]struct {
		policy topologymanager.Policy
		c      memorymanager.Container
		err    string
	}{
		"restricted, unequal nodes": {topologymanager.Restricted, app("p", 12*gi), "it would need nodes 0-1, more than preferred"},
		"required, unequal nodes":   {topologymanager.BestEffort, required(app("p", 12*gi)), "it would need nodes 0-1, more than preferred"},
		"best effort":               {topologymanager.BestEffort, app("p", 12*gi), ""},
		"required under none":       {topologymanager.None, required(app("p", 12*gi)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := manager(t, append(plain(2), memorymanager.NodeCapacity{ID: 2, Total: 30 * gi}), test.policy)
			mustAdmit(t, m, app("p", 4*gi))
			if _, err := m.Resize(test.c, true); (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %v, want %q", err, test.err)
			}
		})
	}
}

// testShort resizes a container that is not to be refused, and again once the others are gone. want is nil where the
// request itself is wrong.
func testShort(t *testing.T, m *memorymanager.Manager, c memorymanager.Container, want []uint64, short uint64) {
	t.Helper()
	p, err := m.Resize(c, false)
	if want == nil {
		if err == nil {
			t.Error("it is accepted")
		}
		return
	}
	if err != nil || p.Nodes != nodeset.Of(0, 1, 2) || !slices.Equal(p.PendingResize, memory(short)) {
		t.Fatalf("accepted on %s, short of %s (%v), want all nodes and %d", p.Nodes, p.PendingResize, err, short)
	}
	if got := reservedBytes(m); !slices.Equal(got, want) {
		t.Errorf("allocated %d, want %d", got, want)
	}
	if problem := unbalanced(m.State()); problem != "" {
		t.Error(problem)
	}
	before := m.State()
	if again, err := m.Resize(c, false); err != nil || !slices.Equal(again.PendingResize, p.PendingResize) || !cmp.Equal(before, m.State()) {
		t.Errorf("the same again: short of %s (%v)%s", again.PendingResize, err, cmp.Diff(before, m.State()))
	}
	if report, err := m.Restore(m.State(), 0); err != nil || len(report.Problems) > 0 || len(report.Lost) > 0 {
		t.Errorf("restored: %+v, %v", report, err)
	}
	if again, err := m.Resize(c, false); err != nil || !slices.Equal(again.PendingResize, p.PendingResize) {
		t.Errorf("after a restart it is short of %s (%v), want %s", again.PendingResize, err, p.PendingResize)
	}
	m.ReleasePod("q")
	m.ReleasePod("r")
	c.Request = memory(9 * gi)
	if p, err := m.Resize(c, false); err != nil || p.Nodes == nodeset.Of(0, 1, 2) || p.PendingResize != nil {
		t.Errorf("with room it is on %s, short of %s (%v)", p.Nodes, p.PendingResize, err)
	}
}

// TestReinstate restarts a container whose limit has grown and that fits nowhere.
func TestReinstate(t *testing.T) {
	m := manager(t, plain(2), topologymanager.Restricted)
	mustAdmit(t, m, app("p", 4*gi))
	mustAdmit(t, m, app("q", 4*gi))
	mustAdmit(t, m, app("r", 8*gi))
	blocks := m.Blocks("p", "c")
	m.Release("p", "c")
	p, err := m.Reinstate(app("p", 12*gi), blocks)
	if err != nil || p.Nodes != nodeset.Of(0, 1) || !slices.Equal(p.PendingResize, memory(6*gi)) {
		t.Errorf("on %s, short of %s (%v)", p.Nodes, p.PendingResize, err)
	}
	if got := reservedBytes(m); !slices.Equal(got, []uint64{10 * gi, 8 * gi}) {
		t.Errorf("allocated %d", got)
	}
	if problem := unbalanced(m.State()); problem != "" {
		t.Error(problem)
	}
	if _, err := m.Reinstate(app("s", gi), nil); err == nil {
		t.Error("nothing was reinstated without an error")
	}
}

func TestSpread(t *testing.T) {
	m := manager(t, plain(2), topologymanager.BestEffort)
	all := nodeset.Of(0, 1)
	if m.Spread(all) {
		t.Error("unused nodes join no group")
	}
	mustAdmit(t, m, app("p", 4*gi))
	if !m.Spread(all) || m.Spread(nodeset.Of(0)) {
		t.Errorf("beside a container on node 0: all nodes %v, node 0 %v", m.Spread(all), m.Spread(nodeset.Of(0)))
	}
	m.ReleasePod("p")
	mustAdmit(t, m, app("p", 14*gi))
	if m.Spread(all) {
		t.Error("all nodes are one group")
	}
}

func TestAdopt(t *testing.T) {
	m := manager(t, plain(3), topologymanager.BestEffort)
	if p, err := m.Adopt("p", "c", memory(12*gi), nodeset.Of(0)); err != nil || len(p.Overcommitted) != 1 ||
		p.Overcommitted[0] != (memorymanager.NodeShortage{Node: 0, Amount: memorymanager.Amount{Type: memorymanager.Memory, Bytes: 2 * gi}}) {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := m.Adopt("p", "c", memory(12*gi), nodeset.Of(0)); err != nil || !p.Existing {
		t.Errorf("again: %+v, %v", p, err)
	}
	if p, err := m.Adopt("p", "c", memory(12*gi), nodeset.Of(0, 1)); err != nil || p.Nodes != nodeset.Of(0, 1) || len(p.Overcommitted) > 0 {
		t.Errorf("elsewhere: %+v, %v", p, err)
	}
	if _, err := m.Adopt("q", "c", memory(gi), nodeset.Of(1, 2)); err != nil {
		t.Error(err)
	}
	for _, n := range m.Nodes() {
		if n.Cells != nodeset.Of(0, 1, 2) {
			t.Errorf("node %d is in %s: containers overlap", n.ID, n.Cells)
		}
	}
	if p := mustAdmit(t, m, app("s", 17*gi-1)); p.Nodes != nodeset.Of(0, 1, 2) {
		t.Errorf("on %s, want the joined group", p.Nodes)
	}
	m.ReleasePod("s")
	m.ReleasePod("p")
	if n := m.Nodes()[0]; n.Cells != nodeset.Of(0) || n.Assignments != 0 {
		t.Errorf("node 0 is still in %s", n.Cells)
	}
	tests := map[string]struct {
		request memorymanager.Request
		nodes   nodeset.Set
		err     string
	}{
		"no nodes":      {memory(1), 0, `nodes "" are not all of this machine's 0-2`},
		"foreign nodes": {memory(1), nodeset.Of(2, 3), `nodes "2-3" are not all of this machine's 0-2`},
		"no request":    {nil, nodeset.Of(0), "the request names no memory"},
		"foreign pages": {memorymanager.Request{{Type: "hugepages-2Mi"}}, nodeset.Of(0), "no NUMA node has hugepages-2Mi"},
	}
	for name, test := range tests {
		if _, err := m.Adopt("x", "c", test.request, test.nodes); err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: got %v, want %s", name, err, test.err)
		}
	}
}

func TestFallBack(t *testing.T) {
	m, err := memorymanager.New(plain(3), memorymanager.Options{Policy: topologymanager.BestEffort, FallBack: true})
	if err != nil {
		t.Fatal(err)
	}
	mustAdmit(t, m, app("a", 15*gi))
	p := mustAdmit(t, m, memorymanager.Container{Pod: "b", Name: "c", Request: memory(8 * gi), CPUs: nodeset.Of(0)})
	if p.Nodes != nodeset.Of(2) {
		t.Errorf("on %s, want the node that has room", p.Nodes)
	}
	if _, err := m.Allocate(app("d", 9*gi)); err == nil {
		t.Error("placed where nothing fits")
	}
}

func TestExplain(t *testing.T) {
	m := manager(t, plain(4), topologymanager.BestEffort)
	mustAdmit(t, m, app("a", 15*gi))
	before := m.State()
	texts := func(e memorymanager.Explanation) (texts []string) {
		for _, c := range e.Candidates {
			text := c.Nodes.String()
			if c.Preferred {
				text += "+"
			}
			if c.Chosen {
				text += " chosen"
			}
			if c.Why != "" {
				text += " " + c.Why
			}
			texts = append(texts, text)
		}
		return texts
	}
	tests := map[string]struct {
		c     memorymanager.Container
		nodes nodeset.Set
		err   string
		want  []string
	}{
		"one node": {
			c: app("b", 4*gi), nodes: nodeset.Of(2),
			want: []string{
				"2+ chosen", "0 is in the group 0-1", "1 is in the group 0-1", "3+ has room, but comes after node 2",
				"0-1 has room, but comes after node 2", "2-3 has room, but comes after node 2",
			},
		},
		"two nodes": {
			c: app("b", 14*gi), nodes: nodeset.Of(2, 3),
			want: []string{
				"2-3+ chosen",
				"0 0 of 10Gi free, 14Gi needed", "1 5Gi of 10Gi free, 14Gi needed",
				"2 10Gi of 10Gi free, 14Gi needed", "3 10Gi of 10Gi free, 14Gi needed",
				"0-1 5Gi of 20Gi free, 14Gi needed",
			},
		},
		"nothing fits": {
			c: app("b", 25*gi), err: "nodes 1-3 together have room, but containers use nodes 0-1 already",
			want: []string{
				"0 0 of 10Gi free, 25Gi needed", "1 5Gi of 10Gi free, 25Gi needed",
				"2 10Gi of 10Gi free, 25Gi needed", "3 10Gi of 10Gi free, 25Gi needed",
				"0-1 5Gi of 20Gi free, 25Gi needed", "2-3 20Gi of 20Gi free, 25Gi needed",
			},
		},
		"CPUs elsewhere": {
			c: memorymanager.Container{Pod: "b", Name: "c", Request: memory(6 * gi), CPUs: nodeset.Of(1, 2)}, nodes: nodeset.Of(2),
			want: []string{
				"2+ chosen", "0 is in the group 0-1", "1 is in the group 0-1", "3+ has room, but comes after node 2",
				"0-1 5Gi of 20Gi free, 6Gi needed", "2-3 has room, but comes after node 2",
			},
		},
		"CPUs that cut through": {
			c: memorymanager.Container{Pod: "b", Name: "c", Request: memory(8 * gi), CPUs: nodeset.Of(0)}, err: "cuts through a group",
			want: []string{
				"0 is in the group 0-1", "1 is in the group 0-1", "2+ not as the policy best-effort wants it",
				"3+ not as the policy best-effort wants it", "0-1 5Gi of 20Gi free, 8Gi needed",
				"2-3 not as the policy best-effort wants it",
			},
		},
		"existing, without its own allocation": {
			c: app("a", 15*gi), nodes: nodeset.Of(0, 1),
			want: []string{
				"0-1+ chosen",
				"0 10Gi of 10Gi free, 15Gi needed", "1 10Gi of 10Gi free, 15Gi needed",
				"2 10Gi of 10Gi free, 15Gi needed", "3 10Gi of 10Gi free, 15Gi needed",
				"0-3 has room, but comes after nodes 0-1",
			},
		},
		"no request": {c: app("a", 0), nodes: nodeset.Of(0, 1)},
		"invalid":    {c: memorymanager.Container{Pod: "x"}, err: "the request names no memory"},
		"no pages": {
			c:   memorymanager.Container{Pod: "x", Name: "c", Request: memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 1}}},
			err: "no NUMA node has hugepages-2Mi",
			want: []string{
				"0 no hugepages-2Mi", "1 no hugepages-2Mi", "2 no hugepages-2Mi", "3 no hugepages-2Mi",
				"0-1 no hugepages-2Mi", "2-3 no hugepages-2Mi",
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := m.Explain(test.c)
			if (e.Rejected != "") != (test.err != "") || !strings.Contains(e.Rejected, test.err) || e.Nodes != test.nodes {
				t.Errorf("got %s, %s; want %s, %s", e.Nodes, e.Rejected, test.nodes, test.err)
			}
			if got := texts(e); test.want != nil && !slices.Equal(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			if diff := cmp.Diff(before, m.State()); diff != "" {
				t.Errorf("the state changed: %s", diff)
			}
		})
	}
}

func TestRestore(t *testing.T) {
	pages := memorymanager.Hugepages(gi)
	withPages := func(total, count uint64, n int) (nodes []memorymanager.NodeCapacity) {
		for id := range n {
			nodes = append(nodes, memorymanager.NodeCapacity{ID: id, Total: total, Pools: []memorymanager.Pool{{PageSize: gi, Count: count}}})
		}
		return nodes
	}
	stored := manager(t, withPages(14*gi, 4, 3), topologymanager.BestEffort)
	mustAdmit(t, stored, memorymanager.Container{
		Pod: "a", Name: "c", Request: append(memorymanager.Request{{Type: pages, Bytes: 5 * gi}}, memory(18*gi)...),
	})
	mustAdmit(t, stored, app("b", 10*gi))
	tests := map[string]struct {
		nodes  []memorymanager.NodeCapacity
		change func(s *memorymanager.State)
		want   memorymanager.RestoreReport
		bytes  []uint64
		err    string
	}{
		"as it was": {nodes: withPages(14*gi, 4, 3), want: memorymanager.RestoreReport{Restored: 2}, bytes: []uint64{10 * gi, 8 * gi, 10 * gi}},
		"a little less": {
			nodes: withPages(14*gi-mi, 4, 3), bytes: []uint64{10*gi - mi, 8 * gi, 10*gi - mi},
			want: memorymanager.RestoreReport{Restored: 2, Drifted: []memorymanager.Drift{
				{Node: 0, Type: "memory", Stored: 10 * gi, Now: 10*gi - mi, Tolerated: true},
				{Node: 1, Type: "memory", Stored: 10 * gi, Now: 10*gi - mi, Tolerated: true},
				{Node: 2, Type: "memory", Stored: 10 * gi, Now: 10*gi - mi, Tolerated: true},
			}},
		},
		"much less": {
			nodes: withPages(13*gi, 4, 3), bytes: []uint64{9 * gi, 8 * gi, 9 * gi},
			want: memorymanager.RestoreReport{Restored: 2, Drifted: []memorymanager.Drift{
				{Node: 0, Type: "memory", Stored: 10 * gi, Now: 9 * gi}, {Node: 1, Type: "memory", Stored: 10 * gi, Now: 9 * gi},
				{Node: 2, Type: "memory", Stored: 10 * gi, Now: 9 * gi},
			}, Lost: []memorymanager.NodeShortage{
				{Node: 0, Amount: memorymanager.Amount{Type: "memory", Bytes: gi}}, {Node: 2, Amount: memorymanager.Amount{Type: "memory", Bytes: gi}},
			}},
		},
		"a node gone": {
			nodes: withPages(14*gi, 4, 2), bytes: []uint64{10 * gi, 8 * gi},
			want: memorymanager.RestoreReport{
				Restored: 1, Vanished: nodeset.Of(2),
				Drifted: []memorymanager.Drift{{Node: 2, Type: pages, Stored: 4 * gi}, {Node: 2, Type: "memory", Stored: 10 * gi}},
				Lost:    []memorymanager.NodeShortage{{Node: 2, Amount: memorymanager.Amount{Type: "memory", Bytes: 10 * gi}}},
				Problems: []string{
					"container c of pod b: nodes 2 of its memory are gone", "container c of pod b: its memory is on no node of this machine",
				},
			},
		},
		"one node of a group gone": {
			nodes: withPages(14*gi, 4, 3)[1:], bytes: []uint64{10 * gi, 10 * gi},
			want: memorymanager.RestoreReport{
				Restored: 2, Vanished: nodeset.Of(0),
				Drifted: []memorymanager.Drift{{Node: 0, Type: pages, Stored: 4 * gi}, {Node: 0, Type: "memory", Stored: 10 * gi}},
				Lost: []memorymanager.NodeShortage{
					{Node: 1, Amount: memorymanager.Amount{Type: pages, Bytes: gi}}, {Node: 1, Amount: memorymanager.Amount{Type: "memory", Bytes: 8 * gi}},
				},
				Problems: []string{
					"container c of pod a: nodes 0 of its hugepages-1Gi are gone", "container c of pod a: nodes 0 of its memory are gone",
					"node 1: hugepages-1Gi reserved 1Gi stored, its entries make 5Gi",
					"node 1: memory reserved 8Gi stored, its entries make 18Gi",
				},
			},
		},
		"pages gone": {
			nodes: plain(3), bytes: []uint64{10 * gi, 8 * gi, 10 * gi},
			want: memorymanager.RestoreReport{
				Restored: 2,
				Drifted: []memorymanager.Drift{
					{Node: 0, Type: pages, Stored: 4 * gi}, {Node: 1, Type: pages, Stored: 4 * gi}, {Node: 2, Type: pages, Stored: 4 * gi},
				},
				Lost: []memorymanager.NodeShortage{{Node: 0, Amount: memorymanager.Amount{Type: pages, Bytes: 5 * gi}}},
				Problems: []string{
					"container c of pod a: this machine has no hugepages-1Gi",
					"node 0: 2 assignments stored, its entries make 1", "node 1: 2 assignments stored, its entries make 1",
				},
			},
		},
		"node map that is not its entries'": {
			nodes: withPages(14*gi, 4, 3), bytes: []uint64{10 * gi, 8 * gi, 10 * gi},
			change: func(s *memorymanager.State) {
				s.Nodes[2].Cells, s.Nodes[2].Assignments = nodeset.Of(1, 2), 5
				s.Nodes[2].Memory[1].Reserved = 1
			},
			want: memorymanager.RestoreReport{Restored: 2, Problems: []string{
				"node 2: 5 assignments stored, its entries make 1", "node 2: group 1-2 stored, its entries make 2",
				"node 2: memory reserved 1 stored, its entries make 10Gi",
			}},
		},
		"nothing says where the bytes are": {
			nodes: withPages(14*gi, 4, 3), bytes: []uint64{10 * gi, 8 * gi, 10 * gi},
			change: func(s *memorymanager.State) {
				s.Nodes = nil
				for i := range s.Entries {
					for j := range s.Entries[i].Blocks {
						s.Entries[i].Blocks[j].PerNode = nil
					}
				}
			},
			want: memorymanager.RestoreReport{Restored: 2},
		},
		"a block twice": {
			nodes: withPages(14*gi, 4, 3), bytes: []uint64{10 * gi, 8 * gi, 10 * gi},
			change: func(s *memorymanager.State) {
				s.Entries[1].Blocks = append(s.Entries[1].Blocks, s.Entries[1].Blocks[0])
			},
			want: memorymanager.RestoreReport{Restored: 2, Problems: []string{"container c of pod b: its memory is there twice"}},
		},
		"an entry twice": {
			nodes:  withPages(14*gi, 4, 3),
			change: func(s *memorymanager.State) { s.Entries = append(s.Entries, s.Entries[0]) },
			err:    `restore allocations: entry of container "c" of pod "a" is without a name or there twice`,
		},
		"an entry without a name": {
			nodes:  withPages(14*gi, 4, 3),
			change: func(s *memorymanager.State) { s.Entries[0].Container = "" },
			err:    `restore allocations: entry of container "" of pod "a" is without a name or there twice`,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m, state := manager(t, test.nodes, topologymanager.BestEffort), stored.State()
			if test.change != nil {
				test.change(&state)
			}
			report, err := m.Restore(state, memorymanager.DefaultTolerance)
			if test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Errorf("got %v, want %s", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, report); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if got := reservedBytes(m); !slices.Equal(got, test.bytes) {
				t.Errorf("allocated %d, want %d", got, test.bytes)
			}
			if problem := unbalanced(m.State()); problem != "" {
				t.Error(problem)
			}
		})
	}
}

// TestManyPodsComeAndGo keeps the node map of pods that nobody looked at in between.
func TestManyPodsComeAndGo(t *testing.T) {
	m := manager(t, plain(1), topologymanager.None)
	for i := range 300 {
		mustAdmit(t, m, app(string(rune('a'+i)), 1))
		if i%3 > 0 {
			m.ReleasePod(string(rune('a' + i - 1)))
		}
	}
	s := m.State()
	if !slices.IsSortedFunc(s.Entries, func(a, b memorymanager.Entry) int { return strings.Compare(a.Pod, b.Pod) }) {
		t.Error("entries are not sorted")
	}
	if len(s.Entries) != m.Nodes()[0].Assignments || unbalanced(s) != "" {
		t.Errorf("%d entries, %d assignments", len(s.Entries), m.Nodes()[0].Assignments)
	}
}

// A rejection in one line is bounded however many nodes there are; its Text has them all.
func TestARejectionInOneLineIsBounded(t *testing.T) {
	m := manager(t, plain(64), topologymanager.SingleNUMANode)
	_, err := m.Allocate(app("p", 11*gi))
	var rejected *memorymanager.AllocationError
	if !errors.As(err, &rejected) {
		t.Fatal(err)
	}
	line, lines := err.Error(), strings.Split(rejected.Text(), "\n")
	if len(line) > 640 || strings.Contains(line, "\n") || !strings.HasSuffix(line, "; node 11: 10Gi of 10Gi free, 11Gi needed; and 52 more") {
		t.Errorf("%d bytes: %s", len(line), line)
	}
	if len(lines) != 65 || lines[64] != "node 63: 10Gi of 10Gi free, 11Gi needed" {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}

package claims

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// on is a part of a claim: memory on a node.
func on(node int, bytes uint64) Part {
	return Part{Node: node, Amounts: memorymanager.Request{{Type: memorymanager.Memory, Bytes: bytes}}}
}

func claimOf(name string, parts ...Part) *Claim {
	return &Claim{UID: "uid-" + name, Namespace: "default", Name: name, Pods: []string{"web"}, Parts: parts}
}

// supply is two nodes of 16Gi, half of that for claims; a pod without claims has some of the first.
func supply(t *testing.T, allocated uint64) Supply {
	t.Helper()
	r := Supply{
		Nodes:     []memorymanager.NodeCapacity{{ID: 0, Total: 16 * gi}, {ID: 1, Total: 16 * gi}},
		Claimable: []Claimable{{0, on(0, 8*gi).Amounts}, {1, on(1, 8*gi).Amounts}},
	}
	var err error
	if r.Pods, err = memorymanager.New(r.Nodes, memorymanager.Options{}); err != nil {
		t.Fatal(err)
	}
	if allocated > 0 {
		if _, err := r.Pods.Adopt("pod", "app", on(0, allocated).Amounts, nodeset.Of(0)); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestFits(t *testing.T) {
	prepared := Prepared{"uid-a": claimOf("a", on(0, gi), on(1, 2*gi))}
	for name, test := range map[string]struct {
		claim     *Claim
		allocated uint64 // to pods, of node 0
		want      string
	}{
		"all that is left":       {claimOf("b", on(0, 15*gi), on(1, 14*gi)), 0, "<nil>"},
		"more":                   {claimOf("b", on(0, 15*gi), on(1, 15*gi)), 0, "takes 15Gi of memory on NUMA node 1, where claims have 14Gi left"},
		"beside pods":            {claimOf("b", on(0, 5*gi)), 10 * gi, "<nil>"},
		"what pods have":         {claimOf("b", on(0, 6*gi)), 10 * gi, "takes 6Gi of memory on NUMA node 0, where claims have 5Gi left"},
		"what pods and it have":  {claimOf("a", on(0, 16*gi)), 0, "<nil>"},
		"two parts of one node":  {claimOf("b", on(1, 10*gi), on(1, 10*gi)), 0, "takes 10Gi of memory on NUMA node 1, where claims have 4Gi left"},
		"another node":           {claimOf("b", on(7, gi)), 0, "NUMA node 7 has no memory for claims"},
		"another type of memory": {claimOf("b", Part{Amounts: memorymanager.Request{{Type: "hugepages-1Gi", Bytes: gi}}}), 0, "NUMA node 0 has no hugepages-1Gi for claims"},
		"nothing":                {claimOf("b"), 0, "has no UID or no NUMA node"},
		"no UID":                 {&Claim{Parts: []Part{on(0, gi)}}, 0, "has no UID or no NUMA node"},
	} {
		if got := fmt.Sprint(prepared.Fits(test.claim, supply(t, test.allocated))); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

func TestPart(t *testing.T) {
	prepared := Prepared{"uid-a": claimOf("a", on(1, gi))}
	for name, test := range map[string]struct {
		ref  Ref
		pod  string
		want string // the node, or the error
	}{
		"its own":        {Ref{"uid-a", 0}, "web", "1"},
		"not prepared":   {Ref{"uid-b", 0}, "web", "its resource claim uid-b is not prepared on this node"},
		"of another pod": {Ref{"uid-a", 0}, "db", "the resource claim default/a is not reserved for its pod"},
		"no such device": {Ref{"uid-a", 1}, "web", "the resource claim default/a has no device 1"},
	} {
		got, err := "", prepared.CheckReserved(test.ref.UID, test.pod)
		if err == nil {
			var parts []Part
			parts, err = prepared.Parts([]Ref{test.ref})
			got = Nodes(parts).String()
		}
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

// What claims have beyond the share is kept from pods, too, as far as the node has it, and shown where it is more than that.
func TestClaimsBeyondTheShareAndTheNode(t *testing.T) {
	prepared := Prepared{"uid-a": claimOf("a", on(0, 10*gi), on(1, 20*gi))}
	r := supply(t, 8*gi)
	want := []Claimable{{0, on(0, 10*gi).Amounts}, {1, on(1, 16*gi).Amounts}}
	if diff := cmp.Diff(want, prepared.Reserved(r.Claimable, r.Nodes)); diff != "" {
		t.Error(diff)
	}
	capacities := []Capacity{{0, memorymanager.Memory, 8 * gi, 10 * gi}, {1, memorymanager.Memory, 16 * gi, 20 * gi}}
	if diff := cmp.Diff(capacities, prepared.Capacities(r)); diff != "" {
		t.Error(diff)
	}
}

func TestBlocks(t *testing.T) {
	pages := Part{Node: 1, Amounts: memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 1 << 20}}}
	block := func(node int, name memorymanager.MemoryType, bytes uint64) memorymanager.Block {
		return memorymanager.Block{Nodes: nodeset.Of(node), Type: name, Size: bytes, PerNode: []memorymanager.NodeAmount{{Node: node, Bytes: bytes}}}
	}
	want := []memorymanager.Block{block(1, "hugepages-2Mi", 1<<20), block(0, "memory", 2*gi), block(1, "memory", 2*gi)}
	if diff := cmp.Diff(want, Blocks([]Part{on(1, gi), on(0, 2*gi), pages, on(1, gi)})); diff != "" {
		t.Error(diff)
	}
}

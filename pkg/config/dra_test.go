package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// twoNodes has 16Gi on each of two nodes, 4Gi of that in huge pages on node 1; 1Gi is reserved on node 0.
func twoNodes() machine.Machine {
	node := func(id int, pages uint64) machine.Node {
		return machine.Node{ID: id, Memory: 16 << 30, CPUs: cpuset.New(id), Hugepages: []machine.Pool{{PageSize: 2 << 20, Count: pages}}, Distances: []int{10, 10}}
	}
	return machine.Machine{PageSize: 4096, MemTotal: 32 << 30, Nodes: []machine.Node{node(0, 0), node(1, 2048)}}
}

const reserveOne = "reservedMemory: '0:memory=1Gi'\nevictionHard: {memory.available: 1Gi}\n"

func TestClaimableMemory(t *testing.T) {
	gi := func(memory, pages uint64) (amounts memorymanager.Request) {
		if pages > 0 {
			amounts = append(amounts, memorymanager.Amount{Type: "hugepages-2Mi", Bytes: pages})
		}
		if memory > 0 {
			amounts = append(amounts, memorymanager.Amount{Type: memorymanager.Memory, Bytes: memory})
		}
		return amounts
	}
	both := func(first, second memorymanager.Request) []claims.Claimable {
		return []claims.Claimable{{Node: 0, Amounts: first}, {Node: 1, Amounts: second}}
	}
	for name, test := range map[string]struct {
		dra  string
		want []claims.Claimable
	}{
		"off":                     {"{shares: [{limits: {memory: 100%}}]}", nil},
		"half of the allocatable": {"{enabled: true}", both(gi(15<<29, 0), gi(6<<30, 2<<30))},
		"all":                     {"{enabled: true, shares: [{limits: {memory: 100%, hugepages-2Mi: 100%}}]}", both(gi(15<<30, 0), gi(12<<30, 4<<30))},
		"nothing":                 {"{enabled: true, shares: [{limits: {memory: 0%, hugepages-2Mi: 0%}}]}", both(nil, nil)},
		"whole steps":             {"{enabled: true, shares: [{limits: {memory: 0.01%, hugepages-2Mi: 0.01%}}]}", both(nil, nil)},
		"by type":                 {"{enabled: true, shares: [{limits: {hugepages-2Mi: 100%}}]}", both(gi(15<<29, 0), gi(6<<30, 4<<30))},
		"by type and node, the last counts": {
			"{enabled: true, shares: [{limits: {memory: 5Gi}}, {numaNode: 1, limits: {memory: 1Gi}}]}",
			both(gi(5<<30, 0), gi(1<<30, 2<<30)),
		},
		"no more than there is": {"{enabled: true, shares: [{limits: {memory: 1Ti}}]}", both(gi(15<<30, 0), gi(12<<30, 2<<30))},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := Files(nil).Parse("c.yaml", []byte(reserveOne+"dra: "+test.dra))
			if err != nil {
				t.Fatal(err)
			}
			resolved, err := c.Resolve(twoNodes())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, resolved.Claimable); diff != "" {
				t.Error(diff)
			}
			rest, err := memorymanager.New(claims.WithReserved(resolved.Nodes, resolved.Claimable), resolved.Manager)
			if err != nil {
				t.Fatal(err)
			}
			whole, _ := memorymanager.New(resolved.Nodes, resolved.Manager)
			for i, node := range whole.Nodes() {
				for j, table := range node.Memory {
					var claimable uint64
					if test.want != nil {
						for _, amount := range test.want[i].Amounts {
							if amount.Type == table.Type {
								claimable = amount.Bytes
							}
						}
					}
					if left := rest.Nodes()[i].Memory[j].Allocatable; left != table.Allocatable-claimable {
						t.Errorf("node %d has %d of %s left for pods, want %d", node.ID, left, table.Type, table.Allocatable-claimable)
					}
				}
			}
		})
	}
}

func TestBadDRA(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"policy None":      {"memoryManagerPolicy: None\ndra: {enabled: true}", "c.yaml:2: dra.enabled: needs memoryManagerPolicy: Static"},
		"a bad quantity":   {"dra: {shares: [{limits: {memory: -1Gi}}]}", `c.yaml:1: dra.shares[0].limits.memory: want a percentage from 0% to 100% or a quantity such as 16Gi, got "-1Gi"`},
		"more than all":    {"dra: {shares: [{limits: {memory: 101%}}]}", `c.yaml:1: dra.shares[0].limits.memory: want a percentage from 0% to 100% or a quantity such as 16Gi, got "101%"`},
		"no limits":        {"dra: {shares: [{numaNode: 0}]}", "c.yaml:1: dra.shares[0]: limits is missing: want shares of memory or hugepages-<size>"},
		"unknown type":     {"dra: {shares: [{limits: {cpu: 50%}}]}", `c.yaml:1: dra.shares[0].limits: "cpu" is neither memory nor hugepages-<size>`},
		"neither":          {"dra: {shares: [{limits: {memory: half}}]}", `c.yaml:1: dra.shares[0].limits.memory: want a percentage from 0% to 100% or a quantity such as 16Gi, got "half"`},
		"not this machine": {"dra: {enabled: true, shares: [{numaNode: 7, limits: {memory: 1Gi}}]}", "c.yaml:3: dra.shares[0].numaNode: this machine has no NUMA node 7, only 0-1"},
	} {
		t.Run(name, func(t *testing.T) {
			text := test.text
			if name == "not this machine" {
				text = reserveOne + text
			}
			c, err := Files(nil).Parse("c.yaml", []byte(text))
			if err == nil {
				_, err = c.Resolve(twoNodes())
			}
			if err == nil || err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

package memorymanager_test

import (
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// TestCPUsAndDevicesOffTheMap has three nodes of 10Gi, and three without memory: node 1 is nearest to nodes 3 and 5, nodes 1 and 2 to
// node 4. It places a container of 1Gi under each policy that aligns, whatever counts where CPUs and devices disagree.
func TestCPUsAndDevicesOffTheMap(t *testing.T) {
	nearest := map[int]memorymanager.Nearest{}
	for id, nodes := range map[int]nodeset.Set{3: nodeset.Of(1), 4: nodeset.Of(1, 2), 5: nodeset.Of(1)} {
		nearest[id] = memorymanager.Nearest{Nodes: nodes, Why: "has no memory"}
	}
	gpu := func(nodes ...int) []topologymanager.Device {
		return []topologymanager.Device{topologymanager.NewDevice("gpu", "g", "", nodeset.Of(nodes...))}
	}
	for name, test := range map[string]struct {
		cpus    nodeset.Set
		devices []topologymanager.Device
		full    bool // node 1 is
		want    nodeset.Set
		says    string // explain
	}{
		"CPUs":                             {cpus: nodeset.Of(3), want: nodeset.Of(1), says: "node 3 has no memory: nearest is node 1"},
		"a device":                         {devices: gpu(3), want: nodeset.Of(1), says: "node 3 has no memory: nearest is node 1"},
		"CPUs and a device":                {cpus: nodeset.Of(5), devices: gpu(3), want: nodeset.Of(1), says: "node 3 has no memory: nearest is node 1, node 5 has no memory: nearest is node 1"},
		"CPUs on two nodes":                {cpus: nodeset.Of(3, 5), want: nodeset.Of(1), says: "node 3 has no memory: nearest is node 1, node 5 has no memory: nearest is node 1"},
		"two are as near":                  {cpus: nodeset.Of(4), want: nodeset.Of(1), says: "node 4 has no memory: nearest are nodes 1-2"},
		"two are as near, one is full":     {cpus: nodeset.Of(4), full: true, want: nodeset.Of(2), says: "node 4 has no memory: nearest are nodes 1-2"},
		"two are as near to a device":      {devices: gpu(4), full: true, want: nodeset.Of(2), says: "node 4 has no memory: nearest are nodes 1-2"},
		"what two nodes have in common":    {cpus: nodeset.Of(3, 4), want: nodeset.Of(1), says: "node 3 has no memory: nearest is node 1, node 4 has no memory: nearest are nodes 1-2"},
		"beside CPUs on the map":           {cpus: nodeset.Of(2, 4), want: nodeset.Of(2), says: "node 4 has no memory: nearest are nodes 1-2"},
		"a device near any, one on it":     {devices: gpu(2, 3), want: nodeset.Of(2), says: "node 3 has no memory: nearest is node 1"},
		"a device near any":                {devices: gpu(3, 4), full: true, want: nodeset.Of(2), says: "node 3 has no memory: nearest is node 1, node 4 has no memory: nearest are nodes 1-2"},
		"a node of which nothing is known": {cpus: nodeset.Of(9), want: nodeset.Of(0)},
	} {
		for _, policy := range []topologymanager.Policy{topologymanager.BestEffort, topologymanager.Restricted, topologymanager.SingleNUMANode} {
			for _, alignTo := range []topologymanager.AlignTo{topologymanager.AlignToKubelet, topologymanager.AlignToCPUs, topologymanager.AlignToDevices} {
				t.Run(name+", "+string(policy)+", "+string(alignTo), func(t *testing.T) {
					m, err := memorymanager.New(plain(3), memorymanager.Options{Policy: policy, AlignTo: alignTo, Nearest: nearest})
					if err != nil {
						t.Fatal(err)
					}
					if test.full {
						full := app("full", 10*gi)
						full.CPUs = nodeset.Of(1)
						mustAdmit(t, m, full)
					}
					c := app("p", gi)
					c.CPUs, c.Devices, c.Required = test.cpus, test.devices, true
					if e := m.Explain(c); e.Nodes != test.want || e.Aligned != test.says {
						t.Errorf("explain says nodes %s, %q", e.Nodes, e.Aligned)
					}
					p, err := m.Allocate(c)
					if err != nil || p.Nodes != test.want || !p.Affinity.Preferred {
						t.Errorf("nodes %s, preferred %v, error %v; want %s", p.Nodes, p.Affinity.Preferred, err, test.want)
					}
				})
			}
		}
	}
	t.Run("no room there", func(t *testing.T) {
		m, err := memorymanager.New(plain(3), memorymanager.Options{Policy: topologymanager.Restricted, Nearest: nearest})
		if err != nil {
			t.Fatal(err)
		}
		full := app("full", 10*gi)
		full.CPUs = nodeset.Of(1)
		mustAdmit(t, m, full)
		c := app("p", gi)
		c.Devices, c.Required = gpu(3), true
		const want = "its device gpu g on node 3 (node 3 has no memory: nearest is node 1): 0 of 10Gi free, 1Gi needed"
		if _, err := m.Allocate(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
		for _, test := range []struct {
			nodes nodeset.Set
			want  string
		}{{nodeset.Of(0), "node 3 has no memory: nearest is node 1, and its memory is on node 0"}, {nodeset.Of(0, 1), ""}, {0, ""}} {
			if got := m.Farther(c, test.nodes); got != test.want {
				t.Errorf("on nodes %s: %q, want %q", test.nodes, got, test.want)
			}
		}
	})
}

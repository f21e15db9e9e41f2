package topologymanager

import (
	"reflect"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

func TestJoin(t *testing.T) {
	on := nodeset.Of
	gpu := func(id string, nodes ...int) Device { return NewDevice("gpu", id, "test", on(nodes...)) }
	tests := map[string]struct {
		devices []Device
		want    []Device
	}{
		"none":                          {},
		"one":                           {[]Device{gpu("a", 1)}, []Device{{Resource: "gpu", IDs: []string{"a"}, Nodes: on(1), Source: "test"}}},
		"two of one node":               {[]Device{gpu("a", 1), gpu("b", 1)}, []Device{{Resource: "gpu", IDs: []string{"a", "b"}, Nodes: on(1), Source: "test"}}},
		"one per node":                  {[]Device{gpu("a", 0), gpu("b", 1)}, []Device{{Resource: "gpu", IDs: []string{"a", "b"}, Nodes: on(0, 1), Source: "test"}}},
		"near two":                      {[]Device{gpu("a", 0, 1)}, []Device{{Resource: "gpu", IDs: []string{"a"}, Nodes: on(0, 1), Any: true, Source: "test"}}},
		"near two, and on one of them":  {[]Device{gpu("a", 0, 1), gpu("b", 1)}, []Device{{Resource: "gpu", IDs: []string{"a", "b"}, Nodes: on(1), Source: "test"}}},
		"on one, and near it":           {[]Device{gpu("b", 1), gpu("a", 0, 1)}, []Device{{Resource: "gpu", IDs: []string{"b", "a"}, Nodes: on(1), Source: "test"}}},
		"near two, and on another":      {[]Device{gpu("a", 0, 1), gpu("b", 2)}, []Device{{Resource: "gpu", IDs: []string{"a", "b"}, Nodes: on(0, 1, 2), Source: "test"}}},
		"near the same two":             {[]Device{gpu("a", 0, 1), gpu("b", 0, 1)}, []Device{{Resource: "gpu", IDs: []string{"a", "b"}, Nodes: on(0, 1), Any: true, Source: "test"}}},
		"near two with one in common":   {[]Device{gpu("a", 0, 1), gpu("b", 1, 2)}, []Device{{Resource: "gpu", IDs: []string{"a", "b"}, Nodes: on(1), Source: "test"}}},
		"near two with none in common":  {[]Device{gpu("a", 0, 1), gpu("b", 2, 3)}, []Device{{Resource: "gpu", IDs: []string{"a", "b"}, Nodes: on(0, 1, 2, 3), Source: "test"}}},
		"without a node, and on one":    {[]Device{gpu("a"), gpu("b", 1)}, []Device{{Resource: "gpu", IDs: []string{"a", "b"}, Nodes: on(1), Source: "test"}}},
		"the same device twice":         {[]Device{gpu("a", 1), gpu("a", 1)}, []Device{{Resource: "gpu", IDs: []string{"a"}, Nodes: on(1), Source: "test"}}},
		"two resources, by their names": {[]Device{NewDevice("nic", "n", "", on(0)), gpu("a", 1)}, []Device{{Resource: "gpu", IDs: []string{"a"}, Nodes: on(1), Source: "test"}, {Resource: "nic", IDs: []string{"n"}, Nodes: on(0)}}},
	}
	for name, test := range tests {
		if got := Join(test.devices); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}

func TestDeviceText(t *testing.T) {
	for want, device := range map[string]Device{
		"nvidia.com/gpu g0 on node 1":             NewDevice("nvidia.com/gpu", "g0", "", nodeset.Of(1)),
		"nvidia.com/gpu g0 near any of nodes 0-1": NewDevice("nvidia.com/gpu", "g0", "", nodeset.Of(0, 1)),
		"nvidia.com/gpu g0, g1 on nodes 0-1":      {Resource: "nvidia.com/gpu", IDs: []string{"g0", "g1"}, Nodes: nodeset.Of(0, 1)},
		"/dev/dri/card0 on no NUMA node":          {Resource: "/dev/dri/card0"},
	} {
		if got := device.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestMergeWithDevices has CPUs on node 0 and memory with room on nodes 0 and 1 unless it says otherwise.
func TestMergeWithDevices(t *testing.T) {
	all, both := nodeset.Of(0, 1, 2), listed{{nodeset.Of(0), true}, {nodeset.Of(1), true}, {nodeset.Of(0, 1), false}}
	cpus, zero, one := nodeset.Of(0), nodeset.Of(0), nodeset.Of(1)
	on := func(sets ...nodeset.Set) (devices []Device) {
		for _, set := range sets {
			devices = append(devices, Device{Nodes: set})
		}
		return devices
	}
	near := func(nodes ...int) []Device { return []Device{{Nodes: nodeset.Of(nodes...), Any: true}} }
	tests := map[string]struct {
		policy   Policy
		alignTo  AlignTo
		memory   Hints
		cpus     nodeset.Set
		devices  []Device
		want     Hint
		admitted bool
	}{
		"agree":                                  {Restricted, AlignToKubelet, both, cpus, on(zero), Hint{zero, true}, true},
		"disagree, best-effort":                  {BestEffort, AlignToKubelet, both, cpus, on(one), Hint{Nodes: all}, true},
		"disagree, restricted":                   {Restricted, AlignToKubelet, both, cpus, on(one), Hint{}, false},
		"disagree, single-numa-node":             {SingleNUMANode, AlignToKubelet, both, cpus, on(one), Hint{}, false},
		"disagree, none":                         {None, AlignToKubelet, both, cpus, on(one), Hint{}, true},
		"to the CPUs":                            {Restricted, AlignToCPUs, both, cpus, on(one), Hint{zero, true}, true},
		"to the devices":                         {Restricted, AlignToDevices, both, cpus, on(one), Hint{one, true}, true},
		"to the devices, two nodes":              {BestEffort, AlignToDevices, both, cpus, on(zero, one), Hint{Nodes: nodeset.Of(0, 1)}, true},
		"to the CPUs, no CPUs, two nodes":        {BestEffort, AlignToCPUs, both, 0, on(zero, one), Hint{Nodes: nodeset.Of(0, 1)}, true},
		"as the kubelet, two nodes":              {BestEffort, AlignToKubelet, both, 0, on(zero, one), Hint{Nodes: all}, true},
		"a device of two nodes, single":          {SingleNUMANode, AlignToDevices, both, 0, on(nodeset.Of(0, 1)), Hint{}, false},
		"near two nodes, single":                 {SingleNUMANode, AlignToKubelet, both, 0, near(1, 2), Hint{one, true}, true},
		"near two nodes, CPUs on one":            {SingleNUMANode, AlignToKubelet, both, cpus, near(0, 1), Hint{zero, true}, true},
		"near two nodes, CPUs on another":        {Restricted, AlignToDevices, both, cpus, near(1, 2), Hint{one, true}, true},
		"near two nodes, no memory hints":        {Restricted, AlignToKubelet, nil, 0, near(1, 2), Hint{one, true}, true},
		"near two nodes, memory elsewhere":       {BestEffort, AlignToKubelet, listed{{zero, true}}, 0, near(1, 2), Hint{Nodes: all}, true},
		"near nothing in common":                 {Restricted, AlignToKubelet, nil, 0, append(near(0, 1), near(2)...), Hint{}, false},
		"no memory hints":                        {Restricted, AlignToKubelet, nil, 0, on(one), Hint{one, true}, true},
		"memory fits nowhere":                    {SingleNUMANode, AlignToKubelet, listed{}, 0, on(one), Hint{one, true}, true},
		"without topology":                       {Restricted, AlignToKubelet, both, 0, on(0), Hint{zero, true}, true},
		"memory that is kept, elsewhere":         {Restricted, AlignToKubelet, Kept(zero), 0, on(one), Hint{}, false},
		"memory that is kept, with the device":   {Restricted, AlignToKubelet, Kept(one), 0, on(one), Hint{one, true}, true},
		"memory that is kept, near the device":   {SingleNUMANode, AlignToKubelet, Kept(one), 0, near(1, 2), Hint{one, true}, true},
		"memory that is kept, overlaps":          {BestEffort, AlignToKubelet, Kept(nodeset.Of(0, 1)), 0, on(one), Hint{Nodes: one}, true},
		"memory that is kept, near, best-effort": {BestEffort, AlignToKubelet, Kept(zero), 0, near(1, 2), Hint{Nodes: all}, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := Providers{All: all, CPUs: test.cpus, Devices: test.devices}.Aligned(test.alignTo)
			in.Memory = test.memory
			got, admitted := test.policy.Merge(in)
			if got != test.want || admitted != test.admitted {
				t.Errorf("got %s %v, admitted %v; want %s %v, admitted %v",
					got.Nodes, got.Preferred, admitted, test.want.Nodes, test.want.Preferred, test.admitted)
			}
		})
	}
}

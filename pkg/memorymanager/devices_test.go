package memorymanager_test

import (
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// TestDevices has three nodes of 10Gi, and a container of 1Gi.
func TestDevices(t *testing.T) {
	gpu := func(nodes ...int) topologymanager.Device {
		return topologymanager.NewDevice("nvidia.com/gpu", "g0", "", nodeset.Of(nodes...))
	}
	nic := topologymanager.NewDevice("nic", "n0", "", nodeset.Of(0))
	full := app("full", 10*gi)
	full.CPUs = nodeset.Of(1)
	tests := map[string]struct {
		policy   topologymanager.Policy
		alignTo  topologymanager.AlignTo
		required bool
		first    []memorymanager.Container
		cpus     nodeset.Set
		devices  []topologymanager.Device
		want     nodeset.Set
		err      string
	}{
		"its node":                       {devices: []topologymanager.Device{gpu(1)}, want: nodeset.Of(1)},
		"without a node":                 {devices: []topologymanager.Device{gpu()}, want: nodeset.Of(0)},
		"on a node that is not there":    {devices: []topologymanager.Device{gpu(7)}, want: nodeset.Of(0)},
		"near two nodes, one is full":    {first: []memorymanager.Container{full}, devices: []topologymanager.Device{gpu(1, 2)}, want: nodeset.Of(2)},
		"its node is full":               {first: []memorymanager.Container{full}, devices: []topologymanager.Device{gpu(1)}, err: "its device nvidia.com/gpu g0 on node 1: 0 of 10Gi free, 1Gi needed"},
		"two devices apart":              {devices: []topologymanager.Device{gpu(1), nic}, err: "its device nic n0 on node 0, its device nvidia.com/gpu g0 on node 1: not the same NUMA nodes"},
		"CPUs elsewhere, as the kubelet": {alignTo: topologymanager.AlignToKubelet, cpus: nodeset.Of(0), devices: []topologymanager.Device{gpu(1)}, err: "its exclusive CPUs are on node 0, its device nvidia.com/gpu g0 on node 1: not the same NUMA nodes"},
		"CPUs elsewhere":                 {cpus: nodeset.Of(0), devices: []topologymanager.Device{gpu(1)}, want: nodeset.Of(0)},
		"CPUs elsewhere, to the devices": {alignTo: topologymanager.AlignToDevices, cpus: nodeset.Of(0), devices: []topologymanager.Device{gpu(1)}, want: nodeset.Of(1)},
		"CPUs elsewhere, required":       {alignTo: topologymanager.AlignToDevices, required: true, cpus: nodeset.Of(0), devices: []topologymanager.Device{gpu(1)}, err: "its exclusive CPUs are on node 0, its device nvidia.com/gpu g0 on node 1: not the same NUMA nodes"},
		"best-effort, its node is full":  {policy: topologymanager.BestEffort, first: []memorymanager.Container{full}, devices: []topologymanager.Device{gpu(1)}, want: nodeset.Of(0)},
		"best-effort, as the kubelet":    {policy: topologymanager.BestEffort, alignTo: topologymanager.AlignToKubelet, first: []memorymanager.Container{full}, devices: []topologymanager.Device{gpu(1)}, err: "cuts through a group of NUMA nodes (its device nvidia.com/gpu g0 on node 1)"},
		"best-effort, required":          {policy: topologymanager.BestEffort, required: true, devices: []topologymanager.Device{gpu(1)}, want: nodeset.Of(1)},
		"best-effort, required, full":    {policy: topologymanager.BestEffort, required: true, first: []memorymanager.Container{full}, devices: []topologymanager.Device{gpu(1)}, err: "its device nvidia.com/gpu g0 on node 1: 0 of 10Gi free, 1Gi needed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.policy == "" {
				test.policy = topologymanager.Restricted
			}
			m, err := memorymanager.New(plain(3), memorymanager.Options{Policy: test.policy, AlignTo: test.alignTo})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range test.first {
				mustAdmit(t, m, c)
			}
			c := app("p", gi)
			c.CPUs, c.Devices, c.Required = test.cpus, test.devices, test.required
			p, err := m.Allocate(c)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %s (%v), want %s", p.Nodes, err, test.err)
				}
			} else if err != nil || p.Nodes != test.want {
				t.Errorf("got %s (%v), want %s", p.Nodes, err, test.want)
			}
			if problem := unbalanced(m.State()); problem != "" {
				t.Error(problem)
			}
		})
	}
}

// TestOneNodeOfAGroup follows the kubelet, which puts a container on one node of a group, and drains other containers' bytes
// when one leaves: here the sums hold all the same.
func TestOneNodeOfAGroup(t *testing.T) {
	for _, test := range []struct {
		alignTo topologymanager.AlignTo
		want    nodeset.Set
	}{{topologymanager.AlignToKubelet, nodeset.Of(0)}, {topologymanager.AlignToCPUs, nodeset.Of(0, 1)}} {
		m, err := memorymanager.New(plain(2), memorymanager.Options{Policy: topologymanager.BestEffort, AlignTo: test.alignTo})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"wide", "next"} {
			wide := app(name, 4*gi)
			wide.CPUs = nodeset.Of(0, 1)
			if p := mustAdmit(t, m, wide); p.Nodes != nodeset.Of(0, 1) {
				t.Fatalf("%s is on %s", name, p.Nodes)
			}
		}
		one := app("one", 2*gi)
		one.CPUs = nodeset.Of(0)
		if p := mustAdmit(t, m, one); p.Nodes != test.want {
			t.Errorf("%s: on %s, want %s", test.alignTo, p.Nodes, test.want)
		}
		last := app("last", 3*gi)
		last.CPUs = nodeset.Of(1)
		if _, err := m.Allocate(last); err != nil && test.alignTo != topologymanager.AlignToKubelet {
			t.Error(err)
		}
		for _, pod := range []string{"wide", "next", "one", "last"} {
			m.ReleasePod(pod)
			var entries, nodes uint64
			for _, e := range m.State().Entries {
				entries += e.Blocks[0].Size
			}
			for _, bytes := range reservedBytes(m) {
				nodes += bytes
			}
			if entries != nodes {
				t.Errorf("%s, after %s: the nodes have %d, the containers %d", test.alignTo, pod, nodes, entries)
			}
		}
	}
}

func TestRegeneratedHints(t *testing.T) {
	m := manager(t, plain(2), topologymanager.Restricted)
	c := app("p", gi)
	c.CPUs = nodeset.Of(1)
	mustAdmit(t, m, c)
	c.CPUs = nodeset.Of(0)
	const want = "its memory is on node 1, and its exclusive CPUs are on node 0"
	if p, err := m.Allocate(c); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %+v (%v), want %s", p, err, want)
	}
	if blocks := m.Blocks("p", c.Name); len(blocks) != 1 || blocks[0].Nodes != nodeset.Of(1) {
		t.Errorf("it has %+v now", blocks)
	}
	if e := m.Explain(c); !e.Existing || e.Nodes != nodeset.Of(1) {
		t.Errorf("%+v", e)
	}
}

func TestAlign(t *testing.T) {
	m := manager(t, plain(2), topologymanager.SingleNUMANode)
	c := memorymanager.Container{Pod: "p", Name: "c", Devices: []topologymanager.Device{topologymanager.NewDevice("gpu", "g", "", nodeset.Of(1))}}
	if hint, err := m.Align(c); err != nil || hint != (topologymanager.Hint{Nodes: nodeset.Of(1), Preferred: true}) {
		t.Errorf("%+v, %v", hint, err)
	}
	c.Devices = append(c.Devices, topologymanager.NewDevice("nic", "n", "", nodeset.Of(0)))
	const want = "policy single-numa-node, scope container: its device gpu g on node 1, its device nic n on node 0"
	if _, err := m.Align(c); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

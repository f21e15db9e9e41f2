package agent

import (
	"context"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/devices"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// TestWhichContainersAreMovedOffTheirGroup has a container of 2Gi in a group that a large one has made and left.
func TestWhichContainersAreMovedOffTheirGroup(t *testing.T) {
	const dissolves = "rebalance: {consolidate: true, maxBytes: 4Gi}\n"
	launch := func(n *node, p Pod, c Container) { n.launch(p, c) }
	for name, test := range map[string]struct {
		config string
		launch func(n *node, p Pod, c Container)
		moved  bool
	}{
		"moved":               {dissolves, launch, true},
		"off":                 {"", launch, false},
		"dry run":             {dissolves + "profile: Observe\n", launch, false},
		"nothing may move":    {"rebalance: {consolidate: true, maxBytes: 0}\n", launch, false},
		"scope pod":           {dissolves + "topologyManagerScope: pod\n", launch, false},
		"groups that overlap": {dissolves + "onConflict: Kubelet\n", launch, false},
		"no memory free there": {dissolves, func(n *node, p Pod, c Container) {
			n.launch(p, c)
			n.deficits.last.Store(&deficit.Sample{Nodes: []deficit.Node{{ID: 0, Free: 4 * mi}, {ID: 1, Free: gi}}})
		}, false},
		"huge pages": {dissolves, func(n *node, p Pod, c Container) {
			c.Resources.Hugepages = []HugepageLimit{{PageSize: "2MB", Limit: 64 * mi}}
			n.launch(p, c)
		}, false},
		"CPUs on one node": {dissolves, func(n *node, p Pod, c Container) {
			c.Resources.CPUs, c.Resources.CPUShares = "8-9", exclusive(2)
			n.launch(p, c)
		}, true},
		"CPUs on several nodes": {dissolves, func(n *node, p Pod, c Container) {
			c.Resources.CPUs, c.Resources.CPUShares = "7-8", exclusive(2)
			n.launch(p, c)
		}, false},
		"cpuset.mems from the kubelet": {dissolves, func(n *node, p Pod, c Container) {
			c.Resources.Mems = "0-1"
			n.launch(p, c)
		}, false},
		"a device": {dissolves, func(n *node, p Pod, c Container) {
			n.Agent.devices = nearAll{}
			n.launch(p, withGPU(c))
		}, false},
		"not started": {dissolves, func(n *node, p Pod, c Container) {
			n.create(p, c)
			n.mkdir(c.CgroupsPath)
		}, false},
		"ended": {dissolves, func(n *node, p Pod, c Container) {
			n.launch(p, c)
			n.stopped(p, c)
		}, true},
		"being resized": {dissolves, func(n *node, p Pod, c Container) {
			c = n.launch(p, c)
			limit := int64(3 * gi)
			if _, err := n.UpdateContainer(context.Background(), p, c, Resources{MemoryLimit: &limit}); err != nil {
				n.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "topologyManagerPolicy: best-effort\n"+test.config)
			n.sync(nil, nil)
			large, small := n.pod("large", memoryqos.Guaranteed), n.pod("small", memoryqos.Guaranteed)
			big := n.launch(large, ofPod(large, "app", 20*gi))
			c := ofPod(small, "app", 2*gi)
			test.launch(n, small, c)
			n.mkdir(c.CgroupsPath)
			n.writeFile(c.CgroupsPath, "memory.numa_stat", "anon N0=8388608 N1=8388608")
			n.reconcile(context.Background())
			if got := n.blocks("small", "app"); got != nodeset.Of(0, 1) {
				t.Fatalf("it is allocated on %s, want 0-1", got)
			}
			n.stopped(large, big)
			if err := n.endPod(context.Background(), large); err != nil {
				t.Fatal(err)
			}
			n.reconcile(context.Background())
			if got := n.blocks("small", "app"); (got.Len() == 1) != test.moved {
				t.Errorf("it is allocated on %s, moved is to be %v", got, test.moved)
			}
		})
	}
}

// nearAll finds a device for each container that is near both nodes.
type nearAll struct{}

func (nearAll) Wants(devices.Container) bool { return true }

func (nearAll) Find(_ context.Context, c devices.Container) devices.Pod {
	return devices.Pod{c.Name: nearAll{}.Lookup(c)}
}

func (nearAll) Lookup(devices.Container) []topologymanager.Device {
	return []topologymanager.Device{topologymanager.NewDevice("nic", "a", "test", nodeset.Of(0, 1))}
}

func exclusive(cpus uint64) *uint64 {
	shares := cpus * 1024
	return &shares
}

// stopped ends a container.
func (n *node) stopped(p Pod, c Container) {
	n.Helper()
	if err := n.StopContainer(context.Background(), p, c); err != nil {
		n.Fatal(err)
	}
}

// blocks are the nodes that a container is allocated.
func (n *node) blocks(pod, container string) (nodes nodeset.Set) {
	for _, p := range n.View().Pods {
		for _, c := range p.Containers {
			if p.Name == pod && c.Name == container {
				for _, b := range c.Blocks {
					nodes = nodes.Union(b.Nodes)
				}
			}
		}
	}
	return nodes
}

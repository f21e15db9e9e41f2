package agent

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/devices"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// gpus knows a GPU of every container on a node: the kubelet says so, sysfs says another one.
type gpus struct {
	kubelet, sysfs int
	wait           bool // Find waits for the end of its context
	cpus           map[string]string
	finds          atomic.Int64
	asked          devices.Container // the last one
}

func (*gpus) Wants(c devices.Container) bool { return len(c.Nodes) > 0 }

func (g *gpus) Find(ctx context.Context, c devices.Container) devices.Pod {
	g.finds.Add(1)
	g.asked = c
	if g.wait {
		<-ctx.Done()
		return nil
	}
	gpu := topologymanager.NewDevice("gpu", "g", devices.SourceKubelet, nodeset.Of(g.kubelet))
	return devices.Pod{c.Name: {gpu}, "other": {gpu}}
}

func (g *gpus) CPUs(context.Context, devices.Container) map[string]string { return g.cpus }

func (g *gpus) Lookup(devices.Container) []topologymanager.Device {
	return []topologymanager.Device{topologymanager.NewDevice("gpu", "g", devices.SourceSysfs, nodeset.Of(g.sysfs))}
}

// withGPU is a container with a device node.
func withGPU(c Container) Container {
	c.DeviceNodes = []ledger.DeviceNode{{Path: "/dev/gpu", Major: 1, Minor: 2}}
	return c
}

func devicesOf(n *node) (list []string) {
	for _, pod := range n.View().Pods {
		for _, c := range pod.Containers {
			for _, d := range c.Devices {
				list = append(list, d.String()+" "+d.Source)
			}
		}
	}
	return list
}

func TestDevicesOfContainers(t *testing.T) {
	g := &gpus{kubelet: 1, sysfs: 0}
	n := newNode(t, "topologyManagerPolicy: restricted", func(n *node) { n.devices = g })
	pod, plain := n.pod("p", memoryqos.Guaranteed), n.pod("plain", memoryqos.Guaranteed)
	c := n.launch(pod, withGPU(ofPod(pod, "main", gi)))
	without := n.launch(plain, ofPod(plain, "main", gi))
	n.want("the container's nodes", n.file(c.CgroupsPath, "cpuset.mems"), "1")
	n.want("the plain container's nodes", n.file(without.CgroupsPath, "cpuset.mems"), "0")
	if finds := g.finds.Load(); finds != 1 {
		t.Errorf("asked %d times", finds)
	}
	n.want("whose devices", g.asked.UID+" in "+g.asked.Sandbox, pod.UID+" in "+pod.ID)
	const known, looked = "gpu g on node 1 kubelet", "gpu g on node 0 sysfs"
	n.want("the devices", strings.Join(devicesOf(n), ";"), known)
	// The runtime comes back: what the kubelet has said stays. After a restart only sysfs is there, and nothing moves.
	n.sync([]Pod{pod, plain}, []Container{c, without})
	n.want("the devices", strings.Join(devicesOf(n), ";"), known)
	n.restart()
	if updates := n.sync([]Pod{pod, plain}, []Container{c, without}); len(updates) > 0 {
		t.Errorf("updates: %+v", updates)
	}
	n.want("the devices", strings.Join(devicesOf(n), ";"), looked)
	n.want("the container's nodes", n.file(c.CgroupsPath, "cpuset.mems"), "1")
	if finds := g.finds.Load(); finds != 1 {
		t.Errorf("asked %d times: not by Synchronize", finds)
	}
}

// TestCPUsOfThePodsOtherContainers: in scope pod the first container has no exclusive CPUs, and the second one has some on node 1.
func TestCPUsOfThePodsOtherContainers(t *testing.T) {
	for scope, want := range map[string]string{"pod": "1", "container": "0"} {
		t.Run(scope, func(t *testing.T) {
			api := &podAPI{}
			n := newNode(t, "topologyManagerPolicy: restricted\ntopologyManagerScope: "+scope, func(n *node) {
				n.devices, n.providers = &gpus{cpus: map[string]string{"main": "8-9"}}, []podinfo.Provider{api}
			})
			n.background()
			pod := n.pod("p", memoryqos.Guaranteed)
			api.say(spec(pod, memoryqos.Guaranteed, pods.Container{Name: "side", Request: gi, Limit: gi}, pods.Container{Name: "main", Request: gi, Limit: gi}))
			side := n.launch(pod, ofPod(pod, "side", gi))
			n.want("the first container's nodes", n.file(side.CgroupsPath, "cpuset.mems"), want)
		})
	}
}

func TestDevicesThatNobodyFindsInTime(t *testing.T) {
	n := newNode(t, "", func(n *node) { n.timeout, n.devices = 10*time.Millisecond, &gpus{wait: true} })
	pod := n.pod("p", memoryqos.Guaranteed)
	c := n.launch(pod, withGPU(ofPod(pod, "main", gi)))
	n.want("the container's nodes", n.file(c.CgroupsPath, "cpuset.mems"), "0")
}

package agent

import (
	"context"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/devices"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// found is what is known of a pod's containers, by name.
type found struct {
	devices devices.Pod
	cpus    map[string]string
}

// findDevices begins to look for the devices of a container that is about to be created, and for the CPUs of its pod's others where they
// matter. It returns what waits for the answer. The kubelet is asked while the pod APIs are: together they have a.requestTimeout.
func (a *Agent) findDevices(ctx context.Context, pod ledger.Pod, container ledger.Container) (wait func() found) {
	_, managed, _ := pod.Path()
	wanted := described(pod, container)
	if a.devices == nil || !managed {
		return func() found { return found{} }
	}
	a.mu.Lock()
	cpus := a.ledger.NeedsPodCPUs(pod)
	a.mu.Unlock()
	if !cpus && !a.devices.Wants(wanted) {
		return func() found { return found{} }
	}
	ctx, cancel := context.WithTimeout(ctx, a.requestTimeout)
	answer := make(chan found, 1)
	go func() {
		defer cancel()
		var f found
		if cpus {
			f.cpus = a.devices.CPUs(ctx, wanted)
		}
		f.devices = a.devices.Find(ctx, wanted)
		answer <- f
	}()
	return func() found { return <-answer }
}

// lookUpDevices is a running container with the devices that are found without asking anybody.
func (a *Agent) lookUpDevices(c ledger.Container) ledger.Container {
	if a.devices != nil && len(c.DeviceNodes) > 0 {
		c.Devices = a.devices.Lookup(devices.Container{Nodes: deviceNodes(c)})
	}
	return withoutSpec(c)
}

// withDevices is the container with its devices, for the ledger, and the devices of the others of its pod.
func withDevices(container ledger.Container, found devices.Pod) (ledger.Container, devices.Pod) {
	container = withoutSpec(container)
	container.Devices = found[container.Name]
	delete(found, container.Name)
	if len(found) == 0 {
		found = nil
	}
	return container, found
}

// withoutSpec is the container without what its devices are found by.
func withoutSpec(c ledger.Container) ledger.Container {
	c.DeviceNodes, c.CDIDevices, c.PCIDevices = nil, nil, false
	return c
}

func described(pod ledger.Pod, container ledger.Container) devices.Container {
	return devices.Container{
		UID: pod.Key(), Namespace: pod.Namespace, Pod: pod.Name, Name: container.Name,
		CDI: container.CDIDevices, Nodes: deviceNodes(container), PCI: container.PCIDevices,
	}
}

func deviceNodes(c ledger.Container) (nodes []devices.Node) {
	for _, node := range c.DeviceNodes {
		nodes = append(nodes, devices.Node(node))
	}
	return nodes
}

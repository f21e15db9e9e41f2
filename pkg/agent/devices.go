package agent

import (
	"context"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/devices"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// findDevices starts a search for the devices of a container and its pod's other containers, and for their CPUs if needed. The channel is
// closed when the search ends, at its deadline at the latest.
func (a *Agent) findDevices(ctx context.Context, needs ledger.Needs, facts *ledger.Gathered) (found <-chan struct{}) {
	done := make(chan struct{})
	pod, c := needs.Pod, needs.Container
	container := devices.Container{
		UID: pod.Key(), Sandbox: pod.ID, Namespace: pod.Namespace, Pod: pod.Name, Name: c.Name, CDI: c.CDIDevices, Nodes: deviceNodes(c), PCI: c.PCIDevices,
	}
	if !needs.Devices || a.devices == nil || !needs.CPUs && !a.devices.Wants(container) {
		close(done)
		return done
	}
	ctx, cancel := context.WithTimeout(ctx, a.requestTimeout)
	go func() {
		defer close(done)
		defer cancel()
		if needs.CPUs {
			facts.CPUs = a.devices.CPUs(ctx, container)
		}
		facts.Devices = a.devices.Find(ctx, container)
	}()
	return done
}

// lookUpDevices returns a running container with its known devices. It does not wait.
func (a *Agent) lookUpDevices(c ledger.Container) ledger.Container {
	if a.devices != nil && len(c.DeviceNodes) > 0 {
		c.Devices = a.devices.Lookup(devices.Container{Nodes: deviceNodes(c)})
	}
	return c
}

func deviceNodes(c ledger.Container) (nodes []devices.Node) {
	for _, node := range c.DeviceNodes {
		nodes = append(nodes, devices.Node(node))
	}
	return nodes
}

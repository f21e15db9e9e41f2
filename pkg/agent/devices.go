package agent

import (
	"context"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/devices"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// findDevices begins to look for the devices of a container and its pod's others, and for the CPUs of these where they matter. The
// channel is closed when the search ends, at its deadline at the latest.
func (a *Agent) findDevices(ctx context.Context, needs ledger.Needs, facts *ledger.Gathered) (found <-chan struct{}) {
	done := make(chan struct{})
	container := deviceQuery(needs.Pod, needs.Container)
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

// lookUpDevices is a running container with the devices that are found without asking anybody.
func (a *Agent) lookUpDevices(c ledger.Container) ledger.Container {
	if a.devices != nil && len(c.DeviceNodes) > 0 {
		c.Devices = a.devices.Lookup(devices.Container{Nodes: deviceNodes(c)})
	}
	return c
}

func deviceQuery(pod ledger.Pod, container ledger.Container) devices.Container {
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

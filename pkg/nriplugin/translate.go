package nriplugin

import (
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// PodOf is a pod of the runtime as the agent receives it.
func PodOf(pod *api.PodSandbox) ledger.Pod {
	linux := pod.GetLinux()
	return ledger.Pod{
		ID:           pod.GetId(),
		UID:          pod.GetUid(),
		Namespace:    pod.GetNamespace(),
		Name:         pod.GetName(),
		CgroupParent: linux.GetCgroupParent(),
		Annotations:  pod.GetAnnotations(),
		Overhead:     memoryLimit(linux.GetPodOverhead()),
		MemoryLimit:  memoryLimit(linux.GetPodResources()),
	}
}

// memoryLimit is 0 when there is none; runtimes send -1 too.
func memoryLimit(resources *api.LinuxResources) uint64 {
	return uint64(max(0, resources.GetMemory().GetLimit().GetValue()))
}

// ContainerOf is a container of the runtime as the agent receives it.
func ContainerOf(container *api.Container) ledger.Container {
	linux := container.GetLinux()
	resources := resourcesOf(linux.GetResources())
	if adj := linux.GetOomScoreAdj(); adj != nil {
		value := adj.GetValue()
		resources.OOMScoreAdj = &value
	}
	return ledger.Container{
		ID:          container.GetId(),
		PodID:       container.GetPodSandboxId(),
		Name:        container.GetName(),
		State:       stateOf(container.GetState()),
		CgroupsPath: linux.GetCgroupsPath(),
		Resources:   resources,
		Claims:      ledger.ClaimRefs(cdiDevicesOf(container), container.GetEnv()),
		DeviceNodes: deviceNodesOf(linux),
		CDIDevices:  cdiDevicesOf(container),
		PCIDevices:  namesPCIDevices(container.GetEnv()),
	}
}

// mostDevices bounds the devices that are taken from an event.
const mostDevices = 64

// deviceNodesOf are the device nodes of a container's spec. A privileged container has those of the whole machine, which say
// nothing about what it uses.
func deviceNodesOf(linux *api.LinuxContainer) (nodes []ledger.DeviceNode) {
	for _, rule := range linux.GetResources().GetDevices() {
		everything := (rule.GetType() == "" || rule.GetType() == "a") && rule.GetMajor() == nil && rule.GetMinor() == nil
		if rule.GetAllow() && everything {
			return nil
		}
	}
	for _, device := range linux.GetDevices() {
		if kind := device.GetType(); len(nodes) < mostDevices && (kind == "b" || kind == "c" || kind == "u") {
			nodes = append(nodes, ledger.DeviceNode{
				Path: device.GetPath(), Block: kind == "b", Major: device.GetMajor(), Minor: device.GetMinor(),
			})
		}
	}
	return nodes
}

func cdiDevicesOf(container *api.Container) (names []string) {
	for _, device := range container.GetCDIDevices() {
		if len(names) < mostDevices {
			names = append(names, device.GetName())
		}
	}
	return names
}

// pciVariable begins the names of the environment variables by which the SR-IOV network device plugin tells a container its
// devices. Network devices have no other sign in the container's spec.
// https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin#pod-device-information
const pciVariable = "PCIDEVICE_"

// mostVariables bounds the environment that is looked at. What device plugins add is behind the image's variables and before those
// of the pod's spec.
const mostVariables = 1024

// namesPCIDevices reports whether an environment has such a variable. Anybody may set one: it is a reason to ask the kubelet, and
// its value is not read.
func namesPCIDevices(environment []string) bool {
	return slices.ContainsFunc(environment[:min(len(environment), mostVariables)], func(variable string) bool {
		return strings.HasPrefix(variable, pciVariable)
	})
}

func stateOf(state api.ContainerState) ledger.State {
	switch state {
	case api.ContainerState_CONTAINER_CREATED:
		return ledger.Created
	case api.ContainerState_CONTAINER_RUNNING:
		return ledger.Running
	case api.ContainerState_CONTAINER_PAUSED:
		return ledger.Paused
	case api.ContainerState_CONTAINER_STOPPED:
		return ledger.Stopped
	}
	return ledger.Unknown
}

func resourcesOf(resources *api.LinuxResources) ledger.Resources {
	to := ledger.Resources{
		CPUs:    resources.GetCpu().GetCpus(),
		Mems:    resources.GetCpu().GetMems(),
		Unified: resources.GetUnified(),
	}
	if limit := resources.GetMemory().GetLimit(); limit != nil {
		value := limit.GetValue()
		to.MemoryLimit = &value
	}
	if shares := resources.GetCpu().GetShares(); shares != nil {
		value := shares.GetValue()
		to.CPUShares = &value
	}
	for _, limit := range resources.GetHugepageLimits() {
		to.Hugepages = append(to.Hugepages, ledger.HugepageLimit{PageSize: limit.GetPageSize(), Limit: limit.GetLimit()})
	}
	return to
}

// adjustmentOf returns nil when nothing is changed.
func adjustmentOf(from ledger.Adjustment) *api.ContainerAdjustment {
	if from.Empty() {
		return nil
	}
	to := &api.ContainerAdjustment{}
	if from.CpusetMems != "" {
		to.SetLinuxCPUSetMems(from.CpusetMems)
	}
	for key, value := range from.Unified {
		to.AddLinuxUnified(key, value)
	}
	if p := from.MemoryPolicy; p.Mode != "" {
		to.SetLinuxMemoryPolicy(api.MpolMode(api.MpolMode_value[string(p.Mode)]), p.Nodes.String())
	}
	return to
}

func updateOf(id string, from ledger.Adjustment) *api.ContainerUpdate {
	to := &api.ContainerUpdate{}
	to.SetContainerId(id)
	if from.CpusetMems != "" {
		to.SetLinuxCPUSetMems(from.CpusetMems)
	}
	for key, value := range from.Unified {
		to.AddLinuxUnified(key, value)
	}
	return to
}

// updatesOf leaves out empty updates. CRI-O drops a plugin when an update of another container fails, so a failure is
// always to be ignored; the agent's reconciler sees to the container later.
func updatesOf(from []ledger.Update) []*api.ContainerUpdate {
	var to []*api.ContainerUpdate
	for _, update := range from {
		if update.ContainerID == "" || update.Empty() {
			continue
		}
		u := updateOf(update.ContainerID, update.Adjustment)
		u.SetIgnoreFailure()
		to = append(to, u)
	}
	return to
}

package nriplugin

import (
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
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
	refs := claims.Refs(namesOfCDI(container, mostNames), ends(container.GetEnv()))
	return ledger.Container{
		ID:          container.GetId(),
		PodID:       container.GetPodSandboxId(),
		Name:        container.GetName(),
		State:       phaseOf(container.GetState()),
		CgroupsPath: linux.GetCgroupsPath(),
		Resources:   resources,
		Claims:      refs[:min(len(refs), claims.MostRefs+1)], // which are too many
		DeviceNodes: deviceNodesOf(linux),
		CDIDevices:  namesOfCDI(container, mostDevices),
		PCIDevices:  namesPCIDevices(container.GetEnv()),
	}
}

// What is taken of a container from an event. A tenant writes most of it: what is beyond is not looked at.
const (
	mostDevices = 64
	// mostNames bounds the CDI devices among which those of resource claims are looked for.
	mostNames = 1024
	// longestName is more than a CDI device's vendor, class and name have, in bytes.
	longestName = 512
	// longestPath is the kernel's PATH_MAX.
	longestPath = 4096
	// mostPageSizes is more than a kernel has sizes of huge pages, and than the Memory Manager takes.
	mostPageSizes = 16
	// longestList is that of 8192 CPUs, the most that a kernel has, each named alone.
	longestList = 8192 * len("8191,")
	// longestValue is more than a number in a cgroup file has.
	longestValue = 64
)

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
		if len(nodes) == mostDevices {
			break
		}
		if kind := device.GetType(); len(device.GetPath()) <= longestPath && (kind == "b" || kind == "c" || kind == "u") {
			nodes = append(nodes, ledger.DeviceNode{
				Path: device.GetPath(), Block: kind == "b", Major: device.GetMajor(), Minor: device.GetMinor(),
			})
		}
	}
	return nodes
}

// namesOfCDI are the names of the first CDI devices of a container.
func namesOfCDI(container *api.Container, most int) (names []string) {
	devices := container.GetCDIDevices()
	for _, device := range devices[:min(len(devices), most)] {
		if name := device.GetName(); len(name) <= longestName {
			names = append(names, name)
		}
	}
	return names
}

// pciVariable begins the names of the environment variables by which the SR-IOV network device plugin tells a container its
// devices. Network devices have no other sign in the container's spec.
// https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin#pod-device-information
const pciVariable = "PCIDEVICE_"

// mostVariables bounds the environment that is looked at, at either end. What device plugins add is behind the image's variables and
// before those of the pod's spec.
const mostVariables = 1024

// ends are the first and the last variables of an environment: CRI-O adds those of CDI devices before all others, containerd behind.
func ends(environment []string) []string {
	if len(environment) <= 2*mostVariables {
		return environment
	}
	return slices.Concat(environment[:mostVariables], environment[len(environment)-mostVariables:])
}

// namesPCIDevices reports whether an environment has such a variable. Anybody may set one: it is a reason to ask the kubelet, and
// its value is not read.
func namesPCIDevices(environment []string) bool {
	return slices.ContainsFunc(environment[:min(len(environment), mostVariables)], func(variable string) bool {
		return strings.HasPrefix(variable, pciVariable)
	})
}

func phaseOf(state api.ContainerState) ledger.Phase {
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
		CPUs:    list(resources.GetCpu().GetCpus()),
		Mems:    list(resources.GetCpu().GetMems()),
		Unified: unifiedOf(resources),
	}
	if group := resources.GetUnified()[string(cgroup.MemoryOOMGroup)]; len(group) <= longestValue {
		to.OOMGroup = group
	}
	if limit := resources.GetMemory().GetLimit(); limit != nil {
		value := limit.GetValue()
		to.MemoryLimit = &value
	}
	if shares := resources.GetCpu().GetShares(); shares != nil {
		value := shares.GetValue()
		to.CPUShares = &value
	}
	pages := resources.GetHugepageLimits()
	for _, limit := range pages[:min(len(pages), mostPageSizes)] {
		to.Hugepages = append(to.Hugepages, ledger.HugepageLimit{PageSize: limit.GetPageSize(), Limit: limit.GetLimit()})
	}
	return to
}

// list is a list of CPUs or NUMA nodes in the kernel's format; one that is longer than any says nothing.
func list(text string) string {
	if len(text) > longestList {
		return ""
	}
	return text
}

// unifiedFiles are those cgroup files that say anything about a container's memory; the others are left to the runtime.
var unifiedFiles = [...]string{"memory.min", "memory.low", "memory.high", "memory.swap.max"}

func unifiedOf(resources *api.LinuxResources) (files map[string]string) {
	for _, file := range unifiedFiles {
		value, set := resources.GetUnified()[file]
		if !set || len(value) > longestValue {
			continue
		}
		if files == nil {
			files = make(map[string]string, len(unifiedFiles))
		}
		files[file] = value
	}
	return files
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

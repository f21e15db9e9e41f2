package nriplugin

import (
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// PodOf converts a pod of the runtime.
func PodOf(pod *api.PodSandbox) ledger.Pod {
	linux := pod.GetLinux()
	return ledger.Pod{
		ID:           pod.GetId(),
		UID:          pod.GetUid(),
		Namespace:    pod.GetNamespace(),
		Name:         pod.GetName(),
		CgroupParent: linux.GetCgroupParent(),
		Labels:       labelsOf(pod.GetLabels()),
		Annotations:  pod.GetAnnotations(),
		Overhead:     memoryLimit(linux.GetPodOverhead()),
		MemoryLimit:  memoryLimit(linux.GetPodResources()),
	}
}

// labelsOf returns no labels if they are too long: a tenant writes them, and the API server bounds only each of them.
func labelsOf(labels map[string]string) map[string]string {
	bytes := 0
	for key, value := range labels {
		bytes += len(key) + len(value)
	}
	if bytes > maxLabelBytes {
		return nil
	}
	return labels
}

// memoryLimit returns 0 if there is none; runtimes also send -1.
func memoryLimit(resources *api.LinuxResources) uint64 {
	return uint64(max(0, resources.GetMemory().GetLimit().GetValue()))
}

// ContainerOf converts a container of the runtime.
func ContainerOf(container *api.Container) ledger.Container {
	linux := container.GetLinux()
	resources := resourcesOf(linux.GetResources())
	if adj := linux.GetOomScoreAdj(); adj != nil {
		value := adj.GetValue()
		resources.OOMScoreAdj = &value
	}
	score := oomScoreOf(container)
	if score != nil {
		resources.OOMScoreAdj = score.Kubelet
	}
	refs := claims.Refs(namesOfCDI(container, maxCDINames), firstAndLast(container.GetEnv()))
	return ledger.Container{
		ID:          container.GetId(),
		PodID:       container.GetPodSandboxId(),
		Name:        container.GetName(),
		State:       phases[container.GetState()],
		CgroupsPath: linux.GetCgroupsPath(),
		Resources:   resources,
		Claims:      refs[:min(len(refs), claims.MaxRefs+1)], // which are too many
		DeviceNodes: deviceNodesOf(linux),
		CDIDevices:  namesOfCDI(container, maxDevices),
		PCIDevices:  namesPCIDevices(container.GetEnv()),
		OOMScore:    score,
		HasMemset:   hasVariable(container.GetEnv(), ledger.MemsetVariable),
	}
}

// Bounds for the data of an event. A tenant writes most of it; what exceeds them is ignored.
const (
	maxDevices = 64
	// maxLabelBytes bounds the keys and values of a pod's labels, which are kept as long as it lives.
	maxLabelBytes = 32 << 10
	// maxCDINames bounds the CDI devices that are searched for resource claims.
	maxCDINames = 1024
	// maxCDINameLength is longer than a CDI device's vendor, class and name, in bytes.
	maxCDINameLength = 512
	// maxPathLength is the kernel's PATH_MAX.
	maxPathLength = 4096
	// maxPageSizes is more than any kernel's huge page sizes, and than the Memory Manager takes.
	maxPageSizes = 16
	// maxListLength is the length of a list of 8192 CPUs, the most that a kernel supports, without ranges.
	maxListLength = 8192 * len("8191,")
	// maxValueLength is longer than a number in a cgroup file.
	maxValueLength = 64
)

// deviceNodesOf returns the device nodes in a container's spec. A privileged container has all devices of the machine, which does not show
// what it uses, so it has none here.
func deviceNodesOf(linux *api.LinuxContainer) (nodes []ledger.DeviceNode) {
	for _, rule := range linux.GetResources().GetDevices() {
		everything := (rule.GetType() == "" || rule.GetType() == "a") && rule.GetMajor() == nil && rule.GetMinor() == nil
		if rule.GetAllow() && everything {
			return nil
		}
	}
	for _, device := range linux.GetDevices() {
		if len(nodes) == maxDevices {
			break
		}
		if kind := device.GetType(); len(device.GetPath()) <= maxPathLength && (kind == "b" || kind == "c" || kind == "u") {
			nodes = append(nodes, ledger.DeviceNode{
				Path: device.GetPath(), Block: kind == "b", Major: device.GetMajor(), Minor: device.GetMinor(),
			})
		}
	}
	return nodes
}

// namesOfCDI returns the names of a container's first CDI devices, at most most.
func namesOfCDI(container *api.Container, most int) (names []string) {
	devices := container.GetCDIDevices()
	for _, device := range devices[:min(len(devices), most)] {
		if name := device.GetName(); len(name) <= maxCDINameLength {
			names = append(names, name)
		}
	}
	return names
}

// pciVariable is the prefix of the environment variables by which the SR-IOV network device plugin tells a container its devices. The
// container's spec does not show network devices otherwise.
// https://github.com/k8snetworkplumbingwg/sriov-network-device-plugin#pod-device-information
const pciVariable = "PCIDEVICE_"

// maxVariables bounds the variables that are searched at each end of the environment. Device plugins add theirs after the image's variables
// and before those of the pod's spec.
const maxVariables = 1024

// firstAndLast returns the first and the last variables of an environment: CRI-O adds the variables of CDI devices before all others,
// containerd after them.
func firstAndLast(environment []string) []string {
	if len(environment) <= 2*maxVariables {
		return environment
	}
	return slices.Concat(environment[:maxVariables], environment[len(environment)-maxVariables:])
}

// namesPCIDevices reports whether an environment has a pciVariable. Any container may set one, so it is only a reason to ask the kubelet;
// the value is not read.
func namesPCIDevices(environment []string) bool {
	return slices.ContainsFunc(environment[:min(len(environment), maxVariables)], func(variable string) bool {
		return strings.HasPrefix(variable, pciVariable)
	})
}

// hasVariable searches all of an environment: a variable that the pod's spec or the image sets is not overwritten.
func hasVariable(environment []string, name string) bool {
	return slices.ContainsFunc(environment, func(variable string) bool {
		key, _, _ := strings.Cut(variable, "=")
		return key == name
	})
}

// phases lacks the states that are ledger.Unknown.
var phases = map[api.ContainerState]ledger.Phase{
	api.ContainerState_CONTAINER_CREATED: ledger.Created,
	api.ContainerState_CONTAINER_RUNNING: ledger.Running,
	api.ContainerState_CONTAINER_PAUSED:  ledger.Paused,
	api.ContainerState_CONTAINER_STOPPED: ledger.Stopped,
}

func resourcesOf(resources *api.LinuxResources) ledger.Resources {
	to := ledger.Resources{
		CPUs:    list(resources.GetCpu().GetCpus()),
		Mems:    list(resources.GetCpu().GetMems()),
		Unified: unifiedOf(resources),
	}
	if group := resources.GetUnified()[string(cgroup.MemoryOOMGroup)]; len(group) <= maxValueLength {
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
	for _, limit := range pages[:min(len(pages), maxPageSizes)] {
		to.Hugepages = append(to.Hugepages, ledger.HugepageLimit{PageSize: limit.GetPageSize(), Limit: limit.GetLimit()})
	}
	return to
}

// list returns a list of CPUs or NUMA nodes in the kernel's format; "" if it is too long.
func list(text string) string {
	if len(text) > maxListLength {
		return ""
	}
	return text
}

// unifiedFiles are the cgroup files that this plugin reads from a request.
var unifiedFiles = [...]string{"memory.min", "memory.low", "memory.high", "memory.swap.max"}

func unifiedOf(resources *api.LinuxResources) (files map[string]string) {
	for _, file := range unifiedFiles {
		value, set := resources.GetUnified()[file]
		if !set || len(value) > maxValueLength {
			continue
		}
		if files == nil {
			files = make(map[string]string, len(unifiedFiles))
		}
		files[file] = value
	}
	return files
}

// adjustmentOf returns nil if nothing is changed. id is the container's.
func adjustmentOf(id string, from ledger.Adjustment) *api.ContainerAdjustment {
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
	if from.Memset != "" {
		to.AddEnv(ledger.MemsetVariable, from.Memset)
	}
	if score := from.OOMScore; score != nil {
		value := int(score.Value)
		to.SetLinuxOomScoreAdj(&value)
		to.AddAnnotation(oomScoreAnnotation, textOfOOMScore(id, *score))
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

// updatesOf omits empty updates. CRI-O drops a plugin when an update of another container fails, so failures are always ignored; the agent
// corrects the container later.
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

// oomScoreAnnotation is the annotation of a container whose oom_score_adj this plugin has set. Runtimes keep it with the container's OCI spec,
// so that a plugin that starts later finds the kubelet's value, which the spec does not have any more.
const oomScoreAnnotation = "kubelet-oom-score-adj.memory-manager.noderesource.dev"

// textOfOOMScore is the annotation's value: the container's id, the kubelet's oom_score_adj ("-" for none), and the source of this plugin's.
// Some runtimes give containers the annotations of their pods, which a tenant writes: a tenant does not know the id of a container before it
// is created.
func textOfOOMScore(id string, score ledger.OOMScore) string {
	kubelet := "-"
	if score.Kubelet != nil {
		kubelet = strconv.FormatInt(*score.Kubelet, 10)
	}
	return id + " " + kubelet + " " + score.From
}

// oomScoreOf returns what this plugin has set for a container; nil if it has set nothing.
func oomScoreOf(container *api.Container) *ledger.OOMScore {
	parts := strings.SplitN(container.GetAnnotations()[oomScoreAnnotation], " ", 3)
	now := container.GetLinux().GetOomScoreAdj()
	if len(parts) != 3 || parts[0] != container.GetId() || now == nil {
		return nil
	}
	score := &ledger.OOMScore{Value: now.GetValue(), From: parts[2]}
	if kubelet, err := strconv.ParseInt(parts[1], 10, 64); err == nil {
		score.Kubelet = &kubelet
	}
	return score
}

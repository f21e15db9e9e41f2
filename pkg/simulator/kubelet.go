package simulator

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cgroups"
)

// kubelet says what the kubelet would pass to the runtime on a machine.
type kubelet struct {
	machine machine.Machine
	systemd bool // the systemd cgroup driver
}

// cgroupParent is the pod's cgroup as the kubelet names it to the runtime.
func (k kubelet) cgroupParent(pod *corev1.Pod) string {
	qos := map[memoryqos.QOSClass]string{memoryqos.Burstable: "burstable", memoryqos.BestEffort: "besteffort"}[classOf(pod)]
	if !k.systemd {
		return path.Join("/kubepods", qos, "pod"+string(pod.UID))
	}
	parts := []string{"kubepods"}
	if qos != "" {
		parts = append(parts, qos)
	}
	parts = append(parts, "pod"+strings.ReplaceAll(string(pod.UID), "-", "_"))
	return cgroups.ExpandSlice(strings.Join(parts, "-") + ".slice")
}

// cgroupsPath is linux.cgroupsPath of a container's OCI spec, as containerd makes it.
func (k kubelet) cgroupsPath(pod *corev1.Pod, id string) string {
	parent := k.cgroupParent(pod)
	if k.systemd {
		return path.Base(parent) + ":cri-containerd:" + id
	}
	return path.Join(parent, id)
}

func classOf(pod *corev1.Pod) memoryqos.QOSClass { return podinfo.FromPod(pod).Class }

var withoutOverhead = resourcehelper.PodResourcesOptions{ExcludeOverhead: true}

// sandbox is RunPodSandbox' pod.
func (k kubelet) sandbox(pod *corev1.Pod) *api.PodSandbox {
	return &api.PodSandbox{
		Id: idOf(string(pod.UID)), Name: pod.Name, Uid: string(pod.UID), Namespace: pod.Namespace,
		Labels: pod.Labels, Annotations: pod.Annotations,
		Linux: &api.LinuxPodSandbox{
			CgroupParent: k.cgroupParent(pod),
			PodOverhead:  memoryAndCPU(pod.Spec.Overhead, pod.Spec.Overhead),
			PodResources: memoryAndCPU(resourcehelper.PodRequests(pod, withoutOverhead), resourcehelper.PodLimits(pod, withoutOverhead)),
		},
	}
}

// container is CreateContainer's container.
func (k kubelet) container(pod *corev1.Pod, container *corev1.Container) *api.Container {
	id := idOf(string(pod.UID) + "/" + container.Name)
	resources := memoryAndCPU(container.Resources.Requests, limits(pod, container))
	resources.HugepageLimits = k.hugepageLimits(pod, container)
	// The kubelet asks the kernel to kill all of a container's processes together.
	resources.Unified = map[string]string{"memory.oom.group": "1"}
	var env []string
	for _, variable := range container.Env {
		env = append(env, variable.Name+"="+variable.Value)
	}
	return &api.Container{
		Id: id, PodSandboxId: idOf(string(pod.UID)), Name: container.Name, Annotations: map[string]string{}, Env: env,
		Linux: &api.LinuxContainer{
			Resources:   resources,
			OomScoreAdj: &api.OptionalInt{Value: k.oomScoreAdj(pod, container)},
			CgroupsPath: k.cgroupsPath(pod, id),
		},
	}
}

const (
	quotaPeriod = 100000 // microseconds
	minShares   = 2
	maxShares   = 262144
)

// memoryAndCPU translates resources as the kubelet does for CRI. A limit of 0 is no limit; without a request the CPU limit
// is one.
func memoryAndCPU(requests, limits corev1.ResourceList) *api.LinuxResources {
	cpu, ok := requests[corev1.ResourceCPU]
	if !ok {
		cpu = limits[corev1.ResourceCPU]
	}
	shares := cpu.MilliValue() * 1024 / 1000
	to := &api.LinuxResources{
		Memory: &api.LinuxMemory{},
		Cpu:    &api.LinuxCPU{Shares: api.UInt64(uint64(min(max(shares, minShares), maxShares))), Period: api.UInt64(uint64(quotaPeriod))},
	}
	if limit := limits.Memory().Value(); limit > 0 {
		// Without swap the limit of memory and swap together is that of memory.
		to.Memory.Limit, to.Memory.Swap = api.Int64(limit), api.Int64(limit)
	}
	if limit := limits.Cpu().MilliValue(); limit > 0 {
		to.Cpu.Quota = api.Int64(max(limit*quotaPeriod/1000, 1000))
	}
	return to
}

// limits are a container's limits of CPU and memory, and where it has none those of its pod (spec.resources).
func limits(pod *corev1.Pod, container *corev1.Container) corev1.ResourceList {
	list := corev1.ResourceList{}
	if level := pod.Spec.Resources; level != nil {
		maps.Copy(list, level.Limits)
	}
	for name, limit := range container.Resources.Limits {
		if !limit.IsZero() {
			list[name] = limit
		}
	}
	return list
}

// memoryLimit is the limit of the pod's cgroup: that of the pod, or of its containers together where each has one. The
// kubelet takes an init container beside a sidecar with a limit for one with a limit.
func memoryLimit(pod *corev1.Pod) (bytes int64, limited bool) {
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	bytes = limits.Memory().Value()
	if level := pod.Spec.Resources; level != nil && !level.Limits.Memory().IsZero() {
		return bytes, true
	}
	lacks := func(c corev1.Container) bool { return c.Resources.Limits.Memory().IsZero() }
	beside := false
	for _, container := range pod.Spec.InitContainers {
		if lacks(container) && !beside {
			return 0, false
		}
		beside = beside || podinfo.IsSidecar(&container)
	}
	if slices.ContainsFunc(pod.Spec.Containers, lacks) {
		return 0, false
	}
	return bytes, true
}

// hugepageLimits has a limit for every page size of the machine, 0 where the container has none.
func (k kubelet) hugepageLimits(pod *corev1.Pod, container *corev1.Container) []*api.HugepageLimit {
	var limits []*api.HugepageLimit
	for _, size := range k.pageSizes() {
		limits = append(limits, &api.HugepageLimit{PageSize: pageSizeText(size), Limit: hugepageLimit(pod, container, size)})
	}
	return limits
}

// pageSizes are the sizes of the machine's huge pages in bytes, in the order of its nodes.
func (k kubelet) pageSizes() (sizes []uint64) {
	for _, node := range k.machine.Nodes {
		for _, pool := range node.Hugepages {
			if !slices.Contains(sizes, pool.PageSize) {
				sizes = append(sizes, pool.PageSize)
			}
		}
	}
	return sizes
}

// hugepageLimit prefers the container's limit to the pod's.
func hugepageLimit(pod *corev1.Pod, container *corev1.Container, pageSize uint64) uint64 {
	lists := []corev1.ResourceList{container.Resources.Limits}
	if pod.Spec.Resources != nil {
		lists = append(lists, pod.Spec.Resources.Limits)
	}
	for _, list := range lists {
		for name, limit := range list {
			text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
			if size, err := resource.ParseQuantity(text); ok && err == nil && uint64(size.Value()) == pageSize {
				return uint64(limit.Value())
			}
		}
	}
	return 0
}

// pageSizeText is a page size as CRI writes it, "2MB" or "1GB", and no Kubernetes quantity.
func pageSizeText(size uint64) string {
	units := []string{"B", "KB", "MB", "GB", "TB"}
	unit := 0
	for size >= 1024 && size%1024 == 0 && unit < len(units)-1 {
		size, unit = size/1024, unit+1
	}
	return resource.NewQuantity(int64(size), resource.DecimalSI).String() + units[unit]
}

// oomScoreAdj is the kubelet's (pkg/kubelet/qos): a share of the machine's memory for Burstable containers, clamped between
// the fixed values of the other classes.
func (k kubelet) oomScoreAdj(pod *corev1.Pod, container *corev1.Container) int64 {
	if pod.Spec.PriorityClassName == "system-node-critical" {
		return -997
	}
	switch classOf(pod) {
	case memoryqos.Guaranteed:
		return -997
	case memoryqos.BestEffort:
		return 1000
	}
	if k.machine.MemTotal == 0 {
		return 999
	}
	request, extra := container.Resources.Requests.Memory().Value(), unclaimedShare(pod)
	if podinfo.IsSidecar(container) {
		// A sidecar is at least as precious as the app container that asks for the least.
		least := pod.Spec.Containers[0].Resources.Requests.Memory().Value()
		for _, app := range pod.Spec.Containers {
			least = min(least, app.Resources.Requests.Memory().Value())
		}
		request = max(request, least)
	}
	adj := 1000 - 1000*(request+extra)/int64(k.machine.MemTotal)
	return min(max(adj, 3), 999)
}

// unclaimedShare is each container's share of the pod-level request that no container asks for.
func unclaimedShare(pod *corev1.Pod) int64 {
	if pod.Spec.Resources == nil || pod.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	sums := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	rest := pod.Spec.Resources.Requests.Memory().Value() - sums.Memory().Value()
	return rest / int64(len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
}

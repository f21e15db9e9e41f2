package podinfo

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// The kubelet's annotations of static pods and of their mirrors in the API server
// (https://kubernetes.io/docs/reference/labels-annotations-taints/).
const (
	configSource = "kubernetes.io/config.source"
	configMirror = "kubernetes.io/config.mirror"
)

// decode reads a v1.Pod in protobuf's wire format, as the kubelet's pod API sends it.
func decode(data []byte) (*pods.Pod, error) {
	var pod corev1.Pod
	if err := pod.Unmarshal(data); err != nil {
		return nil, fmt.Errorf("decode v1.Pod of %d bytes: %w", len(data), err)
	}
	return FromPod(&pod), nil
}

// FromPod takes from a v1.Pod what memory decisions need, with the API server's defaults applied where they are missing,
// as in a manifest. Only strings of the v1.Pod are kept alive.
//
// During an in-place resize the spec says what is desired. What the kubelet has admitted counts, because that is what the
// node has promised: requests come from status.containerStatuses[].allocatedResources. Limits come from the spec or, if the
// resize was not admitted, from the actuated status.containerStatuses[].resources. (The runtime's event has the limit that a
// running container really has.)
func FromPod(pod *corev1.Pod) *pods.Pod {
	pod = defaulted(pod)
	p := &pods.Pod{
		Ref:      pods.Ref{UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name},
		Class:    qosClass(pod),
		Overhead: memory(pod.Spec.Overhead), PriorityClass: pod.Spec.PriorityClassName,
	}
	if source := pod.Annotations[configSource]; source != "" && source != "api" {
		p.Static = true
	}
	if hash := pod.Annotations[configMirror]; hash != "" {
		// The runtime knows the static pod, whose UID is this hash. The mirror's own UID was made by the API server.
		p.Static, p.Mirror, p.UID = true, true, hash
	}
	p.Containers = containers(pod)
	p.PodRequest, p.PodLimit = podLevel(pod)
	if level := pod.Spec.Resources; level != nil {
		p.PodHugepages = hugepages(level.Requests)
	}
	claim(p, pod)
	return p
}

func containers(pod *corev1.Pod) []pods.Container {
	all := make([]pods.Container, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers)+len(pod.Spec.EphemeralContainers))
	pending := resizePending(pod)
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		kind := memoryqos.Init
		if IsSidecar(c) {
			kind = memoryqos.Sidecar
		}
		all = append(all, container(c, kind, pod.Status.InitContainerStatuses, pending))
	}
	for i := range pod.Spec.Containers {
		all = append(all, container(&pod.Spec.Containers[i], memoryqos.App, pod.Status.ContainerStatuses, pending))
	}
	for i := range pod.Spec.EphemeralContainers {
		all = append(all, pods.Container{Name: pod.Spec.EphemeralContainers[i].Name, Kind: memoryqos.Ephemeral})
	}
	return all
}

// IsSidecar reports whether an init container keeps running (https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/).
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func container(c *corev1.Container, kind memoryqos.Kind, statuses []corev1.ContainerStatus, pending bool) pods.Container {
	wish := memory(c.Resources.Requests)
	request, limit := wish, memory(c.Resources.Limits)
	if i := slices.IndexFunc(statuses, func(s corev1.ContainerStatus) bool { return s.Name == c.Name }); i >= 0 {
		status := &statuses[i]
		switch {
		case status.AllocatedResources != nil:
			request = memory(status.AllocatedResources)
		case pending && status.Resources != nil:
			request = memory(status.Resources.Requests)
		}
		if (pending || request != wish) && status.Resources != nil {
			limit = memory(status.Resources.Limits)
		}
	}
	lacks := lacking(request, limit, c.Resources)
	return pods.Container{
		Name: c.Name, Kind: kind, Request: request, Limit: limit, Hugepages: hugepages(c.Resources.Requests), Guaranteed: lacks == "", Lacks: lacks,
	}
}

// lacking says what keeps a container from being Guaranteed; empty if nothing does. request and limit are bytes of memory.
func lacking(request, limit uint64, r corev1.ResourceRequirements) string {
	cpuRequest, cpuLimit := r.Requests[corev1.ResourceCPU], r.Limits[corev1.ResourceCPU]
	switch noCPU := cpuLimit.Sign() <= 0; {
	case noCPU && limit == 0:
		return "has no CPU limit and no memory limit"
	case noCPU:
		return "has no CPU limit"
	case limit == 0:
		return "has no memory limit"
	case request != limit:
		sizes := quantity.Apart(request, limit)
		return fmt.Sprintf("requests %s of memory and has a limit of %s", sizes[0], sizes[1])
	case cpuRequest.Cmp(cpuLimit) != 0:
		return fmt.Sprintf("has a CPU request of %s and a CPU limit of %s", &cpuRequest, &cpuLimit)
	}
	return ""
}

// resizePending reports whether the kubelet has not admitted the resources in the spec. Before Kubernetes 1.33 this was
// status.resize.
func resizePending(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodResizePending {
			return c.Status != corev1.ConditionFalse
		}
	}
	switch pod.Status.Resize {
	case "Proposed", corev1.PodResizeStatusDeferred, corev1.PodResizeStatusInfeasible:
		return true
	}
	return false
}

// hugepages are the requests of huge pages. Kubernetes does not overcommit them: a request equals its limit.
func hugepages(requests corev1.ResourceList) memorymanager.Request {
	var all memorymanager.Request
	for name, q := range requests {
		if isHugepages(name) && q.Sign() > 0 {
			all = append(all, memorymanager.Amount{Type: memorymanager.MemoryType(name), Bytes: byteCount(q)})
		}
	}
	slices.SortFunc(all, func(a, b memorymanager.Amount) int { return cmp.Compare(a.Type, b.Type) })
	return all
}

func memory(list corev1.ResourceList) uint64 { return byteCount(list[corev1.ResourceMemory]) }

// byteCount rounds up to a whole byte as the kubelet does. A negative quantity counts as none.
func byteCount(q resource.Quantity) uint64 { return uint64(max(q.Value(), 0)) }

// podLevel gives the pod-level memory request and limit (spec.resources, KEP-2837), without overhead.
func podLevel(pod *corev1.Pod) (request, limit *uint64) {
	level := pod.Spec.Resources
	if level == nil {
		return nil, nil
	}
	if q, ok := level.Requests[corev1.ResourceMemory]; ok {
		request = new(byteCount(q))
		// What the kubelet has admitted of a pod-level resize contains the overhead.
		overhead := memory(pod.Spec.Overhead)
		if allocated := memory(pod.Status.AllocatedResources); allocated > overhead {
			*request = allocated - overhead
		}
	}
	if q, ok := level.Limits[corev1.ResourceMemory]; ok {
		limit = new(byteCount(q))
		if resizePending(pod) && pod.Status.Resources != nil {
			if actuated, ok := pod.Status.Resources.Limits[corev1.ResourceMemory]; ok {
				*limit = byteCount(actuated)
			}
		}
	}
	return request, limit
}

// claim adds to p the memory that the pod's resource claims allocate from the node's (KEP-5517,
// status.nodeAllocatableResourceClaimStatuses as of Kubernetes 1.37). What a claim allocates counts once for the pod, and in full for
// each container that refers to the claim; overhead per container counts for each of them.
func claim(p *pods.Pod, pod *corev1.Pod) {
	claims := pod.Status.NodeAllocatableResourceClaimStatuses
	if len(claims) == 0 {
		return
	}
	claimsOnly := &corev1.Pod{Status: corev1.PodStatus{NodeAllocatableResourceClaimStatuses: claims}}
	p.Claimed = memory(resourcehelper.AggregateContainerRequests(claimsOnly,
		resourcehelper.PodResourcesOptions{UseDRANodeAllocatableResourceClaimStatus: true}))
	for _, c := range claims {
		for _, mapping := range c.Mapping {
			if mapping.Name == corev1.ResourceMemory && mapping.Quantity != nil && mapping.Quantity.Sign() > 0 {
				if p.Mapped == nil {
					p.Mapped = map[string]uint64{}
				}
				p.Mapped[c.ResourceClaimName] = byteCount(*mapping.Quantity)
			}
		}
	}
	for i := range p.Containers {
		p.Containers[i].Claimed = memory(resourcehelper.GetContainerDRAAllocations(pod, p.Containers[i].Name))
	}
}

package podinfo

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// qosClass is the pod's QoS class. The one in its status is what the kubelet goes by; a resize never changes it. Without
// it the class is computed: only CPU and memory count, ephemeral containers do not, and pod-level resources replace the
// containers' (https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/). Resources of a pod that name nothing count as unset,
// as from Kubernetes 1.37; before, they made the pod BestEffort.
func qosClass(pod *corev1.Pod) memoryqos.QOSClass {
	if class := pod.Status.QOSClass; class != "" {
		return memoryqos.QOSClass(class)
	}
	var all []corev1.ResourceRequirements
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		all = append(all, *pod.Spec.Resources)
	} else {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			all = append(all, c.Resources)
		}
	}
	requests, limits, class := corev1.ResourceList{}, corev1.ResourceList{}, memoryqos.Guaranteed
	for _, resources := range all {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit := resources.Limits[name]
			plus(requests, name, resources.Requests[name])
			plus(limits, name, limit)
			if limit.Sign() <= 0 {
				class = memoryqos.Burstable
			}
		}
	}
	if len(requests) == 0 && len(limits) == 0 {
		return memoryqos.BestEffort
	}
	if !maps.EqualFunc(requests, limits, func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }) {
		return memoryqos.Burstable
	}
	return class
}

// plus adds a positive quantity; others do not count.
func plus(list corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if q.Sign() > 0 {
		sum := list[name].DeepCopy()
		sum.Add(q)
		list[name] = sum
	}
}

package podinfo

import (
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
	sums := qosSums{requests: corev1.ResourceList{}, limits: corev1.ResourceList{}, allLimited: true}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		sums.add(pod.Spec.Resources.Requests, pod.Spec.Resources.Limits)
	} else {
		for _, c := range pod.Spec.InitContainers {
			sums.add(c.Resources.Requests, c.Resources.Limits)
		}
		for _, c := range pod.Spec.Containers {
			sums.add(c.Resources.Requests, c.Resources.Limits)
		}
	}
	return sums.class()
}

// qosSums are a pod's sums of CPU and memory.
type qosSums struct {
	requests, limits corev1.ResourceList
	allLimited       bool // every container so far limits both
}

func (s *qosSums) add(requests, limits corev1.ResourceList) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit := limits[name]
		plus(s.requests, name, requests[name])
		plus(s.limits, name, limit)
		if limit.Sign() <= 0 {
			s.allLimited = false
		}
	}
}

// plus adds a positive quantity; others do not count.
func plus(list corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if q.Sign() > 0 {
		sum := list[name].DeepCopy()
		sum.Add(q)
		list[name] = sum
	}
}

func (s *qosSums) class() memoryqos.QOSClass {
	if len(s.requests) == 0 && len(s.limits) == 0 {
		return memoryqos.BestEffort
	}
	if !s.allLimited || len(s.requests) != len(s.limits) {
		return memoryqos.Burstable
	}
	for name, request := range s.requests {
		if limit := s.limits[name]; limit.Cmp(request) != 0 {
			return memoryqos.Burstable
		}
	}
	return memoryqos.Guaranteed
}

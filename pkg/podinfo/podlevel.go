package podinfo

import (
	corev1 "k8s.io/api/core/v1"
)

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

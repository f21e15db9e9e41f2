package podinfo

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// podLevel gives the pod-level memory request and limit (spec.resources, KEP-2837), without overhead.
func podLevel(pod *corev1.Pod) (request, limit *uint64) {
	level := pod.Spec.Resources
	if level == nil {
		return nil, nil
	}
	if q, ok := levelRequest(pod, corev1.ResourceMemory); ok {
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

// levelRequest is the pod-level request. Where there are pod-level limits but not this request, the API server makes it
// what the containers ask for, or the limit when none of them asks.
func levelRequest(pod *corev1.Pod, name corev1.ResourceName) (resource.Quantity, bool) {
	level := pod.Spec.Resources
	if q, ok := level.Requests[name]; ok || len(level.Limits) == 0 {
		return q, ok
	}
	if sum, ok := sumRequests(pod, name); ok {
		return sum, true
	}
	q, ok := level.Limits[name]
	return q, ok
}

// sumRequests is the most that a pod's containers ask for at any moment of its life, by its spec: an init container runs
// beside the sidecars that were started before it, and after the last one all sidecars and app containers run. It is false
// when no container asks.
func sumRequests(pod *corev1.Pod, name corev1.ResourceName) (resource.Quantity, bool) {
	var running, peak resource.Quantity
	asked := false
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		q, ok := requested(c.Resources, name)
		asked = asked || ok
		now := running.DeepCopy()
		now.Add(q)
		if now.Cmp(peak) > 0 {
			peak = now.DeepCopy()
		}
		if sidecar(c) {
			running = now
		}
	}
	for i := range pod.Spec.Containers {
		q, ok := requested(pod.Spec.Containers[i].Resources, name)
		asked = asked || ok
		running.Add(q)
	}
	if running.Cmp(peak) > 0 {
		peak = running
	}
	return peak, asked
}

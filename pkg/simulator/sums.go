package simulator

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// sumOfRequests is what the containers of a pod request at most at one time: apps and sidecars together, or an init
// container with the sidecars before it.
func sumOfRequests(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	return peak(pod, func(c *corev1.Container) resource.Quantity { return c.Resources.Requests[name] })
}

// peak is the largest sum of a quantity over the containers that run at one time.
func peak(pod *corev1.Pod, of func(*corev1.Container) resource.Quantity) resource.Quantity {
	var sidecars, highest resource.Quantity
	for i := range pod.Spec.InitContainers {
		container := &pod.Spec.InitContainers[i]
		if isSidecar(container) {
			sidecars.Add(of(container))
			continue
		}
		sum := sidecars.DeepCopy()
		sum.Add(of(container))
		if sum.Cmp(highest) > 0 {
			highest = sum
		}
	}
	for i := range pod.Spec.Containers {
		sidecars.Add(of(&pod.Spec.Containers[i]))
	}
	if sidecars.Cmp(highest) > 0 {
		return sidecars
	}
	return highest
}

// podResources are those of the pod's cgroup, without overhead: pod-level ones, or the sums of its containers. As in the
// kubelet, a container without a limit does not count for the sandbox' sum.
func podResources(pod *corev1.Pod) corev1.ResourceRequirements {
	resources := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		resources.Requests[name] = sumOfRequests(pod, name)
		resources.Limits[name] = peak(pod, func(c *corev1.Container) resource.Quantity { return c.Resources.Limits[name] })
		if level := pod.Spec.Resources; level != nil {
			replace(resources.Requests, level.Requests, name)
			replace(resources.Limits, level.Limits, name)
		}
	}
	return resources
}

func replace(to, from corev1.ResourceList, name corev1.ResourceName) {
	if quantity, ok := from[name]; ok {
		to[name] = quantity
	}
}

// limited reports whether every container has a memory limit, so that the kubelet limits the pod's cgroup too.
func limited(pod *corev1.Pod) bool {
	if level := pod.Spec.Resources; level != nil {
		if quantity, ok := level.Limits[corev1.ResourceMemory]; ok {
			return quantity.Sign() > 0
		}
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, container := range containers {
			if container.Resources.Limits.Memory().Sign() <= 0 {
				return false
			}
		}
	}
	return true
}

package podinfo

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// SetDefaults fills in the resources that the API server of Kubernetes 1.37 fills in (SetDefaults_Pod and DefaultPodLevelResources):
// requests from limits, and of a pod with resources of its own what its containers ask for and are limited to.
func SetDefaults(pod *corev1.Pod) {
	all := [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers}
	for _, containers := range all {
		for i := range containers {
			resources := &containers[i].Resources
			setMissing(&resources.Requests, resources.Limits, func(corev1.ResourceName) bool { return true })
		}
	}
	if !resourcehelper.IsPodLevelResourcesSet(pod) {
		return
	}
	level, none := pod.Spec.Resources, resourcehelper.PodResourcesOptions{}
	limits := resourcehelper.AggregateContainerLimits(pod, none)
	setMissing(&level.Limits, limits, func(name corev1.ResourceName) bool {
		_, requested := level.Requests[name]
		return isHugepages(name) && !requested
	})
	setMissing(&level.Requests, resourcehelper.AggregateContainerRequests(pod, none), func(name corev1.ResourceName) bool {
		return resourcehelper.IsSupportedPodLevelResource(name) && !isHugepages(name)
	})
	setMissing(&level.Requests, level.Limits, resourcehelper.IsSupportedPodLevelResource)
	for name, request := range level.Requests {
		if limit := limits[name]; request.Cmp(limit) > 0 {
			limits[name] = request
		}
	}
	setMissing(&level.Limits, limits, func(name corev1.ResourceName) bool {
		unlimited := func(c corev1.Container) bool {
			_, limited := c.Resources.Limits[name]
			return !limited
		}
		_, requested := level.Requests[name]
		return requested && resourcehelper.IsSupportedPodLevelResource(name) &&
			!slices.ContainsFunc(slices.Concat(all...), unlimited)
	})
}

// setMissing copies the quantities that a list does not have.
func setMissing(to *corev1.ResourceList, from corev1.ResourceList, wanted func(corev1.ResourceName) bool) {
	for name, quantity := range from {
		if _, ok := (*to)[name]; ok || !wanted(name) {
			continue
		}
		if *to == nil {
			*to = corev1.ResourceList{}
		}
		(*to)[name] = quantity.DeepCopy()
	}
}

func isHugepages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// defaulted returns the pod with its defaults. The sources' pods have them, and nothing is copied.
func defaulted(pod *corev1.Pod) *corev1.Pod {
	if !lacksRequest(pod) {
		return pod
	}
	pod = pod.DeepCopy()
	SetDefaults(pod)
	return pod
}

// lacksRequest reports whether a request that SetDefaults may fill in is missing.
func lacksRequest(pod *corev1.Pod) bool {
	lacks := func(c corev1.Container) bool {
		for name := range c.Resources.Limits {
			if _, ok := c.Resources.Requests[name]; !ok {
				return true
			}
		}
		return false
	}
	if slices.ContainsFunc(pod.Spec.InitContainers, lacks) || slices.ContainsFunc(pod.Spec.Containers, lacks) {
		return true
	}
	level := pod.Spec.Resources
	if level == nil || len(level.Limits) == 0 {
		return false
	}
	_, cpu := level.Requests[corev1.ResourceCPU]
	_, memory := level.Requests[corev1.ResourceMemory]
	return !cpu || !memory
}

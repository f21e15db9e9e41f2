package podinfo

import (
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

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

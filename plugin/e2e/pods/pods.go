// Package pods makes random pods with resources of every shape that the API server accepts. The same seed gives the same pods.
package pods

import (
	"fmt"
	"math"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Bounds say how much the pods may ask for.
type Bounds struct {
	// MinMemory to MaxMemory are the bytes of one request or limit of memory; a request may also be 0.
	MinMemory, MaxMemory int64
	// MaxCPU is the largest request of CPU and MinCPULimit to MaxCPULimit are its limits, in thousandths. A Guaranteed
	// container asks for its limit.
	MaxCPU, MinCPULimit, MaxCPULimit int64
	// Hugepages has pods ask for huge pages of 2 MiB and 1 GiB.
	Hugepages bool
}

// Random makes pods.
func Random(seed uint64, count int, bounds Bounds) []*corev1.Pod {
	r := random{rand.New(rand.NewPCG(seed, 0)), bounds}
	var pods []*corev1.Pod
	for i := range count {
		pods = append(pods, r.pod(fmt.Sprintf("random-%d", i), i))
	}
	return pods
}

type random struct {
	*rand.Rand
	Bounds
}

// kind is what all containers of a pod have in common.
type kind int

const (
	bestEffort kind = iota
	guaranteed
	limitsOnly
	memoryOnly
	cpuOnly
	equalMemory
	mixed // each container is of another kind
	kinds
)

func (r random) one(in int) bool { return r.IntN(in) == 0 }

func (r random) pod(name string, i int) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceDefault, UID: types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", r.Uint32(), i))},
	}
	of := kind(r.IntN(int(kinds)))
	for c := range r.IntN(3) {
		container := corev1.Container{Name: fmt.Sprintf("init-%d", c), Resources: r.resources(of)}
		if r.one(2) {
			container.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
	}
	for c := range 1 + r.IntN(3) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("app-%d", c), Resources: r.resources(of)})
	}
	if r.one(4) {
		pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceMemory: r.memory()}
	}
	if r.one(3) {
		pod.Spec.Resources = r.podLevel(pod)
	}
	return pod
}

func (r random) resources(of kind) corev1.ResourceRequirements {
	if of == mixed {
		of = kind(r.IntN(int(mixed)))
	}
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	switch of {
	case guaranteed:
		limits[corev1.ResourceMemory], limits[corev1.ResourceCPU] = r.memory(), r.cpuLimit()
		if r.one(2) { // else they follow from the limits
			requests[corev1.ResourceMemory], requests[corev1.ResourceCPU] = limits[corev1.ResourceMemory], limits[corev1.ResourceCPU]
		}
	case limitsOnly:
		limits[corev1.ResourceMemory] = r.memory()
		if r.one(3) {
			limits[corev1.ResourceCPU] = r.cpuLimit()
		}
	case memoryOnly:
		r.request(requests, limits)
	case cpuOnly:
		r.cpu(requests, limits)
	case equalMemory:
		requests[corev1.ResourceMemory] = r.memory()
		limits[corev1.ResourceMemory] = requests[corev1.ResourceMemory]
		r.cpu(requests, limits)
	}
	if r.Hugepages && of != bestEffort && r.one(4) {
		size := [...]struct {
			name  corev1.ResourceName
			bytes int64
		}{{"hugepages-2Mi", 2 << 20}, {"hugepages-1Gi", 1 << 30}}[r.IntN(2)]
		limits[size.name] = *resource.NewQuantity(size.bytes*int64(1+r.IntN(8)), resource.BinarySI)
	}
	return corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

// request gives a memory request, a limit or both, now and then of 0.
func (r random) request(requests, limits corev1.ResourceList) {
	limit := r.memory()
	if r.one(3) { // none
		requests[corev1.ResourceMemory] = limit
	} else {
		limits[corev1.ResourceMemory] = limit
		requests[corev1.ResourceMemory] = *resource.NewQuantity(r.Int64N(limit.Value()+1), resource.BinarySI)
	}
	if r.one(6) {
		requests[corev1.ResourceMemory] = resource.Quantity{}
	}
}

func (r random) cpu(requests, limits corev1.ResourceList) {
	request := resource.NewMilliQuantity(r.Int64N(r.MaxCPU+1), resource.DecimalSI)
	if r.one(2) {
		limits[corev1.ResourceCPU] = r.cpuLimit()
	}
	if limit, ok := limits[corev1.ResourceCPU]; !ok || request.Cmp(limit) <= 0 {
		requests[corev1.ResourceCPU] = *request
	}
}

func (r random) cpuLimit() resource.Quantity {
	return *resource.NewMilliQuantity(r.MinCPULimit+r.Int64N(r.MaxCPULimit-r.MinCPULimit+1), resource.DecimalSI)
}

// memory is odd bytes, whole MiB or whole megabytes, small ones as often as large ones.
func (r random) memory() resource.Quantity {
	low, high := math.Log(float64(r.MinMemory)), math.Log(float64(r.MaxMemory))
	bytes := int64(math.Exp(low + (high-low)*r.Float64()))
	unit := [...]int64{1, 1 << 20, 1e6}[r.IntN(3)]
	bytes = min(max((bytes+unit-1)/unit*unit, r.MinMemory), r.MaxMemory)
	return *resource.NewQuantity(bytes, resource.BinarySI)
}

// podLevel gives resources to the pod itself: as much as its containers ask for in sum, or more.
func (r random) podLevel(pod *corev1.Pod) *corev1.ResourceRequirements {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceCPU} {
		more := r.memory()
		if name == corev1.ResourceCPU {
			more = r.cpuLimit()
		}
		request, limit := sum(pod, name)
		if r.one(2) || request.IsZero() {
			request.Add(more)
		}
		shape := r.IntN(4)
		if shape != 0 {
			requests[name] = request
		}
		if limit.Cmp(request) < 0 {
			limit = request
		}
		switch shape {
		case 0: // a limit only: the request follows
			limits[name] = limit
		case 1:
			limit.Add(more)
			limits[name] = limit
		case 2:
			limits[name], requests[name] = limit, limit
		}
	}
	return &corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

// sum adds what all containers of a pod ask for and what they are limited to.
func sum(pod *corev1.Pod, name corev1.ResourceName) (requests, limits resource.Quantity) {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			limit := c.Resources.Limits[name]
			request, ok := c.Resources.Requests[name]
			if !ok {
				request = limit
			}
			requests.Add(request)
			limits.Add(limit)
		}
	}
	return requests, limits
}

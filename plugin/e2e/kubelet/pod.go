// Package kubelet plays the kubelet's part towards a container runtime: it
// makes the kubepods, QoS and pod cgroups, asks for sandboxes and containers
// over CRI with what a kubelet sends, and serves the kubelet's pod API.
package kubelet

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// MiB is 2^20 bytes.
const MiB = uint64(1) << 20

// Pod is a pod as a test wants it, and what became of it.
type Pod struct {
	Name        string
	UID         string
	Annotations map[string]string
	Overhead    uint64 // bytes of memory
	Containers  []Container

	sandbox string            // CRI id
	ids     map[string]string // container → CRI id
}

// Container is one container of a pod. Amounts are bytes; 0 means not given.
type Container struct {
	Name           string
	Request, Limit uint64
	Hugepages      uint64 // of 2 MiB, request and limit
	CPUs           string // one exclusive CPU, as the kubelet's CPU manager gives it
	Init           bool
	Args           []string          // steps of the workload; none: sleep
	Mounts         map[string]string // path inside → path on the node, with ":ro" at its end read-only
	Unified        map[string]string // sent with the CRI request
	Image          string            // another image than the test image; Args are its entrypoint's
	// Restricted takes from the container what a careful security context
	// takes: all capabilities, new privileges and writes to the image's files.
	Restricted bool
	Seccomp    bool // the runtime's default profile
}

// Class is the pod's QoS class (pkg/apis/core/v1/helper/qos): CPU is asked for
// just where memory makes a container Guaranteed.
func (p *Pod) Class() corev1.PodQOSClass {
	guaranteed, any := true, false
	for _, c := range p.Containers {
		any = any || c.Request > 0 || c.Limit > 0 || c.Hugepages > 0
		guaranteed = guaranteed && c.Request > 0 && c.Request == c.Limit
	}
	switch {
	case !any:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// Container returns the container with this name, or nil.
func (p *Pod) Container(name string) *Container {
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}

// ID is the CRI id of a container, "" when it does not exist.
func (p *Pod) ID(container string) string { return p.ids[container] }

// Sandbox is the CRI id of the pod's sandbox.
func (p *Pod) Sandbox() string { return p.sandbox }

// limit is the pod's memory limit: the containers' sum where each has one,
// else 0 (pkg/kubelet/cm ResourceConfigForPod).
func (p *Pod) limit() uint64 {
	var sum, initial uint64
	for _, c := range p.Containers {
		if c.Limit == 0 {
			return 0
		}
		if c.Init {
			initial = max(initial, c.Limit)
		} else {
			sum += c.Limit
		}
	}
	return max(sum, initial) + p.Overhead
}

// Object is the pod as the API server knows it.
func (p *Pod) Object() *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: "default", UID: types.UID(p.UID), Annotations: p.Annotations},
		Status:     corev1.PodStatus{QOSClass: p.Class()},
	}
	if p.Overhead > 0 {
		pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceMemory: quantity(p.Overhead)}
	}
	for _, c := range p.Containers {
		object := corev1.Container{Name: c.Name, Image: "e2e.local/box:1", Resources: c.resources()}
		if c.Init {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, object)
		} else {
			pod.Spec.Containers = append(pod.Spec.Containers, object)
		}
	}
	return pod
}

func (c Container) resources() corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	if c.Request > 0 {
		r.Requests[corev1.ResourceMemory] = quantity(c.Request)
	}
	if c.Limit > 0 {
		r.Limits[corev1.ResourceMemory] = quantity(c.Limit)
	}
	if c.Hugepages > 0 {
		r.Requests["hugepages-2Mi"], r.Limits["hugepages-2Mi"] = quantity(c.Hugepages), quantity(c.Hugepages)
	}
	if c.guaranteed() {
		cpu := *resource.NewMilliQuantity(c.milliCPU(), resource.DecimalSI)
		r.Requests[corev1.ResourceCPU], r.Limits[corev1.ResourceCPU] = cpu, cpu
	}
	return r
}

// milliCPU is what a container with equal memory request and limit asks for;
// it is not enforced, so that an emulated machine does not get slower.
func (c Container) milliCPU() int64 {
	if c.CPUs != "" {
		return 1000
	}
	return 100
}

func (c Container) guaranteed() bool { return c.Request > 0 && c.Request == c.Limit }

func quantity(bytes uint64) resource.Quantity {
	return *resource.NewQuantity(int64(bytes), resource.BinarySI)
}

// oomScoreAdj is the kubelet's (pkg/kubelet/qos/policy.go).
func (p *Pod) oomScoreAdj(c Container, memTotal uint64) int64 {
	switch p.Class() {
	case corev1.PodQOSGuaranteed:
		return -997
	case corev1.PodQOSBestEffort:
		return 1000
	}
	adj := 1000 - int64(1000*c.Request/memTotal)
	return min(max(adj, 3), 999)
}

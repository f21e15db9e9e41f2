package kubelet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// Memory mounts an emptyDir with the medium Memory.
const Memory = "emptyDir of memory"

// MiB is 2^20 bytes.
const MiB = uint64(1) << 20

// Pod is a pod as a test wants it, and what became of it.
type Pod struct {
	Name        string
	Annotations map[string]string
	Overhead    uint64 // bytes of memory
	Priority    int32  // 0 is that of every other pod
	Containers  []Container
	// Resources are the pod's own (spec.resources).
	Resources *corev1.ResourceRequirements
	// Restart is the restart policy; "" is Never, so that a case sees the end of a container.
	Restart corev1.RestartPolicy

	// UID and IDs are what became of it: the pod's UID, and the CRI ids of its containers by name.
	UID string
	IDs map[string]string

	class corev1.PodQOSClass // as the API server has computed it
}

// Container is one container of a pod. Amounts are bytes; 0 means not given.
type Container struct {
	Name           string
	Request, Limit uint64
	// Resources, where set, are instead of Request, Limit, Hugepages and CPUs.
	Resources *corev1.ResourceRequirements
	Hugepages uint64 // of 2 MiB, request and limit
	CPUs      string // exclusive CPUs, comma-separated: so many are asked for, package cri gives just these
	Mems      string // cpuset.mems, which package cri asks for as the kubelet's Memory Manager does
	Init      bool
	Sidecar   bool              // an init container that runs beside the others (restartPolicy Always)
	Args      []string          // steps of the workload; none: sleep
	Mounts    map[string]string // path inside → path on the node, with ":ro" at its end read-only; or Memory
	Unified   map[string]string // sent with the CRI request
	// Annotations are the container's in the CRI request; a kubelet takes them from device plugins only.
	Annotations map[string]string
	Image       string // another image than the test image; Args are its entrypoint's
	// Restricted takes from the container what a careful security context
	// takes: all capabilities, new privileges and writes to the image's files.
	Restricted bool
	Seccomp    bool // the runtime's default profile
}

// Class is the pod's QoS class, before its creation the one that it will have (pkg/apis/core/v1/helper/qos): CPU is asked
// for just where memory makes a container Guaranteed.
func (p *Pod) Class() corev1.PodQOSClass {
	if p.class != "" {
		return p.class
	}
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

// Object is the pod as the API server knows it.
func (p *Pod) Object() *corev1.Pod {
	var automount bool
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: Namespace, UID: types.UID(p.UID), Annotations: p.Annotations},
		Spec: corev1.PodSpec{
			HostNetwork: true, RestartPolicy: cmp.Or(p.Restart, corev1.RestartPolicyNever), AutomountServiceAccountToken: &automount,
			TerminationGracePeriodSeconds: new(int64(1)),
			Volumes:                       []corev1.Volume{hostPath("ctl", controlDir(p))}, Resources: p.Resources,
		},
		Status: corev1.PodStatus{QOSClass: p.Class()}, // the API server keeps what a create request says, and the kubelet's cgroups follow it
	}
	if p.Overhead > 0 {
		pod.Spec.Overhead = corev1.ResourceList{corev1.ResourceMemory: quantity(p.Overhead)}
		pod.Spec.RuntimeClassName = new(p.runtimeClass())
	}
	if p.Priority != 0 {
		pod.Spec.PriorityClassName = p.priorityClass()
	}
	for _, c := range p.Containers {
		object, volumes := c.object()
		pod.Spec.Volumes = append(pod.Spec.Volumes, volumes...)
		if c.Sidecar {
			object.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		if c.Init || c.Sidecar {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, object)
		} else {
			pod.Spec.Containers = append(pod.Spec.Containers, object)
		}
	}
	return pod
}

func (p *Pod) runtimeClass() string { return fmt.Sprint("overhead-", p.Overhead) }

func (p *Pod) priorityClass() string { return fmt.Sprint("priority", p.Priority) }

func hostPath(name, path string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}
}

// object is the container as the API server knows it, with the volumes that it mounts.
func (c Container) object() (corev1.Container, []corev1.Volume) {
	object := corev1.Container{
		Name: c.Name, Image: setup.Image, ImagePullPolicy: corev1.PullNever, Command: []string{"/workload"}, Args: c.Args, Resources: c.resources(),
		VolumeMounts: []corev1.VolumeMount{{Name: "ctl", MountPath: "/ctl"}},
	}
	if c.Image != "" {
		object.Image, object.Command = c.Image, nil
	}
	var volumes []corev1.Volume
	for _, inside := range slices.Sorted(maps.Keys(c.Mounts)) {
		name := fmt.Sprintf("%s-%d", c.Name, len(volumes))
		outside, readOnly := strings.CutSuffix(c.Mounts[inside], ":ro")
		volume := hostPath(name, outside)
		if outside == Memory {
			volume.VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}
		}
		volumes = append(volumes, volume)
		object.VolumeMounts = append(object.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: inside, ReadOnly: readOnly})
	}
	if c.Restricted || c.Seccomp {
		object.SecurityContext = &corev1.SecurityContext{}
	}
	if s := object.SecurityContext; c.Restricted {
		s.RunAsUser, s.RunAsGroup = new(int64(0)), new(int64(0)) // root without its rights
		s.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}
		s.AllowPrivilegeEscalation, s.ReadOnlyRootFilesystem = new(false), new(true)
	}
	if c.Seccomp {
		object.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
	return object, volumes
}

func (c Container) resources() corev1.ResourceRequirements {
	if c.Resources != nil {
		return *c.Resources
	}
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
		cpu := *resource.NewMilliQuantity(c.MilliCPU(), resource.DecimalSI)
		r.Requests[corev1.ResourceCPU], r.Limits[corev1.ResourceCPU] = cpu, cpu
	}
	return r
}

// MilliCPU is what a container with equal memory request and limit asks for;
// it is not enforced, so that an emulated machine does not get slower.
func (c Container) MilliCPU() int64 {
	if c.CPUs != "" {
		return int64(1000 * len(strings.Split(c.CPUs, ",")))
	}
	return 100
}

func (c Container) guaranteed() bool { return c.Request > 0 && c.Request == c.Limit }

func quantity(bytes uint64) resource.Quantity {
	return *resource.NewQuantity(int64(bytes), resource.BinarySI)
}

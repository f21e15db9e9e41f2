package cri

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// sandboxConfig is what the kubelet sends for a pod with the host's network.
func (k *Kubelet) sandboxConfig(p *kubelet.Pod) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: p.Name, Uid: p.UID, Namespace: "default"},
		LogDirectory: kubelet.LogDir(p),
		Labels:       map[string]string{"io.kubernetes.pod.name": p.Name, "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": p.UID},
		Annotations:  annotations(p),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    "/" + k.Paths.Pod(p),
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: namespaces()},
			Overhead:        &cri.LinuxContainerResources{MemoryLimitInBytes: int64(p.Overhead)},
			Resources:       &cri.LinuxContainerResources{MemoryLimitInBytes: int64(podLimit(p)), CpuPeriod: 100000, CpuShares: 2},
		},
	}
}

func annotations(p *kubelet.Pod) map[string]string {
	all := map[string]string{"kubernetes.io/config.seen": "2026-01-01T00:00:00Z", "kubernetes.io/config.source": "api"}
	maps.Copy(all, p.Annotations)
	return all
}

func namespaces() *cri.NamespaceOption {
	return &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}
}

func (k *Kubelet) containerConfig(p *kubelet.Pod, c kubelet.Container) *cri.ContainerConfig {
	image := c.Image
	var command []string
	if image == "" {
		image, command = k.Plan.Image(), []string{"/workload"}
	}
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: c.Name},
		Image:    &cri.ImageSpec{Image: image, UserSpecifiedImage: image},
		Command:  command,
		Args:     c.Args,
		Labels: map[string]string{
			"io.kubernetes.pod.name": p.Name, "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": p.UID, "io.kubernetes.container.name": c.Name,
		},
		Annotations: map[string]string{"io.kubernetes.container.restartCount": "0", "io.kubernetes.container.terminationMessagePath": "/dev/termination-log"},
		LogPath:     c.Name + "/0.log",
		Mounts:      []*cri.Mount{{HostPath: k.Control(p), ContainerPath: "/ctl"}},
		Linux: &cri.LinuxContainerConfig{
			Resources:       k.resources(p, c),
			SecurityContext: securityContext(c),
		},
	}
	maps.Copy(config.Annotations, c.Annotations)
	for inside, outside := range c.Mounts {
		outside, readOnly := strings.CutSuffix(outside, ":ro")
		config.Mounts = append(config.Mounts, &cri.Mount{HostPath: outside, ContainerPath: inside, Readonly: readOnly})
	}
	return config
}

func securityContext(c kubelet.Container) *cri.LinuxContainerSecurityContext {
	s := &cri.LinuxContainerSecurityContext{NamespaceOptions: namespaces()}
	if c.Restricted {
		s.RunAsUser, s.RunAsGroup = &cri.Int64Value{}, &cri.Int64Value{} // 0: root without its rights
		s.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"}}
		s.NoNewPrivs, s.ReadonlyRootfs = true, true
	}
	if c.Seccomp {
		s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	}
	return s
}

// resources is what the kubelet sends (pkg/kubelet/kuberuntime
// generateLinuxContainerResources): the limit, but not the request.
func (k *Kubelet) resources(p *kubelet.Pod, c kubelet.Container) *cri.LinuxContainerResources {
	r := &cri.LinuxContainerResources{
		CpuPeriod: 100000, CpuShares: 2, MemoryLimitInBytes: int64(c.Limit),
		OomScoreAdj: oomScoreAdj(p, c, k.memTotal), CpusetCpus: c.CPUs, CpusetMems: c.Mems,
		Unified: map[string]string{"memory.oom.group": "1"},
	}
	if p.Class() == corev1.PodQOSGuaranteed {
		r.CpuShares = c.MilliCPU() * 1024 / 1000
	}
	if c.Hugepages > 0 {
		r.HugepageLimits = []*cri.HugepageLimit{{PageSize: "2MB", Limit: c.Hugepages}}
	}
	maps.Copy(r.Unified, c.Unified)
	return r
}

// podLimit is the pod's memory limit: the containers' sum where each has one,
// else 0 (pkg/kubelet/cm ResourceConfigForPod).
func podLimit(p *kubelet.Pod) uint64 {
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

// oomScoreAdj is the kubelet's (pkg/kubelet/qos/policy.go).
func oomScoreAdj(p *kubelet.Pod, c kubelet.Container, memTotal uint64) int64 {
	switch p.Class() {
	case corev1.PodQOSGuaranteed:
		return -997
	case corev1.PodQOSBestEffort:
		return 1000
	}
	adj := 1000 - int64(1000*c.Request/memTotal)
	return min(max(adj, 3), 999)
}

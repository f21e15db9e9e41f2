package kubelet

import (
	"maps"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func logDir(p *Pod) string { return filepath.Join("/var/log/pods", "default_"+p.Name+"_"+p.UID) }

// sandboxConfig is what the kubelet sends for a pod with the host's network.
func (k *Kubelet) sandboxConfig(p *Pod) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: p.Name, Uid: p.UID, Namespace: "default"},
		LogDirectory: logDir(p),
		Labels:       map[string]string{"io.kubernetes.pod.name": p.Name, "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": p.UID},
		Annotations:  p.annotations(),
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    "/" + k.cgroups.Pod(p),
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: namespaces()},
			Overhead:        &cri.LinuxContainerResources{MemoryLimitInBytes: int64(p.Overhead)},
			Resources:       &cri.LinuxContainerResources{MemoryLimitInBytes: int64(p.limit()), CpuPeriod: 100000, CpuShares: 2},
		},
	}
}

func (p *Pod) annotations() map[string]string {
	all := map[string]string{"kubernetes.io/config.seen": "2026-01-01T00:00:00Z", "kubernetes.io/config.source": "api"}
	maps.Copy(all, p.Annotations)
	return all
}

func namespaces() *cri.NamespaceOption {
	return &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}
}

func (k *Kubelet) containerConfig(p *Pod, c Container) *cri.ContainerConfig {
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
		LogPath:     c.Name + ".log",
		Mounts:      []*cri.Mount{{HostPath: k.Control(p), ContainerPath: "/ctl"}},
		Linux: &cri.LinuxContainerConfig{
			Resources:       k.resources(p, c),
			SecurityContext: c.securityContext(),
		},
	}
	for inside, outside := range c.Mounts {
		outside, readOnly := strings.CutSuffix(outside, ":ro")
		config.Mounts = append(config.Mounts, &cri.Mount{HostPath: outside, ContainerPath: inside, Readonly: readOnly})
	}
	return config
}

func (c Container) securityContext() *cri.LinuxContainerSecurityContext {
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
func (k *Kubelet) resources(p *Pod, c Container) *cri.LinuxContainerResources {
	r := &cri.LinuxContainerResources{
		CpuPeriod: 100000, CpuShares: 2, MemoryLimitInBytes: int64(c.Limit),
		OomScoreAdj: p.oomScoreAdj(c, k.memTotal), CpusetCpus: c.CPUs,
		Unified: map[string]string{"memory.oom.group": "1"},
	}
	if p.Class() == corev1.PodQOSGuaranteed {
		r.CpuShares = c.milliCPU() * 1024 / 1000
	}
	if c.Hugepages > 0 {
		r.HugepageLimits = []*cri.HugepageLimit{{PageSize: "2MB", Limit: c.Hugepages}}
	}
	maps.Copy(r.Unified, c.Unified)
	return r
}

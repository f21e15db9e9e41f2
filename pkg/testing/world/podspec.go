package world

import (
	"maps"
	"strconv"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// sandbox is what the kubelet asks of the runtime for a pod.
func (p *pod) sandbox() *api.PodSandbox {
	labels := map[string]string{"io.kubernetes.pod.name": p.spec.Name, "io.kubernetes.pod.namespace": p.spec.Namespace, "io.kubernetes.pod.uid": p.facts.UID}
	maps.Copy(labels, p.spec.Labels)
	annotations := map[string]string{"kubernetes.io/config.source": "api"}
	if p.spec.Static {
		annotations["kubernetes.io/config.source"] = "file"
		annotations["kubernetes.io/config.hash"] = p.facts.UID
	}
	maps.Copy(annotations, p.spec.Annotations)
	return &api.PodSandbox{
		Id:  identify(p.scenario.Seed, p.facts.UID, p.spec.At, p.attempts),
		Uid: p.facts.UID, Namespace: p.spec.Namespace, Name: p.spec.Name, Labels: labels, Annotations: annotations,
		Linux: &api.LinuxPodSandbox{
			CgroupParent: p.runtime.Parent(p.cgroup),
			PodOverhead:  &api.LinuxResources{}, PodResources: &api.LinuxResources{Memory: memoryOf(podLimit(p.facts))},
		},
	}
}

// container is what the kubelet asks of the runtime for a container.
func (p *pod) container(c *member, id string) *api.Container {
	spec, _ := p.facts.Container(c.spec.Name)
	return &api.Container{
		Id: id, PodSandboxId: p.current.Id, Name: c.spec.Name,
		Labels: map[string]string{"io.kubernetes.container.name": c.spec.Name, "io.kubernetes.pod.name": p.spec.Name,
			"io.kubernetes.pod.namespace": p.spec.Namespace, "io.kubernetes.pod.uid": p.facts.UID},
		Annotations: map[string]string{"io.kubernetes.container.restartCount": strconv.Itoa(c.creates - 1)},
		CDIDevices:  p.devices(c),
		Linux:       &api.LinuxContainer{Resources: p.resources(c, spec), OomScoreAdj: api.Int(int(p.oomScore(spec)))},
	}
}

// resources are linux.resources of a container's CRI request (kuberuntime_container_linux.go: generateLinuxContainerResources).
func (p *pod) resources(c *member, spec pods.Container) *api.LinuxResources {
	limit := spec.Limit
	if limit == 0 && p.facts.PodLimit != nil {
		limit = *p.facts.PodLimit
	}
	cpu := &api.LinuxCPU{Shares: api.UInt64(max(uint64(c.spec.CPUs)*1024, 2)), Cpus: list(c.cpus)}
	if p.spec.Class == string(memoryqos.Guaranteed) && c.spec.CPUs > 0 {
		cpu.Period, cpu.Quota = api.UInt64(uint64(100_000)), api.Int64(int64(c.spec.CPUs)*100_000)
	}
	resources := &api.LinuxResources{Memory: memoryOf(limit), Cpu: cpu,
		HugepageLimits: []*api.HugepageLimit{{PageSize: "2MB", Limit: c.spec.Hugepages}}}
	if p.scenario.GroupKills {
		resources.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return resources
}

// who is whose processes they are, for the kernel.
func (p *pod) who(c *member, id string) Who {
	spec, _ := p.facts.Container(c.spec.Name)
	who := Who{UID: p.facts.UID, Namespace: p.spec.Namespace, Pod: p.spec.Name, Container: spec.Name, ID: id,
		Request: spec.Request, Hugepages: c.spec.Hugepages}
	who.PodRequest = LivePod{Pod: p.facts}.share()
	return who
}

func memoryOf(limit uint64) *api.LinuxMemory {
	memory := &api.LinuxMemory{}
	if limit > 0 {
		memory.Limit = api.Int64(int64(limit))
	}
	return memory
}

// oomScore is a container's oom_score_adj (pkg/kubelet/qos/policy.go of Kubernetes, GetContainerOOMScoreAdjust).
func (p *pod) oomScore(spec pods.Container) int64 {
	switch p.facts.Class {
	case memoryqos.Guaranteed:
		return -997
	case memoryqos.BestEffort:
		return 1000
	}
	score := p.burstableScore(spec)
	if spec.Kind == memoryqos.Sidecar { // no worse off than the app that is best off
		for _, c := range p.facts.Containers {
			if c.Kind == memoryqos.App {
				score = min(score, p.burstableScore(c))
			}
		}
	}
	return score
}

func (p *pod) burstableScore(spec pods.Container) int64 {
	request := spec.Request
	if p.facts.PodRequest != nil { // a share of what the containers leave of the pod's request
		var peak memoryqos.Peak
		for _, c := range p.facts.Containers {
			peak.Add(c.Kind, c.Request)
		}
		if left := *p.facts.PodRequest; left > peak.Bytes() {
			request += (left - peak.Bytes()) / uint64(len(p.facts.Containers))
		}
	}
	return min(max(1000-int64(1000*request/p.memory), 3), 999)
}

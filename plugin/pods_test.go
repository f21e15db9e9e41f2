package main

import (
	"cmp"
	"context"
	"path"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cgroups"
)

const (
	mi = 1 << 20
	gi = 1 << 30
)

// testPod is a pod with one container, as the kubelet names its parts to the runtime.
type testPod struct {
	name  string
	qos   string // "", "burstable" or "besteffort": the part of the cgroup path
	limit int64  // bytes; 0 is none
	adj   int64  // oom_score_adj
	tries int    // of its container: every restart has its own id
	cpus  string // its exclusive CPUs, four of them; "" is none
	slice bool   // its cgroup is one of systemd's
	huge  uint64 // bytes of huge pages of 2Mi

	namespace string // "" is default

	devices []*api.LinuxDevice // in its container's spec
	env     []string           // the same

	annotations, labels map[string]string

	// unified and files are what a kubelet with MemoryQoS asks for the container, and writes into the pod's cgroup.
	unified, files map[string]string
}

func guaranteed(name string, limit int64) *testPod {
	return &testPod{name: name, limit: limit, adj: -997}
}

// burstable is a pod whose request follows from its oom_score_adj only roughly.
func burstable(name string, limit, adj int64) *testPod {
	return &testPod{name: name, qos: "burstable", limit: limit, adj: adj}
}

// becomeBurstable makes a Burstable pod of one, whose cgroup may use both NUMA nodes.
func (p *testPod) becomeBurstable() {
	p.qos, p.adj, p.files = "burstable", 968, map[string]string{"cpuset.mems.effective": "0-1"}
}

func (p *testPod) uid() string     { return "uid-" + p.name }
func (p *testPod) sandbox() string { return "sandbox-" + p.name }
func (p *testPod) id() string      { return "container-" + p.name + "-" + string(rune('a'+p.tries)) }

func (p *testPod) cgroup() string {
	if !p.slice {
		return path.Join("kubepods", p.qos, "pod"+p.uid())
	}
	levels := []string{"kubepods"}
	if p.qos != "" {
		levels = append(levels, p.qos)
	}
	levels = append(levels, "pod"+strings.ReplaceAll(p.uid(), "-", "_"))
	return strings.TrimPrefix(cgroups.ExpandSlice(strings.Join(levels, "-")+".slice"), "/")
}

// cgroupsPath is where its container is, as its OCI spec says.
func (p *testPod) cgroupsPath() string {
	if p.slice {
		return path.Base(p.cgroup()) + ":cri-containerd:" + p.id()
	}
	return "/" + path.Join(p.cgroup(), p.id())
}

func (p *testPod) resources() *api.LinuxResources {
	resources := &api.LinuxResources{Memory: &api.LinuxMemory{}, Cpu: &api.LinuxCPU{Shares: api.UInt64(uint64(1024))}}
	if p.cpus != "" {
		resources.Cpu.Cpus, resources.Cpu.Shares = p.cpus, api.UInt64(uint64(4*1024))
	}
	if p.limit > 0 {
		resources.Memory.Limit = api.Int64(p.limit)
	}
	if p.huge > 0 {
		resources.HugepageLimits = []*api.HugepageLimit{{PageSize: "2MB", Limit: p.huge}}
	}
	return resources
}

func (p *testPod) pod() *api.PodSandbox {
	return &api.PodSandbox{
		Id: p.sandbox(), Uid: p.uid(), Namespace: cmp.Or(p.namespace, "default"), Name: p.name, Annotations: p.annotations, Labels: p.labels,
		Linux: &api.LinuxPodSandbox{CgroupParent: "/" + p.cgroup(), PodResources: p.resources()},
	}
}

func (p *testPod) container() *api.Container {
	resources := p.resources()
	resources.Unified = p.unified
	return &api.Container{
		Id: p.id(), PodSandboxId: p.sandbox(), Name: "app", Annotations: p.annotations, // some runtimes pass them on
		Linux: &api.LinuxContainer{
			Resources: resources, OomScoreAdj: &api.OptionalInt{Value: p.adj}, CgroupsPath: p.cgroupsPath(), Devices: p.devices,
		},
		Env: p.env,
	}
}

// The kubelet's steps for a pod.

func (h *host) runPod(p *testPod) error {
	if err := h.tree.Make(p.cgroup()); err != nil {
		return err
	}
	for file, text := range p.files {
		if err := h.tree.Write(p.cgroup(), file, text); err != nil {
			return err
		}
	}
	if h.as != nil {
		if err := h.give(h.path("cgroups")); err != nil {
			return err
		}
	}
	return h.runtime.RunPodSandbox(context.Background(), p.pod())
}

func (h *host) create(p *testPod) error {
	_, err := h.runtime.CreateContainer(context.Background(), p.container())
	return err
}

func (h *host) startContainer(p *testPod) error {
	return h.runtime.StartContainer(context.Background(), p.id())
}

func (h *host) resize(p *testPod, limit int64) error {
	if err := h.runtime.UpdateContainer(context.Background(), p.id(), &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(limit)}}); err != nil {
		return err
	}
	p.limit = limit
	return nil
}

// deploy runs a pod and its container.
func (h *host) deploy(pods ...*testPod) {
	h.t.Helper()
	for _, p := range pods {
		must(h.t, h.runPod(p))
		must(h.t, h.create(p))
		must(h.t, h.startContainer(p))
	}
}

func (h *host) stopContainer(p *testPod) error {
	return h.runtime.StopContainer(context.Background(), p.id())
}

func (h *host) removeContainer(p *testPod) error {
	return h.runtime.RemoveContainer(context.Background(), p.id())
}

// endPod is what the kubelet does when a pod is deleted; its cgroup goes with it.
func (h *host) endPod(p *testPod) error {
	if err := h.runtime.StopPodSandbox(context.Background(), p.sandbox()); err != nil {
		return err
	}
	return h.tree.Remove(p.cgroup())
}

func (h *host) removePod(p *testPod) error {
	return h.runtime.RemovePodSandbox(context.Background(), p.sandbox())
}

// mems is cpuset.mems in the container's OCI spec as it is now.
func (h *host) mems(p *testPod) string {
	for _, container := range h.runtime.Containers() {
		if container.Id == p.id() {
			return container.Linux.Resources.GetCpu().GetMems()
		}
	}
	return "no container " + p.id()
}

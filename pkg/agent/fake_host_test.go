package agent

import (
	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// fakeContainer is a container as the runtime tells of it.
type fakeContainer struct {
	Container
	record *api.Container // nil until it is created
}

// told has a container be what the runtime's record says by now.
func (c *fakeContainer) told() { c.Container = nriplugin.ContainerOf(c.record) }

// enter has a runtime create a container.
func (c *fakeContainer) enter(runtime *cri.Record, answer Adjustment) error {
	c.record = &api.Container{Id: c.ID, PodSandboxId: c.PodID, Name: c.Name, Linux: &api.LinuxContainer{
		CgroupsPath: c.CgroupsPath, Resources: resourcesOf(c.Resources, answer),
	}}
	if score := c.Resources.OOMScoreAdj; score != nil {
		c.record.Linux.OomScoreAdj = &api.OptionalInt{Value: *score}
	}
	if err := runtime.Create(c.record); err != nil {
		return err
	}
	c.told()
	return nil
}

// resourcesOf is what the kubelet asks for with what the plugin answers, as NRI names it.
func resourcesOf(asked Resources, answer Adjustment) *api.LinuxResources {
	all := with(asked, answer)
	return &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(all.MemoryLimit)}, Cpu: &api.LinuxCPU{Mems: all.Mems}, Unified: all.Unified}
}

// run has a created container run.
func (c *fakeContainer) run() {
	c.record.State = api.ContainerState_CONTAINER_RUNNING
	c.told()
}

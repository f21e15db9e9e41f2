package simulator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cgroups"
)

// Agent decides about the pods: *agent.Agent.
type Agent[S nriplugin.Session] interface {
	Connected(runtime ledger.Runtime, apply func(context.Context, []ledger.Update) error) S
	decisions
}

// decisions are what an agent shows.
type decisions interface {
	View() *ledger.View
	Outcome(pod, container string) ledger.Outcome
	State() ([]byte, error)
}

// Direct is a container runtime that calls the agent itself, without NRI's socket. It does with the agent's answers what
// containerd does with the plugin's: it puts them into the container's resources and those into its cgroup.
type Direct struct {
	agent   decisions
	session nriplugin.Session
	tree    *cgroups.Tree

	mu         sync.Mutex // held while the agent is asked and for unasked updates, as in containerd
	pods       map[string]ledger.Pod
	containers map[string]*api.Container
}

// Connect returns the runtime of an agent, which it has synchronized: there are no pods yet.
func Connect[S nriplugin.Session](ctx context.Context, decides Agent[S], tree *cgroups.Tree) (*Direct, error) {
	d := &Direct{agent: decides, tree: tree, pods: map[string]ledger.Pod{}, containers: map[string]*api.Container{}}
	d.session = decides.Connected(ledger.Runtime{Name: "containerd", Version: "v2.4.2", NRIVersion: "0.12.3", ReplyUnified: true, OOMScores: true}, d.update)
	_, err := d.session.Synchronize(ctx, nil, nil)
	return d, err
}

// RunPodSandbox starts a pod.
func (d *Direct) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := nriplugin.PodOf(pod)
	if err := d.session.RunPodSandbox(ctx, known); err != nil {
		return err
	}
	d.pods[pod.Id] = known
	return nil
}

// CreateContainer asks the agent, puts its adjustment into the container's resources and makes its cgroup.
func (d *Direct) CreateContainer(ctx context.Context, container *api.Container) (*rspec.LinuxResources, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	adjustment, err := d.session.CreateContainer(ctx, d.pods[container.PodSandboxId], nriplugin.ContainerOf(container))
	if err != nil {
		return nil, err
	}
	container = proto.Clone(container).(*api.Container)
	container.State = api.ContainerState_CONTAINER_CREATED
	adjust(container.Linux.Resources, adjustment)
	if adjustment.Memset != "" {
		container.Env = append(container.Env, ledger.MemsetVariable+"="+adjustment.Memset)
	}
	if err := d.tree.Apply(container); err != nil {
		return nil, err
	}
	d.containers[container.Id] = container
	return container.Linux.Resources.ToOCI(), nil
}

// adjust changes of a container's resources what the agent changes of them.
func adjust(resources *api.LinuxResources, by ledger.Adjustment) {
	if by.CpusetMems != "" {
		if resources.Cpu == nil {
			resources.Cpu = &api.LinuxCPU{}
		}
		resources.Cpu.Mems = by.CpusetMems
	}
	if resources.Unified == nil {
		resources.Unified = map[string]string{}
	}
	maps.Copy(resources.Unified, by.Unified)
}

// StartContainer runs a created container.
func (d *Direct) StartContainer(ctx context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	container, err := d.find(id)
	if err != nil {
		return err
	}
	if err := d.session.StartContainer(ctx, d.pods[container.PodSandboxId], nriplugin.ContainerOf(container)); err != nil {
		return err
	}
	container.State = api.ContainerState_CONTAINER_RUNNING
	return nil
}

// StopContainer ends a container; its cgroup goes with its process.
func (d *Direct) StopContainer(ctx context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	container, err := d.find(id)
	if err != nil {
		return err
	}
	container.State = api.ContainerState_CONTAINER_STOPPED
	if err := d.tree.RemoveContainer(container); err != nil {
		return err
	}
	return d.session.StopContainer(ctx, d.pods[container.PodSandboxId], nriplugin.ContainerOf(container))
}

// StopPodSandbox ends a pod of which no container runs.
func (d *Direct) StopPodSandbox(ctx context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	pod, known := d.pods[id]
	if !known {
		return nil
	}
	return d.session.StopPodSandbox(ctx, pod)
}

// RemovePodSandbox forgets a pod and its containers, which have ended.
func (d *Direct) RemovePodSandbox(ctx context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	pod, known := d.pods[id]
	if !known {
		return nil
	}
	maps.DeleteFunc(d.containers, func(_ string, c *api.Container) bool { return c.PodSandboxId == id })
	delete(d.pods, id)
	return d.session.RemovePodSandbox(ctx, pod)
}

// update applies what the agent changes of containers without being asked.
func (d *Direct) update(_ context.Context, updates []ledger.Update) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, update := range updates {
		container, err := d.find(update.ContainerID)
		if err == nil {
			adjust(container.Linux.Resources, update.Adjustment)
			err = d.tree.Apply(container)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (d *Direct) find(id string) (*api.Container, error) {
	if container := d.containers[id]; container != nil {
		return container, nil
	}
	return nil, fmt.Errorf("no container %q", id)
}

// Containers returns copies of all containers.
func (d *Direct) Containers() []*api.Container {
	d.mu.Lock()
	defer d.mu.Unlock()
	var containers []*api.Container
	for _, container := range d.containers {
		containers = append(containers, proto.Clone(container).(*api.Container))
	}
	return containers
}

// Outcome returns what the agent has decided about a container.
func (d *Direct) Outcome(_ context.Context, podUID, container string) (ledger.Outcome, error) {
	return d.agent.Outcome(podUID, container), nil
}

// Nodes returns the agent's node map.
func (d *Direct) Nodes(context.Context) ([]memorymanager.NodeState, error) {
	return d.agent.View().Nodes, nil
}

// State returns what the agent has allocated.
func (d *Direct) State() ([]byte, error) {
	state, _ := d.agent.State() // an error says why nothing is
	return state, nil
}

package cri

import (
	"context"
	"fmt"
	"maps"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	ocigenerate "github.com/opencontainers/runtime-tools/generate"
	"google.golang.org/protobuf/proto"
)

// CreateContainer asks the plugins, puts their adjustments into the container's OCI spec and makes its cgroup. It returns
// linux.resources of the final spec.
func (r *Runtime) CreateContainer(ctx context.Context, container *api.Container) (*rspec.LinuxResources, error) {
	var resources *rspec.LinuxResources
	err := r.ask(func(nri *adaptation.Adaptation) error {
		pod := r.pod(container.PodSandboxId)
		if pod == nil {
			return fmt.Errorf("no pod sandbox %q", container.PodSandboxId)
		}
		if r.record.Find(container.Id) != nil {
			return fmt.Errorf("container %s exists", container.Id)
		}
		container = proto.Clone(container).(*api.Container)
		container.State = api.ContainerState_CONTAINER_UNKNOWN
		// The plugins' side fills in the request; the container of the runtime stays as the kubelet asked for it.
		reply, err := nri.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: proto.Clone(container).(*api.Container)})
		if err != nil {
			return err
		}
		spec, err := Adjust(container, reply.Adjust)
		if err != nil {
			return fmt.Errorf("adjusting the OCI spec: %w", err)
		}
		resources = spec.Linux.Resources
		if container.Linux == nil {
			container.Linux = &api.LinuxContainer{}
		}
		container.Linux.Resources = api.FromOCILinuxResources(resources, nil)
		container.Env, container.Annotations, container.Linux.OomScoreAdj = spec.Process.Env, spec.Annotations, api.Int(spec.Process.OOMScoreAdj)
		if err := r.record.Create(container); err != nil {
			return err
		}
		if _, err := r.apply(reply.Update); err != nil {
			return err
		}
		r.policies[container.Id] = spec.Linux.MemoryPolicy
		return nri.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: pod, Container: container})
	})
	return resources, err
}

// Adjust builds the OCI spec of a container as both runtimes do and applies the plugins' adjustment to it.
func Adjust(container *api.Container, adjustment *api.ContainerAdjustment) (*rspec.Spec, error) {
	spec := &rspec.Spec{
		Process:     &rspec.Process{Env: container.GetEnv(), OOMScoreAdj: container.GetLinux().GetOomScoreAdj().Get()},
		Annotations: maps.Clone(container.GetAnnotations()),
		Linux: &rspec.Linux{
			CgroupsPath: container.GetLinux().GetCgroupsPath(),
			Resources:   container.GetLinux().GetResources().ToOCI(),
		},
	}
	generator := ocigenerate.NewFromSpec(spec)
	if err := generate.SpecGenerator(&generator).Adjust(adjustment); err != nil {
		return nil, err
	}
	return spec, nil
}

// MemoryPolicy is linux.memoryPolicy of a container's OCI spec; nil when it has none.
func (r *Runtime) MemoryPolicy(id string) *rspec.LinuxMemoryPolicy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.policies[id]
}

// StartContainer runs a created container.
func (r *Runtime) StartContainer(ctx context.Context, id string) error {
	return r.with(id, func(nri *adaptation.Adaptation, pod *api.PodSandbox, container *api.Container) error {
		if err := nri.StartContainer(ctx, &api.StartContainerRequest{Pod: pod, Container: container}); err != nil {
			return err
		}
		container.State = api.ContainerState_CONTAINER_RUNNING
		return nri.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pod, Container: container})
	})
}

// UpdateContainer changes a container's resources as the kubelet's CRI request says, merged with what plugins reply.
func (r *Runtime) UpdateContainer(ctx context.Context, id string, resources *api.LinuxResources) error {
	return r.with(id, func(nri *adaptation.Adaptation, pod *api.PodSandbox, container *api.Container) error {
		reply, err := nri.UpdateContainer(ctx, &api.UpdateContainerRequest{
			Pod: pod, Container: container, LinuxResources: proto.Clone(resources).(*api.LinuxResources),
		})
		if err != nil {
			return err
		}
		merged := proto.Clone(resources).(*api.LinuxResources)
		var others []*api.ContainerUpdate
		for _, update := range reply.Update {
			switch update.GetContainerId() {
			case "": // NRI's place for a reply that no plugin gave
			case id:
				Merge(merged, update.GetLinux().GetResources())
			default:
				others = append(others, update)
			}
		}
		if err := r.record.Update(container, merged); err != nil {
			return err
		}
		if _, err := r.apply(others); err != nil {
			return err
		}
		return nri.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: pod, Container: container})
	})
}

// StopContainer ends a container; its cgroup goes with its process.
func (r *Runtime) StopContainer(ctx context.Context, id string) error {
	return r.with(id, func(nri *adaptation.Adaptation, pod *api.PodSandbox, container *api.Container) error {
		if err := r.record.Exit(container); err != nil {
			return err
		}
		reply, err := nri.StopContainer(ctx, &api.StopContainerRequest{Pod: pod, Container: container})
		if err != nil {
			return err
		}
		_, err = r.apply(reply.Update)
		return err
	})
}

// RemoveContainer forgets a container.
func (r *Runtime) RemoveContainer(ctx context.Context, id string) error {
	return r.with(id, func(nri *adaptation.Adaptation, pod *api.PodSandbox, container *api.Container) error {
		r.record.Forget(id)
		if err := r.record.Exit(container); err != nil {
			return err
		}
		return nri.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: pod, Container: container})
	})
}

func (r *Runtime) with(id string, request func(*adaptation.Adaptation, *api.PodSandbox, *api.Container) error) error {
	return r.ask(func(nri *adaptation.Adaptation) error {
		container := r.record.Find(id)
		if container == nil {
			return fmt.Errorf("no container %q", id)
		}
		return request(nri, r.pod(container.PodSandboxId), container)
	})
}

// Containers returns copies of all containers, in the order of their creation.
func (r *Runtime) Containers() []*api.Container {
	r.mu.Lock()
	defer r.mu.Unlock()
	containers := make([]*api.Container, len(r.record.containers))
	for i, container := range r.record.containers {
		containers[i] = proto.Clone(container).(*api.Container)
	}
	return containers
}

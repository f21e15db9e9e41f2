package cri

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
)

var errStopped = errors.New("the runtime is not running")

// ask runs one request at the plugins: alone, and with no plugin joining meanwhile.
func (r *Runtime) ask(request func(*adaptation.Adaptation) error) error {
	defer r.block()()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nri == nil {
		return errStopped
	}
	return request(r.nri)
}

// RunPodSandbox starts a pod. Its cgroup is there already: the kubelet makes it.
func (r *Runtime) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return r.ask(func(nri *adaptation.Adaptation) error {
		if r.pod(pod.Id) != nil {
			return fmt.Errorf("pod sandbox %s exists", pod.Id)
		}
		pod = proto.Clone(pod).(*api.PodSandbox)
		if err := nri.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: pod}); err != nil {
			return err
		}
		r.pods = append(r.pods, pod)
		return nil
	})
}

// UpdatePodSandbox changes a pod's resources (in-place resize). As in containerd, plugins find the old ones in the pod.
func (r *Runtime) UpdatePodSandbox(ctx context.Context, id string, overhead, resources *api.LinuxResources) error {
	return r.ask(func(nri *adaptation.Adaptation) error {
		pod := r.pod(id)
		if pod == nil {
			return fmt.Errorf("no pod sandbox %s", id)
		}
		_, err := nri.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{
			Pod: pod, OverheadLinuxResources: overhead, LinuxResources: resources,
		})
		if err != nil {
			return err
		}
		if pod.Linux == nil {
			pod.Linux = &api.LinuxPodSandbox{}
		}
		pod.Linux.PodOverhead, pod.Linux.PodResources = overhead, resources
		return nri.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: pod})
	})
}

// StopPodSandbox stops a pod and the containers in it that still run.
func (r *Runtime) StopPodSandbox(ctx context.Context, id string) error {
	for _, container := range r.Containers() {
		if container.PodSandboxId == id && container.State != api.ContainerState_CONTAINER_STOPPED {
			if err := r.StopContainer(ctx, container.Id); err != nil {
				return err
			}
		}
	}
	return r.ask(func(nri *adaptation.Adaptation) error {
		pod := r.pod(id)
		if pod == nil {
			return nil
		}
		return nri.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: pod})
	})
}

// RemovePodSandbox forgets a pod and its containers.
func (r *Runtime) RemovePodSandbox(ctx context.Context, id string) error {
	for _, container := range r.Containers() {
		if container.PodSandboxId == id {
			if err := r.RemoveContainer(ctx, container.Id); err != nil {
				return err
			}
		}
	}
	return r.ask(func(nri *adaptation.Adaptation) error {
		pod := r.pod(id)
		if pod == nil {
			return nil
		}
		if err := nri.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: pod}); err != nil {
			return err
		}
		r.pods = slices.DeleteFunc(r.pods, func(p *api.PodSandbox) bool { return p.Id == id })
		return nil
	})
}

// Pods returns copies of all pods.
func (r *Runtime) Pods() []*api.PodSandbox {
	r.mu.Lock()
	defer r.mu.Unlock()
	pods := make([]*api.PodSandbox, len(r.pods))
	for i, pod := range r.pods {
		pods[i] = proto.Clone(pod).(*api.PodSandbox)
	}
	return pods
}

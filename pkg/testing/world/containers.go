package world

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// Ending is how the end of a container's processes becomes known.
type Ending struct {
	Grace  time.Duration // from SIGTERM until it ends
	Notice time.Duration // from the end until the runtime sends StopContainer
	Gone   time.Duration // from the end until the cgroup is removed
	Lost   bool          // StopContainer is not sent
}

// task is what a container is beside its record.
type task struct {
	pod       *api.PodSandbox
	container *api.Container
	dir       string // its cgroup
	inner     string // the cgroup that its processes are in
	ending    Ending
	silent    bool   // plugins are told nothing of it any more
	stop      func() // nil before its start
	once      sync.Once
	dead      atomic.Bool
	ended     chan struct{} // closed once the runtime knows of the end
}

// RunPodSandbox starts a pod, of which the kubelet has made the cgroup.
func (r *ContainerRuntime) RunPodSandbox(pod *api.PodSandbox) error {
	return r.request(func() error {
		if dir := r.sandboxCgroup(pod); dir != "" {
			if err := r.kernel.Make(dir); err != nil {
				return err
			}
		}
		err := send(r, api.Event_RUN_POD_SANDBOX, pod.Id, api.PluginService.RunPodSandbox, &api.RunPodSandboxRequest{Pod: pod}, nil)
		if err == nil {
			r.pods = append(r.pods, pod)
		}
		return err
	})
}

// UpdatePodSandbox changes a pod's resources. Plugins find the old ones in the pod.
func (r *ContainerRuntime) UpdatePodSandbox(id string, resources *api.LinuxResources) error {
	return r.ofPod(id, func(pod *api.PodSandbox) error {
		request := &api.UpdatePodSandboxRequest{Pod: pod, LinuxResources: resources}
		if err := send(r, api.Event_UPDATE_POD_SANDBOX, id, api.PluginService.UpdatePodSandbox, request, nil); err != nil {
			return err
		}
		pod.Linux.PodResources = resources
		if !r.record.CRIO { // which does not say so
			_ = send(r, api.Event_POST_UPDATE_POD_SANDBOX, id, api.PluginService.PostUpdatePodSandbox, &api.PostUpdatePodSandboxRequest{Pod: pod}, nil)
		}
		return nil
	})
}

// StopPodSandbox ends a pod whose containers have ended.
func (r *ContainerRuntime) StopPodSandbox(id string) error {
	return r.ofPod(id, func(pod *api.PodSandbox) error {
		if dir := r.sandboxCgroup(pod); dir != "" {
			_ = r.kernel.Remove(dir)
		}
		return send(r, api.Event_STOP_POD_SANDBOX, id, api.PluginService.StopPodSandbox, &api.StopPodSandboxRequest{Pod: pod}, nil)
	})
}

// RemovePodSandbox has the runtime forget a pod.
func (r *ContainerRuntime) RemovePodSandbox(id string) error {
	return r.ofPod(id, func(pod *api.PodSandbox) error {
		err := send(r, api.Event_REMOVE_POD_SANDBOX, id, api.PluginService.RemovePodSandbox, &api.RemovePodSandboxRequest{Pod: pod}, nil)
		if err == nil {
			r.pods = slices.DeleteFunc(r.pods, func(p *api.PodSandbox) bool { return p.Id == id })
		}
		return err
	})
}

// ofPod is a request for a pod; for one that is not there it does nothing, as in both runtimes.
func (r *ContainerRuntime) ofPod(id string, do func(*api.PodSandbox) error) error {
	return r.request(func() error {
		if pod := r.pod(id); pod != nil {
			return do(pod)
		}
		return nil
	})
}

func (r *ContainerRuntime) pod(id string) *api.PodSandbox {
	for _, pod := range r.pods {
		if pod.Id == id {
			return pod
		}
	}
	return nil
}

// CreateContainer makes a container of what the kubelet asks for and plugins adjust. It returns the container's cgroup.
func (r *ContainerRuntime) CreateContainer(c *api.Container) (dir string, err error) {
	err = r.request(func() error {
		pod := r.pod(c.PodSandboxId)
		if pod == nil {
			return fmt.Errorf("no pod sandbox %s", c.PodSandboxId)
		}
		if err := r.inject(c); err != nil {
			return err
		}
		c.Linux.CgroupsPath, dir = r.record.Path(pod.Linux.CgroupParent, c.Id)
		if err := r.adjusted(pod, c); err != nil { // plugins hear no more of it
			r.record.Forget(c.Id)
			_ = r.kernel.Remove(dir)
			return err
		}
		p := &task{pod: pod, container: c, dir: dir, inner: dir, ended: make(chan struct{})}
		if r.record.Crun {
			p.inner = dir + "/container"
		}
		r.running[c.Id] = p
		after := &api.PostCreateContainerRequest{Pod: pod, Container: c}
		_ = send(r, api.Event_POST_CREATE_CONTAINER, c.Id, api.PluginService.PostCreateContainer, after, nil)
		return nil
	})
	return dir, err
}

// adjusted makes a container with what plugins want of it, and updates what they want of others.
func (r *ContainerRuntime) adjusted(pod *api.PodSandbox, c *api.Container) error {
	var updates []*api.ContainerUpdate
	adjusted := proto.CloneOf(c)
	r.asked(pod, c)
	request := &api.CreateContainerRequest{Pod: pod, Container: c}
	err := send(r, api.Event_CREATE_CONTAINER, c.Id, api.PluginService.CreateContainer, request, func(reply *api.CreateContainerResponse) error {
		updates = append(updates, reply.GetUpdate()...)
		spec, err := cri.Adjust(adjusted, reply.GetAdjust())
		if err != nil {
			return fmt.Errorf("adjusting the OCI spec: %w", err)
		}
		adjusted.Linux.Resources = api.FromOCILinuxResources(spec.Linux.Resources, nil)
		adjusted.Annotations, adjusted.Linux.OomScoreAdj = spec.Annotations, api.Int(spec.Process.OOMScoreAdj)
		return nil
	})
	if err != nil {
		r.refused(pod, c, err)
		return err
	}
	c.Linux.Resources, c.Linux.OomScoreAdj, c.Annotations = adjusted.Linux.Resources, adjusted.Linux.OomScoreAdj, adjusted.Annotations
	r.created(pod, c)
	time.Sleep(time.Duration(r.kind.Creates))
	if err = r.fails(OCIFails); err == nil {
		err = r.record.Create(c)
	}
	if err == nil {
		_, err = r.update(updates)
	}
	return err
}

// StartContainer runs a program in a container. ended is called once the runtime knows of its end.
func (r *ContainerRuntime) StartContainer(id string, program Program, who Who, ending Ending, ended func(Exit)) error {
	return r.ofContainer(id, func(p *task) error {
		before := &api.StartContainerRequest{Pod: p.pod, Container: p.container}
		if err := send(r, api.Event_START_CONTAINER, id, api.PluginService.StartContainer, before, nil); err != nil {
			r.begin(p, Exit{}, nil)
			return err
		}
		p.ending = ending
		p.container.State = api.ContainerState_CONTAINER_RUNNING
		who.OOMScoreAdj = int(p.container.Linux.OomScoreAdj.GetValue())
		p.stop = r.kernel.Start(p.inner, program, who, func(exit Exit) { r.begin(p, exit, ended) })
		after := &api.PostStartContainerRequest{Pod: p.pod, Container: p.container}
		_ = send(r, api.Event_POST_START_CONTAINER, id, api.PluginService.PostStartContainer, after, nil)
		return nil
	})
}

// UpdateContainer changes a container's resources as the kubelet asks and plugins answer.
func (r *ContainerRuntime) UpdateContainer(id string, to *api.LinuxResources) error {
	return r.ofContainer(id, func(p *task) error {
		if p.container.State == api.ContainerState_CONTAINER_STOPPED {
			return fmt.Errorf("container %s is not running", id)
		}
		merged, others := proto.CloneOf(to), []*api.ContainerUpdate(nil)
		request := &api.UpdateContainerRequest{Pod: p.pod, Container: p.container, LinuxResources: to}
		err := send(r, api.Event_UPDATE_CONTAINER, id, api.PluginService.UpdateContainer, request, func(reply *api.UpdateContainerResponse) error {
			for _, u := range reply.GetUpdate() {
				if u.GetContainerId() == id {
					r.merge(merged, u.GetLinux().GetResources())
				} else {
					others = append(others, u)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		applies := r.applies(p.pod, p.container)
		time.Sleep(time.Duration(r.kind.Updates))
		applies()
		if err := r.fails(OCIFails); err != nil {
			return err
		}
		if err := r.record.Update(p.container, merged); err != nil {
			return err
		}
		if _, err := r.update(others); err != nil {
			return err
		}
		after := &api.PostUpdateContainerRequest{Pod: p.pod, Container: p.container}
		_ = send(r, api.Event_POST_UPDATE_CONTAINER, id, api.PluginService.PostUpdateContainer, after, nil)
		return nil
	})
}

// merge takes what a plugin answers to an update; CRI-O before 1.36 drops the unified map (cri-o#9816).
func (r *ContainerRuntime) merge(to, from *api.LinuxResources) {
	if r.record.CRIO && !nriplugin.ParseVersion(r.kind.Version).AtLeast(1, 36, 0) && from != nil {
		from = proto.CloneOf(from)
		from.Unified = nil
	}
	cri.Merge(to, from)
}

// StopContainer ends a container and waits until the runtime knows of it.
func (r *ContainerRuntime) StopContainer(id string) error {
	var p *task
	err := r.request(func() error {
		p = r.running[id]
		return nil
	})
	if p == nil {
		return err
	}
	select {
	case <-p.ended:
	case <-time.After(p.ending.Grace):
	}
	if p.stop != nil {
		p.stop()
	}
	r.begin(p, Exit{}, nil)
	<-p.ended
	return nil
}

// Hush has plugins never be told how a container ends: the end of its sandbox is all that they will hear.
func (r *ContainerRuntime) Hush(id string) error {
	return r.ofContainer(id, func(p *task) error {
		p.silent = true
		return nil
	})
}

// RemoveContainer has the runtime forget a container, and ends one that has not ended.
func (r *ContainerRuntime) RemoveContainer(id string) error {
	if err := r.StopContainer(id); err != nil {
		return err
	}
	return r.ofContainer(id, func(p *task) error {
		r.record.Forget(id)
		_ = r.kernel.Remove(p.dir)
		if !p.silent {
			request := &api.RemoveContainerRequest{Pod: p.pod, Container: p.container}
			if err := send(r, api.Event_REMOVE_CONTAINER, id, api.PluginService.RemoveContainer, request, nil); err != nil {
				return err
			}
		}
		delete(r.running, id)
		return nil
	})
}

// ofContainer is a request for a container; for one that is not there it does nothing.
func (r *ContainerRuntime) ofContainer(id string, do func(*task) error) error {
	return r.request(func() error {
		if p := r.running[id]; p != nil {
			return do(p)
		}
		return nil
	})
}

// begin is the end of a container's processes, once. The runtime notices it later, and somebody removes the cgroup before or after.
func (r *ContainerRuntime) begin(p *task, exit Exit, ended func(Exit)) {
	p.once.Do(func() {
		p.dead.Store(true)
		time.AfterFunc(p.ending.Gone, func() { _ = r.kernel.Remove(p.dir) })
		go func() {
			time.Sleep(p.ending.Notice)
			r.notice(p)
			close(p.ended)
			if ended != nil {
				ended(exit)
			}
		}()
	})
}

// startUp is what a runtime that starts finds: of a container that ended meanwhile plugins are not told, for the next Synchronize does not
// have it.
func (r *ContainerRuntime) startUp() {
	r.record.Restart()
	for _, p := range r.running {
		if p.dead.Load() {
			p.container.State, p.ending.Lost = api.ContainerState_CONTAINER_STOPPED, true
		}
	}
}

// notice is when the runtime learns that a container has ended.
func (r *ContainerRuntime) notice(p *task) {
	for back := r.away(); back != nil; back = r.away() {
		<-back
		time.Sleep(p.ending.Notice)
	}
	defer r.turn.hold()()
	p.container.State = api.ContainerState_CONTAINER_STOPPED
	if p.ending.Lost || p.silent {
		return
	}
	request := &api.StopContainerRequest{Pod: p.pod, Container: p.container}
	_ = send(r, api.Event_STOP_CONTAINER, p.container.Id, api.PluginService.StopContainer, request, func(reply *api.StopContainerResponse) error {
		_, err := r.update(reply.GetUpdate())
		return err
	})
}

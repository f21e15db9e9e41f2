package kubelet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// patience bounds one request to the runtime on a slow machine.
const patience = 3 * time.Minute

// Kubelet is a client of one runtime and the maker of this node's pod cgroups.
type Kubelet struct {
	Plan setup.Plan

	runtime  cri.RuntimeServiceClient
	images   cri.ImageServiceClient
	cgroups  *cgroups
	api      *podAPI
	memTotal uint64

	mu   sync.Mutex
	pods map[string]*Pod // by UID
}

// Start connects to the runtime, waits until it is ready, makes the upper
// cgroups and serves the pod API.
func Start(ctx context.Context, plan setup.Plan) (*Kubelet, error) {
	conn, err := grpc.NewClient("unix://"+plan.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true))) // a runtime that restarts is waited for
	if err != nil {
		return nil, fmt.Errorf("connect to the runtime: %w", err)
	}
	k := &Kubelet{Plan: plan, runtime: cri.NewRuntimeServiceClient(conn), images: cri.NewImageServiceClient(conn), pods: map[string]*Pod{}}
	if err := k.WaitReady(ctx); err != nil {
		return nil, err
	}
	if k.memTotal, err = memTotal(); err != nil {
		return nil, err
	}
	if k.cgroups, err = newCgroups(ctx, plan.Driver); err != nil {
		return nil, err
	}
	if k.api, err = servePods(PodAPISocket); err != nil {
		return nil, err
	}
	_, err = k.images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: plan.Image()}})
	if err != nil && plan.Runtime == setup.CRIO {
		return nil, fmt.Errorf("pull %s: %w", plan.Image(), err)
	}
	return k, nil
}

// WaitReady waits until the runtime says that it can run pods. The network is
// no part of it: all pods use the host's.
func (k *Kubelet) WaitReady(ctx context.Context) error {
	var last error
	for {
		response, err := k.runtime.Status(ctx, &cri.StatusRequest{}, grpc.WaitForReady(false))
		last = err
		if err == nil {
			for _, c := range response.GetStatus().GetConditions() {
				if c.GetType() == "RuntimeReady" && c.GetStatus() {
					return nil
				}
			}
			last = fmt.Errorf("conditions %v", response.GetStatus().GetConditions())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the runtime does not get ready: %w", last)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Version is the runtime's name and version.
func (k *Kubelet) Version(ctx context.Context) (string, error) {
	v, err := k.runtime.Version(ctx, &cri.VersionRequest{})
	return v.GetRuntimeName() + " " + v.GetRuntimeVersion(), err
}

// Kubepods and QoS are folders of the upper levels.
func (k *Kubelet) Kubepods() string { return filepath.Join(Root, k.cgroups.Kubepods()) }

// QoS is the folder of a pod's QoS class.
func (k *Kubelet) QoS(p *Pod) string { return filepath.Join(Root, k.cgroups.QoS(p.Class())) }

// Dir is the folder of a pod's cgroup.
func (k *Kubelet) Dir(p *Pod) string { return filepath.Join(Root, k.cgroups.Pod(p)) }

// ContainerDir is the folder of a container's cgroup, whatever the runtime calls it.
func (k *Kubelet) ContainerDir(p *Pod, name string) (string, error) {
	id := p.ID(name)
	if id == "" {
		return "", fmt.Errorf("container %s/%s does not exist", p.Name, name)
	}
	children, err := os.ReadDir(k.Dir(p))
	if err != nil {
		return "", fmt.Errorf("look for the cgroup of %s/%s: %w", p.Name, name, err)
	}
	for _, child := range children {
		if child.IsDir() && strings.Contains(child.Name(), id) && !strings.Contains(child.Name(), "conmon") {
			return filepath.Join(k.Dir(p), child.Name()), nil
		}
	}
	return "", fmt.Errorf("no cgroup of %s/%s (%s) in %s", p.Name, name, id, k.Dir(p))
}

// Leaves are a container's cgroup and, with crun under systemd, the one inside it that holds the processes.
func Leaves(dir string) []string {
	inner := filepath.Join(dir, "container")
	if _, err := os.Stat(inner); err != nil {
		return []string{dir}
	}
	return []string{dir, inner}
}

// Control is a folder of the node that containers of the pod see as /ctl:
// workloads wait for files in it.
func (k *Kubelet) Control(p *Pod) string { return filepath.Join("/run/e2e/ctl", p.UID) }

// Run runs a pod: sandbox, init containers one by one to their end, then the
// rest. On an error the pod is left as it is; Remove removes it.
func (k *Kubelet) Run(ctx context.Context, p *Pod) error {
	if err := k.Prepare(ctx, p); err != nil {
		return err
	}
	for _, c := range p.Containers {
		if !c.Init {
			continue
		}
		if err := k.RunContainer(ctx, p, c.Name); err != nil {
			return err
		}
		if _, err := k.WaitExit(ctx, p, c.Name); err != nil {
			return err
		}
	}
	for _, c := range p.Containers {
		if c.Init {
			continue
		}
		if err := k.RunContainer(ctx, p, c.Name); err != nil {
			return err
		}
	}
	return nil
}

// Prepare makes the pod known, its cgroup and its sandbox.
func (k *Kubelet) Prepare(ctx context.Context, p *Pod) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if p.UID == "" {
		p.UID = newUID()
	}
	p.ids = map[string]string{}
	if err := os.MkdirAll(k.Control(p), 0o777); err != nil {
		return fmt.Errorf("prepare pod %s: %w", p.Name, err)
	}
	k.mu.Lock()
	k.pods[p.UID] = p
	k.mu.Unlock()
	if err := k.api.set(p, podsv1alpha1.EventType_ADDED); err != nil {
		return err
	}
	if err := k.cgroups.create(ctx, k.cgroups.Pod(p), p.limit()); err != nil {
		return err
	}
	response, err := k.runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: k.sandboxConfig(p)})
	if err != nil {
		return fmt.Errorf("run the sandbox of %s: %w", p.Name, err)
	}
	p.sandbox = response.GetPodSandboxId()
	return nil
}

// RunContainer creates and starts a container.
func (k *Kubelet) RunContainer(ctx context.Context, p *Pod, name string) error {
	if err := k.Create(ctx, p, name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := k.runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.ids[name]}); err != nil {
		return fmt.Errorf("start %s/%s: %w", p.Name, name, err)
	}
	return nil
}

// Create creates a container and does not start it.
func (k *Kubelet) Create(ctx context.Context, p *Pod, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := p.Container(name)
	response, err := k.runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: p.sandbox, Config: k.containerConfig(p, *c), SandboxConfig: k.sandboxConfig(p),
	})
	if err != nil {
		return fmt.Errorf("create %s/%s: %w", p.Name, name, err)
	}
	p.ids[name] = response.GetContainerId()
	return nil
}

// WaitExit waits until a container has ended and returns its exit status and the reason.
func (k *Kubelet) WaitExit(ctx context.Context, p *Pod, name string) (string, error) {
	for {
		response, err := k.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: p.ids[name]})
		if err == nil && response.GetStatus().GetState() == cri.ContainerState_CONTAINER_EXITED {
			return fmt.Sprintf("%d %s", response.GetStatus().GetExitCode(), response.GetStatus().GetReason()), nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("wait for the end of %s/%s: %w (%v)", p.Name, name, ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Exited tells whether a container has ended, and how.
func (k *Kubelet) Exited(ctx context.Context, p *Pod, name string) (string, bool) {
	response, err := k.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: p.ids[name]})
	if err != nil || response.GetStatus().GetState() != cri.ContainerState_CONTAINER_EXITED {
		return "", false
	}
	return fmt.Sprintf("%d %s", response.GetStatus().GetExitCode(), response.GetStatus().GetReason()), true
}

// StopContainer ends a container and removes it.
func (k *Kubelet) StopContainer(ctx context.Context, p *Pod, name string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	id := p.ids[name]
	if id == "" {
		return nil
	}
	_, err := k.runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id})
	_, err2 := k.runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
	if err := errors.Join(err, err2); err != nil {
		return fmt.Errorf("stop %s/%s: %w", p.Name, name, err)
	}
	delete(p.ids, name)
	return nil
}

// Remove ends a pod and removes all that was made for it. It can be repeated.
func (k *Kubelet) Remove(ctx context.Context, p *Pod) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var errs []error
	for name := range p.ids {
		errs = append(errs, k.StopContainer(ctx, p, name))
	}
	if p.sandbox != "" {
		_, err := k.runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.sandbox})
		errs = append(errs, err)
		_, err = k.runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
		errs = append(errs, err)
		p.sandbox = ""
	}
	if p.UID != "" {
		errs = append(errs, k.cgroups.remove(ctx, k.cgroups.Pod(p)), k.api.set(p, podsv1alpha1.EventType_DELETED))
		_ = os.RemoveAll(k.Control(p))
		k.mu.Lock()
		delete(k.pods, p.UID)
		k.mu.Unlock()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove pod %s: %w", p.Name, err)
	}
	return nil
}

// RemoveAll removes every pod that is still there.
func (k *Kubelet) RemoveAll(ctx context.Context) error {
	k.mu.Lock()
	var pods []*Pod
	for _, p := range k.pods {
		pods = append(pods, p)
	}
	k.mu.Unlock()
	var errs []error
	for _, p := range pods {
		errs = append(errs, k.Remove(ctx, p))
	}
	return errors.Join(errs...)
}

// Resize changes a container's request and limit in place, in the kubelet's
// order: the pod's limit first when it grows, last when it shrinks.
func (k *Kubelet) Resize(ctx context.Context, p *Pod, name string, request, limit uint64) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := p.Container(name)
	old, before := *c, p.limit()
	c.Request, c.Limit = request, limit
	grows := p.limit() > before
	err := k.api.set(p, podsv1alpha1.EventType_MODIFIED)
	if err == nil && grows {
		err = k.cgroups.limit(ctx, k.cgroups.Pod(p), p.limit())
	}
	if err == nil {
		_, err = k.runtime.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: p.ids[name], Linux: k.resources(p, *c)})
	}
	if err != nil {
		*c = old
		_ = k.api.set(p, podsv1alpha1.EventType_MODIFIED)
		if grows {
			_ = k.cgroups.limit(ctx, k.cgroups.Pod(p), before)
		}
		return fmt.Errorf("resize %s/%s: %w", p.Name, name, err)
	}
	if !grows && p.limit() > 0 {
		if err := k.cgroups.limit(ctx, k.cgroups.Pod(p), p.limit()); err != nil {
			return err
		}
	}
	_, err = k.runtime.UpdatePodSandboxResources(ctx, &cri.UpdatePodSandboxResourcesRequest{
		PodSandboxId: p.sandbox, Overhead: &cri.LinuxContainerResources{}, Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: int64(p.limit())},
	})
	if err != nil && status.Code(err) != codes.Unimplemented {
		return fmt.Errorf("resize the sandbox of %s: %w", p.Name, err)
	}
	return nil
}

// Exec runs a command in a container and returns what it printed and its exit status.
func (k *Kubelet) Exec(ctx context.Context, p *Pod, name string, command ...string) (string, int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	response, err := k.runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: p.ids[name], Cmd: command, Timeout: int64(patience.Seconds())})
	if err != nil {
		return "", -1, fmt.Errorf("run %v in %s/%s: %w", command, p.Name, name, err)
	}
	return string(response.GetStdout()) + string(response.GetStderr()), int(response.GetExitCode()), nil
}

// HasImage tells whether the runtime can make containers of an image.
func (k *Kubelet) HasImage(ctx context.Context, image string) bool {
	response, err := k.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: image}})
	return err == nil && response.GetImage() != nil
}

// RemoveImage makes the runtime forget an image.
func (k *Kubelet) RemoveImage(ctx context.Context, image string) error {
	if _, err := k.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: image}}); err != nil {
		return fmt.Errorf("remove image %s: %w", image, err)
	}
	return nil
}

// Output is what a container printed.
func (k *Kubelet) Output(p *Pod, name string) string {
	text, err := os.ReadFile(filepath.Join(logDir(p), name+".log"))
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if fields := strings.SplitN(line, " ", 4); len(fields) == 4 { // time, stream, tag, text
			out.WriteString(fields[3])
		}
	}
	return out.String()
}

// WaitOutput waits for a line of a container's output.
func (k *Kubelet) WaitOutput(ctx context.Context, p *Pod, name, line string) error {
	for {
		out := k.Output(p, name)
		if strings.Contains("\n"+out, "\n"+line+"\n") {
			return nil
		}
		if how, exited := k.Exited(ctx, p, name); exited && !strings.Contains("\n"+k.Output(p, name), "\n"+line+"\n") {
			return fmt.Errorf("%s/%s ended (%s) before %q; it said %q", p.Name, name, how, line, out)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s/%s did not say %q but %q: %w", p.Name, name, line, out, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// PIDs are the processes of a container.
func (k *Kubelet) PIDs(p *Pod, name string) ([]int, error) {
	dir, err := k.ContainerDir(p, name)
	if err != nil {
		return nil, err
	}
	var pids []int
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		text, err := os.ReadFile(file)
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
		return err
	})
	if err == nil && len(pids) == 0 {
		err = fmt.Errorf("no process in %s", dir)
	}
	return pids, err
}

func newUID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func memTotal() (uint64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the node's memory: %w", err)
	}
	var kib uint64
	if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kib); err != nil {
		return 0, fmt.Errorf("parse /proc/meminfo: %w", err)
	}
	return kib << 10, nil
}

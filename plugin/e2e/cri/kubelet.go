// Package cri makes pods by requests to the container runtime, with the cgroups and the pod API that a kubelet would
// add. It stands in for the kubelet only where a case must choose the moment, the order or the content of a request
// itself: the real one (package kubelet) decides those alone, and takes five times as long for a pod in an emulated guest.
package cri

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// Kubelet is a client of one runtime and the maker of this node's pod cgroups.
type Kubelet struct {
	*kubelet.Node

	cgroups  *cgroups
	api      *podAPI
	memTotal uint64

	mu        sync.Mutex
	pods      map[string]*kubelet.Pod // by UID
	sandboxes map[string]string       // CRI ids by the pods' UIDs
}

// Start connects to the runtime, waits until it is ready, makes the upper
// cgroups and serves the pod API.
func Start(ctx context.Context, plan setup.Plan) (*Kubelet, error) {
	node, err := kubelet.NewNode(ctx, plan)
	if err != nil {
		return nil, err
	}
	k := &Kubelet{Node: node, pods: map[string]*kubelet.Pod{}, sandboxes: map[string]string{}}
	if k.memTotal, err = memTotal(); err != nil {
		return nil, err
	}
	if k.cgroups, err = newCgroups(ctx, plan.Driver); err != nil {
		return nil, err
	}
	k.api, err = servePods(kubelet.PodAPISocket)
	return k, err
}

// Run runs a pod: sandbox, init containers one by one to their end, then the
// rest. On an error the pod is left as it is; Remove removes it.
func (k *Kubelet) Run(ctx context.Context, p *kubelet.Pod) error {
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
func (k *Kubelet) Prepare(ctx context.Context, p *kubelet.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, kubelet.RequestLimit)
	defer cancel()
	if p.UID == "" {
		p.UID = newUID()
	}
	p.IDs = map[string]string{}
	folders := []string{k.Control(p)}
	for _, c := range p.Containers {
		folders = append(folders, filepath.Join(kubelet.LogDir(p), c.Name))
	}
	for _, folder := range folders {
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return fmt.Errorf("prepare pod %s: %w", p.Name, err)
		}
	}
	k.mu.Lock()
	k.pods[p.UID] = p
	k.mu.Unlock()
	if err := k.api.set(p, podsv1alpha1.EventType_ADDED); err != nil {
		return err
	}
	if err := k.cgroups.create(ctx, k.Paths.Pod(p), podLimit(p)); err != nil {
		return err
	}
	response, err := k.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: k.sandboxConfig(p)})
	if err != nil {
		return fmt.Errorf("run the sandbox of %s: %w", p.Name, err)
	}
	k.setSandbox(p, response.GetPodSandboxId())
	return nil
}

// Sandbox is the CRI id of a pod's sandbox, "" when it has none.
func (k *Kubelet) Sandbox(p *kubelet.Pod) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sandboxes[p.UID]
}

func (k *Kubelet) setSandbox(p *kubelet.Pod, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sandboxes[p.UID] = id
}

// RunContainer creates and starts a container.
func (k *Kubelet) RunContainer(ctx context.Context, p *kubelet.Pod, name string) error {
	if err := k.Create(ctx, p, name); err != nil {
		return err
	}
	return k.StartContainer(ctx, p, name)
}

// StartContainer starts a container that was created.
func (k *Kubelet) StartContainer(ctx context.Context, p *kubelet.Pod, name string) error {
	ctx, cancel := context.WithTimeout(ctx, kubelet.RequestLimit)
	defer cancel()
	if _, err := k.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: p.IDs[name]}); err != nil {
		return fmt.Errorf("start %s/%s: %w", p.Name, name, err)
	}
	return nil
}

// Create creates a container and does not start it.
func (k *Kubelet) Create(ctx context.Context, p *kubelet.Pod, name string) error {
	ctx, cancel := context.WithTimeout(ctx, kubelet.RequestLimit)
	defer cancel()
	c := p.Container(name)
	response, err := k.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: k.Sandbox(p), Config: k.containerConfig(p, *c), SandboxConfig: k.sandboxConfig(p),
	})
	if err != nil {
		return fmt.Errorf("create %s/%s: %w", p.Name, name, err)
	}
	p.IDs[name] = response.GetContainerId()
	return nil
}

// StopContainer ends a container and removes it.
func (k *Kubelet) StopContainer(ctx context.Context, p *kubelet.Pod, name string) error {
	ctx, cancel := context.WithTimeout(ctx, kubelet.RequestLimit)
	defer cancel()
	id := p.IDs[name]
	if id == "" {
		return nil
	}
	_, err := k.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id})
	if err := errors.Join(err, k.removeContainer(ctx, id)); err != nil {
		return fmt.Errorf("stop %s/%s: %w", p.Name, name, err)
	}
	delete(p.IDs, name)
	return nil
}

// removeContainer removes a container that was stopped. One whose task is gone containerd takes for running until it has noticed.
func (k *Kubelet) removeContainer(ctx context.Context, id string) error {
	for {
		_, err := k.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "still running") {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Remove ends a pod and removes all that was made for it. It can be repeated.
func (k *Kubelet) Remove(ctx context.Context, p *kubelet.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, kubelet.RequestLimit)
	defer cancel()
	var errs []error
	for name := range p.IDs {
		errs = append(errs, k.StopContainer(ctx, p, name))
	}
	if k.Sandbox(p) != "" {
		_, err := k.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: k.Sandbox(p)})
		errs = append(errs, err)
		_, err = k.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: k.Sandbox(p)})
		errs = append(errs, err)
		k.setSandbox(p, "")
	}
	if p.UID != "" {
		errs = append(errs, k.cgroups.remove(ctx, k.Paths.Pod(p)), k.api.set(p, podsv1alpha1.EventType_DELETED))
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
	var pods []*kubelet.Pod
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
func (k *Kubelet) Resize(ctx context.Context, p *kubelet.Pod, name string, request, limit uint64) error {
	ctx, cancel := context.WithTimeout(ctx, kubelet.RequestLimit)
	defer cancel()
	c := p.Container(name)
	old, before := *c, podLimit(p)
	c.Request, c.Limit = request, limit
	grows := podLimit(p) > before
	err := k.api.set(p, podsv1alpha1.EventType_MODIFIED)
	if err == nil && grows {
		err = k.cgroups.limit(ctx, k.Paths.Pod(p), podLimit(p))
	}
	if err == nil {
		_, err = k.Runtime.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: p.IDs[name], Linux: k.resources(p, *c)})
	}
	if err != nil {
		*c = old
		_ = k.api.set(p, podsv1alpha1.EventType_MODIFIED)
		if grows {
			_ = k.cgroups.limit(ctx, k.Paths.Pod(p), before)
		}
		return fmt.Errorf("resize %s/%s: %w", p.Name, name, err)
	}
	if !grows && podLimit(p) > 0 {
		if err := k.cgroups.limit(ctx, k.Paths.Pod(p), podLimit(p)); err != nil {
			return err
		}
	}
	_, err = k.Runtime.UpdatePodSandboxResources(ctx, &cri.UpdatePodSandboxResourcesRequest{
		PodSandboxId: k.Sandbox(p), Overhead: &cri.LinuxContainerResources{}, Resources: &cri.LinuxContainerResources{MemoryLimitInBytes: int64(podLimit(p))},
	})
	if err != nil && status.Code(err) != codes.Unimplemented {
		return fmt.Errorf("resize the sandbox of %s: %w", p.Name, err)
	}
	return nil
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

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cgroups"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// node is a node of which only the plugin is real: its process beside NRI's own runtime side. The kubelet is this type.
type node struct {
	name, dir string
	client    kubernetes.Interface
	tree      *cgroups.Tree
	runtime   *cri.Runtime
	plugin    *exec.Cmd
	driver    *grpc.ClientConn // the plugin as a driver for resource claims
	pods      chan *corev1.Pod // that the kubelet is to run, or to end

	claims map[types.UID][]*drav1.Claim // prepared, by pod; serve's own
}

// endTime is about what a kubelet takes to end a pod. Meanwhile its controller has made another, and the scheduler has chosen a node.
const endTime = 2 * time.Second

// machine has this many NUMA nodes.
const numaNodes = 2

const machine = `nodes:
- {id: 0, memory: 128Gi, cpus: 0-31, distances: [10, 21]}
- {id: 1, memory: 128Gi, cpus: 32-63, distances: [21, 10]}
`

// allocatable is what the machine has, as the kubelet reports it.
var allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
	corev1.ResourcePods: resource.MustParse("110")}

// start starts the runtime and the plugin.
func (n *node) start(ctx context.Context, program, settings string, flags []string) error {
	for _, folder := range []string{"cgroups", "registry"} {
		if err := os.MkdirAll(n.path(folder), 0o755); err != nil {
			return err
		}
	}
	var err error
	if n.tree, err = cgroups.NewTree(n.path("cgroups")); err != nil {
		return err
	}
	n.runtime = cri.New(cri.Options{Socket: n.path("nri.sock"), Cgroups: n.tree})
	if err := n.runtime.Start(); err != nil {
		return err
	}
	for file, text := range map[string]string{"machine.yaml": machine, "config.yaml": settings} {
		if err := os.WriteFile(n.path(file), []byte(text), 0o644); err != nil {
			return err
		}
	}
	log, err := os.Create(n.path("plugin.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	n.plugin = exec.Command(program, "run", "--nri-socket", n.path("nri.sock"), "--state-dir", n.path("state"), "--cgroups", n.path("cgroups"),
		"--plain-cgroups", "--machine", n.path("machine.yaml"), "--config", n.path("config.yaml"), "--metrics-address", "",
		"--plugin-registry", n.path("registry"), "--cdi-dir", n.path("cdi"))
	n.plugin.Args = append(n.plugin.Args, flags...)
	n.plugin.Stdout, n.plugin.Stderr = log, log
	n.plugin.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.plugin.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return n.runtime.WaitSynchronized(ctx, 1)
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) stop() {
	if n.driver != nil {
		_ = n.driver.Close()
	}
	if n.plugin != nil && n.plugin.Process != nil {
		_ = n.plugin.Process.Kill()
		_ = n.plugin.Wait()
	}
	if n.runtime != nil {
		n.runtime.Stop()
	}
}

// join creates the Node and its Lease, and reports it ready.
func (n *node) join(ctx context.Context) error {
	if _, err := n.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	now := metav1.Now()
	status, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{Capacity: allocatable, Allocatable: allocatable, Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now}}}})
	if err != nil {
		return err
	}
	if _, err := n.client.CoreV1().Nodes().Patch(ctx, n.name, types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	seconds, renewed := int32(40), metav1.NowMicro()
	_, err = n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &n.name, LeaseDurationSeconds: &seconds, RenewTime: &renewed}}, metav1.CreateOptions{})
	return err
}

// serve is the kubelet's work until ctx ends; what became of each pod goes to seen.
func (n *node) serve(ctx context.Context, seen func(outcome)) {
	n.claims = map[types.UID][]*drav1.Claim{}
	renewal := time.NewTicker(10 * time.Second)
	defer renewal.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-renewal.C:
			patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, metav1.NowMicro().UTC().Format(metav1.RFC3339Micro))
			if _, err := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Patch(ctx, n.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil && ctx.Err() == nil {
				logf("renew the lease of %s: %v", n.name, err)
			}
		case pod := <-n.pods:
			if pod.DeletionTimestamp != nil {
				if pod.Status.Phase != corev1.PodRunning {
					time.Sleep(endTime)
				}
				if err := n.end(ctx, pod); err != nil && ctx.Err() == nil {
					logf("end %s on %s: %v", pod.Name, n.name, err)
				}
				continue
			}
			refusal := n.run(ctx, pod)
			if err := n.report(ctx, pod, refusal); err != nil && ctx.Err() == nil {
				logf("report the status of %s: %v", pod.Name, err)
			}
			if refusal != nil {
				seen(rejected)
			} else {
				seen(running)
			}
		}
	}
}

// run starts a Guaranteed pod with one container, as a kubelet does. The error is the plugin's.
func (n *node) run(ctx context.Context, pod *corev1.Pod) error {
	uid, container := string(pod.UID), pod.Spec.Containers[0]
	cgroup := podCgroup(pod)
	if err := n.tree.Make(cgroup); err != nil {
		return err
	}
	devices, err := n.prepare(ctx, pod)
	if err != nil {
		return err
	}
	environment, err := n.environment(devices)
	if err != nil {
		return err
	}
	cdi := make([]*api.CDIDevice, len(devices))
	for i, device := range devices {
		cdi[i] = &api.CDIDevice{Name: device}
	}
	resources := &api.LinuxResources{
		Memory: &api.LinuxMemory{Limit: api.Int64(container.Resources.Limits.Memory().Value())},
		Cpu:    &api.LinuxCPU{Shares: api.UInt64(uint64(container.Resources.Requests.Cpu().MilliValue() * 1024 / 1000))},
	}
	if err := n.runtime.RunPodSandbox(ctx, &api.PodSandbox{Id: "sandbox-" + uid, Uid: uid, Namespace: pod.Namespace, Name: pod.Name,
		Linux: &api.LinuxPodSandbox{CgroupParent: cgroup, PodResources: resources}}); err != nil {
		return err
	}
	id := "container-" + uid
	if _, err := n.runtime.CreateContainer(ctx, &api.Container{Id: id, PodSandboxId: "sandbox-" + uid, Name: container.Name,
		CDIDevices: cdi, Env: environment,
		Linux: &api.LinuxContainer{Resources: resources, OomScoreAdj: &api.OptionalInt{Value: -997}, CgroupsPath: cgroup + "/" + id}}); err != nil {
		return err
	}
	return n.runtime.StartContainer(ctx, id)
}

func podCgroup(pod *corev1.Pod) string { return "/kubepods/pod" + string(pod.UID) }

// end stops a pod, has its claims released, and then has the API server forget it.
func (n *node) end(ctx context.Context, pod *corev1.Pod) error {
	sandbox := "sandbox-" + string(pod.UID)
	if err := n.runtime.StopPodSandbox(ctx, sandbox); err != nil {
		return err
	}
	if err := n.unprepare(ctx, pod); err != nil {
		return err
	}
	if err := n.runtime.RemovePodSandbox(ctx, sandbox); err != nil {
		return err
	}
	if err := n.tree.Remove(podCgroup(pod)); err != nil {
		return err
	}
	return n.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
}

// report writes the pod's status: running, or waiting for a container that cannot be created. A kubelet would go on trying.
func (n *node) report(ctx context.Context, pod *corev1.Pod, refusal error) error {
	status := corev1.PodStatus{Phase: corev1.PodRunning}
	container := corev1.ContainerStatus{Name: pod.Spec.Containers[0].Name, Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}
	if refusal != nil {
		status.Phase, container.Ready = corev1.PodPending, false
		container.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError", Message: refusal.Error()}}
	}
	status.ContainerStatuses = []corev1.ContainerStatus{container}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = n.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

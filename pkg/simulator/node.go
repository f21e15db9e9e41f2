package simulator

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

// runPod starts a pod as the kubelet does: the pod's cgroup, its sandbox, the init containers one after the other, each to
// its end unless it is a sidecar, then the app containers. After an init container that does not start nothing follows.
func (n *Node) runPod(ctx context.Context, pod *corev1.Pod) error {
	if pending := n.schedule(ctx, pod); pending != nil {
		n.skip(pod, pod.Spec.InitContainers, pending.Error())
		n.skip(pod, pod.Spec.Containers, pending.Error())
		return ctx.Err()
	}
	n.pods = append(n.pods, pod)
	if err := n.makeCgroup(pod); err != nil {
		return err
	}
	sandbox := n.sandbox(pod)
	if err := n.runtime.RunPodSandbox(ctx, sandbox); err != nil {
		n.skip(pod, pod.Spec.InitContainers, textOf(err))
		n.skip(pod, pod.Spec.Containers, textOf(err))
		return ctx.Err()
	}
	for i := range pod.Spec.InitContainers {
		container := &pod.Spec.InitContainers[i]
		admitted, err := n.runContainer(ctx, pod, container)
		if err != nil {
			return err
		}
		if !admitted {
			reason := fmt.Sprintf("not created: init container %s did not start", container.Name)
			n.skip(pod, pod.Spec.InitContainers[i+1:], reason)
			n.skip(pod, pod.Spec.Containers, reason)
			return nil
		}
		if !isSidecar(container) {
			if err := n.runtime.StopContainer(ctx, idOf(string(pod.UID)+"/"+container.Name)); err != nil {
				return err
			}
		}
	}
	for i := range pod.Spec.Containers {
		if _, err := n.runContainer(ctx, pod, &pod.Spec.Containers[i]); err != nil {
			return err
		}
	}
	return nil
}

// schedule prepares a pod's claims. The error is why the scheduler does not bind the pod.
func (n *Node) schedule(ctx context.Context, pod *corev1.Pod) error {
	keeper, keeps := n.plugin.(claimKeeper)
	if n.claims == nil || !keeps {
		return nil
	}
	if err := n.claims.prepare(ctx, pod, keeper); err != nil {
		return fmt.Errorf("stays Pending: %w", err)
	}
	return nil
}

// makeCgroup is what the kubelet does before a pod's sandbox.
func (n *Node) makeCgroup(pod *corev1.Pod) error {
	cgroup := n.cgroupParent(pod)
	if err := n.Cgroups.Make(cgroup); err != nil {
		return err
	}
	bytes, limited := memoryLimit(pod)
	if !limited {
		return nil
	}
	return n.Cgroups.Write(cgroup, "memory.max", strconv.FormatInt(bytes, 10))
}

// runContainer creates and starts a container and notes what came of it. The error is about the simulation.
func (n *Node) runContainer(ctx context.Context, pod *corev1.Pod, spec *corev1.Container) (admitted bool, err error) {
	asked := n.container(pod, spec)
	if n.claims != nil {
		asked.CDIDevices = n.claims.devices(pod, spec)
	}
	note := n.note(pod, spec)
	resources, err := n.runtime.CreateContainer(ctx, asked)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	facts, failed := n.plugin.Facts(ctx, note.uid, note.Container)
	if failed != nil {
		return false, failed
	}
	note.unplaced = facts.Unplaced
	if err != nil {
		note.Reason = textOf(err)
		return false, nil
	}
	note.Admitted, note.id, note.OCI = true, asked.Id, resources
	if facts.Unplaced != "" {
		note.Reason = unpinned + memorymanager.InLine(facts.Unplaced)
	}
	request := facts.Request
	note.Memory.Request, note.Memory.RequestSource, note.requestError = request.Request, string(request.Source), request.Error
	return true, n.runtime.StartContainer(ctx, asked.Id)
}

// unpinned begins the reason of a container that was created without NUMA nodes although it asked for some.
const unpinned = "runs unpinned: "

// textOf is a plugin's error as the plugin gave it, without the words of the connection around it.
func textOf(err error) string { return status.Convert(err).Message() }

func (n *Node) note(pod *corev1.Pod, spec *corev1.Container) *Container {
	note := &Container{
		Namespace: pod.Namespace, Pod: pod.Name, Container: spec.Name, QOSClass: string(classOf(pod)), NUMANodes: []int{},
		OOMScoreAdj: n.oomScoreAdj(pod, spec), uid: string(pod.UID), hugepages: n.hugepages(pod, spec),
	}
	switch init := slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == spec.Name }); {
	case init && isSidecar(spec):
		note.kind = "sidecar"
	case init:
		note.kind = "init, ended"
	}
	n.containers = append(n.containers, note)
	return note
}

func (n *Node) skip(pod *corev1.Pod, containers []corev1.Container, reason string) {
	for i := range containers {
		n.note(pod, &containers[i]).Reason = reason
	}
}

// ancestors are the cgroups between the mount and the containers: kubepods, the QoS classes' and the pods'.
func (n *Node) ancestors() []string {
	var all []string
	seen := map[string]bool{".": true}
	for _, pod := range n.pods {
		var chain []string
		for cgroup := path.Clean(n.cgroupParent(pod))[1:]; !seen[cgroup]; cgroup = path.Dir(cgroup) {
			seen[cgroup] = true
			chain = append([]string{cgroup}, chain...)
		}
		all = append(all, chain...)
	}
	return all
}

package simulator

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
)

// runPod admits a pod and starts it as the kubelet does: the pod's cgroup, its sandbox, the init containers one after the other, each to
// its end unless it is a sidecar, then the app containers. After an init container that does not start nothing follows.
func (n *Node) runPod(ctx context.Context, pod *corev1.Pod) error {
	if rejected := n.admission.Admit(pod); rejected != nil {
		n.skipAll(pod, rejected.Error())
		return nil
	}
	if len(pod.Spec.ResourceClaims) > 0 && n.config.DRA.Enabled {
		n.skipAll(pod, claimsReason)
		return nil
	}
	n.pods, n.living = append(n.pods, pod), append(n.living, pod)
	if err := n.makeCgroup(pod); err != nil {
		return err
	}
	before := len(n.containers)
	if err := n.start(ctx, pod); err != nil {
		return err
	}
	runs := func(c *Container) bool { return c.Admitted && c.kind != endedInit }
	if n.admission == nil || slices.ContainsFunc(n.containers[before:], runs) {
		return nil
	}
	return n.endPod(ctx, pod)
}

// endPod ends a pod of which nothing runs: it holds nothing of the node. As with a kubelet its cgroup goes before its last sandbox is
// removed, and the plugin takes it as ended then.
func (n *Node) endPod(ctx context.Context, pod *corev1.Pod) error {
	id := idOf(string(pod.UID))
	if err := n.runtime.StopPodSandbox(ctx, id); err != nil {
		return err
	}
	if err := n.Cgroups.Remove(n.cgroupParent(pod)); err != nil {
		return err
	}
	n.admission.Release(pod)
	n.living = slices.DeleteFunc(n.living, func(other *corev1.Pod) bool { return other == pod })
	return n.runtime.RemovePodSandbox(ctx, id)
}

// start starts a pod's sandbox and containers as far as they can be.
func (n *Node) start(ctx context.Context, pod *corev1.Pod) error {
	if err := n.runtime.RunPodSandbox(ctx, n.sandbox(pod)); err != nil {
		n.skipAll(pod, textOf(err))
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
		if !podinfo.IsSidecar(container) {
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

// claimsReason is why a pod with resource claims has no NUMA nodes here: with dra.enabled they may be those of its claims.
const claimsReason = "not simulated: with dra.enabled the scheduler may choose the NUMA nodes of a pod with resource claims; status shows them on the node where it runs"

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
	asked.Linux.Resources.Cpu.Cpus = n.admission.cpusOf(pod, spec)
	note := n.note(pod, spec)
	note.CpusetCpus = asked.Linux.Resources.Cpu.Cpus
	resources, err := n.runtime.CreateContainer(ctx, asked)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	decided, failed := n.plugin.Outcome(ctx, note.uid, note.Container)
	if failed != nil {
		return false, failed
	}
	if note.unplaced = decided.Unplaced; note.unplaced != nil {
		note.ReasonCode, note.BarredBy = note.unplaced.Reason, note.unplaced.BarredBy
	}
	if err != nil {
		note.Reason = textOf(err)
		return false, nil
	}
	note.Admitted, note.id, note.OCI, note.confined = true, asked.Id, resources, decided.Confined
	note.WithoutEffect = decided.WithoutEffect
	if decided.OOMScore != nil {
		note.OOMScoreAdj = decided.OOMScore.Value
	}
	switch {
	case decided.Unplaced != nil:
		note.Reason = withoutNodes + memorymanager.InLine(decided.Unplaced.Text)
	case strings.HasPrefix(decided.Pinning, notPinned):
		note.Reason = n.unpinned(pod, spec, decided.Pinning)
	}
	request := decided.Request
	note.Memory.Request, note.Memory.RequestSource, note.requestError = request.Request, string(request.Source), request.Error
	return true, n.runtime.StartContainer(ctx, asked.Id)
}

// notPinned begins the ledger's words for a container that has no NUMA nodes of its own, not for want of room.
const notPinned = "not pinned: "

// unpinned says why a container has no NUMA nodes, if its pod requires them or it would have some by itself.
func (n *Node) unpinned(pod *corev1.Pod, spec *corev1.Container, why string) string {
	wishes, _ := config.ReadAnnotations(pod.Annotations).Wishes(spec.Name, n.rulesFor(pod))
	read, _ := podinfo.FromPod(pod).Container(spec.Name)
	asks := classOf(pod) == memoryqos.Guaranteed || read.Limit > 0 && read.Request == read.Limit // CPU or another container is why
	switch {
	case wishes.NUMA == config.NUMARequired:
		return why + "; the annotation numa: required has no effect"
	case asks && wishes.NUMA != config.NUMANone && n.config.MemoryManagerPolicy != config.MemoryManagerNone:
		return why
	}
	return ""
}

// withoutNodes begins the reason of a container that was created without NUMA nodes for want of room.
const withoutNodes = "runs unpinned: "

// textOf is a plugin's error as the plugin gave it, without the words of the connection around it.
func textOf(err error) string { return status.Convert(err).Message() }

func (n *Node) note(pod *corev1.Pod, spec *corev1.Container) *Container {
	var defaults string
	if rules := n.rulesFor(pod); rules.Defaults != nil { // else the annotations need not be read for each container
		wishes, _ := config.ReadAnnotations(pod.Annotations).Wishes(spec.Name, rules)
		defaults = rules.Sets(wishes, pod.Spec.PriorityClassName)
	}
	note := &Container{
		Namespace: pod.Namespace, Pod: pod.Name, Container: spec.Name, QOSClass: string(classOf(pod)), NUMANodes: []int{},
		OOMScoreAdj: n.oomScoreAdj(pod, spec), Defaults: defaults, uid: string(pod.UID), hugepages: n.hugepages(pod, spec), Memory: Memory{Request: uint64(spec.Resources.Requests.Memory().Value())},
	}
	if limit := limits(pod, spec)[corev1.ResourceMemory]; limit.Sign() > 0 {
		note.Memory.Max = new(uint64(limit.Value()))
	}
	if bytes, limited := memoryLimit(pod); limited {
		note.podMax = uint64(bytes)
	}
	switch init := slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == spec.Name }); {
	case init && podinfo.IsSidecar(spec):
		note.kind = "sidecar"
	case init:
		note.kind = endedInit
	}
	n.containers = append(n.containers, note)
	return note
}

// endedInit is the kind of an init container that is no sidecar.
const endedInit = "init, ended"

func (n *Node) skipAll(pod *corev1.Pod, reason string) {
	n.skip(pod, pod.Spec.InitContainers, reason)
	n.skip(pod, pod.Spec.Containers, reason)
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
	for _, pod := range n.living {
		var chain []string
		for cgroup := path.Clean(n.cgroupParent(pod))[1:]; !seen[cgroup]; cgroup = path.Dir(cgroup) {
			seen[cgroup] = true
			chain = append([]string{cgroup}, chain...)
		}
		all = append(all, chain...)
	}
	return all
}

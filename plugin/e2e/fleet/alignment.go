package main

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// cpuDriver is what dra-driver-cpu v0.2.0 publishes of a machine with four CPUs beside each NUMA node.
const (
	cpuDriver = "dra.cpu"
	cpuClass  = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: dra.cpu}
spec: {selectors: [{cel: {expression: device.driver == 'dra.cpu'}}]}
`
	cpuSlice = `
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-000-dra.cpu}
spec:
  driver: dra.cpu
  nodeName: node-000
  pool: {name: node-000, generation: 1, resourceSliceCount: 1}
  devices:
  - name: cpudevnuma000
    allowMultipleAllocations: true
    attributes: {dra.cpu/numaNodeID: {int: 0}, dra.net/numaNode: {int: 0}, dra.cpu/socketID: {int: 0}, dra.cpu/numCPUs: {int: 4}, dra.cpu/smtEnabled: {bool: true}}
    capacity: {dra.cpu/cpu: {value: "4"}}
  - name: cpudevnuma001
    allowMultipleAllocations: true
    attributes: {dra.cpu/numaNodeID: {int: 1}, dra.net/numaNode: {int: 1}, dra.cpu/socketID: {int: 1}, dra.cpu/numCPUs: {int: 4}, dra.cpu/smtEnabled: {bool: true}}
    capacity: {dra.cpu/cpu: {value: "4"}}
`
)

// alignment checks on a node of its own that the constraint of the example with-cpus.yaml has the scheduler take memory and CPUs
// from one NUMA node: from the one where both have room, from none where that is the case nowhere, and again from one as soon as
// it has room for both.
func (o *options) alignment(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	filler := setting{load: load{memory: "126Gi"}, claims: true} // nearly all of one NUMA node
	return o.assemble(ctx, filler, 1, dir, func(ctx context.Context, f *fleet) error {
		if err := f.align(ctx, o.example); err != nil {
			return fmt.Errorf("memory beside CPUs of another driver: %w", err)
		}
		logf("memory and the CPUs of another driver are on one NUMA node")
		return nil
	})
}

func (f *fleet) align(ctx context.Context, example []byte) error {
	template, manifest, _ := strings.Cut(string(example), "\n---\n")
	for _, object := range []struct{ path, text string }{{deviceClasses, cpuClass}, {resourceSlices, cpuSlice}, {claimTemplates, template}} {
		if err := f.cluster.Apply(ctx, object.path, []byte(object.text)); err != nil {
			return err
		}
	}
	var pod corev1.Pod // with 2 CPUs and 3Gi of memory
	if err := yaml.UnmarshalStrict([]byte(manifest), &pod); err != nil {
		return fmt.Errorf("deploy/examples/dra/with-cpus.yaml: %w", err)
	}
	if err := f.follow(ctx, func(outcome) {}); err != nil {
		return err
	}
	pods := f.client.CoreV1().Pods(namespace)
	if _, err := pods.Create(ctx, f.pod("filler"), metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := f.has(ctx, "filler", map[string]string{driver: "numa-0"}, "0"); err != nil {
		return err
	}
	// CPUs are free on both NUMA nodes, and those of node 0 come first: only the constraint has them beside the memory.
	one := map[string]string{driver: "numa-1", cpuDriver: "cpudevnuma001"}
	for _, name := range []string{"first", "second"} {
		pod.Name = name
		if _, err := pods.Create(ctx, &pod, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := f.has(ctx, name, one, "1"); err != nil {
			return err
		}
	}
	// Node 0 has CPUs and no memory, node 1 memory and no CPUs.
	pod.Name = "third"
	if _, err := pods.Create(ctx, &pod, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := f.isUnschedulable(ctx, "third"); err != nil {
		return err
	}
	if err := pods.Delete(ctx, "filler", metav1.DeleteOptions{}); err != nil {
		return err
	}
	return f.has(ctx, "third", map[string]string{driver: "numa-0", cpuDriver: "cpudevnuma000"}, "0")
}

// has waits until a pod runs, and fails unless its claims have these devices by driver, and its container these NUMA nodes.
func (f *fleet) has(ctx context.Context, name string, devices map[string]string, mems string) error {
	var pod *corev1.Pod
	err := await(ctx, name+" to run", func() (_ bool, err error) {
		pod, err = f.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	})
	if err != nil {
		return err
	}
	got := map[string]string{}
	for _, status := range pod.Status.ResourceClaimStatuses {
		claim, err := f.client.ResourceV1().ResourceClaims(namespace).Get(ctx, *status.ResourceClaimName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			got[result.Driver] = result.Device
		}
	}
	if !maps.Equal(got, devices) {
		return fmt.Errorf("%s has devices %v, want %v", name, got, devices)
	}
	for _, container := range f.nodes[0].runtime.Containers() {
		if container.PodSandboxId == "sandbox-"+string(pod.UID) {
			if set := container.GetLinux().GetResources().GetCpu().GetMems(); set != mems {
				return fmt.Errorf("%s has cpuset.mems %q, want %q", name, set, mems)
			}
			return nil
		}
	}
	return fmt.Errorf("%s has no container", name)
}

// isUnschedulable waits until the scheduler has found no room for a pod.
func (f *fleet) isUnschedulable(ctx context.Context, name string) error {
	return await(ctx, name+" to be unschedulable", func() (bool, error) {
		pod, err := f.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
				return true, nil
			}
		}
		return false, nil
	})
}

package apiserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/needs"
)

// nodeAllocatableGate is the feature gate, and what the Node of a kubelet with it declares.
const nodeAllocatableGate = "DRANodeAllocatableResources"

// TestAClaimIsWrittenOnce publishes devices that count as the node's resources: an API server with the feature gate keeps what they say, one
// without it drops that, and one whose kubelet does not declare the feature refuses it. Each change from outside is one write.
func TestAClaimIsWrittenOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gate, declared bool
		requests       map[string]int // of the daemon for ResourceSlices, by verb and status code
		says           string         // verify
	}{
		"gate off": {false, true, map[string]int{"create 201": 1, "update 200": 2}, "the API server drops nodeAllocatableResources: "},
		"gate on":  {true, true, map[string]int{"create 201": 1, "update 200": 2}, ""},
		"gate on, and off in the kubelet": {true, false, map[string]int{"create 403": 1, "create 201": 1, "update 200": 2},
			`the API server refuses nodeAllocatableResources: resourceslices.resource.k8s.io "worker-memory.noderesource.dev" is forbidden: node "worker" does not support ` + nodeAllocatableGate + " feature"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, admin, audit := newKubernetes(t, fmt.Sprintf("--feature-gates=%s=%t", nodeAllocatableGate, test.gate))
			client, err := kubernetes.NewForConfig(ready(t, admin, server))
			must(t, err)
			schema, err := client.Discovery().RESTClient().Get().AbsPath("/openapi/v3/apis/resource.k8s.io/v1").DoRaw(t.Context())
			must(t, err)
			if test.gate && !strings.Contains(string(schema), `"nodeAllocatableResources"`) {
				needs.Missing(t, "the kube-apiserver is older than 1.37 and does not know nodeAllocatableResources: KUBE_APISERVER names another")
			}
			worker := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
			if test.declared {
				worker.Status.DeclaredFeatures = []string{nodeAllocatableGate}
			}
			worker, err = client.CoreV1().Nodes().Create(t.Context(), worker, metav1.CreateOptions{})
			must(t, err)
			if test.gate && test.declared {
				admitsMapped(t, client)
			}
			config, _ := grant(t, client, admin)
			const settings = "requestSources: [oomscore]\ndra: {enabled: true, publishNodeAllocatable: true, shares: [{limits: {memory: %s}}]}\n"
			n := newNodeNamed(t, "worker", config, machine, fmt.Sprintf(settings, "50%"))
			slice := published(t, client)
			before := memoryOf(slice)
			wantMapped(t, slice, test.gate && test.declared)

			must(t, os.WriteFile(n.path("config.yaml"), fmt.Appendf(nil, settings, "25%"), 0o644))
			eventually(t, "another share is published", func() bool { slice = published(t, client); return memoryOf(slice) < before })
			wantMapped(t, slice, test.gate && test.declared)
			slice.Spec.Devices = slice.Spec.Devices[:1]
			_, err = client.ResourceV1().ResourceSlices().Update(t.Context(), slice, metav1.UpdateOptions{})
			must(t, err)
			wantMapped(t, published(t, client), test.gate && test.declared)
			wrote(t, audit, test.requests)
			out, _ := exec.Command(plugin(t), "verify", "--state-dir", n.path("state"), "--cgroups", n.path("cgroups"), "--plain-cgroups", "--machine", n.path("machine.yaml")).Output()
			if says := strings.Contains(string(out), "claims do not count as requests of their pods: "+test.says); says != (test.says != "") {
				t.Errorf("verify says %s, want %q", out, test.says)
			}
			if !test.gate || test.declared {
				return
			}
			worker.Status.DeclaredFeatures = []string{nodeAllocatableGate}
			_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), worker, metav1.UpdateOptions{})
			must(t, err)
			admitsMapped(t, client)
			must(t, client.ResourceV1().ResourceSlices().Delete(t.Context(), slice.Name, metav1.DeleteOptions{})) // as a kubelet that starts
			wantMapped(t, published(t, client), true)
			test.requests["create 201"]++
			wrote(t, audit, test.requests)
		})
	}
}

// memoryOf is the memory of numa-0 in bytes.
func memoryOf(slice *resourceapi.ResourceSlice) int64 {
	for _, device := range slice.Spec.Devices {
		if device.Name == "numa-0" {
			memory := device.Capacity["memory"].Value
			return memory.Value()
		}
	}
	return 0
}

// wantMapped checks that each capacity of a slice's devices is mapped, or that none is.
func wantMapped(t *testing.T, slice *resourceapi.ResourceSlice, want bool) {
	t.Helper()
	got := map[string]string{}
	for _, device := range slice.Spec.Devices {
		for name, resource := range device.NodeAllocatableResources {
			got[device.Name+" "+string(name)] = string(*resource.Mapping.CapacityKey) + " × " + resource.Mapping.CapacityMultiplier.String()
		}
	}
	all := map[string]string{}
	if want {
		all = map[string]string{"numa-0 memory": "memory × 1", "numa-1 memory": "memory × 1", "numa-1 hugepages-2Mi": "hugepages2Mi × 1"}
	}
	if difference := cmp.Diff(all, got); difference != "" {
		t.Errorf("nodeAllocatableResources (-want +got): %s", difference)
	}
}

// admitsMapped waits until the API server has seen what the Node declares.
func admitsMapped(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	node, key, one := "worker", resourceapi.QualifiedName("memory"), capacity("1").Requests["memory"]
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: claimsDriver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "d", Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{key: {Value: one}},
			NodeAllocatableResources: map[corev1.ResourceName]resourceapi.NodeAllocatableResource{corev1.ResourceMemory: {
				Mapping: &resourceapi.NodeAllocatableMapping{CapacityKey: &key, CapacityMultiplier: &one}}}}},
	}}
	eventually(t, "the API server admits devices that count as resources of the node", func() bool {
		_, err := client.ResourceV1().ResourceSlices().Create(context.Background(), slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil
	})
}

// wrote checks the daemon's writes of ResourceSlices. The API server notes a write after it can be read.
func wrote(t *testing.T, audit string, want map[string]int) {
	t.Helper()
	sum := func(counts map[string]int) (all int) {
		for _, count := range counts {
			all += count
		}
		return all
	}
	eventually(t, "the audit log has the writes", func() bool { return sum(slicesWritten(t, audit)) >= sum(want) })
	if difference := cmp.Diff(want, slicesWritten(t, audit)); difference != "" {
		t.Errorf("requests (-want +got): %s", difference)
	}
}

// slicesWritten counts the daemon's writes of ResourceSlices by verb and status code.
func slicesWritten(t *testing.T, audit string) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for event := range audited(t, audit, account) {
		if event.ObjectRef.Resource == "resourceslices" && (event.Verb == "create" || event.Verb == "update") {
			counts[fmt.Sprintf("%s %d", event.Verb, event.ResponseStatus.Code)]++
		}
	}
	return counts
}

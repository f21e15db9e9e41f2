package apiserver

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

// publishNetwork publishes a network device near each of the NUMA nodes of two Kubernetes nodes, as DRANET does, and allocates a claim
// for the one of worker on NUMA node 1.
func publishNetwork(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	for node, devices := range map[string][]string{"worker": {"eth0", "eth1"}, "other": {"eth1", "eth0"}} {
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: node + "-dra.net-"}, Spec: resourceapi.ResourceSliceSpec{
			Driver: "dra.net", NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		}}
		for i, name := range devices {
			at := int64(i)
			slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: name,
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"dra.net/numaNode": {IntValue: &at}}})
		}
		_, err := client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{})
		must(t, err)
	}
	claims := client.ResourceV1().ResourceClaims("default")
	claim, err := claims.Create(t.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "network"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "nic", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "dranet"}},
		}}},
	}, metav1.CreateOptions{})
	must(t, err)
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "nic", Driver: "dra.net", Pool: "worker", Device: "eth1"}}}}
	_, err = claims.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	must(t, err)
}

// kubelet is its PodResources API: it knows the claim of the pod network, and no device.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (kubelet) Get(_ context.Context, request *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	container := &podresources.ContainerResources{Name: "app"}
	if request.GetPodName() == "network" {
		container.DynamicResources = []*podresources.DynamicResource{{ClaimName: "network", ClaimNamespace: "default"}}
	}
	return &podresources.GetPodResourcesResponse{PodResources: &podresources.PodResources{
		Name: request.GetPodName(), Namespace: request.GetPodNamespace(), Containers: []*podresources.ContainerResources{container},
	}}, nil
}

// withKubelet serves the PodResources API until the test's end. Each create that finds it away makes the daemon's next pause longer.
func (n *node) withKubelet() {
	n.t.Helper()
	listener, err := net.Listen("unix", n.path("devices.sock"))
	must(n.t, err)
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, kubelet{})
	go server.Serve(listener)
	n.t.Cleanup(server.Stop)
}

// withNetwork places a pod whose claim has the network device on NUMA node 1, which the daemon knows from the API server only.
func (n *node) withNetwork(uid string) {
	n.t.Helper()
	eventually(n.t, "the ResourceSlices are known", func() bool {
		out, err := exec.Command(plugin(n.t), "status", "--state-dir", n.path("state"), "-o", "json").Output()
		must(n.t, err)
		var document status.Document
		must(n.t, json.Unmarshal(out, &document))
		return slices.Equal(document.DeviceSources, []status.Source{{Source: "resourceslice", Connected: true}})
	})
	must(n.t, n.place("network", uid, 1<<30))
	mems, err := os.ReadFile(n.path("cgroups/kubepods/pod" + uid + "/container-" + uid + "/cpuset.mems"))
	must(n.t, err)
	if got := strings.TrimSpace(string(mems)); got != "1" {
		n.t.Errorf("cpuset.mems is %q, want the NUMA node of the network device", got)
	}
}

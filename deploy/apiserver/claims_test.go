package apiserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	"sigs.k8s.io/yaml"
)

const claimsDriver = "memory.noderesource.dev"

// claim has the node prepare a claim as the kubelet does, once the scheduler has allocated it.
func (n *node) claim(client kubernetes.Interface, name string) {
	n.t.Helper()
	claims := client.ResourceV1().ResourceClaims("default")
	claim, err := claims.Create(n.t.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "mem", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "numa-memory"}},
		}}},
	}, metav1.CreateOptions{})
	must(n.t, err)
	share := types.UID("8f3e2b6a-0b1c-4c7e-9d55-6a1b2c3d4e5f")
	claim.Status = resourceapi.ResourceClaimStatus{
		ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod", UID: "pod-uid"}},
		Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "mem", Driver: claimsDriver, Pool: "worker", Device: "numa-1", ShareID: &share,
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("1Gi")},
		}}}},
	}
	_, err = claims.UpdateStatus(n.t.Context(), claim, metav1.UpdateOptions{})
	must(n.t, err)
	connection, err := grpc.NewClient("unix:"+n.path("registry/"+claimsDriver+".sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(n.t, err)
	defer connection.Close()
	response, err := drav1.NewDRAPluginClient(connection).NodePrepareResources(n.t.Context(), &drav1.NodePrepareResourcesRequest{
		Claims: []*drav1.Claim{{Namespace: "default", Name: name, Uid: string(claim.UID)}},
	})
	must(n.t, err)
	if answer := response.Claims[string(claim.UID)]; answer.Error != "" || len(answer.Devices) != 1 {
		n.t.Errorf("the claim is prepared as %v", answer)
	}
}

// published waits for the node's slice to be accepted with both NUMA nodes.
func published(t *testing.T, client kubernetes.Interface) (slice *resourceapi.ResourceSlice) {
	t.Helper()
	eventually(t, "the ResourceSlice has both NUMA nodes", func() bool {
		var err error
		slice, err = client.ResourceV1().ResourceSlices().Get(context.Background(), "worker-"+claimsDriver, metav1.GetOptions{})
		return err == nil && len(slice.Spec.Devices) == 2
	})
	return slice
}

// TestTheChartsPolicies applies what the chart has for claims and asks a real API server what it admits.
func TestTheChartsPolicies(t *testing.T) {
	t.Parallel()
	admin, _ := startKubernetes(t)
	client, err := kubernetes.NewForConfig(admin)
	must(t, err)
	applyPolicies(t, client)
	template(t, client, "three", resourceapi.DeviceRequest{Name: "mem", Exactly: of("3Gi", 1)})
	template(t, client, "split", resourceapi.DeviceRequest{Name: "mem", Exactly: of("2Gi", 2)})
	template(t, client, "either", resourceapi.DeviceRequest{Name: "mem", FirstAvailable: []resourceapi.DeviceSubRequest{sub("one", "4Gi", 1), sub("two", "3Gi", 2)}})
	template(t, client, "gpu", resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu"}})

	const denied = "has no memory limit, or one above the "
	eventually(t, "the policy is in force", func() bool {
		err := dryRun(client, claiming("5Gi", "three"))
		return err != nil && strings.Contains(err.Error(), denied)
	})
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string // in the refusal
	}{
		"what the claim has":     {claiming("3Gi", "three"), ""},
		"less":                   {claiming("1Gi", "three"), ""},
		"more":                   {claiming("3073Mi", "three"), "container app " + denied + "3221225472 bytes that its claims of ResourceClaimTemplate three have: set limits.memory to that"},
		"no limit":               {claiming("", "three"), denied},
		"half on each of two":    {claiming("4Gi", "split"), ""},
		"more than both":         {claiming("5Gi", "split"), denied},
		"the larger alternative": {claiming("6Gi", "either"), ""},
		"more than any":          {claiming("7Gi", "either"), denied},
		"another driver's":       {claiming("100Gi", "gpu"), ""},
		"two of one template":    {claiming("6Gi", "three", "three"), ""},
		"more than the two":      {claiming("6145Mi", "three", "three"), "above the 6442450944 bytes that its claims of ResourceClaimTemplate three have"},
		"two and no limit":       {claiming("", "split", "split"), denied},
		"of several templates":   {claiming("100Gi", "three", "split"), ""}, // the node says it
		"beside another driver":  {claiming("100Gi", "three", "gpu"), ""},
		"none":                   {claiming("100Gi"), ""},
	} {
		if err := dryRun(client, test.pod); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}

	examples, err := filepath.Glob("../examples/dra/*.yaml")
	must(t, err)
	for _, example := range examples {
		text, err := os.ReadFile(example)
		must(t, err)
		claim, pod, _ := strings.Cut(string(text), "\n---\n")
		var template resourceapi.ResourceClaimTemplate
		must(t, yaml.UnmarshalStrict([]byte(claim), &template))
		_, err = client.ResourceV1().ResourceClaimTemplates("default").Create(t.Context(), &template, metav1.CreateOptions{})
		must(t, err)
		for limit, admitted := range map[string]bool{"": true, "100Ti": false} {
			var claiming corev1.Pod
			must(t, yaml.UnmarshalStrict([]byte(pod), &claiming))
			if limit != "" {
				claiming.Spec.Containers[0].Resources.Limits["memory"] = resource.MustParse(limit)
			}
			eventually(t, "the policy knows the template of "+example, func() bool { return (dryRun(client, &claiming) == nil) == admitted })
		}
	}
	if len(examples) < 4 {
		t.Errorf("%d examples", len(examples))
	}

	daemon := func(node string) kubernetes.Interface {
		config := rest.CopyConfig(admin)
		config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:kube-system:nri-memory-manager", Groups: []string{"system:masters"}}
		if node != "" {
			config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
		}
		client, err := kubernetes.NewForConfig(config)
		must(t, err)
		return client
	}
	for name, test := range map[string]struct {
		by, node, driver string
		want             string
	}{
		"its own node":   {"worker", "worker", claimsDriver, ""},
		"another node":   {"other", "worker", claimsDriver, "only the ResourceSlice of driver " + claimsDriver + " and node other may be written"},
		"another driver": {"worker", "worker", "gpu.example.com", "may be written"},
		"no node":        {"", "worker", claimsDriver, "the token is of no pod on a node"},
	} {
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}, Spec: resourceapi.ResourceSliceSpec{
			Driver: test.driver, NodeName: &test.node, Pool: resourceapi.ResourcePool{Name: test.node, Generation: 1, ResourceSliceCount: 1},
		}}
		_, err := daemon(test.by).ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// applyPolicies applies the DeviceClass and the policies of the chart.
func applyPolicies(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	var err error
	for kind, document := range rendered(t) {
		switch kind {
		case "DeviceClass":
			var class resourceapi.DeviceClass
			must(t, yaml.UnmarshalStrict(document, &class))
			_, err = client.ResourceV1().DeviceClasses().Create(t.Context(), &class, metav1.CreateOptions{})
		case "ValidatingAdmissionPolicy":
			var policy admissionv1.ValidatingAdmissionPolicy
			must(t, yaml.UnmarshalStrict(document, &policy))
			_, err = client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), &policy, metav1.CreateOptions{})
		case "ValidatingAdmissionPolicyBinding":
			var binding admissionv1.ValidatingAdmissionPolicyBinding
			must(t, yaml.UnmarshalStrict(document, &binding))
			_, err = client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), &binding, metav1.CreateOptions{})
		}
		must(t, err)
	}
}

func capacity(memory string) *resourceapi.CapacityRequirements {
	return &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
}

func of(memory string, count int64) *resourceapi.ExactDeviceRequest {
	return &resourceapi.ExactDeviceRequest{DeviceClassName: "numa-memory", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count, Capacity: capacity(memory)}
}

func sub(name, memory string, count int64) resourceapi.DeviceSubRequest {
	return resourceapi.DeviceSubRequest{Name: name, DeviceClassName: "numa-memory", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count, Capacity: capacity(memory)}
}

func template(t *testing.T, client kubernetes.Interface, name string, requests ...resourceapi.DeviceRequest) {
	t.Helper()
	_, err := client.ResourceV1().ResourceClaimTemplates("default").Create(t.Context(), &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}},
	}, metav1.CreateOptions{})
	must(t, err)
}

// claiming is a pod whose container has claims of templates.
func claiming(limit string, templates ...string) *corev1.Pod {
	container := corev1.Container{Name: "app", Image: "app"}
	if limit != "" {
		container.Resources.Limits = corev1.ResourceList{"memory": resource.MustParse(limit)}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}}
	for i, template := range templates {
		name := fmt.Sprint(template, i)
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: &template})
		container.Resources.Claims = append(container.Resources.Claims, corev1.ResourceClaim{Name: name})
	}
	pod.Spec.Containers = []corev1.Container{container}
	return pod
}

func dryRun(client kubernetes.Interface, pod *corev1.Pod) error {
	_, err := client.CoreV1().Pods("default").Create(context.Background(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

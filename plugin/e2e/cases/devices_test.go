package cases

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/device"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

const (
	diskNode  = "/dev/vda"  // of the PCI function on node 1
	plainNode = "/dev/kmsg" // a device node without a NUMA node
	diskShown = `block /dev/vda on node 1 \(sysfs\)`
)

// hasDevices fails unless a disk and a network interface are on NUMA node 1 for the kernel.
func hasDevices(t *testing.T) {
	t.Helper()
	for class, name := range map[string]string{"0x010000": "disk", "0x020000": "network interface"} {
		var nodes []string
		functions, _ := filepath.Glob("/sys/bus/pci/devices/*")
		for _, function := range functions {
			if file(function, "class") == class {
				nodes = append(nodes, file(function, "numa_node"))
			}
		}
		if !strings.Contains(" "+strings.Join(nodes, " ")+" ", " 1 ") {
			t.Fatalf("PCI functions of class %s have the nodes %q: the guest has no %s on node 1", class, nodes, name)
		}
	}
}

// TestMemoryFollowsDevices gives pods devices of NUMA node 1, although node 0 has room and is what a pod without devices gets: by
// device plugins that report the node, by one that names a CDI device and no node, and by a resource claim. A pod that requires
// the device's node is rejected when that is full.
func TestMemoryFollowsDevices(t *testing.T) {
	hasDevices(t)
	k := kubeletOf(t)
	name, err := device.WriteCDI(diskNode)
	if err != nil {
		t.Fatal(err)
	}
	defer device.RemoveCDI()
	for _, plugin := range []*device.Plugin{
		{Resource: "example.com/disk", IDs: []string{"disk-0", "disk-1"}, Node: 1, Path: diskNode},
		{Resource: "example.com/nic", IDs: []string{"nic-0"}, Node: 1, Path: plainNode},
		{Resource: "example.com/cdi", IDs: []string{"cdi-0"}, Node: device.NoNode, CDI: name},
	} {
		if err := plugin.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		offers(t, plugin.Resource)
	}
	diskClaims(t, k, name)
	defer func() { _ = k.RemoveAll(t.Context()) }() // while the driver answers: a claim is unprepared before its pod goes
	p := startPlugin(t, "topologyManagerPolicy: restricted")

	const touched = 24 * MiB
	plain := guaranteed("plain", 64*MiB, touched)
	near, cdi := withDevice("near", 64*MiB, touched, "example.com/disk"), withDevice("cdi", 64*MiB, touched, "example.com/cdi")
	claimed := withDiskClaim(t, k, touched)
	if err := k.RunAll(t.Context(), plain, near, cdi); err != nil {
		t.Fatal(err)
	}
	if err := k.WaitStarted(t.Context(), claimed); err != nil {
		t.Fatal(err)
	}
	placed(t, k, p, plain, "0", touched)
	placed(t, k, p, near, "1", touched)
	placed(t, k, p, cdi, "1", touched)
	placed(t, k, p, claimed, "1", touched)
	p.shows(near, `example.com/disk disk-[01] on node 1 \(kubelet\)`)
	p.shows(cdi, `example.com/cdi cdi-0 on no NUMA node \(kubelet\)`, diskShown)
	p.shows(claimed, diskShown)
	for _, pod := range []*kubelet.Pod{near, cdi, claimed} {
		said(t, k, pod, "app", "done read="+diskNode)
	}
	if claims := fmt.Sprint(resourcesOf(t, claimed).GetDynamicResources()); !strings.Contains(claims, name) {
		t.Errorf("the kubelet shows the claims %s, want one of the CDI device %s", claims, name)
	}

	p.change("topologyManagerPolicy: best-effort") // which places a pod elsewhere, unless it requires its nodes
	most := withDevice("most", (p.allocatable()[1]-3*64*MiB-200*MiB)/MiB*MiB, touched, "example.com/nic")
	run(t, k, most)
	placed(t, k, p, most, "1", touched)
	p.shows(most, `example.com/nic nic-0 on node 1 \(kubelet\)`)

	insists := withDevice("insists", 300*MiB, touched, "example.com/disk")
	insists.Annotations = map[string]string{"numa.memory-manager.noderesource.dev": "required"}
	reason := regexp.MustCompile(`its device example\.com/disk disk-[01] on node 1: \S+ of \S+ free, 300Mi needed`)
	if err := k.Run(t.Context(), insists); err == nil || !reason.MatchString(err.Error()) {
		t.Errorf("a pod that requires the full node of its device: got %v, want %s", err, reason)
	}
}

// TestCDIDeviceOfARequest gives a container a CDI device by the annotation of a request that no device plugin stands behind: the
// runtime adds the device node, and sysfs has its NUMA node.
func TestCDIDeviceOfARequest(t *testing.T) {
	hasDevices(t)
	k := criOf(t)
	name, err := device.WriteCDI(diskNode)
	if err != nil {
		t.Fatal(err)
	}
	defer device.RemoveCDI()
	p := startPlugin(t, "topologyManagerPolicy: restricted")
	const touched = 24 * MiB
	plain, near := guaranteed("plain", 48*MiB, touched), guaranteed("near", 48*MiB, touched)
	near.Containers[0].Annotations = map[string]string{"cdi.k8s.io/e2e": name}
	run(t, k, plain)
	run(t, k, near)
	placed(t, k, p, plain, "0", touched)
	placed(t, k, p, near, "1", touched)
	p.shows(near, diskShown)
}

// withDevice is a Guaranteed pod with a device of an extended resource; it reads the device where that is the disk.
func withDevice(name string, bytes, touched uint64, extended corev1.ResourceName) *kubelet.Pod {
	pod := guaranteed(name, bytes, touched)
	c := &pod.Containers[0]
	all := corev1.ResourceList{
		corev1.ResourceMemory: *resource.NewQuantity(int64(bytes), resource.BinarySI), corev1.ResourceCPU: resource.MustParse("100m"),
		extended: resource.MustParse("1"),
	}
	c.Resources = &corev1.ResourceRequirements{Requests: all, Limits: all}
	if extended != "example.com/nic" {
		c.Args = append(c.Args, "read="+diskNode)
	}
	return pod
}

// podResources are the kubelet's.
func podResources(t *testing.T) podresources.PodResourcesListerClient {
	t.Helper()
	conn, err := grpc.NewClient("unix:///var/lib/kubelet/pod-resources/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return podresources.NewPodResourcesListerClient(conn)
}

// offers waits until the kubelet has devices of an extended resource.
func offers(t *testing.T, extended string) {
	t.Helper()
	client := podResources(t)
	eventually(t, "the kubelet has devices of "+extended, func() string {
		response, err := client.GetAllocatableResources(t.Context(), &podresources.AllocatableResourcesRequest{})
		for _, d := range response.GetDevices() {
			if d.GetResourceName() == extended {
				return ""
			}
		}
		return fmt.Sprint(response, err)
	})
}

// resourcesOf are what the kubelet's PodResources API has of a pod's only container.
func resourcesOf(t *testing.T, pod *kubelet.Pod) *podresources.ContainerResources {
	t.Helper()
	response, err := podResources(t).Get(t.Context(), &podresources.GetPodResourcesRequest{PodNamespace: kubelet.Namespace, PodName: pod.Name})
	if err != nil || len(response.GetPodResources().GetContainers()) != 1 {
		t.Fatalf("PodResources of %s: %v, %v", pod.Name, response, err)
	}
	return response.GetPodResources().GetContainers()[0]
}

// diskDriver is the DRA driver of the disk, and the name of its class and claim template.
const diskDriver = "disk.example.com"

// diskClaims has a DRA driver offer the disk, and pods ask for it with a claim template.
func diskClaims(t *testing.T, k *kubelet.Kubelet, cdi string) {
	t.Helper()
	driver := &device.Driver{Name: diskDriver, Pool: setup.NodeName, Device: "disk", CDI: cdi}
	if err := driver.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	slices := k.Client.ResourceV1().ResourceSlices()
	_, err := slices.Create(t.Context(), &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: diskDriver}, Spec: resourcev1.ResourceSliceSpec{
		Driver: diskDriver, NodeName: new(setup.NodeName), Pool: resourcev1.ResourcePool{Name: setup.NodeName, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "disk"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		_ = slices.Delete(ctx, diskDriver, metav1.DeleteOptions{})
	})
	offer(t, k, diskDriver, diskDriver, resourcev1.ExactDeviceRequest{})
}

// withDiskClaim creates a pod with a claim of the disk.
func withDiskClaim(t *testing.T, k *kubelet.Kubelet, touched uint64) *kubelet.Pod {
	t.Helper()
	pod := guaranteed("claimed", 64*MiB, touched)
	pod.Containers[0].Args = append(pod.Containers[0].Args, "read="+diskNode)
	createWithClaim(t, k, pod, diskDriver)
	return pod
}

// shows checks that explain and status name these devices, with their nodes and sources, and no others.
func (p *plugin) shows(pod *kubelet.Pod, devices ...string) {
	p.t.Helper()
	want := make([]string, len(devices))
	for i, d := range devices {
		want[i] = "device " + d
	}
	explained, _ := p.ask("explain", pod.Name)
	lines := regexp.MustCompile(`(?m)^\s*device .*$`).FindAllString(explained, -1)
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	if !regexp.MustCompile("^" + strings.Join(want, "\n") + "$").MatchString(strings.Join(lines, "\n")) {
		p.t.Errorf("explain %s has the devices %q, want %q:\n%s", pod.Name, lines, want, explained)
	}
	if got := p.devices(pod); !regexp.MustCompile("^" + strings.Join(devices, "\n") + "$").MatchString(got) {
		p.t.Errorf("status has the devices %q of %s, want %q", got, pod.Name, devices)
	}
}

// devices are those of a pod's only container in status, a line each.
func (p *plugin) devices(pod *kubelet.Pod) string {
	p.t.Helper()
	out, _ := p.ask("status", "-o", "json")
	var document struct {
		Pods []struct {
			Name       string
			Containers []struct{ Devices []topologymanager.Device }
		}
	}
	if err := json.Unmarshal([]byte(out), &document); err != nil {
		p.t.Fatalf("status: %v: %s", err, out)
	}
	var lines []string
	for _, shown := range document.Pods {
		if shown.Name == pod.Name {
			for _, d := range shown.Containers[0].Devices {
				lines = append(lines, fmt.Sprintf("%s (%s)", d, d.Source))
			}
		}
	}
	return strings.Join(lines, "\n")
}

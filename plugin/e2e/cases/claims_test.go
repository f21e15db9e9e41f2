package cases

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// claimed is what each claim of TestResourceClaims asks for; a NUMA node has room for one.
const claimed = 200 * MiB

// claimTemplate is the class of devices and the template of claims of TestResourceClaims.
const claimTemplate = "numa-memory"

// TestResourceClaims has the scheduler place pods by their claims: two have a NUMA node each, the third is Pending until one of
// them goes, and nothing is rejected. Then the plugin, the kubelet and the runtime are killed while pods with claims start.
func TestResourceClaims(t *testing.T) {
	k := kubeletOf(t)
	p := startPlugin(t, "--kubeconfig="+setup.AdminConf, "--node-name="+setup.NodeName,
		"guaranteedHeadroom: 0", "dra: {enabled: true, shares: [{limits: {memory: 320Mi}}]}")
	offer(t, k, "memory.noderesource.dev", claimTemplate, resourcev1.ExactDeviceRequest{Capacity: &resourcev1.CapacityRequirements{
		Requests: map[resourcev1.QualifiedName]resource.Quantity{"memory": *resource.NewQuantity(int64(claimed), resource.BinarySI)},
	}})
	defer func() { _ = k.RemoveAll(t.Context()) }() // while the plugin answers
	eventually(t, "the NUMA nodes are devices", func() string {
		if devices := published(t, k); len(devices) != 2 {
			return fmt.Sprint(devices)
		}
		return ""
	})
	p.followsMemory(k)

	first, second, third := guaranteed("first", claimed, 16*MiB), guaranteed("second", claimed, 16*MiB), guaranteed("third", claimed, 16*MiB)
	for i, pod := range []*kubelet.Pod{first, second} {
		createWithClaim(t, k, pod, claimTemplate)
		if err := k.WaitStarted(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		holdsClaim(t, k, pod, fmt.Sprint(i))
	}
	createWithClaim(t, k, third, claimTemplate)
	eventually(t, "the third pod is Pending", func() string {
		object, err := k.Get(t.Context(), third)
		if err != nil {
			return err.Error()
		}
		for _, condition := range object.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
				return ""
			}
		}
		return fmt.Sprint(object.Status.Phase, object.Status.Conditions)
	})
	p.clean(t)
	p.kill()
	p.restart()
	if got := p.claims(); len(got) != 2 {
		t.Errorf("after a restart claims %q are prepared, want those of two pods", got)
	}
	if err := k.Remove(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := k.WaitStarted(t.Context(), third); err != nil {
		t.Fatal(err)
	}
	holdsClaim(t, k, third, "0")
	if err := k.RemoveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingClaimed(t, k, p)

	storm := claimStorm{t: t, k: k, p: p, random: rand.New(rand.NewPCG(stormSeed, 1))}
	for round := range storm.rounds() {
		storm.round(round)
	}
	t.Logf("seed %d: %d claims, %d kills of %d processes between the preparation of a claim and the start of its container",
		stormSeed, storm.claims, storm.between, storm.kills)
	nothingClaimed(t, k, p)
}

// TestClaimsReachANodeWithoutCPUs takes node 1's CPU offline: under Confine no pod uses its memory but one that asks for it by a claim.
func TestClaimsReachANodeWithoutCPUs(t *testing.T) {
	k := kubeletOf(t)
	cpus, _ := filepath.Glob("/sys/devices/system/node/node1/cpu[0-9]*")
	for _, cpu := range cpus {
		t.Cleanup(written(t, "0", cpu, "online"))
	}
	if left := file("/sys/devices/system/node/node1/cpulist"); left != "" {
		t.Fatalf("node 1 has CPUs %s", left)
	}
	p := startPlugin(t, "--kubeconfig="+setup.AdminConf, "--node-name="+setup.NodeName,
		"guaranteedHeadroom: 0", "nodesWithoutCPUs: Confine", "dra: {enabled: true}")
	offer(t, k, "memory.noderesource.dev", claimTemplate, resourcev1.ExactDeviceRequest{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["memory.noderesource.dev"].tier == 1`}}},
		Capacity: &resourcev1.CapacityRequirements{
			Requests: map[resourcev1.QualifiedName]resource.Quantity{"memory": *resource.NewQuantity(int64(claimed), resource.BinarySI)},
		},
	})
	defer func() { _ = k.RemoveAll(t.Context()) }() // while the plugin answers
	const touched = 16 * MiB
	asks := guaranteed("asks", claimed, touched)
	createWithClaim(t, k, asks, claimTemplate)
	ordinary := &kubelet.Pod{Name: "ordinary", Containers: []kubelet.Container{{Name: "app", Request: touched, Limit: 4 * touched, Args: touching(touched)}}}
	run(t, k, ordinary)
	if err := k.WaitStarted(t.Context(), asks); err != nil {
		t.Fatal(err)
	}
	holdsClaim(t, k, asks, "1")
	for pod, node := range map[*kubelet.Pod]int{asks: 1, ordinary: 0} {
		said(t, k, pod, "app", fmt.Sprint("done touch=", touched))
		onNodes(t, pod.Name, anonPages(t, k, pod, "app"), []int{node}, touched)
	}
	if mems := file(dirOf(t, k, ordinary, "app"), "cpuset.mems"); mems != "0" {
		t.Errorf("ordinary: cpuset.mems is %q, want 0", mems)
	}
	p.clean(t)
	if err := k.RemoveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingClaimed(t, k, p)
}

// published are the devices in all ResourceSlices.
func published(t *testing.T, k *kubelet.Kubelet) (devices []resourcev1.Device) {
	t.Helper()
	slices, err := k.Client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, slice := range slices.Items {
		devices = append(devices, slice.Spec.Devices...)
	}
	return devices
}

// followsMemory resizes a pool of huge pages of node 1 and takes a block of its memory offline: what is published and the node map
// follow without a restart, and come back.
func (p *plugin) followsMemory(k *kubelet.Kubelet) {
	t := p.t
	t.Helper()
	capacity := func(want uint64) {
		t.Helper()
		eventually(t, "the huge pages of node 1 are published", func() string {
			devices := published(t, k)
			for _, device := range devices {
				if pages := device.Capacity["hugepages2Mi"].Value; device.Name == "numa-1" && pages.Value() == int64(want) {
					return ""
				}
			}
			return fmt.Sprintf("%v, want %d bytes", devices, want)
		})
	}
	const pool = "/sys/devices/system/node/node1/hugepages/hugepages-2048kB"
	pages := number(t, pool, "nr_hugepages")
	capacity(pages * MiB) // half of them
	back := sync.OnceFunc(written(t, fmt.Sprint(pages+4), pool, "nr_hugepages"))
	t.Cleanup(back)
	capacity((pages + 4) * MiB)
	back()
	capacity(pages * MiB)

	was := p.nodeMemory("total")[1]
	block, size := offline(t)
	online := sync.OnceFunc(func() { write(t, "online", block, "state") })
	t.Cleanup(online)
	p.hasMemory("total", 1, was-size)
	online()
	p.hasMemory("total", 1, was)
	p.clean(t)
}

// hasMemory waits until the node map has so many bytes of memory on a node.
func (p *plugin) hasMemory(field string, node int, want uint64) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("the node map follows node %d", node), func() string {
		if got := p.nodeMemory(field)[node]; got != want {
			return fmt.Sprintf("%s is %d, want %d", field, got, want)
		}
		return ""
	})
}

// offline takes a block of node 1's memory offline, one whose pages the kernel can move, and returns it with its size.
func offline(t *testing.T) (block string, size uint64) {
	t.Helper()
	size, err := strconv.ParseUint(file("/sys/devices/system/memory/block_size_bytes"), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	blocks, _ := filepath.Glob("/sys/devices/system/node/node1/memory[0-9]*")
	for _, block := range slices.Backward(blocks) {
		if err := os.WriteFile(filepath.Join(block, "state"), []byte("offline"), 0o644); err == nil {
			return block, size
		}
	}
	t.Fatalf("none of %d blocks of node 1 can be taken offline", len(blocks))
	return "", 0
}

// offer lets pods ask for a device of a driver by a class of devices and a template of claims, both of this name.
func offer(t *testing.T, k *kubelet.Kubelet, driver, name string, request resourcev1.ExactDeviceRequest) {
	t.Helper()
	request.DeviceClassName = name
	api, named := k.Client.ResourceV1(), metav1.ObjectMeta{Name: name}
	_, err := api.DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{ObjectMeta: named, Spec: resourcev1.DeviceClassSpec{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "` + driver + `"`}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.ResourceClaimTemplates(kubelet.Namespace).Create(t.Context(), &resourcev1.ResourceClaimTemplate{ObjectMeta: named, Spec: resourcev1.ResourceClaimTemplateSpec{
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "device", Exactly: &request}}}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		_ = api.ResourceClaimTemplates(kubelet.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
		_ = api.DeviceClasses().Delete(ctx, name, metav1.DeleteOptions{})
	})
}

// createWithClaim creates a pod whose containers share a claim of a template, which the scheduler allocates.
func createWithClaim(t *testing.T, k *kubelet.Kubelet, pod *kubelet.Pod, template string) {
	t.Helper()
	if err := k.Expect(pod); err != nil {
		t.Fatal(err)
	}
	object := pod.Object()
	object.UID, object.Status = "", corev1.PodStatus{}
	object.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "claim", ResourceClaimTemplateName: &template}}
	for i := range object.Spec.Containers {
		object.Spec.Containers[i].Resources.Claims = []corev1.ResourceClaim{{Name: "claim"}}
	}
	if _, err := k.Client.CoreV1().Pods(kubelet.Namespace).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// holdsClaim waits until a pod's container has its claim in the kernel, on one of these NUMA nodes.
func holdsClaim(t *testing.T, k *kubelet.Kubelet, pod *kubelet.Pod, nodes ...string) {
	t.Helper()
	dir := dirOf(t, k, pod, "app")
	eventually(t, pod.Name+" is where its claim is", func() string {
		if mems := file(dir, "cpuset.mems"); !slices.Contains(nodes, mems) {
			return fmt.Sprintf("its cpuset.mems is %q, want one of %q", mems, nodes)
		}
		return ""
	})
	holdsValue(t, dir, "memory.min", claimed)
}

// claims are the claims that status shows.
func (p *plugin) claims() (names []string) {
	p.t.Helper()
	out, _ := p.ask("status", "-o", "json")
	var document struct {
		Claims struct {
			Prepared []struct{ Name string }
		}
	}
	if err := json.Unmarshal([]byte(out), &document); err != nil {
		p.t.Fatalf("status: %v: %s", err, out)
	}
	for _, claim := range document.Claims.Prepared {
		names = append(names, claim.Name)
	}
	slices.Sort(names)
	return names
}

// specifications are the CDI specifications of claims.
func specifications() []string {
	paths, _ := filepath.Glob("/var/run/cdi/*noderesource*")
	return paths
}

// claimsOf are the claims in the API server.
func claimsOf(t *testing.T, k *kubelet.Kubelet) []resourcev1.ResourceClaim {
	t.Helper()
	claims, err := k.Client.ResourceV1().ResourceClaims(kubelet.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return claims.Items
}

// nothingClaimed waits until no claim is left: in the API server, in the daemon and in the runtime's folder.
func nothingClaimed(t *testing.T, k *kubelet.Kubelet, p *plugin) {
	t.Helper()
	eventually(t, "no claim is left", func() string {
		left := append(specifications(), p.claims()...)
		for _, claim := range claimsOf(t, k) {
			left = append(left, claim.Name)
		}
		if len(left) > 0 {
			return strings.Join(left, ", ")
		}
		return ""
	})
	p.waitFree()
}

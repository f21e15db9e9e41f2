package cases

import (
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

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// claimed is what each claim of TestResourceClaims asks for; a NUMA node has room for one.
const claimed = 200 * MiB

// claimObjects are what an administrator and a user create.
const claimObjects = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: numa-memory}
spec: {selectors: [{cel: {expression: 'device.driver == "memory.noderesource.dev"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: memory}
spec: {spec: {devices: {requests: [{name: memory, exactly: {deviceClassName: numa-memory, capacity: {requests: {memory: 200Mi}}}}]}}}
`

// TestResourceClaims has the scheduler place pods by their claims: two have a NUMA node each, the third is Pending until one of
// them goes, and nothing is rejected. Then the plugin, the kubelet and the runtime are killed while pods with claims start.
func TestResourceClaims(t *testing.T) {
	k := kubeletOf(t)
	c := cluster{t}
	p := startPlugin(t, "--kubeconfig="+setup.AdminConf, "--node-name="+setup.NodeName,
		"guaranteedHeadroom: 0", "dra: {enabled: true, shares: [{limits: {memory: 320Mi}}]}")
	if out, err := c.run(claimObjects, "kubectl", "apply", "-f", "-"); err != nil {
		t.Fatalf("kubectl apply: %v: %s", err, out)
	}
	defer func() {
		_ = k.RemoveAll(t.Context())
		_, _ = c.run(claimObjects, "kubectl", "delete", "--ignore-not-found", "-f", "-")
	}()
	eventually(t, "the NUMA nodes are devices", func() string {
		out, err := c.run("", "kubectl", "get", "resourceslices", "-o", "jsonpath={.items[*].spec.devices[*].name}")
		if err != nil || len(strings.Fields(out)) != 2 {
			return fmt.Sprint(out, err)
		}
		return ""
	})
	p.followsMemory()

	first, second, third := guaranteed("first", claimed, 16*MiB), guaranteed("second", claimed, 16*MiB), guaranteed("third", claimed, 16*MiB)
	c.claim(k, first)
	holdsClaim(t, k, first, "0")
	c.claim(k, second)
	holdsClaim(t, k, second, "1")
	c.apply(k, third)
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
	nothingClaimed(t, p)

	storm := claimStorm{cluster: c, k: k, p: p, random: rand.New(rand.NewPCG(stormSeed, 1))}
	for round := range storm.rounds() {
		storm.round(round)
	}
	t.Logf("seed %d: %d claims, %d kills of %d processes between the preparation of a claim and the start of its container",
		stormSeed, storm.claims, storm.between, storm.kills)
	nothingClaimed(t, p)
}

// followsMemory resizes a pool of huge pages of node 1 and takes a block of its memory offline: what is published and the node map
// follow without a restart, and come back.
func (p *plugin) followsMemory() {
	t, c := p.t, cluster{p.t}
	t.Helper()
	capacity := func(want uint64) {
		t.Helper()
		eventually(t, "the huge pages of node 1 are published", func() string {
			out, err := c.run("", "kubectl", "get", "resourceslices", "-o",
				`jsonpath={.items[*].spec.devices[?(@.name=="numa-1")].capacity.hugepages2Mi.value}`)
			if err != nil || out != fmt.Sprint(want/MiB, "Mi") {
				return fmt.Sprintf("%s, want %d Mi: %v", out, want/MiB, err)
			}
			return ""
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

// withClaim is a pod whose containers share a claim of the template.
func withClaim(pod *kubelet.Pod) *corev1.Pod {
	object := pod.Object()
	object.UID, object.Status = "", corev1.PodStatus{}
	object.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "memory", ResourceClaimTemplateName: new("memory")}}
	for i := range object.Spec.Containers {
		object.Spec.Containers[i].Resources.Claims = []corev1.ResourceClaim{{Name: "memory"}}
	}
	return object
}

// apply creates a pod with a claim as a user does.
func (c cluster) apply(k *kubelet.Kubelet, pod *kubelet.Pod) {
	c.t.Helper()
	manifest, err := json.Marshal(withClaim(pod))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := k.Expect(pod); err != nil {
		c.t.Fatal(err)
	}
	if out, err := c.run(string(manifest), "kubectl", "apply", "-f", "-"); err != nil {
		c.t.Fatalf("kubectl apply: %v: %s", err, out)
	}
}

// claim runs a pod with a claim.
func (c cluster) claim(k *kubelet.Kubelet, pod *kubelet.Pod) {
	c.t.Helper()
	c.apply(k, pod)
	if err := k.WaitStarted(c.t.Context(), pod); err != nil {
		c.t.Fatal(err)
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

// nothingClaimed waits until no claim is left: in the API server, in the daemon and in the runtime's folder.
func nothingClaimed(t *testing.T, p *plugin) {
	t.Helper()
	eventually(t, "no claim is left", func() string {
		objects, err := cluster{t}.run("", "kubectl", "get", "resourceclaims", "-o", "name")
		if err != nil {
			return err.Error()
		}
		left := append(strings.Fields(objects), specifications()...)
		if left = append(left, p.claims()...); len(left) > 0 {
			return strings.Join(left, ", ")
		}
		return ""
	})
	p.waitFree()
}

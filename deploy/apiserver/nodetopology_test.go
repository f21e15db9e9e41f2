package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha2"
	client "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/generated/clientset/versioned/typed/topology/v1alpha2"
	"github.com/k8stopologyawareschedwg/podfingerprint"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cgroups"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// node is a node for one test: the plugin as a process, beside NRI's own runtime side and a real API server.
type node struct {
	t       *testing.T
	dir     string
	tree    *cgroups.Tree
	runtime *cri.Runtime
	process *exec.Cmd
	log     *output
	objects client.NodeResourceTopologyInterface
}

const machine = `nodes:
- {id: 0, memory: 16Gi, cpus: 0-3, distances: [10, 21]}
- {id: 1, memory: 16Gi, cpus: 4-7, distances: [21, 10], hugepages: {2Mi: 512}}
`

// exporting is the configuration of a node that needs no pods of the API server.
const exporting = `
requestSources: [oomscore]
nodeResourceTopology: true
`

// newNode starts the node worker, whose plugin is a client as config says.
func newNode(t *testing.T, config *rest.Config, machine, settings string) *node {
	t.Helper()
	n := newNodeNamed(t, "worker", config, machine, settings)
	n.objects = objectsOf(t, config)
	return n
}

func newNodeNamed(t *testing.T, name string, config *rest.Config, machine, settings string) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") // t.TempDir's paths are too long for sockets
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{t: t, dir: dir}
	must(t, os.Mkdir(n.path("cgroups"), 0o755))
	must(t, os.Mkdir(n.path("registry"), 0o755))
	n.tree, err = cgroups.NewTree(n.path("cgroups"))
	must(t, err)
	n.runtime = cri.New(cri.Options{Socket: n.path("nri.sock"), Cgroups: n.tree})
	must(t, n.runtime.Start())
	t.Cleanup(n.runtime.Stop)
	writeKubeconfig(t, n.path("kubeconfig"), config)
	must(t, os.WriteFile(n.path("machine.yaml"), []byte(machine), 0o644))
	must(t, os.WriteFile(n.path("config.yaml"), fmt.Appendf(nil, `
topologyManagerPolicy: restricted
%s
`, settings), 0o644))
	n.process = exec.Command(plugin(n.t), "run", "--kubeconfig", n.path("kubeconfig"), "--node-name", name, "--timings", "export=1s", "--nri-socket", n.path("nri.sock"), "--state-dir", n.path("state"),
		"--cgroups", n.path("cgroups"), "--plain-cgroups", "--machine", n.path("machine.yaml"),
		"--config", n.path("config.yaml"), "--metrics-address", "", "--plugin-registry", n.path("registry"), "--cdi-dir", n.path("cdi"),
		"--kubelet-podresources-socket", n.path("devices.sock"))
	n.log = start(t, n.process)
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	must(t, n.runtime.WaitSynchronized(ctx, 1))
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// exported is the object in the API server, nil where there is none.
func (n *node) exported() *v1alpha2.NodeResourceTopology {
	n.t.Helper()
	object, err := n.objects.Get(context.Background(), "worker", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	must(n.t, err)
	return object
}

// reported is what "status" says of the NUMA nodes, in the object's words.
func (n *node) reported() (zones v1alpha2.ZoneList) {
	n.t.Helper()
	out, err := exec.Command(plugin(n.t), "status", "--state-dir", n.path("state"), "-o", "json").Output()
	must(n.t, err)
	var document status.Document
	must(n.t, json.Unmarshal(out, &document))
	for _, node := range document.Nodes {
		zone := v1alpha2.Zone{Name: fmt.Sprintf("node-%d", node.ID), Type: "Node"}
		for _, memory := range node.Memory {
			zone.Resources = append(zone.Resources, v1alpha2.ResourceInfo{
				Name: string(memory.Type), Capacity: bytesOf(memory.Total), Allocatable: bytesOf(memory.Allocatable), Available: bytesOf(memory.Free)})
		}
		zones = append(zones, zone)
	}
	return zones
}

func bytesOf(n uint64) resource.Quantity { return *resource.NewQuantity(int64(n), resource.BinarySI) }

// isTrue waits until the object says what "status" says.
func (n *node) isTrue() *v1alpha2.NodeResourceTopology {
	n.t.Helper()
	var object *v1alpha2.NodeResourceTopology
	var difference string
	for deadline := time.Now().Add(bound); ; time.Sleep(50 * time.Millisecond) {
		if object = n.exported(); object != nil {
			zones := object.DeepCopy().Zones
			for i := range zones {
				zones[i].Costs, zones[i].Attributes = nil, nil // status has none, and no CPUs
				zones[i].Resources = slices.DeleteFunc(zones[i].Resources, func(r v1alpha2.ResourceInfo) bool { return r.Name == "cpu" })
			}
			if difference = cmp.Diff(n.reported(), zones); difference == "" {
				return object
			}
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("status (-) and the object (+) do not agree within %s:\n%s", bound, difference)
		}
	}
}

// place starts a Guaranteed pod as the kubelet does; the error is the plugin's.
func (n *node) place(name, uid string, limit int64) error {
	n.t.Helper()
	cgroup := "kubepods/pod" + uid
	must(n.t, n.tree.Make(cgroup))
	resources := &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(limit)}, Cpu: &api.LinuxCPU{Shares: api.UInt64(uint64(1024))}}
	must(n.t, n.runtime.RunPodSandbox(n.t.Context(), &api.PodSandbox{Id: "sandbox-" + uid, Uid: uid, Namespace: "default", Name: name,
		Linux: &api.LinuxPodSandbox{CgroupParent: "/" + cgroup, PodResources: resources}}))
	return n.create(uid, limit)
}

func (n *node) create(uid string, limit int64) error {
	resources := &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(limit)}, Cpu: &api.LinuxCPU{Shares: api.UInt64(uint64(1024))}}
	_, err := n.runtime.CreateContainer(n.t.Context(), &api.Container{Id: "container-" + uid, PodSandboxId: "sandbox-" + uid, Name: "app",
		Linux: &api.LinuxContainer{Resources: resources, OomScoreAdj: &api.OptionalInt{Value: -997},
			CgroupsPath: "/kubepods/pod" + uid + "/container-" + uid}})
	return err
}

// available are the bytes of memory that the object offers, per NUMA node.
func available(object *v1alpha2.NodeResourceTopology) (all []int64) {
	for _, zone := range object.Zones {
		for _, r := range zone.Resources {
			if r.Name == "memory" {
				all = append(all, r.Available.Value())
			}
		}
	}
	return all
}

func TestTheSchedulerSeesWhatStatusSays(t *testing.T) {
	t.Parallel()
	n := newNode(t, administrator(t), machine, exporting)
	object := n.isTrue()
	pods := podfingerprint.NewFingerprint(0)
	want := v1alpha2.AttributeList{{Name: "topologyManagerPolicy", Value: "restricted"}, {Name: "topologyManagerScope", Value: "container"},
		{Name: podfingerprint.AttributeMethod, Value: podfingerprint.MethodAll}, {Name: podfingerprint.Attribute, Value: pods.Sign()}}
	if difference := cmp.Diff(want, object.Attributes); difference != "" {
		t.Error(difference)
	}
	for _, zone := range object.Zones {
		if cpu := zone.Resources[0]; cpu.Name != "cpu" || cpu.Capacity.Value() != 4 || cpu.Available.Value() != 4 {
			t.Errorf("the first resource of %s is %s with %s, want cpu with 4", zone.Name, cpu.Name, cpu.Available.String())
		}
	}
	for i, want := range []v1alpha2.CostList{
		{{Name: "node-0", Value: 10}, {Name: "node-1", Value: 21}},
		{{Name: "node-0", Value: 21}, {Name: "node-1", Value: 10}},
	} {
		if difference := cmp.Diff(want, object.Zones[i].Costs); difference != "" {
			t.Error(difference)
		}
	}
	before := available(object)
	must(t, n.place("database", "u1", 3<<30))
	eventually(t, "the object offers 3Gi less", func() bool {
		return slices.Equal(available(n.exported()), []int64{before[0] - 3<<30, before[1]})
	})
	group := v1alpha2.AttributeList{{Name: "memoryGroup", Value: "node-0"}, {Name: "memoryGroupBars", Value: "multi-numa-node"}}
	if difference := cmp.Diff([]v1alpha2.AttributeList{group, nil}, []v1alpha2.AttributeList{n.exported().Zones[0].Attributes, n.exported().Zones[1].Attributes}); difference != "" {
		t.Error(difference)
	}
	must(t, pods.Add("default", "database"))
	if got := n.isTrue().Attributes[3].Value; got != pods.Sign() {
		t.Errorf("fingerprint %s, want that of default/database, %s", got, pods.Sign())
	}
}

// What others do to the object does not last.
func TestTheObjectIsMended(t *testing.T) {
	t.Parallel()
	n := newNode(t, administrator(t), machine, exporting)
	n.isTrue()

	must(t, n.objects.Delete(t.Context(), "worker", metav1.DeleteOptions{}))
	eventually(t, "a deleted object comes back", func() bool { return n.exported() != nil })
	object := n.isTrue()

	object.Zones, object.Labels["team"] = object.Zones[:1], "memory"
	_, err := n.objects.Update(t.Context(), object, metav1.UpdateOptions{})
	must(t, err)
	n.isTrue()
	for _, line := range []string{"the NodeResourceTopology was deleted", "the NodeResourceTopology of this node was changed externally"} {
		if !strings.Contains(n.log.String(), line) {
			t.Errorf("the log does not say: %s", line)
		}
	}

	// A conflict: the object is not any more what the plugin knows when it has something to write.
	object = n.exported()
	object.Zones = object.Zones[:1]
	_, err = n.objects.Update(t.Context(), object, metav1.UpdateOptions{})
	must(t, err)
	must(t, n.place("database", "u1", 1<<30))
	if object = n.isTrue(); object.Labels["team"] != "memory" {
		t.Errorf("labels %v: somebody's own label was taken away", object.Labels)
	}
	if strings.Contains(n.log.String(), "is not up to date") {
		t.Error("a conflict was taken for a failure")
	}
}

func TestTheObjectGoesWithTheRollback(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]bool{"onTermination: Keep": true, "onTermination: Rollback": false} {
		t.Run(settings, func(t *testing.T) {
			n := newNode(t, administrator(t), machine, exporting+settings)
			n.isTrue()
			must(t, n.process.Process.Signal(syscall.SIGTERM))
			must(t, n.process.Wait())
			if is := n.exported() != nil; is != want {
				t.Errorf("the object is there: %t, want %t", is, want)
			}
		})
	}
}

// TestSizeOnTheWire prints what docs/fleet.md says of a large node's object.
func TestSizeOnTheWire(t *testing.T) {
	t.Parallel()
	var large strings.Builder
	large.WriteString("nodes:\n")
	for i := range 8 {
		fmt.Fprintf(&large, "- {id: %d, memory: %dKi, cpus: %d, distances: [%s], hugepages: {2Mi: 512, 1Gi: 4}}\n",
			i, 132000000+i*4096, i, strings.TrimSuffix(strings.Repeat("20, ", i)+"10, "+strings.Repeat("20, ", 7-i), ", "))
	}
	n := newNode(t, administrator(t), large.String(), exporting)
	object := n.isTrue()
	if len(object.Zones) != 8 || len(object.Zones[0].Resources) != 4 {
		t.Fatalf("%d zones with %d resources", len(object.Zones), len(object.Zones[0].Resources))
	}
	text, err := json.Marshal(object)
	must(t, err)
	t.Logf("a NodeResourceTopology of 8 zones with 4 resources each: %d bytes", len(text))
}

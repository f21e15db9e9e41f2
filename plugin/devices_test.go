package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// devicesAPI is the kubelet's PodResources API of a test's host.
type devicesAPI struct {
	podresources.UnimplementedPodResourcesListerServer

	mu    sync.Mutex
	nodes map[string]int64 // of the one GPU of the pods with one
	claim map[string]*podresources.DynamicResource
	asked map[string]int // by pod
	hold  chan struct{}  // answers wait for it; nil answers at once
}

func (h *host) devicesAPI() *devicesAPI {
	h.t.Helper()
	a := &devicesAPI{nodes: map[string]int64{}, claim: map[string]*podresources.DynamicResource{}, asked: map[string]int{}}
	listener, err := net.Listen("unix", h.path("devices.sock"))
	must(h.t, err)
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, a)
	go server.Serve(listener)
	h.t.Cleanup(server.Stop)
	return a
}

func (a *devicesAPI) Get(ctx context.Context, request *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	a.mu.Lock()
	a.asked[request.GetPodName()]++
	node, has := a.nodes[request.GetPodName()]
	claim := a.claim[request.GetPodName()]
	hold := a.hold
	a.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if claim != nil {
		return &podresources.GetPodResourcesResponse{PodResources: &podresources.PodResources{
			Name: request.GetPodName(), Namespace: request.GetPodNamespace(),
			Containers: []*podresources.ContainerResources{{Name: "app", DynamicResources: []*podresources.DynamicResource{claim}}},
		}}, nil
	}
	if !has {
		return nil, grpcstatus.Error(codes.NotFound, "no such pod")
	}
	return &podresources.GetPodResourcesResponse{PodResources: &podresources.PodResources{
		Name: request.GetPodName(), Namespace: request.GetPodNamespace(),
		Containers: []*podresources.ContainerResources{{Name: "app", Devices: []*podresources.ContainerDevices{{
			ResourceName: "vendor.com/gpu", DeviceIds: []string{"gpu-" + request.GetPodName()},
			Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: node}}},
		}}}},
	}}, nil
}

// questions is how often the kubelet was asked for a pod.
func (a *devicesAPI) questions(pod string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[pod]
}

// withGPU is a Guaranteed pod whose container has a GPU, which the kubelet has on a node.
func (a *devicesAPI) withGPU(name string, limit int64, node int64) *testPod {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nodes[name] = node
	return gpuPod(name, limit)
}

func gpuPod(name string, limit int64) *testPod {
	p := guaranteed(name, limit)
	p.devices = []*api.LinuxDevice{{Path: "/dev/dri/card0", Type: "c", Major: 226}}
	return p
}

func TestMemoryOnTheNodeOfTheDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	kubelet := h.devicesAPI()
	h.start("--record", h.path("recordings"))
	near, plain, apart := kubelet.withGPU("near", gi, 1), guaranteed("plain", gi), kubelet.withGPU("apart", gi, 1)
	apart.cpus = "0-3"
	h.deploy(near, plain, apart)
	for pod, want := range map[*testPod]string{near: "1", plain: "0", apart: "0"} {
		if got := h.mems(pod); got != want {
			t.Errorf("%s: cpuset.mems is %q, want %s", pod.name, got, want)
		}
	}
	if n := kubelet.questions("near"); n != 1 {
		t.Errorf("the kubelet was asked %d times for a container", n)
	}
	if n := kubelet.questions("plain"); n != 0 {
		t.Errorf("the kubelet was asked %d times for a container without devices", n)
	}
	wantAll(t, h.ask(0, "explain", "default/near"), "device vendor.com/gpu gpu-near on node 1 (kubelet)")
	wantAll(t, h.ask(0, "explain", "default/apart"),
		"its exclusive CPUs are on node 0, its device vendor.com/gpu gpu-apart on node 1: onConflict CPUs, so that the CPUs count")
	var document status.Document
	must(t, json.Unmarshal([]byte(h.ask(0, "status", "-o", "json")), &document))
	for _, pod := range document.Pods {
		var got []string
		for _, d := range pod.Containers[0].Devices {
			got = append(got, fmt.Sprintf("%s (%s)", d, d.Source))
		}
		want := []string{"vendor.com/gpu gpu-" + pod.Name + " on node 1 (kubelet)"}
		if pod.Name == "plain" {
			want = nil
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has the devices %s, want %s", pod.Name, got, want)
		}
	}

	must(t, h.stopContainer(near))
	near.tries++
	must(t, h.create(near))
	if got := h.mems(near); got != "1" {
		t.Errorf("created again, cpuset.mems is %q", got)
	}

	// A device whose node is full: required or not.
	must(t, h.runPod(guaranteed("large", 14*gi)))
	large := kubelet.withGPU("large", 14*gi, 1)
	if err := h.create(large); err != nil && !strings.Contains(err.Error(), "its device vendor.com/gpu gpu-large on node 1: ") {
		t.Error(err)
	}
}

// TestCPUsAndDevicesOnANodeWithoutMemory: node 2 has none, and node 1 is nearer to it than node 0.
func TestCPUsAndDevicesOnANodeWithoutMemory(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"best-effort", "restricted", "single-numa-node"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, cri.Options{}, "topologyManagerPolicy: "+policy+"\n")
			h.write("machine.yaml", "nodes:\n- {id: 0, memory: 64Gi, cpus: 0-3, distances: [10, 32, 32]}\n"+
				"- {id: 1, memory: 64Gi, cpus: 4-7, distances: [32, 10, 12]}\n- {id: 2, memory: 0, cpus: 8-11, distances: [32, 12, 10]}\n")
			kubelet := h.devicesAPI()
			h.start()
			device, cpus := kubelet.withGPU("device", gi, 2), guaranteed("cpus", gi)
			device.annotations = map[string]string{"numa.memory-manager.noderesource.dev": "required"}
			cpus.cpus = "8-11"
			h.deploy(device, cpus)
			for _, p := range []*testPod{device, cpus} {
				if mems := h.mems(p); mems != "1" {
					t.Errorf("%s: cpuset.mems %q, want 1", p.name, mems)
				}
				wantAll(t, h.ask(0, "explain", "default/"+p.name), "node 2 has no memory: nearest is node 1")
			}
			if policy != "best-effort" {
				return
			}
			large := guaranteed("large", 63*gi)
			large.cpus = "8-11"
			h.deploy(large)
			if mems := h.mems(large); mems != "0" {
				t.Errorf("large: cpuset.mems %q, want 0: node 1 has no room", mems)
			}
			wantAll(t, h.ask(1, "verify", "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml")),
				"node 2 has no memory: nearest is node 1, and its memory is on node 0", "[memory-farther]")
		})
	}
}

// TestNetworkDevices: what the SR-IOV network device plugin gives a container is in its environment only. The kubelet is asked and
// believed, not the environment.
func TestNetworkDevices(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	kubelet := h.devicesAPI()
	h.start()
	network := func(p *testPod) *testPod {
		p.devices, p.env = nil, []string{"PATH=/bin", "PCIDEVICE_VENDOR_COM_NIC=0000:81:00.1"}
		return p
	}
	near, liar, small := network(kubelet.withGPU("near", gi, 1)), network(guaranteed("liar", gi)), network(kubelet.withGPU("small", gi, 1))
	small.becomeBurstable()
	h.deploy(near, liar, small)
	for pod, want := range map[*testPod]string{near: "1", liar: "0", small: ""} {
		if got := h.mems(pod); got != want {
			t.Errorf("%s: cpuset.mems is %q, want %s", pod.name, got, want)
		}
		if n := kubelet.questions(pod.name); n != 1 {
			t.Errorf("the kubelet was asked %d times for %s", n, pod.name)
		}
	}
	wantAll(t, h.ask(0, "explain", "default/near"), "device vendor.com/gpu gpu-near on node 1 (kubelet)")
	wantAll(t, h.ask(0, "explain", "default/small"), "started with the memory policy MPOL_PREFERRED_MANY 1 (device vendor.com/gpu gpu-small on node 1)")
	if text := h.ask(0, "explain", "default/liar"); strings.Contains(text, "device") {
		t.Errorf("a device that the kubelet does not know:\n%s", text)
	}
}

// TestNetworkDevicesOfClaims: a driver moves a network device into the pod, and nothing into the container. The kubelet knows the
// claim, at most with the names of the devices; where they are is in the driver's ResourceSlice.
func TestNetworkDevicesOfClaims(t *testing.T) {
	t.Parallel()
	server := newClaimsServer(t)
	h := newHost(t, cri.Options{}, "")
	h.write("config.yaml", testConfig+"resourceSlices: true\n")
	h.ofNode("worker")
	h.write("kubeconfig", kubeconfig(server.server.URL))
	server.publish("worker", "eth1", 1)
	server.publish("other", "eth0", 1)
	server.claims["default/moved"] = &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{Driver: "dra.net", Pool: "worker", Device: "eth1"}}}}}}
	kubelet := h.devicesAPI()
	claim := func(name string, devices ...string) *podresources.DynamicResource {
		claim := &podresources.DynamicResource{ClaimName: name, ClaimNamespace: "default"}
		for _, device := range devices {
			claim.ClaimResources = append(claim.ClaimResources, &podresources.ClaimResource{DriverName: "dra.net", PoolName: "worker", DeviceName: device})
		}
		return claim
	}
	kubelet.claim["moved"], kubelet.claim["named"], kubelet.claim["elsewhere"] = claim("moved"), claim("any", "eth1"), claim("any", "eth0")
	h.start()
	eventually(t, "the slices are known", func() bool {
		var document status.Document
		must(t, json.Unmarshal([]byte(h.ask(0, "status", "-o", "json")), &document))
		return reflect.DeepEqual(document.DeviceSources, []status.Source{{Source: "resourceslice", Connected: true}})
	})
	moved, named, elsewhere, plain := guaranteed("moved", gi), guaranteed("named", gi), guaranteed("elsewhere", gi), guaranteed("plain", gi)
	small := guaranteed("small", gi)
	small.becomeBurstable()
	kubelet.claim["small"] = claim("moved")
	h.deploy(moved, named, elsewhere, plain, small)
	for pod, want := range map[*testPod]string{moved: "1", named: "1", elsewhere: "0", plain: "0", small: ""} {
		if got := h.mems(pod); got != want {
			t.Errorf("%s: cpuset.mems is %q, want %s", pod.name, got, want)
		}
		if n := kubelet.questions(pod.name); n != 1 && pod != plain {
			t.Errorf("the kubelet was asked %d times for %s", n, pod.name)
		}
	}
	wantAll(t, h.ask(0, "explain", "default/moved"), "device dra.net eth1 on node 1 (resourceslice)")
	wantAll(t, h.ask(0, "explain", "default/small"), "started with the memory policy MPOL_PREFERRED_MANY 1 (device dra.net eth1 on node 1)")
	if text := h.ask(0, "explain", "default/elsewhere"); strings.Contains(text, "device") {
		t.Errorf("a device of another node's slice:\n%s", text)
	}
}

// TestSlicesThatCannotBeRead: nothing waits for the API server, and who looks learns why the source knows nothing.
func TestSlicesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, "")
	h.write("config.yaml", testConfig+"resourceSlices: true\n")
	h.ofNode("worker")
	h.write("kubeconfig", kubeconfig("http://127.0.0.1:1"))
	kubelet := h.devicesAPI()
	kubelet.claim["moved"] = &podresources.DynamicResource{ClaimName: "moved", ClaimNamespace: "default"}
	plugin := h.start()
	h.shows("device source resourceslice cannot be read (", "status")
	moved := guaranteed("moved", gi)
	h.deploy(moved)
	if got, n := h.mems(moved), kubelet.questions("moved"); got != "0" || n != 0 {
		t.Errorf("cpuset.mems is %q, and the kubelet was asked %d times", got, n)
	}
	said(plugin, "this node's ResourceSlices cannot be followed: NUMA nodes of devices come from the kubelet and sysfs")
}

// publish keeps a network driver's slice of a node, with one device.
func (s *claimsServer) publish(node, device string, numaNode int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slices[node+"-dra.net"] = &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-dra.net"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "dra.net", NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: device, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"dra.net/numaNode": {IntValue: &numaNode}}}},
	}}
}

func TestDevicesReplay(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	kubelet := h.devicesAPI()
	plugin := h.start("--record", h.path("recordings"))
	h.deploy(kubelet.withGPU("near", gi, 1))
	plugin.stop()
	files, err := filepath.Glob(h.path("recordings/*"))
	must(t, err)
	if code, out, errOut := run(t, "", append([]string{"replay"}, files...)...); code != 0 || !strings.Contains(out, "near") {
		t.Errorf("replay ended with %d\n%s%s", code, out, errOut)
	}
}

func TestRequiredNodeOfTheDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, strings.Replace(testConfig, "restricted", "best-effort", 1))
	kubelet := h.devicesAPI()
	h.start()
	full := kubelet.withGPU("full", 15*gi, 1)
	h.deploy(full)
	for _, test := range []struct {
		name, numa, cpus, err string
		node                  int64
	}{
		{"there", "required", "", "", 0},
		{"no-room", "required", "", "its device vendor.com/gpu gpu-no-room on node 1: 512Mi of 15.5Gi free, 1Gi needed", 1},
		{"apart", "required", "0-3", "its exclusive CPUs are on node 0, its device vendor.com/gpu gpu-apart on node 1: not the same NUMA nodes", 1},
		{"elsewhere", "preferred", "", "", 1},
	} {
		pod := kubelet.withGPU(test.name, gi, test.node)
		pod.cpus = test.cpus
		pod.annotations = map[string]string{"numa.memory-manager.nri.io": test.numa}
		must(t, h.runPod(pod))
		err := h.create(pod)
		switch {
		case test.err == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)):
			t.Errorf("%s: got %v, want %s", test.name, err, test.err)
		case err == nil && h.mems(pod) != "0": // where the device is, or there is room
			t.Errorf("%s: cpuset.mems is %q", test.name, h.mems(pod))
		}
	}
	wantAll(t, h.ask(0, "explain", "default/elsewhere"), "its device vendor.com/gpu gpu-elsewhere on node 1: its memory is not there")
}

func TestOnConflictOfDevices(t *testing.T) {
	t.Parallel()
	for follows, want := range map[string]string{"Devices": "1", "CPUs": "0", "Kubelet": ""} {
		t.Run(follows, func(t *testing.T) {
			h := newHost(t, cri.Options{}, testConfig+"onConflict: "+follows+"\n")
			kubelet := h.devicesAPI()
			h.start()
			apart := kubelet.withGPU("apart", gi, 1)
			apart.cpus = "0-3"
			must(t, h.runPod(apart))
			const rejected = "its exclusive CPUs are on node 0, its device vendor.com/gpu gpu-apart on node 1: not the same NUMA nodes"
			switch err := h.create(apart); {
			case want == "" && (err == nil || !strings.Contains(err.Error(), rejected)):
				t.Errorf("got %v, want %s", err, rejected)
			case want != "" && err != nil:
				t.Error(err)
			case want != "" && h.mems(apart) != want:
				t.Errorf("cpuset.mems is %q, want %s", h.mems(apart), want)
			}
		})
	}
}

// TestMemoryPolicyOfADevice: what NRI's runtime side puts into the OCI spec of a container that is not placed.
func TestMemoryPolicyOfADevice(t *testing.T) {
	t.Parallel()
	annotated := func(key, value string) map[string]string {
		return map[string]string{key + ".memory-manager.noderesource.dev": value}
	}
	const started = "started with the memory policy "
	for name, test := range map[string]struct {
		config      string
		qos         string
		annotations map[string]string
		options     cri.Options
		mems        string // that the pod may use
		want, says  string
	}{
		"Burstable":                      {"", "burstable", nil, cri.Options{}, "0-1", "MPOL_PREFERRED_MANY 1", started + "MPOL_PREFERRED_MANY 1 (device vendor.com/gpu gpu-train on node 1)"},
		"BestEffort":                     {"", "besteffort", nil, cri.Options{}, "0-1", "MPOL_PREFERRED_MANY 1", started + "MPOL_PREFERRED_MANY 1 (device vendor.com/gpu gpu-train on node 1)"},
		"it wins over the configuration": {"unpinnedMemoryPolicy: Interleave", "burstable", nil, cri.Options{}, "0-1", "MPOL_PREFERRED_MANY 1", "(device vendor.com/gpu"},
		"its own policy wins":            {"", "burstable", annotated("memory-policy", "interleave"), cri.Options{}, "0-1", "MPOL_INTERLEAVE 0-1", "(annotation memory-policy)"},
		"no policy of its own":           {"", "burstable", annotated("memory-policy", "none"), cri.Options{}, "0-1", "", ""},
		"numa none":                      {"", "burstable", annotated("numa", "none"), cri.Options{}, "0-1", "", ""},
		"numa preferred":                 {"", "burstable", annotated("numa", "preferred"), cri.Options{}, "0-1", "MPOL_PREFERRED_MANY 1", "(device vendor.com/gpu"},
		"onConflict Devices":             {"onConflict: Devices", "burstable", nil, cri.Options{}, "0-1", "MPOL_PREFERRED_MANY 1", "(device vendor.com/gpu"},
		"onConflict Kubelet":             {"onConflict: Kubelet", "burstable", nil, cri.Options{}, "0-1", "", ""},
		"onConflict Kubelet, numa preferred": {"onConflict: Kubelet", "burstable", annotated("numa", "preferred"), cri.Options{}, "0-1", "MPOL_PREFERRED_MANY 1",
			"(device vendor.com/gpu"},
		"a node that the pod may not use": {"", "burstable", nil, cri.Options{}, "0", "", "without a memory policy: device: the pod may not use the memory of node 1"},
		"the configuration's instead": {"unpinnedMemoryPolicy: Interleave", "burstable", nil, cri.Options{}, "0", "MPOL_INTERLEAVE 0",
			started + "MPOL_INTERLEAVE 0 (unpinnedMemoryPolicy)"},
		"the only node that the pod may use": {"", "burstable", nil, cri.Options{}, "1", "", "device: its devices are near every NUMA node that the pod may use"},
		"a runtime that applies none": {"", "burstable", nil, cri.Options{Name: "containerd", Version: "v2.1.4", NRI: nriplugin.Version{Minor: 8}}, "0-1", "",
			"without a memory policy: device: containerd v2.1.4 applies none"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, test.options, testConfig+test.config+"\n")
			kubelet := h.devicesAPI()
			h.start()
			pod := kubelet.withGPU("train", 2*gi, 1)
			pod.qos, pod.adj, pod.annotations = test.qos, 968, test.annotations
			pod.files = map[string]string{"cpuset.mems.effective": test.mems}
			h.deploy(pod)
			got := ""
			if policy := h.runtime.MemoryPolicy(pod.id()); policy != nil {
				got = string(policy.Mode) + " " + policy.Nodes
			}
			if got != test.want || h.mems(pod) != "" {
				t.Errorf("the memory policy is %q and cpuset.mems %q, want %q and none", got, h.mems(pod), test.want)
			}
			if n := kubelet.questions("train"); n != 1 {
				t.Errorf("the kubelet was asked %d times", n)
			}
			explained := h.ask(0, "explain", "train")
			if strings.Contains(explained, "memory policy") != (test.says != "") || !strings.Contains(explained, test.says) {
				t.Errorf("want %q in\n%s", test.says, explained)
			}
		})
	}
}

// TestADeviceOnAnOvercommittedNode: node 1, which the device is on, is overcommitted by pinned containers.
func TestADeviceOnAnOvercommittedNode(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, "topologyManagerPolicy: restricted\nkubeReserved: {memory: 924Mi}\n")
	h.onKernel(12*gi, 2*gi)
	kubelet := h.devicesAPI()
	h.start()
	database := kubelet.withGPU("database", 4*gi, 1)
	h.deploy(database)
	must(t, h.tree.Write(database.cgroup()+"/"+database.id(), "memory.numa_stat", "anon N0=0 N1=1073741824\n"))
	h.shows("LACKS 1Gi", "status")
	pod := kubelet.withGPU("train", 2*gi, 1)
	pod.becomeBurstable()
	h.deploy(pod)
	if policy := h.runtime.MemoryPolicy(pod.id()); policy != nil {
		t.Errorf("the memory policy is %+v", policy)
	}
	wantAll(t, h.ask(0, "explain", "train"), "without a memory policy: device: node 1 has no memory available beyond its allocations")
}

// A kubelet that holds its answer back, or is not there, does not hold a create back; sysfs then has the node.
func TestKubeletWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]bool{"dead": false, "slow": true} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, cri.Options{}, testConfig)
			h.timings("request=50ms")
			h.machineInSysfs()
			if slow {
				kubelet := h.devicesAPI()
				kubelet.hold = make(chan struct{})
				defer close(kubelet.hold)
			}
			h.start()
			pods := []*testPod{gpuPod("a", gi), gpuPod("b", gi), gpuPod("c", gi)}
			h.deploy(pods...)
			for _, pod := range pods {
				if got := h.mems(pod); got != "1" {
					t.Errorf("%s: cpuset.mems is %q", pod.name, got)
				}
			}
			wantAll(t, h.ask(0, "explain", "default/a"), "device drm /dev/dri/card0 on node 1 (sysfs)")
		})
	}
}

// machineInSysfs has the plugin read its machine from a sysfs, with a GPU on node 1.
func (h *host) machineInSysfs() {
	h.t.Helper()
	put := func(file, text string) {
		path := filepath.Join(h.dir, "machine/sys", file)
		must(h.t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(h.t, os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
	link := func(file, target string) {
		path := filepath.Join(h.dir, "machine/sys", file)
		must(h.t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(h.t, os.Symlink(target, path))
	}
	put("devices/system/node/online", "0-1")
	for node, cpus := range []string{"0-3", "4-7"} {
		folder := fmt.Sprintf("devices/system/node/node%d/", node)
		put(folder+"meminfo", fmt.Sprintf("Node %d MemTotal:       16777216 kB", node))
		put(folder+"cpulist", cpus)
		put(folder+"distance", []string{"10 20", "20 10"}[node])
	}
	put("devices/pci0000:80/0000:81:00.0/numa_node", "1")
	put("devices/pci0000:80/0000:81:00.0/drm/card0/dev", "226:0")
	link("devices/pci0000:80/0000:81:00.0/drm/card0/subsystem", "../../../../../class/drm")
	link("dev/char/226:0", "../../devices/pci0000:80/0000:81:00.0/drm/card0")
	for i, flag := range h.flags {
		if flag == h.path("machine.yaml") {
			h.flags[i] = h.path("machine")
		}
	}
}

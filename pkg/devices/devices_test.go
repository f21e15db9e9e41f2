package devices

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// tree is a sysfs with devices.
type tree struct {
	testing.TB
	root string
}

func newTree(t testing.TB) tree { return tree{t, t.TempDir()} }

func (s tree) write(file, text string) {
	s.Helper()
	path := filepath.Join(s.root, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
		s.Fatal(err)
	}
}

func (s tree) link(name, target string) {
	s.Helper()
	path := filepath.Join(s.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.Fatal(err)
	}
	_ = os.Remove(path)
	if err := os.Symlink(target, path); err != nil {
		s.Fatal(err)
	}
}

// gpu is a DRM device of a PCI function on a node.
func (s tree) gpu(minor int, function, node string) {
	s.write("devices/pci0000:80/"+function+"/numa_node", node)
	card := fmt.Sprintf("devices/pci0000:80/%s/drm/card%d", function, minor)
	s.write(card+"/dev", fmt.Sprintf("226:%d", minor))
	s.link(card+"/subsystem", "../../../../../class/drm")
	s.link(fmt.Sprintf("dev/char/226:%d", minor), "../../"+card)
}

func card(minor int64) Node {
	return Node{Path: fmt.Sprintf("/dev/dri/card%d", minor), Major: 226, Minor: minor}
}

func TestLookup(t *testing.T) {
	s := newTree(t)
	s.gpu(0, "0000:81:00.0", "1")
	s.gpu(1, "0000:82:00.0", "0")
	s.gpu(2, "0000:83:00.0", "-1")
	s.gpu(3, "0000:84:00.0", "what?")
	s.gpu(4, "0000:85:00.0", "64")
	s.write("devices/virtual/misc/fuse/dev", "10:229")
	s.link("dev/char/10:229", "../../devices/virtual/misc/fuse")
	s.write("devices/pci0000:80/0000:86:00.0/numa_node", "1")
	s.write("devices/pci0000:80/0000:86:00.0/nvme/nvme0/nvme0n1/dev", "259:0")
	s.link("dev/block/259:0", "../../devices/pci0000:80/0000:86:00.0/nvme/nvme0/nvme0n1")
	s.write("devices/virtual/vfio/12/dev", "511:0")
	s.link("devices/virtual/vfio/12/subsystem", "../../../../class/vfio")
	s.link("dev/char/511:0", "../../devices/virtual/vfio/12")
	s.link("kernel/iommu_groups/12/devices/0000:81:00.0", "../../../../devices/pci0000:80/0000:81:00.0")
	s.link("dev/char/9:9", "../../devices/gone")

	drm := func(nodes []int, ids ...string) topologymanager.Device {
		return topologymanager.Device{Resource: "drm", IDs: ids, Nodes: nodeset.Of(nodes...), Source: SourceSysfs}
	}
	tests := map[string]struct {
		nodes []Node
		want  []topologymanager.Device
	}{
		"none":                      {},
		"of a PCI function":         {[]Node{card(0)}, []topologymanager.Device{drm([]int{1}, "/dev/dri/card0")}},
		"of two nodes":              {[]Node{card(0), card(1)}, []topologymanager.Device{drm([]int{0, 1}, "/dev/dri/card0", "/dev/dri/card1")}},
		"of node -1":                {[]Node{card(2)}, nil},
		"with an unreadable node":   {[]Node{card(3)}, nil},
		"of a node beyond all":      {[]Node{card(4)}, nil},
		"without sysfs":             {[]Node{{Path: "/dev/nvidia0", Major: 195}}, nil},
		"virtual":                   {[]Node{{Path: "/dev/fuse", Major: 10, Minor: 229}}, nil},
		"a link that leads nowhere": {[]Node{{Path: "/dev/x", Major: 9, Minor: 9}}, nil},
		"a block device":            {[]Node{{Path: "/dev/nvme0n1", Block: true, Major: 259}}, []topologymanager.Device{{Resource: "block 259", IDs: []string{"/dev/nvme0n1"}, Nodes: nodeset.Of(1), Source: SourceSysfs}}},
		"a VFIO group":              {[]Node{{Path: "/dev/vfio/12", Major: 511}}, []topologymanager.Device{{Resource: "vfio", IDs: []string{"/dev/vfio/12"}, Nodes: nodeset.Of(1), Source: SourceSysfs}}},
	}
	f := New(Options{Sysfs: s.root})
	for name, test := range tests {
		if got := f.Lookup(Container{Nodes: test.nodes}); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
	// Hot-plugged: the number is another device's now, then nobody's, and a new device comes.
	s.link("dev/char/226:0", "../../devices/pci0000:80/0000:82:00.0/drm/card1")
	if got := f.Lookup(Container{Nodes: []Node{card(0)}}); len(got) != 1 || got[0].Nodes != nodeset.Of(0) {
		t.Errorf("after a hot plug: %+v", got)
	}
	if err := os.Remove(filepath.Join(s.root, "dev/char/226:0")); err != nil {
		t.Fatal(err)
	}
	if got := f.Lookup(Container{Nodes: []Node{card(0)}}); got != nil {
		t.Errorf("unplugged: %+v", got)
	}
	if got := f.Lookup(Container{Nodes: []Node{card(7)}}); got != nil {
		t.Errorf("not plugged in yet: %+v", got)
	}
	s.gpu(7, "0000:87:00.0", "1")
	if got := f.Lookup(Container{Nodes: []Node{card(7)}}); len(got) != 1 || got[0].Nodes != nodeset.Of(1) {
		t.Errorf("plugged in: %+v", got)
	}
	if got := New(Options{}).Lookup(Container{Nodes: []Node{card(7)}}); got != nil {
		t.Errorf("without a sysfs: %+v", got)
	}
}

// fake is the kubelet's side.
type fake struct {
	podresources.UnimplementedPodResourcesListerServer
	pod   *podresources.PodResources
	err   error         // of Get
	hold  chan struct{} // Get waits for it; nil does not
	gets  atomic.Int64
	lists atomic.Int64
}

func (f *fake) Get(ctx context.Context, _ *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	f.gets.Add(1)
	if f.hold != nil {
		select {
		case <-f.hold:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return &podresources.GetPodResourcesResponse{PodResources: f.pod}, f.err
}

func (f *fake) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	f.lists.Add(1)
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{Name: "other", Namespace: "n"}, f.pod}}, nil
}

func (f *fake) serve(t testing.TB) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, f)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return socket
}

func answer(devices ...*podresources.ContainerDevices) *podresources.PodResources {
	return &podresources.PodResources{Name: "p", Namespace: "n", Containers: []*podresources.ContainerResources{{Name: "c", Devices: devices}}}
}

func device(id string, nodes ...int64) *podresources.ContainerDevices {
	d := &podresources.ContainerDevices{ResourceName: "vendor/gpu", DeviceIds: []string{id}}
	for _, node := range nodes {
		if d.Topology == nil {
			d.Topology = &podresources.TopologyInfo{}
		}
		d.Topology.Nodes = append(d.Topology.Nodes, &podresources.NUMANode{ID: node})
	}
	return d
}

func finder(t testing.TB, o Options) *Finder {
	log := logrus.New()
	log.SetOutput(io.Discard)
	o.Log = log
	f := New(o)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestCPUs(t *testing.T) {
	pod := answer()
	pod.Containers[0].CpuIds = []int64{9, 4, 5, 8}
	pod.Containers = append(pod.Containers, &podresources.ContainerResources{Name: "shared"})
	kubelet := &fake{pod: pod}
	f, c := finder(t, Options{Socket: kubelet.serve(t)}), Container{UID: "u", Namespace: "n", Pod: "p", Name: "shared"}
	for range 2 {
		if got, want := f.CPUs(t.Context(), c), map[string]string{"c": "4-5,8-9"}; !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if got := finder(t, Options{}).CPUs(t.Context(), c); len(got) > 0 {
		t.Errorf("without a kubelet: %v", got)
	}
}

func TestFind(t *testing.T) {
	s := newTree(t)
	s.gpu(0, "0000:81:00.0", "1")
	gpu := func(any bool, ids []string, nodes ...int) topologymanager.Device {
		return topologymanager.Device{Resource: "vendor/gpu", IDs: ids, Nodes: nodeset.Of(nodes...), Any: any, Source: SourceKubelet}
	}
	fromSysfs := topologymanager.Device{Resource: "drm", IDs: []string{"/dev/dri/card0"}, Nodes: nodeset.Of(1), Source: SourceSysfs}
	claim := answer()
	claim.Containers[0].DynamicResources = []*podresources.DynamicResource{{ClaimName: "a"}}
	tests := map[string]struct {
		fake *fake
		want []topologymanager.Device
	}{
		"the kubelet's topology":        {&fake{pod: answer(device("g0", 0))}, []topologymanager.Device{gpu(false, []string{"g0"}, 0)}},
		"near two nodes, an entry each": {&fake{pod: answer(device("g0", 0), device("g0", 1))}, []topologymanager.Device{gpu(true, []string{"g0"}, 0, 1)}},
		"near two nodes, in one":        {&fake{pod: answer(device("g0", 0, 1))}, []topologymanager.Device{gpu(true, []string{"g0"}, 0, 1)}},
		"two devices":                   {&fake{pod: answer(device("g0", 0), device("g1", 1))}, []topologymanager.Device{gpu(false, []string{"g0", "g1"}, 0, 1)}},
		"two, in another order":         {&fake{pod: answer(device("g1", 1), device("g0", 0))}, []topologymanager.Device{gpu(false, []string{"g0", "g1"}, 0, 1)}},
		"without a topology":            {&fake{pod: answer(device("g0"))}, []topologymanager.Device{gpu(false, []string{"g0"}), fromSysfs}},
		"of a node that cannot be":      {&fake{pod: answer(device("g0", -1, 64))}, []topologymanager.Device{gpu(false, []string{"g0"}), fromSysfs}},
		"a resource claim":              {&fake{pod: claim}, []topologymanager.Device{fromSysfs}},
		"a pod that it does not know":   {&fake{err: status.Error(codes.NotFound, "")}, []topologymanager.Device{fromSysfs}},
		"unknown, in a kubelet's words": {&fake{err: fmt.Errorf("pod p in namespace n not found")}, []topologymanager.Device{fromSysfs}},
		"Get is turned off":             {&fake{pod: answer(device("g0", 0)), err: fmt.Errorf("PodResources API Get method disabled")}, []topologymanager.Device{gpu(false, []string{"g0"}, 0)}},
		"too many questions":            {&fake{err: status.Error(codes.ResourceExhausted, "")}, []topologymanager.Device{fromSysfs}},
		"an answer without a pod":       {&fake{}, []topologymanager.Device{fromSysfs}},
		"nobody there":                  {nil, []topologymanager.Device{fromSysfs}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "none")
			if test.fake != nil {
				socket = test.fake.serve(t)
			}
			f := finder(t, Options{Socket: socket, Sysfs: s.root})
			c := Container{UID: "u", Namespace: "n", Pod: "p", Name: "c", Nodes: []Node{card(0)}}
			if got := f.Find(t.Context(), c)["c"]; !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if got := f.Find(t.Context(), Container{UID: "v", Namespace: "n", Pod: "p", Name: "c"}); got != nil {
				t.Errorf("without devices: %+v", got)
			}
			var network []topologymanager.Device // without a device node only the kubelet knows it
			for _, d := range test.want {
				if d.Source == SourceKubelet {
					network = append(network, d)
				}
			}
			c = Container{UID: "w", Namespace: "n", Pod: "p", Name: "c", PCI: true}
			if got := f.Find(t.Context(), c)["c"]; !reflect.DeepEqual(got, network) {
				t.Errorf("that names a PCI device: got %+v, want %+v", got, network)
			}
		})
	}
}

func TestAskedOnceForAPod(t *testing.T) {
	kubelet := &fake{pod: answer(device("g0", 0))}
	f := finder(t, Options{Socket: kubelet.serve(t)})
	for range 3 {
		c := Container{UID: "u", Namespace: "n", Pod: "p", Name: "c", CDI: []string{"vendor.com/gpu=0"}}
		if got := f.Find(t.Context(), c)["c"]; len(got) != 1 {
			t.Errorf("%+v", got)
		}
	}
	if n := kubelet.gets.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
}

// TestAStaticPodThatComesBack has the UID of before, a hash of its manifest, and may have other devices and CPUs.
func TestAStaticPodThatComesBack(t *testing.T) {
	kubelet := &fake{pod: answer(device("g0", 0))}
	f := finder(t, Options{Socket: kubelet.serve(t)})
	c := Container{UID: "u", Sandbox: "first", Namespace: "n", Pod: "p", Name: "c", PCI: true}
	for _, step := range []struct {
		sandbox string
		node    int // on which the kubelet has allocated a device
		want    int
	}{{"first", 0, 0}, {"first", 1, 0}, {"second", 1, 1}} {
		kubelet.pod, c.Sandbox = answer(device("g0", int64(step.node))), step.sandbox
		kubelet.pod.Containers[0].CpuIds = []int64{int64(step.node)}
		if got, want := f.Find(t.Context(), c)["c"], nodeset.Of(step.want); len(got) != 1 || got[0].Nodes != want {
			t.Errorf("%s sandbox: devices %+v, want on node %s", step.sandbox, got, want)
		}
		if got, want := f.CPUs(t.Context(), c)["c"], fmt.Sprint(step.want); got != want {
			t.Errorf("%s sandbox: CPUs %s, want %s", step.sandbox, got, want)
		}
	}
}

// TestASlowKubelet ends with its context, is then left alone for a while, and asked again.
func TestASlowKubelet(t *testing.T) {
	kubelet := &fake{pod: answer(device("g0", 0)), hold: make(chan struct{})}
	now := atomic.Int64{}
	f := finder(t, Options{Socket: kubelet.serve(t), Now: func() time.Time { return time.Unix(now.Load(), 0) }})
	c := Container{UID: "u", Namespace: "n", Pod: "p", Name: "c", Nodes: []Node{card(0)}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got := f.Find(ctx, c); placed(got["c"]) {
		t.Errorf("a slow kubelet answers %+v", got)
	}
	for !f.kubelet.breaker.Open() {
		runtime.Gosched()
	}
	close(kubelet.hold)
	if got := f.Find(t.Context(), c); placed(got["c"]) || kubelet.gets.Load() != 1 {
		t.Errorf("asked %d times during the pause: %+v", kubelet.gets.Load(), got)
	}
	now.Add(2)
	if got := f.Find(t.Context(), c); !placed(got["c"]) {
		t.Errorf("asked again, it answers %+v", got)
	}
}

// TestABusyKubelet has a kubelet that is slow to take up the connection: the question waits as long as it may.
func TestABusyKubelet(t *testing.T) {
	dir, err := os.MkdirTemp("", "pr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	f := finder(t, Options{Socket: listener.Addr().String()})
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	if known := f.kubelet.pod(ctx, Container{UID: "u", Namespace: "n", Pod: "p", Name: "c"}); ctx.Err() == nil {
		t.Errorf("the question was given up before its time: %+v", known)
	}
}

func BenchmarkFind(b *testing.B) {
	s := newTree(b)
	s.gpu(0, "0000:81:00.0", "1")
	kubelet := &fake{pod: answer(device("g0", 0))}
	f := finder(b, Options{Socket: kubelet.serve(b), Sysfs: s.root})
	for name, c := range map[string]Container{
		"without":      {Namespace: "n", Pod: "p", Name: "c"},
		"kubelet":      {Namespace: "n", Pod: "p", Name: "c", Nodes: []Node{card(0)}},
		"sysfs cached": {UID: "known", Namespace: "n", Pod: "p", Name: "other", Nodes: []Node{card(0)}},
	} {
		b.Run(name, func(b *testing.B) {
			for i := range b.N {
				one := c
				if one.UID == "" {
					one.UID = fmt.Sprint(i)
				}
				f.Find(b.Context(), one)
			}
		})
	}
}

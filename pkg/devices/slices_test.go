package devices

import (
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims/dra"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/sliceserver"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

type attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

func at(value int64) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{IntValue: &value}
}

func several(values ...int64) resourceapi.DeviceAttribute {
	return resourceapi.DeviceAttribute{IntValues: values}
}

// sliceOf is a driver's slice of pool "worker", as generation 1.
func sliceOf(name, driver string, devices map[string]attributes) *resourceapi.ResourceSlice {
	node := "worker"
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for name, attributes := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{Name: name, Attributes: attributes})
	}
	return slice
}

const standard = "resource.kubernetes.io/numaNode"

func TestNUMANodesInASlice(t *testing.T) {
	text, yes := "1", true
	for name, test := range map[string]struct {
		attributes attributes
		want       nodeset.Set
		strange    string
	}{
		"none":                       {},
		"Kubernetes'":                {attributes{standard: at(1)}, nodeset.Of(1), ""},
		"node 0":                     {attributes{standard: at(0)}, nodeset.Of(0), ""},
		"a list":                     {attributes{standard: several(1, 0)}, nodeset.Of(0, 1), ""},
		"the driver's, with domain":  {attributes{"nic.example.com/numaNode": at(1)}, nodeset.Of(1), ""},
		"the driver's":               {attributes{"numaNode": at(1)}, nodeset.Of(1), ""},
		"the network drivers'":       {attributes{"dra.net/numaNode": at(1)}, nodeset.Of(1), ""},
		"another driver's":           {attributes{"gpu.example.com/numaNode": at(1)}, 0, ""},
		"Kubernetes' first":          {attributes{standard: at(0), "numaNode": at(1), "dra.net/numaNode": at(1)}, nodeset.Of(0), ""},
		"the driver's second":        {attributes{"numaNode": at(0), "dra.net/numaNode": at(1)}, nodeset.Of(0), ""},
		"no node":                    {attributes{standard: at(-1), "dra.net/numaNode": at(1)}, 0, ""},
		"a text":                     {attributes{standard: {StringValue: &text}, "dra.net/numaNode": {BoolValue: &yes}}, 0, ""},
		"a node that is not there":   {attributes{standard: at(2)}, 0, "device eth1 in pool worker: attribute resource.kubernetes.io/numaNode is 2, this machine has the NUMA nodes 0-1"},
		"a list with such a node":    {attributes{standard: several(0, 7)}, 0, "attribute resource.kubernetes.io/numaNode is 7"},
		"a node beyond all":          {attributes{"numaNode": at(1 << 40)}, 0, "attribute numaNode is 1099511627776"},
		"a node below all":           {attributes{"dra.net/numaNode": at(-1 << 63)}, 0, "attribute dra.net/numaNode is -9223372036854775808"},
		"another name, another type": {attributes{"numa": at(1), standard: {StringValue: &text}}, 0, ""},
	} {
		kept := NewSlices(SlicesOptions{Nodes: nodeset.Of(0, 1)}).read(sliceOf("s", "nic.example.com", map[string]attributes{"eth1": test.attributes}))
		if kept.nodes["eth1"] != test.want || len(kept.nodes) != test.want.Len() && test.want.Len() < 2 {
			t.Errorf("%s: kept %v, want %s", name, kept.nodes, test.want)
		}
		if (kept.strange == "") != (test.strange == "") || !strings.Contains(kept.strange, test.strange) {
			t.Errorf("%s: says %q, want %q", name, kept.strange, test.strange)
		}
	}
}

// newSliceServer serves slices of node worker.
func newSliceServer(t testing.TB, streams bool) (server *sliceserver.Server, url string) {
	server = sliceserver.New("worker")
	server.NoStream = !streams
	serves := httptest.NewServer(server)
	t.Cleanup(serves.Close)
	t.Cleanup(func() { server.With(server.Cut) })
	return server, serves.URL
}

// follow runs Slices of the server.
func follow(t *testing.T, url string) (*Slices, *logtest.Hook) {
	t.Helper()
	client, err := dra.NewClient(&rest.Config{Host: url})
	if err != nil {
		t.Fatal(err)
	}
	log, said := logtest.NewNullLogger()
	s := NewSlices(SlicesOptions{Client: client, Node: "worker", Own: "memory.example.com", Nodes: nodeset.Of(0, 1), Log: log})
	s.backoff = &wait.Backoff{Duration: time.Millisecond, Cap: 10 * time.Millisecond, Steps: 5, Factor: 2}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return s, said
}

// eventually waits for what must come; only a broken program waits long.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func nic(node int64) map[string]attributes {
	return map[string]attributes{"eth1": {standard: at(node)}}
}

func TestSlicesAreFollowedThroughTheirLife(t *testing.T) {
	for name, streams := range map[string]bool{"streamed list": true, "list, then watch": false} {
		t.Run(name, func(t *testing.T) {
			server, url := newSliceServer(t, streams)
			server.Put(sliceOf("before", "nic.example.com", nic(1)))
			server.Put(sliceOf("ours", "memory.example.com", map[string]attributes{"numa-1": {standard: at(1)}}))
			s, said := follow(t, url)
			nodes := func(driver, device string) nodeset.Set { return s.nodesOf(claimedDevice{driver, "worker", device}) }
			is := func(want nodeset.Set) func() bool {
				return func() bool { return nodes("nic.example.com", "eth1") == want }
			}
			eventually(t, "the first list", is(nodeset.Of(1)))
			if connected, problem := s.State(); !connected || problem != "" {
				t.Errorf("connected is %v, problem %q", connected, problem)
			}
			if got := nodes("memory.example.com", "numa-1"); !got.Empty() || !s.any() {
				t.Errorf("our own device is on node %s; any is %v", got, s.any())
			}
			if got := s.nodesOf(claimedDevice{"nic.example.com", "other", "eth1"}); !got.Empty() {
				t.Errorf("in another pool the device is on node %s", got)
			}
			eventually(t, "a watch", func() (there bool) { server.With(func() { there = len(server.Watchers) > 0 }); return there })
			server.Put(sliceOf("before", "nic.example.com", nic(0)))
			eventually(t, "a changed slice", is(nodeset.Of(0)))

			newer := sliceOf("newer", "nic.example.com", nic(1))
			newer.Spec.Pool.Generation = 2
			server.Put(newer)
			eventually(t, "a newer generation of the pool", is(nodeset.Of(1)))
			server.Drop("newer")
			eventually(t, "the older one again", is(nodeset.Of(0)))
			server.Drop("before")
			eventually(t, "a deleted slice", func() bool { return !s.any() })

			server.With(func() { server.Broken = true; server.Cut() })
			eventually(t, "the server is lost", func() bool { connected, problem := s.State(); return !connected && problem != "" })
			server.With(func() { server.Broken = false; server.Slices["after"] = sliceOf("after", "nic.example.com", nic(1)) })
			eventually(t, "the server is back", is(nodeset.Of(1)))
			if lines := len(said.AllEntries()); lines != 3 {
				t.Errorf("%d lines in the log, want followed, lost and followed again", lines)
			}
		})
	}
}

// TestAServerThatRefuses is one that gives no rights: the source knows nothing, and the log says so once.
func TestAServerThatRefuses(t *testing.T) {
	server, url := newSliceServer(t, true)
	server.Broken = true
	s, said := follow(t, url)
	eventually(t, "the server has refused", func() bool { _, problem := s.State(); return problem != "" })
	if got := s.devices(t.Context(), "u", []claim{{"n", "a", []claimedDevice{{"nic.example.com", "worker", "eth1"}}}}); got != nil {
		t.Errorf("it knows %v", got)
	}
	if entries := said.AllEntries(); len(entries) != 1 || entries[0].Level != logrus.WarnLevel {
		t.Errorf("the log has %d lines, want one warning", len(entries))
	}
}

// TestNewestGenerationOfAPool is asked often: the slices are kept in no order.
func TestNewestGenerationOfAPool(t *testing.T) {
	s := NewSlices(SlicesOptions{Node: "worker", Nodes: nodeset.Of(0, 1)})
	for generation, device := range []string{"eth1", "eth1", "eth2"} {
		slice := sliceOf(fmt.Sprint("s", generation), "nic.example.com", map[string]attributes{device: {standard: at(int64(generation % 2))}})
		slice.Spec.Pool.Generation = int64(generation)
		s.put(s.read(slice))
	}
	for range 100 {
		if got := s.nodesOf(claimedDevice{"nic.example.com", "worker", "eth1"}); !got.Empty() {
			t.Fatalf("a device that the newest generation does not have is on node %s", got)
		}
		if got := s.nodesOf(claimedDevice{"nic.example.com", "worker", "eth2"}); got != nodeset.Of(0) {
			t.Fatalf("a device is on node %s, want 0", got)
		}
	}
}

func TestSlicesAreBounded(t *testing.T) {
	log, said := logtest.NewNullLogger()
	s := NewSlices(SlicesOptions{Node: "worker", Nodes: nodeset.Of(0, 1), Log: log})
	add := func(slice *resourceapi.ResourceSlice) {
		s.put(s.read(slice))
	}
	for i := range mostSlices + 10 {
		add(sliceOf(fmt.Sprint("s", i), "nic.example.com", map[string]attributes{fmt.Sprint("eth", i): {standard: at(1)}}))
	}
	add(sliceOf("s0", "nic.example.com", map[string]attributes{"eth0": {standard: at(9)}, "ethx": {standard: at(0)}}))
	add(sliceOf("s0", "nic.example.com", map[string]attributes{"eth0": {standard: at(8)}, "ethx": {standard: at(0)}}))
	if len(s.published) != mostSlices || !s.any() {
		t.Errorf("%d slices are kept, want %d; any is %v", len(s.published), mostSlices, s.any())
	}
	var lines []string
	for _, entry := range said.AllEntries() {
		lines = append(lines, entry.Message)
	}
	if want := []string{
		"this node has more than 128 ResourceSlices: the NUMA nodes in the others are not known",
		"the NUMA node in a ResourceSlice is ignored: device eth0 in pool worker: attribute resource.kubernetes.io/numaNode is 9, this machine has the NUMA nodes 0-1",
	}; !reflect.DeepEqual(lines, want) {
		t.Errorf("the log says %q, want %q", lines, want)
	}
}

// claiming is a container with resource claims, by name, of which the kubelet names devices as "driver pool device".
func claiming(claims map[string][]string) *podresources.PodResources {
	pod := answer()
	for name, devices := range claims {
		resource := &podresources.DynamicResource{ClaimName: name, ClaimNamespace: "n"}
		for _, device := range devices {
			words := strings.Fields(device)
			resource.ClaimResources = append(resource.ClaimResources, &podresources.ClaimResource{DriverName: words[0], PoolName: words[1], DeviceName: words[2]})
		}
		pod.Containers[0].DynamicResources = append(pod.Containers[0].DynamicResources, resource)
	}
	return pod
}

func TestDevicesOfClaims(t *testing.T) {
	server, url := newSliceServer(t, true)
	server.Put(sliceOf("nics", "nic.example.com", map[string]attributes{
		"eth1": {standard: at(1)}, "eth2": {standard: at(0)}, "eth3": {standard: several(0, 1)}, "eth4": {},
	}))
	other := sliceOf("fabric", "nic.example.com", nic(1))
	other.Spec.Pool.Name = "rack/fabric"
	server.Put(other)
	server.Put(sliceOf("ours", "memory.example.com", map[string]attributes{"numa-1": {standard: at(1)}}))
	server.Claims["n/moved"] = &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
			{Driver: "nic.example.com", Pool: "worker", Device: "eth1"}, {Driver: "gpu.example.com", Pool: "worker", Device: "gpu0"},
		}}}}}
	server.Claims["n/pending"] = &resourceapi.ResourceClaim{}
	s, _ := follow(t, url)
	eventually(t, "the slices", func() bool { connected, _ := s.State(); return connected && s.any() })
	tree := newTree(t)
	tree.gpu(0, "0000:81:00.0", "1")
	nics := func(any bool, ids []string, nodes ...int) topologymanager.Device {
		return topologymanager.Device{Resource: "nic.example.com", IDs: ids, Nodes: nodeset.Of(nodes...), Any: any, Source: SourceResourceSlice}
	}
	one := []topologymanager.Device{nics(false, []string{"eth1"}, 1)}
	for name, test := range map[string]struct {
		claims map[string][]string
		nodes  []Node
		want   []topologymanager.Device
	}{
		"no claim":              {},
		"a device":              {map[string][]string{"a": {"nic.example.com worker eth1"}}, nil, one},
		"two devices":           {map[string][]string{"a": {"nic.example.com worker eth1", "nic.example.com worker eth2"}}, nil, []topologymanager.Device{nics(false, []string{"eth1", "eth2"}, 0, 1)}},
		"near two nodes":        {map[string][]string{"a": {"nic.example.com worker eth3"}}, nil, []topologymanager.Device{nics(true, []string{"eth3"}, 0, 1)}},
		"in another pool":       {map[string][]string{"a": {"nic.example.com rack/fabric eth1"}}, nil, []topologymanager.Device{nics(false, []string{"rack/fabric/eth1"}, 1)}},
		"without an attribute":  {map[string][]string{"a": {"nic.example.com worker eth4"}}, nil, nil},
		"without a slice":       {map[string][]string{"a": {"gpu.example.com worker gpu0", "nic.example.com elsewhere eth1"}}, nil, nil},
		"of our own driver":     {map[string][]string{"a": {"memory.example.com worker numa-1"}}, nil, nil},
		"that nobody names":     {map[string][]string{"moved": nil}, nil, one},
		"a claim without any":   {map[string][]string{"pending": nil, "gone": nil}, nil, nil},
		"beside a device node":  {map[string][]string{"moved": nil}, []Node{card(0)}, []topologymanager.Device{{Resource: "drm", IDs: []string{"/dev/dri/card0"}, Nodes: nodeset.Of(1), Source: SourceSysfs}, one[0]}},
		"two claims, one known": {map[string][]string{"a": {"nic.example.com worker eth1"}, "gone": nil}, nil, one},
	} {
		t.Run(name, func(t *testing.T) {
			kubelet := &fake{pod: claiming(test.claims)}
			f := finder(t, Options{Socket: kubelet.serve(t), Sysfs: tree.root, Slices: s})
			for range 2 {
				if got := f.Find(t.Context(), Container{UID: name, Namespace: "n", Pod: "p", Name: "c", Nodes: test.nodes})["c"]; !reflect.DeepEqual(got, test.want) {
					t.Errorf("got %+v, want %+v", got, test.want)
				}
			}
			if n := kubelet.gets.Load(); n != 1 {
				t.Errorf("the kubelet was asked %d times", n)
			}
		})
	}
	// Another container of the pod: what it claims counts in scope pod.
	kubelet := &fake{pod: claiming(map[string][]string{"moved": nil})}
	f := finder(t, Options{Socket: kubelet.serve(t), Slices: s})
	if got := f.Find(t.Context(), Container{UID: "o", Namespace: "n", Pod: "p", Name: "other"}); !reflect.DeepEqual(got, Pod{"c": one, "other": nil}) {
		t.Errorf("of the others of its pod: got %+v", got)
	}
	gets := 0
	server.With(func() { gets = server.Gets })
	if want := 9; gets != want { // moved for three pods; pending, gone and gone, which are asked for again, twice each
		t.Errorf("the server was asked for claims %d times, want %d", gets, want)
	}
}

// TestClaimsThatCannotBeRead costs one question: then the API server is left alone for a while.
func TestClaimsThatCannotBeRead(t *testing.T) {
	server, url := newSliceServer(t, true)
	server.Put(sliceOf("nics", "nic.example.com", nic(1)))
	s, said := follow(t, url)
	eventually(t, "the slices", s.any)
	server.With(func() { server.Broken = true })
	before := len(said.AllEntries())
	for _, uid := range []string{"a", "b", "c"} {
		if got := s.devices(t.Context(), uid, []claim{{namespace: "n", name: "x"}}); got != nil {
			t.Errorf("got %+v", got)
		}
	}
	gets := 0
	server.With(func() { gets = server.Gets })
	if lines := len(said.AllEntries()) - before; gets != 1 || lines != 1 {
		t.Errorf("asked %d times with %d lines in the log, want one of each", gets, lines)
	}
	// A context that has ended is no answer and waits for none.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := NewSlices(s.SlicesOptions).allocated(ctx, claimOfPod{"d", "n", "x"}); got != nil {
		t.Errorf("got %+v", got)
	}
}

func TestNothingIsAskedWithoutSlices(t *testing.T) {
	s := NewSlices(SlicesOptions{Node: "worker", Own: "memory.example.com", Nodes: nodeset.Of(0, 1)})
	plain := Container{UID: "u", Namespace: "n", Pod: "p", Name: "c"}
	for name, slice := range map[string]*resourceapi.ResourceSlice{
		"none":    nil,
		"ours":    sliceOf("a", "memory.example.com", map[string]attributes{"numa-0": {standard: at(0)}}),
		"no node": sliceOf("b", "nic.example.com", nic(-1)),
		"unnamed": sliceOf("c", "nic.example.com", map[string]attributes{"eth1": maps.Clone(attributes{"mtu": at(1)})}),
	} {
		if slice != nil {
			s.put(s.read(slice))
		}
		if New(Options{Slices: s}).Wants(plain) {
			t.Errorf("%s: a container without devices is asked about", name)
		}
	}
	s.put(s.read(sliceOf("d", "nic.example.com", nic(1))))
	if !New(Options{Slices: s}).Wants(plain) {
		t.Error("a container that may have a network device is not asked about")
	}
}

package dra

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	logtest "github.com/sirupsen/logrus/hooks/test"
	resourceapi "k8s.io/api/resource/v1"
	kresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

const gi = uint64(1) << 30

// nodes are a node with CPUs, and a memory expander of an id that leaves a gap.
var nodes = machine.Machine{Nodes: []machine.Node{
	{ID: 0, Memory: 64 * gi, CPUs: cpuset.New(0, 1), Distances: []int{10, 17}},
	{ID: 2, Memory: 256 * gi, Distances: []int{17, 10}},
}}

func TestDevices(t *testing.T) {
	claimable := []claims.Capacity{
		{Node: 0, Type: "hugepages-1Gi", Capacity: 8 * gi}, {Node: 0, Type: "hugepages-2Mi"}, {Node: 0, Type: memorymanager.Memory, Capacity: 20 * gi},
		{Node: 2, Type: memorymanager.Memory, Capacity: 100 * gi}, {Node: 3, Type: memorymanager.Memory},
	}
	var got []string
	for _, device := range sliceDevices(claimable, nodes, []int{0, 2, 3}, false) {
		if !*device.AllowMultipleAllocations {
			t.Errorf("%s cannot be shared", device.Name)
		}
		var all []string
		for name, value := range device.Attributes {
			all = append(all, fmt.Sprintf("%s=%d", name, *value.IntValue))
		}
		for name, capacity := range device.Capacity {
			p := capacity.RequestPolicy
			all = append(all, fmt.Sprintf("%s: %s, default %s, min %s, step %s", name, capacity.Value.String(), p.Default, p.ValidRange.Min, p.ValidRange.Step))
		}
		slices.Sort(all)
		got = append(got, device.Name+"\n  "+strings.Join(all, "\n  "))
	}
	want := []string{`numa-0
  distance0=10
  distance2=17
  dra.cpu/numaNode=0
  dra.net/numaNode=0
  hugepages1Gi: 8Gi, default 0, min 0, step 1Gi
  memory: 20Gi, default 2Mi, min 2Mi, step 2Mi
  numaNode=0
  resource.kubernetes.io/numaNode=0
  tier=0`, `numa-2
  distance0=17
  distance2=10
  dra.cpu/numaNode=2
  dra.net/numaNode=2
  memory: 100Gi, default 2Mi, min 2Mi, step 2Mi
  numaNode=2
  resource.kubernetes.io/numaNode=2
  tier=1`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestDevicesThatCountAsResourcesOfTheNode: each capacity of a device is mapped, under the node's name for its type.
func TestDevicesThatCountAsResourcesOfTheNode(t *testing.T) {
	claimable := []claims.Capacity{
		{Node: 0, Type: "hugepages-1Gi", Capacity: 8 * gi}, {Node: 0, Type: "hugepages-2Mi"}, {Node: 0, Type: memorymanager.Memory, Capacity: 20 * gi},
		{Node: 2, Type: memorymanager.Memory, Capacity: 100 * gi}, {Node: 3, Type: memorymanager.Memory},
	}
	got := map[string]string{}
	for _, device := range sliceDevices(claimable, nodes, []int{0, 2, 3}, true) {
		text, err := json.Marshal(device.NodeAllocatableResources)
		if err != nil {
			t.Fatal(err)
		}
		got[device.Name] = string(text)
	}
	const memory = `"memory":{"mapping":{"capacityKey":"memory","capacityMultiplier":"1"}}}`
	want := map[string]string{
		"numa-0": `{"hugepages-1Gi":{"mapping":{"capacityKey":"hugepages1Gi","capacityMultiplier":"1"}},` + memory,
		"numa-2": "{" + memory,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestADeviceHasNoMoreAttributesThanTheAPIAdmits(t *testing.T) {
	var large machine.Machine
	for id := range 64 {
		large.Nodes = append(large.Nodes, machine.Node{ID: id, Distances: make([]int, 64)})
	}
	devices := sliceDevices([]claims.Capacity{{Node: 5, Type: memorymanager.Memory, Capacity: gi}}, large, []int{5}, false)
	if n := len(devices[0].Attributes) + len(devices[0].Capacity); n > mostAttributes || len(devices[0].Attributes) != 5 {
		t.Errorf("%d attributes and capacities: %v", n, devices[0].Attributes)
	}
}

// slack is a sample in which nodes 0, 1 … have this much available beyond their allocations.
func slack(at time.Time, bytes ...uint64) *deficit.Sample {
	s := &deficit.Sample{At: at}
	for id, n := range bytes {
		s.Nodes = append(s.Nodes, deficit.NodeMemory{ID: id, Unused: 1000, Free: 900 + n, Reclaimable: 100})
	}
	return s
}

// TestNoiseOfSamplesIsNotWritten takes samples for an hour: what moves within the hysteresis is not due, what moves beyond it is, and a
// sample is looked at once a minute.
func TestNoiseOfSamplesIsNotWritten(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	claimable := []claims.Capacity{
		{Node: 0, Type: memorymanager.Memory, Capacity: 100 * gi}, {Node: 1, Type: memorymanager.Memory, Capacity: 100 * gi},
	}
	p := newPublisher(Options{Name: "d", Node: "n"})
	start := time.Unix(1000, 0)
	view := &ledger.View{Generation: 1, Claimable: claimable, NodeMemory: slack(start, 60*gi, 60*gi)}
	p.known = &resourceapi.ResourceSlice{Spec: p.spec(view)}
	for at := time.Duration(0); at < time.Hour; at += 2 * time.Second {
		view.NodeMemory = slack(start.Add(at), 55*gi+r.Uint64N(10*gi), 55*gi+r.Uint64N(10*gi))
		view.Generation += r.Uint64N(2)
		if p.due(view) {
			t.Fatalf("after %s: due for noise in the samples", at)
		}
	}
	at := start.Add(time.Hour)
	view.NodeMemory = slack(at, 40*gi, 60*gi)
	p.equal, p.since = view.Generation, at.Add(2*time.Second-sampleEvery)
	if p.due(view) {
		t.Error("a sample was looked at within a minute")
	}
	view.NodeMemory = slack(at.Add(2*time.Second), 40*gi, 60*gi)
	if !p.due(view) || p.spec(view).Devices[0].Name != "numa-1" {
		t.Errorf("not due, or in the order %v, although node 0 has much less left", p.order)
	}
}

// TestADryRunPublishesNothing, and neither does a plugin whose claims end with it: the claims that there are can end, and the scheduler allocates
// no more of them here.
func TestADryRunPublishesNothing(t *testing.T) {
	p := newPublisher(Options{Name: "d", Node: "n"})
	view := &ledger.View{Claimable: []claims.Capacity{{Node: 0, Type: memorymanager.Memory, Capacity: 100 * gi}}}
	for _, step := range []struct {
		config config.Config
		want   int // devices
	}{
		{config.Config{}, 1}, {config.Config{Profile: config.ProfileObserve}, 0}, {config.Config{}, 1}, {config.Config{RolledBack: true}, 0},
		{config.Config{}, 1}, {config.Config{DRA: claims.Config{Enabled: true, Ending: true}}, 0},
	} {
		view.Config.Config = step.config
		view.Generation++
		due := p.due(view)
		p.known = &resourceapi.ResourceSlice{Spec: p.spec(view)}
		if devices := p.known.Spec.Devices; !due || len(devices) != step.want {
			t.Errorf("%+v: due %t with devices %v, want %d", step, due, devices, step.want)
		}
	}
}

// TestADryRunCreatesNoSlice: there is none to empty, and nothing is due until the dry run ends.
func TestADryRunCreatesNoSlice(t *testing.T) {
	var requests string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests += r.Method + " "
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonNotFound})
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	p := newPublisher(Options{Client: client, Name: "d", Node: "n"})
	view := &ledger.View{Claimable: []claims.Capacity{{Node: 0, Type: memorymanager.Memory, Capacity: gi}}}
	view.Config.Config.Profile = config.ProfileObserve
	if err := p.publish(t.Context(), view); err != nil || p.due(view) {
		t.Errorf("due, or %v", err)
	}
	view.Config.Config.Profile = config.ProfileFull
	if view.Generation++; !p.due(view) {
		t.Error("not due after the dry run")
	}
	_ = p.publish(t.Context(), view)
	if want := "GET GET "; !strings.HasPrefix(requests, want) || !strings.HasSuffix(requests, "POST ") {
		t.Errorf("requests %s, want %s, then POST", requests, want)
	}
}

// TestRefusedMappingsAreTriedAgain: a refusal holds for a while, a field that is dropped until the slice is created again, and neither once
// the configuration does not want it.
func TestRefusedMappingsAreTriedAgain(t *testing.T) {
	view := &ledger.View{Claimable: []claims.Capacity{{Node: 0, Type: memorymanager.Memory, Capacity: gi}}}
	for name, test := range map[string]struct {
		unmapped *unmapped
		off      bool
		want     bool
	}{
		"wanted":            {nil, false, true},
		"not wanted":        {nil, true, false},
		"dropped":           {&unmapped{why: "dropped"}, false, false},
		"refused":           {&unmapped{"refused", time.Now().Add(time.Hour)}, false, false},
		"refused before":    {&unmapped{"refused", time.Now()}, false, true},
		"dropped, unwanted": {&unmapped{why: "dropped"}, true, false},
		"refused, unwanted": {&unmapped{"refused", time.Now().Add(time.Hour)}, true, false},
	} {
		p := newPublisher(Options{Name: "d", Node: "n"})
		p.unmapped.Store(test.unmapped)
		view.Config.Config.DRA.PublishNodeAllocatable = !test.off
		if got := mapped(&resourceapi.ResourceSlice{Spec: p.spec(view)}); got != test.want {
			t.Errorf("%s: mapped is %t", name, got)
		}
		if known := p.unmapped.Load() != nil; test.off && known {
			t.Errorf("%s: why it is not mapped is still said", name)
		}
	}
}

// TestARefusalCostsOneRequest: a slice that is on the API server already is not written again when it is refused with
// nodeAllocatableResources, and nothing is due afterwards. The log has the reason once.
func TestARefusalCostsOneRequest(t *testing.T) {
	var requests []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.Method)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
			Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "not supported"})
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	log, hook := logtest.NewNullLogger()
	p := newPublisher(Options{Client: client, Name: "d", Node: "n", Log: log})
	view := &ledger.View{Generation: 1, Claimable: []claims.Capacity{{Node: 0, Type: memorymanager.Memory, Capacity: gi}}}
	p.known = &resourceapi.ResourceSlice{Spec: p.spec(view)}
	p.known.Name, p.known.ResourceVersion = p.slice(), "1"
	view.Config.Config.DRA.PublishNodeAllocatable = true
	for try := range 3 {
		if !p.due(view) {
			t.Fatalf("try %d: not due", try)
		}
		if err := p.publish(t.Context(), view); err != nil {
			t.Fatal(err)
		}
		view.Generation++
		if len(requests) != try+1 || p.due(view) {
			t.Errorf("try %d: due is %t after %v", try, p.due(view), requests)
		}
		p.unmapped.Store(&unmapped{p.unmapped.Load().why, time.Now()}) // some time later
		view.Generation++
	}
	if entries := hook.AllEntries(); len(entries) != 1 || entries[0].Message != "the API server refuses nodeAllocatableResources: not supported" {
		t.Errorf("the log has %v", entries)
	}
}

// cutting is an API server with its feature gate DRAConsumableCapacity off. It has no slice while gone.
func cutting(t *testing.T) (client rest.Interface, requests *[]string, gone *bool) {
	requests, gone = new([]string), new(bool)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*requests = append(*requests, r.Method)
		w.Header().Set("Content-Type", "application/json")
		if *gone && r.Method != http.MethodPost {
			w.WriteHeader(http.StatusNotFound)
			json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
				Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
			return
		}
		slice := &resourceapi.ResourceSlice{}
		if err := json.NewDecoder(r.Body).Decode(slice); err != nil {
			t.Error(err)
		}
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].AllowMultipleAllocations = nil
		}
		slice.TypeMeta = metav1.TypeMeta{Kind: "ResourceSlice", APIVersion: resourceapi.SchemeGroupVersion.String()}
		json.NewEncoder(w).Encode(slice)
	}))
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return client, requests, gone
}

// An API server that drops fields is not sent the same again and again, and the log says why.
func TestAnAPIServerThatDropsFields(t *testing.T) {
	for _, mapped := range []bool{false, true} {
		t.Run(fmt.Sprint("mapped ", mapped), func(t *testing.T) {
			client, requests, _ := cutting(t)
			log, hook := logtest.NewNullLogger()
			p := newPublisher(Options{Client: client, Name: "d", Node: "n", Log: log})
			p.known = &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: p.slice(), ResourceVersion: "1"}}
			view := &ledger.View{Claimable: []claims.Capacity{{Node: 0, Type: memorymanager.Memory, Capacity: gi}}}
			view.Config.Config.DRA.PublishNodeAllocatable = mapped
			for _, capacity := range []uint64{gi, gi, 2 * gi, 2 * gi} {
				view.Claimable[0].Capacity = capacity
				if view.Generation++; !p.due(view) {
					continue
				}
				if err := p.publish(t.Context(), view); err != nil {
					t.Fatal(err)
				}
			}
			if len(*requests) != 2 {
				t.Errorf("requests %v, want one for each capacity", *requests)
			}
			const why = "the API server drops fields of the ResourceSlice: its feature gate DRAConsumableCapacity is off, and claims cannot share a NUMA node"
			if entries := hook.AllEntries(); len(entries) != 1 || entries[0].Message != why {
				t.Errorf("the log has %v, want once %q", entries, why)
			}
		})
	}
}

// A slice that is deleted, and not made again while the daemon only observes, is made again afterwards.
func TestACutSliceIsMadeAgainAfterADryRun(t *testing.T) {
	client, requests, gone := cutting(t)
	log, _ := logtest.NewNullLogger()
	p := newPublisher(Options{Client: client, Name: "d", Node: "n", Log: log})
	p.known = &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: p.slice(), ResourceVersion: "1"}}
	for i, profile := range []config.Profile{config.ProfileFull, config.ProfileObserve, config.ProfileFull} {
		view := &ledger.View{Generation: uint64(i + 1), Claimable: []claims.Capacity{{Node: 0, Type: memorymanager.Memory, Capacity: gi}}}
		view.Config.Config.Profile = profile
		if p.due(view) {
			if err := p.publish(t.Context(), view); err != nil {
				t.Fatal(err)
			}
		}
		if profile == config.ProfileFull {
			*gone, p.known = true, nil // as the kubelet deletes it when it starts
		}
	}
	if got := (*requests)[len(*requests)-1]; got != http.MethodPost {
		t.Errorf("requests %v, want that the slice is created at the end", *requests)
	}
}

func TestRead(t *testing.T) {
	type change = func(*resourceapi.ResourceClaim, *resourceapi.DeviceRequestAllocationResult)
	consumed := func(name, text string) change {
		return func(_ *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) {
			r.ConsumedCapacity = map[resourceapi.QualifiedName]kresource.Quantity{resourceapi.QualifiedName(name): kresource.MustParse(text)}
		}
	}
	const results = "status.allocation.devices.results"
	for name, test := range map[string]struct {
		change change
		want   string // the error
	}{
		"good": {nil, ""},
		"not allocated": {func(c *resourceapi.ResourceClaim, _ *resourceapi.DeviceRequestAllocationResult) {
			c.Status.Allocation = nil
		}, "status.allocation is missing: the claim is not allocated"},
		"no UID":           {func(c *resourceapi.ResourceClaim, _ *resourceapi.DeviceRequestAllocationResult) { c.UID = "A/B" }, `metadata.uid is "A/B", want a UID`},
		"another driver's": {func(_ *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) { r.Driver = "gpu" }, results + " has no device of driver numa.example.com"},
		"another node's":   {func(_ *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) { r.Pool = "w2" }, results + `[1].pool is "w2", want this node's "w1"`},
		"another device":   {func(_ *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) { r.Device = "numa-64" }, results + `[1].device is "numa-64", want numa-0 to numa-63`},
		"no number":        {func(_ *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) { r.Device = "gpu-0" }, results + `[1].device is "gpu-0", want numa-0 to numa-63`},
		"admin access": {func(_ *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) {
			r.AdminAccess = new(true)
		}, results + "[1].adminAccess is true: memory has no administrative access"},
		"no capacity": {func(_ *resourceapi.ResourceClaim, r *resourceapi.DeviceRequestAllocationResult) {
			r.ConsumedCapacity = nil
		}, results + "[1].consumedCapacity is missing: the feature gate DRAConsumableCapacity of kube-apiserver and kube-scheduler must be on"},
		"unknown capacity": {consumed("cpu", "1"), results + `[1].consumedCapacity has "cpu", want memory or hugepages<size>`},
		"negative":         {consumed("memory", "-1"), results + "[1].consumedCapacity.memory is -1, want 0 to 2^63-1 whole bytes"},
		"a fraction":       {consumed("hugepages1Gi", "1m"), results + "[1].consumedCapacity.hugepages1Gi is 1m, want 0 to 2^63-1 whole bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			from := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", UID: "8f3e"}}
			from.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", UID: "pod-1"}, {APIGroup: "x", Resource: "pods", UID: "no"}}
			from.Status.Allocation = &resourceapi.AllocationResult{}
			from.Status.Allocation.Devices.Results = []resourceapi.DeviceRequestAllocationResult{
				{Request: "gpu", Driver: "gpu.example.com", Pool: "other", Device: "gpu-0"},
				{Request: "mem/two", Driver: "numa.example.com", Pool: "w1", Device: "numa-3", ConsumedCapacity: map[resourceapi.QualifiedName]kresource.Quantity{
					"memory": kresource.MustParse("3Gi"), "hugepages1Gi": kresource.MustParse("1Gi"), "hugepages2Mi": kresource.MustParse("0"),
				}},
			}
			if test.change != nil {
				test.change(from, &from.Status.Allocation.Devices.Results[1])
			}
			claim, err := readClaim(from, "numa.example.com", "w1")
			if test.want != "" {
				if err == nil || err.Error() != test.want {
					t.Errorf("got  %v\nwant %s", err, test.want)
				}
				return
			}
			want := claims.Claim{UID: "8f3e", Namespace: "ns", Name: "claim", Pods: []string{"pod-1"}, Parts: []claims.Part{
				{Request: "mem", Node: 3, Amounts: memorymanager.Request{{Type: "hugepages-1Gi", Bytes: gi}, {Type: memorymanager.Memory, Bytes: 3 * gi}}},
			}}
			if diff := cmp.Diff(want, claim); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

// TestANodeWithoutCPUsDoesNotHoldTheOthersOrder: node 2 has the most memory left all the time; the scheduler takes it last.
func TestANodeWithoutCPUsDoesNotHoldTheOthersOrder(t *testing.T) {
	p := newPublisher(Options{Name: "d", Node: "n", Machine: machine.Machine{Nodes: []machine.Node{
		{ID: 0, Memory: 100 * gi, CPUs: cpuset.New(0)}, {ID: 1, Memory: 100 * gi, CPUs: cpuset.New(1)}, {ID: 2, Memory: 480 * gi}}}})
	view := &ledger.View{}
	for _, step := range []struct {
		claimed [3]uint64
		want    string
	}{
		{[3]uint64{0, 0, 0}, "numa-0 numa-1 numa-2"},
		{[3]uint64{10, 0, 0}, "numa-0 numa-1 numa-2"}, // within the hysteresis of nodes beside CPUs
		{[3]uint64{40, 0, 0}, "numa-1 numa-0 numa-2"},
		{[3]uint64{40, 0, 470}, "numa-1 numa-0 numa-2"},
	} {
		view.Claimable = nil
		for id, bytes := range []uint64{100, 100, 480} {
			view.Claimable = append(view.Claimable, claims.Capacity{Node: id, Type: memorymanager.Memory, Capacity: bytes * gi, Claimed: step.claimed[id] * gi})
		}
		var got string
		for _, device := range p.spec(view).Devices {
			got += " " + device.Name
		}
		if got != " "+step.want {
			t.Errorf("claimed %v: devices%s, want %s", step.claimed, got, step.want)
		}
	}
}

func TestNothingIsMissingInWhatIsNotPublished(t *testing.T) {
	for name, c := range map[string]config.Config{
		"ending":  {DRA: claims.Config{Enabled: true, Ending: true}},
		"dry run": {Profile: config.ProfileObserve, DRA: claims.Config{Enabled: true}},
	} {
		d := New(Options{Name: "d", Node: "n"})
		d.publisher.unmapped.Store(&unmapped{why: "refused"})
		view := &ledger.View{}
		view.Config.Config = c
		d.publisher.spec(view)
		if why := d.Unmapped(); why != "" {
			t.Errorf("%s: status says that the slice lacks nodeAllocatableResources: %s", name, why)
		}
	}
}

package world

import (
	"maps"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/sliceserver"
)

// The scheduler takes the first devices with room, as many as a claim wants, in the order of the slice.
func TestTheSchedulerGivesWhatIsPublished(t *testing.T) {
	c := claimObjects{sliceserver.New(NodeName)}
	nodes := []NUMANode{{Memory: 8 * gi}, {Memory: 8 * gi}}
	allocate := func(name, pod string, claim Claim) []int {
		_, on := c.allocate("uid-"+name, "shop", name, pod, claim, nodes)
		return on
	}
	if on := allocate("early", "p", Claim{Memory: gi}); on != nil {
		t.Errorf("without a slice it is on %v", on)
	}
	device := func(name string, bytes uint64) resourceapi.Device {
		return resourceapi.Device{Name: name, Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: bytesOf(bytes)}}}
	}
	slice := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{device("numa-1", 3*gi), device("numa-0", 2*gi)}}}
	slice.Name = sliceName
	c.Put(slice)
	for _, test := range []struct {
		name, pod string
		claim     Claim
		on        []int
	}{
		{"first", "p", Claim{Memory: 2 * gi}, []int{1}},
		{"first", "q", Claim{Memory: 2 * gi}, []int{1}}, // the same claim for another pod
		{"both", "p", Claim{Memory: gi, Nodes: 2}, []int{1, 0}},
		{"large", "p", Claim{Memory: 2 * gi}, nil},
		{"hasty", "p", Claim{Memory: 4 * gi, Hasty: true}, []int{1}},
		{"second", "p", Claim{Memory: gi}, []int{0}},
		{"blind", "p", Claim{Memory: 3 * gi, Blind: true}, []int{1}},
	} {
		if on := allocate(test.name, test.pod, test.claim); !slices.Equal(on, test.on) {
			t.Errorf("%s is on %v, want %v", test.name, on, test.on)
		}
	}
	c.deallocate("shop", "blind", "p")
	c.deallocate("shop", "first", "p")
	if on := allocate("large", "p", Claim{Memory: gi}); on != nil || c.Claims["shop/first"] == nil {
		t.Errorf("large is on %v while a pod has first", on)
	}
	c.deallocate("shop", "hasty", "p")
	if c.deallocate("shop", "first", "q"); c.Claims["shop/first"] != nil {
		t.Error("first has no pods, and still exists")
	}
	if on := allocate("large", "p", Claim{Memory: 2 * gi}); !slices.Equal(on, []int{1}) {
		t.Errorf("afterwards large is on %v", on)
	}
}

// A claim is contested while containers of two pods that run name it, whatever else they have.
func TestContestedClaims(t *testing.T) {
	pod := func(uid string, claims map[string]heldClaim, containers ...LiveContainer) LivePod {
		return LivePod{Pod: &pods.Pod{Ref: pods.Ref{UID: uid}}, Claims: claims, Containers: containers}
	}
	names := func(claims ...string) LiveContainer { return LiveContainer{Claims: claims} }
	both := map[string]heldClaim{"a": {uid: "1"}, "b": {uid: "2"}}
	for name, test := range map[string]struct {
		pods []LivePod
		want map[string]bool
	}{
		"of one pod":        {[]LivePod{pod("p", both, names("a", "b"), names("a"))}, map[string]bool{}},
		"of two pods":       {[]LivePod{pod("p", both, names("a", "b")), pod("q", both, names("b"))}, map[string]bool{"2": true}},
		"of one that waits": {[]LivePod{pod("p", both, names("a")), pod("q", both)}, map[string]bool{}},
		"of the same name":  {[]LivePod{pod("p", both, names("a")), pod("q", map[string]heldClaim{"a": {uid: "3"}}, names("a"))}, map[string]bool{}},
		"and back again":    {[]LivePod{pod("p", both, names("a")), pod("q", both, names("a")), pod("p", both, names("a"))}, map[string]bool{"1": true}},
	} {
		if got := contested(test.pods); !maps.Equal(got, test.want) {
			t.Errorf("%s: contested are %v, want %v", name, got, test.want)
		}
	}
}

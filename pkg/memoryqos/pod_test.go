package memoryqos_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

func settings(policy memoryqos.ReservationPolicy) memoryqos.Settings {
	return memoryqos.Settings{Factor: ptr(0.9), Reservation: policy, NodeAllocatable: 8 * gi}
}

// part is a container of a pod; its values are what the settings give it.
func part(s memoryqos.Settings, class memoryqos.QOSClass, kind memoryqos.Kind, request, limit uint64) memoryqos.PodContainer {
	return memoryqos.PodContainer{Kind: kind, Request: request, Limit: limit,
		Values: ptr(s.Container(memoryqos.Container{Class: class, Request: request, Limit: limit}, memoryqos.Overrides{}))}
}

// TestPodSums goes through every class and policy with every shape of pod. The amount is what Kubernetes computes as the
// pod's request; the class and the policy say where it goes. No pod has a memory.high.
func TestPodSums(t *testing.T) {
	type shape struct {
		kinds      []memoryqos.Kind
		requests   []uint64 // in Mi
		overhead   uint64
		podRequest *uint64
		podLimit   *uint64
		amount     uint64
	}
	const app, init, sidecar, ephemeral = memoryqos.App, memoryqos.Init, memoryqos.Sidecar, memoryqos.Ephemeral
	type kinds = []memoryqos.Kind
	type sizes = []uint64
	shapes := map[string]shape{
		"no container yet":              {},
		"no container yet, overhead":    {overhead: 10, amount: 10},
		"one app":                       {kinds: kinds{app}, requests: sizes{64}, amount: 64},
		"two apps":                      {kinds: kinds{app, app}, requests: sizes{64, 32}, amount: 96},
		"small init":                    {kinds: kinds{init, app, app}, requests: sizes{80, 64, 32}, amount: 96},
		"large init":                    {kinds: kinds{init, app, app}, requests: sizes{128, 64, 32}, amount: 128},
		"inits are not added up":        {kinds: kinds{init, init, app}, requests: sizes{60, 50, 64}, amount: 64},
		"sidecar":                       {kinds: kinds{sidecar, app}, requests: sizes{16, 64}, amount: 80},
		"init after sidecar":            {kinds: kinds{sidecar, init, app}, requests: sizes{16, 100, 64}, amount: 116},
		"init before sidecar":           {kinds: kinds{init, sidecar, app}, requests: sizes{100, 16, 64}, amount: 100},
		"two sidecars around an init":   {kinds: kinds{sidecar, init, sidecar, app}, requests: sizes{16, 100, 32, 64}, amount: 116},
		"sidecars alone":                {kinds: kinds{sidecar, sidecar}, requests: sizes{16, 32}, amount: 48},
		"ephemeral adds nothing":        {kinds: kinds{app, ephemeral}, requests: sizes{64, 999}, amount: 64},
		"overhead":                      {kinds: kinds{app}, requests: sizes{64}, overhead: 10, amount: 74},
		"overhead and init":             {kinds: kinds{init, app}, requests: sizes{128, 64}, overhead: 10, amount: 138},
		"pod-level request":             {kinds: kinds{app}, requests: sizes{64}, podRequest: ptr[uint64](200), amount: 200},
		"pod-level request, overhead":   {kinds: kinds{app}, requests: sizes{64}, overhead: 10, podRequest: ptr[uint64](200), amount: 210},
		"pod-level request, init":       {kinds: kinds{init, app}, requests: sizes{128, 64}, podRequest: ptr[uint64](200), amount: 200},
		"pod-level request and limit":   {kinds: kinds{app}, requests: sizes{64}, podRequest: ptr[uint64](100), podLimit: ptr[uint64](300), amount: 100},
		"pod-level limit":               {kinds: kinds{app}, requests: sizes{64}, podLimit: ptr[uint64](300), amount: 64},
		"pod-level limit, overhead":     {kinds: kinds{app}, requests: sizes{64}, overhead: 10, podLimit: ptr[uint64](300), amount: 74},
		"pod-level request below parts": {kinds: kinds{app}, requests: sizes{64}, podRequest: ptr[uint64](10), amount: 10},
		"pod-level request, init above": {kinds: kinds{init, app}, requests: sizes{128, 64}, overhead: 10, podRequest: ptr[uint64](100), amount: 110},
		"pod-level request of nothing":  {kinds: kinds{app}, requests: sizes{64}, podRequest: ptr[uint64](0), amount: 0},
	}
	policies := []memoryqos.ReservationPolicy{memoryqos.None, memoryqos.TieredReservation, memoryqos.HardReservation}
	for name, shape := range shapes {
		for _, class := range []memoryqos.QOSClass{memoryqos.Guaranteed, memoryqos.Burstable, memoryqos.BestEffort} {
			for _, policy := range policies {
				// A static pod is no different: its containers count like any.
				t.Run(string(class)+"/"+string(policy)+"/"+name, func(t *testing.T) {
					s := settings(policy)
					p := memoryqos.Pod{Class: class, Overhead: shape.overhead * mi}
					for i, kind := range shape.kinds {
						p.Containers = append(p.Containers, part(s, class, kind, shape.requests[i]*mi, 0))
					}
					scale := func(v *uint64) *uint64 {
						if v == nil {
							return nil
						}
						return ptr(*v * mi)
					}
					p.PodRequest, p.PodLimit = scale(shape.podRequest), scale(shape.podLimit)
					want := memoryqos.Values{}
					if amount := shape.amount * mi; amount > 0 && class != memoryqos.BestEffort {
						switch {
						case policy == memoryqos.HardReservation, policy == memoryqos.TieredReservation && class == memoryqos.Guaranteed:
							want.Min = &amount
						case policy == memoryqos.TieredReservation:
							want.Low = &amount
						}
					}
					if diff := cmp.Diff(want, s.Pod(p)); diff != "" {
						t.Error(diff)
					}
				})
			}
		}
	}
}

func TestPodCarriesWhatItsContainersReallyGot(t *testing.T) {
	s := settings(memoryqos.TieredReservation)
	s.GuaranteedHeadroom = 0.02
	p := memoryqos.Pod{Class: memoryqos.Guaranteed, Overhead: mi, Containers: []memoryqos.PodContainer{
		part(s, memoryqos.Guaranteed, memoryqos.App, 100*mi, 100*mi),
		part(s, memoryqos.Guaranteed, memoryqos.Sidecar, 200*mi, 200*mi),
	}}
	if diff := cmp.Diff(values(295*mi, unset, unset), s.Pod(p)); diff != "" {
		t.Error(diff)
	}
}

// TestPodKeepsItsSumForItsLife goes through the lives of pods whose spec is known: containers that have not begun or have ended
// count like those that live.
func TestPodKeepsItsSumForItsLife(t *testing.T) {
	tiered := settings(memoryqos.TieredReservation)
	careful := tiered
	careful.GuaranteedHeadroom = 0.02
	const app, init, sidecar, ephemeral = memoryqos.App, memoryqos.Init, memoryqos.Sidecar, memoryqos.Ephemeral
	of := func(kind memoryqos.Kind, request, limit uint64) memoryqos.PodContainer {
		return memoryqos.PodContainer{Kind: kind, Request: request * mi, Limit: limit * mi}
	}
	tests := map[string]struct {
		settings memoryqos.Settings
		class    memoryqos.QOSClass
		spec     []memoryqos.PodContainer
		overhead uint64
		podLimit *uint64
		phases   []string // a letter for each container of the spec that lives
		want     memoryqos.Values
	}{
		"an init container's peak, as kubelet 1.36.3": {settings: tiered, class: memoryqos.Burstable,
			spec: []memoryqos.PodContainer{of(init, 124, 124), of(app, 32, 64)}, phases: []string{"", "a", "", "b", "ab"},
			want: values(130023424, unset, unset)},
		"sidecars and inits in turn, as kubelet 1.36.3": {settings: tiered, class: memoryqos.Burstable,
			spec:   []memoryqos.PodContainer{of(sidecar, 16, 0), of(init, 84, 84), of(sidecar, 32, 0), of(app, 48, 0)},
			phases: []string{"", "a", "ab", "a", "ac", "acd", "cd"}, want: values(104857600, unset, unset)},
		"apps that begin one by one": {settings: tiered, class: memoryqos.Burstable,
			spec: []memoryqos.PodContainer{of(app, 64, 0), of(app, 32, 0), of(ephemeral, 0, 0)}, overhead: 10,
			phases: []string{"", "a", "ab", "b", "abc"}, want: values(106*mi, unset, unset)},
		"Guaranteed, with the headroom of each container": {settings: careful, class: memoryqos.Guaranteed,
			spec: []memoryqos.PodContainer{of(init, 200, 200), of(app, 50, 50), of(app, 50, 50)}, overhead: 1,
			phases: []string{"", "a", "b", "bc"}, want: values(197*mi, unset, unset)},
		"BestEffort": {settings: tiered, class: memoryqos.BestEffort, spec: []memoryqos.PodContainer{of(app, 0, 0)}, phases: []string{"", "a"}},
	}
	for name, test := range tests {
		for _, living := range test.phases {
			t.Run(name+"/"+living, func(t *testing.T) {
				p := memoryqos.Pod{Class: test.class, Overhead: test.overhead * mi, PodLimit: test.podLimit}
				for i, c := range test.spec {
					if strings.ContainsRune(living, rune('a'+i)) {
						c = part(test.settings, test.class, c.Kind, c.Request, c.Limit)
					}
					p.Containers = append(p.Containers, c)
				}
				want := test.want
				if test.class == memoryqos.Burstable {
					want.Min, want.Low = nil, want.Min
				}
				if diff := cmp.Diff(want, test.settings.Pod(p)); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

func TestContainersThatDoNotLiveCountWithWhatTheyWouldGet(t *testing.T) {
	s := settings(memoryqos.TieredReservation)
	s.GuaranteedHeadroom = 0.02
	tests := map[string]struct {
		pod  memoryqos.Pod
		want memoryqos.Values
	}{
		"its pod's annotations": {memoryqos.Pod{Class: memoryqos.Burstable, Containers: []memoryqos.PodContainer{
			{Request: 10 * mi, Overrides: memoryqos.Overrides{Reservation: memoryqos.ReserveMin}},
			{Request: 20 * mi, Overrides: memoryqos.Overrides{Reservation: memoryqos.ReserveNone}}, {Request: 40 * mi},
		}}, values(10*mi, 40*mi, unset)},
		"the pod's limit, where it has none of its own": {memoryqos.Pod{Class: memoryqos.Guaranteed, PodLimit: ptr[uint64](100 * mi), Containers: []memoryqos.PodContainer{
			{Request: 100 * mi},
		}}, values(98*mi, unset, unset)},
		"a neighbor that was resized beyond the spec": {memoryqos.Pod{Class: memoryqos.Burstable, Containers: []memoryqos.PodContainer{
			{Request: 10 * mi, Values: ptr(values(unset, 30*mi, unset))}, {Request: 20 * mi},
		}}, values(unset, 50*mi, unset)},
		"a neighbor that was resized below the spec": {memoryqos.Pod{Class: memoryqos.Burstable, Containers: []memoryqos.PodContainer{
			{Request: 10 * mi, Values: ptr(values(unset, 5*mi, unset))}, {Request: 20 * mi},
		}}, values(unset, 25*mi, unset)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, s.Pod(test.pod)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestAPodIsProtectedWithItsClaims: claimed memory belongs to the pod, unless the pod has a request of its own.
func TestAPodIsProtectedWithItsClaims(t *testing.T) {
	s := settings(memoryqos.TieredReservation)
	careful := s
	careful.GuaranteedHeadroom = 0.6
	two := []memoryqos.PodContainer{{Request: 2 * gi, Limit: 4 * gi, Claimed: 5 * gi}, {Request: 4 * gi, Limit: 8 * gi, Claimed: 5 * gi}}
	tests := map[string]struct {
		settings memoryqos.Settings
		pod      memoryqos.Pod
		want     memoryqos.Values
	}{
		"1Gi and a claim of 5Gi": {s, memoryqos.Pod{Class: memoryqos.Burstable, Claimed: 5 * gi,
			Containers: []memoryqos.PodContainer{{Request: gi, Limit: 2 * gi, Claimed: 5 * gi}}}, values(unset, 6*gi, unset)},
		"a claim of two containers":   {s, memoryqos.Pod{Class: memoryqos.Burstable, Claimed: 5 * gi, Containers: two}, values(unset, 11*gi, unset)},
		"Guaranteed, with overhead":   {s, memoryqos.Pod{Class: memoryqos.Guaranteed, Claimed: 5 * gi, Overhead: mi, Containers: two}, values(11*gi+mi, unset, unset)},
		"the headroom counts them in": {careful, memoryqos.Pod{Class: memoryqos.Guaranteed, Claimed: 5 * gi, Containers: two}, values(11*gi, unset, unset)},
		"a pod with a request of its own": {s, memoryqos.Pod{Class: memoryqos.Burstable, Claimed: 5 * gi, PodRequest: ptr[uint64](8 * gi), Containers: two},
			values(unset, 8*gi, unset)},
		"BestEffort": {s, memoryqos.Pod{Class: memoryqos.BestEffort, Claimed: 5 * gi}, memoryqos.Values{}},
		"part of a container's value": {s, memoryqos.Pod{Class: memoryqos.Burstable, Claimed: 5 * gi, Containers: []memoryqos.PodContainer{
			{Mapped: 5 * gi, Values: ptr(values(unset, 6*gi, unset))}, {Request: gi},
		}}, values(unset, 7*gi, unset)},
		"part of one, and more of others": {s, memoryqos.Pod{Class: memoryqos.Guaranteed, Claimed: 5 * gi, Containers: []memoryqos.PodContainer{
			{Mapped: 2 * gi, Values: ptr(values(3*gi, unset, unset))},
		}}, values(6*gi, unset, unset)},
		"part of an init container's": {s, memoryqos.Pod{Class: memoryqos.Burstable, Claimed: 2 * gi, Containers: []memoryqos.PodContainer{
			{Kind: memoryqos.Init, Mapped: 2 * gi, Values: ptr(values(unset, 3*gi, unset))}, {Request: 5 * gi},
		}}, values(unset, 7*gi, unset)},
		"beyond the headroom of a container": {careful, memoryqos.Pod{Class: memoryqos.Guaranteed, Claimed: 5 * gi, Containers: []memoryqos.PodContainer{
			{Mapped: 5 * gi, Values: ptr(values(2*gi, unset, unset))},
		}}, values(5*gi, unset, unset)},
		"in the other file of a container that wishes it": {s, memoryqos.Pod{Class: memoryqos.Burstable, Claimed: 2 * gi, Containers: []memoryqos.PodContainer{
			{Mapped: 2 * gi, Values: ptr(values(3*gi, unset, unset))},
		}}, values(3*gi, 2*gi, unset)},
		"part of a value, beside a request of the pod": {s, memoryqos.Pod{Class: memoryqos.Burstable, Claimed: 2 * gi, PodRequest: ptr[uint64](8 * gi),
			Containers: []memoryqos.PodContainer{{Mapped: 2 * gi, Values: ptr(values(3*gi, unset, unset))}}}, values(3*gi, 5*gi, unset)},
		"absurdly much of it": {s, memoryqos.Pod{Class: memoryqos.Burstable, Claimed: math.MaxUint64, Containers: two}, memoryqos.Values{Low: ptr[uint64](math.MaxUint64)}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, test.settings.Pod(test.pod)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPodWithMixedWishesSumsEachFile(t *testing.T) {
	s := settings(memoryqos.TieredReservation)
	p := memoryqos.Pod{Class: memoryqos.Burstable, Overhead: mi, Containers: []memoryqos.PodContainer{
		{Values: ptr(values(10*mi, unset, unset))}, {Values: ptr(values(unset, 20*mi, unset))}, {Values: ptr(values(unset, unset, gi))},
	}}
	tests := map[string]struct {
		wish memoryqos.Reservation
		want memoryqos.Values
	}{
		"nothing wished":         {"", values(10*mi, 21*mi, unset)},
		"the pod wishes min":     {memoryqos.ReserveMin, values(11*mi, 20*mi, unset)},
		"the pod wishes nothing": {memoryqos.ReserveNone, values(10*mi, 20*mi, unset)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p.Overrides.Reservation = test.wish
			if diff := cmp.Diff(test.want, s.Pod(p)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPodIsNotProtectedBeyondItsOwnRequest has containers that claim more than their pod: they share what it has.
func TestPodIsNotProtectedBeyondItsOwnRequest(t *testing.T) {
	s := settings(memoryqos.TieredReservation)
	s.GuaranteedHeadroom = 0.02
	inherited := part(s, memoryqos.Guaranteed, memoryqos.App, 100*mi, 100*mi) // the pod's limit, taken for its request
	three := []memoryqos.PodContainer{inherited, inherited, inherited}
	mixed := []memoryqos.PodContainer{{Values: ptr(values(10*mi, unset, unset))}, {Values: ptr(values(unset, 20*mi, unset))}}
	wish := func(r memoryqos.Reservation) memoryqos.Overrides { return memoryqos.Overrides{Reservation: r} }
	tests := map[string]struct {
		pod  memoryqos.Pod
		want memoryqos.Values
	}{
		"Guaranteed by spec.resources, one container asks": {memoryqos.Pod{
			Class: memoryqos.Guaranteed, PodRequest: ptr[uint64](4 * gi), PodLimit: ptr[uint64](4 * gi),
			Containers: []memoryqos.PodContainer{{Request: 2 * gi, Limit: 2 * gi}, {}, {}},
		}, values(4294967296, unset, unset)},
		"two files, low is the pod's":         {memoryqos.Pod{Class: memoryqos.Burstable, PodRequest: ptr[uint64](25 * mi), Containers: mixed}, values(10*mi, 15*mi, unset)},
		"two files, min is the pod's":         {memoryqos.Pod{Class: memoryqos.Burstable, PodRequest: ptr[uint64](25 * mi), Containers: mixed, Overrides: wish(memoryqos.ReserveMin)}, values(10*mi, 15*mi, unset)},
		"two files, the pod wishes nothing":   {memoryqos.Pod{Class: memoryqos.Burstable, PodRequest: ptr[uint64](25 * mi), Containers: mixed, Overrides: wish(memoryqos.ReserveNone)}, values(10*mi, 15*mi, unset)},
		"two files, min is the pod's, room":   {memoryqos.Pod{Class: memoryqos.Burstable, PodRequest: ptr[uint64](50 * mi), Containers: mixed, Overrides: wish(memoryqos.ReserveMin)}, values(30*mi, 20*mi, unset)},
		"memory.min alone is more":            {memoryqos.Pod{Class: memoryqos.Burstable, PodRequest: ptr[uint64](5 * mi), Containers: mixed}, values(5*mi, unset, unset)},
		"spec not known":                      {memoryqos.Pod{Class: memoryqos.Guaranteed, CgroupLimit: 100 * mi, Overhead: mi, Containers: three}, values(101*mi, unset, unset)},
		"spec not known, one container":       {memoryqos.Pod{Class: memoryqos.Guaranteed, CgroupLimit: 100 * mi, Containers: three[:1]}, values(98*mi, unset, unset)},
		"spec not known, nor the limit":       {memoryqos.Pod{Class: memoryqos.Guaranteed, Containers: three}, values(294*mi, unset, unset)},
		"Burstable: its limit is no request":  {memoryqos.Pod{Class: memoryqos.Burstable, CgroupLimit: 10 * mi, Containers: mixed}, values(10*mi, 20*mi, unset)},
		"its request counts before its limit": {memoryqos.Pod{Class: memoryqos.Guaranteed, PodRequest: ptr[uint64](50 * mi), CgroupLimit: 100 * mi, Containers: three}, values(50*mi, unset, unset)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, s.Pod(test.pod)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAncestorsAreTheKubeletsSums(t *testing.T) {
	type pod struct {
		class   memoryqos.QOSClass
		request uint64
	}
	kep := []pod{{memoryqos.Guaranteed, 128}, {memoryqos.Burstable, 128}, {memoryqos.Burstable, 256}}
	// What a kubelet 1.36.3 was seen to set; it leaves memory.low of kubepods at 0, which cancels what is below.
	seen := []pod{{memoryqos.Guaranteed, 64}, {memoryqos.Burstable, 64}, {memoryqos.Burstable, 64}, {memoryqos.BestEffort, 0}}
	tests := map[string]struct {
		policy memoryqos.ReservationPolicy
		pods   []pod
		want   memoryqos.Levels
	}{
		"KEP-2570, tiered": {memoryqos.TieredReservation, kep, memoryqos.Levels{
			Kubepods: values(512*mi, 384*mi, unset), Burstable: values(unset, 384*mi, unset)}},
		"KEP-2570, hard": {memoryqos.HardReservation, kep, memoryqos.Levels{
			Kubepods: values(512*mi, unset, unset), Burstable: values(384*mi, unset, unset)}},
		"KEP-2570, none": {memoryqos.None, kep, memoryqos.Levels{}},
		"seen, tiered": {memoryqos.TieredReservation, seen, memoryqos.Levels{
			Kubepods: values(201326592, 134217728, unset), Burstable: values(unset, 134217728, unset)}},
		"Guaranteed alone": {memoryqos.TieredReservation, kep[:1], memoryqos.Levels{Kubepods: values(128*mi, unset, unset)}},
		"no pods":          {memoryqos.TieredReservation, nil, memoryqos.Levels{}},
		"absurd sums do not wrap around": {memoryqos.HardReservation,
			[]pod{{memoryqos.Burstable, math.MaxUint64 / mi}, {memoryqos.Burstable, math.MaxUint64 / mi}},
			memoryqos.Levels{Kubepods: memoryqos.Values{Min: ptr[uint64](math.MaxUint64)}, Burstable: memoryqos.Values{Min: ptr[uint64](math.MaxUint64)}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := settings(test.policy)
			var pods []memoryqos.PodValues
			for _, p := range test.pods {
				pods = append(pods, memoryqos.PodValues{Class: p.class, Values: s.Pod(memoryqos.Pod{Class: p.class,
					Containers: []memoryqos.PodContainer{part(s, p.class, memoryqos.App, p.request*mi, 0)}})})
			}
			if diff := cmp.Diff(test.want, memoryqos.Ancestors(slices.Values(pods))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestTheSystemPartitionHasSumsOfItsOwn: it carries all of its pods, as kubepods does, and has a Burstable level of its own.
func TestTheSystemPartitionHasSumsOfItsOwn(t *testing.T) {
	pod := func(class memoryqos.QOSClass, system bool, min, low uint64) memoryqos.PodValues {
		return memoryqos.PodValues{Class: class, System: system, Values: values(min, low, unset)}
	}
	got := memoryqos.Ancestors(slices.Values([]memoryqos.PodValues{
		pod(memoryqos.Guaranteed, false, 1, unset), pod(memoryqos.Burstable, false, unset, 10),
		pod(memoryqos.Guaranteed, true, 100, unset), pod(memoryqos.Burstable, true, unset, 1000), pod(memoryqos.Burstable, true, 20000, unset),
		pod(memoryqos.BestEffort, true, unset, unset),
	}))
	want := memoryqos.Levels{
		Kubepods: values(21111, 1010, unset), Burstable: values(unset, 10, unset),
		System: values(21100, 1000, unset), SystemBurstable: values(20000, 1000, unset),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestKindsHaveNames(t *testing.T) {
	for kind, want := range map[memoryqos.Kind]string{
		memoryqos.App: "app", memoryqos.Init: "init", memoryqos.Sidecar: "sidecar", memoryqos.Ephemeral: "ephemeral",
	} {
		if got := kind.String(); got != want {
			t.Errorf("%d is called %q, want %q", kind, got, want)
		}
		var back memoryqos.Kind
		if text, err := kind.MarshalText(); err != nil || back.UnmarshalText(text) != nil || back != kind {
			t.Errorf("%v is written as %q (%v) and read as %v", kind, text, err, back)
		}
	}
	err := new(memoryqos.Kind).UnmarshalText([]byte("App"))
	if want := `kind "App": want app, init, sidecar or ephemeral`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

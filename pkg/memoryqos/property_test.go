package memoryqos_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

var (
	classes  = []memoryqos.QOSClass{memoryqos.Guaranteed, memoryqos.Burstable, memoryqos.BestEffort}
	policies = []memoryqos.ReservationPolicy{memoryqos.None, memoryqos.TieredReservation, memoryqos.HardReservation}
	wishes   = []memoryqos.Reservation{"", memoryqos.ReserveNone, memoryqos.ReserveLow, memoryqos.ReserveMin}
	pages    = []uint64{4096, 16384, 65536}
)

// anyCase makes settings, a container and wishes; sizes go over all magnitudes.
func anyCase(r *rand.Rand) (memoryqos.Settings, memoryqos.Container, memoryqos.Overrides) {
	size := func() uint64 { return r.Uint64N(1 << (1 + r.UintN(50))) }
	s := memoryqos.Settings{
		Factor: ptr(1 - r.Float64()), MinimumFactor: r.Float64(), Reservation: policies[r.IntN(3)],
		GuaranteedHeadroom: []float64{0, 0.02, r.Float64()}[r.IntN(3)], NodeAllocatable: size(), PageSize: pages[r.IntN(3)],
	}
	if r.IntN(2) == 0 {
		s.CacheRoom = r.Float64() / 2
	}
	c := memoryqos.Container{Class: classes[r.IntN(3)], Request: size()}
	if r.IntN(3) > 0 {
		c.Limit = c.Request + size()
	}
	if r.IntN(3) == 0 { // a pod with resources of its own
		c.OwnLimit = ptr([]uint64{0, c.Request, c.Limit}[r.IntN(3)])
	}
	o := memoryqos.Overrides{Reservation: wishes[r.IntN(4)]}
	if r.IntN(3) == 0 {
		o.Factor = ptr(1 - r.Float64())
	}
	if r.IntN(3) == 0 {
		o.High = ptr(size())
	}
	return s, c, o
}

func seeded(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestMemoryHighLiesBetweenRequestAndLimitOnAPage(t *testing.T) {
	r := seeded(t)
	for range 200_000 {
		s, c, o := anyCase(r)
		v := s.Container(c, o)
		if v.High == nil {
			continue
		}
		top := c.Limit
		if top == 0 || c.OwnLimit != nil && *c.OwnLimit == 0 {
			top = s.NodeAllocatable
		}
		if s.IsCacheRoom(c, o) {
			if least := min(c.Limit/2, c.Limit-mi); *v.High > c.Limit-mi || *v.High+s.PageSize <= least || *v.High%s.PageSize != 0 {
				t.Fatalf("%+v %+v %+v: memory.high %d leaves no room, or too much", s, c, o, *v.High)
			}
			continue
		}
		if *v.High <= c.Request || *v.High > top || *v.High%s.PageSize != 0 {
			t.Fatalf("%+v %+v %+v: memory.high %d", s, c, o, *v.High)
		}
	}
}

func TestProtectionNeverExceedsRequestAndHeadroom(t *testing.T) {
	r := seeded(t)
	for range 200_000 {
		s, c, o := anyCase(r)
		v := s.Container(c, o)
		for _, p := range []*uint64{v.Min, v.Low} {
			if p != nil && (*p > c.Request || *p == 0 || c.Class == memoryqos.BestEffort) {
				t.Fatalf("%+v %+v %+v: protection %d", s, c, o, *p)
			}
		}
		if v.Min != nil && c.Limit > 0 && float64(*v.Min) > float64(c.Limit)*(1-s.GuaranteedHeadroom) {
			t.Fatalf("%+v %+v %+v: memory.min %d leaves no headroom", s, c, o, *v.Min)
		}
		if v.Min != nil && v.Low != nil {
			t.Fatalf("%+v %+v %+v: one request in two files", s, c, o)
		}
	}
}

func TestMemoryHighGrowsWithRequestLimitAndFactor(t *testing.T) {
	r := seeded(t)
	high := func(s memoryqos.Settings, c memoryqos.Container) (uint64, bool) {
		if v := s.Container(c, memoryqos.Overrides{}); v.High != nil {
			return *v.High, true
		}
		return 0, false
	}
	for range 200_000 {
		s, c, _ := anyCase(r)
		s.CacheRoom = 0 // it ends where the formula has a value that is less
		before, ok := high(s, c)
		if !ok {
			continue
		}
		more, grown := s, c
		switch r.IntN(3) {
		case 0:
			more.Factor = ptr(*s.Factor + (1-*s.Factor)*r.Float64())
		case 1:
			grown.Request += r.Uint64N(before - c.Request)
		case 2:
			more.NodeAllocatable += r.Uint64N(gi)
			if c.Limit > 0 {
				grown.Limit += r.Uint64N(gi)
			}
		}
		if after, ok := high(more, grown); ok && after < before {
			t.Fatalf("%+v %+v: %d, but %+v %+v: %d", s, c, before, more, grown, after)
		}
	}
}

func TestEveryLevelPromisesWhatIsBelowIt(t *testing.T) {
	r := seeded(t)
	get := func(v *uint64) uint64 {
		if v == nil {
			return 0
		}
		return *v
	}
	for range 2_000 {
		s, _, _ := anyCase(r)
		var pods []memoryqos.PodValues
		var min, low, burstableMin, burstableLow uint64
		for range r.IntN(8) {
			p := memoryqos.Pod{Class: classes[r.IntN(3)], Overhead: r.Uint64N(mi), Overrides: memoryqos.Overrides{Reservation: wishes[r.IntN(4)]}}
			var hard, soft uint64
			for range r.IntN(4) {
				_, c, o := anyCase(r)
				c.Class = p.Class
				v := s.Container(c, o)
				p.Containers = append(p.Containers, memoryqos.PodContainer{Kind: memoryqos.Kind(2 * r.IntN(2)), Request: c.Request, Limit: c.Limit, Values: &v})
				hard, soft = hard+get(v.Min), soft+get(v.Low)
			}
			v := s.Pod(p)
			if get(v.Min) < hard || get(v.Low) < soft || get(v.Min)+get(v.Low) > hard+soft+p.Overhead {
				t.Fatalf("%+v: %+v, containers have %d and %d", p, v, hard, soft)
			}
			pods = append(pods, memoryqos.PodValues{Class: p.Class, Values: v})
			min, low = min+get(v.Min), low+get(v.Low)
			if p.Class == memoryqos.Burstable {
				burstableMin, burstableLow = burstableMin+get(v.Min), burstableLow+get(v.Low)
			}
		}
		l := memoryqos.Ancestors(slices.Values(pods))
		if get(l.Kubepods.Min) != min+low || get(l.Kubepods.Low) != low || get(l.Burstable.Min) != burstableMin || get(l.Burstable.Low) != burstableLow {
			t.Fatalf("%+v: %+v", pods, l)
		}
	}
}

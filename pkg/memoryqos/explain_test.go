package memoryqos_test

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

func TestExplainGivesTheStepsOfEachDecision(t *testing.T) {
	type overrides = memoryqos.Overrides
	const (
		guaranteed  = memoryqos.Guaranteed
		burstable   = memoryqos.Burstable
		bestEffort  = memoryqos.BestEffort
		noRequest   = "no memory.min and no memory.low: the container has no request, or none that is known"
		tieredLow   = "memory.low = request = 500Mi, TieredReservation"
		unprotected = "no memory.min and no memory.low (Burstable, None)"
	)
	tests := map[string]struct {
		class          memoryqos.QOSClass
		request, limit uint64
		change         func(*memoryqos.Settings, *memoryqos.Container)
		wish           overrides
		high           string
		protection     string
		oomGroup       string
	}{
		"the formula": {class: burstable, request: 500 * mi, limit: 1000 * mi,
			high:       "memory.high = request 500Mi + (limit 1000Mi - request) * 0.9 = 950Mi, in whole pages of 4Ki",
			protection: tieredLow},
		"the formula with large pages": {class: burstable, request: 500 * mi, limit: 1000 * mi,
			change:     func(s *memoryqos.Settings, _ *memoryqos.Container) { s.PageSize = 65536 },
			high:       "memory.high = request 500Mi + (limit 1000Mi - request) * 0.9 = 950Mi, in whole pages of 64Ki",
			protection: tieredLow},
		"no limit": {class: bestEffort,
			high:       "memory.high = request 0 + (node allocatable 8Gi - request) * 0.9 = 7.2Gi, in whole pages of 4Ki",
			protection: noRequest},
		"the limit is the pod's": {class: guaranteed, request: gi, limit: 4 * gi,
			change:     func(_ *memoryqos.Settings, c *memoryqos.Container) { c.OwnLimit = new(uint64) },
			high:       "memory.high = request 1Gi + (node allocatable 8Gi - request) * 0.9 = 7.3Gi, in whole pages of 4Ki",
			protection: "memory.min = request = 1Gi, TieredReservation"},
		"more than the node": {class: burstable, request: 9 * gi,
			high: "memory.high is not set: nothing lies between the request and the node allocatable of 8Gi", protection: "memory.low = request = 9Gi, TieredReservation"},
		"the pod's factor": {class: burstable, request: 500 * mi, limit: 1000 * mi, wish: overrides{Factor: ptr(0.5)},
			high:       "memory.high = request 500Mi + (limit 1000Mi - request) * 0.5 = 750Mi, in whole pages of 4Ki",
			protection: tieredLow},
		"the pod's value": {class: burstable, request: 500 * mi, limit: 1000 * mi, wish: overrides{High: ptr[uint64](600 * mi)},
			high: "memory.high = 600Mi, from the pod's annotation, within its request and limit", protection: tieredLow},
		"Guaranteed, with headroom": {class: guaranteed, request: gi, limit: gi,
			change:     func(s *memoryqos.Settings, _ *memoryqos.Container) { s.GuaranteedHeadroom = 0.02 },
			high:       "memory.high is not set: the container asks for its limit",
			protection: "memory.min = 1004Mi, TieredReservation: the limit less a share of 0.02 that stays reclaimable"},
		"Guaranteed, all of it": {class: guaranteed, request: gi, limit: gi,
			high: "memory.high is not set: the container asks for its limit", protection: "memory.min = request = 1Gi, TieredReservation"},
		"room for page cache": {class: guaranteed, request: gi, limit: gi,
			change:     func(s *memoryqos.Settings, _ *memoryqos.Container) { s.CacheRoom = 0.1 },
			high:       "memory.high = limit 1Gi less a share of 0.1 for page cache = 921.6Mi, where what writes files waits for the disk",
			protection: "memory.min = request = 1Gi, TieredReservation"},
		"the pod opts out": {class: burstable, request: 500 * mi, limit: 1000 * mi, wish: overrides{NoHigh: true, Reservation: memoryqos.ReserveMin},
			high: "memory.high is not set: the pod's annotation memory-high is off", protection: "memory.min = request = 500Mi, annotation min"},
		"an OOM kill ends the container": {class: burstable, request: 500 * mi, limit: 500 * mi, wish: overrides{OOMGroup: ptr[uint64](1)},
			high: "memory.high is not set: the container asks for its limit", protection: tieredLow,
			oomGroup: "memory.oom.group = 1, from the pod's annotation: an OOM kill ends the whole container"},
		"an OOM kill ends a process": {class: burstable, request: 500 * mi, limit: 500 * mi, wish: overrides{OOMGroup: ptr[uint64](0)},
			high: "memory.high is not set: the container asks for its limit", protection: tieredLow,
			oomGroup: "memory.oom.group = 0, from the pod's annotation: an OOM kill ends one process"},
		"no factor, no policy": {class: burstable, request: 500 * mi, limit: 1000 * mi,
			change: func(s *memoryqos.Settings, _ *memoryqos.Container) { s.Factor, s.Reservation = nil, memoryqos.None },
			high:   "memory.high is not set: memoryThrottlingFactor is not set", protection: unprotected},
		"an estimate": {class: burstable, request: 500 * mi, limit: 1000 * mi,
			change: func(_ *memoryqos.Settings, c *memoryqos.Container) { c.RequestError = 500 * mi },
			high: "memory.high is not set: the request is an estimate and may equal the limit," +
				" and a container that asks for its limit is not throttled",
			protection: tieredLow},
		"asks for its limit": {class: burstable, request: 500 * mi, limit: 500 * mi,
			high: "memory.high is not set: the container asks for its limit", protection: tieredLow},
		"the pod's value, no factor, asks for its limit": {class: burstable, request: 500 * mi, limit: 500 * mi, wish: overrides{High: ptr[uint64](gi)},
			change: func(s *memoryqos.Settings, _ *memoryqos.Container) { s.Factor = nil },
			high:   "memory.high is not set: the container asks for its limit", protection: tieredLow},
		"less than a page": {class: burstable, request: 4096, limit: 8192,
			high:       "memory.high is not set: rounded down to a page it would not exceed the request",
			protection: "memory.low = request = 4Ki, TieredReservation"},
		"the pod's value below its request": {class: burstable, request: 500 * mi, limit: 1000 * mi, wish: overrides{High: ptr[uint64](mi)},
			high: "memory.high is not set: the pod's annotation memory-high, in whole pages, does not exceed the request", protection: tieredLow},
		"headroom takes the only page": {class: guaranteed, request: 4096, limit: 4096,
			change:     func(s *memoryqos.Settings, _ *memoryqos.Container) { s.GuaranteedHeadroom = 0.02 },
			high:       "memory.high is not set: the container asks for its limit",
			protection: "no memory.min (TieredReservation): the limit less a share of 0.02 that stays reclaimable is no whole page"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, c := settings(memoryqos.TieredReservation), memoryqos.Container{Class: test.class, Request: test.request, Limit: test.limit}
			if test.change != nil {
				test.change(&s, &c)
			}
			_, got := s.Explain(c, test.wish)
			if byFormula := strings.HasPrefix(test.high, "memory.high = request"); byFormula != (got.Formula != memoryqos.Formula{}) {
				t.Errorf("the formula is %+v where %s", got.Formula, test.high)
			}
			got.Formula = memoryqos.Formula{}
			if diff := cmp.Diff(memoryqos.Steps{High: test.high, Protection: test.protection, OOMGroup: test.oomGroup}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestExplainNamesWhatContainerDecides: for every container the values are the same, and each that is set is in the text.
func TestExplainNamesWhatContainerDecides(t *testing.T) {
	r := seeded(t)
	for range 20_000 {
		s, c, o := anyCase(r)
		if r.IntN(3) == 0 {
			c.RequestError = r.Uint64N(gi)
		}
		o.NoHigh = r.IntN(8) == 0
		want := s.Container(c, o)
		got, steps := s.Explain(c, o)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%+v %+v %+v: %s", s, c, o, diff)
		}
		named(t, steps.High, "memory.high is not set: ", "memory.high = ", got.High)
		switch {
		case got.Low != nil:
			named(t, steps.Protection, "", "memory.low = ", got.Low)
		default:
			named(t, steps.Protection, "no memory.min", "memory.min = ", got.Min)
		}
	}
}

// named wants a value that is set in the text behind its name, and the other text where none is set.
func named(t *testing.T, text, unset, set string, value *uint64) {
	t.Helper()
	if value == nil {
		if !strings.HasPrefix(text, unset) {
			t.Fatalf("%q, but nothing is set", text)
		}
	} else if !strings.HasPrefix(text, set) || !says(text, *value) {
		t.Fatalf("%q, but %d is set", text, *value)
	}
}

var size = regexp.MustCompile(`= ([0-9.]+)([KMGTPE]?)`)

// says reports whether a text has a value behind an equals sign, with at least four digits.
func says(text string, value uint64) bool {
	for _, found := range size.FindAllStringSubmatch(text, -1) {
		number, err := strconv.ParseFloat(found[1], 64)
		bytes := math.Ldexp(number, 10*max(0, strings.Index(" KMGTPE", found[2])))
		if err == nil && math.Abs(bytes-float64(value)) <= 0.0005*float64(value) {
			return true
		}
	}
	return false
}

// TestOnlyValuesThatAreSetAreAllocated: the steps cost a create nothing.
func TestOnlyValuesThatAreSetAreAllocated(t *testing.T) {
	for name, test := range map[string]struct {
		container memoryqos.Container
		want      float64
	}{
		"low and high": {memoryqos.Container{Class: memoryqos.Burstable, Request: 500 * mi, Limit: gi}, 2},
		"min":          {memoryqos.Container{Class: memoryqos.Guaranteed, Request: gi, Limit: gi}, 1},
		"high":         {memoryqos.Container{Class: memoryqos.BestEffort}, 1},
		"none":         {memoryqos.Container{Class: memoryqos.BestEffort, Limit: 1}, 0},
	} {
		s := settings(memoryqos.TieredReservation)
		if got := testing.AllocsPerRun(100, func() { s.Container(test.container, memoryqos.Overrides{}) }); got != test.want {
			t.Errorf("%s: %v allocations, want %v", name, got, test.want)
		}
	}
}

// TestEnoughRequest: the request that is named puts memory.high where it should be, and a page less does not.
func TestEnoughRequest(t *testing.T) {
	factor := 0.9
	s := memoryqos.Settings{Factor: &factor, PageSize: 4096}
	for _, high := range []uint64{3 << 30, 3<<30 + 1, 4<<30 - 1<<20} {
		c := memoryqos.Container{Class: memoryqos.Burstable, Request: 1 << 20, Limit: 4 << 30}
		_, steps := s.Explain(c, memoryqos.Overrides{})
		c.Request = steps.Formula.EnoughRequest(high)
		if c.Request == 0 {
			if v := s.Container(memoryqos.Container{Class: memoryqos.Burstable, Request: 1, Limit: 4 << 30}, memoryqos.Overrides{}); *v.High < high {
				t.Errorf("no request is named for %d", high)
			}
			continue
		}
		v := s.Container(c, memoryqos.Overrides{})
		if *v.High+4096 < high {
			t.Errorf("a request of %d puts memory.high at %d, want %d", c.Request, *v.High, high)
		}
		c.Request -= 1 << 20
		if v = s.Container(c, memoryqos.Overrides{}); *v.High >= high {
			t.Errorf("a request of %d would do for %d", c.Request, high)
		}
	}
}

package memoryqos_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const (
	ki = 1 << 10
	mi = 1 << 20
	gi = 1 << 30

	unset = uint64(math.MaxUint64) // in tables: not set
)

func ptr[T any](v T) *T { return &v }

// values makes Values of numbers, with unset for nil.
func values(min, low, high uint64) memoryqos.Values {
	set := func(v uint64) *uint64 {
		if v == unset {
			return nil
		}
		return &v
	}
	return memoryqos.Values{Min: set(min), Low: set(low), High: set(high)}
}

func TestMemoryHighFollowsTheFormula(t *testing.T) {
	tests := map[string]struct {
		request, limit uint64
		factor         float64
		class          memoryqos.QOSClass
		alloc, page    uint64
		want           uint64
	}{
		"request 0 of 1000Mi":            {0, 1000 * mi, 0.9, "", 0, 0, 900 * mi},
		"request 100Mi of 1000Mi":        {100 * mi, 1000 * mi, 0.9, "", 0, 0, 910 * mi},
		"request 200Mi of 1000Mi":        {200 * mi, 1000 * mi, 0.9, "", 0, 0, 920 * mi},
		"request 300Mi of 1000Mi":        {300 * mi, 1000 * mi, 0.9, "", 0, 0, 930 * mi},
		"request 400Mi of 1000Mi":        {400 * mi, 1000 * mi, 0.9, "", 0, 0, 940 * mi},
		"request 500Mi of 1000Mi":        {500 * mi, 1000 * mi, 0.9, "", 0, 0, 950 * mi},
		"request 600Mi of 1000Mi":        {600 * mi, 1000 * mi, 0.9, "", 0, 0, 960 * mi},
		"request 700Mi of 1000Mi":        {700 * mi, 1000 * mi, 0.9, "", 0, 0, 970 * mi},
		"request 800Mi of 1000Mi":        {800 * mi, 1000 * mi, 0.9, "", 0, 0, 980 * mi},
		"request 900Mi of 1000Mi":        {900 * mi, 1000 * mi, 0.9, "", 0, 0, 990 * mi},
		"request equals limit":           {1000 * mi, 1000 * mi, 0.9, "", 0, 0, unset},
		"factor 0.6":                     {500 * mi, 1000 * mi, 0.6, "", 0, 0, 800 * mi},
		"factor 0.8":                     {500 * mi, 1000 * mi, 0.8, "", 0, 0, 900 * mi},
		"factor 0.4":                     {500 * mi, 1000 * mi, 0.4, "", 0, 0, 700 * mi},
		"800Mi, factor 0.6":              {800 * mi, 1000 * mi, 0.6, "", 0, 0, 920 * mi},
		"850Mi, factor 0.8":              {850 * mi, 1000 * mi, 0.8, "", 0, 0, 970 * mi},
		"500Mi of 1Gi":                   {500 * mi, gi, 0.9, "", 0, 0, 1018793984},
		"64Mi of 128Mi":                  {64 * mi, 128 * mi, 0.9, "", 0, 0, 127504384},
		"64Mi of 128Mi, pages of 64Ki":   {64 * mi, 128 * mi, 0.9, "", 0, 64 * ki, 127467520},
		"BestEffort":                     {0, 0, 0.9, memoryqos.BestEffort, 8 * gi, 0, 7730937856},
		"no limit":                       {gi, 0, 0.9, "", 8 * gi, 0, 7838314496},
		"no limit, beyond the node":      {9000 * mi, 0, 0.9, "", 8 * gi, 0, unset},
		"no limit, node unknown":         {gi, 0, 0.9, "", 0, 0, unset},
		"rounded down to the request":    {4096, 8192, 0.9, "", 0, 0, unset},
		"factor 1":                       {gi, 2 * gi, 1, "", 0, 0, 2 * gi},
		"factor 0":                       {gi, 2 * gi, 0, "", 0, 0, unset},
		"factor negative":                {gi, 2 * gi, -1, "", 0, 0, unset},
		"factor above 1":                 {gi, 2 * gi, 1.1, "", 0, 0, unset},
		"factor not a number":            {gi, 2 * gi, math.NaN(), "", 0, 0, unset},
		"Guaranteed":                     {gi, gi, 0.9, memoryqos.Guaranteed, 8 * gi, 0, unset},
		"Guaranteed by its pod":          {gi, 2 * gi, 0.9, memoryqos.Guaranteed, 8 * gi, 0, 2040107008},
		"Guaranteed, nothing of its own": {0, 0, 0.9, memoryqos.Guaranteed, 8 * gi, 0, 7730937856},
		"Burstable, nothing of its own":  {0, 0, 0.9, "", 8 * gi, 0, 7730937856},
		"limit below request":            {2 * gi, gi, 0.9, "", 8 * gi, 0, unset},
		"more than the kernel can count": {0, math.MaxUint64, 1, "", 0, 0, unset},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			class := test.class
			if class == "" {
				class = memoryqos.Burstable
			}
			s := memoryqos.Settings{Factor: &test.factor, NodeAllocatable: test.alloc, PageSize: test.page}
			got := s.Container(memoryqos.Container{Class: class, Request: test.request, Limit: test.limit}, memoryqos.Overrides{})
			if diff := cmp.Diff(values(unset, unset, test.want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestContainersOfAPodWithResourcesOfItsOwn has the containers of a pod that is Guaranteed by 4Gi in spec.resources, as the kubelet
// 1.37 has them: what counts is the container's own limit, not the pod's, which limits a container without one.
func TestContainersOfAPodWithResourcesOfItsOwn(t *testing.T) {
	tests := map[string]struct {
		request, own, limit uint64
		factor              *float64
		want                memoryqos.Values
	}{
		"all of its limit":             {2 * gi, 2 * gi, 2 * gi, ptr(0.9), values(2147483648, unset, unset)},
		"nothing":                      {0, 0, 4 * gi, ptr(0.9), values(unset, unset, 7730937856)},
		"a part of its limit":          {gi, 2 * gi, 2 * gi, ptr(0.9), values(1073741824, unset, 2040107008)},
		"a request alone":              {gi, 0, 4 * gi, ptr(0.9), values(1073741824, unset, 7838314496)},
		"a part, no factor":            {gi, 2 * gi, 2 * gi, nil, values(1073741824, unset, unset)},
		"nothing, no factor":           {0, 0, 4 * gi, nil, values(unset, unset, unset)},
		"a request of the pod's limit": {4 * gi, 0, 4 * gi, ptr(0.9), values(4294967296, unset, 8160436224)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := memoryqos.Settings{Factor: test.factor, Reservation: memoryqos.TieredReservation, NodeAllocatable: 8 * gi}
			got := s.Container(memoryqos.Container{
				Class: memoryqos.Guaranteed, Request: test.request, Limit: test.limit, OwnLimit: &test.own,
			}, memoryqos.Overrides{})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestClaimedMemoryRaisesTheLimit: memory.max and memory.high have what resource claims add, the request is the container's own.
func TestClaimedMemoryRaisesTheLimit(t *testing.T) {
	tests := map[string]struct {
		class               memoryqos.QOSClass
		request, own, limit uint64
		want                memoryqos.Values
	}{
		"1Gi of 2Gi without a claim": {memoryqos.Burstable, gi, 2 * gi, 2 * gi, values(unset, gi, 2040107008)},
		"1Gi of 2Gi, claim of 5Gi":   {memoryqos.Burstable, gi, 2 * gi, 7 * gi, values(unset, gi, 6871945216)},
		"all of its own limit":       {memoryqos.Guaranteed, 2 * gi, 2 * gi, 7 * gi, values(2*gi, unset, unset)},
		"no limit of its own":        {memoryqos.Burstable, gi, 0, 0, values(unset, gi, 7838314496)},
		"as much as limit and claim": {memoryqos.Burstable, 7 * gi, 8 * gi, 7 * gi, values(unset, 7*gi, unset)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := settings(memoryqos.TieredReservation).Container(memoryqos.Container{
				Class: test.class, Request: test.request, Limit: test.limit, OwnLimit: &test.own,
			}, memoryqos.Overrides{})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestHeadroomIsOfWhatLimitsTheContainer: a container without a limit of its own is killed at its pod's.
func TestHeadroomIsOfWhatLimitsTheContainer(t *testing.T) {
	s := memoryqos.Settings{Reservation: memoryqos.TieredReservation, GuaranteedHeadroom: 0.02}
	got := s.Container(memoryqos.Container{Class: memoryqos.Guaranteed, Request: 100 * mi, Limit: 100 * mi, OwnLimit: new(uint64)}, memoryqos.Overrides{})
	if diff := cmp.Diff(values(98*mi, unset, unset), got); diff != "" {
		t.Error(diff)
	}
}

func TestNoFactorMeansNoMemoryHigh(t *testing.T) {
	s := memoryqos.Settings{Reservation: memoryqos.TieredReservation, NodeAllocatable: 8 * gi}
	got := s.Container(memoryqos.Container{Class: memoryqos.Burstable, Request: gi, Limit: 2 * gi}, memoryqos.Overrides{})
	if diff := cmp.Diff(values(unset, gi, unset), got); diff != "" {
		t.Error(diff)
	}
}

// TestWhoMayAskForItsLimitIsNotThrottled: a request that is known only to within some bytes counts as the limit when it can be.
func TestWhoMayAskForItsLimitIsNotThrottled(t *testing.T) {
	type overrides = memoryqos.Overrides
	tests := map[string]struct {
		request, more, limit uint64
		wish                 overrides
		want                 uint64
	}{
		"exact, at the limit":             {1000 * mi, 0, 1000 * mi, overrides{}, unset},
		"exact, a page below":             {1000*mi - 4097, 0, 1000 * mi, overrides{}, 1000*mi - 4096},
		"the range ends below the limit":  {500 * mi, 500*mi - 1, 1000 * mi, overrides{}, 950 * mi},
		"the range ends at the limit":     {500 * mi, 500 * mi, 1000 * mi, overrides{}, unset},
		"the range goes beyond the limit": {500 * mi, 900 * mi, 1000 * mi, overrides{}, unset},
		"nothing is known":                {0, 1000 * mi, 1000 * mi, overrides{}, unset},
		"nothing is known, absurdly":      {gi, math.MaxUint64, 2 * gi, overrides{}, unset},
		"nothing is known, no limit":      {0, math.MaxInt64, 0, overrides{}, 7730937856},
		"the pod wishes a factor":         {500 * mi, 500 * mi, 1000 * mi, overrides{Factor: ptr(0.5)}, unset},
		"the pod wishes a quantity":       {500 * mi, 500 * mi, 1000 * mi, overrides{High: ptr[uint64](600 * mi)}, 600 * mi},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := settings(memoryqos.None).Container(memoryqos.Container{
				Class: memoryqos.Burstable, Request: test.request, RequestError: test.more, Limit: test.limit,
			}, test.wish)
			if diff := cmp.Diff(values(unset, unset, test.want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestProtectionFollowsClassAndPolicy(t *testing.T) {
	type container struct {
		class          memoryqos.QOSClass
		request, limit uint64
	}
	guaranteed := container{memoryqos.Guaranteed, 100 * mi, 100 * mi}
	burstable := container{memoryqos.Burstable, 100 * mi, 200 * mi}
	full := container{memoryqos.Burstable, 100 * mi, 100 * mi}
	unlimited := container{memoryqos.Burstable, 100 * mi, 0}
	const kept = 98 * mi // 2 % below 100 Mi
	tests := map[string]struct {
		policy    memoryqos.ReservationPolicy
		headroom  float64
		container container
		min, low  uint64
	}{
		"None, Guaranteed":                        {memoryqos.None, 0.02, guaranteed, unset, unset},
		"None, Burstable":                         {memoryqos.None, 0.02, burstable, unset, unset},
		"None, BestEffort":                        {memoryqos.None, 0.02, container{class: memoryqos.BestEffort}, unset, unset},
		"no policy, Guaranteed":                   {"", 0.02, guaranteed, unset, unset},
		"tiered, Guaranteed":                      {memoryqos.TieredReservation, 0.02, guaranteed, kept, unset},
		"tiered, Guaranteed like the kubelet":     {memoryqos.TieredReservation, 0, guaranteed, 100 * mi, unset},
		"tiered, Burstable":                       {memoryqos.TieredReservation, 0.02, burstable, unset, 100 * mi},
		"tiered, Burstable with request = limit":  {memoryqos.TieredReservation, 0.02, full, unset, 100 * mi},
		"tiered, Burstable without limit":         {memoryqos.TieredReservation, 0.02, unlimited, unset, 100 * mi},
		"tiered, Burstable without request":       {memoryqos.TieredReservation, 0.02, container{memoryqos.Burstable, 0, gi}, unset, unset},
		"tiered, BestEffort":                      {memoryqos.TieredReservation, 0.02, container{class: memoryqos.BestEffort}, unset, unset},
		"hard, Guaranteed":                        {memoryqos.HardReservation, 0.02, guaranteed, kept, unset},
		"hard, Burstable":                         {memoryqos.HardReservation, 0.02, burstable, 100 * mi, unset},
		"hard, Burstable with request = limit":    {memoryqos.HardReservation, 0.02, full, kept, unset},
		"hard, Burstable with request near limit": {memoryqos.HardReservation, 0.02, container{memoryqos.Burstable, 99 * mi, 100 * mi}, kept, unset},
		"hard, no headroom, request = limit":      {memoryqos.HardReservation, 0, full, 100 * mi, unset},
		"hard, Burstable at the headroom":         {memoryqos.HardReservation, 0.02, container{memoryqos.Burstable, 98 * mi, 100 * mi}, kept, unset},
		"hard, Burstable without limit":           {memoryqos.HardReservation, 0.02, unlimited, 100 * mi, unset},
		"hard, BestEffort":                        {memoryqos.HardReservation, 0.02, container{class: memoryqos.BestEffort}, unset, unset},
		"hard, BestEffort that claims to request": {memoryqos.HardReservation, 0.02, container{memoryqos.BestEffort, gi, gi}, unset, unset},
		"headroom rounds down to a page":          {memoryqos.TieredReservation, 0.02, container{memoryqos.Guaranteed, 10000000, 10000000}, 9797632, unset},
		"no headroom keeps every byte":            {memoryqos.TieredReservation, 0, container{memoryqos.Guaranteed, 10000001, 10000001}, 10000001, unset},
		"headroom larger than a tiny limit":       {memoryqos.TieredReservation, 0.02, container{memoryqos.Guaranteed, 4096, 4096}, unset, unset},
		"a limit below the request bounds it":     {memoryqos.HardReservation, 0, container{memoryqos.Burstable, 2 * gi, gi}, gi, unset},
		"an absurd limit protects nothing":        {memoryqos.HardReservation, 0.02, container{memoryqos.Burstable, gi, math.MaxUint64}, unset, unset},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := memoryqos.Settings{Reservation: test.policy, GuaranteedHeadroom: test.headroom}
			c := test.container
			got := s.Container(memoryqos.Container{Class: c.class, Request: c.request, Limit: c.limit}, memoryqos.Overrides{})
			if diff := cmp.Diff(values(test.min, test.low, unset), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOverridesAreBounded(t *testing.T) {
	type (
		container = memoryqos.Container
		overrides = memoryqos.Overrides
	)
	burstable := container{Class: memoryqos.Burstable, Request: 500 * mi, Limit: 1000 * mi}
	guaranteed := container{Class: memoryqos.Guaranteed, Request: 100 * mi, Limit: 100 * mi}
	bestEffort := container{Class: memoryqos.BestEffort}
	tests := map[string]struct {
		factor    *float64 // the node's
		minimum   float64
		container container
		wish      overrides
		want      memoryqos.Values
	}{
		"nothing wished":                   {ptr(0.9), 0, burstable, overrides{}, values(unset, 500*mi, 950*mi)},
		"a factor":                         {ptr(0.9), 0, burstable, overrides{Factor: ptr(0.6)}, values(unset, 500*mi, 800*mi)},
		"a factor below the minimum":       {ptr(0.9), 0.8, burstable, overrides{Factor: ptr(0.6)}, values(unset, 500*mi, 900*mi)},
		"a factor above 1":                 {ptr(0.9), 0, burstable, overrides{Factor: ptr(1.5)}, values(unset, 500*mi, unset)},
		"a factor where the node has none": {nil, 0, burstable, overrides{Factor: ptr(0.6)}, values(unset, 500*mi, 800*mi)},
		"the minimum binds only wishes":    {ptr(0.5), 0.8, burstable, overrides{}, values(unset, 500*mi, 750*mi)},
		"off":                              {ptr(0.9), 0, burstable, overrides{NoHigh: true, High: ptr[uint64](600 * mi)}, values(unset, 500*mi, unset)},
		"a quantity":                       {ptr(0.9), 0, burstable, overrides{High: ptr[uint64](600 * mi)}, values(unset, 500*mi, 600*mi)},
		"a quantity between pages":         {ptr(0.9), 0, burstable, overrides{High: ptr[uint64](600*mi + 5000)}, values(unset, 500*mi, 600*mi+4096)},
		"a quantity beyond the limit":      {ptr(0.9), 0, burstable, overrides{High: ptr[uint64](4 * gi)}, values(unset, 500*mi, 1000*mi)},
		"a quantity below the request":     {ptr(0.9), 0, burstable, overrides{High: ptr[uint64](100 * mi)}, values(unset, 500*mi, unset)},
		"a quantity below the minimum":     {ptr(0.9), 0.6, burstable, overrides{High: ptr[uint64](100 * mi)}, values(unset, 500*mi, 800*mi)},
		"a quantity where there is no limit": {ptr(0.9), 0, bestEffort, overrides{High: ptr[uint64](100 * gi)},
			values(unset, unset, 8*gi)},
		"a quantity for Guaranteed": {ptr(0.9), 0, guaranteed, overrides{High: ptr[uint64](50 * mi)}, values(98*mi, unset, unset)},
		"no reservation":            {nil, 0, burstable, overrides{Reservation: memoryqos.ReserveNone}, memoryqos.Values{}},
		"min for Burstable":         {nil, 0, burstable, overrides{Reservation: memoryqos.ReserveMin}, values(500*mi, unset, unset)},
		"min for Burstable near its limit": {nil, 0, container{Class: memoryqos.Burstable, Request: 99 * mi, Limit: 100 * mi},
			overrides{Reservation: memoryqos.ReserveMin}, values(98*mi, unset, unset)},
		"low for Guaranteed": {nil, 0, guaranteed, overrides{Reservation: memoryqos.ReserveLow}, values(unset, 100*mi, unset)},
		"min for BestEffort": {nil, 0, bestEffort, overrides{Reservation: memoryqos.ReserveMin}, memoryqos.Values{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := memoryqos.Settings{
				Factor: test.factor, MinimumFactor: test.minimum, Reservation: memoryqos.TieredReservation,
				GuaranteedHeadroom: 0.02, NodeAllocatable: 8 * gi,
			}
			if diff := cmp.Diff(test.want, s.Container(test.container, test.wish)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

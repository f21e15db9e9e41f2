package memoryqos

import (
	"cmp"
	"math"
)

// Container gives a container's values under the node's rules and its pod's wishes.
func (s Settings) Container(c Container, o Overrides) Values {
	v := s.protection(c, s.reservation(c.Class, o.Reservation))
	v.High = s.high(c, o)
	return v
}

// reservation is the protection file for a class: the pod's choice, else the policy's.
func (s Settings) reservation(class QOSClass, wish Reservation) Reservation {
	switch {
	case class == BestEffort:
		return ReserveNone
	case wish != "":
		return wish
	case s.Reservation == HardReservation, s.Reservation == TieredReservation && class == Guaranteed:
		return ReserveMin
	case s.Reservation == TieredReservation:
		return ReserveLow
	}
	return ReserveNone
}

// protection puts the request in the chosen file.
func (s Settings) protection(c Container, file Reservation) Values {
	switch file {
	case ReserveMin:
		return Values{Min: positive(min(c.Request, s.reclaimable(c.Limit)))}
	case ReserveLow:
		return Values{Low: positive(c.Request)}
	}
	return Values{}
}

// reclaimable is the largest memory.min that leaves a container below its limit something to reclaim. A container whose
// memory.min equals its limit is killed for reading a large file: reclaim finds the page cache protected. memory.low
// needs no such bound, because the kernel gives way there before it kills.
func (s Settings) reclaimable(limit uint64) uint64 {
	switch {
	case limit == 0:
		return math.MaxUint64
	case s.GuaranteedHeadroom > 0:
		return s.floorPage(float64(limit) * (1 - s.GuaranteedHeadroom))
	}
	return limit
}

// high gives memory.high, or nil where none belongs.
func (s Settings) high(c Container, o Overrides) *uint64 {
	if o.NoHigh || c.Class == Guaranteed || o.High == nil && c.mayAskForItsLimit() {
		return nil
	}
	top := c.Limit
	if top == 0 {
		top = s.NodeAllocatable
	}
	var high uint64
	if o.High != nil {
		lowest := max(c.Request, s.throttle(c.Request, top, s.MinimumFactor))
		high = min(max(*o.High, lowest), top)
		high = InFile(high, s.PageSize)
	} else {
		high = s.throttle(c.Request, top, s.factor(o.Factor))
	}
	// This also covers a request that equals the limit, and one beyond what the node has.
	if high <= c.Request {
		return nil
	}
	return &high
}

// mayAskForItsLimit reports whether the request equals the limit, or an estimate of it does not exclude that. Such a container
// is not throttled: it would be held below what it was promised, and it has memory.max. A pod that names a memory.high itself
// knows its request.
func (c Container) mayAskForItsLimit() bool {
	return c.Limit > 0 && add(c.Request, c.RequestError) >= c.Limit
}

// factor is the throttling factor in force; 0 when none is.
func (s Settings) factor(wish *float64) float64 {
	factor := s.Factor
	if wish != nil {
		bounded := max(*wish, s.MinimumFactor)
		factor = &bounded
	}
	if factor == nil || !(*factor > 0 && *factor <= 1) { // so put that NaN is refused
		return 0
	}
	return *factor
}

// throttle is KEP-2570's formula, with the kubelet's order of operations so that every byte agrees.
func (s Settings) throttle(request, top uint64, factor float64) uint64 {
	if factor <= 0 || top <= request {
		return 0
	}
	return s.floorPage(float64(request) + (float64(top)-float64(request))*factor)
}

// floorPage rounds down to a multiple of the page size. What does not fit the kernel's signed counter, or is no
// number, gives 0.
func (s Settings) floorPage(bytes float64) uint64 {
	if !(bytes >= 0 && bytes < math.MaxInt64) {
		return 0
	}
	page := cmp.Or(s.PageSize, defaultPageSize)
	return uint64(math.Floor(bytes/float64(page))) * page
}

// positive is nil for 0: a protection of nothing is not set.
func positive(bytes uint64) *uint64 {
	if bytes == 0 {
		return nil
	}
	return &bytes
}

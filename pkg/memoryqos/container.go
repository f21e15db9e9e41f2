package memoryqos

import (
	"cmp"
	"math"
)

// Container gives a container's values under the node's rules and its pod's wishes. Explain gives the same values with the
// reasons, which cost more than the decisions.
func (s Settings) Container(c Container, o Overrides) Values {
	v := s.protection(c, o).values()
	v.High, v.OOMGroup = positive(s.throttling(c, o).bytes), o.OOMGroup
	return v
}

// reservation is the protection file for a class: the pod's choice, else the policy's.
func (s Settings) reservation(class QOSClass, wish Reservation) Reservation {
	switch {
	case class == BestEffort, s.Off:
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

// protection is a decision on memory.min and memory.low: how many bytes of the request are in which file. 0 bytes are not set.
type protection struct {
	file  Reservation
	bytes uint64
}

func (s Settings) protection(c Container, o Overrides) protection {
	p := protection{file: s.reservation(c.Class, o.Reservation)}
	switch p.file {
	case ReserveMin:
		p.bytes = min(c.Request, s.reclaimable(c.Limit))
	case ReserveLow:
		p.bytes = c.Request
	}
	return p
}

func (p protection) values() Values {
	switch p.file {
	case ReserveMin:
		return Values{Min: positive(p.bytes)}
	case ReserveLow:
		return Values{Low: positive(p.bytes)}
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

// throttling is a decision on memory.high.
type throttling struct {
	// bytes of memory.high; 0 is not set, and why says the reason.
	bytes uint64
	why   unthrottled
	// top is the container's limit, or what stands in for it.
	top uint64
	// factor that the formula was applied with; 0 for a value that the pod has chosen itself.
	factor float64
	// room is the share of the limit that is left to page cache, where that decides; why still says why the formula does not.
	room float64
}

// unthrottled is the reason why a container has no memory.high.
type unthrottled string

// LeftToKubelet says why Settings that are Off set nothing.
const LeftToKubelet = "the profile leaves Memory QoS to the kubelet"

const (
	off             unthrottled = LeftToKubelet
	itself          unthrottled = "the daemon does not throttle itself"
	asksForItsLimit unthrottled = "the container asks for its limit"
	optedOut        unthrottled = "the pod's annotation memory-high is off"
	noFactor        unthrottled = "memoryThrottlingFactor is not set"
	mayBeTheLimit   unthrottled = "the request is an estimate and may equal the limit, and a container that asks for its limit is not throttled"
	noRoom          unthrottled = "nothing lies between the request and" // the top
	roundedDown     unthrottled = "rounded down to a page it would not exceed the request"
	notAbove        unthrottled = "the pod's annotation memory-high, in whole pages, does not exceed the request"
)

// throttling is what the formula or the pod gives, or the room for page cache where that is less.
func (s Settings) throttling(c Container, o Overrides) throttling {
	switch {
	case s.Off:
		return throttling{why: off}
	case o.Own:
		return throttling{why: itself}
	}
	t := s.formula(c, o)
	if bytes, share := s.belowLimit(c, o); bytes > 0 && (t.bytes == 0 || bytes < t.bytes) {
		t.bytes, t.room = bytes, share
	}
	return t
}

func (s Settings) formula(c Container, o Overrides) throttling {
	t := throttling{top: s.NodeAllocatable}
	own := c.ownLimit()
	if own > 0 {
		t.top = c.Limit
	}
	if o.High == nil {
		t.factor = s.factor(o.Factor)
	}
	switch {
	case own > 0 && own == c.Request:
		t.why = asksForItsLimit
	case o.NoHigh:
		t.why = optedOut
	case o.High == nil && t.factor == 0:
		t.why = noFactor
	case o.High == nil && c.RequestError > 0 && c.mayAskForItsLimit():
		t.why = mayBeTheLimit
	case t.top <= c.Request:
		t.why = noRoom
	default:
		t.bytes = s.highBetween(c.Request, t.top, t.factor, o.High)
		if t.bytes <= c.Request {
			t.bytes, t.why = 0, roundedDown
			if o.High != nil {
				t.why = notAbove
			}
		}
	}
	return t
}

// highBetween is memory.high between a request and a larger top: by the formula, or what the pod has chosen within the
// bounds that MinimumFactor and the top set.
func (s Settings) highBetween(request, top uint64, factor float64, chosen *uint64) uint64 {
	if chosen == nil {
		return s.throttle(request, top, factor)
	}
	lowest := max(request, s.throttle(request, top, s.MinimumFactor))
	return InFile(min(max(*chosen, lowest), top), s.PageSize)
}

// ownLimit is the limit of the container itself, 0 when it has none.
func (c Container) ownLimit() uint64 {
	if c.OwnLimit == nil || c.Limit == 0 {
		return c.Limit
	}
	return *c.OwnLimit
}

// mayAskForItsLimit reports whether an estimated request may equal what limits the container. Such a container is not throttled:
// it would be held below what it was promised, and it has memory.max. A pod that names a memory.high itself knows its request.
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
	if factor != nil && *factor > 0 && *factor <= 1 { // NaN is none of these
		return *factor
	}
	return 0
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
	set := bytes // only a value that is set is allocated on the heap
	return &set
}

// leastCacheRoom, in bytes, is the smallest room that is of use: the kernel charges a CPU's pages in batches of 64.
const leastCacheRoom = 1 << 20

// MostCacheRoom is the largest share of a limit that can be left to page cache.
const MostCacheRoom = 0.5

// ValidCacheRoom reports whether a share of a limit can be left to page cache: 0 to 0.5.
func ValidCacheRoom(share float64) bool { return share >= 0 && share <= MostCacheRoom }

// belowLimit is a memory.high below a container's limit, in bytes, and the share of the limit between them; 0 where there is to be none.
//
// At memory.max an allocation needs pages at once, and the kernel kills where all that it finds is page cache that the disk has not
// taken yet. At memory.high the allocating thread is throttled until then (Documentation/admin-guide/cgroup-v2.rst, "memory.high"). That
// does not help a heap, for which the stall guard raises the value. A pod's own choice of memory.high, or of none, takes precedence.
func (s Settings) belowLimit(c Container, o Overrides) (bytes uint64, share float64) {
	share = s.CacheRoom
	if o.CacheRoom != nil {
		share = *o.CacheRoom
	}
	if !(share > 0) || !ValidCacheRoom(share) || c.Limit == 0 || o.High != nil || o.NoHigh {
		return 0, 0
	}
	bytes = s.floorPage(float64(c.Limit) * (1 - share))
	if bytes == 0 || c.Limit-bytes < leastCacheRoom {
		return 0, 0
	}
	return bytes, share
}

// IsCacheRoom reports whether a container's memory.high is the room for page cache below its limit.
func (s Settings) IsCacheRoom(c Container, o Overrides) bool { return s.throttling(c, o).room > 0 }

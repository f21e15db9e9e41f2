package pods

import (
	"math/bits"
	"sort"
	"strconv"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// bracket holds a request: Low <= request <= High, in bytes.
type bracket struct{ Low, High uint64 }

func (b bracket) estimate(s memoryqos.Source) Estimate {
	return Estimate{Request: b.Low, Source: s, Error: b.High - b.Low}
}

func (b bracket) holds(request uint64) bool { return b.Low <= request && request <= b.High }

// below cuts a bracket at a limit, because no request exceeds its limit. It is false when nothing remains: then the value
// was not made from the container's own request.
func (b bracket) below(limit uint64) (bracket, bool) {
	if limit > 0 {
		b.High = min(b.High, limit)
	}
	return b, b.Low <= b.High
}

// The scores of Burstable containers. The kubelet gives 1000 - floor(1000 * request / MemTotal), clamped to these, so that
// a Burstable container is never preferred over a Guaranteed one, nor worse off than a BestEffort one.
const (
	lowestScore  = 3
	highestScore = 999
)

// clamped reports whether a score stands for others too, beyond the end of the range.
func clamped(score int64) bool { return score <= lowestScore || score >= highestScore }

// fromOOMScore inverts the oom_score_adj of a Burstable container. It cannot detect a score that was not computed from the
// container's own request alone, and is too high there: a sidecar may have the score of its pod's smallest app container,
// and pod-level resources add a share of what the containers leave. Node-critical pods have a score of -997.
func (n Node) fromOOMScore(e Event) (bracket, bool) {
	if n.MemTotal == 0 || e.OOMScoreAdj == nil || *e.OOMScoreAdj < lowestScore || *e.OOMScoreAdj > highestScore {
		return bracket{}, false
	}
	k := uint64(1000 - *e.OOMScoreAdj)
	b := bracket{Low: n.thousandths(k), High: n.thousandths(k+1) - 1}
	switch *e.OOMScoreAdj {
	case highestScore: // also stands for 1000: requests of nothing or nearly nothing
		b.Low = 0
	case lowestScore: // also stands for 2, 1 and 0: the kubelet admits no request beyond its node
		b.High = n.MemTotal
	}
	return b.below(e.Limit)
}

// thousandths is the smallest request of which the kubelet finds k thousandths of the node's memory: ceil(k * MemTotal / 1000).
func (n Node) thousandths(k uint64) uint64 {
	high, low := bits.Mul64(k, n.MemTotal)
	quotient, rest := bits.Div64(high, low, 1000) // k < 1000, so that high < 1000
	if rest > 0 {
		quotient++
	}
	return quotient
}

// fromSwap inverts the memory.swap.max that the kubelet's LimitedSwap gives a Burstable container (KEP-2400). 0 says
// nothing: it is also given to critical pods, to containers whose request equals their limit, and without LimitedSwap.
func (n Node) fromSwap(e Event) (bracket, bool) {
	swap, err := strconv.ParseUint(e.Unified["memory.swap.max"], 10, 63)
	if err != nil || swap == 0 || e.WorkloadSwap || n.MemTotal == 0 || n.SwapTotal == 0 || swap > n.SwapTotal || n.MemTotal > maxExact {
		return bracket{}, false
	}
	// The formula never falls when the request grows, so both ends are found by bisection, to the byte, in the very
	// arithmetic that made the value.
	first := func(atLeast uint64) uint64 {
		return uint64(sort.Search(int(n.MemTotal)+1, func(request int) bool {
			return n.limitedSwap(uint64(request)) >= atLeast
		}))
	}
	b := bracket{Low: first(swap), High: first(swap+1) - 1}
	if b.Low > b.High {
		return bracket{}, false
	}
	return b.below(e.Limit)
}

// maxExact is where float64 stops holding every whole number.
const maxExact = 1 << 53

// limitedSwap is the kubelet's share of swap for a request.
func (n Node) limitedSwap(request uint64) uint64 {
	return uint64(float64(request) / float64(n.MemTotal) * float64(n.SwapTotal))
}

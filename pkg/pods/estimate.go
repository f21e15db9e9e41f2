package pods

import (
	"math"
	"slices"
	"strconv"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// Estimate is a container's memory request with its provenance.
type Estimate struct {
	// Request is in bytes. It is never more than was asked for, as far as the source knows.
	Request uint64           `json:"request"`
	Source  memoryqos.Source `json:"requestSource"`
	// Error bounds in bytes by how much the true request can be larger: it lies in [Request, Request+Error]. 0 is exact.
	Error uint64 `json:"requestError,omitempty"`
}

// Exact reports whether the request is known to the byte.
func (e Estimate) Exact() bool { return e.Error == 0 }

// Event is what a runtime's event says of a container: CRI data only.
type Event struct {
	// Class is the pod's QoS class, from its cgroup parent.
	Class memoryqos.QOSClass
	// Container is the container's name in the pod's spec.
	Container string
	// Limit is memory.max in bytes, 0 when none.
	Limit uint64
	// PodLimit is the pod's memory limit where its containers share it (spec.resources): one without a limit of its own has the
	// pod's. 0 where each has its own.
	PodLimit uint64
	// OwnMemory is set for a pod that is known to have memory of its own (Pod.OwnMemory): what the kubelet derives from requests is
	// not from the container's then.
	OwnMemory bool
	// WorkloadSwap is set where the kubelet's swapBehavior is WorkloadControlledSwap: memory.swap.max is a limit of the container's.
	WorkloadSwap bool
	// OOMScoreAdj is nil when the event does not name it.
	OOMScoreAdj *int64
	// Unified are the cgroup v2 files that the kubelet asked for. Leave out what this plugin itself has set: after a
	// restart the runtime shows our values in the same place.
	Unified map[string]string
	// Claims are what the pod's resources annotation claims.
	Claims Claims
}

// Node is what the estimates must know of this machine.
type Node struct {
	// MemTotal is /proc/meminfo's MemTotal in bytes, which the kubelet takes for the memory capacity.
	MemTotal uint64
	// SwapTotal is /proc/meminfo's SwapTotal in bytes.
	SwapTotal uint64
}

// FromEvent estimates the request of a container from its event alone. use names which of SourceAnnotation and
// SourceOOMScore may be used, both when none is named; limit, unified and swap always are. A memory.swap.max that
// oom_score_adj contradicts was not derived from the request.
func (n Node) FromEvent(e Event, use ...memoryqos.Source) Estimate {
	unknown := Estimate{Source: memoryqos.SourceNone, Error: n.most(e.Limit)}
	switch e.Class {
	case memoryqos.BestEffort:
		return Estimate{Source: memoryqos.SourceNone}
	case memoryqos.Guaranteed:
		if e.Limit == 0 || e.OwnMemory || e.PodLimit > 0 && e.Limit >= e.PodLimit {
			return unknown
		}
		return Estimate{Request: e.Limit, Source: memoryqos.SourceLimit}
	}
	may := func(s memoryqos.Source) bool { return len(use) == 0 || slices.Contains(use, s) }
	scored, byScore := n.fromOOMScore(e)
	// A value that is the lower end of the score's bracket was written by this plugin, and a disk that hung has lost the record of it.
	if request, ok := e.protected(); ok && (e.OwnMemory || !byScore || !may(memoryqos.SourceOOMScore) || request != scored.Low) {
		return Estimate{Request: request, Source: memoryqos.SourceUnified}
	}
	if e.OwnMemory {
		return unknown
	}
	swapped, bySwap := n.fromSwap(e)
	if byScore && swapped.Low > scored.High { // a score is never that of a smaller request than the container's
		bySwap = false
	}
	if may(memoryqos.SourceAnnotation) && byScore {
		if request, ok := e.confirmed(scored, swapped, bySwap); ok {
			return Estimate{Request: request, Source: memoryqos.SourceAnnotation}
		}
	}
	if bySwap {
		return swapped.estimate(memoryqos.SourceSwap)
	}
	if may(memoryqos.SourceOOMScore) && byScore {
		return scored.estimate(memoryqos.SourceOOMScore)
	}
	return unknown
}

// most is the largest request that a container can have.
func (n Node) most(limit uint64) uint64 {
	switch {
	case limit > 0:
		return limit
	case n.MemTotal > 0:
		return n.MemTotal
	}
	return math.MaxInt64
}

// protected is the request that the kubelet's own Memory QoS puts in memory.low, of a Guaranteed pod in memory.min. It
// sends "0" when it protects nothing. More than the limit cannot be a request.
func (e Event) protected() (uint64, bool) {
	for _, file := range []string{"memory.low", "memory.min"} {
		value, err := strconv.ParseUint(e.Unified[file], 10, 63)
		if err == nil && value > 0 && (e.Limit == 0 || value <= e.Limit) {
			return value, true
		}
	}
	return 0, false
}

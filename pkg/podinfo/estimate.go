package podinfo

import (
	"math"
	"slices"
	"strconv"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// Source says where a memory request was learned.
type Source string

// The sources, the most trusted first. Kubelet and APIServer know the pod; the others are read from the runtime's event.
const (
	// SourceKubelet is the kubelet's pod API (KEP-4188). Exact.
	SourceKubelet Source = "kubelet"
	// SourceAPIServer is the API server's pod. Exact.
	SourceAPIServer Source = "apiserver"
	// SourceLimit is the limit of a container of a Guaranteed pod, which equals its request. Exact, but for a pod that is
	// Guaranteed by pod-level resources, whose containers need not ask for what limits them.
	SourceLimit Source = "limit"
	// SourceUnified is memory.min or memory.low that the kubelet asks the runtime to set (its own Memory QoS). Exact.
	SourceUnified Source = "unified"
	// SourceAnnotation is the noderesource.dev/resources annotation. Exact if it is true; it must agree with oom_score_adj.
	SourceAnnotation Source = "annotation"
	// SourceSwap inverts memory.swap.max, which the kubelet's LimitedSwap makes proportional to the request.
	SourceSwap Source = "swap"
	// SourceOOMScore inverts oom_score_adj, which tells the request in thousandths of the node's memory.
	SourceOOMScore Source = "oomscore"
	// SourceNone means that nothing is known, and the request counts as 0; or that it is 0, because the pod is BestEffort.
	SourceNone Source = "none"
)

// Estimate is a container's memory request with its provenance.
type Estimate struct {
	// Request is in bytes. It is never more than was asked for, as far as the source can tell.
	Request uint64
	Source  Source
	// Error bounds in bytes by how much the true request can be larger: it lies in [Request, Request+Error]. 0 is exact.
	Error uint64
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
	// OOMScoreAdj is nil when the event does not name it.
	OOMScoreAdj *int64
	// Unified are the cgroup v2 files that the kubelet asked for. Leave out what this plugin itself has set: after a
	// restart the runtime shows our values in the same place.
	Unified map[string]string
	// Annotations are the pod's.
	Annotations map[string]string
}

// Node is what the estimates must know of this machine.
type Node struct {
	// MemTotal is /proc/meminfo's MemTotal in bytes, which the kubelet takes for the memory capacity.
	MemTotal uint64
	// SwapTotal is /proc/meminfo's SwapTotal in bytes.
	SwapTotal uint64
}

// FromEvent estimates the request of a container from its event alone. use names which of SourceAnnotation and
// SourceOOMScore may be taken, both when none is named; limit, unified and swap always are. An annotation that cannot be
// read is passed over here and reported by ParseAnnotation.
func (n Node) FromEvent(e Event, use ...Source) Estimate {
	unknown := Estimate{Source: SourceNone, Error: n.most(e.Limit)}
	switch e.Class {
	case memoryqos.BestEffort:
		return Estimate{Source: SourceNone}
	case memoryqos.Guaranteed:
		if e.Limit == 0 || e.PodLimit > 0 && e.Limit >= e.PodLimit {
			return unknown
		}
		return Estimate{Request: e.Limit, Source: SourceLimit}
	}
	if request, ok := e.protected(); ok {
		return Estimate{Request: request, Source: SourceUnified}
	}
	may := func(s Source) bool { return len(use) == 0 || slices.Contains(use, s) }
	scored, byScore := n.fromOOMScore(e)
	if may(SourceAnnotation) && byScore {
		if request, ok := e.annotated(scored); ok {
			return Estimate{Request: request, Source: SourceAnnotation}
		}
	}
	if swap, ok := n.fromSwap(e); ok {
		return swap.estimate(SourceSwap)
	}
	if may(SourceOOMScore) && byScore {
		return scored.estimate(SourceOOMScore)
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

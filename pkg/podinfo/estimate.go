package podinfo

import (
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
	// SourceLimit is the limit of a container of a Guaranteed pod, which equals its request. Exact.
	SourceLimit Source = "limit"
	// SourceUnified is memory.min or memory.low that the kubelet asks the runtime to set (its own Memory QoS). Exact.
	SourceUnified Source = "unified"
	// SourceAnnotation is the noderesource.dev/resources annotation. Exact if it is true; it must agree with the bracket.
	SourceAnnotation Source = "annotation"
	// SourceSwap inverts memory.swap.max, which LimitedSwap makes proportional to the request.
	SourceSwap Source = "swap"
	// SourceOOMScore inverts oom_score_adj, which grows with a thousandth of the node's memory.
	SourceOOMScore Source = "oomscore"
	// SourceNone means that nothing is known; the request counts as 0.
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
func (e Estimate) Exact() bool { return e.Source != SourceNone && e.Error == 0 }

// Event is what a runtime's event says of a container: CRI data only.
type Event struct {
	// Class is the pod's QoS class, from its cgroup parent.
	Class memoryqos.QOSClass
	// Container is the container's name in the pod's spec.
	Container string
	// Limit is memory.max in bytes, 0 when none.
	Limit uint64
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

// FromEvent estimates the request of a container from its event alone. use names the sources that may be taken
// (unified, limit and swap are part of the event and always are); with none given all may. A bad annotation is
// reported by AnnotatedRequest and otherwise passed over here.
func (n Node) FromEvent(e Event, use ...Source) Estimate {
	return Estimate{Source: SourceNone, Error: e.Limit}
}

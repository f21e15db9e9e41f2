// Package pods is what memory decisions need of a pod, and the estimate of a container's request from what the kubelet left in the
// runtime's event. Every request keeps its source and by how much it can be wrong. The package does no I/O: pkg/podinfo asks the
// pod APIs.
package pods

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// Ref names a pod as the runtime does. The UID of a static pod is the kubelet's (the hash of its manifest), which its
// mirror in the API server does not have as its own.
type Ref struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Is reports whether what a person gives names the pod: its name or UID, each with or without its namespace and a slash before it.
func (r Ref) Is(given string) bool {
	given = strings.TrimPrefix(given, r.Namespace+"/")
	return given == r.UID || given == r.Name
}

// String returns namespace/name (uid), for messages.
func (r Ref) String() string { return r.Namespace + "/" + r.Name + " (" + r.UID + ")" }

// Pod is the part of a v1.Pod that memory decisions need. A Pod that was handed out is never changed again.
type Pod struct {
	Ref
	// Class is the QoS class as Kubernetes computes it.
	Class memoryqos.QOSClass `json:"class"`
	// Containers are in the order in which the kubelet starts them: init containers and sidecars as in the spec, then
	// app containers, then ephemeral ones.
	Containers []Container `json:"containers"`
	// Overhead is the RuntimeClass overhead in bytes.
	Overhead uint64 `json:"overhead,omitempty"`
	// Claimed is what resource claims add to the pod's memory request and limit in bytes, unless PodRequest or PodLimit is set.
	Claimed uint64 `json:"claimed,omitempty"`
	// Mapped is the part of Claimed that stands for memory of devices, by the name of the claim: its pod's request has it once.
	Mapped map[string]uint64 `json:"mapped,omitempty"`
	// PodRequest and PodLimit are the pod-level resources (spec.resources) in bytes, without overhead; nil when not set.
	PodRequest *uint64 `json:"podRequest,omitempty"`
	PodLimit   *uint64 `json:"podLimit,omitempty"`
	// PodHugepages are the pod-level requests of huge pages, sorted by type; nil when there are none.
	PodHugepages memorymanager.Request `json:"podHugepages,omitempty"`
	// PriorityClass is the name of its PriorityClass; "" if there is none.
	PriorityClass string `json:"priorityClass,omitempty"`
	// Static is set for a pod that comes from a file or URL of the kubelet, Mirror when this is its copy in the API server.
	Static bool `json:"static,omitempty"`
	Mirror bool `json:"mirror,omitempty"`
}

// PodLevel reports whether the pod has memory of its own in spec.resources: its containers need not ask for what limits them.
func (p *Pod) PodLevel() bool { return p.PodRequest != nil || p.PodLimit != nil }

// Budget is what the pod asks for as a whole (spec.resources.requests): memory and huge pages, sorted by type.
func (p *Pod) Budget() memorymanager.Request {
	budget := slices.Clone(p.PodHugepages)
	if memory := cmp.Or(p.PodRequest, p.PodLimit); memory != nil && *memory > 0 {
		budget = append(budget, memorymanager.Amount{Type: memorymanager.Memory, Bytes: *memory})
	}
	return budget // "memory" comes after "hugepages-<size>"
}

// OwnMemory reports whether memory of the pod's containers is not theirs alone: it is the pod's, or comes from resource claims. Then
// neither the limit that the runtime shows nor the values that the kubelet derives from requests are those of a container's spec.
func (p *Pod) OwnMemory() bool { return p.PodLevel() || p.Claimed > 0 }

// Container is the part of a v1.Container that memory decisions need.
type Container struct {
	Name string         `json:"name"`
	Kind memoryqos.Kind `json:"kind"`
	// Request and Limit are bytes of memory; 0 when there is none. They are what the kubelet has admitted, which during an
	// in-place resize is not always what the spec asks for.
	Request uint64 `json:"request,omitempty"`
	Limit   uint64 `json:"limit,omitempty"`
	// Claimed is what resource claims add to the limit of a container that has one, in bytes of memory. It is no part of Limit.
	Claimed uint64 `json:"claimed,omitempty"`
	// Hugepages are the requests by page size, sorted by type; nil when there are none.
	Hugepages memorymanager.Request `json:"hugepages,omitempty"`
	// Guaranteed is set when the container by itself requests CPU and memory and limits both to the same.
	Guaranteed bool `json:"guaranteed,omitempty"`
	// Lacks says what keeps it from that, "has no CPU limit"; empty when nothing does, and for an ephemeral container.
	Lacks string `json:"lacks,omitempty"`
}

// Container finds a container by its name.
func (p *Pod) Container(name string) (Container, bool) {
	for _, c := range p.Containers {
		if c.Name == name {
			return c, true
		}
	}
	return Container{}, false
}

// Answer is a pod and the source that reported it.
type Answer struct {
	Pod    *Pod
	Source memoryqos.Source
}

// Estimate gives a container's request from an answer: exact. It is false for a container that the pod does not have.
func (a Answer) Estimate(container string) (Estimate, bool) {
	if a.Pod == nil {
		return Estimate{}, false
	}
	c, ok := a.Pod.Container(container)
	return Estimate{Request: c.Request, Source: a.Source}, ok
}

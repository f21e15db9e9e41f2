package nodetopology

import (
	"slices"

	kresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The types of topology.node.k8s.io/v1alpha2. Those of github.com/k8stopologyawareschedwg/noderesourcetopology-api, with which a test
// compares them, draw gogo's protobuf into the binary, 1 MB that nothing uses: the API server sends custom resources as JSON alone.

var groupVersion = schema.GroupVersion{Group: "topology.node.k8s.io", Version: "v1alpha2"}

// NodeResourceTopology describes the resources of a node by its NUMA nodes.
type NodeResourceTopology struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// TopologyPolicies are deprecated, and kept as they are.
	TopologyPolicies []string    `json:"topologyPolicies,omitempty"`
	Zones            []Zone      `json:"zones"`
	Attributes       []Attribute `json:"attributes,omitempty"`
}

// Zone is a NUMA node.
type Zone struct {
	Name       string      `json:"name"`
	Type       string      `json:"type"`
	Parent     string      `json:"parent,omitempty"`
	Costs      []Cost      `json:"costs,omitempty"`
	Attributes []Attribute `json:"attributes,omitempty"`
	Resources  []Resource  `json:"resources,omitempty"`
}

// Resource is what a zone has of a resource.
type Resource struct {
	Name        string             `json:"name"`
	Capacity    kresource.Quantity `json:"capacity"`
	Allocatable kresource.Quantity `json:"allocatable"`
	Available   kresource.Quantity `json:"available"`
}

// Cost is the distance to a zone.
type Cost struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
}

// Attribute is a name with a text.
type Attribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// DeepCopyObject copies what is not replaced as a whole: zones and attributes are never changed in place.
func (n *NodeResourceTopology) DeepCopyObject() runtime.Object {
	copied := *n
	n.ObjectMeta.DeepCopyInto(&copied.ObjectMeta)
	copied.TopologyPolicies = slices.Clone(n.TopologyPolicies)
	return &copied
}

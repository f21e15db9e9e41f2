package config

import "github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"

// AnnotationRules say which annotations a pod may use.
type AnnotationRules struct {
	Allowed []Annotation
	// MinimumFactor is the smallest throttling factor that may be chosen.
	MinimumFactor float64
}

// NUMAPreference is a pod's wish for its placement; empty leaves it to the configuration.
type NUMAPreference string

// The wishes for placement.
const (
	// NUMANone: do not pin.
	NUMANone NUMAPreference = "none"
	// NUMAPreferred: pin where it can be, else run unpinned.
	NUMAPreferred NUMAPreference = "preferred"
	// NUMARequired: pin or reject.
	NUMARequired NUMAPreference = "required"
)

// Wishes are what a pod asks for one container by annotation. The zero value asks for nothing.
type Wishes struct {
	QoS           memoryqos.Overrides
	NUMA          NUMAPreference
	StallGuardOff bool
}

// Problem is an annotation that is wrong or not allowed.
type Problem struct {
	// Annotation is the full key.
	Annotation string
	// Message is in the form of a Kubernetes field error.
	Message string
}

// AnnotationRules returns what pods of a namespace may wish for.
func (c Config) AnnotationRulesFor(namespace string) AnnotationRules { return AnnotationRules{} }

// ParseAnnotations reads a pod's wishes for one of its containers ("" for the pod itself). What is wrong or not allowed
// is left out of the wishes and named in the problems, sorted by annotation.
func ParseAnnotations(annotations map[string]string, container string, rules AnnotationRules) (Wishes, []Problem) {
	return Wishes{}, nil
}

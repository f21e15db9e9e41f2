package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// Duration is a time.Duration with its text form ("300ms").
type Duration time.Duration

// String is the shortest text: "5m", not "5m0s".
func (d Duration) String() string {
	text := time.Duration(d).String()
	if short, ok := strings.CutSuffix(text, "m0s"); ok {
		text = short + "m"
	}
	if short, ok := strings.CutSuffix(text, "h0m"); ok {
		text = short + "h"
	}
	return text
}

// MarshalText writes the shortest text.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads Go's form of a duration.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("want a duration such as 300ms, 10s or 5m, got %s", strictyaml.Quote(string(text)))
	}
	*d = Duration(parsed)
	return nil
}

// MemoryManagerPolicy is the kubelet's memoryManagerPolicy.
type MemoryManagerPolicy string

// The policies of the Memory Manager.
const (
	MemoryManagerStatic MemoryManagerPolicy = "Static"
	MemoryManagerNone   MemoryManagerPolicy = "None"
)

// OnUnsatisfiable is what happens to a container that cannot be placed.
type OnUnsatisfiable string

// What happens to a container that cannot be placed.
const (
	// Reject fails the creation of the container.
	Reject OnUnsatisfiable = "Reject"
	// Unpinned lets the container run on all nodes without an allocation.
	Unpinned OnUnsatisfiable = "Unpinned"
)

// NodesWithoutCPUs is the use of NUMA nodes that have memory and no CPUs.
type NodesWithoutCPUs string

// The uses of nodes without CPUs.
const (
	ExcludeNodes NodesWithoutCPUs = "Exclude"
	IncludeNodes NodesWithoutCPUs = "Include"
)

// ReservedMemoryCheck is how a wrong sum of reserved memory is taken.
type ReservedMemoryCheck string

// How a wrong sum is taken.
const (
	CheckStrict ReservedMemoryCheck = "Strict"
	CheckWarn   ReservedMemoryCheck = "Warn"
)

// OnGroupConflict is what happens when the merged hint breaks the group rule (kubernetes#138495).
type OnGroupConflict string

// The answers to a group conflict.
const (
	// FailOnConflict is the kubelet's: the container cannot be placed.
	FailOnConflict OnGroupConflict = "Fail"
	// FallBackOnConflict takes the narrowest set of nodes that has room and keeps the groups.
	FallBackOnConflict OnGroupConflict = "FallBack"
)

// OnForeignCPUs is what happens under restricted when the kubelet has assigned a container's exclusive CPUs on more NUMA
// nodes than the policy admits.
type OnForeignCPUs string

// The answers to CPUs on too many nodes.
const (
	// FollowCPUs places the memory on the nodes of the CPUs.
	FollowCPUs OnForeignCPUs = "Follow"
	// RejectCPUs treats the container as one that cannot be placed: the policy as the kubelet has it.
	RejectCPUs OnForeignCPUs = "Reject"
)

// OnTermination is what becomes of everything that was written when the plugin ends.
type OnTermination string

// The ways to end.
const (
	// KeepValues leaves containers and cgroups as they are: the next start takes them over.
	KeepValues OnTermination = "Keep"
	// RollbackValues does what the command rollback does: for uninstalling.
	RollbackValues OnTermination = "Rollback"
)

// OnBadAnnotation is what a wrong annotation does to its pod.
type OnBadAnnotation string

// What a wrong annotation does.
const (
	IgnoreAnnotation OnBadAnnotation = "Ignore"
	RejectPod        OnBadAnnotation = "Reject"
)

// Annotation is the key of one of our annotations, without its domain.
type Annotation string

// The annotations.
const (
	// AnnotationThrottlingFactor replaces memoryThrottlingFactor.
	AnnotationThrottlingFactor Annotation = "throttling-factor"
	// AnnotationMemoryHigh is "off" or a quantity.
	AnnotationMemoryHigh Annotation = "memory-high"
	// AnnotationReservation is none, low or min.
	AnnotationReservation Annotation = "reservation"
	// AnnotationNUMA is none, preferred or required.
	AnnotationNUMA Annotation = "numa"
	// AnnotationStallGuard is "off".
	AnnotationStallGuard Annotation = "stall-guard"
	// AnnotationMemoryPolicy is none, prefer-slack, interleave or weighted-interleave.
	AnnotationMemoryPolicy Annotation = "memory-policy"
)

// LogFormat is text or json.
type LogFormat string

// The formats of the log.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// LogLevel is a logrus level.
type LogLevel string

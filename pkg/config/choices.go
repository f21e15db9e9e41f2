package config

import (
	"maps"
	"regexp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// choices are the names that a key may hold, by its path with [] for each index. An empty name stands for "not set" and is
// not shown.
var choices = map[string][]string{
	"apiVersion":              {APIVersion, ""},
	"kind":                    {Kind, ""},
	"profile":                 names(ProfileFull, ProfileNUMA, ProfileQoS, ProfileObserve),
	"memoryManagerPolicy":     names(MemoryManagerStatic, MemoryManagerNone),
	"topologyManagerPolicy":   names(topologymanager.Policies()...),
	"topologyManagerScope":    names(topologymanager.ContainerScope, topologymanager.PodScope),
	"onUnsatisfiable":         names(Reject, Unpinned, ""),
	"onConflict":              names(FollowKubelet, FollowCPUs, FollowDevices),
	"unpinnedMemoryPolicy":    names(PolicyNone, PolicyPreferAvailable, PolicyInterleave, PolicyWeightedInterleave),
	"nodesWithoutCPUs":        names(ExcludeNodes, IncludeNodes),
	"memoryReservationPolicy": names(memoryqos.None, memoryqos.TieredReservation, memoryqos.HardReservation),
	"requestSources[]": names(memoryqos.SourceKubelet, memoryqos.SourceAPIServer, memoryqos.SourceUnified,
		memoryqos.SourceAnnotation, memoryqos.SourceSwap, memoryqos.SourceOOMScore),
	"annotationRules[].allowedAnnotations[]": annotationNames,
	"onBadAnnotation":                        names(IgnoreAnnotation, RejectPod),
	"failurePolicy":                          names(Ignore, Fail),
	"onTermination":                          names(KeepValues, RollbackValues),
	"logLevel":                               names[LogLevel]("error", "warning", "info", "debug", "trace"),
}

// anyIndex is the index of a list's item in the path of a key.
var anyIndex = regexp.MustCompile(`\[\d+\]`)

// Choices returns the names that a key may hold, by its path with [] for each index ("requestSources[]"), for the schema of
// the Helm chart's values. An empty name stands for "not set".
func Choices() map[string][]string { return maps.Clone(choices) }

func names[T ~string](values ...T) []string {
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = string(value)
	}
	return texts
}

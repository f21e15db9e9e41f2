package config

import (
	"maps"
	"regexp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// choices are the names that a key may hold, or that the keys of its mapping may be, by its path with [] for each index. An empty name
// stands for "not set" and is not shown, and <size> for any size of huge pages.
var choices = map[string][]string{
	"apiVersion":                   {APIVersion, ""},
	"kind":                         {Kind, ""},
	"profile":                      names(ProfileFull, ProfileNUMA, ProfileQoS, ProfileObserve),
	"memoryManagerPolicy":          names(MemoryManagerStatic, MemoryManagerNone),
	"topologyManagerPolicy":        names(topologymanager.Policies()...),
	"topologyManagerPolicyOptions": policyOptions,
	"topologyManagerPolicyOptions." + allocationStrategy: append(names(topologymanager.Strategies()...), ""),
	"topologyManagerScope":                               names(topologymanager.ContainerScope, topologymanager.PodScope),
	"onUnsatisfiable":                                    names(Reject, Unpinned, ""),
	"onConflict":                                         names(FollowKubelet, FollowCPUs, FollowDevices),
	"unpinnedMemoryPolicy":                               names(PolicyNone, PolicyPreferAvailable, PolicyInterleave, PolicyWeightedInterleave),
	"nodesWithoutCPUs":                                   names(ExcludeNodes, IncludeNodes, ConfineNodes),
	"reservedMemory[].limits":                            memoryTypes,
	"kubeReserved":                                       reservable,
	"systemReserved":                                     reservable,
	"evictionHard":                                       signals,
	"memoryReservationPolicy":                            names(memoryqos.None, memoryqos.TieredReservation, memoryqos.HardReservation),
	"requestSources[]": names(memoryqos.SourceKubelet, memoryqos.SourceAPIServer, memoryqos.SourceUnified,
		memoryqos.SourceAnnotation, memoryqos.SourceSwap, memoryqos.SourceOOMScore),
	"annotationRules[].allowedAnnotations[]": annotationNames,
	"annotationRules[].defaults":             annotationNames,
	defaultsOf + "reservation":               names(memoryqos.ReserveNone, memoryqos.ReserveLow, memoryqos.ReserveMin),
	defaultsOf + "numa":                      names(NUMANone, NUMAPreferred, NUMARequired),
	defaultsOf + "stall-guard":               {"off"},
	defaultsOf + "memory-policy":             {"none", "prefer-available", "interleave", "weighted-interleave"},
	defaultsOf + "oom-group":                 {"container", "process"},
	"onBadAnnotation":                        names(IgnoreAnnotation, RejectPod),
	"failurePolicy":                          names(Ignore, Fail),
	"onTermination":                          names(KeepValues, RollbackValues),
	"dra.shares[].limits":                    memoryTypes,
	"logLevel":                               names[LogLevel]("error", "warning", "info", "debug", "trace"),
}

const defaultsOf = "annotationRules[].defaults."

// Range is the numbers that a key may hold: from 0 to Most, without 0 where Above and without Most where Below is set.
type Range struct {
	Most         float64
	Above, Below bool
	// Want says so in an error.
	Want string
}

// ranges are those of keys, by their paths with [] for each index.
var ranges = map[string]Range{
	"memoryThrottlingFactor":                    {Most: 1, Above: true, Want: "more than 0 and at most 1, or null for no memory.high"},
	"guaranteedHeadroom":                        {Most: 1, Below: true, Want: "0 or more and less than 1"},
	"cacheRoom":                                 {Most: memoryqos.MostCacheRoom, Want: "0 to 0.5, the share of a limit between memory.high and memory.max"},
	"annotationRules[].minimumThrottlingFactor": {Most: 1, Want: "0 to 1"},
}

// anyIndex is the index of a list's item in the path of a key.
var anyIndex = regexp.MustCompile(`\[\d+\]`)

// Choices returns the names that a key may hold, or that the keys of its mapping may be, by its path with [] for each index
// ("requestSources[]"), for the schema of the Helm chart's values. An empty name stands for "not set".
func Choices() map[string][]string { return maps.Clone(choices) }

// Ranges returns the ranges of numbers, by the same paths and for the same schema.
func Ranges() map[string]Range { return maps.Clone(ranges) }

func (r Range) has(value float64) bool {
	return (value > 0 || value == 0 && !r.Above) && (value < r.Most || value == r.Most && !r.Below)
}

func names[T ~string](values ...T) []string {
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = string(value)
	}
	return texts
}

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
	"memoryManagerPolicy":     names(MemoryManagerStatic, MemoryManagerNone),
	"topologyManagerPolicy":   names(topologymanager.Policies()...),
	"topologyManagerScope":    names(topologymanager.ContainerScope, topologymanager.PodScope),
	"numaAllocationStrategy":  append(names(topologymanager.Strategies()...), ""),
	"onUnsatisfiable":         names(Reject, Unpinned, ""),
	"onGroupConflict":         names(FailOnConflict, FallBackOnConflict),
	"onForeignCPUs":           names(FollowCPUs, RejectCPUs),
	"unpinnedMemoryPolicy":    names(PolicyNone, PolicyPreferSlack, PolicyInterleave, PolicyWeightedInterleave),
	"coverDeficits":           names(DeficitsOff, DeficitsDryRun, DeficitsOn),
	"alignTo":                 names(topologymanager.AlignToKubelet, topologymanager.AlignToCPUs, topologymanager.AlignToDevices),
	"nodesWithoutCPUs":        names(ExcludeNodes, IncludeNodes),
	"reservedMemoryCheck":     names(CheckStrict, CheckWarn),
	"memoryReservationPolicy": names(memoryqos.None, memoryqos.TieredReservation, memoryqos.HardReservation),
	"requestSources[]": names(memoryqos.SourceKubelet, memoryqos.SourceAPIServer, memoryqos.SourceUnified,
		memoryqos.SourceAnnotation, memoryqos.SourceSwap, memoryqos.SourceOOMScore),
	"allowedAnnotations[]":                   annotationNames,
	"annotationRules[].allowedAnnotations[]": annotationNames,
	"onBadAnnotation":                        names(IgnoreAnnotation, RejectPod),
	"onTermination":                          names(KeepValues, RollbackValues),
	"log.format":                             names(LogText, LogJSON),
	"log.level":                              names[LogLevel]("error", "warning", "info", "debug", "trace"),
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

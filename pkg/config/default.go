package config

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Default is the configuration of an empty file.
func Default() Config {
	factor := 0.9
	return Config{
		APIVersion:              APIVersion,
		Kind:                    Kind,
		Profile:                 ProfileFull,
		MemoryManagerPolicy:     MemoryManagerStatic,
		TopologyManagerPolicy:   topologymanager.BestEffort,
		TopologyManagerScope:    topologymanager.ContainerScope,
		OnConflict:              FollowCPUs,
		UnpinnedMemoryPolicy:    PolicyNone,
		MaxMigrationBytes:       256 << 20,
		NodesWithoutCPUs:        ExcludeNodes,
		EvictionHard:            defaultEvictionHard(),
		MemoryThrottlingFactor:  &factor,
		MemoryReservationPolicy: memoryqos.TieredReservation,
		GuaranteedHeadroom:      0.02,
		OnBadAnnotation:         IgnoreAnnotation,
		StateTolerance:          64 << 20,
		StallGuard:              true,
		FailurePolicy:           Ignore,
		OnTermination:           KeepValues,
		LogLevel:                "info",
	}
}

// defaultEvictionHard is the part of the kubelet's default that concerns memory.
func defaultEvictionHard() map[string]string {
	return map[string]string{memoryAvailable: "100Mi"}
}

func annotations() []Annotation {
	return []Annotation{AnnotationThrottlingFactor, AnnotationMemoryHigh, AnnotationCacheRoom, AnnotationReservation, AnnotationNUMA,
		AnnotationStallGuard, AnnotationMemoryPolicy, AnnotationOOMGroup, AnnotationOOMScoreAdj}
}

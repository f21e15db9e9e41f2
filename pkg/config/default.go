package config

import (
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Default is the configuration of an empty file.
func Default() Config {
	factor := 0.9
	return Config{
		MemoryManagerPolicy:     MemoryManagerStatic,
		TopologyManagerPolicy:   topologymanager.BestEffort,
		TopologyManagerScope:    topologymanager.ContainerScope,
		UnpinnedMemoryPolicy:    PolicyNone,
		CoverDeficits:           DeficitsDryRun,
		NodesWithoutCPUs:        ExcludeNodes,
		ReservedMemoryCheck:     CheckStrict,
		EvictionHard:            defaultEvictionHard(),
		MemoryThrottlingFactor:  &factor,
		MemoryReservationPolicy: memoryqos.TieredReservation,
		GuaranteedHeadroom:      0.02,
		RequestTimeout:          Duration(300 * time.Millisecond),
		AllowedAnnotations:      annotations(),
		OnBadAnnotation:         IgnoreAnnotation,
		OnTermination:           KeepValues,
		OnGroupConflict:         FailOnConflict,
		OnForeignCPUs:           FollowCPUs,
		Migration:               Migration{UpTo: 4 << 30},
		AlignTo:                 topologymanager.AlignToCPUs,
		ReconcilePeriod:         Duration(10 * time.Second),
		StateTolerance:          64 << 20,
		RecordingSize:           64 << 20,
		StallGuard: StallGuard{
			Enabled:          true,
			Stall:            Duration(500 * time.Millisecond),
			Window:           Duration(2 * time.Second),
			Step:             0.25,
			RestoreAfter:     Duration(5 * time.Minute),
			ProactiveReclaim: true,
		},
		PodResources:         PodResources{Enabled: true},
		NodeResourceTopology: NodeResourceTopology{Interval: Duration(10 * time.Second)},
		DRA:                  claims.Config{Driver: "memory.noderesource.dev", Share: "50%"},
		Log:                  Log{Format: LogText, Level: "info"},
	}
}

// defaultEvictionHard is the part of the kubelet's default that concerns memory.
func defaultEvictionHard() map[string]string {
	return map[string]string{memoryAvailable: "100Mi"}
}

// annotations are all that there are.
func annotations() []Annotation {
	return []Annotation{AnnotationThrottlingFactor, AnnotationMemoryHigh, AnnotationReservation, AnnotationNUMA, AnnotationStallGuard,
		AnnotationMemoryPolicy}
}

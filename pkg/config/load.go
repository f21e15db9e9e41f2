package config

import (
	"errors"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// origin is where the values came from, for messages.
type origin struct{}

// Default is the configuration of an empty file.
func Default() Config {
	factor := 0.9
	return Config{
		MemoryManagerPolicy:     MemoryManagerStatic,
		TopologyManagerPolicy:   topologymanager.BestEffort,
		TopologyManagerScope:    topologymanager.ContainerScope,
		NodesWithoutCPUs:        ExcludeNodes,
		ReservedMemoryCheck:     CheckStrict,
		EvictionHard:            map[string]string{"memory.available": "100Mi"},
		MemoryThrottlingFactor:  &factor,
		MemoryReservationPolicy: memoryqos.TieredReservation,
		GuaranteedHeadroom:      0.02,
		RequestTimeout:          Duration(300 * time.Millisecond),
		AllowedAnnotations: []Annotation{AnnotationThrottlingFactor, AnnotationMemoryHigh, AnnotationReservation,
			AnnotationNUMA, AnnotationStallGuard},
		OnBadAnnotation: IgnoreAnnotation,
		ReconcilePeriod: Duration(10 * time.Second),
		StateTolerance:  64 << 20,
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
		Log:                  Log{Format: LogText, Level: "info"},
	}
}

// Load reads a configuration file.
func Load(path string) (Config, error) { return Config{}, errors.New("not built yet") }

// Parse reads the text of a configuration file; name is what errors call it. Nothing but a file named by kubeletConfig is
// read.
func Parse(name string, data []byte) (Config, error) { return Config{}, errors.New("not built yet") }

// Marshal writes the effective configuration as YAML that Parse reads.
func (c Config) Marshal() ([]byte, error) { return nil, errors.New("not built yet") }

package memoryqos_test

import (
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// BenchmarkContainer is what every create and every resize pays for a container's values.
func BenchmarkContainer(b *testing.B) {
	s := settings(memoryqos.TieredReservation)
	for name, c := range map[string]memoryqos.Container{
		"Burstable":  {Class: memoryqos.Burstable, Request: 500 * mi, Limit: gi},
		"Guaranteed": {Class: memoryqos.Guaranteed, Request: gi, Limit: gi},
		"BestEffort": {Class: memoryqos.BestEffort},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Container(c, memoryqos.Overrides{})
			}
		})
	}
}

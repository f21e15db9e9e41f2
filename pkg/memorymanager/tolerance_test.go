package memorymanager_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// TestOnlyMemoryDriftsWithinTheTolerance: 12288 bytes less are what a boot may take, a huge page is not.
func TestOnlyMemoryDriftsWithinTheTolerance(t *testing.T) {
	node := func(total, pages uint64) []memorymanager.NodeCapacity {
		return []memorymanager.NodeCapacity{{Total: total, Pools: []memorymanager.Pool{{PageSize: 2 * mi, Count: pages}}}}
	}
	const total = 65839165440
	for name, test := range map[string]struct {
		now       []memorymanager.NodeCapacity
		tolerance uint64
		want      []memorymanager.Drift
	}{
		"a boot": {node(total-12288, 8), memorymanager.DefaultTolerance, []memorymanager.Drift{
			{Type: "memory", Stored: total - 16*mi, Now: total - 16*mi - 12288, Tolerated: true},
		}},
		"a boot, exact": {node(total-12288, 8), 0, []memorymanager.Drift{{Type: "memory", Stored: total - 16*mi, Now: total - 16*mi - 12288}}},
		"a huge page": {node(total, 7), memorymanager.DefaultTolerance, []memorymanager.Drift{
			{Type: "hugepages-2Mi", Stored: 16 * mi, Now: 14 * mi},
			{Type: "memory", Stored: total - 16*mi, Now: total - 14*mi, Tolerated: true},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			stored := manager(t, node(total, 8), topologymanager.BestEffort)
			report, err := manager(t, test.now, topologymanager.BestEffort).Restore(stored.State(), test.tolerance)
			if diff := cmp.Diff(test.want, report.Drifted); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

package memoryqos_test

import (
	"math"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

func TestPeakOverInitContainersAndSidecars(t *testing.T) {
	type part struct {
		kind  memoryqos.Kind
		bytes uint64
	}
	tests := map[string]struct {
		parts []part
		want  uint64
	}{
		"no container":                 {nil, 0},
		"apps add up":                  {[]part{{memoryqos.App, 3}, {memoryqos.App, 4}}, 7},
		"a large init container":       {[]part{{memoryqos.Init, 9}, {memoryqos.App, 3}, {memoryqos.App, 4}}, 9},
		"a small init container":       {[]part{{memoryqos.Init, 6}, {memoryqos.App, 3}, {memoryqos.App, 4}}, 7},
		"init containers do not add":   {[]part{{memoryqos.Init, 9}, {memoryqos.Init, 8}, {memoryqos.App, 3}}, 9},
		"sidecars add to apps":         {[]part{{memoryqos.Sidecar, 2}, {memoryqos.App, 3}}, 5},
		"a sidecar before an init":     {[]part{{memoryqos.Sidecar, 2}, {memoryqos.Init, 9}, {memoryqos.App, 3}}, 11},
		"a sidecar after an init":      {[]part{{memoryqos.Init, 9}, {memoryqos.Sidecar, 2}, {memoryqos.App, 3}}, 9},
		"ephemeral ones count nothing": {[]part{{memoryqos.App, 3}, {memoryqos.Ephemeral, 8}}, 3},
		"sums saturate":                {[]part{{memoryqos.Sidecar, math.MaxUint64}, {memoryqos.Init, 9}, {memoryqos.App, 3}}, math.MaxUint64},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var p memoryqos.Peak
			for _, part := range test.parts {
				p.Add(part.kind, part.bytes)
			}
			if got := p.Bytes(); got != test.want {
				t.Errorf("%d bytes, want %d", got, test.want)
			}
		})
	}
}

package memoryqos_test

import (
	"math"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

func TestAFileShowsWholePages(t *testing.T) {
	const largest = math.MaxInt64 / 4096 * 4096 // PAGE_COUNTER_MAX pages, which the kernel calls max
	for name, test := range map[string]struct{ bytes, page, want uint64 }{
		"nothing":                    {0, 4096, 0},
		"less than a page":           {4095, 4096, 0},
		"a page":                     {4096, 4096, 4096},
		"10000001":                   {10000001, 4096, 9998336},
		"100M":                       {100000000, 4096, 99999744},
		"pages of 64Ki":              {10000001, 64 * ki, 9961472},
		"page size unknown":          {10000001, 0, 9998336},
		"max":                        {math.MaxUint64, 4096, math.MaxUint64},
		"the largest that is no max": {largest - 1, 4096, largest - 4096},
		"the smallest that is max":   {largest, 4096, math.MaxUint64},
	} {
		t.Run(name, func(t *testing.T) {
			if got := memoryqos.InFile(test.bytes, test.page); got != test.want {
				t.Errorf("the file shows %d, want %d", got, test.want)
			}
		})
	}
}

func TestAFileHoldsWhatTheKernelRounded(t *testing.T) {
	for name, test := range map[string]struct {
		shown, wanted uint64
		want          bool
	}{
		"rounded down":          {9998336, 10000001, true},
		"in a folder":           {10000001, 10000001, true},
		"a page less":           {9994240, 10000001, false},
		"a page more":           {10002432, 10000001, false},
		"0 for a page":          {0, 4096, false},
		"a number for max":      {9998336, math.MaxUint64, false},
		"max":                   {math.MaxUint64, math.MaxUint64, true},
		"max for a huge number": {math.MaxUint64, math.MaxInt64, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := memoryqos.Holds(test.shown, test.wanted, 4096); got != test.want {
				t.Errorf("a file that shows %d holds %d: %t", test.shown, test.wanted, got)
			}
		})
	}
}

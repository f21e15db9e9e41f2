package memoryqos_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

func TestCacheRoom(t *testing.T) {
	type (
		container = memoryqos.Container
		overrides = memoryqos.Overrides
	)
	guaranteed := container{Class: memoryqos.Guaranteed, Request: 1000 * mi, Limit: 1000 * mi}
	burstable := container{Class: memoryqos.Burstable, Request: 500 * mi, Limit: 1000 * mi}
	for name, test := range map[string]struct {
		share     float64 // the node's
		container container
		wish      overrides
		high      uint64 // 0 is not set
		room      bool
	}{
		"off":                               {0, guaranteed, overrides{}, 0, false},
		"Guaranteed":                        {0.1, guaranteed, overrides{}, 900 * mi, true},
		"Burstable: the formula gives less": {0.04, burstable, overrides{}, 950 * mi, false},
		"Burstable: the formula gives more": {0.1, burstable, overrides{}, 900 * mi, true},
		"the same of both":                  {0.05, burstable, overrides{}, 950 * mi, false},
		"a factor of 1":                     {0.1, burstable, overrides{Factor: ptr(1.0)}, 900 * mi, true},
		"the formula at the limit":          {0.1, container{Class: memoryqos.Burstable, Request: 999 * mi, Limit: 1000 * mi}, overrides{}, 900 * mi, true},
		"no limit":                          {0.1, container{Class: memoryqos.BestEffort}, overrides{}, 7730937856, false},
		"by the pod":                        {0, guaranteed, overrides{CacheRoom: ptr(0.25)}, 750 * mi, true},
		"the pod has less":                  {0.2, guaranteed, overrides{CacheRoom: ptr(0.1)}, 900 * mi, true},
		"the pod wants none":                {0.2, guaranteed, overrides{CacheRoom: ptr(0.0)}, 0, false},
		"too much is none":                  {0.6, guaranteed, overrides{}, 0, false},
		"no number is none":                 {math.NaN(), guaranteed, overrides{}, 0, false},
		"the pod names its memory.high":     {0.1, burstable, overrides{High: ptr[uint64](980 * mi)}, 980 * mi, false},
		"the pod wants no memory.high":      {0.1, burstable, overrides{NoHigh: true}, 0, false},
		"an estimated request":              {0.1, container{Class: memoryqos.Burstable, Request: 500 * mi, Limit: 1000 * mi, RequestError: 500 * mi}, overrides{}, 900 * mi, true},
		"a tiny limit":                      {0.1, container{Class: memoryqos.Guaranteed, Request: 9 * mi, Limit: 9 * mi}, overrides{}, 0, false},
		"not quite tiny":                    {0.1, container{Class: memoryqos.Guaranteed, Request: 10 * mi, Limit: 10 * mi}, overrides{}, 9 * mi, true},
		"a page down":                       {0.1, container{Class: memoryqos.Guaranteed, Request: 100*mi + 1, Limit: 100*mi + 1}, overrides{}, 90 * mi, true},
		"an absurd limit":                   {0.1, container{Class: memoryqos.Guaranteed, Request: math.MaxUint64, Limit: math.MaxUint64}, overrides{}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := memoryqos.Settings{Factor: ptr(0.9), CacheRoom: test.share, NodeAllocatable: 8 * gi}
			want := memoryqos.Values{}
			if test.high > 0 {
				want.High = &test.high
			}
			if diff := cmp.Diff(want, s.Container(test.container, test.wish)); diff != "" {
				t.Error(diff)
			}
			if room := s.IsCacheRoom(test.container, test.wish); room != test.room {
				t.Errorf("it is room for page cache: %t, want %t", room, test.room)
			}
		})
	}
}

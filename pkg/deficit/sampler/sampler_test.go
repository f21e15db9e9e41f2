package sampler

import (
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

func TestWhenSamplesRest(t *testing.T) {
	for name, test := range map[string]struct {
		since func(s *Sampler, view *ledger.View, now *time.Time)
		rests bool
	}{
		"nothing happens": {func(*Sampler, *ledger.View, *time.Time) {}, true},
		"9 s later":       {func(_ *Sampler, _ *ledger.View, now *time.Time) { *now = now.Add(9 * time.Second) }, true},
		"10 s later":      {func(_ *Sampler, _ *ledger.View, now *time.Time) { *now = now.Add(10 * time.Second) }, false},
		"a pod changes":   {func(_ *Sampler, view *ledger.View, _ *time.Time) { view.Generation++ }, false},
		"a node has a deficit": {func(s *Sampler, _ *ledger.View, _ *time.Time) {
			s.last.Store(&deficit.Sample{Nodes: []deficit.NodeMemory{{Unused: 2, Free: 1}}})
		}, false},
		"it is not known": {func(s *Sampler, _ *ledger.View, _ *time.Time) { s.last.Store(&deficit.Sample{Unknown: "not read"}) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			now, view := time.Unix(100, 0), &ledger.View{}
			s := &Sampler{View: func() *ledger.View { return view }, Now: func() time.Time { return now }, looked: now}
			s.last.Store(&deficit.Sample{Nodes: []deficit.NodeMemory{{Unused: 1, Free: 1}}})
			test.since(s, view, &now)
			if s.rests() != test.rests {
				t.Errorf("rests: %t", !test.rests)
			}
		})
	}
}

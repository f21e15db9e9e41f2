package world

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"
)

func TestAScenarioIsData(t *testing.T) {
	for seed := range uint64(50) {
		s := Draw(seed, Size{Length: 20 * time.Minute, Pods: 10, Faults: 5})
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Scenario
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(s, back) {
			t.Fatalf("seed %d: JSON has lost something:\n%+v\n%+v", seed, s, back)
		}
		if again := Draw(seed, Size{Length: 20 * time.Minute, Pods: 10, Faults: 5}); !reflect.DeepEqual(s, again) {
			t.Fatalf("seed %d is drawn in two ways", seed)
		}
		at := map[Duration]bool{}
		note := func(times ...Duration) {
			for _, when := range times {
				if when != 0 && at[when] {
					t.Errorf("seed %d: two things happen after %s", seed, time.Duration(when))
				}
				at[when] = true
			}
		}
		for _, p := range s.Pods {
			note(p.At, p.End)
			for _, c := range p.Changes {
				note(c.At)
			}
		}
		for _, f := range s.Faults {
			note(f.At)
		}
	}
}

func TestShrinkLeavesWhatFails(t *testing.T) {
	s := Draw(7, Size{Length: time.Hour, Pods: 20, Faults: 12})
	guilty, kind := s.Pods[len(s.Pods)/2].Name, s.Faults[3].Kind
	has := func(s Scenario) bool {
		return slices.ContainsFunc(s.Pods, func(p Pod) bool { return p.Name == guilty }) &&
			slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.Kind == kind })
	}
	small := Shrink(s, 1000, has)
	if !has(small) || len(small.Pods) != 1 || len(small.Faults) != 1 || len(small.Pods[0].Containers) != 1 || len(small.Pods[0].Changes) != 0 {
		t.Errorf("the smallest scenario that fails has %d pods, %d faults: %+v", len(small.Pods), len(small.Faults), small)
	}
	if asked := 0; len(Shrink(s, 5, func(Scenario) bool { asked++; return false }).Pods) != len(s.Pods) || asked != 5 {
		t.Errorf("asked %d times instead of 5", asked)
	}
}

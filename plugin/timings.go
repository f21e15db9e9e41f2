package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
)

// timings are constants of a daemon. The flag that sets others is hidden: it is for tests on emulated machines, which are slow, and
// for tests that do not wait for minutes. No node has a reason for it.
type timings struct {
	check   time.Duration // agent.Options.CheckPeriod
	request time.Duration // agent.Options.RequestTimeout
	export  time.Duration // nodetopology.Exporter.Period
	guard   guard.Settings
}

func defaultTimings() timings {
	return timings{check: agent.CheckPeriod, request: agent.RequestTimeout, export: 10 * time.Second, guard: guard.Defaults()}
}

// String is empty: the defaults are not shown.
func (t *timings) String() string { return "" }

// Type is what pflag shows of the value.
func (t *timings) Type() string { return "NAME=VALUE,..." }

// Set reads NAME=VALUE, comma-separated.
func (t *timings) Set(text string) error {
	durations := map[string]*time.Duration{"check": &t.check, "request": &t.request, "export": &t.export, "restore": &t.guard.RestoreAfter}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(pair, "=")
		var err error
		if name == "step" {
			t.guard.Step, err = strconv.ParseFloat(value, 64)
		} else if at, known := durations[name]; known {
			*at, err = time.ParseDuration(value)
		} else {
			err = fmt.Errorf("want %s", spelling.List(append(slices.Sorted(maps.Keys(durations)), "step")))
		}
		if err != nil {
			return fmt.Errorf("%q: %w", pair, err)
		}
	}
	return nil
}

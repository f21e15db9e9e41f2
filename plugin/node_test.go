package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/recording"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/world"
)

var (
	nodeSeed     = flag.Uint64("seed", 0, "of TestNode: the first seed; 0 takes the ones that are always run")
	nodeSeeds    = flag.Uint64("seeds", 1, "of TestNode: so many seeds from -seed on")
	nodeFor      = flag.Duration("for", 0, "of TestNode: seeds from -seed on for so long")
	nodeScenario = flag.String("scenario", "", "of TestNode: a file with a scenario, as a failing seed prints it")
	nodeShrink   = flag.Int("shrink", 100, "of TestNode: the most runs to make a scenario that fails smaller")
	nodeLog      = flag.String("nodelog", "", "of TestNode: a file for the daemon's log, with virtual times")
)

// replayed is the promise about what the daemon records of all that it decides.
const replayed world.Promise = "a recording is replayed as it was decided"

// TestNode runs the whole daemon in virtual time, beside a kernel, a kubelet and a container runtime, while things go wrong. A seed is one run.
func TestNode(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // there is much garbage, and little else
	var total world.Report
	nodes := 0
	live := func(t *testing.T, s world.Scenario) {
		report := live(t, s)
		nodes++
		total.Virtual += report.Virtual
		total.Containers += report.Containers
		total.Verdicts += report.Verdicts
		total.Fresh += report.Fresh
	}
	switch {
	case *nodeScenario != "":
		live(t, readScenario(t, *nodeScenario))
	case *nodeSeed > 0:
		began := time.Now()
		for i := uint64(0); i < *nodeSeeds || time.Since(began) < *nodeFor; i++ {
			live(t, scenarioOf(*nodeSeed+i))
		}
	default:
		for seed := range uint64(5) { // one of each size, and one with the API server
			live(t, scenarioOf(seed+1))
		}
		kept, err := filepath.Glob("testdata/node/*.json") // each was red once
		must(t, err)
		for _, path := range kept {
			live(t, readScenario(t, path))
		}
	}
	t.Logf("simulated: %.1f hours of %d nodes' time, in which %d containers, %d OOM kills and %d starts were judged", total.Virtual.Hours(), nodes, total.Containers, total.Verdicts, total.Fresh)
}

func readScenario(t *testing.T, path string) (s world.Scenario) {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	must(t, json.Unmarshal(text, &s))
	t.Logf("the scenario is %s", path)
	return s
}

// scenarioOf draws short and long ones, busy and quiet ones.
func scenarioOf(seed uint64) world.Scenario {
	size := world.Size{Length: 12 * time.Minute, Pods: 8, Faults: 3}
	switch seed % 4 {
	case 1:
		size.Faults = 0
	case 2:
		size = world.Size{Length: 40 * time.Minute, Pods: 15, Faults: 8}
	case 3:
		size.Faults = 10
	}
	return world.Draw(seed, size)
}

func live(t *testing.T, s world.Scenario) *world.Report {
	t.Helper()
	began := time.Now()
	report := simulate(t, s)
	t.Logf("seed %d: %s of virtual time in %s, %d pods, %d creates (%d refused), %d kills, %d containers, %d verdicts, %d starts, %d requests and %d scores judged", s.Seed, report.Virtual.Round(time.Second),
		time.Since(began).Round(time.Millisecond), report.Pods, report.Creates, report.Refused, report.Kills, report.Containers, report.Verdicts, report.Fresh, report.Requests, report.Scored)
	for _, v := range report.Violations {
		t.Errorf("seed %d: %s", s.Seed, v)
	}
	if promise := report.First(); promise != "" && *nodeShrink > 0 {
		t.Logf("making what fails smaller, in up to %d runs", *nodeShrink)
		small := world.Shrink(s, *nodeShrink, func(s world.Scenario) bool { return slices.Contains(simulate(t, s).Broken(), promise) })
		file, err := os.CreateTemp("", "node-*.json")
		must(t, err)
		defer file.Close()
		_, err = file.WriteString(small.String())
		must(t, err)
		t.Errorf("%q is broken by what is left of seed %d:\n%s\nmake simulate-node SCENARIO=%s", promise, s.Seed, small, file.Name())
	}
	return report
}

func simulate(t *testing.T, s world.Scenario) *world.Report {
	folder := t.TempDir()
	if in, err := os.MkdirTemp("/dev/shm", "node"); err == nil {
		folder = in
		t.Cleanup(func() { os.RemoveAll(in) })
	}
	var output io.Writer = io.Discard
	if *nodeLog != "" {
		file, err := os.Create(*nodeLog)
		must(t, err)
		defer file.Close()
		output = file
	}
	recordings, credentials := t.TempDir(), filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(credentials, []byte(kubeconfig("http://kubernetes.default")), 0o600))
	report := world.Simulate(t, s, folder, func(ctx context.Context, at world.Place) (func(context.Context) error, error) {
		config, err := loadConfig(at.Config)
		if err != nil {
			return nil, err
		}
		machine, err := sysfs.Load(filepath.Dir(at.Sys))
		if err != nil {
			return nil, err
		}
		log := logrus.New()
		log.SetLevel(logrus.DebugLevel)
		lines := logTo(log, output)
		d, err := newDaemon(ctx, daemonOptions{
			hostOptions: hostOptions{stateDir: at.StateDir}, apiOptions: apiOptions{kubeconfig: credentials, nodeName: world.NodeName, transport: at.API}, cdi: at.CDI, name: defaultName, index: defaultIndex, config: config, configPath: at.Config, machine: machine, sysfs: at.Sys,
			timings: defaultTimings(), log: log, lines: lines, record: recordings, recordSize: 4 << 20, // so that segments begin in between
			outside: surroundings{
				tree:      func() (*cgroupfs.Tree, error) { return cgroupfs.New("/sys/fs/cgroup", at.Kernel), nil },
				units:     at.Units,
				proc:      at.Proc,
				providers: func() ([]podinfo.Provider, error) { return at.Providers, nil },
				dial:      at.Dial,
				listen:    at.Listen,
				prompts:   at.Reread,
			},
		})
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) error {
			defer lines.Close(logTimeout)
			return d.run(ctx)
		}, nil
	})
	summary, err := recording.Replay(recordings, func(d recording.Decision) error {
		if d.Differs() {
			report.Violations = append(report.Violations, world.Violation{At: report.Virtual, Promise: replayed, Text: fmt.Sprintf("%s, event %d, %s %s %s: recorded %s, replayed %s",
				filepath.Base(d.File), d.Event, d.Kind, d.Pod, d.Container, d.Outcome, d.Replayed)})
		}
		return nil
	})
	if err != nil || summary.Decisions == 0 && report.Creates > 0 {
		t.Errorf("seed %d: %+v, %v", s.Seed, summary, err)
	}
	return report
}

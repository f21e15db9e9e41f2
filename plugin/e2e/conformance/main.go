// Command conformance runs Kubernetes' own suites of the node (test/e2e_node), unmodified, in two virtual machines: with the
// kubelet's Memory Manager and Memory QoS, which is the reference, and with the plugin in their place. From the results it writes
// docs/conformance.md, and a page of each suite that ran in docs/conformance.
//
// It is what `make conformance` calls. Like `make e2e` it takes CACHE, ACCEL and JOBS from the environment.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/controlplane"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/vm"
)

// Who manages memory in a run.
const (
	reference = "reference"
	plugin    = "plugin"
)

// allSuites are the suites of what the plugin does, in the order of the page.
var allSuites = []string{"memory_qos", "memory_manager", "topology_manager", "hugepages"}

// suiteLimit is how long one suite may take on an emulated machine.
const suiteLimit = 3 * time.Hour

type options struct {
	version     string
	suites      []string
	runs        []string
	earlier     map[string]string // folders of runs whose results are there already
	focus, skip string
	out         string
}

func main() {
	var o options
	flag.StringVar(&o.version, "kubernetes", controlplane.Version, "the release whose suites and kubelet run")
	suites := flag.String("suites", strings.Join(allSuites, ","), "suites, by the names of their files")
	runs := flag.String("runs", reference+","+plugin, "which of the two runs; NAME=FOLDER takes an earlier run's results in place of a new one")
	flag.StringVar(&o.focus, "focus", "", "regular expression of cases to run")
	flag.StringVar(&o.skip, "skip", "", "regular expression of cases to leave out")
	flag.StringVar(&o.out, "out", "", "the page to write; those of the suites go into the folder of its name without .md. Without it they are printed")
	flag.Parse()
	o.suites = strings.Split(*suites, ",")
	err := o.choose(*runs)
	if err == nil {
		err = conformance(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// choose reads -runs.
func (o *options) choose(runs string) error {
	o.earlier = map[string]string{}
	for run := range strings.SplitSeq(runs, ",") {
		name, folder, earlier := strings.Cut(run, "=")
		if name != reference && name != plugin || earlier && folder == "" {
			return fmt.Errorf("-runs: want %s or %s, or one of them with =FOLDER, got %q", reference, plugin, run)
		}
		o.runs = append(o.runs, name)
		if earlier {
			o.earlier[name] = folder
		}
	}
	return nil
}

func logf(format string, args ...any) {
	fmt.Printf("%s conformance: %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

func conformance(o options) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	results := make([]*result, len(o.runs))
	var missing []int // the runs that are to be booted
	for i, run := range o.runs {
		if o.earlier[run] == "" {
			missing = append(missing, i)
			continue
		}
		var err error
		if results[i], err = read(run, o.earlier[run]); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		if err := boot(ctx, o, missing, results); err != nil {
			return err
		}
	}
	if err := write(o, results); err != nil {
		return err
	}
	if names := unexplained(results); len(names) > 0 {
		return fmt.Errorf("cases that fail with the plugin only, and have no reason in reasons.go:\n  %s", strings.Join(names, "\n  "))
	}
	return nil
}

// boot prepares the guests and has some of the runs in them.
func boot(ctx context.Context, o options, runs []int, results []*result) error {
	home, err := os.Getwd()
	if err != nil {
		return err
	}
	cache, err := vm.CacheFolder()
	if err != nil {
		return err
	}
	folder := filepath.Join(home, ".cache", "conformance", fmt.Sprintf("%s-%d", time.Now().Format("20060102-150405"), os.Getpid()))
	variant := vm.Conformance()
	began := time.Now()
	parts, err := vm.Prepare(ctx, vm.Options{Home: home, Project: filepath.Join(home, "..", ".."), Cache: cache, Run: folder, Log: logf}, []vm.Variant{variant})
	if err != nil {
		return err
	}
	suites, err := parts.BuildSuites(ctx, o.version)
	if err != nil {
		return err
	}
	if err := parts.BuildConformance(ctx, suites); err != nil {
		return err
	}
	logf("prepared in %s; %s", time.Since(began).Round(time.Second), folder)
	var guests sync.WaitGroup
	free := make(chan struct{}, vm.Jobs())
	errs := make([]error, len(o.runs))
	for _, i := range runs {
		free <- struct{}{}
		guests.Go(func() {
			results[i], errs[i] = runIn(ctx, parts, variant, o, o.runs[i], filepath.Join(folder, o.runs[i]))
			<-free
		})
	}
	guests.Wait()
	return errors.Join(errs...)
}

// runIn runs the suites in one guest.
func runIn(ctx context.Context, parts *vm.Parts, v vm.Variant, o options, run, dir string) (*result, error) {
	command := []string{setup.Conformance, "-focus=" + o.focus, "-skip=" + o.skip, "-timeout=" + suiteLimit.String(), fmt.Sprintf("-plugin=%t", run == plugin)}
	for _, suite := range o.suites {
		command = append(command, suite+"_test.go")
	}
	plan := setup.Plan{
		Variant: v.Name + "-" + run, Driver: v.Driver, Runtime: v.Runtime, Kernel: v.Kernel, Nodes: v.Nodes, OCIRuntime: "/usr/bin/runc",
		Command: command, Watchdog: time.Duration(len(o.suites))*suiteLimit + 10*time.Minute,
	}
	logf("%s: booting: %s", run, v.Summary)
	stop := make(chan struct{})
	defer close(stop)
	go follow(run, filepath.Join(dir, "tests.log"), stop)
	guest, err := parts.Boot(ctx, v, plan, dir)
	if err != nil {
		return nil, err
	}
	if guest.Died() {
		guest.Show(os.Stdout, run)
		return nil, fmt.Errorf("%s: the guest died: %s", run, guest.Why)
	}
	logf("%s: ended after %s", run, guest.Time.Round(time.Second))
	r, err := read(run, dir)
	if err != nil {
		guest.Show(os.Stdout, run)
	}
	return r, err
}

// follow prints verdicts as they come.
func follow(run, file string, stop <-chan struct{}) {
	for printed := 0; ; {
		text, _ := os.ReadFile(file)
		lines := strings.Split(strings.ReplaceAll(string(text), "\r", ""), "\n")
		verdicts := slices.DeleteFunc(lines, func(line string) bool {
			return !strings.HasPrefix(line, "• [") && !strings.HasPrefix(line, "E2E-SUITE") && !strings.HasPrefix(line, "S [SKIPPED]")
		})
		for ; printed < len(verdicts); printed++ {
			logf("%s: %s", run, verdicts[printed])
		}
		select {
		case <-stop:
			return
		case <-time.After(time.Second):
		}
	}
}

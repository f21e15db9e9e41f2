// Command fleet measures what a scheduler makes of the NUMA nodes of many
// nodes: a control plane, nodes on which the real plugin decides, and pods that
// arrive at once, with the default scheduler alone, with the one that reads
// NodeResourceTopologies, and with resource claims.
//
// It is what `make fleet` calls. With -short it is a test: fewer nodes, and an
// exit status that reports whether the export and the claims keep pods off
// nodes that reject them, and whether claims align with the CPUs of another driver, and whether a Deployment gets
// past a node that refuses its pods.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/containerd/nri/pkg/adaptation"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/controlplane"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/vm"
)

// load is a number of equal pods that are created at once. Each node has room for some of them, and the default scheduler
// sees room for more.
type load struct {
	perNode, room int
	memory        string
}

var (
	large = load{perNode: 5, room: 4, memory: "50Gi"} // two in each NUMA node of 128Gi, five in 256Gi
	small = load{perNode: 20, room: 20, memory: "3Gi"}
	// some is for nodes half of which have a container on both NUMA nodes: four on each of the others.
	some = load{perNode: 2, room: 2, memory: "50Gi"}
)

// setting is one line of the table.
type setting struct {
	load
	// arguments are those of NodeResourceTopologyMatch; "" has the default scheduler and no export.
	arguments, mode string
	interval        time.Duration // of the export
	claims          bool          // each pod has a resource claim for its memory
	groups          bool          // half of the nodes have a group of NUMA nodes before the pods come
	heeds           bool          // an extender of the scheduler heeds the groups
	evicts          bool          // nodes evict the pods that they refuse
}

const (
	cached   = "{cacheResyncPeriodSeconds: 1, cache: {informerMode: Shared}}"
	uncached = "{}"
	discards = "{discardReservedNodes: true}"
)

var full = []setting{
	alone(large),
	exporting(large, "no cache", uncached, time.Second),
	exporting(large, "no cache", uncached, 10*time.Second),
	exporting(large, "discardReservedNodes", discards, 10*time.Second),
	exporting(large, "cache", cached, time.Second),
	exporting(large, "cache", cached, 5*time.Second),
	exporting(large, "cache", cached, 10*time.Second),
	exporting(large, "cache", cached, 30*time.Second),
	claiming(large),
	alone(small),
	exporting(small, "no cache", uncached, 10*time.Second),
	exporting(small, "cache", cached, 10*time.Second),
	claiming(small),
	beside("groups", false),
	beside("groups heeded", true),
}

var short = []setting{alone(large), exporting(large, "cache", cached, 10*time.Second), claiming(large), beside("groups", false), beside("groups heeded", true)}

func alone(l load) setting { return setting{load: l, mode: "default scheduler"} }

func exporting(l load, mode, arguments string, interval time.Duration) setting {
	return setting{load: l, mode: mode, arguments: arguments, interval: interval}
}

func claiming(l load) setting {
	return setting{load: l, mode: "default scheduler with claims", claims: true}
}

func beside(mode string, heeds bool) setting {
	s := exporting(some, mode, uncached, time.Second)
	s.groups, s.heeds = true, heeds
	return s
}

func main() {
	var o options
	nodes := flag.Int("nodes", 0, "number of nodes (default 100, with -short 8)")
	flag.BoolVar(&o.short, "short", false, "the test: five settings, the alignment of claims and a rollout, and failure when one does not do what it is for")
	only := flag.String("only", "", "measure the settings only whose line matches this regular expression")
	flag.StringVar(&o.plugin, "plugin", "", "a plugin to measure instead of the one of this tree")
	flag.Parse()
	adaptation.SetPluginRequestTimeout(time.Minute) // a loaded machine is no refusal
	o.settings, o.nodes = full, 100
	if o.short {
		o.settings, o.nodes = short, 8
		// Its cache takes up a node's object without looking at the Pending pods again. Without further changes they wait for
		// five minutes, and the test would fail now and then.
		o.schedulerFlags = []string{"--pod-max-in-unschedulable-pods-duration=10s"}
	}
	if *nodes > 0 {
		o.nodes = *nodes
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		fmt.Fprintln(os.Stderr, "fleet: -only:", err)
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

type options struct {
	short    bool
	nodes    int
	only     *regexp.Regexp
	plugin   string
	settings []setting
	// schedulerFlags are more flags of the scheduler that reads NodeResourceTopologies.
	schedulerFlags []string

	bin        []string // folders of the control plane's programs
	definition []byte   // the CustomResourceDefinition
	class      []byte   // the DeviceClass of NUMA nodes
	example    []byte   // of a claim template and a pod that have memory and CPUs
	dir        string
}

func (o *options) run(ctx context.Context) (err error) {
	if o.dir, err = os.MkdirTemp("", "fleet"); err != nil { // a short path, for sockets
		return err
	}
	if err = o.prepare(ctx); err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, header)
	without := 0 // pods that were rejected in the last setting whose scheduler was not informed
	for i, s := range o.settings {
		if !o.only.MatchString(strings.Join(s.columns(), " ")) {
			continue
		}
		logf("%s", s)
		r, failure := o.measure(ctx, s, filepath.Join(o.dir, fmt.Sprint(i)))
		if failure != nil {
			return fmt.Errorf("%s: %w; logs are in %s", s, failure, o.dir)
		}
		fmt.Fprintf(table, "%s\t%s\n", s, r)
		logf("%s", r)
		if o.short {
			err = errors.Join(err, r.check(s, o.nodes, without))
		}
		if !s.informed() {
			without = r.counts[rejected]
		}
	}
	if o.short {
		err = errors.Join(err, o.alignment(ctx, filepath.Join(o.dir, "alignment")), o.rollout(ctx, filepath.Join(o.dir, "rollout")))
	}
	table.Flush()
	if err != nil {
		return fmt.Errorf("%w; logs are in %s", err, o.dir)
	}
	return os.RemoveAll(o.dir)
}

// prepare finds or builds all programs.
func (o *options) prepare(ctx context.Context) error {
	home, err := os.Getwd()
	if err != nil {
		return err
	}
	cache, err := vm.CacheFolder()
	if err != nil {
		return err
	}
	parts := vm.Options{Home: home, Project: filepath.Join(home, "..", ".."), Cache: cache, Log: logf}
	if o.bin, err = vm.ControlPlane(ctx, parts); err != nil {
		return err
	}
	if o.plugin == "" {
		o.plugin = filepath.Join(o.dir, "nri-memory-manager")
		if err := vm.BuildPlugin(ctx, parts, o.plugin); err != nil {
			return err
		}
	}
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/k8stopologyawareschedwg/noderesourcetopology-api")
	list.Dir = parts.Project
	module, err := list.Output()
	if err != nil {
		return fmt.Errorf("look for the CustomResourceDefinition: %w", err)
	}
	for file, text := range map[string]*[]byte{
		filepath.Join(strings.TrimSpace(string(module)), "manifests", "crd.yaml"):        &o.definition,
		filepath.Join(parts.Project, "deploy/kustomize/components/dra/deviceclass.yaml"): &o.class,
		filepath.Join(parts.Project, "deploy/examples/dra/with-cpus.yaml"):               &o.example,
	} {
		if *text, err = os.ReadFile(file); err != nil {
			return err
		}
	}
	return nil
}

func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s fleet: %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

func (s setting) exports() bool { return s.arguments != "" }

// knowsNUMANodes reports whether the scheduler knows what is free on each NUMA node.
func (s setting) knowsNUMANodes() bool { return s.exports() || s.claims }

// informed reports whether the scheduler knows, too, what keeps pods from what is free.
func (s setting) informed() bool { return s.knowsNUMANodes() && s.groups == s.heeds }

func (s setting) scheduler() string {
	if s.exports() {
		return controlplane.TopologyAware
	}
	return "default-scheduler"
}

// columns are the setting's part of its line.
func (s setting) columns() []string {
	interval := "-"
	if s.exports() {
		interval = s.interval.String()
	}
	return []string{s.memory, s.mode, interval}
}

func (s setting) String() string { return strings.Join(s.columns(), "\t") }

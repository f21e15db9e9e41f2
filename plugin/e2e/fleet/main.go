// Command fleet measures what the NodeResourceTopology of every node is worth
// to a scheduler: a control plane, nodes on which the real plugin decides, and
// pods that arrive at once, with the default scheduler and with the one that
// reads the objects.
//
// It is what `make fleet` calls. With -short it is a test: fewer nodes, and an
// exit status that says whether the export keeps pods off nodes that reject them.
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
)

// setting is one line of the table.
type setting struct {
	load
	// arguments are those of NodeResourceTopologyMatch; "" has the default scheduler and no export.
	arguments, mode string
	interval        time.Duration // of the export
}

const (
	cached   = "{cacheResyncPeriodSeconds: 1, cache: {informerMode: Shared}}"
	uncached = "{}"
	discards = "{discardReservedNodes: true}"
)

var full = []setting{
	{load: large, mode: "default scheduler"},
	{large, uncached, "no cache", time.Second},
	{large, uncached, "no cache", 10 * time.Second},
	{large, discards, "discardReservedNodes", 10 * time.Second},
	{large, cached, "cache", time.Second},
	{large, cached, "cache", 5 * time.Second},
	{large, cached, "cache", 10 * time.Second},
	{large, cached, "cache", 30 * time.Second},
	{load: small, mode: "default scheduler"},
	{small, uncached, "no cache", 10 * time.Second},
	{small, cached, "cache", 10 * time.Second},
}

var short = []setting{
	{load: large, mode: "default scheduler"},
	{large, cached, "cache", 10 * time.Second},
}

func main() {
	var o options
	nodes := flag.Int("nodes", 0, "number of nodes (default 100, with -short 8)")
	flag.BoolVar(&o.short, "short", false, "the test: two settings, and failure when the export does not keep its promise")
	flag.StringVar(&o.only, "only", "", "measure the settings only whose line holds this text")
	flag.StringVar(&o.plugin, "plugin", "", "a plugin to measure instead of the one of this tree")
	flag.Parse()
	adaptation.SetPluginRequestTimeout(time.Minute) // a loaded machine is no refusal
	o.settings, o.nodes = full, 100
	if o.short {
		o.settings, o.nodes = short, 8
	}
	if *nodes > 0 {
		o.nodes = *nodes
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

type options struct {
	short        bool
	nodes        int
	only, plugin string
	settings     []setting

	bin        []string // folders of the control plane's programs
	definition []byte   // the CustomResourceDefinition
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
	for i, s := range o.settings {
		if !strings.Contains(s.String(), o.only) {
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
			err = errors.Join(err, r.check(s, o.nodes))
		}
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
	o.definition, err = os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "manifests", "crd.yaml"))
	return err
}

func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s fleet: %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

func (s setting) exports() bool { return s.arguments != "" }

func (s setting) scheduler() string {
	if s.exports() {
		return controlplane.TopologyAware
	}
	return "default-scheduler"
}

func (s setting) String() string {
	interval := "-"
	if s.exports() {
		interval = s.interval.String()
	}
	return fmt.Sprintf("%s\t%s\t%s", s.memory, s.mode, interval)
}

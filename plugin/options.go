package main

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/devices"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
)

// Defaults of flags.
const (
	defaultSocket         = api.DefaultSocketPath
	defaultName           = "memory-manager"
	defaultIndex          = "92"
	defaultStateDir       = "/var/lib/nri-memory-manager"
	defaultCgroups        = "/sys/fs/cgroup"
	defaultSystemdSocket  = "/run/systemd/private"
	defaultKubeletPods    = podinfo.DefaultKubeletSocket
	defaultKubeletDevices = devices.DefaultKubeletSocket
	defaultMetrics        = "127.0.0.1:8891"

	defaultPluginRegistry = "/var/lib/kubelet/plugins_registry"
	defaultCDI            = "/var/run/cdi"
)

// hostOptions are the flags of commands that touch this host.
type hostOptions struct {
	stateDir      string
	cgroups       string
	plainCgroups  bool
	systemdSocket string
}

func (o *hostOptions) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.stateDir, "state-dir", defaultStateDir, "folder of the state file and of the journal of what was written")
	flags.StringVar(&o.cgroups, "cgroups", defaultCgroups, "where the cgroup v2 hierarchy is mounted")
	flags.BoolVar(&o.plainCgroups, "plain-cgroups", false, "take --cgroups for a folder tree that only looks like cgroups (tests, simulation)")
	flags.StringVar(&o.systemdSocket, "systemd-socket", defaultSystemdSocket, "systemd's private D-Bus socket, for nodes with the systemd cgroup driver; empty writes files only")
}

// apiOptions are the flags of commands that talk to the API server.
type apiOptions struct {
	kubeconfig string
	nodeName   string
	transport  http.RoundTripper // connects to the API server; nil follows from the credentials
}

func (o *apiOptions) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "credentials for the API server; empty uses those of the pod that this runs in")
	flags.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "this node's name in the API (default $NODE_NAME)")
}

// check refuses what the API server has no node of.
func (o *apiOptions) check() error {
	if problems := content.IsDNS1123Subdomain(o.nodeName); o.nodeName != "" && len(problems) > 0 {
		return fmt.Errorf("--node-name %q is not the name of a node: %s", o.nodeName, strings.Join(problems, ", "))
	}
	return absolute(&o.kubeconfig)
}

// openTree opens the cgroup hierarchy and refuses a host with cgroup v1.
func (o *hostOptions) openTree() (*cgroupfs.Tree, error) {
	if o.plainCgroups {
		return cgroupfs.Open(o.cgroups, cgroupfs.Plain())
	}
	if err := cgroupfs.RequireUnified(o.cgroups); err != nil {
		return nil, err
	}
	return cgroupfs.Open(o.cgroups)
}

// units are nil where there is no systemd to set properties. A folder tree has none, unless its socket is named: this
// machine's has no part in it.
func (o *hostOptions) units() protect.Units {
	if o.systemdSocket == "" || o.plainCgroups && o.systemdSocket == defaultSystemdSocket {
		return nil
	}
	return protect.NewUnits(o.systemdSocket)
}

var files = config.Files(os.ReadFile)

// loadConfig reads a configuration file; without one the defaults hold.
func loadConfig(path string) (config.Config, error) {
	if path == "" {
		return config.Default(), nil
	}
	return files.Load(path)
}

// checkIdentity refuses a name or index that every runtime would.
func checkIdentity(name, index string) error {
	if err := api.CheckPluginName(name); err != nil {
		return fmt.Errorf("--name %q: %w", name, err)
	}
	if err := api.CheckPluginIndex(index); err != nil {
		return fmt.Errorf("--idx %q: %w; want two digits", index, err)
	}
	return nil
}

// absolute makes the paths of a daemon independent of its working folder.
func absolute(paths ...*string) error {
	for _, path := range paths {
		if *path == "" {
			continue
		}
		full, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = full
	}
	return nil
}

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

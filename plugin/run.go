package main

import (
	"cmp"
	"context"
	"errors"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/api"
	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/progress"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

type runOptions struct {
	daemonOptions
	machinePath string
	logFormat   string
}

func newRunCommand() *cobra.Command {
	o := runOptions{daemonOptions: daemonOptions{timings: defaultTimings(), recordSize: 64 << 20}}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the plugin beside containerd or CRI-O",
		Long: `Run connects to the runtime's NRI socket, and again whenever the runtime comes back. A runtime that finds this binary
among its pre-installed plugins starts it without arguments, which is the same.

SIGHUP reads the configuration again, as does a change of its file. SIGTERM ends the plugin; containers keep what they
have. "nri-memory-manager rollback" takes it back.`,
		Example: `  nri-memory-manager run --config /etc/nri/memory-manager/config.yaml
  nri-memory-manager run --nri-socket /tmp/nri.sock --state-dir /tmp/state --cgroups /tmp/cgroups --plain-cgroups --machine machine.yaml`,
		Args: commandline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.hostOptions.addTo(cmd)
	o.apiOptions.addTo(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.socket, "nri-socket", defaultSocket, "the runtime's NRI socket")
	flags.StringVar(&o.name, "name", cmp.Or(os.Getenv(api.PluginNameEnvVar), defaultName), "name to register with")
	flags.StringVar(&o.index, "idx", cmp.Or(os.Getenv(api.PluginIdxEnvVar), defaultIndex), "two-digit index to register with; plugins are called in its order")
	flags.StringVar(&o.configPath, "config", "", "configuration file (YAML); without it the defaults hold")
	flags.StringVar(&o.machinePath, "machine", "", "machine file or sysfs copy to use in place of this machine")
	flags.StringVar(&o.kubeletPods, "kubelet-pods-socket", defaultKubeletPods, "socket of the kubelet's pod API, unless requestSources leaves it out")
	flags.StringVar(&o.kubeletDevices, "kubelet-podresources-socket", defaultKubeletDevices, "socket of the kubelet's PodResources API, for the NUMA nodes of devices; empty looks only into sysfs")
	flags.StringVar(&o.metricsAddress, "metrics-address", defaultMetrics, "where /metrics, /healthz and /readyz are served, and on loopback /status and the page; empty is nowhere")
	flags.StringVar(&o.podResources, "podresources-socket", "podresources.sock", "socket of our PodResources API, in the state folder unless the path is absolute; empty serves none")
	flags.StringVar(&o.pluginRegistry, "plugin-registry", defaultPluginRegistry, "the kubelet's folder plugins_registry, where the configuration enables dra")
	flags.StringVar(&o.cdi, "cdi-dir", defaultCDI, "folder of the runtime's CDI specifications, where the configuration enables dra")
	flags.StringVar(&o.kubeletState, "import-kubelet-state", "", "a kubelet's memory_manager_state to import where the state folder has no state file")
	flags.StringVar(&o.daemonSet, "daemonset", "", "NAMESPACE/NAME of the DaemonSet that runs this: with onTermination: Rollback, the values are kept as long as it stands")
	flags.StringVar(&o.record, "record", "", "folder to record events and decisions in, for replay; empty records nothing")
	flags.String("record-size", "", "")
	_ = flags.MarkDeprecated("record-size", "recordings have 64Mi; remove the flag") // it is there
	flags.StringVar(&o.logFormat, "log-format", logText, "format of the log: text or json")
	flags.Var(&o.timings, "timings", "")
	_ = flags.MarkHidden("timings") // it is there
	flags.CountVarP(&o.verbose, "verbose", "v", "log more than the configuration says: -v debug, -vv trace")
	return cmd
}

func (o *runOptions) run(ctx context.Context) error {
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM) // main lets a second one end the process, and this end takes its time
	err := absolute(&o.socket, &o.configPath, &o.stateDir, &o.cgroups, &o.kubeletPods, &o.kubeletDevices, &o.record, &o.pluginRegistry, &o.cdi, &o.kubeletState)
	if err != nil {
		return err
	}
	if err := cmp.Or(checkOwner(o.daemonSet), o.apiOptions.check()); err != nil {
		return err
	}
	o.log = logrus.New()
	o.lines = logTo(o.log, os.Stderr)
	defer o.lines.Close(logTimeout)
	if err := o.lines.writeAs(o.logFormat); err != nil {
		return err
	}
	var prompts <-chan struct{}
	if o.configPath != "" {
		prompts = o.prompts(ctx, o.configPath)
	}
	if o.config, err = loadConfig(o.configPath); err != nil {
		return err
	}
	if o.podResources != "" && !filepath.IsAbs(o.podResources) {
		o.podResources = filepath.Join(o.stateDir, o.podResources)
	}
	if o.machine, err = sysfs.Load(o.machinePath); err != nil {
		return err
	}
	if o.sysfs, _, err = sysfs.Roots(o.machinePath); err != nil {
		return err
	}
	if err := absolute(&o.sysfs); err != nil {
		return err
	}
	o.launched = os.Getenv(api.PluginSocketEnvVar) != ""
	o.lines.configure(o.config.LogLevel, o.verbose)
	o.outside = o.thisMachine()
	o.outside.prompts = prompts
	limitMemory()
	limitProcessors()
	go watchdog(context.WithoutCancel(ctx)) // also while it waits for its state folder, and while it ends
	d, err := newDaemon(ctx, o.daemonOptions)
	switch {
	case errors.Is(err, context.Canceled): // it waited for its state folder, and has written nothing
		o.log.Info("nri-memory-manager ends")
		return nil
	case err != nil:
		return err
	}
	o.log.WithFields(logrus.Fields{"version": version, "socket": o.socket, "stateDir": o.stateDir, "nodes": len(o.machine.Nodes)}).
		Info("nri-memory-manager starts")
	err = d.run(ctx)
	if d.endsForGood() {
		err = errors.Join(err, d.rollback())
	}
	o.log.Info("nri-memory-manager ends")
	return commandline.Failed(err)
}

// logTimeout is how long the last lines of the log may take.
const logTimeout = 2 * time.Second

// memoryTarget is what Go's memory should stay below, in bytes. It is a target, not a limit: the collector works harder
// near it and is never stopped.
const memoryTarget = 40 << 20

// limitMemory keeps the process small, for it runs on every node, and the collector rare below that: a create that meets a
// collection takes twice as long. What the environment says (GOMEMLIMIT, GOGC) wins.
func limitMemory() {
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(memoryTarget)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(150)
	}
}

// mostProcessors is how many processors run Go code at the same time: one for the event that the runtime waits for, one for what is read
// meanwhile. For each more, of hundreds on a large node, Go keeps memory and wakes threads.
const mostProcessors = 2

// limitProcessors lets what the environment says (GOMAXPROCS) win.
func limitProcessors() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), mostProcessors))
	}
}

// watchdog has a systemd that asks for it (WatchdogSec) hear that the daemon moves, until ctx ends (sd_notify(3), sd_watchdog_enabled(3)).
func watchdog(ctx context.Context) {
	limit, _ := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if limit <= 0 {
		return
	}
	ticker := time.NewTicker(time.Duration(limit) * time.Microsecond / 4)
	defer ticker.Stop()
	for {
		if progress.Check() == nil {
			_, _ = systemd.SdNotify(false, systemd.SdNotifyWatchdog) // one that is not received is followed by others
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

type simulateOptions struct {
	machinePath, configPath string
	output                  string
	podInfo                 string
	cgroupDriver            string
	keep                    string
	expectRejected          []string
	verbose                 int
	cpuManagerPolicy        string
	reservedCPUs            string
	strict                  bool
	nodeName                string
}

func newSimulateCommand() *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate --machine FILE|SYSFS-ROOT MANIFEST…",
		Short: "Show what becomes of Pod manifests on a machine that need not be there",
		Long: `Simulate plays kubelet and container runtime for each pod of the manifests and has the daemon's own code decide about it:
Pods that have not ended, and Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs with their replicas. The
output of "helm template", "kubectl get -o yaml" and "jq" (objects one after the other) can be used as it is: other kinds and fields of a newer Kubernetes are
skipped, and the last lines name what is not known. A manifest is a file, a folder with *.yaml, *.yml and *.json, or "-" for standard input. Where the
configuration enables dra, pods with resource claims are not placed: the scheduler may choose their NUMA nodes.

A pod is admitted as by the kubelet, with its reasons (OutOfcpu, NodeAffinity, …), when the machine has its operating system
(linux), what it asks for of allocatable CPU, memory, huge pages and extended resources, its labels where the machine file has
any, and, with --cpu-manager-policy static, exclusive CPUs for it. The last line of the table says what is not looked at. A pod
of which no container is created is ended: it holds nothing, unless it is left out for its claims.

It shows on which NUMA nodes every container lands, its memory.min, low, high and max, its huge pages, annotations that are
ignored, and what the cgroups above hold. Nothing of this host is touched.

Exit status: 0 when every container was admitted, 1 when one was rejected or left out, 2 on bad input.`,
		Example: `  nri-memory-manager simulate --machine testdata/machines/task-page.yaml testdata/pods/*.yaml
  helm template my-chart | nri-memory-manager simulate --machine machine.yaml -
  nri-memory-manager simulate --machine /sys --cpu-manager-policy static --reserved-cpus 0-1 --strict my-pods.yaml
  kubectl get pods -A -o yaml | nri-memory-manager simulate --machine worker-1.yaml --node worker-1 -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("node") && o.nodeName == "" {
				return errors.New(`--node "": want the name of a node`)
			}
			return o.run(cmd.Context(), args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.machinePath, "machine", "", "machine file, or a folder with a copy of sysfs (required)")
	flags.StringVar(&o.configPath, "config", "", "configuration file (YAML); without it the defaults hold")
	commandline.AddOutput(cmd, &o.output, "table", "json", "yaml")
	flags.StringVar(&o.podInfo, "pod-info", "kubelet", "where memory requests come from: kubelet is its pod API, with the exact ones; none estimates them from the runtime's events")
	flags.StringVar(&o.cgroupDriver, "cgroup-driver", "cgroupfs", "the kubelet's cgroup driver: cgroupfs or systemd")
	flags.StringVar(&o.keep, "keep", "", "new or empty folder for the cgroup tree and the state file, which stay there")
	flags.StringArrayVar(&o.expectRejected, "expect-rejected", nil, "POD/CONTAINER that must be rejected, and is then no failure; repeatable")
	flags.BoolVar(&o.strict, "strict", false, "exit status 1 when anything was not admitted, also what --expect-rejected names; a kind or field that is not known, or memory of less than 1Mi, is an error")
	flags.StringVar(&o.nodeName, "node", "", "take only the pods on this node (spec.nodeName), and those that are on none")
	flags.StringVar(&o.cpuManagerPolicy, "cpu-manager-policy", "", "the kubelet's CPU manager policy: none or static; without it the machine file's holds, else none")
	flags.StringVar(&o.reservedCPUs, "reserved-cpus", "", "CPUs that the kubelet keeps (0-1,64), in place of the machine file's reservedSystemCPUs")
	flags.CountVarP(&o.verbose, "verbose", "v", "show the plugin's log: -v information, -vv debug")
	commandline.Complete(cmd, "pod-info", podInfos...)
	commandline.Complete(cmd, "cgroup-driver", cgroupDrivers...)
	commandline.Complete(cmd, "cpu-manager-policy", cpuManagerPolicies...)
	return cmd
}

// The values of --pod-info, --cgroup-driver and --cpu-manager-policy, which may be empty, too.
var podInfos, cgroupDrivers, cpuManagerPolicies = []string{"kubelet", "none"}, []string{"cgroupfs", "systemd"}, []string{machine.CPUsNone, machine.CPUsStatic}

func (o *simulateOptions) check() error {
	if o.machinePath == "" {
		return errors.New("--machine is missing; want a machine file or a folder with a copy of sysfs")
	}
	for _, name := range o.expectRejected {
		if pod, container, ok := strings.Cut(name, "/"); !ok || pod == "" || container == "" || strings.Contains(container, "/") {
			return fmt.Errorf("--expect-rejected %q: want POD/CONTAINER", name)
		}
	}
	return cmp.Or(
		commandline.Check("pod-info", o.podInfo, podInfos...),
		commandline.Check("cgroup-driver", o.cgroupDriver, cgroupDrivers...),
		commandline.Check("cpu-manager-policy", cmp.Or(o.cpuManagerPolicy, machine.CPUsNone), cpuManagerPolicies...),
	)
}

func (o *simulateOptions) run(ctx context.Context, manifests []string, in io.Reader, out, errOut io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	c, err := loadConfig(o.configPath)
	if err != nil {
		return err
	}
	m, admission, warnings, err := o.node(c)
	if err != nil {
		return err
	}
	read, err := simulator.ReadFiles(manifests, in)
	if err != nil {
		return err
	}
	if o.strict && read.Unknown != nil {
		return read.Unknown
	}
	doubtful := read.Doubtful()
	if o.strict && doubtful != "" {
		return errors.New(doubtful)
	}
	nodes, err := read.OnNode(o.nodeName)
	if err != nil {
		return fmt.Errorf("--node: %w", err)
	}
	log := logrus.New()
	log.SetOutput(errOut)
	log.SetLevel(logrus.ErrorLevel + logrus.Level(min(2*o.verbose, 4)))
	result, err := o.simulate(ctx, c, simulator.Options{Machine: m, Admission: admission, Pods: read.Pods, Progress: showProgress(errOut, len(read.Pods))}, log)
	switch {
	case errors.Is(err, simulator.ErrNotEmpty):
		return fmt.Errorf("--keep: %w", err)
	case err != nil:
		return commandline.Failed(err)
	}
	result.Skipped = append(result.Skipped, read.LeftOut()...)
	if err := commandline.Write(out, o.output, result, result.Table); err != nil {
		return commandline.Failed(err)
	}
	notes := append(warnings, admission.Unchecked()...)
	if !c.DRA.Enabled && slices.ContainsFunc(read.Pods, func(p *corev1.Pod) bool { return len(p.Spec.ResourceClaims) > 0 }) {
		notes = append(notes, "dra.enabled is false in the configuration: resource claims are ignored")
	}
	if o.nodeName == "" && len(nodes) > 1 {
		notes = append(notes, fmt.Sprintf("the pods are on %d nodes (as %s) and were simulated on one machine: --node takes those of one", len(nodes), strings.Join(nodes[:min(len(nodes), 3)], ", ")))
	}
	if doubtful != "" {
		notes = append(notes, doubtful)
	}
	for _, note := range append(notes, result.Skipped...) {
		fmt.Fprintln(errOut, "nri-memory-manager: "+note)
	}
	return o.judge(result, errOut)
}

// showProgress shows on a terminal how many pods are done, and there only; nil shows nothing.
func showProgress(errOut io.Writer, pods int) func(done int) {
	terminal, _ := errOut.(*os.File) // a nil one has no descriptor, and is none
	if _, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	return func(done int) {
		if done%100 == 0 {
			fmt.Fprintf(terminal, "%d of %d pods\x1b[K\r", done, pods) // what comes next is written over it
		}
	}
}

// node is the machine and its kubelet's admission, with what the flags say in place of the machine file, and the configuration's warnings.
func (o *simulateOptions) node(c config.Config) (machine.Machine, *simulator.Admission, []string, error) {
	of, err := sysfs.Describe(o.machinePath)
	if err != nil {
		return of.Machine, nil, nil, err
	}
	of.CPUManagerPolicy = cmp.Or(o.cpuManagerPolicy, of.CPUManagerPolicy)
	if o.reservedCPUs != "" {
		if of.ReservedSystemCPUs, err = of.CPUsOf(o.reservedCPUs); err != nil {
			return of.Machine, nil, nil, fmt.Errorf("--reserved-cpus: %w", err)
		}
	}
	resolved, err := c.Resolve(of.Machine)
	if err != nil {
		return of.Machine, nil, nil, err
	}
	admission, err := simulator.NewAdmission(of, resolved)
	return of.Machine, admission, resolved.Warnings, err
}

// simulate runs the pods on a node of their own.
func (o *simulateOptions) simulate(ctx context.Context, c config.Config, of simulator.Options, log *logrus.Logger) (result *simulator.Result, err error) {
	of.Systemd, of.Config, of.Dir = o.cgroupDriver == "systemd", c, o.keep
	node, err := simulator.NewNode(of)
	if err != nil {
		return nil, err
	}
	defer node.Close()
	with := agent.Options{Config: c, Machine: of.Machine, Log: log}
	if o.podInfo == "kubelet" && c.AsksPodAPI() {
		with.Providers = []podinfo.Provider{simulator.PodAPI(of.Pods)}
	}
	decides, stop, err := startAgent(ctx, node, with)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	runtime, err := simulator.Connect(ctx, decides, node.Cgroups)
	if err != nil {
		return nil, err
	}
	if result, err = node.Run(ctx, runtime, runtime); err == nil && o.keep != "" && string(result.State) != "null" {
		err = os.WriteFile(filepath.Join(node.StateDir, checkpoint.FileName), result.State, 0o600)
	}
	return result, err
}

// startAgent runs the daemon's agent on a simulated node.
func startAgent(ctx context.Context, node *simulator.Node, with agent.Options) (*agent.Agent, func() error, error) {
	tree, err := cgroupfs.Open(node.Cgroups.Root(), cgroupfs.Plain())
	if err != nil {
		return nil, nil, err
	}
	with.Tree = tree
	decides, err := agent.New(with)
	if err != nil {
		return nil, nil, errors.Join(err, tree.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- decides.Run(ctx) }()
	return decides, func() error {
		cancel()
		err := <-ended
		closing, closed := context.WithTimeout(context.Background(), closeTimeout)
		defer closed()
		return errors.Join(err, decides.Close(closing), tree.Close())
	}, nil
}

// judge compares the rejections with those that were expected.
func (o *simulateOptions) judge(result *simulator.Result, errOut io.Writer) error {
	rejected, admitted := result.Unexpected(o.expectRejected)
	for _, name := range admitted {
		fmt.Fprintf(errOut, "nri-memory-manager: %s was to be rejected and was not\n", name)
	}
	if len(rejected)+len(admitted) > 0 || o.strict && len(result.Rejected()) > 0 {
		return commandline.ErrFindings
	}
	return nil
}

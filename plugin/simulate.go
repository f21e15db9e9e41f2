package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sirupsen/logrus"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator"
)

// simulateOptions are the flags of simulate.
type simulateOptions struct {
	machinePath, configPath string
	output                  string
	podInfo                 string
	cgroupDriver            string
	keep                    string
	expectRejected          []string
	verbose                 int
}

func newSimulateCommand() *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:   "simulate --machine FILE|SYSFS-ROOT MANIFEST…",
		Short: "Send Pod manifests through NRI and this plugin on a machine that need not be there",
		Long: `Simulate starts NRI's own runtime side, connects this plugin to it, and plays kubelet and runtime for each pod of the
manifests: Pods, and Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs with their replicas. "-" is standard
input. It shows on which NUMA nodes every container lands, its memory.min, low, high and max, and what the cgroups above
hold. Nothing of this host is touched.

Exit status: 0 when every container was admitted, 1 when one was rejected, 2 on bad input.`,
		Example: `  nri-memory-manager simulate --machine testdata/machines/task-page.yaml testdata/pods/*.yaml
  kubectl get pods -A -o yaml | nri-memory-manager simulate --machine machine.yaml -o json -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.machinePath, "machine", "", "machine file, or a folder with a copy of sysfs (required)")
	flags.StringVar(&o.configPath, "config", "", "configuration file (YAML); without it the defaults hold")
	flags.StringVarP(&o.output, "output", "o", "table", "table, json or yaml")
	flags.StringVar(&o.podInfo, "pod-info", "none", "whether the node has the kubelet's pod API: none or kubelet")
	flags.StringVar(&o.cgroupDriver, "cgroup-driver", "cgroupfs", "the kubelet's cgroup driver: cgroupfs or systemd")
	flags.StringVar(&o.keep, "keep", "", "new folder for the cgroup tree and the state file, which stay there")
	flags.StringArrayVar(&o.expectRejected, "expect-rejected", nil, "POD/CONTAINER that must be rejected, and is then no failure; repeatable")
	flags.CountVarP(&o.verbose, "verbose", "v", "show the plugin's log: -v information, -vv debug")
	return cmd
}

func (o *simulateOptions) check() error {
	switch {
	case o.machinePath == "":
		return errors.New("--machine is missing; want a machine file or a folder with a copy of sysfs")
	case o.output != "table" && o.output != "json" && o.output != "yaml":
		return fmt.Errorf("--output %q: want table, json or yaml", o.output)
	case o.podInfo != "none" && o.podInfo != "kubelet":
		return fmt.Errorf("--pod-info %q: want none or kubelet", o.podInfo)
	case o.cgroupDriver != "cgroupfs" && o.cgroupDriver != "systemd":
		return fmt.Errorf("--cgroup-driver %q: want cgroupfs or systemd", o.cgroupDriver)
	}
	return nil
}

func (o *simulateOptions) run(ctx context.Context, manifests []string, in io.Reader, out, errOut io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	c, err := loadConfig(o.configPath)
	if err != nil {
		return err
	}
	m, err := loadMachine(o.machinePath)
	if err != nil {
		return err
	}
	if _, err := c.Resolve(m); err != nil {
		return err
	}
	pods, err := readManifests(manifests, in)
	if err != nil {
		return err
	}
	log := logrus.New()
	log.SetOutput(errOut)
	log.SetLevel(logrus.ErrorLevel + logrus.Level(min(2*o.verbose, 4)))
	result, err := simulator.Run(ctx, simulator.Options{
		Machine: m, Pods: pods, Systemd: o.cgroupDriver == "systemd", PodAPI: o.podInfo == "kubelet", Dir: o.keep,
		Connect: func(ctx context.Context, at simulator.Paths) (simulator.Plugin, error) {
			return startSimulated(ctx, at, daemonOptions{config: c, machine: m, log: log})
		},
	})
	if err != nil {
		return failed(err)
	}
	if err := writeAs(out, o.output, result, result.Table); err != nil {
		return failed(err)
	}
	return o.judge(result, errOut)
}

func readManifests(paths []string, in io.Reader) ([]*corev1.Pod, error) {
	if len(paths) == 0 {
		return nil, errors.New("no manifest; want files, or - for standard input")
	}
	var pods []*corev1.Pod
	for _, path := range paths {
		more, err := readManifest(path, in)
		if err != nil {
			return nil, err
		}
		pods = append(pods, more...)
	}
	return pods, simulator.Unique(pods)
}

func readManifest(path string, in io.Reader) ([]*corev1.Pod, error) {
	if path == "-" {
		return simulator.Read("standard input", in)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	defer file.Close()
	return simulator.Read(path, file)
}

// simulated is a daemon in this process.
type simulated struct {
	*daemon
	ended chan error
}

// Wait returns when the daemon has ended.
func (s *simulated) Wait() error { return <-s.ended }

// startSimulated runs the plugin with the paths of a simulated node. It asks only the sources that the node has.
func startSimulated(ctx context.Context, at simulator.Paths, options daemonOptions) (*simulated, error) {
	options.hostOptions = hostOptions{stateDir: at.StateDir, cgroups: at.Cgroups, plainCgroups: true}
	options.socket, options.name, options.index = at.Socket, defaultName, defaultIndex
	options.kubeletPods, options.simulated = at.KubeletPods, true
	d, err := newDaemon(options)
	if err != nil {
		return nil, err
	}
	s := &simulated{d, make(chan error, 1)}
	go func() { s.ended <- d.run(ctx) }()
	return s, nil
}

// judge compares the rejections with those that were expected.
func (o *simulateOptions) judge(result *simulator.Result, errOut io.Writer) error {
	expected := map[string]bool{}
	for _, name := range o.expectRejected {
		expected[name] = true
	}
	surprised := false
	for _, container := range result.Rejected() {
		name := container.Pod + "/" + container.Container
		surprised = surprised || !expected[name]
		delete(expected, name)
	}
	for name := range expected {
		fmt.Fprintf(errOut, "nri-memory-manager: %s was to be rejected and was not\n", name)
		surprised = true
	}
	if surprised {
		return errFindings
	}
	return nil
}

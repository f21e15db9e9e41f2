// Demo runs the built plugin as a process beside NRI's own runtime side, as containerd and CRI-O use it, on a machine that
// need not be there, and sends it the pods of manifests through a real NRI socket: `make run`. It shows what simulate shows.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	plugin, machine, config   string
	podInfo, driver, output   string
	expectRejected, manifests []string
	pictures                  []picture
	once                      bool
}

func parse(args []string, errOut io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(errOut)
	flags.StringVar(&o.plugin, "plugin", "bin/nri-memory-manager", "the plugin's binary")
	flags.StringVar(&o.machine, "machine", "", "machine file, or a folder with a copy of sysfs (required)")
	flags.StringVar(&o.config, "config", "", "the plugin's configuration file; without it the defaults hold")
	flags.StringVar(&o.podInfo, "pod-info", "kubelet", "whether the node has the kubelet's pod API: kubelet or none")
	flags.StringVar(&o.driver, "cgroup-driver", "cgroupfs", "the kubelet's cgroup driver: cgroupfs or systemd")
	flags.StringVar(&o.output, "o", "table", "table or json")
	flags.BoolVar(&o.once, "once", false, "end when all pods run, for scripts; without it the page is served until Ctrl-C")
	flags.Func("expect-rejected", "POD/CONTAINER that must be rejected, and is then no failure; repeatable", func(name string) error {
		o.expectRejected = append(o.expectRejected, name)
		return nil
	})
	flags.Func("picture", "FILE:WIDTHxHEIGHT[:dark] to take of the page in Chromium when all pods run; repeatable", func(text string) error {
		p, err := parsePicture(text)
		o.pictures = append(o.pictures, p)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.manifests = flags.Args()
	switch {
	case o.machine == "":
		return o, errors.New("-machine is missing; want a machine file or a folder with a copy of sysfs")
	case o.podInfo != "none" && o.podInfo != "kubelet":
		return o, fmt.Errorf("-pod-info %q: want none or kubelet", o.podInfo)
	case o.driver != "cgroupfs" && o.driver != "systemd":
		return o, fmt.Errorf("-cgroup-driver %q: want cgroupfs or systemd", o.driver)
	case o.output != "table" && o.output != "json":
		return o, fmt.Errorf("-o %q: want table or json", o.output)
	}
	return o, nil
}

func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) error {
	o, err := parse(args, errOut)
	if err != nil {
		return err
	}
	described, err := sysfs.Describe(o.machine)
	if err != nil {
		return err
	}
	read, err := simulator.ReadFiles(o.manifests, in)
	if err != nil {
		return err
	}
	c := config.Default()
	if o.config != "" {
		if c, err = config.Files(os.ReadFile).Load(o.config); err != nil {
			return err
		}
	}
	resolved, err := c.Resolve(described.Machine)
	if err != nil {
		return err
	}
	admission, err := simulator.NewAdmission(described, resolved)
	if err != nil {
		return err
	}
	if len(o.pictures) > 0 || !o.once {
		admission = nil // the page shows what the daemon rejects of pods that stay, as they do below a kubelet
	}
	return o.demonstrate(ctx, simulator.Options{
		Machine: described.Machine, Admission: admission, Pods: read.Pods, Config: c, Systemd: o.driver == "systemd",
	}, out)
}

// show writes the result, and then takes the pictures or serves the page.
func (o options) show(ctx context.Context, node *simulator.Node, plugin *plugin, result *simulator.Result, out io.Writer) error {
	if err := o.write(out, result); err != nil {
		return err
	}
	if rejected, admitted := result.Unexpected(o.expectRejected); len(rejected)+len(admitted) > 0 {
		return fmt.Errorf("rejected: %q, and not rejected as expected: %q", rejected, admitted)
	}
	switch {
	case len(o.pictures) > 0:
		return o.photograph(ctx, node, plugin)
	case o.once:
		return nil
	}
	if err := plugin.work(ctx, node.Cgroups); err != nil {
		return err
	}
	page, err := plugin.servePage()
	if err != nil {
		return err
	}
	defer page.Close()
	fmt.Fprintf(o.notes(out), "\nThe page, until Ctrl-C: http://%s/\nIn another terminal: %s status --state-dir %s\n"+
		"                     %s verify --state-dir %s --cgroups %s --plain-cgroups --machine %s\nThe plugin's log: %s\n",
		page.Addr, o.plugin, node.StateDir, o.plugin, node.StateDir, node.Cgroups.Root(), o.machine, plugin.log)
	<-ctx.Done()
	return nil
}

// notes is where to write beside a result that a program may read.
func (o options) notes(out io.Writer) io.Writer {
	if o.output == "table" {
		return out
	}
	return os.Stderr
}

// connectTimeout bounds the wait for the plugin's registration.
const connectTimeout = time.Minute

// demonstrate runs the pods on a node with NRI's runtime side and the plugin's process.
func (o options) demonstrate(ctx context.Context, of simulator.Options, out io.Writer) (err error) {
	node, err := simulator.NewNode(of)
	if err != nil {
		return err
	}
	defer node.Close()
	sockets, err := os.MkdirTemp("", "nri")
	if err != nil {
		return err
	}
	defer os.RemoveAll(sockets)
	pods := filepath.Join(sockets, "kubelet.sock")
	if o.podInfo == "kubelet" {
		stop, err := servePods(pods, of.Pods)
		if err != nil {
			return err
		}
		defer stop()
	}
	socket := filepath.Join(sockets, "nri.sock")
	runtime := cri.New(cri.Options{Socket: socket, Cgroups: node.Cgroups})
	if err := runtime.Start(); err != nil {
		return err
	}
	defer runtime.Stop()
	ctx, plugin, err := start(ctx, o, node, socket, pods)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, plugin.stop()); err != nil {
			err = plugin.explain(err)
		}
	}()
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := runtime.WaitSynchronized(connecting, 1); err != nil {
		return fmt.Errorf("the plugin did not connect: %w", err)
	}
	if o.podInfo == "kubelet" {
		if err := plugin.awaitSources(connecting); err != nil {
			return err
		}
	}
	result, err := node.Run(ctx, runtime, plugin)
	if err != nil {
		return err
	}
	return o.show(ctx, node, plugin, result, out)
}

func (o options) write(to io.Writer, result *simulator.Result) error {
	if o.output != "json" {
		return result.Table(to)
	}
	encoder := json.NewEncoder(to)
	encoder.SetIndent("", "  ")
	return encoder.Encode(result)
}

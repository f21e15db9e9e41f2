// Command node runs Kubernetes' own suites of the node (test/e2e_node) in a guest, unmodified. It is three programs by its name:
// the one that prepares the node and runs the suites; "kubelet", which the suites start and which stands in front of the
// real one; and "sudo", which they call.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

const (
	// programs is the folder in which the suites look for the kubelet.
	programs = "/e2e/kubernetes"
	// workspace is the suites' working directory: the kubelet's configuration, credentials, static pods.
	workspace = "/tmp/e2e_node"
	// baseConfig is the KubeletConfiguration that the suites begin with.
	baseConfig = "/e2e/kubelet-base.yaml"
)

func main() {
	err := error(nil)
	switch filepath.Base(os.Args[0]) {
	case "sudo":
		err = sudo(os.Args[1:])
	case "kubelet":
		err = kubelet(os.Args[1:])
	default:
		err = runSuites()
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(max(exit.ExitCode(), 1))
	case err != nil:
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		note(err)
		os.Exit(1)
	}
}

// note writes an error to the plugin's log, which the guest ships: what a unit of systemd prints stays in the guest.
func note(err error) {
	if log, cannot := os.OpenFile(setup.Logs+"/plugin.log", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644); cannot == nil {
		fmt.Fprintf(log, "conformance: %s: %v\n", filepath.Base(os.Args[0]), err)
		_ = log.Close() // the error is printed, too
	}
}

// sudo becomes the command: the suites' user is root here.
func sudo(command []string) error {
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return syscall.Exec(program, command, os.Environ())
}

// runSuites runs one suite after the other, each with a control plane of its own.
func runSuites() error {
	plugin := flag.Bool("plugin", false, "put the plugin in the place of the kubelet's managers")
	focus := flag.String("focus", "", "regular expression of cases to run; empty is all")
	skip := flag.String("skip", "", "regular expression of cases to leave out")
	limit := flag.Duration("timeout", 2*time.Hour, "limit of one suite")
	flag.Parse()
	if err := prepare(*plugin); err != nil {
		return err
	}
	// One seed gives both runs the same order. Without a focus the suites leave out what has a feature's label. A second attempt is
	// for what the suites do not wait for: they read a container's output as soon as it runs.
	choice := []string{"--ginkgo.seed=1", "--ginkgo.flake-attempts=2", "--ginkgo.focus=" + cmp.Or(*focus, ".")}
	if *skip != "" {
		choice = append(choice, "--ginkgo.skip="+*skip)
	}
	stop := make(chan struct{})
	go record(stop)
	defer close(stop)
	var failed error
	for _, file := range flag.Args() {
		fmt.Printf("E2E-SUITE %s\n", file)
		report := filepath.Join(setup.Logs, strings.TrimSuffix(file, ".go"))
		if err := os.MkdirAll(report, 0o755); err != nil {
			return fmt.Errorf("make a folder for the report: %w", err)
		}
		cmd := exec.Command(programs+"/e2e_node", append(choice, // the kubelet is beside it
			"--kubelet-config-file="+baseConfig, "--prepull-images=false",
			"--container-runtime-endpoint=unix:///run/containerd/containerd.sock", "--container-runtime-process-name=/usr/bin/containerd",
			"--report-dir="+report, "--ginkgo.junit-report="+report+".xml", "--ginkgo.v", "--ginkgo.no-color",
			"--ginkgo.timeout="+limit.String(), "--ginkgo.focus-file="+file)...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = workspace, os.Stdout, os.Stdout
		if err := cmd.Run(); err != nil {
			failed = fmt.Errorf("%s: %w", file, err)
		}
	}
	return failed
}

// prepare makes of the guest what the suites expect of a node.
func prepare(plugin bool) error {
	const tools = "/usr/local/bin"
	if err := errors.Join(os.MkdirAll(tools, 0o755), os.MkdirAll(programs, 0o755), os.MkdirAll(workspace, 0o755)); err != nil {
		return err
	}
	if out, err := exec.Command("/bin/busybox", "--install", "-s", tools).CombinedOutput(); err != nil {
		return fmt.Errorf("install busybox: %w: %s", err, out)
	}
	if err := os.Setenv("PATH", os.Getenv("PATH")+":"+tools); err != nil {
		return err
	}
	inFront := setup.Kubelet
	if plugin {
		inFront = setup.Conformance
	}
	if err := errors.Join(os.Symlink(inFront, programs+"/kubelet"), os.Symlink(setup.E2ENode, programs+"/e2e_node"), os.Symlink(setup.Conformance, tools+"/sudo")); err != nil {
		return err
	}
	if out, err := exec.Command("ctr", "-n", "k8s.io", "images", "import", "--local", setup.SuiteImageTar).CombinedOutput(); err != nil {
		return fmt.Errorf("import the suites' image: %w: %s", err, out)
	}
	// As the suites' own base, but for what needs a disk, a cloud or iptables. Without CPU quotas: a sandbox that may have a hundredth
	// of an emulated CPU takes minutes to start.
	return os.WriteFile(baseConfig, []byte(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
cgroupRoot: /
cpuCFSQuota: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
evictionHard: {memory.available: 100Mi}
evictionPressureTransitionPeriod: 30s
failSwapOn: false
fileCheckFrequency: 10s
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
podCIDR: 10.100.0.0/24
serializeImagePulls: false
volumeStatsAggPeriod: 10s
`), 0o644)
}

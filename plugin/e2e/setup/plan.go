// Package setup holds what the host passes to a guest: which variant it is, what
// to start and which tests to run.
package setup

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// PlanPath is where a guest finds its plan.
const PlanPath = "/e2e/plan.json"

// NoDebugging leaves out debugging information, of which the guests' programs have none: all is compiled a sixth faster.
const NoDebugging = "-gcflags=all=-dwarf=false"

// Flags are the Makefile's for our own programs, so that Go's cache has their packages.
var Flags = []string{"-trimpath", NoDebugging, "-tags", "grpcnotrace,nethttpomithttp2"}

// Places inside every guest.
const (
	// Logs is the folder that is shipped to the host when the guest ends.
	Logs = "/e2e/logs"
	// Plugin, Workload and Cases are the binaries under test and of the tests.
	Plugin   = "/e2e/nri-memory-manager"
	Workload = "/e2e/workload"
	Cases    = "/e2e/cases.test"
	// ImageTar holds the one image that is sandbox and workload.
	ImageTar = "/e2e/image.tar"
	// ReleasedImageTar holds the project's own container image, as it is released but for one platform only.
	ReleasedImageTar = "/e2e/released-image.tar"
	// ReleasedTarball is the project's archive for nodes without Kubernetes' tools.
	ReleasedTarball = "/e2e/release.tar.gz"
	// ReleasedChart is the project's packed Helm chart.
	ReleasedChart = "/e2e/chart.tgz"
	// Pages has the pages of docs whose commands are walked.
	Pages = "/e2e/docs"
	// ReleasedImage is the name under which ReleasedImageTar is known to containerd.
	ReleasedImage = "ghcr.io/nri-memory-manager/nri-memory-manager:" + Version
	// Version is what the binary under test and its image say of themselves.
	Version = "e2e"
	// NodeName is the guest's name in its cluster.
	NodeName = "e2e"
	// ServiceAddress is what pods know as the API server: the first address of the cluster's services.
	ServiceAddress = "10.96.0.1"
	// Image is the name under which ImageTar is known to containerd.
	Image = "e2e.local/box:1"
	// Conformance runs Kubernetes' own suites; E2ENode is their binary and SuiteImageTar holds the images that their pods name.
	Conformance   = "/e2e/conformance"
	E2ENode       = "/e2e/e2e_node.test"
	SuiteImageTar = "/e2e/suite-image.tar"
	// Registry is where CRI-O pulls the image from.
	Registry = "127.0.0.1:5000"
	// Kubelet is the real kubelet, and KubeletFiles the folder of what it needs to join the control plane on the host:
	// CA, Certificate, Key, and kubeconfigs with the node's rights and with the administrator's.
	Kubelet      = "/usr/bin/kubelet"
	KubeletFiles = "/etc/kubernetes/"
	CA           = KubeletFiles + "ca.crt"
	Certificate  = KubeletFiles + "node.crt"
	Key          = KubeletFiles + "node.key"
	KubeletConf  = KubeletFiles + "kubelet.conf"
	AdminConf    = KubeletFiles + "admin.conf"
	// RuntimePID holds the process id of the running container runtime.
	RuntimePID = "/run/e2e/runtime.pid"
	// RuntimeExtra may hold configuration that the next start of the runtime adds to its own.
	RuntimeExtra = "/run/e2e/runtime-extra.toml"
)

// Names of the virtio ports over which the guest answers.
const (
	TestsPort = "tests"
	LogsPort  = "logs"
)

// Driver is how cgroups are made: by writing to cgroupfs or by asking systemd.
type Driver string

// The two cgroup drivers of the kubelet.
const (
	Cgroupfs Driver = "cgroupfs"
	Systemd  Driver = "systemd"
)

// Runtime names a container runtime and its release line.
type Runtime string

// The runtimes that variants use.
const (
	Containerd24 Runtime = "containerd-2.4"
	Containerd17 Runtime = "containerd-1.7"
	CRIO         Runtime = "cri-o"
)

// Node is a NUMA node of the guest.
type Node struct {
	ID        int   `json:"id"`
	MiB       int   `json:"mib"`
	CPUs      int   `json:"cpus"`
	Hugepages int   `json:"hugepages"` // pages of 2 MiB
	Distances []int `json:"distances"`
}

// Plan is what one guest is and does.
type Plan struct {
	Variant string  `json:"variant"`
	Driver  Driver  `json:"driver"`
	Runtime Runtime `json:"runtime"`
	Kernel  string  `json:"kernel"`
	// OlderKubelet has the kubelet be one of the release before the control plane's.
	OlderKubelet bool   `json:"olderKubelet"`
	Nodes        []Node `json:"nodes"`
	// OCIRuntime is the path of the OCI runtime that the container runtime calls.
	OCIRuntime string `json:"ociRuntime"`
	// KubeletPort is where the kubelet serves, in the guest and, forwarded, on the host's loopback.
	KubeletPort int `json:"kubeletPort"`
	// APIServer is the API server's address and port; empty where the guest is no node of a cluster.
	APIServer string `json:"apiServer"`
	// Command runs in place of the test binary, in a guest with a network interface that leads nowhere it needs.
	Command []string `json:"command,omitempty"`
	// Run is the regular expression of the tests to run.
	Run string `json:"run"`
	// Watchdog is the time after which the guest stops its tests, ships its logs and powers off.
	Watchdog time.Duration `json:"watchdog"`
	// Full asks for the long form of cases that make tables for the documentation.
	Full bool `json:"full"`
}

// Socket is the CRI socket of the plan's runtime.
func (p Plan) Socket() string {
	if p.Runtime == CRIO {
		return "/run/crio/crio.sock"
	}
	return "/run/containerd/containerd.sock"
}

// Image is the name by which the runtime knows the test image.
func (p Plan) Image() string {
	if p.Runtime == CRIO {
		return Registry + "/box:1"
	}
	return Image
}

// Read reads the plan of this guest.
func Read() (Plan, error) {
	var p Plan
	text, err := os.ReadFile(PlanPath)
	if err != nil {
		return p, fmt.Errorf("read the plan: %w", err)
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("parse %s: %w", PlanPath, err)
	}
	return p, nil
}

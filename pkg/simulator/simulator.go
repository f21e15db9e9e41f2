// Package simulator shows what becomes of pods from manifests on a machine that need not be there. It plays the kubelet,
// and for simulate the container runtime too: Direct passes the pods to the agent that decides in the daemon.
package simulator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cgroups"
)

// Runtime is the container runtime that the simulated kubelet uses.
type Runtime interface {
	RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error
	// CreateContainer returns linux.resources of the container's final OCI spec.
	CreateContainer(ctx context.Context, container *api.Container) (*rspec.LinuxResources, error)
	StartContainer(ctx context.Context, id string) error
	StopContainer(ctx context.Context, id string) error
	// StopPodSandbox and RemovePodSandbox end a pod.
	StopPodSandbox(ctx context.Context, id string) error
	RemovePodSandbox(ctx context.Context, id string) error
	// Containers returns copies of all containers as they are now.
	Containers() []*api.Container
}

// Plugin answers what the containers' OCI specs do not have.
type Plugin interface {
	// Outcome returns what the plugin has decided about a container; zero when it does not know the container.
	Outcome(ctx context.Context, podUID, container string) (ledger.Outcome, error)
	// Nodes returns the node map.
	Nodes(ctx context.Context) ([]memorymanager.NodeState, error)
	// State returns the state file; nil where nothing is allocated.
	State() ([]byte, error)
}

// Options describe a node.
type Options struct {
	Machine machine.Machine
	// Admission is the kubelet's, with no pods yet; nil admits every pod and ends none.
	Admission *Admission
	// Pods are from ReadFiles.
	Pods []*corev1.Pod
	// Systemd is the kubelet's systemd cgroup driver; else cgroupfs.
	Systemd bool
	// Config says which annotations the pods may have.
	Config config.Config
	// Dir keeps the cgroup tree and the plugin's folder: a folder that is new or empty. "" makes them in a temporary folder that
	// Close removes.
	Dir string
	// Progress is told how many pods are done; nil is fine.
	Progress func(pods int)
}

// Node is a simulated node: the kubelet, the pods' cgroups, and a folder for a plugin.
type Node struct {
	// StateDir is the plugin's own folder.
	StateDir string
	// Cgroups is the cgroup hierarchy.
	Cgroups *cgroups.Tree

	kubelet
	config    config.Config
	admission *Admission
	toRun     []*corev1.Pod
	progress  func(pods int)
	temporary string // a folder that Close removes; "" is none

	runtime    Runtime
	plugin     Plugin
	pods       []*corev1.Pod // that were started
	living     []*corev1.Pod
	containers []*Container
}

// NewNode returns a node on which nothing runs yet.
func NewNode(options Options) (n *Node, err error) {
	n = &Node{kubelet: kubelet{options.Machine, options.Systemd}, config: options.Config, admission: options.Admission, toRun: options.Pods, progress: options.Progress}
	made := n
	defer func() {
		if err != nil {
			made.Close()
		}
	}()
	cgroupDir, err := n.makeFolders(options.Dir)
	if err != nil {
		return nil, err
	}
	if n.Cgroups, err = cgroups.NewTree(cgroupDir); err != nil {
		return nil, err
	}
	return n, nil
}

// Run starts every pod as far as it can be. The error is about the simulation itself; a container that the plugin rejects
// is part of the result.
func (n *Node) Run(ctx context.Context, runtime Runtime, plugin Plugin) (*Result, error) {
	n.runtime, n.plugin = runtime, plugin
	for i, pod := range n.toRun {
		if n.progress != nil {
			n.progress(i)
		}
		if err := n.runPod(ctx, pod); err != nil {
			return nil, err
		}
	}
	return n.result(ctx)
}

// Close removes the temporary folder.
func (n *Node) Close() {
	if n.temporary != "" {
		os.RemoveAll(n.temporary)
	}
}

// makeFolders makes the node's folders and returns that of the cgroup hierarchy.
func (n *Node) makeFolders(dir string) (cgroupDir string, err error) {
	if dir == "" {
		if n.temporary, err = os.MkdirTemp("", "nri"); err != nil {
			return "", fmt.Errorf("making a temporary folder: %w", err)
		}
		dir = n.temporary
	}
	if err := refuseContent(dir); err != nil {
		return "", err
	}
	n.StateDir, cgroupDir = filepath.Join(dir, "state"), filepath.Join(dir, "cgroups")
	for _, path := range []string{n.StateDir, cgroupDir} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return "", fmt.Errorf("making the node's folders: %w", err)
		}
	}
	return cgroupDir, nil
}

// ErrNotEmpty is about Options.Dir.
var ErrNotEmpty = errors.New("is not empty")

// refuseContent refuses what is neither absent nor an empty folder: an old state would not be this node's.
func refuseContent(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("making the node's folders: %w", err)
	case len(entries) > 0:
		return fmt.Errorf("%s %w: it has %s; want a new or empty folder for each simulation", dir, ErrNotEmpty, entries[0].Name())
	}
	return nil
}

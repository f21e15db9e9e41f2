// Package simulator plays kubelet and container runtime for a real plugin: pods from manifests go through NRI's own runtime
// side and come out as OCI specs, on a machine that need not be there.
package simulator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cri"
)

// Plugin is the plugin under simulation.
type Plugin interface {
	View() *ledger.View
	// Wait returns when the plugin has ended after its context.
	Wait() error
}

// Paths are what a simulated node has for its plugin.
type Paths struct {
	// Socket is the NRI socket.
	Socket string
	// StateDir is the plugin's own folder.
	StateDir string
	// Cgroups is the folder that stands for the cgroup mount.
	Cgroups string
	// KubeletPods is the socket of the kubelet's pod API; empty when the node has none.
	KubeletPods string
}

// Options say what is simulated.
type Options struct {
	Machine machine.Machine
	// Pods are from Read, and Unique.
	Pods []*corev1.Pod
	// Systemd is the kubelet's systemd cgroup driver; else cgroupfs.
	Systemd bool
	// PodAPI gives the node the kubelet's pod API; without it the plugin has only the runtime's events.
	PodAPI bool
	// Dir keeps the cgroup tree and the state folder; empty makes them in a temporary folder that is removed.
	Dir string
	// Connect starts the plugin; it runs until ctx ends.
	Connect func(ctx context.Context, at Paths) (Plugin, error)
}

// connectTimeout bounds the wait for the plugin's registration.
const connectTimeout = time.Minute

// Run simulates the life of a node up to the point where every pod has been started as far as it can be. The error is about
// the simulation itself; a container that the plugin rejects is part of the result.
func Run(ctx context.Context, options Options) (result *Result, err error) {
	at, cleanUp, err := makePaths(options.Dir)
	if err != nil {
		return nil, err
	}
	defer cleanUp()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	tree, err := cri.NewTree(at.Cgroups)
	if err != nil {
		return nil, err
	}
	if options.PodAPI {
		at.KubeletPods = filepath.Join(filepath.Dir(at.Socket), "kubelet.sock")
		stop, err := servePods(at.KubeletPods, options.Pods)
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	runtime := cri.New(cri.Options{Socket: at.Socket, Cgroups: tree})
	if err := runtime.Start(); err != nil {
		return nil, err
	}
	defer runtime.Stop()

	plugin, err := options.Connect(ctx, at)
	if err != nil {
		return nil, err
	}
	defer func() {
		cancel()
		err = errors.Join(err, plugin.Wait())
	}()
	connecting, connected := context.WithTimeout(ctx, connectTimeout)
	defer connected()
	if err := runtime.WaitSynchronized(connecting, 1); err != nil {
		return nil, fmt.Errorf("the plugin did not connect: %w", err)
	}
	n := &node{
		kubelet: kubelet{options.Machine, options.Systemd}, runtime: runtime, tree: tree, plugin: plugin, stateDir: at.StateDir,
	}
	for _, pod := range options.Pods {
		if err := n.runPod(ctx, pod); err != nil {
			return nil, err
		}
	}
	return n.result()
}

// Unique refuses pods that one node cannot have together: of the same name, or of the same UID.
func Unique(pods []*corev1.Pod) error {
	names, uids := map[string]bool{}, map[string]string{}
	for _, pod := range pods {
		name := pod.Namespace + "/" + pod.Name
		if names[name] {
			return fmt.Errorf("pod %s is there twice", name)
		}
		if other, ok := uids[string(pod.UID)]; ok {
			return fmt.Errorf("pods %s and %s have the same metadata.uid %s", other, name, pod.UID)
		}
		names[name], uids[string(pod.UID)] = true, name
	}
	return nil
}

// makePaths makes the node's folders. The sockets are in a folder of their own: their paths must be short.
func makePaths(dir string) (at Paths, cleanUp func(), err error) {
	var made []string
	cleanUp = func() {
		for _, dir := range made {
			os.RemoveAll(dir)
		}
	}
	defer func() {
		if err != nil {
			cleanUp()
		}
	}()
	sockets, err := os.MkdirTemp("", "nri")
	if err != nil {
		return at, cleanUp, fmt.Errorf("making a temporary folder: %w", err)
	}
	made = append(made, sockets)
	const longest = 100 // bytes of a socket's path, of which the kernel takes 107
	if len(sockets) > longest-len("/kubelet.sock") {
		if sockets, err = os.MkdirTemp("/tmp", "nri"); err != nil {
			return at, cleanUp, fmt.Errorf("making a temporary folder: %w", err)
		}
		made = append(made, sockets)
	}
	if dir == "" {
		dir = filepath.Join(sockets, "node")
	}
	at = Paths{
		Socket:   filepath.Join(sockets, "nri.sock"),
		StateDir: filepath.Join(dir, "state"),
		Cgroups:  filepath.Join(dir, "cgroups"),
	}
	for _, path := range []string{at.StateDir, at.Cgroups} {
		if err := emptyFolder(path); err != nil {
			return at, cleanUp, err
		}
	}
	return at, cleanUp, nil
}

// emptyFolder makes a folder, or takes one that is there and has nothing in it: an old state would not be this node's.
func emptyFolder(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("making the node's folders: %w", err)
	}
	entries, err := os.ReadDir(path)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("%s is not empty; want a new folder for each simulation", path)
	}
	return err
}

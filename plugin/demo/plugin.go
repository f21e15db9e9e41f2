package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

// plugin is the daemon as a process of its own. It implements simulator.Plugin with the status that it serves.
type plugin struct {
	cancel context.CancelFunc
	ended  chan struct{}
	status error  // how the process ended, once ended is closed
	log    string // its file
	client http.Client
	dir    string // its state folder
}

// lastLines is how much of the log an error has.
const lastLines = 20

// stopTimeout is how long the process may take to end before it is killed.
const stopTimeout = 10 * time.Second

// settleTimeout is how long it may take to write the cgroups above the pods, on a machine that has other work.
const settleTimeout = 30 * time.Second

// start runs the plugin's binary on a node. The returned context ends with the process.
func start(ctx context.Context, o options, node *simulator.Node, socket, pods string) (context.Context, *plugin, error) {
	running, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(running, o.plugin, "run", "--nri-socket", socket, "--state-dir", node.StateDir,
		"--cgroups", node.Cgroups.Root(), "--plain-cgroups", "--machine", o.machine, "--config", o.config,
		"--kubelet-pods-socket", pods, "--metrics-address", "")
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, stopTimeout
	p := &plugin{cancel: cancel, ended: make(chan struct{}), log: filepath.Join(filepath.Dir(socket), "daemon.log"), dir: node.StateDir}
	log, err := os.Create(p.log)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	defer log.Close() // the process has its own
	cmd.Stderr = log
	cmd.Env = append(os.Environ(), "NODE_NAME=worker-1") // pictures show it
	admin := filepath.Join(node.StateDir, "admin.sock")
	p.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", admin)
	}}
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, nil, fmt.Errorf("starting the plugin: %w", err)
	}
	go func() {
		defer close(p.ended)
		defer cancel()
		p.status = cmd.Wait()
	}()
	return running, p, nil
}

// stop ends the process. The error says how, if it did not end well.
func (p *plugin) stop() error {
	p.cancel()
	<-p.ended
	if p.status == nil || errors.Is(p.status, context.Canceled) {
		return nil
	}
	return fmt.Errorf("the plugin ended with %w", p.status)
}

// explain adds the last lines of the log to an error.
func (p *plugin) explain(err error) error {
	text, unread := os.ReadFile(p.log)
	if unread != nil {
		return errors.Join(err, unread)
	}
	lines := slices.Collect(bytes.Lines(text))
	return fmt.Errorf("%w\nthe last lines of the plugin's log:\n%s", err, bytes.Join(lines[max(0, len(lines)-lastLines):], nil))
}

// document returns what the plugin says about itself.
func (p *plugin) document(ctx context.Context) (*status.Document, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://plugin/status", nil)
	if err != nil {
		return nil, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking the plugin for its status: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking the plugin for its status: %s", response.Status)
	}
	var document status.Document
	if err := json.NewDecoder(response.Body).Decode(&document); err != nil {
		return nil, fmt.Errorf("the plugin's status: %w", err)
	}
	return &document, nil
}

// Outcome returns what the plugin has decided about a container.
func (p *plugin) Outcome(ctx context.Context, podUID, container string) (decided ledger.Outcome, err error) {
	document, err := p.document(ctx)
	if err != nil {
		return decided, err
	}
	for _, pod := range document.Pods {
		if pod.UID != podUID {
			continue
		}
		for _, c := range pod.Containers {
			if c.Name == container {
				decided.Request, decided.Pinning, decided.Confined = c.Estimate, c.Pinning, !c.Confined.Empty()
			}
		}
		for _, r := range document.Rejections {
			if r.Namespace == pod.Namespace && r.Pod == pod.Name && r.Container == container {
				decided.Unplaced = &r
			}
		}
	}
	return decided, nil
}

// Nodes returns the plugin's node map once the cgroups above the pods hold what the plugin wants there, which it writes beside its answers.
func (p *plugin) Nodes(ctx context.Context) ([]memorymanager.NodeState, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for ; ; time.Sleep(5 * time.Millisecond) {
		document, err := p.document(ctx)
		if err != nil {
			return nil, fmt.Errorf("waiting for the plugin's values of the cgroups above the pods: %w", err)
		}
		if document.Policy.DryRun || !slices.ContainsFunc(document.Ancestors, lags) {
			return document.NodeStates(), nil
		}
	}
}

// lags reports whether a cgroup does not hold yet what the plugin wants.
func lags(a status.Ancestor) bool {
	differs := func(wanted, real *uint64) bool { return wanted != nil && (real == nil || *real != *wanted) }
	return differs(a.Min, a.RealMin) || differs(a.Low, a.RealLow)
}

// State returns the plugin's state file.
func (p *plugin) State() ([]byte, error) {
	state, err := os.ReadFile(filepath.Join(p.dir, checkpoint.FileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return state, err
}

// awaitSources waits until the plugin is connected to the pod API: a pod before that would show an estimate of its request.
func (p *plugin) awaitSources(ctx context.Context) error {
	for ; ; time.Sleep(5 * time.Millisecond) {
		document, err := p.document(ctx)
		if err != nil {
			return fmt.Errorf("waiting for the plugin's connection to the kubelet's pod API: %w", err)
		}
		if !slices.ContainsFunc(document.RequestSources, func(s status.Source) bool { return !s.Connected }) {
			return nil
		}
	}
}

// Package agent is the one owner of this node's state: which container's memory is where and how it is protected.
// Every event of the runtime is one pass through it: decide, make durable, apply, answer.
//
// A decision is computed from values alone while one lock is held; nothing under that lock waits for a disk, a socket or
// another process. The checkpoint is waited for outside of it, then the cgroups above the containers are raised, then
// the answer goes out.
package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
)

// Options are what an Agent is made of.
type Options struct {
	Config  config.Config
	Machine machine.Machine
	// StateDir holds the checkpoint, the journal of written cgroup files and the raised memory.high values.
	StateDir string
	// Tree is the cgroup v2 hierarchy.
	Tree *cgroup.Tree
	// Units sets properties of systemd's slices; nil writes files only.
	Units cgroup.Units
	// Watcher tells of other writers at once; nil leaves them to the periodic check.
	Watcher *cgroup.Watcher
	// Providers are the sources of memory requests in their order; the agent runs them.
	Providers []podinfo.Provider
	// Log is where decisions are told, one line each; nil is logrus' standard logger.
	Log logrus.FieldLogger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Agent holds the state. Its methods may be called from any goroutine.
type Agent struct {
	log       logrus.FieldLogger
	now       func() time.Time
	machine   machine.Machine
	allNodes  nodeset.Set // those with memory
	tree      *cgroup.Tree
	watcher   *cgroup.Watcher
	journal   *cgroup.Journal // nil where the state folder cannot be used
	protector *cgroup.Protector
	store     *checkpoint.Store
	writer    *checkpoint.Writer // nil where the state folder cannot be used
	requests  *podinfo.Resolver
	sourced   bool // requests has sources
	node      podinfo.Node
	raises    raises
	counters  counters
	ancestors ancestors

	wake        chan struct{} // Run has work
	highChanged chan struct{} // for the stall guard

	mu sync.Mutex
	state
}

// New returns an agent that has read its checkpoint. A state folder that cannot be used, or a bad state file, is no
// error: it is logged, it shows in View's conditions, and the state is rebuilt by Synchronize.
func New(opts Options) (*Agent, error) {
	if opts.Tree == nil {
		return nil, errors.New("an agent needs a cgroup tree")
	}
	if opts.Log == nil {
		opts.Log = logrus.StandardLogger()
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	resolved, err := opts.Config.Resolve(opts.Machine)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		log:         opts.Log,
		now:         opts.Now,
		machine:     opts.Machine,
		tree:        opts.Tree,
		watcher:     opts.Watcher,
		node:        podinfo.Node{MemTotal: opts.Machine.MemTotal, SwapTotal: opts.Machine.Swap},
		wake:        make(chan struct{}, 1),
		highChanged: make(chan struct{}, 1),
		ancestors:   newAncestors(),
	}
	for _, node := range opts.Machine.Nodes {
		if node.Memory > 0 {
			a.allNodes = a.allNodes.Union(nodeset.Of(node.ID))
		}
	}
	a.state = newState(resolved, opts.Now())
	for _, warning := range resolved.Warnings {
		a.log.Warn(warning)
	}
	if a.manager, err = managerFor(resolved); err != nil {
		return nil, err
	}
	a.openStateDir(opts.StateDir)
	a.sourced = len(opts.Providers) > 0
	a.requests = podinfo.New(podinfo.Options{
		Providers: opts.Providers,
		Timeout:   time.Duration(opts.Config.RequestTimeout),
		Changed:   a.podChanged,
		File:      a.requestsFile(opts.StateDir),
		Log:       opts.Log,
	})
	a.protector = cgroup.NewProtector(cgroup.ProtectorOptions{
		Tree: opts.Tree, Units: opts.Units, Journal: a.journal, Watcher: opts.Watcher, Changed: a.written,
		PageSize: opts.Machine.PageSize, Log: opts.Log, Now: opts.Now,
	})
	return a, nil
}

// requestsFile holds the pods as last received from the pod APIs.
const requestsFile = "requests.json"

// requestsFile is the path of that file; "" without pod APIs, or a folder for it.
func (a *Agent) requestsFile(dir string) string {
	if !a.sourced || dir == "" {
		return ""
	}
	return filepath.Join(dir, requestsFile)
}

// managerFor is nil under the policy None.
func managerFor(resolved config.Resolved) (*memorymanager.Manager, error) {
	if !resolved.Static {
		return nil, nil
	}
	manager, err := memorymanager.New(resolved.Nodes, resolved.Manager)
	if err != nil {
		return nil, fmt.Errorf("memory manager: %w", err)
	}
	return manager, nil
}

// openStateDir opens the files in the state folder and takes the checkpoint over.
func (a *Agent) openStateDir(dir string) {
	log := a.log.WithField("stateDir", dir)
	var err error
	if a.journal, err = a.openJournal(dir); err != nil {
		log.WithError(err).Error("the journal of written cgroup files cannot be used: rollback will not know them")
	}
	a.raises.path = raisesPath(dir)
	a.kept = loadRaises(a.raises.path, a.log)
	if a.store, err = checkpoint.Open(dir); err != nil {
		a.storeError = err.Error()
		log.WithError(err).Error("the checkpoint cannot be used: bookings are kept in memory only")
		return
	}
	if a.manager != nil {
		a.restore(log)
	}
	a.writer = checkpoint.NewWriter(a.store)
}

func (a *Agent) openJournal(dir string) (*cgroup.Journal, error) {
	journal, damage, err := cgroup.OpenJournal(dir)
	if damage != nil {
		a.log.WithError(damage).Warn("the journal of written cgroup files cannot be read in full and is set aside")
	}
	return journal, err
}

// restore takes over the bookings of the state file. Synchronize then drops those whose pods are gone.
func (a *Agent) restore(log logrus.FieldLogger) {
	file, err := a.store.Load()
	var corrupt *checkpoint.CorruptError
	switch {
	case errors.Is(err, os.ErrNotExist):
		return
	case errors.As(err, &corrupt):
		a.counters.quarantined.Add(1)
		log.WithError(err).Warn("the state file cannot be used and is set aside: bookings are rebuilt from the runtime")
		return
	case err != nil:
		log.WithError(err).Error("the state file cannot be read: bookings are rebuilt from the runtime")
		return
	}
	report, err := a.manager.Restore(file.State, uint64(a.resolved.Config.StateTolerance))
	if err != nil {
		log.WithError(err).Warn("the state file does not fit this machine: bookings are rebuilt from the runtime")
		return
	}
	tellRestored(log, report)
}

func tellRestored(log logrus.FieldLogger, report memorymanager.RestoreReport) {
	for _, drift := range report.Drifted {
		entry := log.WithFields(logrus.Fields{"node": drift.Node, "type": drift.Type, "stored": drift.Stored, "now": drift.Now})
		if drift.Tolerated {
			entry.Info("a node's memory has moved within the tolerance since the state file was written")
		} else {
			entry.Warn("a node's memory has changed since the state file was written")
		}
	}
	for _, lost := range report.Lost {
		log.WithFields(logrus.Fields{"node": lost.Node, "type": lost.Type, "bytes": lost.Bytes}).
			Warn("running containers have more booked on a node than it has now")
	}
	if !report.Vanished.Empty() {
		log.WithField("nodes", report.Vanished).Warn("containers are booked on nodes that this machine no longer has")
	}
	for _, problem := range report.Problems {
		log.Warn(problem)
	}
	log.WithField("entries", report.Restored).Info("state file taken over")
}

// Close writes what is pending and lets go of the state folder.
func (a *Agent) Close(ctx context.Context) error {
	var errs []error
	if a.writer != nil {
		errs = append(errs, a.writer.Close(ctx))
	}
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	if a.journal != nil {
		errs = append(errs, a.journal.Close(ctx))
	}
	return errors.Join(errs...)
}

// Connected tells that a runtime has accepted the plugin. apply sends unasked updates of running containers to it; nil
// where the runtime can not take them, and the agent then writes the containers' cgroup files.
func (a *Agent) Connected(runtime Runtime, apply func(context.Context, []Update) error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runtime, a.apply = runtime, apply
	a.changed()
	a.connected.set(a.now(), "")
}

// Disconnected tells that the runtime is gone, and why.
func (a *Agent) Disconnected(reason error) {
	text := "the runtime has closed the connection"
	if reason != nil {
		text = reason.Error()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.apply = nil
	a.changed()
	a.connected.set(a.now(), text)
	a.synchronized.set(a.now(), "not connected to a runtime")
}

// poke has Run look for work.
func (a *Agent) poke() {
	select {
	case a.wake <- struct{}{}:
	default: // it has been told already
	}
}

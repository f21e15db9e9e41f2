// Package agent carries out what the ledger decides. Each event of the runtime is one Step of the ledger under one lock;
// everything that waits happens outside of it. An answer waits for the state file, and the start of a container for the cgroups above
// it. What an effect did is not believed: the files are read, and what they show is an event too.
package agent

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit/sampler"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/devices"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// Defaults of Options.
const (
	CheckPeriod = 10 * time.Second
	// RequestTimeout leaves most of an NRI request, which ends after two seconds, to everything else.
	RequestTimeout = 300 * time.Millisecond
)

// Options are what an Agent is made of.
type Options struct {
	Config  config.Config
	Machine machine.Machine
	// Sysfs is the root of the sysfs that Machine comes from, for what changes in it; empty has none.
	Sysfs string
	// StateDir holds the checkpoint, the journal of written cgroup files and the raised memory.high values; empty keeps none of them.
	StateDir string
	// KubeletState is a kubelet's state file to import where StateDir has none; empty imports none.
	KubeletState string
	// Tree is the cgroup v2 hierarchy.
	Tree *cgroupfs.Tree
	// Units sets properties of systemd's slices; nil writes files only.
	Units protect.Units
	// Watcher tells of other writers; nil leaves them to the periodic check.
	Watcher *cgroupfs.Watcher
	// CheckPeriod is the time between two looks at the cgroups that others write to, a second at least; 0 is CheckPeriod.
	CheckPeriod time.Duration
	// RequestTimeout is the longest that the creation of a container waits for the sources of its request and devices; 0 is
	// RequestTimeout.
	RequestTimeout time.Duration
	// Providers are the sources of memory requests in their order; the agent runs them.
	Providers []podinfo.Provider
	// Claims reads the resource claims that were prepared before, once the state folder is this agent's; nil has none.
	Claims func() []claims.Claim
	// Recorder receives every event and what was decided; nil records nothing.
	Recorder Recorder
	// Devices finds the NUMA nodes of containers' devices; nil finds none.
	Devices Devices
	// Log gets decisions, one line each; nil is logrus' standard logger.
	Log logrus.FieldLogger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Devices finds the NUMA nodes of containers' devices.
type Devices interface {
	// Wants reports whether Find has anything to ask about a container. It waits for nobody.
	Wants(c devices.Container) bool
	// Find returns the devices of a container, and of the others of its pod as far as they are known. It may wait until ctx ends.
	Find(ctx context.Context, c devices.Container) devices.Pod
	// CPUs returns the exclusive CPUs of the containers of a pod, in the kernel's list format, as far as they are known. It may wait until
	// ctx ends.
	CPUs(ctx context.Context, c devices.Container) map[string]string
	// Lookup returns what is known of a container's devices without asking anybody.
	Lookup(c devices.Container) []topologymanager.Device
}

// Recorder records what the ledger is given and what it decides. Its methods are called under the agent's lock and must not wait.
type Recorder interface {
	// Begin receives the ledger before its first event.
	Begin(now time.Time, l *ledger.Ledger)
	// Record receives an event that the ledger has just applied.
	Record(now time.Time, l *ledger.Ledger, event ledger.Event, effects ledger.Effects)
}

// Agent drives a ledger. Its methods may be called from any goroutine.
type Agent struct {
	log logrus.FieldLogger
	now func() time.Time

	checkPeriod, requestTimeout time.Duration

	sysfs        string // empty has none
	tree         *cgroupfs.Tree
	journal      *protect.Journal // nil where it cannot be read
	protector    *protect.Protector
	unusable     map[string]string // why there is no journal or no writer, by the name of the file
	store        *checkpoint.Store
	writer       *checkpoint.Writer // nil where the state folder cannot be used
	requests     *podinfo.Resolver
	hasProviders bool            // requests has sources
	raises       *durable.Writer // of raisesFile
	recorder     Recorder        // nil where nothing is recorded
	devices      Devices         // nil finds none
	counters     counters
	ancestors    ancestors
	deficits     *sampler.Sampler

	ownCgroup   atomic.Pointer[string] // cgroup of the container that this process is in; nil while none is found
	received    atomic.Uint64          // events of runtimes so far
	wake        chan struct{}          // Run has work
	restoreDue  chan struct{}          // undoing has work
	highChanged chan struct{}          // for the stall guard
	changed     chan struct{}          // for the recorder of OOM kills

	configSlot chan struct{} // holds one while a configuration is put in force, which may wait for files

	mu      sync.Mutex // guards what follows; nothing under it waits
	ledger  *ledger.Ledger
	machine machine.Machine // as read last
	outbox
	shared         *sharedView    // of the last View
	viewStale      bool           // since the last View
	lastSample     []deficit.Node // by the ledger
	epoch          uint64         // of the last session
	session        *Session       // nil when no runtime is connected
	rereadClaim    func(context.Context, claims.Claim)
	failingFiles   map[string]string // files of the state folder, in the log
	protectFailing bool              // in the log
	reconciles     int               // periodic ones so far
}

// New returns an agent that has the state folder for itself and has read its checkpoint. The error is checkpoint.ErrInUse while another
// process has the folder; nothing in it was read then. A state folder that cannot be used, or a bad state file, is no
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
		sysfs:       opts.Sysfs,
		tree:        opts.Tree,
		recorder:    opts.Recorder,
		devices:     opts.Devices,
		wake:        make(chan struct{}, 1),
		restoreDue:  make(chan struct{}, 1),
		highChanged: make(chan struct{}, 1),
		changed:     make(chan struct{}, 1),
		configSlot:  make(chan struct{}, 1),
		ancestors:   newAncestors(),
		shared:      &sharedView{},
		viewStale:   true, // nothing has been shown

		checkPeriod: cmp.Or(opts.CheckPeriod, CheckPeriod), requestTimeout: cmp.Or(opts.RequestTimeout, RequestTimeout),

		rereadClaim: func(context.Context, claims.Claim) {},
		unusable:    map[string]string{},
	}
	a.deficits = &sampler.Sampler{View: a.View, Machine: a.currentMachine, Tree: a.tree, Sysfs: a.sysfs, Log: a.log, Now: a.now}
	if err := a.lockStateDir(opts.StateDir); err != nil {
		return nil, err
	}
	for _, warning := range resolved.Warnings {
		a.log.Warn(warning)
	}
	begin := ledger.Options{Config: resolved, Raises: loadRaises(raisesPath(opts.StateDir), a.log)}
	if opts.Claims != nil {
		begin.Claims = opts.Claims()
	}
	a.ledger, err = ledger.New(opts.Now(), begin)
	if err != nil {
		if a.store != nil {
			_ = a.store.Close() // it has written nothing
		}
		return nil, err
	}
	a.outbox.all = true // nothing is known of what an earlier run has written
	a.openStateDir(opts.StateDir, opts.KubeletState, resolved)
	if a.recorder != nil {
		a.recorder.Begin(a.now(), a.ledger)
	}
	a.hasProviders = len(opts.Providers) > 0
	a.requests = podinfo.New(podinfo.Options{
		Providers: opts.Providers,
		Timeout:   a.requestTimeout,
		Changed:   a.podChanged,
		File:      a.requestsFile(opts.StateDir),
		Log:       opts.Log,
	})
	a.protector = protect.New(protect.Options{
		Tree: opts.Tree, Units: opts.Units, Journal: a.journal, Watcher: opts.Watcher, Changed: a.noteChanges,
		PageSize: opts.Machine.PageSize, Log: opts.Log, Now: opts.Now, Migration: resolved.MostMoved(),
	})
	return a, nil
}

// requestsFile holds the pods as last received from the pod APIs.
const requestsFile = "requests.json"

// requestsFile is the path of that file; "" without pod APIs, or a folder for it.
func (a *Agent) requestsFile(dir string) string {
	if !a.hasProviders || dir == "" {
		return ""
	}
	return filepath.Join(dir, requestsFile)
}

// lockStateDir opens the state folder and keeps other daemons out of it until Close, or the end of the process: each would lose the
// other's decisions. The error is checkpoint.ErrInUse only.
func (a *Agent) lockStateDir(dir string) error {
	if dir == "" {
		return nil
	}
	log := a.log.WithField("stateDir", dir)
	store, err := checkpoint.Open(dir)
	if err != nil {
		a.unusable[checkpoint.FileName] = err.Error()
		log.WithError(err).Error("the checkpoint cannot be used: allocations are kept in memory only")
		return nil
	}
	switch err := store.Lock(); {
	case errors.Is(err, checkpoint.ErrInUse):
		_ = store.Close() // nothing was written
		return err
	case err != nil:
		log.WithError(err).Warn("the state folder cannot be locked: another daemon that uses it would not be noticed")
	}
	a.store = store
	return nil
}

// openStateDir opens the files in the state folder and restores the checkpoint.
func (a *Agent) openStateDir(dir, kubeletState string, resolved config.Resolved) {
	a.raises = durable.NewWriter(durable.Options{Path: raisesPath(dir)})
	if dir == "" {
		return
	}
	log := a.log.WithField("stateDir", dir)
	var err error
	if a.journal, err = a.openJournal(dir); err != nil {
		a.unusable[protect.JournalFile] = err.Error()
		log.WithError(err).Error("the journal of written cgroup files cannot be used: rollback will not know them")
	}
	if a.store == nil {
		return
	}
	if resolved.Static {
		a.restore(log, kubeletState)
	}
	a.writer = checkpoint.NewWriter(a.store)
}

func (a *Agent) openJournal(dir string) (*protect.Journal, error) {
	journal, damage, err := protect.OpenJournal(dir)
	if damage != nil {
		a.log.WithError(damage).Warn("the journal of written cgroup files cannot be read in full and is set aside")
	}
	return journal, err
}

// restore restores the allocations of the state file, or of a kubelet's where there is none. Synchronize then drops those whose pods are
// gone.
func (a *Agent) restore(log logrus.FieldLogger, kubeletState string) {
	file, err := a.store.Load()
	var corrupt *checkpoint.CorruptError
	switch {
	case errors.Is(err, os.ErrNotExist):
		if kubeletState == "" || a.store.HadFile() { // the second: this is not the first start
			return
		}
		if file, err = checkpoint.ReadFile(kubeletState); err == nil {
			_, err = checkpoint.Import(a.store, file, false)
		}
		if log = log.WithField("file", kubeletState); err != nil {
			log.WithError(err).Warn("the kubelet's state file is not imported: allocations are taken from the running containers")
			return
		}
		log.Info("the kubelet's state file is imported: it is not read again")
	case errors.As(err, &corrupt):
		a.counters.quarantined.Add(1)
		log.WithError(err).Warn("the state file cannot be used and is set aside: allocations are rebuilt from the runtime")
		return
	case err != nil:
		log.WithError(err).Error("the state file cannot be read: allocations are rebuilt from the runtime")
		return
	}
	report, err := a.ledger.Restore(file.State)
	if err != nil {
		log.WithError(err).Warn("the state file does not fit this machine: allocations are rebuilt from the runtime")
		return
	}
	logRestored(log, report)
}

func logRestored(log logrus.FieldLogger, report memorymanager.RestoreReport) {
	for _, drift := range report.Drifted {
		sizes := quantity.LogApart(drift.Stored, drift.Now)
		entry := log.WithFields(logrus.Fields{"node": drift.Node, "type": drift.Type, "stored": sizes[0], "now": sizes[1]})
		if drift.Tolerated {
			entry.Info("what containers may have of a node has moved within the tolerance since the state file was written")
		} else {
			entry.Warn("what containers may have of a node has changed since the state file was written: its memory, or what is reserved")
		}
	}
	for _, lost := range report.Lost {
		log.WithFields(logrus.Fields{"node": lost.Node, "type": lost.Type, "bytes": quantity.Log(lost.Bytes)}).
			Warn("running containers have more allocated on a node than it has now")
	}
	if !report.Vanished.Empty() {
		log.WithField("nodes", report.Vanished.String()).Warn("containers have allocations on nodes that this machine no longer has")
	}
	for _, problem := range report.Problems {
		log.Warn(problem)
	}
	log.WithField("entries", report.Restored).Info("state file restored")
}

// Close writes what is pending and then leaves the state folder to others.
func (a *Agent) Close(ctx context.Context) error {
	var errs []error
	if a.writer != nil {
		errs = append(errs, a.writer.Close(ctx))
	}
	errs = append(errs, a.closeProtector(ctx))
	if a.journal != nil {
		errs = append(errs, a.journal.Close(ctx))
	}
	errs = append(errs, a.raises.Close(ctx))
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	return errors.Join(errs...)
}

// systemdTimeout is how long systemd has to confirm the last values, of the time that Close has.
const systemdTimeout = 2 * time.Second

func (a *Agent) closeProtector(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, systemdTimeout)
	defer cancel()
	return a.protector.Close(ctx)
}

// poke has Run look for work.
func (a *Agent) poke() { signal(a.wake) }

// signal puts a value into a channel that holds one, unless it has one to receive already.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Reconfigure puts a configuration in force and brings running containers and the cgroups above them to it. One that does
// not fit this machine is refused: the old one stays, and the error is shown until a good one comes.
func (a *Agent) Reconfigure(ctx context.Context, c config.Config) error {
	defer a.configuring()()
	c.RolledBack = a.config().RolledBack
	return a.reconfigure(ctx, c)
}

// configuring waits until no other configuration is put in force.
func (a *Agent) configuring() (end func()) {
	a.configSlot <- struct{}{}
	return func() { <-a.configSlot }
}

func (a *Agent) reconfigure(ctx context.Context, c config.Config) error {
	hardware := a.currentMachine()
	resolved, err := c.Resolve(hardware)
	if err != nil {
		a.RejectConfig(err)
		return err
	}
	return a.enforce(ctx, resolved)
}

// enforce brings everything to a configuration. The error is of one that does not fit.
func (a *Agent) enforce(ctx context.Context, resolved config.Resolved) error {
	effects := a.step(ledger.Reconfigure{Config: resolved})
	defer a.logNotes(effects.Notes)
	if effects.Err != nil {
		return effects.Err
	}
	a.protector.BoundMigration(resolved.MostMoved())
	a.work(ctx)
	a.poke()
	signal(a.restoreDue)
	return nil
}

// RejectConfig reports a new configuration that could not be read; the old one stays in force.
func (a *Agent) RejectConfig(err error) {
	a.logNotes(a.step(ledger.RejectConfig{Err: err.Error()}).Notes)
}

// Explain explains the containers of a pod, given as namespace/name, name or UID; container "" is all of them.
// The error names what was not found. The lock is held only to copy what the explanations follow from.
func (a *Agent) Explain(pod, container string) (iter.Seq[ledger.Explanation], error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Explain(pod, container)
}

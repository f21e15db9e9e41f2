// Package agent carries out the decisions of the ledger. Each event of the runtime is one Step of the ledger under one lock. Everything
// that waits happens outside of the lock. An answer waits for the state file, and the start of a container for its parent cgroups. The
// agent does not assume that a write took effect: it reads the files, and passes what it read to the ledger as an event.
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
	// RequestTimeout leaves most of the two seconds of an NRI request to everything else.
	RequestTimeout = 300 * time.Millisecond
)

// Options are the inputs of New.
type Options struct {
	Config  config.Config
	Machine machine.Machine
	// Sysfs is the root of the sysfs that Machine was read from, to follow changes; empty follows none.
	Sysfs string
	// StateDir holds the checkpoint, the journal of written cgroup files, the raised memory.high values and the known pods; empty keeps none
	// of them.
	StateDir string
	// KubeletState is a kubelet's state file, imported if StateDir never had one; empty imports none.
	KubeletState string
	// Tree is the cgroup v2 hierarchy.
	Tree *cgroupfs.Tree
	// Units sets properties of systemd's slices; nil writes files only.
	Units protect.Units
	// Watcher reports writes by others; nil leaves them to the periodic check.
	Watcher *cgroupfs.Watcher
	// CheckPeriod is the time between two periodic checks of cgroups, at least a second; 0 is CheckPeriod.
	CheckPeriod time.Duration
	// RequestTimeout bounds how long the creation of a container waits for its request and devices; 0 is RequestTimeout.
	RequestTimeout time.Duration
	// Providers are the sources of memory requests in their order; the agent runs them.
	Providers []podinfo.Provider
	// Claims reads the resource claims that were prepared before; it is called once the state folder is locked. nil has none.
	Claims func() []claims.Claim
	// Recorder receives every event and decision; nil records nothing.
	Recorder Recorder
	// Devices finds the NUMA nodes of containers' devices; nil finds none.
	Devices Devices
	// Log receives a line for each decision; nil is logrus' standard logger.
	Log logrus.FieldLogger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Devices finds the NUMA nodes of containers' devices.
type Devices interface {
	// Wants reports whether Find has anything to ask about a container. It does not wait.
	Wants(c devices.Container) bool
	// Find returns the devices of a container, and those of the pod's other containers that are known. It may wait until ctx ends.
	Find(ctx context.Context, c devices.Container) devices.Pod
	// CPUs returns the known exclusive CPUs of a pod's containers, in the kernel's list format. It may wait until ctx ends.
	CPUs(ctx context.Context, c devices.Container) map[string]string
	// Lookup returns the known devices of a container. It does not wait.
	Lookup(c devices.Container) []topologymanager.Device
}

// Recorder records events and decisions of the ledger. Its methods are called under the agent's lock and must not wait.
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

	sysfs        string
	tree         *cgroupfs.Tree
	journal      *protect.Journal // nil if it cannot be read
	protector    *protect.Protector
	unusable     map[string]string // why there is no journal or writer, by file name
	store        *checkpoint.Store
	writer       *checkpoint.Writer // nil if the state folder cannot be used
	requests     *podinfo.Resolver
	hasProviders bool            // requests has sources
	raises       *durable.Writer // of raisesFile
	recorder     Recorder        // nil records nothing
	devices      Devices         // nil finds none
	counters     counters
	ancestors    ancestors
	sampler      *sampler.Sampler

	ownCgroup   atomic.Pointer[string] // cgroup of this process's container; nil until it is found
	received    atomic.Uint64          // events received from runtimes
	wake        chan struct{}          // wakes Run
	restoreDue  chan struct{}          // wakes restoreLoop
	highChanged chan struct{}          // wakes the stall guard
	viewChanged chan struct{}          // wakes the recorder of OOM kills

	configSlot chan struct{} // full while a configuration is applied, which may wait for files

	mu             sync.Mutex // guards the following; its holder never waits
	ledger         *ledger.Ledger
	machine        machine.Machine // as read last
	outbox         outbox
	shared         *sharedView          // of the last View
	viewStale      bool                 // since the last View
	lastNodeMemory []deficit.NodeMemory // passed to the ledger
	epoch          uint64               // of the last session
	session        *Session             // nil when no runtime is connected
	rereadClaim    func(context.Context, claims.Claim)
	failingFiles   map[string]string // logged failures of files in the state folder
	protectFailing bool              // logged
	reconciles     int               // periodic checks so far
	unread         map[string]bool   // cgroups that the next check reads again, and isOwn
}

// New locks the state folder, reads its files and returns an agent. The error is checkpoint.ErrInUse if another process has the folder;
// then nothing in it was read. A state folder that cannot be used and a bad state file are not errors: they are logged and shown in View's
// conditions, and Synchronize rebuilds the state.
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
		viewChanged: make(chan struct{}, 1),
		configSlot:  make(chan struct{}, 1),
		unread:      map[string]bool{},
		ancestors:   ancestors{slot: make(chan struct{}, 1)},
		shared:      &sharedView{},
		viewStale:   true,

		checkPeriod: cmp.Or(opts.CheckPeriod, CheckPeriod), requestTimeout: cmp.Or(opts.RequestTimeout, RequestTimeout),

		rereadClaim: func(context.Context, claims.Claim) {},
		unusable:    map[string]string{},
	}
	a.sampler = &sampler.Sampler{View: a.View, Machine: a.currentMachine, Tree: a.tree, Sysfs: a.sysfs, Log: a.log, Now: a.now}
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
			_ = a.store.Close() // nothing was written
		}
		return nil, err
	}
	a.outbox.all = true // it is unknown what an earlier run wrote
	signal(a.restoreDue)
	a.openStateDir(opts.StateDir, opts.KubeletState, resolved)
	if a.recorder != nil {
		a.recorder.Begin(a.now(), a.ledger)
	}
	a.hasProviders = len(opts.Providers) > 0
	requests := ""
	if a.hasProviders && opts.StateDir != "" {
		requests = filepath.Join(opts.StateDir, requestsFile)
	}
	a.requests = podinfo.New(podinfo.Options{
		Providers: opts.Providers,
		Timeout:   a.requestTimeout,
		Changed:   a.podChanged,
		File:      requests,
		Log:       opts.Log,
	})
	a.protector = protect.New(protect.Options{
		Tree: opts.Tree, Units: opts.Units, Journal: a.journal, Watcher: opts.Watcher, Changed: a.noteChanges,
		PageSize: opts.Machine.PageSize, Log: opts.Log, Now: opts.Now, Migration: resolved.MostMoved(),
	})
	return a, nil
}

// requestsFile is the name of the file with the pods as last received from the pod APIs.
const requestsFile = "requests.json"

// lockStateDir opens the state folder and locks it against other daemons until Close: two daemons would overwrite each other's decisions.
// The only error is checkpoint.ErrInUse.
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
		_ = store.Close()
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
	journal, damage, err := protect.OpenJournal(dir)
	if a.journal = journal; err != nil {
		a.unusable[protect.JournalFile] = err.Error()
		log.WithError(err).Error("the journal of written cgroup files cannot be used: rollback will not know them")
	}
	if damage != nil {
		log.WithError(damage).Warn("the journal of written cgroup files is damaged and was renamed; its readable entries are kept")
	}
	if a.store == nil {
		return
	}
	if resolved.Static {
		a.restore(log, kubeletState)
	}
	a.writer = checkpoint.NewWriter(a.store)
}

// restore restores the allocations of the state file or, at the first start, of a kubelet's. Synchronize then drops those of pods that are
// gone.
func (a *Agent) restore(log logrus.FieldLogger, kubeletState string) {
	file, err := a.store.Load()
	var corrupt *checkpoint.CorruptError
	switch {
	case errors.Is(err, os.ErrNotExist):
		if kubeletState == "" || a.store.HadFile() { // HadFile: this is not the first start
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

// Close writes pending changes and unlocks the state folder.
func (a *Agent) Close(ctx context.Context) error {
	var errs []error
	if a.writer != nil {
		errs = append(errs, a.writer.Close(ctx))
	}
	protectorCtx, cancel := context.WithTimeout(ctx, systemdTimeout)
	defer cancel()
	errs = append(errs, a.protector.Close(protectorCtx))
	if a.journal != nil {
		errs = append(errs, a.journal.Close(ctx))
	}
	errs = append(errs, a.raises.Close(ctx))
	if a.store != nil {
		errs = append(errs, a.store.Close())
	}
	return errors.Join(errs...)
}

// systemdTimeout is how long Close waits for systemd to confirm the last values.
const systemdTimeout = 2 * time.Second

// poke wakes Run.
func (a *Agent) poke() { signal(a.wake) }

// signal puts a value into a channel of capacity one, unless it is full.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Reconfigure applies a configuration to running containers and their parent cgroups. If it does not fit this machine, the old one stays in
// force, and View shows the error until a configuration is accepted.
func (a *Agent) Reconfigure(ctx context.Context, c config.Config) error {
	defer a.configuring()()
	c.RolledBack = a.config().RolledBack
	return a.reconfigure(ctx, c)
}

// configuring waits until no other configuration is being applied.
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

// enforce applies a configuration. The error says why it does not fit.
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
// The error names what was not found. The lock is held only while the facts are copied.
func (a *Agent) Explain(pod, container string) (iter.Seq[ledger.Explanation], error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Explain(pod, container)
}

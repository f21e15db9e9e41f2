package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

// TestItConverges takes random sequences of everything that happens to a node: whatever failed, came late or was missed, at
// rest the files hold what is desired, that is what a plugin would compute that starts beside the same runtime, the
// allocations are those of what runs, and nothing is kept of what has ended.
//
// CONVERGENCE_SEQUENCES is how many, every second one from a new seed; without it all are the same each time. CONVERGENCE_SEED and CONVERGENCE_SEQUENCE repeat one that failed. pgregory.net/rapid
// shrinks too, but an event here is numbers that mean something in any state, so that leaving events out is all there is to it.
func TestItConverges(t *testing.T) {
	usual := uint64(1_000)
	if testing.Short() {
		usual = 250
	}
	count := number(t, "CONVERGENCE_SEQUENCES", usual)
	fixed, fresh, first := uint64(1), uint64(1), uint64(0)
	if os.Getenv("CONVERGENCE_SEQUENCES") != "" {
		fresh = rand.Uint64()
	}
	if os.Getenv("CONVERGENCE_SEED") != "" {
		fixed = number(t, "CONVERGENCE_SEED", 0)
		first, count, fresh = number(t, "CONVERGENCE_SEQUENCE", 0), 1, fixed
	}
	t.Logf("%d sequences from the seeds %d and %d", count, fixed, fresh)
	ground := newGround(t)
	for i := range count {
		seed := fixed
		if i%2 == 1 {
			seed = fresh
		}
		s := newSequence(rand.New(rand.NewPCG(seed, first+i)))
		problem := ground.run(s, io.Discard)
		if problem == "" {
			continue
		}
		kindOf, _, _ := strings.Cut(problem, ":")
		shrunk := shrink(s, func(s sequence) bool { return strings.HasPrefix(ground.run(s, io.Discard), kindOf+":") })
		var log bytes.Buffer
		again := ground.run(shrunk, &log)
		t.Fatalf("CONVERGENCE_SEED=%d CONVERGENCE_SEQUENCE=%d: %s\n\nshrunk from %d to %d events: %s\n%s",
			seed, first+i, problem, len(s.events), len(shrunk.events), again, log.String())
	}
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// sequence is a kind of node and what happens to it.
type sequence struct {
	setup
	events []event
}

// setup is what stays the same in a sequence.
type setup struct {
	config                                      int
	systemd, crio, inner, unasked, api, watches bool
}

// event is something that happens. Its numbers mean something in any state: which pod of those that there are, and so on.
type event struct {
	kind                           kind
	pod, container, value, outcome uint8
	work                           bool // Run's part follows
}

type kind int

const (
	runPod kind = iota
	createContainer
	startContainer
	resizeContainer
	stopContainer
	loseContainer
	stopPod
	removePod
	losePod
	overwriteContainer
	overwriteAbove
	disconnect
	connect
	restartPlugin
	restartRuntime
	reload
	learnFacts
	raiseHigh
	turnUnasked
	turnSystemd
	reloadSystemd
	failOpens
	pass
	wait
)

// weights say how often each kind of event comes.
var weights = map[kind]int{
	runPod: 12, createContainer: 24, startContainer: 6, resizeContainer: 20, stopContainer: 6, loseContainer: 2, stopPod: 3, removePod: 2,
	losePod: 2, overwriteContainer: 4, overwriteAbove: 3, disconnect: 3, connect: 4, restartPlugin: 4, restartRuntime: 2, reload: 5,
	learnFacts: 6, raiseHigh: 2, turnUnasked: 2, turnSystemd: 4, reloadSystemd: 2, failOpens: 4, pass: 5, wait: 4,
}

var kinds = func() (all []kind) {
	for k := runPod; k <= wait; k++ {
		all = append(all, slices.Repeat([]kind{k}, weights[k])...)
	}
	return all
}()

func newSequence(r *rand.Rand) sequence {
	some := func(n int) bool { return r.IntN(n) == 0 }
	s := sequence{setup: setup{
		config: r.IntN(len(configurations)), systemd: some(3), crio: some(3), inner: some(4), unasked: some(2), api: some(3), watches: some(8),
	}}
	for range 5 + r.IntN(21) {
		s.events = append(s.events, event{
			kind: kinds[r.IntN(len(kinds))], pod: uint8(r.IntN(4)), container: uint8(r.IntN(2)), value: uint8(r.IntN(256)),
			outcome: uint8(r.IntN(16)), work: !some(3),
		})
	}
	return s
}

// shrink leaves out events while the sequence fails, and makes what is left simpler.
func shrink(s sequence, fails func(sequence) bool) sequence {
	for size := len(s.events); size > 0; {
		left := len(s.events)
		for i := 0; i+size <= len(s.events); {
			if less := (sequence{s.setup, slices.Delete(slices.Clone(s.events), i, i+size)}); fails(less) {
				s = less
			} else {
				i++
			}
		}
		if size = min(size, len(s.events)); size > 1 {
			size /= 2
		} else if len(s.events) == left {
			break
		}
	}
	for _, simpler := range []func(*setup){
		func(s *setup) { s.config = 0 }, func(s *setup) { s.systemd = false }, func(s *setup) { s.crio = false },
		func(s *setup) { s.inner = false }, func(s *setup) { s.api = false }, func(s *setup) { s.watches = false },
	} {
		less := s
		if simpler(&less.setup); fails(less) {
			s = less
		}
	}
	for i := range s.events {
		for _, simpler := range []func(*event){
			func(e *event) { e.value = 0 }, func(e *event) { e.outcome = 0 }, func(e *event) { e.work = true },
		} {
			less := sequence{s.setup, slices.Clone(s.events)}
			if simpler(&less.events[i]); fails(less) {
				s = less
			}
		}
	}
	return s
}

// configurations are those that a sequence starts with and reloads.
var configurations = []string{
	"", "memoryManagerPolicy: None\nreservedMemory: []", "memoryReservationPolicy: HardReservation", "memoryThrottlingFactor: 0.5",
	"memoryReservationPolicy: None", "memoryThrottlingFactor: null", "topologyManagerPolicy: restricted",
	"topologyManagerPolicy: single-numa-node", "profile: Observe",
	"maxMigrationBytes: 4Gi", "maxMigrationBytes: 1Pi\ntopologyManagerPolicy: restricted",
	"podLevelResourceManagers: true\ntopologyManagerScope: pod\ntopologyManagerPolicy: restricted", "podLevelResourceManagers: true",
}

// ground is where sequences run.
type ground struct {
	folder  string
	configs []config.Config
	machine machine.Machine
	runs    int
}

func newGround(t *testing.T) *ground {
	g := &ground{folder: cgroups.InMemory(t)}
	for _, yaml := range configurations {
		g.configs = append(g.configs, parseConfig(t, yaml))
	}
	g.machine = parseMachine(t, twoNodes)
	return g
}

// run takes a sequence to its end, and returns what is not as it should be.
func (g *ground) run(s sequence, log io.Writer) string {
	g.runs++
	folder := filepath.Join(g.folder, strconv.Itoa(g.runs))
	defer func() { must(os.RemoveAll(folder)) }()
	w := newWorld(g, s.setup, folder, log)
	defer w.close()
	fmt.Fprintf(log, "%+v, configuration %q\n", s.setup, configurations[s.config])
	for i, e := range s.events {
		what := w.step(e)
		if e.work {
			w.work(context.Background())
			what += "; work"
		}
		if w.host.systemd != nil && w.failing() == "" {
			w.host.settled(w.protector)
		}
		fmt.Fprintf(log, "%d. %s\n", i+1, what)
	}
	fmt.Fprintln(log, "rest")
	if problem := w.rest(); problem != "" {
		return problem
	}
	return w.compare()
}

// world is a node with a plugin.
type world struct {
	*Agent
	*Session
	host      *fakeHost
	setup     setup
	ground    *ground
	state     string
	tree      *cgroupfs.Tree
	watcher   *cgroupfs.Watcher
	api       *podAPI
	log       *logrus.Logger
	out       io.Writer
	config    config.Config
	connected bool
	unasked   unasked
	restarted bool                       // the plugin was
	overwrote map[protect.Overwrite]bool // by another writer

	mu     sync.Mutex // guards what follows: systemd's queue reads and writes beside the events
	clock  time.Time
	opens  string // which opens fail; "" is none
	opened int
	writes []cgroupfs.Write // of the plugin
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.clock
}

func (w *world) wait(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock = w.clock.Add(d)
}

func (w *world) failing() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opens
}

func (w *world) setOpens(fail string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.opens = fail
}

// written returns the writes since the last call.
func (w *world) written() []cgroupfs.Write {
	w.mu.Lock()
	defer w.mu.Unlock()
	writes := w.writes
	w.writes = nil
	return writes
}

// unasked is what the runtime makes of updates that nobody asked for.
type unasked int

const (
	takes unasked = iota
	ignores
	refuses
)

func (u unasked) String() string { return [...]string{"takes", "ignores", "refuses"}[u] }

func newWorld(g *ground, s setup, folder string, out io.Writer) *world {
	w := &world{
		ground: g, setup: s, state: filepath.Join(folder, "state"), out: out, clock: time.Unix(1_000_000_000, 0), config: g.configs[s.config],
		host:      newFakeHost(filepath.Join(folder, "cgroup"), s),
		overwrote: map[protect.Overwrite]bool{},
	}
	kubepods := "kubepods/burstable"
	if s.systemd {
		kubepods = "kubepods.slice/kubepods-burstable.slice"
		w.host.systemd.Load(kubepods, path.Dir(kubepods))
	}
	must(w.host.Make(kubepods))
	w.log = logrus.New()
	w.log.SetOutput(out)
	w.log.SetLevel(logrus.DebugLevel)
	if out == io.Discard {
		w.log.SetLevel(logrus.PanicLevel)
	}
	w.log.SetFormatter(&logrus.TextFormatter{DisableColors: true, DisableTimestamp: true})
	if s.api {
		w.api = &podAPI{pods: map[pods.Ref]*pods.Pod{}}
	}
	w.start(w.state)
	w.connect()
	return w
}

// start starts a plugin.
func (w *world) start(state string) {
	var err error
	w.tree, err = cgroupfs.Open(string(w.host.Folder), cgroupfs.Plain(), cgroupfs.OnOpen(w.open), cgroupfs.OnWrite(func(write cgroupfs.Write) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.writes = append(w.writes, write)
	}))
	must(err)
	w.watcher = nil
	if w.setup.watches {
		w.watcher, err = cgroupfs.NewWatcher(w.tree)
		must(err)
	}
	options := Options{
		Config: w.config, Machine: w.ground.machine, StateDir: state, Tree: w.tree, Watcher: w.watcher, Log: w.log,
		Now: w.now,
	}
	if w.api != nil {
		options.Providers = []podinfo.Provider{w.api}
	}
	if w.host.systemd != nil {
		options.Units = w.host.systemd
	}
	w.Agent, err = New(options)
	must(err)
}

// restart starts a plugin on what the last one has left.
func (w *world) restart() {
	// The journal drops a container's file that holds the default again, and the runtime's record still has the value of ours: a
	// plugin that starts takes it for the kubelet's. Here the record is corrected first.
	for _, p := range w.host.pods {
		for _, c := range p.containers {
			for file := range c.Resources.Unified {
				if c.State.Alive() && w.host.read(c.dir, file) == cgroup.Default(file) {
					w.host.correct(c, file)
				}
			}
		}
	}
	w.stop()
	w.connected, w.restarted = false, true
	w.start(w.state)
}

// stop ends the plugin. systemd gets no time to answer where it does not at once.
func (w *world) stop() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	ctx := context.Background()
	if w.host.systemd != nil {
		_ = w.protector.Close(ended)
	}
	_ = w.Close(ctx)
	w.requests.Run(ended) // ends its file
	if w.watcher != nil {
		must(w.watcher.Close())
	}
	must(w.tree.Close())
}

func (w *world) close() {
	if w.host.systemd != nil {
		w.host.systemd.Turn(answers)
	}
	w.stop()
}

// open fails where opens fail.
func (w *world) open(dir, file string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch w.opens {
	case "":
		return nil
	case "every":
		return unix.EMFILE
	case "every third":
		if w.opened++; w.opened%3 == 0 {
			return unix.EMFILE
		}
	case file:
		return unix.EIO
	}
	return nil
}

var failures = []string{"every", "every third", ".", "memory.max", "memory.high", "memory.min", "memory.low", "cpuset.mems"}

// connect connects the plugin to the runtime and synchronizes both.
func (w *world) connect() {
	w.connected = true
	connected := Runtime{Name: "containerd", Version: "v2.4.2", NRIVersion: "0.12.3", ReplyUnified: true}
	if w.setup.crio {
		connected = Runtime{Name: "cri-o", Version: "1.35.0", NRIVersion: "0.11.0"}
	}
	var apply func(context.Context, []Update) error
	if w.setup.unasked {
		apply = w.applyUnasked
	}
	w.Session = w.Connected(connected, apply)
	pods, containers := w.host.list()
	updates, err := w.Synchronize(context.Background(), pods, containers)
	must(err)
	_ = w.applyUnasked(context.Background(), updates)
}

func (w *world) disconnect() {
	if w.connected {
		w.connected = false
		w.Disconnected(errors.New("the test disconnects it"))
	}
}

// applyUnasked is the runtime's part in updates that nobody asked for.
func (w *world) applyUnasked(_ context.Context, updates []Update) error {
	switch w.unasked {
	case ignores:
		return nil
	case refuses:
		return errors.New("an error of the test")
	}
	for _, update := range updates {
		if c := w.host.find(update.ContainerID); c != nil {
			w.host.update(c, Resources{}, update.Adjustment)
		}
	}
	return nil
}

// choose picks the pod of an event, and a container that was ever created; nil where there is none.
func (w *world) choose(e event) (*fakePod, *fakeContainer) {
	if len(w.host.pods) == 0 {
		return nil, nil
	}
	p := w.host.pods[int(e.pod)%len(w.host.pods)]
	return p, p.containers[p.spec[int(e.container)%len(p.spec)].Name]
}

// knows has the kubelet's API know a pod; nil is not at all.
func (w *world) knows(p *fakePod, facts *pods.Pod) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	if facts == nil {
		delete(w.api.pods, p.Ref())
		return
	}
	w.api.pods[p.Ref()] = facts
}

func (w *world) known(p *fakePod) bool {
	if w.api == nil {
		return false
	}
	_, known := w.api.Known(p.Ref())
	return known
}

// size is that of an event. CRI-O forgets the exact bytes of a resize at its own restart.
func (w *world) size(e event) uint64 {
	size := sizes[int(e.value)%len(sizes)]
	if w.setup.crio {
		size &^= 4095
	}
	return size
}

const nothing = "nothing"

// step has something happen.
func (w *world) step(e event) string {
	ctx := context.Background()
	p, c := w.choose(e)
	living := c != nil && c.State.Alive()
	switch e.kind {
	case runPod:
		if len(w.host.pods) == 4 {
			return nothing
		}
		class := []memoryqos.QOSClass{memoryqos.Guaranteed, memoryqos.Guaranteed, memoryqos.Burstable, memoryqos.BestEffort}[e.pod%4]
		return w.stepRun(ctx, class, 1+int(e.container), w.size(e), e.outcome%2 == 1)
	case createContainer:
		if p == nil || p.stopped || living {
			return nothing
		}
		return w.stepCreate(ctx, p, p.spec[int(e.container)%len(p.spec)], e.outcome)
	case startContainer:
		if !living || c.State != Created {
			return nothing
		}
		return w.stepStart(ctx, p, c)
	case resizeContainer:
		if !living || p.class == memoryqos.BestEffort {
			return nothing
		}
		return w.stepResize(ctx, p, int(e.container)%len(p.spec), c, w.size(e), e.outcome)
	case stopContainer:
		if c == nil {
			return nothing
		}
		return w.stepStop(ctx, p, c, e.value)
	case loseContainer:
		if !living || w.connected { // while it is connected, the runtime reports every end
			return nothing
		}
		w.host.exit(c)
		return c.ID + " exits unseen"
	case stopPod, removePod, losePod:
		if p == nil {
			return nothing
		}
		return w.stepEnd(ctx, p, e.kind)
	case overwriteContainer:
		if !living {
			return nothing
		}
		// A file of a container that never held a value of ours is left alone until a resize is found by its limit: then the plugin
		// takes what another writer left in it for its own. So here only files with values of ours are overwritten.
		files := slices.Sorted(maps.Keys(c.Resources.Unified))
		if c.Resources.Mems != "" {
			files = append(files, "cpuset.mems")
		}
		return w.stepOverwrite(c.dir, files, e.value)
	case overwriteAbove:
		// The journal has a write before it is made: where that fails, it takes another writer's value for ours.
		if p == nil || p.stopped || w.failing() != "" {
			return nothing
		}
		dir := p.dir
		for range e.outcome % 3 {
			if up := path.Dir(dir); up != "." {
				dir = up
			}
		}
		return w.stepOverwrite(dir, []string{"memory.min", "memory.low", "memory.high"}, e.value)
	case learnFacts:
		if p == nil || w.api == nil {
			return nothing
		}
		facts := p.facts()
		w.knows(p, facts)
		w.podChanged(pods.Answer{Pod: facts, Source: memoryqos.SourceKubelet})
		return fmt.Sprintf("the kubelet's API has %s: %+v", p.Name, p.spec)
	}
	return w.stepNode(ctx, e)
}

// stepNode has something happen that is of no pod.
func (w *world) stepNode(ctx context.Context, e event) string {
	systemd := w.host.systemd
	switch e.kind {
	case disconnect:
		w.disconnect()
		return "the connection is lost"
	case connect:
		w.disconnect()
		w.connect()
		return "it is connected again"
	case restartPlugin:
		w.restart()
		if e.value%2 == 0 {
			w.connect()
		}
		return fmt.Sprintf("the plugin restarts, connected %t", w.connected)
	case restartRuntime:
		w.disconnect()
		w.host.restart()
		w.connect()
		return "the runtime restarts"
	case reload:
		i := int(e.value) % len(configurations)
		w.config = w.ground.configs[i]
		must(w.Reconfigure(ctx, w.config))
		return fmt.Sprintf("configuration %q", configurations[i])
	case raiseHigh:
		all := w.HighContainers()
		if len(all) == 0 || w.failing() != "" { // a raise that could not be written at once is not kept through a restart
			return nothing
		}
		slices.SortFunc(all, func(a, b ledger.HighContainer) int { return strings.Compare(a.ID, b.ID) })
		at := all[int(e.pod)%len(all)]
		err := w.SetHigh(ctx, at.ID, at.High+uint64(e.value)*mi)
		return fmt.Sprintf("the stall guard raises memory.high of %s by %dMi: %v", at.ID, e.value, err)
	case turnUnasked:
		w.unasked = unasked(e.value % 3)
		return fmt.Sprintf("the runtime %s unasked updates", w.unasked)
	case turnSystemd:
		if systemd == nil {
			return nothing
		}
		mode := systemdMode(e.value) % systemdModes
		if mode == absent && systemd.Holds() {
			// A plugin that finds nobody on systemd's socket takes it that nothing holds its values: one that was only away for
			// a moment, as during its own re-execution, writes back what was taken away meanwhile.
			return nothing
		}
		w.healSystemd()
		systemd.Turn(mode)
		return fmt.Sprintf("systemd %s", mode)
	case reloadSystemd:
		if systemd == nil {
			return nothing
		}
		if mode, _ := systemd.Mode(); mode != answers {
			return nothing
		}
		systemd.Reload()
		return "systemctl daemon-reload"
	case failOpens:
		if systemd != nil { // its queue opens files beside the events, so that a sequence would not repeat
			return nothing
		}
		if w.failing() != "" {
			w.setOpens("")
			return "files can be opened again"
		}
		w.setOpens(failures[int(e.value)%len(failures)])
		return "opens fail: " + w.failing()
	case pass:
		w.pass(ctx)
		return "the periodic check"
	case wait:
		d := []time.Duration{time.Second, 6 * time.Second, 11 * time.Second, 70 * time.Second}[e.value%4]
		w.wait(d)
		return fmt.Sprint("time passes: ", d)
	}
	return nothing
}

func (w *world) healSystemd() {
	if systemd := w.host.systemd; systemd != nil {
		systemd.Turn(answers)
		if w.failing() == "" {
			w.host.settled(w.protector)
		}
	}
}

// pass is what Run and the protector's Run do every period.
func (w *world) pass(ctx context.Context) {
	w.reconcile(ctx)
	w.work(ctx)
	_, _ = w.protector.Reconcile(ctx)
	_ = w.protector.WriteLate(ctx)
}

// work is what Run and the protector's Run do after an event.
func (w *world) work(ctx context.Context) {
	w.Agent.work(ctx)
	_ = w.protector.WriteLate(ctx)
}

func (w *world) stepRun(ctx context.Context, class memoryqos.QOSClass, containers int, size uint64, shared bool) string {
	p := w.host.runPod(class, containers, size)
	// Without its spec the plugin finds out by the containers' limits that they share their pod's, and forgets it at a restart.
	if shared && class == memoryqos.Guaranteed && containers > 1 && w.api != nil {
		w.host.share(p)
		w.knows(p, p.facts())
	}
	what := fmt.Sprintf("pod %s runs, %s, %d containers of %d", p.Name, class, containers, size)
	if systemd := w.host.systemd; systemd != nil {
		systemd.Load(p.dir, path.Dir(p.dir))
	}
	if w.connected {
		if err := w.RunPodSandbox(ctx, p.Pod); err != nil {
			what += fmt.Sprint(": ", err)
		}
		if p.level > 0 {
			w.podChanged(pods.Answer{Pod: p.facts(), Source: memoryqos.SourceKubelet})
		}
	}
	return what
}

func (w *world) stepCreate(ctx context.Context, p *fakePod, spec pods.Container, number uint8) string {
	c := w.host.ask(p, spec)
	how := outcome(number)
	var adjustment Adjustment
	what := fmt.Sprintf("create %s", c.ID)
	if !w.connected {
		how, what = succeeds, what+", not connected"
	} else {
		if how == late || how == lateRefuse {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			ctx = ended
		}
		answer, err := w.CreateContainer(ctx, p.Pod, c.Container)
		ctx = context.Background()
		what += fmt.Sprintf(" %+v %v", answer, err)
		switch {
		case how == fails, how == lateRefuse, err != nil && how != late && how != lateAnswer:
			return what + how.text()
		case how == late, how == lateAnswer:
			w.disconnect()
		default:
			adjustment = answer
		}
	}
	w.host.create(p, c, adjustment)
	if how == ends {
		return what + ", not started yet"
	}
	return what + how.text() + "; " + w.stepStart(ctx, p, c)
}

func (o outcome) text() string {
	if o < outcomes {
		return o.String()
	}
	return ""
}

func (w *world) stepStart(ctx context.Context, p *fakePod, c *fakeContainer) string {
	if w.connected {
		must(w.StartContainer(ctx, p.Pod, c.Container))
	}
	c.run()
	return "start " + c.ID
}

func (w *world) stepResize(ctx context.Context, p *fakePod, index int, c *fakeContainer, size uint64, number uint8) string {
	spec := &p.spec[index]
	before := *spec
	if p.level > 0 {
		return nothing
	}
	if p.class == memoryqos.Guaranteed && len(p.spec) > 1 && !w.known(p) {
		// A limit of the container or of the pod that is not the present one can make it look as if the containers shared the
		// pod's; one that is left alone says nothing any more, and is not pinned. Where a pod API knows the pod, it does not look.
		return nothing
	}
	how := outcome(number)
	what := fmt.Sprintf("resize %s from %d to %d", c.ID, spec.Limit, size)
	spec.Limit, spec.Request = size, min(spec.Request, size)
	if p.class == memoryqos.Guaranteed {
		spec.Request = size
	}
	grows := size > before.Limit
	if grows {
		w.host.limitPod(p)
	}
	to := Resources{MemoryLimit: limit(int64(size))}
	var answer Adjustment
	if w.connected {
		if how == late || how == lateRefuse {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			ctx = ended
		}
		given, err := w.UpdateContainer(ctx, p.Pod, c.Container, to)
		ctx = context.Background()
		what += fmt.Sprintf(" %+v %v%s", given, err, how.text())
		if how == fails || how == lateRefuse || err != nil && how != late && how != lateAnswer {
			*spec = before
			w.host.limitPod(p)
			return what
		}
		if how == late || how == lateAnswer {
			w.disconnect()
		} else if given != nil {
			answer = *given
		}
	} else {
		what += ", not connected"
	}
	w.host.update(c, to, answer)
	if !grows {
		w.host.limitPod(p)
	}
	if w.connected && how != ends {
		must(w.PostUpdateContainer(ctx, p.Pod, c.Container))
	}
	return what
}

func (w *world) stepStop(ctx context.Context, p *fakePod, c *fakeContainer, value uint8) string {
	if c.State.Alive() {
		w.host.exit(c)
	}
	if w.connected && value%3 != 0 {
		must(w.StopContainer(ctx, p.Pod, c.Container))
	}
	if w.connected && value%3 != 1 {
		must(w.RemoveContainer(ctx, p.Pod, c.Container))
	}
	return "stop " + c.ID
}

func (w *world) stepEnd(ctx context.Context, p *fakePod, how kind) string {
	if !p.stopped {
		w.host.end(p)
		if w.connected && how != losePod {
			must(w.StopPodSandbox(ctx, p.Pod))
		}
	}
	what := "stop pod " + p.Name
	if how == losePod {
		what = "pod " + p.Name + " ends without an event"
	}
	if how != stopPod {
		if w.connected && how == removePod {
			must(w.RemovePodSandbox(ctx, p.Pod))
		}
		w.host.pods = slices.DeleteFunc(w.host.pods, func(other *fakePod) bool { return other == p })
		if what += ", removed"; w.watcher != nil {
			w.noteChanges(map[cgroupfs.Change]bool{{Cgroup: p.dir}: true}) // as the protector's Run does
		}
	}
	if w.api != nil {
		w.knows(p, nil)
	}
	return what
}

// stepOverwrite has another writer write a file.
func (w *world) stepOverwrite(dir string, files []string, value uint8) string {
	if len(files) == 0 {
		return nothing
	}
	file := files[int(value)%len(files)]
	text := []string{cgroup.Default(file), "123456789"}[value/16%2]
	if file == "cpuset.mems" {
		text = []string{"0", "1", "0-1"}[value/16%3]
	}
	must(w.host.Write(dir, file, text))
	w.host.foreign[dir+"/"+file] = true
	w.overwrote[protect.Overwrite{Level: cgroup.LevelOf(dir), File: file}] = true
	return fmt.Sprintf("another writer writes %s to %s/%s", text, dir, file)
}

// rest heals what fails and lets the plugin do what is left.
func (w *world) rest() string {
	ctx := context.Background()
	w.setOpens("")
	w.unasked = takes
	w.healSystemd()
	if w.host.systemd != nil {
		w.host.systemd.Reload()
	}
	if w.config.DryRun() {
		w.config.Profile = config.ProfileFull
		must(w.Reconfigure(ctx, w.config))
	}
	if !w.connected {
		w.connect()
	}
	for _, p := range w.host.pods {
		for _, c := range p.containers {
			if c.State == Created { // the kubelet leaves none so
				w.stepStart(ctx, p, c)
			}
		}
	}
	const enough = 30
	for round := 1; ; round++ {
		w.wait(95 * time.Second) // three are longer than a container may be without a cgroup
		w.written()
		before := w.View().Generation
		w.pass(ctx)
		w.work(ctx)
		if w.host.systemd != nil {
			w.host.settled(w.protector)
		}
		switch writes := w.written(); {
		case round == enough:
			return fmt.Sprintf("rest: it does not come to rest, the last writes are %v", writes)
		case round >= 3 && len(writes) == 0 && w.View().Generation == before:
			return ""
		}
	}
}

// compare looks at all that has to be so at rest.
func (w *world) compare() string {
	mine := w.View()
	for _, check := range []struct {
		what string
		look func(*View) string
	}{
		{"what lives", w.checkRunning}, {"files", w.checkFiles}, {"allocations", w.checkAllocations}, {"left", w.checkLeft},
		{"overwrites", w.checkOverwrites},
	} {
		if problem := check.look(mine); problem != "" {
			return check.what + ": " + problem
		}
	}
	if systemd := w.host.systemd; systemd != nil {
		systemd.Reload()
		if problem := w.checkFiles(mine); problem != "" {
			return "reload of systemd: " + problem
		}
	}
	return w.compareFresh()
}

// checkOverwrites finds files that the metrics do not know, and files that nobody but the runtime has written.
func (w *world) checkOverwrites(*View) string {
	for o, count := range w.Counters().Overwrites {
		switch {
		case !slices.Contains(protect.Overwritable(), o):
			return fmt.Sprintf("%s of %s is counted, and is not Overwritable", o.File, o.Level)
		case !w.overwrote[o] && w.host.systemd == nil: // which writes old values at a reload
			return fmt.Sprintf("%s of %s is counted %d times, and no other writer has written it", o.File, o.Level, count)
		}
	}
	return ""
}

// compareFresh starts a plugin on what this one has left.
func (w *world) compareFresh() string {
	determined := w.determined()
	have := w.summary(determined)
	restarted := w.restarted
	w.restart()
	w.written()
	w.connect()
	w.pass(context.Background())
	writes := w.written()
	if restarted { // see checkFiles
		writes = slices.DeleteFunc(writes, func(write cgroupfs.Write) bool {
			return write.Text == "0" && cgroup.LevelOf(write.Cgroup) != cgroup.LevelPod && cgroup.LevelOf(write.Cgroup) != cgroup.LevelContainer
		})
	}
	if !determined {
		writes = slices.DeleteFunc(writes, func(write cgroupfs.Write) bool { return write.Knob == cgroup.CpusetMems })
	}
	if len(writes) > 0 {
		return fmt.Sprintf("fresh writes: a plugin that starts now writes %v", writes)
	}
	want := w.summary(determined)
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if have[key] != want[key] {
			return fmt.Sprintf("fresh: %s: it has %s, a plugin that starts now %s", key, have[key], want[key])
		}
		delete(have, key)
	}
	if len(have) > 0 {
		return fmt.Sprintf("fresh: a plugin that starts now does not have %v", have)
	}
	return ""
}

// determined reports whether the allocations follow from the state file: a plugin that starts places what an earlier one found
// no room for and left unpinned.
func (w *world) determined() bool {
	view := w.View()
	for _, p := range view.Pods {
		for _, c := range p.Containers {
			if view.Config.Static && p.Class == memoryqos.Guaranteed && c.State.Alive() && c.Nodes.Empty() {
				return false
			}
		}
	}
	return true
}

// summary is what two plugins have to agree on.
func (w *world) summary(allocations bool) map[string]string {
	view := w.View()
	all := map[string]string{
		"kubepods": valuesText(above(view, cgroup.LevelKubepods)), "burstable": valuesText(above(view, cgroup.LevelBurstable)),
	}
	for _, p := range view.Pods {
		all[p.Name] = valuesText(p.Values)
		for _, c := range p.Containers {
			if c.State.Alive() {
				key := p.Name + "/" + c.Name
				all[key] = fmt.Sprintf("%s limit %d, request %d, %s, raised %d", c.ID, c.Limit, c.Request, valuesText(c.Values), c.Raised)
				if allocations {
					all[key] += fmt.Sprintf(", nodes %s, short %s", c.Nodes, c.PendingResize)
				}
			}
		}
	}
	if !allocations {
		return all
	}
	state, _ := w.ledger.Allocations()
	for _, entry := range state.Entries {
		all["allocation of "+entry.Pod+"/"+entry.Container] = fmt.Sprint(entry.Blocks)
	}
	for _, n := range view.Nodes {
		all[fmt.Sprint("node ", n.ID)] = fmt.Sprint(n.Memory)
	}
	return all
}

func valuesText(v memoryqos.Values) string {
	return fmt.Sprintf("min %s low %s high %s", text(v.Min), text(v.Low), text(v.High))
}

// checkRunning compares the plugin's pods and containers with the runtime's.
func (w *world) checkRunning(view *View) string {
	run := map[string]bool{}
	for _, p := range w.host.pods {
		if p.stopped {
			continue
		}
		run[p.Name] = true
		for _, c := range p.containers {
			if c.State.Alive() {
				run[c.ID] = true
			}
		}
	}
	for _, p := range view.Pods {
		all := []string{p.Name}
		for _, c := range p.Containers {
			if c.State.Alive() {
				all = append(all, c.ID)
			}
		}
		for _, id := range all {
			if !run[id] {
				return id + " has ended, and the plugin has it"
			}
			delete(run, id)
		}
	}
	if len(run) > 0 {
		return fmt.Sprintf("the plugin does not have %v", slices.Sorted(maps.Keys(run)))
	}
	return ""
}

// checkFiles compares the files with what is desired.
func (w *world) checkFiles(view *View) string {
	top := "kubepods"
	burstable := "kubepods/burstable"
	if w.host.systemd != nil {
		top, burstable = "kubepods.slice", "kubepods.slice/kubepods-burstable.slice"
	}
	var problems []string
	for dir, values := range map[string]memoryqos.Values{top: above(view, cgroup.LevelKubepods), burstable: above(view, cgroup.LevelBurstable)} {
		// A plugin that starts knows the parents of pods with values only: what an earlier run left above no others stays.
		if !w.restarted || values != (memoryqos.Values{}) {
			problems = append(problems, w.checkValues(dir, values))
		}
	}
	for _, p := range view.Pods {
		problems = append(problems, w.checkValues(p.Cgroup, p.Values))
		for _, c := range p.Containers {
			if !c.State.Alive() {
				continue
			}
			values := c.Values
			if values.High != nil && c.Raised > *values.High {
				values.High = &c.Raised
			}
			leaves := []string{c.Cgroup}
			if w.setup.inner {
				leaves = append(leaves, c.Cgroup+"/container")
			}
			for _, leaf := range leaves {
				problems = append(problems, w.checkValues(leaf, values))
				mems := w.host.read(leaf, "cpuset.mems")
				free := c.Nodes.Empty() && (mems == "" || mems == "0-1")
				if mems != c.Nodes.String() && !free {
					problems = append(problems, fmt.Sprintf("%s/cpuset.mems is %q, desired is %q", leaf, mems, c.Nodes))
				}
			}
		}
	}
	return strings.Join(slices.DeleteFunc(problems, func(p string) bool { return p == "" }), "; ")
}

func (w *world) checkValues(dir string, values memoryqos.Values) string {
	var problems []string
	for file, desired := range map[string]*uint64{"memory.min": values.Min, "memory.low": values.Low, "memory.high": values.High} {
		shows := w.host.read(dir, file)
		bytes, err := cgroup.ParseLimit([]byte(shows))
		must(err)
		switch {
		case desired != nil && memoryqos.Holds(bytes, *desired, uint64(w.ground.machine.PageSize)):
		case desired == nil && (shows == cgroup.Default(file) || w.host.foreign[dir+"/"+file]):
		default:
			problems = append(problems, fmt.Sprintf("%s/%s is %s, desired is %s", dir, file, shows, text(desired)))
		}
	}
	return strings.Join(problems, "; ")
}

// checkAllocations compares the node map with the allocations, and these with the containers.
func (w *world) checkAllocations(view *View) string {
	state, ok := w.ledger.Allocations()
	if !ok {
		return ""
	}
	allocated, problem := allocations(state)
	if problem != "" {
		return problem
	}
	for _, p := range view.Pods {
		for _, c := range p.Containers {
			blocks := allocated[p.UID+"/"+c.Name]
			delete(allocated, p.UID+"/"+c.Name)
			if !c.State.Alive() || len(blocks) == 0 || p.Blocks != nil { // parts of the pod's are no allocations of their own
				continue
			}
			asked := c.Limit
			if len(c.PendingResize) > 0 {
				asked -= c.PendingResize[0].Bytes
			}
			if blocks[0].Size != asked {
				return fmt.Sprintf("%s of %s has %d allocated, short of %s, and a limit of %d", c.Name, p.Name, blocks[0].Size, c.PendingResize, c.Limit)
			}
		}
	}
	for _, p := range w.host.pods {
		for _, c := range p.spec { // one that has ended waits for its next start
			if !p.stopped {
				delete(allocated, p.UID+"/"+c.Name)
			}
		}
	}
	if len(allocated) > 0 {
		return fmt.Sprintf("allocations of no container: %v", allocated)
	}
	return ""
}

// checkLeft looks for what is kept of pods and containers that have ended.
func (w *world) checkLeft(view *View) string {
	var left []string
	// After a restart the journal gives a cgroup that it has not seen an hour to come, by a clock that is not the test's.
	if w.journal != nil && !w.restarted {
		for _, e := range w.journal.Entries() {
			if !w.host.Exists(e.Cgroup) {
				left = append(left, fmt.Sprintf("journal entry %+v", e))
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.outbox.sync) + len(w.outbox.unasked) + len(w.outbox.targets) + len(w.outbox.ended); n > 0 || w.outbox.all || w.sending {
		left = append(left, fmt.Sprintf("work %+v", w.outbox))
	}
	for uid := range w.outbox.tickets {
		// Those of a policy Static that is no longer in force are kept until it is again.
		if view.Config.Static && !slices.ContainsFunc(view.Pods, func(p *PodView) bool { return p.UID == uid }) {
			left = append(left, "ticket of pod "+uid)
		}
	}
	if raises := w.ledger.Raises(); len(raises) > 0 {
		for id := range raises {
			if w.host.find(id) == nil {
				left = append(left, "raise of "+id)
			}
		}
	}
	return strings.Join(left, "; ")
}

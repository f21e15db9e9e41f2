package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

const (
	mi = uint64(1) << 20
	gi = uint64(1) << 30
)

// twoNodes is a machine with two equal NUMA nodes.
const twoNodes = `
nodes:
  - {id: 0, memory: 16Gi, cpus: 0-7, hugepages: {2Mi: 512}, distances: [10, 21]}
  - {id: 1, memory: 16Gi, cpus: 8-15, hugepages: {2Mi: 512}, distances: [21, 10]}
`

// node is a machine with cgroups, a state folder and an agent that can be restarted.
type node struct {
	testing.TB
	*Agent
	*Session    // with the runtime that was connected last
	root, state string
	config      config.Config
	machine     machine.Machine
	sysfs       string // empty has none
	providers   []podinfo.Provider
	log         *logBuffer
	clock       *clock
	runtime     Runtime
	apply       func(context.Context, []Update) error
	onWrite     func(cgroupfs.Write)
	onOpen      func(cgroup, file string) error
	check       time.Duration // Options.CheckPeriod
	timeout     time.Duration // Options.RequestTimeout
	watches     bool          // other writers are noticed at once
	watcher     *cgroupfs.Watcher
	units       protect.Units // nil has no systemd
	devices     Devices       // nil finds none
}

// logBuffer keeps the log of a test.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	off  bool
	gate atomic.Pointer[chan struct{}] // a write waits until it is closed
	held atomic.Bool                   // one does
}

func (l *logBuffer) discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.off = true
}

// block has every write wait until unblock.
func (l *logBuffer) block() (unblock func()) {
	gate := make(chan struct{})
	l.gate.Store(&gate)
	return func() { close(gate) }
}

// stuck reports whether a write waits.
func (l *logBuffer) stuck() bool { return l.held.Load() }

func (l *logBuffer) Write(p []byte) (int, error) {
	if gate := l.gate.Load(); gate != nil {
		l.held.Store(true)
		<-*gate
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.off {
		return len(p), nil
	}
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// clock is a clock that a test can move on.
type clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// newNode starts an agent on a new machine. yaml is its configuration, laid over one with 1Gi reserved.
func newNode(t testing.TB, yaml string, options ...func(*node)) *node {
	t.Helper()
	n := &node{
		TB: t, root: t.TempDir(), state: filepath.Join(t.TempDir(), "state"), config: parseConfig(t, yaml),
		log: &logBuffer{}, clock: &clock{}, runtime: Runtime{Name: "containerd", Version: "v2.4.2", NRIVersion: "0.12.3", ReplyUnified: true},
	}
	n.machine = parseMachine(t, twoNodes)
	for _, option := range options {
		option(n)
	}
	n.start()
	t.Cleanup(n.stop)
	return n
}

func parseMachine(t testing.TB, yaml string) machine.Machine {
	t.Helper()
	described, err := machine.Describe("machine", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return described.Machine
}

func parseConfig(t testing.TB, yaml string) config.Config {
	t.Helper()
	if !strings.Contains(yaml, "reservedMemory:") {
		yaml = "reservedMemory: 0:memory=512Mi;1:memory=512Mi\nkubeReserved: {memory: 924Mi}\n" + yaml
	}
	c, err := config.Files(nil).Parse("config", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// noDescriptorFor fails to open a file of any cgroup.
func noDescriptorFor(unopened string) func(cgroup, file string) error {
	return func(_, file string) error {
		if file == unopened {
			return unix.EMFILE
		}
		return nil
	}
}

// start makes the agent and connects it to a runtime without pods.
func (n *node) start() {
	n.Helper()
	tree, err := cgroupfs.Open(n.root, cgroupfs.Plain(), cgroupfs.OnWrite(func(w cgroupfs.Write) {
		if n.onWrite != nil {
			n.onWrite(w)
		}
	}), cgroupfs.OnOpen(func(cgroup, file string) error {
		if n.onOpen != nil {
			return n.onOpen(cgroup, file)
		}
		return nil
	}))
	if err != nil {
		n.Fatal(err)
	}
	n.watcher = nil
	if n.watches {
		if n.watcher, err = cgroupfs.NewWatcher(tree); err != nil {
			n.Fatal(err)
		}
		watcher := n.watcher
		n.Cleanup(func() { watcher.Close() })
	}
	log := logrus.New()
	log.SetOutput(io.MultiWriter(n.log))
	log.SetLevel(logrus.DebugLevel)
	log.SetFormatter(&logrus.TextFormatter{DisableColors: true, DisableTimestamp: true})
	var prepared []claims.Claim // by the agent before
	if n.Agent != nil {
		prepared = n.View().Claims
	}
	n.Agent, err = New(Options{
		Config: n.config, CheckPeriod: n.check, RequestTimeout: n.timeout, Machine: n.machine, Sysfs: n.sysfs, StateDir: n.state, Tree: tree, Providers: n.providers, Devices: n.devices,
		Watcher: n.watcher, Units: n.units, Log: log, Now: n.clock.now, Claims: func() []claims.Claim { return prepared },
	})
	if err != nil {
		n.Fatal(err)
	}
	n.Connected(n.runtime, n.apply)
}

// Connected begins a session, and ends the one before.
func (n *node) Connected(runtime Runtime, apply func(context.Context, []Update) error) {
	n.Session = n.Agent.Connected(runtime, apply)
}

// stop ends the agent properly; kill forgets it as SIGKILL would.
func (n *node) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		n.Log("close:", err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	n.requests.Run(ended) // closes its file, also where the test did not start Run
}

// work does what Run and the protector's own loop do after an event, reconcile what they do every period.
func (n *node) work(ctx context.Context) {
	n.Helper()
	n.Agent.work(ctx)
	if err := n.protector.WriteLate(ctx); err != nil {
		n.Log("finish:", err)
	}
}

func (n *node) reconcile(ctx context.Context) {
	n.Helper()
	n.Agent.reconcile(ctx)
	if _, err := n.protector.Reconcile(ctx); err != nil {
		n.Log("reconcile:", err)
	}
	if err := n.protector.WriteLate(ctx); err != nil {
		n.Log("finish:", err)
	}
}

// sync is Synchronize with what a test says the runtime has.
func (n *node) sync(pods []Pod, containers []Container) []Update {
	n.Helper()
	updates, err := n.Synchronize(context.Background(), pods, containers)
	if err != nil {
		n.Fatal(err)
	}
	return updates
}

// pod makes a pod and its cgroup.
func (n *node) pod(name string, class memoryqos.QOSClass) Pod {
	n.Helper()
	uid := name + "-uid"
	parent := "/kubepods/" + strings.ToLower(string(class)) + "/pod" + uid
	if class == memoryqos.Guaranteed {
		parent = "/kubepods/pod" + uid
	}
	n.mkdir(parent)
	return Pod{ID: name + "-sandbox", UID: uid, Namespace: "default", Name: name, CgroupParent: parent}
}

// ofPod makes a container of a pod, with a limit in bytes (0: none). A Burstable one has the oom_score_adj of a container without a
// request.
func ofPod(p Pod, name string, limit uint64) Container {
	c := Container{ID: p.Name + "-" + name, PodID: p.ID, Name: name, State: Unknown}
	c.CgroupsPath = p.CgroupParent + "/" + c.ID
	if limit > 0 {
		value := int64(limit)
		c.Resources.MemoryLimit = &value
	}
	if strings.Contains(p.CgroupParent, "burstable") {
		score := int64(999)
		c.Resources.OOMScoreAdj = &score
	}
	return c
}

// run makes a container's cgroup and has it run, as a runtime that has applied the adjustment.
func (n *node) run(p Pod, c Container, adjustment Adjustment) Container {
	n.Helper()
	n.mkdir(c.CgroupsPath)
	n.write(c.CgroupsPath, adjustment)
	c.State = Running
	c.Resources = with(c.Resources, adjustment)
	if err := n.StartContainer(context.Background(), p, c); err != nil {
		n.Fatal(err)
	}
	return c
}

func (n *node) cgroups() cgroups.Folder { return cgroups.Folder(n.root) }

func (n *node) mkdir(dir string) {
	n.Helper()
	n.must(n.cgroups().Make(dir))
}

// endPod ends a pod as a kubelet does, which removes its cgroup once the sandbox has stopped.
func (n *node) endPod(ctx context.Context, p Pod) error {
	n.Helper()
	err := n.StopPodSandbox(ctx, p)
	n.rmdir(p.CgroupParent)
	n.endGone(n.ending())
	n.protect(ctx)
	return err
}

func (n *node) rmdir(dir string) {
	n.Helper()
	n.must(n.cgroups().Remove(dir))
}

func (n *node) write(dir string, adjustment Adjustment) {
	n.Helper()
	for file, text := range adjustment.Unified {
		n.writeFile(dir, file, text)
	}
	if adjustment.CpusetMems != "" {
		n.writeFile(dir, "cpuset.mems", adjustment.CpusetMems)
	}
}

func (n *node) writeFile(dir, file, text string) {
	n.Helper()
	n.must(n.cgroups().Write(dir, file, text))
}

// file is what a cgroup file holds, "" when it was never written.
func (n *node) file(dir, name string) string {
	n.Helper()
	text, err := n.cgroups().Read(dir, name)
	n.must(err)
	return text
}

// create creates a container and fails the test when it is refused.
func (n *node) create(p Pod, c Container) Adjustment {
	n.Helper()
	adjustment, err := n.CreateContainer(context.Background(), p, c)
	if err != nil {
		n.Fatal(err)
	}
	n.work(context.Background()) // as Run does meanwhile
	return adjustment
}

// launch creates a container and has it run.
func (n *node) launch(p Pod, c Container) Container {
	n.Helper()
	return n.run(p, c, n.create(p, c))
}

// view is a pod's view.
func (n *node) podView(p Pod) *PodView {
	n.Helper()
	for _, view := range n.View().Pods {
		if view.UID == p.UID {
			return view
		}
	}
	n.Fatalf("no pod %s in the view", p.Name)
	return nil
}

func (n *node) containerView(p Pod, name string) ContainerView {
	n.Helper()
	for _, view := range n.podView(p).Containers {
		if view.Name == name {
			return view
		}
	}
	n.Fatalf("no container %s of pod %s in the view", name, p.Name)
	return ContainerView{}
}

// allocated is what each node has allocated, in Mi, for example "3072 0".
func (n *node) allocated() string {
	n.Helper()
	var all []string
	for _, node := range n.View().Nodes {
		for _, table := range node.Memory {
			if table.Type == "memory" {
				all = append(all, strconv.FormatUint(table.Reserved/mi, 10))
			}
		}
	}
	return strings.Join(all, " ")
}

func (n *node) want(what, got, want string) {
	n.Helper()
	if got != want {
		n.Errorf("%s is %q, want %q", what, got, want)
	}
}

func bytesOf(n uint64) string { return strconv.FormatUint(n, 10) }

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("not so within a minute: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func limit(bytes int64) *int64 { return &bytes }

// above are the values of a parent of the pods; empty for one without pods.
func above(view *View, level string) memoryqos.Values {
	for _, a := range view.Ancestors {
		if a.Level == level {
			return a.Values
		}
	}
	return memoryqos.Values{}
}

func text(v *uint64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}

// blocks are the NUMA nodes on which a container has an allocation.
func (n *node) blocks(pod, container string) (nodes nodeset.Set) {
	for _, p := range n.View().Pods {
		for _, c := range p.Containers {
			if p.Name == pod && c.Name == container {
				for _, b := range c.Blocks {
					nodes = nodes.Union(b.Nodes)
				}
			}
		}
	}
	return nodes
}

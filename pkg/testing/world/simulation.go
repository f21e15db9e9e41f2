package world

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/systemd"
)

// Place is what one life of the daemon reaches of the node.
type Place struct {
	Kernel    cgroupfs.Kernel
	Proc, Sys string // folders
	StateDir  string
	Config    string          // path of the configuration file
	Reread    <-chan struct{} // the configuration file is to be read again
	Providers []podinfo.Provider
	Units     protect.Units // nil where there is no systemd
	Dial      func(ctx context.Context) (net.Conn, error)
	Listen    func(path string) (net.Listener, error) // makes the socket that status and metrics are served on, or the driver's for claims
	API       http.RoundTripper                       // to the API server; nil where there is none
	CDI       string                                  // folder of the runtime's CDI specifications
}

// Start makes a daemon; what it returns runs it until ctx ends.
type Start func(ctx context.Context, at Place) (run func(ctx context.Context) error, err error)

// simulation is a run.
type simulation struct {
	scenario         Scenario
	folder           string
	start            Start
	began            time.Time
	kernel           *Kernel
	units            *systemd.Units // nil where the kubelet uses cgroupfs
	runtime          *ContainerRuntime
	kubelet          *Kubelet
	trouble          *trouble
	config           string                // the configuration file's text
	placed           time.Time             // since when containers that were created were placed with this configuration
	absences         []span                // except containers that were created in one of these times
	said             map[verdict]time.Time // when the file was seen to have it
	turns            []turn                // of the file, each time that it was written
	full             time.Time             // when the node had little more to give
	findings         map[finding]time.Time // since when
	judgedContainers map[string]bool       // by ID: whose files were compared
	scored           map[string]bool       // by ID: whose oom_score_adj was compared
	read             struct {              // the configuration file as read last
		text     string
		settings *settings
	}
	allocated struct { // the state file
		lastRead
		file stateFile
	}
	written struct { // the file of verdicts
		lastRead
		verdicts []verdict
	}
	nodes   map[string]int // by pod UID/container: the NUMA nodes of its allocation, when it was seen first
	under   allocatedUnder
	inits   map[string]heldByInits // by pod UID
	claimed map[string]int         // by container ID: the NUMA nodes of what ran on its claims when the last life ended that was their driver
	claims  time.Time              // when a life ended that was not
	summed  []byte                 // the state file that was added up last
	repairs map[repair]uint64      // of what others have changed
	raises  map[string]*raise      // by container ID
	raised  map[*life]*raised
	flipped map[string]bool // cgroups whose memory.oom.group another writer has changed
	back    bool            // the daemon is rolled back
	waited  []time.Time     // when the events came that were the first to wait for a file of the disk that hangs now, the last one first

	lives  []*life
	reads  uint64             // of the last life when the oracles looked last
	caches []map[string]Cache // of the last minute, by cgroup
	enough time.Time          // when the kubelet was last not about to evict

	judging sync.Mutex // held while the oracles look, which takes no virtual time

	mu       sync.Mutex // guards lives, config, report, changed and unsynced
	report   Report
	changed  time.Time // when a file of a state folder has begun to change
	unsynced unsynced
}

// life is one process of the daemon.
type life struct {
	port       *Port
	admin      *admin
	driver     *driverSocket
	written    map[string]int // how often, by CGROUP/FILE, while it starts beside what is right
	reclaims   uint64         // writes of memory.reclaim
	state      string         // its state folder
	reread     chan struct{}
	ctx        context.Context
	cancel     context.CancelFunc
	ended      chan error
	killed     atomic.Bool
	goroutines int // before the first pod
	since      time.Time
}

// After the last fault nothing happens for so long, which is more than a kubelet's longest pause. Then all must be right.
const quietTime = 11 * time.Minute

// A cgroup that was announced and that nobody has seen is kept in the journal for an hour, and then dropped.
const journalTime = 70 * time.Minute

// slowest is more than the runtime takes between two requests for a container.
const slowest = 10 * time.Second

// client-go's second handler waits until a millisecond after the last error: 27 years on a clock that begins in the year 2000.
func init() { utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] }

// Simulate runs a scenario in virtual time. folder is in memory, and empty.
func Simulate(t *testing.T, s Scenario, folder string, start Start) (report *Report) {
	var seconds atomic.Int64
	done := make(chan struct{})
	defer close(done)
	go awaitProgress(&seconds, s, done)
	synctest.Test(t, func(*testing.T) {
		n := &simulation{scenario: s, folder: folder, start: start, config: s.Config, trouble: newTrouble(), said: map[verdict]time.Time{}, judgedContainers: map[string]bool{}, scored: map[string]bool{},
			inits:   map[string]heldByInits{},
			repairs: map[repair]uint64{}, raises: map[string]*raise{}, raised: map[*life]*raised{}, flipped: map[string]bool{}, unsynced: unsynced{map[string]time.Time{}, map[string]time.Time{}, map[string]time.Time{}}}
		n.run(&seconds)
		report = &n.report
	})
	return report
}

// awaitProgress ends the test where virtual time stands: a goroutine waits for a lock whose holder waits for the kernel, a disk or the network.
func awaitProgress(seconds *atomic.Int64, s Scenario, done <-chan struct{}) {
	for last := int64(-1); ; {
		select {
		case <-done:
			return
		case <-time.After(time.Minute):
		}
		now := seconds.Load()
		if now == last {
			panic(fmt.Sprintf("virtual time stands at %ds: somebody waits for a lock that is held over I/O, or for something outside of the simulation\n%s\n%s",
				now, s, blocked()))
		}
		last = now
	}
}

// blocked are the goroutines that wait for locks, and those that wait in what is modelled.
func blocked() string {
	stacks := make([]byte, 1<<24)
	stacks = stacks[:runtime.Stack(stacks, true)]
	var those []string
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		head, _, _ := strings.Cut(stack, "\n")
		if strings.Contains(head, "synctest bubble") && !strings.Contains(head, "durable") || strings.Contains(stack, "/faults.go:") {
			those = append(those, stack)
		}
	}
	return strings.Join(those, "\n\n")
}

// String is the scenario as JSON, which -scenario reads.
func (s Scenario) String() string {
	text, err := json.Marshal(s)
	must(err)
	return string(text)
}

func (n *simulation) run(seconds *atomic.Int64) {
	n.began = time.Now()
	n.placed = n.began
	n.kernel = NewKernel(n.scenario.Machine, n.folder)
	processes := processes(n.kernel)
	if n.scenario.Machine.Systemd {
		managed := newManaged(n.kernel)
		n.units, processes = managed.units, managed
	}
	n.runtime = NewRuntime(processes, n.scenario.Runtime, n.scenario.Machine.Systemd)
	if n.units != nil {
		n.runtime.record.Applied = n.units.Applied
	}
	n.kubelet = NewKubelet(processes, n.runtime, n.scenario)
	if n.scenario.APIServer != "" || n.scenario.hasClaims() {
		n.kubelet.server = newAPIServer(n.trouble, n.scenario.APIServer == "lists")
		defer n.kubelet.server.server.Close()
	}
	n.runtime.answered = n.answered
	n.runtime.asked = func(pod *api.PodSandbox, c *api.Container) { n.judge(func() { n.takesOver(pod, c) }) }
	n.runtime.created = func(pod *api.PodSandbox, c *api.Container) {
		n.judge(func() { n.created(pod, c); n.initCreated(pod, c) })
	}
	n.runtime.refused = func(pod *api.PodSandbox, c *api.Container, reason error) {
		n.judge(func() { n.refused(pod, c, reason) })
	}
	n.runtime.applies = n.updateAnswered
	n.runtime.fails, n.runtime.cdi = n.trouble.failing, func() string { return n.current().cdi() }
	n.kubelet.driver, n.kubelet.answered = func(ctx context.Context) (net.Conn, error) { return n.current().dialDriver(ctx, n.trouble) }, func(began time.Time, claim heldClaim, err error) {
		n.judge(func() { n.prepareAnswered(began, claim, err) })
	}
	defer func(before func(call, path string, data []byte) error) { durable.Before = before }(durable.Before)
	durable.Before = n.disk
	world, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { n.tick(world, seconds) })
	n.begin()
	time.Sleep(10 * time.Second)
	n.current().goroutines = runtime.NumGoroutine()
	pods, endPods := context.WithCancel(world)
	group.Go(func() { n.kubelet.Run(pods) })
	for _, f := range slices.SortedFunc(slices.Values(n.scenario.Faults), func(a, b Fault) int { return int(a.At - b.At) }) {
		time.Sleep(time.Until(n.began.Add(time.Duration(f.At))))
		n.fault(f)
	}
	time.Sleep(time.Until(n.began.Add(time.Duration(n.scenario.Length))))
	time.Sleep(n.trouble.longest())
	n.kubelet.Quiet()
	n.kernel.Calm()
	time.Sleep(quietTime)
	n.judge(n.quiet)
	n.judge(n.claimsPublished)
	n.asShown()
	n.rollsBack()
	n.startsAgain()
	for _, p := range n.kubelet.EndPods() {
		n.broken(podsEnd, "%s has not, with claims %v", p.Name, p.Claims)
	}
	endPods()
	time.Sleep(time.Minute)
	n.judge(n.nothingLeft)
	n.claimsGone()
	time.Sleep(journalTime)
	n.judge(n.journalEmpty)
	n.judge(n.podsForgotten)
	n.readsAgain()
	n.current().cancel()
	if err := <-n.current().ended; err != nil {
		n.broken(nothingLeft, "the daemon ends with %v", err)
	}
	n.runtime.Disconnect()
	stop()
	group.Wait()
	n.report.Virtual = time.Since(n.began)
	n.report.Pods, n.report.Kills = len(n.scenario.Pods), len(n.kernel.Kills())
	calls := n.runtime.Calls()
	n.report.Creates, n.report.Refused = calls.Count["CreateContainer"], len(calls.Refused)
	time.Sleep(time.Minute) // what is left of lives that were killed ends
	synctest.Wait()
}

// tick has a second of the node pass, each second.
func (n *simulation) tick(ctx context.Context, seconds *atomic.Int64) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var second, judged time.Time
	pace := time.Second
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			seconds.Add(1)
			n.kernel.Tick(now)
			if now.Sub(second) >= time.Second {
				second = now
				n.judge(n.inTime)
			}
			if now.Sub(judged) >= 5*time.Second {
				judged = now
				n.judge(n.always)
			}
			if next := n.kernel.Pace(); next != pace {
				pace = next
				ticker.Reset(pace)
			}
		}
	}
}

// placedLater gives placements a minute after a change of what is asked for.
func (n *simulation) placedLater() {
	n.judge(func() { n.placed = time.Now().Add(time.Minute) })
}

// absent gives the placements of what is created while something goes wrong, which lasts for so long from now on, a minute after that. What was
// created before keeps its own.
func (n *simulation) absent(from time.Time, length time.Duration) {
	n.judge(func() {
		n.absences = append(n.absences, span{from: from.Add(-slowest), to: time.Now().Add(length + time.Minute)})
	})
}

// seesPlaced reports whether a container that was created at a time was to be placed as the configuration has it.
func (n *simulation) seesPlaced(created time.Time) bool {
	return !created.Before(n.placed) && !slices.ContainsFunc(n.absences, func(s span) bool { return created.After(s.from) && created.Before(s.to) })
}

// allPlaced is since when every container that was created was to be placed as the configuration has it.
func (n *simulation) allPlaced() time.Time {
	since := n.placed
	for _, s := range n.absences {
		since = latest(since, s.to)
	}
	return since
}

// judge has oracles look: one after the other.
func (n *simulation) judge(oracles func()) {
	n.judging.Lock()
	defer n.judging.Unlock()
	oracles()
}

// current is the last life of the daemon; nil before the first.
func (n *simulation) current() *life {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.lives) == 0 {
		return nil
	}
	return n.lives[len(n.lives)-1]
}

// begin starts a life of the daemon on what the one before has left.
func (n *simulation) begin() {
	state := filepath.Join(n.folder, fmt.Sprintf("state%d", len(n.lives)))
	if before := n.current(); before != nil {
		must(os.CopyFS(state, os.DirFS(before.state)))
		keepTimes(before.state, state)
	} else {
		must(os.MkdirAll(state, 0o700))
	}
	l := n.life(state)
	n.live(l)
	l.run(<-n.daemon(l))
}

// replace starts a daemon that waits for the state folder of another, which ends after a while, once it can write: what is left of one that waits
// for a disk does not end with its process here, and would keep the folder.
func (n *simulation) replace(length time.Duration) {
	l := n.life(n.current().state)
	started := n.daemon(l)
	time.Sleep(max(length, n.trouble.left(DiskHangs), n.trouble.left(DaemonFrozen)))
	n.end(false)
	n.live(l)
	l.run(<-started)
}

// life is what one of the daemon begins with.
func (n *simulation) life(state string) *life {
	l := &life{admin: newAdmin(), driver: &driverSocket{admin: newAdmin()}, written: map[string]int{}, state: state, reread: make(chan struct{}, 1), ended: make(chan error, 1), since: time.Now()}
	l.port = n.kernel.Port(writing{asking{n.trouble, n}, n, l})
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if before := n.current(); before != nil {
		l.goroutines = before.goroutines
	}
	return l
}

// live makes a life the current one.
func (n *simulation) live(l *life) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lives = append(n.lives, l)
}

// run serves until the life ends.
func (l *life) run(run func(context.Context) error) { go func() { l.ended <- run(l.ctx) }() }

// daemon makes the daemon of a life, which first waits for its state folder.
func (n *simulation) daemon(l *life) <-chan func(context.Context) error {
	config := filepath.Join(n.folder, "config.yaml")
	must(os.WriteFile(config, []byte(n.config), 0o600))
	place := Place{
		Kernel: l.port, Proc: filepath.Join(n.folder, "proc"), Sys: filepath.Join(n.folder, "sys"), StateDir: l.state, Config: config, Reread: l.reread,
		Providers: []podinfo.Provider{n.kubelet.Provider()}, Listen: l.listen, CDI: l.cdi(),
		Dial: func(ctx context.Context) (net.Conn, error) {
			if l.killed.Load() {
				return nil, ErrKilled
			}
			return n.runtime.Dial(ctx)
		},
	}
	if server := n.kubelet.server; server != nil {
		place.API = server.transport(l)
		if n.scenario.APIServer != "" {
			place.Providers = []podinfo.Provider{server.Provider(place.API)}
		}
	}
	if n.units != nil {
		place.Units = unitsOf{n, l}
	}
	made := make(chan func(context.Context) error, 1)
	go func() {
		run, err := n.start(l.ctx, place)
		must(err)
		made <- run
	}()
	return made
}

// keepTimes gives copies the times of the files. One that was written and not touched yet has the machine's time, and gets that of now.
func keepTimes(from, to string) {
	files, err := os.ReadDir(from)
	must(err)
	for _, file := range files {
		if info, err := file.Info(); err == nil {
			at := info.ModTime()
			if now := time.Now(); at.After(now) {
				at = now
			}
			must(os.Chtimes(filepath.Join(to, file.Name()), at, at))
		}
	}
}

// end ends a life: by SIGTERM, or at once.
func (n *simulation) end(kill bool) {
	n.judge(n.noteClaimed)
	configured := n.runtime.configuring.hold()
	if kill {
		n.current().killed.Store(true)
		n.current().port.Kill()
		n.runtime.Disconnect()
		if n.kubelet.server != nil {
			n.kubelet.server.disconnect()
		}
	}
	n.current().cancel()
	configured()
	if !kill {
		began := time.Now()
		<-n.current().ended
		if took := time.Since(began); took > 30*time.Second { // terminationGracePeriodSeconds
			n.broken(endsSoon, "it took %s", took)
		}
	}
}

// disk comes before each system call that changes a file.
func (n *simulation) disk(call, path string, _ []byte) error {
	n.mu.Lock()
	lives := n.lives
	n.mu.Unlock()
	began := time.Now()
	for _, l := range lives {
		if strings.HasPrefix(path, l.state+"/") || path == l.state {
			if l.killed.Load() {
				return ErrKilled
			}
			if err := n.trouble.disk(call, filepath.Base(path)); err != nil {
				return err
			}
			if l.killed.Load() {
				return ErrKilled
			}
			n.mu.Lock()
			n.changed = time.Now()
			n.unsynced.changes(call, path, began)
			n.mu.Unlock()
		}
	}
	return nil
}

// fault has something go wrong.
func (n *simulation) fault(f Fault) {
	n.trouble.begin(f)
	began, length := time.Now(), time.Duration(f.Length)
	switch f.Kind {
	case PodAPISilent:
		n.kubelet.Silence(true)
		n.whileSilent(length)
		time.AfterFunc(length, func() { n.kubelet.Silence(n.trouble.left(PodAPISilent) > 0) })
	case DaemonKilled, DaemonEnds:
		n.end(f.Kind == DaemonKilled)
		time.Sleep(length)
		n.begin()
		n.trouble.lasted(f.Kind)
		n.absent(began, 0)
	case DaemonReplaced:
		n.replace(length)
		n.trouble.lasted(f.Kind)
		n.absent(began, 0)
	case DaemonFrozen:
		n.runtime.Freeze(true)
		time.AfterFunc(length, func() { n.runtime.Freeze(n.trouble.left(DaemonFrozen) > 0) })
		n.absent(began, length)
	case RuntimeRestarted:
		go n.runtime.Restart(length)
		n.absent(began, length)
	case NRIAway:
		n.runtime.Unplug(length)
		n.whileUnplugged(length)
		n.absent(began, length)
	case NewConfig:
		n.judge(func() { n.reconfigured(f.Target) })
		n.mu.Lock()
		n.config = f.Target
		n.mu.Unlock()
		must(os.WriteFile(filepath.Join(n.folder, "config.yaml"), []byte(f.Target), 0o600))
		n.current().reread <- struct{}{}
		n.placedLater()
	case ClaimedPodsDeleted:
		n.endClaimed()
	case KubeletRestarted:
		if n.kubelet.server != nil {
			n.kubelet.server.Drop(sliceName)
		}
	case APIAway, APIHangs, APIRefuses, APILags, APIExpires:
		if n.kubelet.server != nil {
			n.whileAway(f.Kind, length)
			n.kubelet.server.fault(f)
		}
	case SystemdHangs, SystemdAway:
		if n.units != nil {
			n.turn()
			time.AfterFunc(length, n.turn)
		}
	case DaemonReload:
		if n.units != nil {
			n.units.Reload()
		}
	case Overwritten:
		for _, cgroup := range n.targets(f) {
			_, how, _ := strings.Cut(f.Target, " ")
			before := n.values(cgroup)
			n.overwrite(cgroup, how)
			n.overwritten(levelOf(f.Target), cgroup, before)
		}
	case Reset:
		for _, cgroup := range n.targets(f) {
			_ = n.kernel.Write(cgroup, "cgroup.subtree_control", "-memory")
			_ = n.kernel.Write(cgroup, "cgroup.subtree_control", "+memory")
		}
	}
}

// overwrite gives a cgroup's files the kernel's defaults, half of what they protect, or half as much again of a limit, as an update does that no
// plugin sees. Where a container's pod says what an OOM kill ends, its memory.oom.group becomes the opposite with the defaults. The cgroup may have
// ended meanwhile.
func (n *simulation) overwrite(cgroup, how string) {
	have, to := n.values(cgroup), map[string]string{"memory.min": "0", "memory.low": "0", "memory.high": "max"}
	switch how {
	case "mems":
		n.mems(cgroup)
		return
	case "halved":
		to = map[string]string{"memory.min": fmt.Sprint(have.min / 2), "memory.low": fmt.Sprint(have.low / 2)}
	case "limit":
		limit, _ := strconv.ParseUint(n.text(cgroup, "memory.max"), 10, 64)
		if to = nil; limit > 0 && have.low > 0 && have.high < noLimit && strings.Contains(cgroup, "burstable") { // it has values that follow from the limit
			to = map[string]string{"memory.max": fmt.Sprint(limit + limit/2)}
		}
	case "":
		if group := n.text(cgroup, "memory.oom.group"); n.saysWhatDies(cgroup) {
			to["memory.oom.group"], n.flipped[cgroup] = map[string]string{"0": "1", "1": "0"}[group], true
		}
	}
	for _, file := range slices.Sorted(maps.Keys(to)) { // in one order, so that a seed is one run
		_ = n.kernel.Write(cgroup, file, to[file])
	}
}

// saysWhatDies reports whether a cgroup is a container's whose pod says what an OOM kill ends. Where a rule may end that, the daemon would bring back
// what it found, which may be what was written here.
func (n *simulation) saysWhatDies(cgroup string) bool {
	for p, c := range n.containers() {
		if c.Cgroup == cgroup {
			return n.settings().wish(p, "oom-group") != "" && !n.scenario.hasRules()
		}
	}
	return false
}

// targets are the cgroups that a fault meets.
func (n *simulation) targets(f Fault) (cgroups []string) {
	level, _, _ := strings.Cut(f.Target, " ")
	for _, p := range n.kubelet.Pods() {
		switch level {
		case "pod":
			cgroups = append(cgroups, p.Cgroup)
		case "container":
			for _, c := range p.Containers {
				cgroups = append(cgroups, c.Cgroup)
			}
		}
	}
	switch level {
	case "kubepods":
		cgroups = []string{n.kubelet.Parent("Guaranteed"), n.kubelet.Parent("Burstable")}
	case "Burstable":
		cgroups = []string{n.kubelet.Parent("Burstable")}
	}
	return cgroups
}

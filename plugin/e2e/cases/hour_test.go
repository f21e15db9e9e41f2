package cases

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// TestHourBesideTheKubelet keeps a node busy for an hour. Pods of random shapes come, are resized,
// crash and go. The plugin, the kubelet and the runtime are killed, the plugin is stopped for a while, systemd is reloaded, the kubelet's own Memory QoS is
// switched on and off, and the disk of the state folder fills up. Meanwhile the kernel's files are compared with what the
// pods' specs promise, and what verify says with both. In the end, every file holds its value, nothing stays allocated, and no OOM kill
// was reported.
func TestHourBesideTheKubelet(t *testing.T) {
	k := kubeletOf(t)
	const duration = time.Hour
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	volume, kills := disk(t, 8*MiB), oomKills(t)
	p := newPlugin(t, "memoryReservationPolicy: TieredReservation", "guaranteedHeadroom: 0", "logLevel: info")
	p.keepStateIn(filepath.Join(volume, "state"))
	p.start()
	p.waitSynchronized(1)

	h := &hour{t: t, k: k, p: p, pods: map[string]*hourPod{}, wrongSince: map[string]time.Time{}, usage: map[string]*processUsage{}}
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var workers sync.WaitGroup
	workers.Go(func() { h.changePods(ctx, rand.New(rand.NewPCG(seed, 1))) })
	workers.Go(func() { h.watch(ctx) })
	h.disturb(ctx, rand.New(rand.NewPCG(seed, 2)), volume)
	workers.Wait()
	if t.Failed() {
		h.report(duration)
		return
	}

	if err := k.Configure(t.Context(), kubelet.Config{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "at rest every file holds its value", func() string {
		var wrong []string
		for _, d := range h.sample() {
			wrong = append(wrong, d.String())
		}
		return strings.Join(wrong, "; ")
	})
	h.report(duration)
	p.noVerdict(t, kills)
	p.stop() // what others wrote stays counted until the plugin starts again
	p.restart()
	p.clean(t)
	if err := k.RemoveAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.waitFree()
}

// hour is the state of the long run.
type hour struct {
	t *testing.T
	k *kubelet.Kubelet
	p *plugin

	mu     sync.Mutex
	pods   map[string]*hourPod
	away   bool // the plugin, for the time of a disturbance
	serial int

	actions, disturbances                map[string]int
	sampled, deviations, repaired, asked int
	wrongSince                           map[string]time.Time
	longest                              time.Duration
	longestOf                            string
	usage                                map[string]*processUsage
	disagreed                            map[disagreement]bool // at the last look
}

// hourPod is a pod of the run.
type hourPod struct {
	*kubelet.Pod
	changing bool // it comes, goes or is resized just now
	crashes  bool
}

// processUsage is what the processes of one program have used.
type processUsage struct {
	cpu  map[int]time.Duration // by process id
	most uint64                // resident bytes
}

// note counts an action or a disturbance.
func (h *hour) note(counts *map[string]int, what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if *counts == nil {
		*counts = map[string]int{}
	}
	(*counts)[what]++
}

// changePods creates, resizes and deletes pods until the time is over. What the kubelet refuses for a while because
// something was killed under it is asked for again.
func (h *hour) changePods(ctx context.Context, random *rand.Rand) {
	const most = 8
	for ctx.Err() == nil && !h.t.Failed() {
		names := slices.Sorted(maps.Keys(h.pods))
		var err error
		switch action := random.IntN(10); {
		case len(names) < 2 || len(names) < most && action < 4:
			err = h.create(random)
		case action < 7:
			err = h.delete(names[random.IntN(len(names))])
		default:
			err = h.resize(names[random.IntN(len(names))], random)
		}
		if err != nil && ctx.Err() == nil { // at the end of the time a pod may be on its way
			h.t.Error(err)
			return
		}
	}
}

func (h *hour) create(random *rand.Rand) error {
	h.serial++
	pod, crashes := randomPod(fmt.Sprint("p", h.serial), random)
	l := &hourPod{Pod: pod, changing: true, crashes: crashes}
	h.mu.Lock()
	h.pods[pod.Name] = l
	h.mu.Unlock()
	kind := "create " + string(pod.Class())
	if crashes {
		kind = "create a pod that crashes"
	}
	h.note(&h.actions, kind)
	if err := h.k.Create(h.t.Context(), pod); err != nil {
		return err
	}
	return h.settle(l, func(ctx context.Context) error {
		if crashes {
			return h.k.WaitCrashed(ctx, pod)
		}
		return h.k.WaitStarted(ctx, pod)
	})
}

func (h *hour) delete(name string) error {
	l := h.take(name)
	h.note(&h.actions, "delete")
	if err := h.settle(l, func(ctx context.Context) error { return h.k.Remove(ctx, l.Pod) }); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pods, name)
	return nil
}

func (h *hour) resize(name string, random *rand.Rand) error {
	l := h.pods[name]
	c := &l.Containers[len(l.Containers)-1]
	if l.crashes || c.Request == 0 || c.Limit == 0 {
		return nil
	}
	l = h.take(name)
	h.note(&h.actions, "resize")
	request := c.Request/2 + random.Uint64N(c.Request)
	limit := request
	if l.Class() != corev1.PodQOSGuaranteed {
		limit = max(request+1, c.Limit)
	}
	if err := h.k.AskResize(h.t.Context(), l.Pod, c.Name, request, limit); err != nil {
		return err
	}
	return h.settle(l, func(ctx context.Context) error { return h.k.WaitResized(ctx, l.Pod, c.Name) })
}

// take marks a pod as changing.
func (h *hour) take(name string) *hourPod {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.pods[name]
	l.changing = true
	return l
}

// settle waits until a change is done, whatever the kubelet says meanwhile, and marks the pod as at rest.
func (h *hour) settle(l *hourPod, wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(h.t.Context(), waitLimit)
	defer cancel()
	for {
		err := wait(ctx)
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l.changing = false
	return nil
}

// randomPod is a pod of any class, with sizes that are no multiples of a page; or one whose container ends at once.
func randomPod(name string, random *rand.Rand) (pod *kubelet.Pod, crashes bool) {
	size := func() uint64 { return 8*MiB + random.Uint64N(40*MiB) }
	app := kubelet.Container{Name: "app", Request: size()}
	switch random.IntN(6) {
	case 0, 1:
		app.Limit = app.Request
	case 2, 3:
		app.Limit = app.Request + size()
	case 4:
		app.Request = 0
	}
	// A container whose start fails because the runtime ends under it is started again.
	pod = &kubelet.Pod{Name: name, Restart: corev1.RestartPolicyAlways, Containers: []kubelet.Container{app}}
	switch random.IntN(8) {
	case 0:
		pod.Containers = append([]kubelet.Container{{Name: "before", Init: true, Request: size(), Limit: 100 * MiB, Args: []string{"exit=0"}}}, pod.Containers...)
	case 1:
		pod.Containers = append([]kubelet.Container{{Name: "beside", Sidecar: true, Request: size(), Limit: 100 * MiB}}, pod.Containers...)
	case 2:
		crashes = true
		pod.Containers[0].Args = []string{"exit=1"}
	}
	return pod, crashes
}

// disturb kills, reloads and fills what the plugin stands on, until the time is over.
func (h *hour) disturb(ctx context.Context, random *rand.Rand, volume string) {
	disturbances := map[string]func(){
		"kill the plugin": func() {
			h.setAway(true)
			h.p.kill()
			time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
			h.p.restart()
			h.setAway(false)
		},
		"stop the plugin": func() { // now and then for longer than the runtime waits
			h.setAway(true)
			h.p.signal(h.t, syscall.SIGSTOP)
			time.Sleep(time.Duration(random.IntN(30000)) * time.Millisecond)
			h.p.signal(h.t, syscall.SIGCONT)
			eventually(h.t, "the plugin is ready after it stood still", func() string {
				_, err := get("http://" + metricsAddress + "/readyz")
				if err != nil {
					return err.Error()
				}
				return ""
			})
			h.setAway(false)
		},
		"kill the kubelet": func() {
			h.k.Kill(syscall.SIGKILL)
			if err := h.k.Start(h.t.Context()); err != nil {
				h.t.Error(err)
			}
		},
		"end the runtime": func() {
			before := strings.Count(h.p.output(), synchronized)
			h.setAway(true)
			restartRuntime(h.t, h.k, "")
			h.p.waitSynchronized(before + 1)
			h.setAway(false)
		},
		"switch the kubelet's Memory QoS": func() {
			states := []kubelet.Config{{}, memoryQoS("None"), memoryQoS("TieredReservation")}
			if err := h.k.Configure(h.t.Context(), states[random.IntN(len(states))]); err != nil {
				h.t.Error(err)
			}
		},
		"fill the disk of the state folder": func() {
			filler := filepath.Join(volume, "filler")
			_ = os.WriteFile(filler, make([]byte, 16*MiB), 0o600)
			time.Sleep(10 * time.Second)
			_ = os.Remove(filler)
		},
	}
	if h.k.Plan.Driver == setup.Systemd {
		disturbances["reload systemd"] = func() {
			if err := reloadSystemd(h.t.Context()); err != nil {
				h.t.Error(err)
			}
		}
	}
	names := slices.Sorted(maps.Keys(disturbances))
	for !h.t.Failed() {
		pause := 5*time.Second + time.Duration(random.IntN(20000))*time.Millisecond
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		name := names[random.IntN(len(names))]
		h.note(&h.disturbances, name)
		disturbances[name]()
	}
}

func reloadSystemd(ctx context.Context) error {
	connection, err := systemd.NewSystemdConnectionContext(ctx)
	if err != nil {
		return fmt.Errorf("connect to systemd: %w", err)
	}
	defer connection.Close()
	if err := connection.ReloadContext(ctx); err != nil {
		return fmt.Errorf("reload systemd: %w", err)
	}
	return nil
}

func (h *hour) setAway(away bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.away = away
}

func (h *hour) isAway() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.away
}

// watch samples the files once a second, and asks verify every fifth time, until the time is over.
func (h *hour) watch(ctx context.Context) {
	for tick := 0; ctx.Err() == nil && !h.t.Failed(); tick++ {
		h.follow(h.sample())
		h.measure()
		if tick%5 == 0 {
			h.compare()
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// follow measures how long a file holds another value than it should.
func (h *hour) follow(wrong map[string]deviation) {
	now := time.Now()
	for what := range wrong {
		if _, known := h.wrongSince[what]; !known {
			h.wrongSince[what] = now
			h.deviations++
		}
	}
	for what, since := range h.wrongSince {
		d, still := wrong[what]
		took := now.Sub(since)
		if still && took > waitLimit {
			h.t.Errorf("not repaired within %v: %v", waitLimit, d)
			return
		}
		if !still {
			delete(h.wrongSince, what)
			h.repaired++
			if took > h.longest {
				h.longest, h.longestOf = took, what
			}
		}
	}
}

// promise is one file and what it must hold.
type promise struct {
	dir, file, want string
	object          string // as verify names it
}

// deviation is a promise that a file does not keep.
type deviation struct {
	promise
	got string
}

func (d deviation) String() string {
	return fmt.Sprintf("%s of %s is %s, want %s", d.file, d.object, d.got, d.want)
}

// less reports whether a file holds less protection than promised, or anything else in the other files.
func (d deviation) less() bool {
	got, err := strconv.ParseUint(d.got, 10, 64)
	want, err2 := strconv.ParseUint(d.want, 10, 64)
	return err != nil || err2 != nil || got < want || d.file == "memory.high"
}

// sample compares the files of all pods at rest with what their specs promise, and returns what is wrong by the file's path.
func (h *hour) sample() map[string]deviation {
	wrong := map[string]deviation{}
	for _, p := range h.promises() {
		got := file(p.dir, p.file)
		if got == "" { // the container or the pod has just gone
			continue
		}
		h.sampled++
		if got != p.want {
			wrong[filepath.Join(p.dir, p.file)] = deviation{p, got}
		}
	}
	if len(wrong) == 0 {
		return wrong
	}
	still := map[promise]bool{}
	for _, p := range h.promises() {
		still[p] = true
	}
	maps.DeleteFunc(wrong, func(_ string, d deviation) bool { return !still[d.promise] }) // what began to change meanwhile
	return wrong
}

// promises are the values of all pods at rest, and of the parent cgroups when nothing changes.
func (h *hour) promises() []promise {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []promise
	state, err := h.p.read()
	if err != nil {
		return nil // it is just being written
	}
	var guaranteed, burstable uint64
	changing := false // the parent cgroups have no one right value then
	for _, l := range h.pods {
		minimum, low := uint64(0), uint64(0)
		switch l.Class() {
		case corev1.PodQOSGuaranteed:
			minimum = l.request()
		case corev1.PodQOSBurstable:
			low = l.request()
		}
		guaranteed, burstable = guaranteed+minimum, burstable+low
		if l.changing {
			changing = true
			continue
		}
		all = append(all, levelPromises(h.k.Dir(l.Pod), minimum, low)...)
		for _, c := range l.Containers {
			if c.Init || l.crashes {
				continue
			}
			dir, err := h.k.ContainerDir(l.Pod, c.Name)
			if err != nil {
				continue // it has just gone
			}
			minimum, low := c.Request, uint64(0)
			if l.Class() != corev1.PodQOSGuaranteed {
				minimum, low = low, minimum
			}
			all = append(all, levelPromises(dir, minimum, low)...)
			object := "default/" + l.Name + "/" + c.Name
			all = append(all, promise{dir, "memory.high", h.high(c), object})
			if nodes := nodesOf(state.Entries[l.UID][c.Name]); nodes != "" {
				all = append(all, promise{dir, "cpuset.mems", nodes, object})
			}
		}
	}
	if !changing {
		all = append(all, levelPromises(h.k.Kubepods(), guaranteed+burstable, burstable)...)
		all = append(all, levelPromises(filepath.Join(kubelet.Root, h.k.Paths.QoS(corev1.PodQOSBurstable)), 0, burstable)...)
	}
	return all
}

// levelPromises are memory.min and memory.low of a cgroup.
func levelPromises(dir string, minimum, low uint64) []promise {
	object := strings.TrimPrefix(dir, kubelet.Root+"/")
	return []promise{{dir, "memory.min", inPages(minimum), object}, {dir, "memory.low", inPages(low), object}}
}

// request is Kubernetes' aggregate: what runs together, or the largest init container beside the sidecars before it.
func (l *hourPod) request() uint64 {
	var together, largest, beside uint64
	for _, c := range l.Containers {
		switch {
		case c.Init:
			largest = max(largest, c.Request+beside)
		case c.Sidecar:
			beside += c.Request
			together += c.Request
		default:
			together += c.Request
		}
	}
	return max(together, largest)
}

// high is memory.high by KEP-2570's formula with the throttling factor 0.9. One that is not more than the request in whole
// pages is not set, by a kubelet neither.
func (h *hour) high(c kubelet.Container) string {
	if c.Limit > 0 && c.Request == c.Limit {
		return "max"
	}
	if c.Limit == 0 {
		return strconv.FormatUint(unlimitedHigh(h.t, c.Request), 10)
	}
	high := wholePages(uint64(math.Floor(float64(c.Request) + float64(c.Limit-c.Request)*0.9)))
	if high <= c.Request {
		return "max"
	}
	return strconv.FormatUint(high, 10)
}

// inPages is how the kernel shows a value that was written to a memory file.
func inPages(bytes uint64) string { return strconv.FormatUint(wholePages(bytes), 10) }

// nodesOf are the NUMA nodes of a container's allocation in the kernel's list format, of at most two nodes.
func nodesOf(blocks []block) string {
	if len(blocks) == 0 {
		return ""
	}
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(blocks[0].Nodes), "[]"), " ", "-")
}

// disagreement is something that verify and the samples beside it see differently.
type disagreement struct{ object, what string }

// compare asks verify between two samples. What both show as too low it must name, and what neither shows it must not. As
// values change between the three looks, only what is seen twice in a row counts.
func (h *hour) compare() {
	if h.isAway() {
		return
	}
	before, promised := h.sample(), h.promises()
	out, _ := h.p.ask("verify", "-o", "json")
	after := h.sample()
	if h.isAway() {
		return
	}
	var report struct{ Findings []finding }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		h.t.Errorf("verify: %v: %s", err, out)
		return
	}
	h.asked++
	named := map[string]string{}
	for _, f := range report.Findings {
		if slices.Contains([]string{"protection", "cpuset", "memory-high"}, f.ID) {
			named[f.Object] = f.What
		}
	}
	now := map[disagreement]bool{}
	wrong := map[string]bool{}
	for key, d := range before {
		wrong[d.object] = true
		if _, still := after[key]; still && d.less() && named[d.object] == "" {
			now[disagreement{d.object, "verify does not name: " + d.String()}] = true
		}
	}
	for _, d := range after {
		wrong[d.object] = true
	}
	for _, p := range promised {
		if what := named[p.object]; what != "" && !wrong[p.object] {
			now[disagreement{p.object, "verify names, and the files do not show: " + what}] = true
		}
	}
	for d := range now {
		if h.disagreed[d] {
			h.t.Errorf("%s: %s", d.object, d.what)
		}
	}
	h.disagreed = now
}

// measure notes CPU time and resident memory of the daemons.
func (h *hour) measure() {
	h.p.mu.Lock()
	plugin := h.p.cmd.Process.Pid
	h.p.mu.Unlock()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		text := file(name)
		id, rest, _ := strings.Cut(text, " (")
		program, rest, _ := strings.Cut(rest, ") ")
		fields := strings.Fields(rest)
		switch pid, err := strconv.Atoi(id); {
		case err != nil || len(fields) < 22:
		case pid == plugin:
			h.add("plugin", pid, fields)
		case program == "kubelet" || program == "containerd":
			h.add(program, pid, fields)
		}
	}
}

// add notes a process' fields from its state on (proc(5), stat): utime and stime in hundredths of a second, rss in pages.
func (h *hour) add(program string, pid int, fields []string) {
	const utime, stime, rss = 11, 12, 21
	u := h.usage[program]
	if u == nil {
		u = &processUsage{cpu: map[int]time.Duration{}}
		h.usage[program] = u
	}
	var ticks [2]int
	for i, field := range []int{utime, stime} {
		ticks[i], _ = strconv.Atoi(fields[field])
	}
	pages, _ := strconv.ParseUint(fields[rss], 10, 64)
	u.cpu[pid] = time.Duration(ticks[0]+ticks[1]) * 10 * time.Millisecond
	u.most = max(u.most, pages*4096)
}

// total is the CPU time of all the program's processes.
func (u *processUsage) total() time.Duration {
	var sum time.Duration
	for _, cpu := range u.cpu {
		sum += cpu
	}
	return sum
}

// report logs what the numbers in docs/testing.md are taken from.
func (h *hour) report(duration time.Duration) {
	var b strings.Builder
	row := func(what string, format string, args ...any) {
		fmt.Fprintf(&b, "| %s | %s |\n", what, fmt.Sprintf(format, args...))
	}
	row("time", "%v", duration)
	for _, counts := range []map[string]int{h.actions, h.disturbances} {
		for _, what := range slices.Sorted(maps.Keys(counts)) {
			row(what, "%d", counts[what])
		}
	}
	row("promises sampled", "%d", h.sampled)
	row("deviations, repaired", "%d, %d", h.deviations, h.repaired)
	row("longest repair", "%v (%s)", h.longest.Round(time.Second), h.longestOf)
	row("verify asked, disagreements", "%d, 0", h.asked)
	for _, program := range slices.Sorted(maps.Keys(h.usage)) {
		u := h.usage[program]
		row(program, "%v of CPU, %d MiB at most", u.total().Round(time.Second), u.most/MiB)
	}
	row("lines in the plugin's log", "%d", strings.Count(file(h.p.log), "\n"))
	h.t.Logf("\n%s", b.String())
}

package cases

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// verdict is what "oom -o json" says of a kill.
type verdict struct {
	Container string
	Kills     uint64
	Whole     bool `json:"wholeContainer"`
	Level     string
	Cause     string
	Itself    bool
	After     string
	Culprit   culprit
}

// culprit is who used most beyond its share, where that is not the victim.
type culprit struct{ Pod, Container string }

// verdicts are those on a pod.
func (p *plugin) verdicts(t *testing.T, pod *kubelet.Pod) (all []verdict) {
	t.Helper()
	out, _ := p.ask("oom", pod.UID, "-o", "json")
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for i := range all {
		if all[i].Itself {
			all[i].Culprit = culprit{}
		}
	}
	return all
}

// kill is a pod of which the kernel kills something, for a reason that is known.
type kill struct {
	name  string
	group string   // the annotation oom-group; process, if it is empty
	args  []string // of container app
	limit uint64   // of container app; 0 makes the pod BestEffort
	// request is of container app, where it is less than its limit.
	request uint64
	// beside is the limit of a second container: without it the pod's limit is that of app, and is hit first.
	beside uint64
	// instead are the steps of the second container, whose process is killed instead of app's. It is in a pod of its own where apart is set.
	instead []string
	apart   bool
	mounts  map[string]string
	whole   *corev1.ResourceRequirements // the pod's own
	// prepare, where set, is done when the pod runs, before the file go.
	prepare func(t *testing.T, k machine, pod *kubelet.Pod)
	lives   bool // PID 1 of app goes on
	away    bool // the plugin is killed before, and started after it
	slow    bool // it fills NUMA nodes
	full    bool // another kill shows its level and its cause, too: with FULL=1
	want    verdict
}

// rewrite has a file of the kernel hold a text for the time of the test.
func rewrite(t *testing.T, text string, parts ...string) {
	t.Helper()
	before := file(parts...)
	write(t, text, parts...)
	t.Cleanup(func() { write(t, before, parts...) })
}

// limitPod, limitKubepods and limitClass leave so many bytes to a pod, and so many more than they use to all pods and to those of its QoS class.
func limitPod(bytes uint64) func(*testing.T, machine, *kubelet.Pod) {
	return func(t *testing.T, k machine, pod *kubelet.Pod) { write(t, fmt.Sprint(bytes), k.Dir(pod), "memory.max") }
}

func limitKubepods(more uint64) func(*testing.T, machine, *kubelet.Pod) {
	return func(t *testing.T, k machine, pod *kubelet.Pod) {
		dropCaches(t, k, pod)
		leave(t, more, k.Kubepods())
	}
}

func limitClass(more uint64) func(*testing.T, machine, *kubelet.Pod) {
	return func(t *testing.T, k machine, pod *kubelet.Pod) {
		leave(t, more, filepath.Dir(k.Dir(pod)))
	}
}

func leave(t *testing.T, more uint64, dir string) {
	t.Helper()
	rewrite(t, fmt.Sprint(number(t, dir, "memory.current")+more), dir, "memory.max")
}

func dropCaches(t *testing.T, _ machine, _ *kubelet.Pod) { write(t, "3", "/proc/sys/vm/drop_caches") }

// killsOf are the kills that verdicts are given on.
func killsOf(t *testing.T) []kill {
	t.Helper()
	data := disk(t, 512*MiB)
	if err := os.Chmod(data, 0o777); err != nil {
		t.Fatal(err)
	}
	fill(t, data+"/big", int(256*MiB))
	files := map[string]string{"/data": data}
	grow, more, less := fmt.Sprint("grow=", 64*MiB), fmt.Sprint("grow=", 44*MiB), touching(16*MiB)
	own := func(cause string) verdict {
		return verdict{Container: "app", Kills: 1, Level: "container", Cause: cause, Itself: true}
	}
	of := func(v verdict, level string) verdict { v.Level = level; return v }
	instead := func(level, container string, by culprit) verdict {
		return verdict{Container: container, Kills: 1, Level: level, Cause: "processes", Culprit: by}
	}
	filesOf := func(pod string) verdict {
		v := instead("pod", "beside", culprit{pod, "app"})
		v.Cause = "tmpfs"
		return v
	}
	return []kill{
		{name: "heap", limit: 32 * MiB, beside: 32 * MiB, args: []string{grow}, want: own("processes")},
		{name: "heap-alone", full: true, limit: 32 * MiB, args: []string{grow}, want: of(own("processes"), "pod")},
		{name: "shm", limit: 32 * MiB, beside: 32 * MiB, args: []string{fmt.Sprint("write=/dev/shm/file:", 64*MiB)}, want: own("tmpfs")},
		{name: "files", limit: 16 * MiB, beside: 32 * MiB, args: []string{"files=/dev/shm:100000"}, want: own("kernel")},
		{name: "protected-cache", limit: 64 * MiB, args: []string{"read=/data/big"}, mounts: files, want: of(own("page_cache"), "pod"), prepare: dropCaches},
		{name: "child", limit: 32 * MiB, beside: 32 * MiB, args: []string{"child=" + grow}, want: own("processes"), lives: true},
		{name: "group", group: "container", limit: 32 * MiB, beside: 32 * MiB, args: []string{"child=" + grow},
			want: verdict{Container: "app", Kills: 1, Whole: true, Level: "container", Cause: "processes", Itself: true}},
		{name: "pod", full: true, limit: 128 * MiB, beside: 128 * MiB, args: []string{grow}, want: of(own("processes"), "pod"), prepare: limitPod(40 * MiB)},
		{name: "neighbour", request: 8 * MiB, limit: 128 * MiB, beside: 128 * MiB, args: []string{more}, instead: less, lives: true,
			want: instead("pod", "beside", culprit{"neighbour", "app"}), prepare: limitPod(56 * MiB)},
		{name: "kubepods", full: true, args: []string{fmt.Sprint("grow=", 512*MiB)}, want: of(own("processes"), "parent"), prepare: limitKubepods(40 * MiB)},
		{name: "other-pod", request: 8 * MiB, limit: 128 * MiB, beside: 128 * MiB, args: []string{more}, instead: less, apart: true, lives: true,
			want: instead("parent", "beside", culprit{"other-pod", ""}), prepare: limitKubepods(36 * MiB)},
		{name: "class", full: true, request: 8 * MiB, limit: 512 * MiB, args: []string{fmt.Sprint("grow=", 256*MiB)}, want: of(own("processes"), "parent"), prepare: limitClass(40 * MiB)},
		{name: "neighbour-files", request: 8 * MiB, limit: 128 * MiB, beside: 128 * MiB, args: []string{fmt.Sprint("write=/dev/shm/file:", 44*MiB)},
			instead: less, lives: true, want: filesOf("neighbour-files"), prepare: limitPod(56 * MiB)},
		{name: "shared", full: true, limit: 32 * MiB, beside: 32 * MiB, args: []string{fmt.Sprint("share=", 64*MiB)}, want: own("tmpfs")},
		{name: "numa", slow: true, args: []string{fmt.Sprint("grow=", 4096*MiB)}, want: of(own("processes"), "numa_node"),
			prepare: func(t *testing.T, k machine, pod *kubelet.Pod) { write(t, "0", dirOf(t, k, pod, "app"), "cpuset.mems") }},
		{name: "node", slow: true, args: []string{fmt.Sprint("grow=", 16384*MiB)}, want: of(own("processes"), "node")},
		{name: "away", limit: 32 * MiB, beside: 32 * MiB, args: []string{"child=" + grow}, want: own("unknown"), lives: true, away: true},
	}
}

// killsPlugin is the plugin that the kills are for: what is protected of a limit is the limit.
func killsPlugin(t *testing.T, more ...string) *plugin {
	return startPlugin(t, append(more, "memoryManagerPolicy: None", "guaranteedHeadroom: 0")...)
}

// pods are the pod, and the one whose process is killed, which may be the same.
func (c kill) pods() (pod, victim *kubelet.Pod) {
	pod = guaranteed(c.name, c.limit, 0)
	pod.Resources = c.whole
	pod.Annotations = map[string]string{"oom-group.memory-manager.noderesource.dev": cmp.Or(c.group, "process")}
	app := &pod.Containers[0]
	app.Request = cmp.Or(c.request, c.limit)
	app.Args, app.Mounts = append(append([]string{"wait=/ctl/go"}, c.args...), "wait=/ctl/end"), c.mounts
	beside := kubelet.Container{Name: "beside", Request: c.beside, Limit: c.beside, Args: c.instead}
	switch {
	case c.apart:
		return pod, &kubelet.Pod{Name: "bystander", Annotations: pod.Annotations, Containers: []kubelet.Container{beside}}
	case c.beside > 0, c.instead != nil:
		pod.Containers = append(pod.Containers, beside)
	}
	return pod, pod
}

// found is what became of a kill.
type found struct {
	verdict
	delay time.Duration // from the kernel's notice of the kill to the verdict in the file; without a meaning for one while the plugin was away
	wrong string        // what is said instead of what was to be said
}

// happen has the kernel kill, and returns what is said of it. At the end the pods are gone, after they were looked at.
func (c kill) happen(t *testing.T, k machine, p *plugin, look func(*kubelet.Pod)) (f found) {
	t.Helper()
	pod, victim := c.pods()
	run(t, k, pod)
	if victim != pod {
		run(t, k, victim)
	}
	if c.instead != nil {
		said(t, k, victim, "beside", "done "+c.instead[0])
		prefer(t, k, victim, "beside", "1000")
		prefer(t, k, pod, "app", "0")
	}
	if c.prepare != nil {
		c.prepare(t, k, pod)
	}
	if c.away {
		p.kill()
	}
	taken := p.delay(t, k.Dir(victim), victim.UID)
	touchFile(t, k.Control(pod), "go")
	if c.lives {
		said(t, k, pod, "app", "done "+c.args[0]) // PID 1 goes on
	}
	if c.away {
		p.restart()
	}
	select {
	case f.delay = <-taken:
	case <-time.After(waitLimit):
		t.Fatalf("no verdict; the pod counts %s", strings.ReplaceAll(file(k.Dir(victim), "memory.events"), "\n", ", "))
	}
	if !c.lives {
		if _, err := k.WaitExit(t.Context(), pod, "app"); err != nil {
			t.Error(err)
		}
	}
	got := p.verdicts(t, victim)
	f.verdict = got[0]
	if (f.After != "") != c.away {
		f.wrong = fmt.Sprintf("it was killed after %q", f.After)
	}
	if f.After = ""; len(got) != 1 || f.verdict != c.want {
		said, _ := p.ask("oom", victim.UID)
		f.wrong += fmt.Sprintf("%+v, want %+v:\n%s", got, c.want, said)
	}
	look(victim)
	for _, pod := range []*kubelet.Pod{pod, victim} {
		if err := k.Remove(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// prefer sets how much the kernel prefers a container's process as a victim.
func prefer(t *testing.T, k machine, pod *kubelet.Pod, container, adj string) {
	t.Helper()
	pids, err := k.PIDs(pod, container)
	if err != nil {
		t.Fatal(err)
	}
	write(t, adj, "/proc", fmt.Sprint(pids[0]), "oom_score_adj")
}

// delay sends how long it takes from the kernel's notice of a kill in a pod until the file of verdicts has the pod.
func (p *plugin) delay(t *testing.T, pod, uid string) <-chan time.Duration {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	for path, mask := range map[string]uint32{filepath.Join(pod, "memory.events"): unix.IN_MODIFY, p.state: unix.IN_MOVED_TO} {
		if _, err := unix.InotifyAddWatch(fd, path, mask); err != nil {
			t.Fatal(err)
		}
	}
	taken := make(chan time.Duration, 1)
	go func() {
		defer unix.Close(fd)
		var killed time.Time
		for buffer := make([]byte, 4096); ; {
			if _, err := unix.Read(fd, buffer); err != nil && err != unix.EINTR {
				return
			}
			now := time.Now()
			if killed.IsZero() && event(pod, "memory.events", "oom_kill") > 0 {
				killed = now
			}
			if !killed.IsZero() && strings.Contains(file(p.state, "oom-kills.json"), fmt.Sprintf(`"uid":%q`, uid)) {
				taken <- now.Sub(killed)
				return
			}
		}
	}()
	return taken
}

// TestOOMVerdicts has the kernel kill containers for reasons that are known, and compares what is said of them.
func TestOOMVerdicts(t *testing.T) {
	k := criOf(t)
	p := killsPlugin(t)
	for _, c := range killsOf(t) {
		t.Run(c.name, func(t *testing.T) {
			if c.full && !k.Plan.Full {
				t.Skip("with FULL=1")
			}
			f := c.happen(t, k, p, func(victim *kubelet.Pod) {
				out, _ := p.ask("oom", victim.UID)
				t.Log("\n" + out)
			})
			if f.wrong != "" {
				t.Error(f.wrong)
			}
		})
	}
	if n := metric(t, "nri_memory_manager_oom_kills_total"); n != 1 { // after a restart
		t.Errorf("the metric says %v kills", n)
	}
}

// TestPluginIsKilledWhileTheKernelKills kills the plugin five times, twenty with FULL=1, at any moment while the kernel kills processes of two
// containers, two of each between two starts. In the end each is in one verdict.
func TestPluginIsKilledWhileTheKernelKills(t *testing.T) {
	k := criOf(t)
	p := killsPlugin(t)
	times := 5
	if k.Plan.Full {
		times = 20
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	pod := guaranteed("killed", 32*MiB, 0)
	pod.Annotations = map[string]string{"oom-group.memory-manager.noderesource.dev": "process"}
	app, step := &pod.Containers[0], fmt.Sprint("child=grow=", 64*MiB)
	app.Args = nil
	for i := range times {
		app.Args = append(app.Args, fmt.Sprint("wait=/ctl/", i), step, step)
	}
	app.Args = append(app.Args, "say=enough")
	beside := *app
	beside.Name = "beside"
	pod.Containers = append(pod.Containers, beside)
	run(t, k, pod)
	moment := func(most time.Duration) { time.Sleep(time.Duration(random.Int64N(int64(most)))) }
	for i := range times {
		touchFile(t, k.Control(pod), fmt.Sprint(i))
		moment(4 * time.Second)
		p.kill()
		moment(time.Second)
		p.start()
	}
	for _, c := range pod.Containers {
		said(t, k, pod, c.Name, "done say=enough")
	}
	eventually(t, "each kill is in one verdict", func() string {
		var counted, away uint64
		for _, v := range p.verdicts(t, pod) {
			if counted += v.Kills; v.After != "" {
				away += v.Kills
			}
			// Both containers may be at their limits at once, and then the pod is at its own: its sandbox has memory, too.
			ofPod := v.Level == "pod" && event(k.Dir(pod), "memory.events.local", "oom") > 0
			if v.Container == "" || v.Level != "container" && v.After == "" && !ofPod {
				t.Errorf("%+v", v)
			}
		}
		kills := event(k.Dir(pod), "memory.events", "oom_kill")
		if counted > kills || kills != uint64(4*times) {
			t.Fatalf("%d kills in verdicts, the kernel counts %d, want %d", counted, kills, 4*times)
		}
		if counted < kills {
			return fmt.Sprintf("%d kills of %d", counted, kills)
		}
		t.Logf("%d kills in verdicts, %d of them while the plugin was away", counted, away)
		return ""
	})
}

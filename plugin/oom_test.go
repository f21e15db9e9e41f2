package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// counts has a cgroup count how often its own limit was hit, and how many processes were killed in it.
func (h *host) counts(cgroup, hits, kills string) {
	h.t.Helper()
	for file, text := range map[string]string{
		"memory.events.local": "max 0\noom " + hits + "\noom_kill 0\n",
		"memory.stat":         "anon 0\nfile 54525952\nshmem 54525952\nfile_dirty 0\nfile_writeback 0\nkernel 1048576\n",
		"memory.current":      "55574528\n", "memory.max": "67108864\n",
	} {
		must(h.t, h.tree.Write(cgroup, file, text))
	}
	must(h.t, h.tree.Write(cgroup, "memory.events", "max 0\noom "+hits+"\noom_kill "+kills+"\n"))
}

// verdicts are those of the file, the newest first.
func (h *host) verdicts(of ...string) (all []oom.Verdict) {
	h.t.Helper()
	code, out, problem := run(h.t, "", append([]string{"oom", "-o", "json", "--state-dir", h.path("state")}, of...)...)
	if code != 0 {
		h.t.Fatalf("exit status %d: %s", code, problem)
	}
	must(h.t, json.Unmarshal([]byte(out), &all))
	return all
}

// A container that writes files at its limit is named before anything is killed.
func TestPageCacheAtALimitIsARisk(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, "{}\n")
	plugin := h.start()
	web := guaranteed("web", 64*mi)
	must(t, h.runPod(web))
	h.counts(web.cgroup(), "0", "0")
	must(t, h.create(web))
	must(t, h.startContainer(web))
	container := web.cgroup() + "/" + web.id()
	h.counts(container, "0", "0")
	for file, text := range map[string]string{"memory.stat": "anon 41943040\nfile 25165824\nfile_dirty 4194304\nfile_writeback 4194304\n", "memory.current": "67108864\n"} {
		must(t, h.tree.Write(container, file, text))
	}
	hits := 0
	eventually(t, "the container is at risk", func() bool {
		hits++ // again, until the daemon watches
		must(t, h.tree.Write(web.cgroup(), "memory.events", fmt.Sprintf("max %d\noom 0\noom_kill 0\n", hits)))
		return strings.Contains(plugin.get("/metrics"), `nri_memory_manager_container_page_cache_risk{container="app",known="false",namespace="default",pod="web"} 1`)
	})
	code, out, _ := run(t, "", "verify", "web", "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml"))
	if want := "NOTE     default/web/app: it was at its limit of 64Mi with 8Mi of page cache that the disk had not taken"; !strings.Contains(out, want) {
		t.Errorf("exit status %d, want %q in\n%s", code, want, out)
	}
	wantEqual(t, "the kills of nothing", h.ask(0, "oom", "-o", "json"), "[]\n")
	wantEqual(t, "the kills of a pod", h.ask(0, "oom", "web"), "No OOM kill is known.\n")
}

// A kill is judged when the kernel counts it, and what was said of it outlives the daemon, as do the counters.
func TestKillsAreJudgedOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, "{}\n")
	plugin := h.start()
	web := burstable("web", 64*mi, 968)
	container := web.cgroup() + "/" + web.id()
	must(t, h.runPod(web))
	h.counts(web.cgroup(), "0", "0")
	must(t, h.create(web))
	must(t, h.startContainer(web))
	h.counts(container, "0", "0")

	h.counts(container, "1", "1")
	eventually(t, "there is a verdict", func() bool {
		h.counts(web.cgroup(), "0", "1") // again, until the daemon watches
		return len(h.verdicts("web")) > 0
	})
	if v := h.verdicts("web"); len(v) != 1 || v[0].Container != "app" || v[0].Level != oom.Container || v[0].Cause != oom.Tmpfs || v[0].Limit != 64*mi {
		t.Errorf("%+v", v)
	}
	if out := h.ask(0, "explain", "web"); !strings.Contains(out, "last OOM kill, ") || !strings.Contains(out, "files in memory 52Mi") {
		t.Errorf("explain says\n%s", out)
	}
	said(plugin, "OOM kill: container app: the kernel killed one process for want of memory; what ran out: its own limit of 64Mi; used for: files in memory 52Mi")

	plugin.kill()
	h.counts(container, "2", "3")
	h.counts(web.cgroup(), "0", "3")
	h.start()
	eventually(t, "the kills while nobody watched are judged", func() bool { return len(h.verdicts("web")) == 2 })
	if v := h.verdicts("web")[0]; v.Kills != 2 || v.Level != oom.Container || v.After.IsZero() || v.Cause != oom.UnknownCause {
		t.Errorf("%+v", v)
	}
	code, out, _ := run(t, "", "oom", "default/web", "--state-dir", h.path("state"))
	if code != 0 || !strings.Contains(out, "the kernel killed 2 processes between ") || strings.Count(out, "what helps:") != 2 {
		t.Errorf("exit status %d:\n%s", code, out)
	}
	if a, b := len(h.verdicts("pod/web", "-n", "default")), len(h.verdicts("-n", "default")); a != 2 || b != 2 {
		t.Errorf("%d verdicts of the pod, %d of its namespace", a, b)
	}
	wantAll(t, h.ask(1, "oom", "other"), `no pod "other" on this node`)
	wantEqual(t, "the kills in no namespace", h.ask(0, "oom", "-n", "nowhere", "-o", "json"), "[]\n")
	if code, _, problem := run(t, "", "oom", "--state-dir", t.TempDir()); code != 1 || !strings.Contains(problem, "no daemon has kept verdicts in ") {
		t.Errorf("exit status %d: %s", code, problem)
	}
}

// The daemon is killed twenty times, at any moment, while the kernel kills in three pods, and in a fourth one while no daemon runs. Each kill
// is in one verdict, and of the latter the verdict says between which times they were.
func TestNoKillIsLostOrJudgedTwice(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, "{}\n")
	p := h.start()
	var busy []*testPod
	away := burstable("away", 64*mi, 968)
	for i := range 3 {
		busy = append(busy, burstable(fmt.Sprint("busy-", i), 64*mi, 968))
	}
	all := append(busy, away)
	h.deploy(all...)
	kills := map[string]uint64{}
	kill := func(pod *testPod) { // in the kernel's order
		kills[pod.name]++
		n := fmt.Sprint(kills[pod.name])
		h.counts(pod.cgroup()+"/"+pod.id(), n, n)
		h.counts(pod.cgroup(), "0", n)
	}
	for _, pod := range all {
		h.counts(pod.cgroup()+"/"+pod.id(), "0", "0")
		h.counts(pod.cgroup(), "0", "0")
	}
	judged := func() {
		t.Helper()
		eventually(t, "each kill has its verdict", func() bool {
			counted := map[string]uint64{}
			for _, v := range h.verdicts() {
				counted[v.Pod] += v.Kills
			}
			for name, n := range counted {
				if n > kills[name] {
					t.Fatalf("%s: %d kills are in the verdicts, want %d", name, n, kills[name])
				}
			}
			return maps.Equal(counted, kills)
		})
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	var when []time.Time // of the kills while no daemon ran
	for range 20 {
		for range 1 + random.IntN(3) {
			kill(busy[random.IntN(len(busy))])
			time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		}
		p.kill()
		when = append(when, time.Now())
		kill(away)
		p = h.launch()
		time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
	}
	judged()
	for _, v := range slices.Backward(h.verdicts("away")) { // the oldest first
		of := when[:v.Kills]
		when = when[v.Kills:]
		if v.After.After(of[0]) || v.After.IsZero() || v.Time.Before(of[len(of)-1]) {
			t.Errorf("%d kills between %v and %v are said to be between %v and %v", v.Kills, of[0], of[len(of)-1], v.After, v.Time)
		}
	}
	for _, pod := range busy {
		kill(pod)
	}
	judged() // and nothing more
}

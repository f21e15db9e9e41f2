package world

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

const mib = 1 << 20

func machine() Machine {
	return Machine{Kernel: "6.18.0", Nodes: []NUMANode{{Memory: 1 << 30, Outside: 100 * mib, CPUs: 4, Hugepages: 8}, {Memory: 1 << 30, Outside: 100 * mib, CPUs: 4}}}
}

// TestScripts plays on the model what TestScriptsOnThisKernel plays in virtual machines.
func TestScripts(t *testing.T) {
	for _, release := range []string{"6.18.0", "6.12.95", "6.1.176"} {
		for name, script := range Scripts() {
			t.Run(name+" "+release, func(t *testing.T) {
				m := machine()
				m.Kernel, m.Swap = release, 256*mib
				for _, line := range Play(NewKernel(m, t.TempDir()), release, script) {
					if t.Logf("%d: %s: %s", line.Number, line.Text, line.Got); line.Err != nil {
						t.Errorf("line %d: %s: %v", line.Number, line.Text, line.Err)
					}
				}
			})
		}
	}
}

func TestAScriptSaysWhichLineIsNotFulfilled(t *testing.T) {
	const script = "mkdir a\nread a/memory.high = 1\nwrite a/memory.high 0 EINVAL\nlift a\n6.18+ mkdir b\n6.18- mkdir c\nwatch a\nheard b:create\n"
	want := "2: it is \"max\"\n3: the error is \"\", want \"EINVAL\"\n4: no such command\n8: it is \"\"\n"
	got := ""
	for _, line := range Play(NewKernel(machine(), t.TempDir()), "6.12", script) {
		if line.Number == 5 {
			t.Errorf("played: %s", line.Text)
		}
		if line.Err != nil {
			got += fmt.Sprintf("%d: %v\n", line.Number, line.Err)
		}
	}
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestEffectiveProtection(t *testing.T) {
	for _, c := range []struct {
		usage, parent, setting, effective, protected uint64
		recursive                                    bool
		want                                         uint64
	}{
		{100, 300, 50, 100, 80, false, 50},  // its own
		{40, 300, 50, 100, 40, false, 40},   // no more than it uses
		{100, 300, 50, 0, 80, false, 0},     // a parent without any
		{100, 300, 60, 100, 120, false, 50}, // the parent's is overcommitted
		{100, 300, 0, 100, 0, true, 33},     // nobody claims it: by usage
		{100, 300, 50, 100, 50, true, 60},   // its own, and a fifth of the 50 that are left
		{100, 300, 0, 100, 0, false, 0},     // not recursive
	} {
		if got := effectiveProtection(c.usage, c.parent, c.setting, c.effective, c.protected, c.recursive); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestShares(t *testing.T) {
	for _, c := range []struct {
		want uint64
		can  []uint64
		each []uint64
	}{
		{4 * page, []uint64{4 * page, 4 * page}, []uint64{2 * page, 2 * page}},
		{1, []uint64{0, 4 * page}, []uint64{0, page}},
		{100 * page, []uint64{page, 2 * page}, []uint64{page, 2 * page}},
		{3 * page, []uint64{4 * page, 4 * page}, []uint64{2 * page, page}},
		{page, nil, nil},
	} {
		if got := shares(c.want, c.can); !slices.Equal(got, c.each) {
			t.Errorf("%d of %d: %d", c.want, c.can, got)
		}
	}
}

func TestDelayAtMemoryHigh(t *testing.T) {
	for _, c := range []struct {
		usage, high uint64
		want        time.Duration
	}{
		{100 * mib, 100 * mib, 0},
		{101 * mib, 100 * mib, 0}, // less than 10 ms
		{102 * mib, 100 * mib, 24 * time.Millisecond},
		{105 * mib, 100 * mib, 156 * time.Millisecond},
		{150 * mib, 100 * mib, 2 * time.Second}, // the longest
		{mib, 0, 2 * time.Second},
	} {
		if got := highDelay(c.usage, c.high, batch); got.Truncate(4*time.Millisecond) != c.want {
			t.Errorf("%d above %d: %v, want %v", c.usage, c.high, got, c.want)
		}
	}
}

func TestAverages(t *testing.T) {
	now := time.Unix(0, 0)
	a := newAverages(now)
	second := func(n int, stalled time.Duration) {
		for range n {
			now = now.Add(time.Second)
			a.total += stalled
			a.update(now)
		}
	}
	for _, step := range []struct {
		seconds int
		stalled time.Duration
		want    [3]float64 // of an exponentially damped average
	}{
		{10, time.Second, [3]float64{63.2, 15.4, 3.3}},
		{300, time.Second, [3]float64{100, 99.4, 64.4}},
		{10, 0, [3]float64{36.8, 84.1, 62.3}},
		{20, 250 * time.Millisecond, [3]float64{26.6, 67.4, 59.9}},
	} {
		second(step.seconds, step.stalled)
		for i, want := range step.want {
			if got := float64(a.avg[i]) / fixed; math.Abs(got-want) > 1.3 { // the kernel rounds up
				t.Errorf("after %d s of %v: %s, want %v", step.seconds, step.stalled, a.text("some"), step.want)
			}
		}
	}
	if want := "some avg10=26."; !strings.HasPrefix(a.text("some"), want) || !strings.HasSuffix(a.text("some"), " total=315000000\n") {
		t.Errorf("%s, want %s", a.text("some"), want)
	}
	// Who looks after a long time sees what who looked each second does.
	b := a
	second(60, 0)
	if b.update(now); b.avg != a.avg {
		t.Errorf("%v seldom, %v each second", b.avg, a.avg)
	}
}

func TestEventsAreMergedAndOverflow(t *testing.T) {
	a, b := note{1, unix.IN_MODIFY, ""}, note{2, unix.IN_CLOSE_WRITE, "memory.high"}
	for _, c := range []struct {
		in, want []note
	}{
		{[]note{a, a, b, b, a}, []note{a, b, a}}, // identical neighbours only
		{[]note{a, b, a, b, a}, []note{a, b, a, overflow}},
	} {
		var got []note
		for _, n := range c.in {
			got = queued(got, n, 3)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v, want %v", got, c.want)
		}
	}
}

func TestTriggersOfAProcessWithoutCapabilities(t *testing.T) {
	for _, c := range []struct {
		kernel        string
		stall, window time.Duration
		want          error
	}{
		{"6.5.0", time.Second, 2 * time.Second, nil},
		{"6.5.0", time.Second, 3 * time.Second, unix.EINVAL},
		{"6.5.0", 3 * time.Second, 2 * time.Second, unix.EINVAL},
		{"6.1.0", time.Second, 2 * time.Second, unix.EPERM},
	} {
		k := NewKernel(Machine{Kernel: c.kernel, Nodes: machine().Nodes}, t.TempDir())
		triggers, err := k.Port(none{}).Triggers()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := triggers.Add("", c.stall, c.window); err != c.want {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestWindowGrows(t *testing.T) {
	now := time.Unix(0, 0)
	w := window{size: 4 * time.Second, start: now}
	var got []time.Duration
	for _, total := range []time.Duration{time.Second, 2 * time.Second, 6 * time.Second, 6 * time.Second, 6 * time.Second} {
		now = now.Add(2 * time.Second)
		got = append(got, w.growth(now, total))
	}
	// At six seconds the window is over, with 6 s in it: half of them count two seconds later, as if they had been spread.
	if want := []time.Duration{time.Second, 2 * time.Second, 6 * time.Second, 3 * time.Second, 0}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// inhabit starts a process in a container's cgroup with its limit in bytes.
func inhabit(t *testing.T, k *Kernel, dir string, p Program, who Who, limit uint64) *[]Exit {
	t.Helper()
	exits := new([]Exit)
	if err := k.Make(dir); err != nil {
		t.Fatal(err)
	}
	if limit > 0 {
		put(t, k, dir, "memory.max", fmt.Sprint(limit))
	}
	who.Container = filepath.Base(dir)
	who.Pod = filepath.Base(filepath.Dir(dir))
	k.Start(dir, p, who, func(e Exit) { *exits = append(*exits, e) })
	return exits
}

func put(t *testing.T, k *Kernel, dir, file, text string) {
	t.Helper()
	if err := k.Write(dir, file, text); err != nil {
		t.Fatalf("write %s/%s: %v", dir, file, err)
	}
}

func text(t *testing.T, k *Kernel, dir, file string) string {
	t.Helper()
	text, err := k.Text(dir, file)
	if err != nil {
		t.Fatalf("read %s/%s: %v", dir, file, err)
	}
	return text
}

// TestKills: where memory runs out, who dies for it, and who had most beyond its share.
func TestKills(t *testing.T) {
	heap := func(bytes uint64) Program { return Program{Heap: bytes, Rate: 16 * mib} }
	const pods = "kubepods/burstable/"
	for _, c := range []struct {
		name                 string
		kernel               string
		scene                func(t *testing.T, k *Kernel)
		level                oom.Level
		cause                oom.Cause
		hit, victim, culprit string
	}{
		{name: "container", level: oom.Container, cause: oom.Processes, hit: pods + "podx/a", victim: "a", culprit: "a",
			scene: func(t *testing.T, k *Kernel) {
				inhabit(t, k, pods+"podx/a", heap(100*mib), Who{}, 64*mib)
				inhabit(t, k, pods+"podx/b", heap(100*mib), Who{}, 0)
			}},
		{name: "pod", level: oom.Pod, cause: oom.Processes, hit: pods + "podx", victim: "b", culprit: "a",
			scene: func(t *testing.T, k *Kernel) {
				inhabit(t, k, pods+"podx/a", Program{Heap: 50 * mib, Rate: 8 * mib}, Who{Request: 10 * mib}, 0)
				inhabit(t, k, pods+"podx/b", heap(60*mib), Who{Request: 60 * mib}, 0)
				put(t, k, pods+"podx", "memory.max", "64M")
			}},
		{name: "tmpfs", level: oom.Pod, cause: oom.Tmpfs, hit: pods + "podx", victim: "b", culprit: "a",
			scene: func(t *testing.T, k *Kernel) {
				inhabit(t, k, pods+"podx/a", Program{Tmpfs: 48 * mib}, Who{}, 0)
				k.Wait(time.Second)
				inhabit(t, k, pods+"podx/b", heap(60*mib), Who{}, 0)
				put(t, k, pods+"podx", "memory.max", "64M")
			}},
		{name: "tmpfs of a container that ended", level: oom.Pod, cause: oom.Tmpfs, hit: pods + "podx", victim: "b", culprit: "podx",
			scene: func(t *testing.T, k *Kernel) {
				inhabit(t, k, pods+"podx/a", Program{Tmpfs: 48 * mib, Exit: Duration(2 * time.Second)}, Who{}, 0)
				k.Wait(3 * time.Second)
				if err := k.Remove(pods + "podx/a"); err != nil {
					t.Fatal(err)
				}
				inhabit(t, k, pods+"podx/b", heap(60*mib), Who{}, 0)
				put(t, k, pods+"podx", "memory.max", "64M")
			}},
		{name: "parent", level: oom.Parent, cause: oom.Processes, hit: "kubepods", victim: "b", culprit: "pody",
			scene: func(t *testing.T, k *Kernel) {
				inhabit(t, k, pods+"podx/a", heap(30*mib), Who{}, 0)
				inhabit(t, k, pods+"pody/b", heap(60*mib), Who{}, 0)
				put(t, k, "kubepods", "memory.max", "64M")
			}},
		{name: "NUMA node", level: oom.NUMANode, cause: oom.Processes, victim: "b", culprit: "b",
			scene: func(t *testing.T, k *Kernel) {
				inhabit(t, k, pods+"podx/a", heap(300*mib), Who{Request: 300 * mib}, 0)
				inhabit(t, k, pods+"pody/b", heap(2000*mib), Who{}, 0)
				put(t, k, pods+"podx/a", "cpuset.mems", "1")
				put(t, k, pods+"pody/b", "cpuset.mems", "1")
			}},
		{name: "node, by oom_score_adj", level: oom.Node, cause: oom.Processes, victim: "b", culprit: "podx",
			scene: func(t *testing.T, k *Kernel) {
				inhabit(t, k, pods+"podx/a", heap(3000*mib), Who{OOMScoreAdj: -997}, 0)
				inhabit(t, k, "kubepods/besteffort/pody/b", heap(10*mib), Who{OOMScoreAdj: 1000}, 0)
			}},
		{name: "page cache on Linux 6.12", kernel: "6.12.30", level: oom.Container, cause: oom.PageCache, hit: pods + "podx/a", victim: "a", culprit: "a",
			scene: func(t *testing.T, k *Kernel) {
				inhabit(t, k, pods+"podx/a", Program{Heap: 40 * mib, Cache: 1000 * mib, CacheRate: 200 * mib, Dirty: true}, Who{}, 64*mib)
			}},
		{name: "page cache that memory.min keeps", level: oom.Pod, cause: oom.PageCache, hit: pods + "podx", victim: "a", culprit: "a",
			scene: func(t *testing.T, k *Kernel) {
				inhabit(t, k, pods+"podx/a", Program{Cache: 1000 * mib, CacheRate: 20 * mib}, Who{}, 64*mib)
				put(t, k, pods+"podx", "memory.max", "64M")
				put(t, k, pods+"podx", "memory.min", "64M")
				put(t, k, pods+"podx/a", "memory.min", "64M")
				inhabit(t, k, pods+"podx/pause", heap(mib), Who{OOMScoreAdj: -998, Request: 2 * mib}, 0)
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine()
			if c.kernel != "" {
				m.Kernel = c.kernel
			}
			k := NewKernel(m, t.TempDir())
			c.scene(t, k)
			for range 240 {
				if k.Wait(time.Second); len(k.Kills()) > 0 {
					break
				}
			}
			kills := k.Kills()
			if len(kills) == 0 {
				t.Fatal("nothing was killed")
			}
			got := kills[0]
			culprit := got.Culprit.Container
			if culprit == "" {
				culprit = got.Culprit.Pod
			}
			if got.Level != c.level || got.Cause != c.cause || got.Hit != c.hit || got.Victim.Container != c.victim || got.Asked.Container == "" || culprit != c.culprit {
				t.Errorf("%+v", got)
			}
			if events := text(t, k, got.Cgroup, "memory.events"); !strings.Contains(events, "oom_kill 1") {
				t.Error(events)
			}
			if hit := text(t, k, max(got.Hit, "kubepods"), "memory.events.local"); strings.Contains(hit, "oom 0") != (c.hit == "") {
				t.Error(hit)
			}
		})
	}
}

// TestWritersAreNotKilled where memory.high, or the kernel, holds them back. They wait for the disk, and do not stand.
func TestWritersAreNotKilled(t *testing.T) {
	for _, c := range []struct{ kernel, high string }{{"6.18.0", "max"}, {"6.12.30", "57M"}} {
		m := machine()
		m.Kernel = c.kernel
		k := NewKernel(m, t.TempDir())
		inhabit(t, k, "kubepods/podx/a", Program{Cache: 400 * mib, CacheRate: 200 * mib, Dirty: true}, Who{}, 64*mib)
		put(t, k, "kubepods/podx/a", "memory.high", c.high)
		k.Wait(5 * time.Second)
		if stalls := k.Stalls(); stalls["kubepods/podx/a"] > 2*time.Second { // a sleep is no longer
			t.Errorf("%+v: %v", c, stalls)
		}
		k.Wait(time.Minute)
		if kills := k.Kills(); len(kills) > 0 {
			t.Errorf("%+v: %+v", c, kills[0])
		}
	}
}

// TestReclaimReadsWhatThePodsNeedLast: kswapd takes page cache by protection, and a reader that comes back counts as a refault.
func TestReclaimReadsWhatThePodsNeedLast(t *testing.T) {
	k := NewKernel(machine(), t.TempDir())
	cache := Program{Cache: 600 * mib, CacheRate: 100 * mib}
	inhabit(t, k, "kubepods/podx/a", cache, Who{}, 0)
	inhabit(t, k, "kubepods/pody/b", cache, Who{}, 0)
	for _, dir := range []string{"kubepods", "kubepods/podx", "kubepods/podx/a"} {
		put(t, k, dir, "memory.min", "601M")
	}
	k.Wait(10 * time.Second)
	exits := inhabit(t, k, "kubepods/podz/c", Program{Heap: 700 * mib, Rate: 100 * mib, Exit: Duration(20 * time.Second)}, Who{}, 0)
	k.Wait(10 * time.Second)
	if a := keyed(text(t, k, "kubepods/podx/a", "memory.stat"), "file"); a != fmt.Sprint(600*mib) {
		t.Errorf("the protected one has %s", a)
	}
	if vmstat, err := os.ReadFile(k.root + "/proc/vmstat"); err != nil || !strings.Contains(string(vmstat), "allocstall_normal 0") {
		t.Errorf("kswapd does not keep up with 100 MiB a second: %s, %v", vmstat, err)
	}
	if refaults := keyed(text(t, k, "kubepods/pody/b", "memory.stat"), "workingset_refault_file"); refaults == "0" {
		t.Error("what was reclaimed was not read again")
	}
	k.Wait(20 * time.Second)
	if len(*exits) != 1 || (*exits)[0].OOM {
		t.Errorf("exits %+v", *exits)
	}
	if b := keyed(text(t, k, "kubepods/pody/b", "memory.stat"), "file"); b != fmt.Sprint(600*mib) {
		t.Errorf("the other one has %s when there is room again", b)
	}
}

func TestSwap(t *testing.T) {
	m := machine()
	m.Swap = 100 * mib
	k := NewKernel(m, t.TempDir())
	inhabit(t, k, "kubepods/podx/a", Program{Heap: 100 * mib}, Who{}, 0)
	put(t, k, "kubepods/podx/a", "memory.swap.max", "60M")
	k.Wait(time.Second)
	if err := k.Write("kubepods/podx/a", "memory.reclaim", "30M swappiness=0"); err != unix.EAGAIN {
		t.Errorf("without swap: %v", err)
	}
	put(t, k, "kubepods", "memory.reclaim", "40M")
	if err := k.Write("kubepods", "memory.reclaim", "40M"); err != unix.EAGAIN {
		t.Errorf("beyond memory.swap.max: %v", err)
	}
	if swapped := text(t, k, "kubepods", "memory.swap.current"); swapped != fmt.Sprint(60*mib) {
		t.Errorf("swapped out %s", swapped)
	}
	info, err := sysfs.Meminfo(k.root + "/proc")
	if k.Wait(time.Second); err == nil {
		info, err = sysfs.Meminfo(k.root + "/proc")
	}
	if err != nil || info["SwapFree"] != 40*mib {
		t.Errorf("%v, %v", info, err)
	}
}

func TestCalm(t *testing.T) {
	k := NewKernel(machine(), t.TempDir())
	inhabit(t, k, "kubepods/podx/a", Program{Heap: 100 * mib, Rate: 10 * mib}, Who{}, 0)
	k.Wait(2 * time.Second)
	k.Calm()
	inhabit(t, k, "kubepods/podx/b", Program{Heap: 100 * mib, Cache: mib}, Who{}, 0)
	k.Wait(2 * time.Second)
	for dir, want := range map[string]int{"a": 20 * mib, "b": 4 * mib} {
		if stat := text(t, k, "kubepods/podx/"+dir, "memory.stat"); keyed(stat, "anon") != fmt.Sprint(want) || keyed(stat, "file") != "0" {
			t.Errorf("%s has %s, want %d", dir, stat, want)
		}
	}
}

// TestMountOptions: what memory_recursiveprot gives to cgroups that claim nothing, and memory_localevents takes from those above.
func TestMountOptions(t *testing.T) {
	for _, c := range []struct {
		options  string
		kept     bool // page cache that its pod is protected for
		podKills string
	}{{"memory_recursiveprot", true, "1"}, {"nsdelegate,memory_localevents", false, "0"}} {
		k := NewKernel(machine(), t.TempDir())
		k.Mount(c.options)
		inhabit(t, k, "kubepods/podx/a", Program{Cache: 40 * mib, Exit: Duration(2 * time.Second)}, Who{}, 0)
		k.Wait(3 * time.Second)
		put(t, k, "kubepods", "memory.min", "41M")
		put(t, k, "kubepods/podx", "memory.min", "41M")
		err := k.Write("", "memory.reclaim", "40M")
		if kept := keyed(text(t, k, "kubepods/podx/a", "memory.stat"), "file") != "0"; kept != c.kept || (err == unix.EAGAIN) != c.kept {
			t.Errorf("%s: page cache is kept: %v, %v", c.options, kept, err)
		}
		inhabit(t, k, "kubepods/podx/b", Program{Heap: 40 * mib}, Who{}, 20*mib)
		k.Wait(time.Second)
		if kills := keyed(text(t, k, "kubepods/podx", "memory.events"), "oom_kill"); kills != c.podKills {
			t.Errorf("%s: the pod counts %s kills", c.options, kills)
		}
	}
}

// TestPagesMove with a write of cpuset.mems, as far as there is room.
func TestPagesMove(t *testing.T) {
	k := NewKernel(machine(), t.TempDir())
	inhabit(t, k, "kubepods/podx/a", Program{Heap: 500 * mib}, Who{}, 0)
	inhabit(t, k, "kubepods/pody/b", Program{Heap: 500 * mib}, Who{}, 0)
	put(t, k, "kubepods/podx/a", "cpuset.mems", "0")
	put(t, k, "kubepods/pody/b", "cpuset.mems", "1")
	k.Wait(time.Second)
	put(t, k, "kubepods/podx/a", "cpuset.mems", "1")
	stat := keyed(text(t, k, "kubepods/podx/a", "memory.numa_stat"), "anon")
	var node0, node1 uint64
	if _, err := fmt.Sscanf(stat, "N0=%d N1=%d", &node0, &node1); err != nil || node0+node1 != 500*mib || node1 < 300*mib || node0 == 0 {
		t.Errorf("%s, %v", stat, err)
	}
	if err := k.Write("kubepods/podx/a", "cpuset.mems", ""); err != unix.ENOSPC {
		t.Errorf("emptied: %v", err)
	}
	put(t, k, "kubepods/podx", "cpuset.mems", "0")
	if mems := text(t, k, "kubepods/podx/a", "cpuset.mems.effective"); mems != "0" {
		t.Errorf("a cgroup outside of its parent's nodes has %s", mems)
	}
}

// TestWholeContainersDie with memory.oom.group, the highest up to where memory ran out.
func TestWholeContainersDie(t *testing.T) {
	for _, c := range []struct {
		name, limit string   // whose limit is hit
		whole       []string // with memory.oom.group
		dead        int
		group       string // counts oom_group_kill of its own
	}{
		{"none is whole", "kubepods/podx", nil, 1, ""},
		{"the container", "kubepods/podx", []string{"kubepods/podx/a"}, 2, "kubepods/podx/a"},
		{"the highest", "kubepods/podx", []string{"kubepods/podx/a", "kubepods/podx"}, 3, "kubepods/podx"},
		{"not above the limit", "kubepods/podx/a", []string{"kubepods/podx"}, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := NewKernel(machine(), t.TempDir())
			inhabit(t, k, "kubepods/podx/a", Program{Heap: 100 * mib, Rate: 10 * mib}, Who{}, 0)
			inhabit(t, k, "kubepods/podx/a", Program{Heap: mib}, Who{}, 0)
			inhabit(t, k, "kubepods/podx/b", Program{Heap: mib}, Who{}, 0)
			for _, dir := range c.whole {
				put(t, k, dir, "memory.oom.group", "1")
			}
			put(t, k, c.limit, "memory.max", "32M")
			k.Wait(5 * time.Second)
			kills := k.Kills()
			if len(kills) != 1 || kills[0].Processes != c.dead || kills[0].Whole != (c.group != "") {
				t.Fatalf("%+v", kills)
			}
			if c.group != "" && keyed(text(t, k, c.group, "memory.events.local"), "oom_group_kill") != "1" {
				t.Error(text(t, k, c.group, "memory.events.local"))
			}
			if procs := len(strings.Fields(text(t, k, "kubepods/podx/a", "cgroup.procs") + "\n" + text(t, k, "kubepods/podx/b", "cgroup.procs"))); procs != 3-c.dead {
				t.Errorf("%d processes are left", procs)
			}
		})
	}
}

// What others take of a limit in the second of a kill hides what the victim had.
func TestOthersTakeWhatAKillFreed(t *testing.T) {
	for take, want := range map[uint64]uint64{0: 6, 30: 36} { // MiB
		k := NewKernel(machine(), t.TempDir())
		inhabit(t, k, "kubepods/podx/a", Program{Heap: 40 * mib}, Who{}, 0)
		put(t, k, "kubepods", "memory.max", "64M")
		inhabit(t, k, "kubepods/pody/a", Program{Heap: 30 * mib, Rate: 10 * mib}, Who{OOMScoreAdj: -999}, 0)
		k.Wait(2 * time.Second)
		inhabit(t, k, "kubepods/podz/a", Program{Heap: take * mib}, Who{OOMScoreAdj: -999}, 0)
		k.Wait(time.Second)
		if kills := k.Kills(); len(kills) != 1 || (kills[0].Doubt+mib/2)/mib != want {
			t.Errorf("where another takes %d MiB: %+v, want %d MiB of doubt", take, kills, want)
		}
	}
}

// TestALimitBelowWhatIsUsedKills, as a write of memory.max does; one of memory.high does not.
func TestALimitBelowWhatIsUsedKills(t *testing.T) {
	k := NewKernel(machine(), t.TempDir())
	exits := inhabit(t, k, "kubepods/podx/a", Program{Heap: 50 * mib, Cache: 50 * mib}, Who{}, 0)
	k.Wait(time.Second)
	put(t, k, "kubepods/podx/a", "memory.high", "20M")
	if stat := text(t, k, "kubepods/podx/a", "memory.stat"); keyed(stat, "file") != "0" || keyed(stat, "anon") != fmt.Sprint(50*mib) {
		t.Errorf("after memory.high: %s", stat)
	}
	put(t, k, "kubepods/podx/a", "memory.max", "20M")
	if len(*exits) != 0 || text(t, k, "kubepods/podx/a", "memory.current") != "0" {
		t.Errorf("exits %v before the next second, or memory of the dead", *exits)
	}
	if k.Wait(time.Second); len(*exits) != 1 || !(*exits)[0].OOM {
		t.Errorf("exits %v", *exits)
	}
}

func TestHugePages(t *testing.T) {
	k := NewKernel(machine(), t.TempDir())
	free := func() uint64 {
		k.Wait(time.Second)
		pools, err := sysfs.Pools(k.root+"/sys", 0)
		if err != nil {
			t.Fatal(err)
		}
		return pools[0].Free
	}
	exits := inhabit(t, k, "kubepods/podx/a", Program{Exit: Duration(3 * time.Second)}, Who{Hugepages: 6 * hugePage}, 0)
	none := inhabit(t, k, "kubepods/pody/b", Program{}, Who{Hugepages: 4 * hugePage}, 0)
	if got := free(); got != 2 || len(*none) != 1 {
		t.Errorf("%d are free, exits %v of who gets none", got, *none)
	}
	k.Wait(2 * time.Second)
	if got := free(); got != 8 || len(*exits) != 1 {
		t.Errorf("%d are free, exits %v", got, *exits)
	}
}

// TestFilesInMemoryOutliveContainers, until their pod ends.
func TestFilesInMemoryOutliveContainers(t *testing.T) {
	k := NewKernel(machine(), t.TempDir())
	files := Program{Tmpfs: 20 * mib, Exit: Duration(2 * time.Second)}
	for range 2 { // the second start finds the file
		if err := k.Make("kubepods/podx/a/container"); err != nil { // crun's
			t.Fatal(err)
		}
		k.Start("kubepods/podx/a/container", files, Who{Container: "a"}, nil)
		if k.Wait(time.Second); k.Remove("kubepods/podx/a") != unix.EBUSY {
			t.Error("a cgroup with a process was removed")
		}
		k.Wait(2 * time.Second)
		if err := k.Remove("kubepods/podx/a"); err != nil {
			t.Fatal(err)
		}
		if shmem := keyed(text(t, k, "kubepods/podx", "memory.stat"), "shmem"); shmem != fmt.Sprint(20*mib) {
			t.Errorf("the pod has %s", shmem)
		}
	}
	if err := k.Remove("kubepods/podx"); err != nil || text(t, k, "kubepods", "memory.current") != "0" {
		t.Errorf("%v, kubepods has %s", err, text(t, k, "kubepods", "memory.current"))
	}
}

// TestTheMachineIsRead by the daemon's own readers.
func TestTheMachineIsRead(t *testing.T) {
	k := NewKernel(machine(), t.TempDir())
	m, err := sysfs.Load(k.root)
	if err != nil || len(m.Nodes) != 2 || m.MemTotal != 2<<30 || m.Nodes[1].Distances[0] != 21 || m.Nodes[0].Hugepages[0].Count != 8 || m.Nodes[1].CPUs.String() != "4-7" {
		t.Errorf("%+v, %v", m, err)
	}
	memory, err := sysfs.MemInfo(k.root+"/sys", m)
	if err != nil || memory[0].Free != 908*mib {
		t.Errorf("%+v, %v", memory, err)
	}
	if !cgroupfs.Mounted(k.root+"/proc", "memory_recursiveprot") {
		t.Error("memory_recursiveprot is not mounted")
	}
	if k.Mount("memory_localevents"); !cgroupfs.Mounted(k.root+"/proc", "memory_localevents") {
		t.Error("memory_localevents is not mounted")
	}
}

// faults are those of a test.
type faults struct {
	none
	watch error
	lost  atomic.Bool
	slow  func()
}

func (f *faults) Watch() error   { return f.watch }
func (f *faults) Overflow() bool { return f.lost.Load() }
func (f *faults) Read(string, string) error {
	if f.slow != nil {
		f.slow()
	}
	return nil
}

// TestADaemonsLife is a small scene through the functions that the daemon has for cgroups.
func TestADaemonsLife(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		k := NewKernel(machine(), root)
		faults := &faults{}
		port := k.Port(faults)
		tree := cgroupfs.New("/model", port)
		const a = "kubepods/burstable/podx/a"
		exits := inhabit(t, k, a, Program{Heap: 100 * mib, Rate: 50 * mib}, Who{UID: "x"}, 96*mib)

		watcher, err := cgroupfs.NewWatcher(tree)
		if err != nil {
			t.Fatal(err)
		}
		watch := func(c cgroupfs.Change) error { _, err := watcher.Watch(c); return err }
		changes := func() map[cgroupfs.Change]bool {
			all := map[cgroupfs.Change]bool{}
			for {
				synctest.Wait()
				select {
				case c := <-watcher.Changes():
					maps.Copy(all, c)
				default:
					return all
				}
			}
		}
		for _, c := range []cgroupfs.Change{{Cgroup: a}, {Cgroup: a, File: "memory.events"}, {Cgroup: "kubepods/burstable/podx"}} {
			if err := watch(c); err != nil {
				t.Fatal(err)
			}
		}
		faults.watch = unix.ENOSPC
		if err := watch(cgroupfs.Change{Cgroup: "kubepods"}); err == nil || !strings.HasSuffix(err.Error(), "no space left on device") {
			t.Errorf("a watch without room: %v", err)
		}
		faults.watch = nil

		put(t, k, a, "memory.high", "64M")
		if got := changes(); !got[cgroupfs.Change{Cgroup: a, File: "memory.high"}] {
			t.Errorf("after a write: %v", got)
		}
		triggers, err := tree.Triggers()
		if err != nil {
			t.Fatal(err)
		}
		id, err := triggers.Add(a, 500*time.Millisecond, 2*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		fired := make(chan []int32, 1)
		go func() {
			ids, _ := triggers.Wait(time.Minute)
			fired <- ids
		}()
		for range 4 {
			time.Sleep(time.Second)
			k.Tick(time.Now())
		}
		if ids := <-fired; !slices.Equal(ids, []int32{id}) {
			t.Errorf("fired: %v, want %d", ids, id)
		}
		if got := changes(); !got[cgroupfs.Change{Cgroup: a, File: "memory.events"}] {
			t.Errorf("after memory.high was reached: %v", got)
		}
		counters, err := tree.Counters(a)
		if err != nil || counters.Pressure.Full.Total < 1e6 || counters.Events.High == 0 || counters.Current < 64*mib || k.Stalls()[a] == 0 {
			t.Errorf("%+v, %v, stalls %v", counters, err, k.Stalls())
		}
		// The daemon lifts memory.high: the limit is hit.
		if err := tree.Set(a, cgroup.MemoryHigh, cgroup.Max); err != nil || port.Writes() != 1 {
			t.Errorf("%v, %d writes", err, port.Writes())
		}
		changes()
		for range 3 {
			time.Sleep(time.Second)
			k.Tick(time.Now())
		}
		if len(*exits) != 1 || !(*exits)[0].OOM || len(k.Stalls()) > 0 {
			t.Errorf("exits %+v, stalls %v", *exits, k.Stalls())
		}
		faults.lost.Store(true)
		put(t, k, a, "memory.low", "0")
		changes()
		put(t, k, a, "memory.low", "0")
		time.Sleep(time.Second) // which the watcher pauses for
		if got := changes(); len(got) != 3 {
			t.Errorf("after an overflow: %v, want all", got)
		}
		faults.lost.Store(false)
		time.Sleep(time.Second)
		put(t, k, "kubepods/burstable/podx", "cgroup.subtree_control", "-memory")
		if got := changes(); !got[cgroupfs.Change{Cgroup: "kubepods/burstable/podx", File: "cgroup.subtree_control"}] {
			t.Errorf("after a controller was switched off: %v", got)
		}
		put(t, k, "kubepods/burstable/podx", "cgroup.subtree_control", "+memory")
		changes()
		inhabit(t, k, a, Program{Heap: mib}, Who{}, mib/2)
		k.Tick(time.Now().Add(time.Second))
		if got := changes(); got[cgroupfs.Change{Cgroup: a, File: "memory.events"}] {
			t.Errorf("a watch of a file that is gone tells: %v", got)
		}
		faults.slow = func() {
			if err := k.Remove(a); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := port.Read(a, "cgroup.procs", -1, nil); err != unix.ENODEV {
			t.Errorf("a file whose cgroup goes while it is read: %v", err)
		}
		faults.slow = nil
		if got := changes(); len(got) != 1 || !got[cgroupfs.Change{Cgroup: a}] {
			t.Errorf("after its end: %v", got)
		}
		if there, err := tree.Exists(a); there || err != nil {
			t.Errorf("it is there: %v, %v", there, err)
		}
		port.Kill()
		if _, err := triggers.Wait(0); err == nil {
			t.Error("a killed daemon waits for triggers")
		}
		if err := tree.Set("kubepods", cgroup.MemoryMin, 4096); err == nil || text(t, k, "kubepods", "memory.min") != "0" {
			t.Errorf("a killed daemon writes: %v", err)
		}
		if err := watcher.Close(); err == nil {
			t.Error("a killed daemon's watcher was not closed")
		}
	})
}

package reclaim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// node is a kernel whose files are in a folder, with containers that hold page cache.
type node struct {
	t          *testing.T
	folder     string
	threshold  uint64
	limit      uint64 // of kubepods, 0 for none
	config     config.Config
	reading    time.Duration // how long a view takes
	containers []*container
	mu         sync.Mutex
	opened     func(file string) // of a container; nil does nothing
	asked      []string          // whose memory.reclaim was opened, in order
	reclaimer  *Reclaimer
	freed      []Freed
	log        *test.Hook
}

type container struct {
	name                        string
	class                       memoryqos.QOSClass
	request, unknown            uint64 // its estimate and error
	low                         uint64 // memory.low of its pod
	beside                      uint64 // the request of another container of its pod, which uses nothing
	anon, active, inactive, hot uint64 // in MiB; hot is read again after it was reclaimed
	lost, refaulted, stolen     uint64
	answer                      func() error // of memory.reclaim; nil reclaims
}

const total = 4096 // MiB

func (c *container) cgroup() string {
	return "kubepods/" + strings.ToLower(string(c.class)) + "/pod/" + c.name
}

// write writes the files as they are now.
func (n *node) write() {
	n.t.Helper()
	anon, file, inactive := uint64(0), uint64(0), uint64(0)
	for _, c := range n.containers {
		anon, file, inactive = anon+c.anon, file+c.active+c.inactive, inactive+c.inactive
		n.file("cg/"+c.cgroup()+"/memory.current", fmt.Sprint((c.anon+c.active+c.inactive)*mib))
		n.file("cg/"+c.cgroup()+"/memory.stat", fmt.Sprintf("active_file %d\ninactive_file %d\nfile_dirty 0\nworkingset_refault_file %d\npgsteal %d\n",
			c.active*mib, c.inactive*mib, c.refaulted*mib/pageSize, c.stolen*mib/pageSize))
		n.file("cg/"+c.cgroup()+"/memory.reclaim", "")
	}
	n.file("cg/kubepods/memory.current", fmt.Sprint((anon+file)*mib))
	n.file("cg/kubepods/memory.stat", fmt.Sprintf("active_file %d\ninactive_file %d\n", (file-inactive)*mib, inactive*mib))
	n.file("cg/kubepods/memory.max", "max")
	if n.limit > 0 {
		n.file("cg/kubepods/memory.max", fmt.Sprint(n.limit*mib))
	}
	n.file("proc/meminfo", fmt.Sprintf("MemTotal: %d kB\nAnonPages: %d kB\nCached: %d kB\nInactive(file): %d kB\n", total<<10, anon<<10, file<<10, inactive<<10))
}

func (n *node) file(name, text string) {
	n.t.Helper()
	path := filepath.Join(n.folder, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		n.t.Fatal(err)
	}
}

// open plays the kernel's answer to a write of memory.reclaim.
func (n *node) open(dir, file string) error {
	for _, c := range n.containers {
		if c.cgroup() == dir && n.opened != nil {
			n.opened(file)
		}
		if file != "memory.reclaim" || c.cgroup() != dir {
			continue
		}
		n.mu.Lock()
		n.asked = append(n.asked, c.name)
		n.mu.Unlock()
		if c.answer != nil {
			return c.answer()
		}
		take := min(batch/mib, c.active)
		c.active, c.stolen = c.active-take, c.stolen+take
		c.lost += min(take, c.hot)
		n.write()
	}
	return nil
}

// view shows the containers as running. They have read again what they need.
func (n *node) view() *ledger.View {
	time.Sleep(n.reading)
	for _, c := range n.containers {
		if c.lost > 0 {
			c.active, c.refaulted, c.lost = c.active+c.lost, c.refaulted+c.lost, 0
			n.write()
		}
	}
	v := &ledger.View{Config: config.Resolved{Config: n.config, Eviction: n.threshold * mib}, Ancestors: []cgroup.Target{{Cgroup: "kubepods"}}}
	for _, c := range n.containers {
		shown := ledger.ContainerView{Name: c.name, ID: c.name, Cgroup: c.cgroup(), State: ledger.Running}
		shown.Request, shown.Error = c.request*mib, c.unknown*mib
		pod := &ledger.PodView{Namespace: "shop", Name: c.name, UID: c.name, Class: c.class, Cgroup: c.cgroup(), Containers: []ledger.ContainerView{shown}} // its only container has all of its memory
		if c.low > 0 {
			low := c.low * mib
			pod.Low = &low
		}
		pod.Request = (c.request + c.beside) * mib
		v.Pods = append(v.Pods, pod)
	}
	return v
}

// run has a Reclaimer look after the node for a while, in a bubble's time.
func (n *node) run(t *testing.T, length time.Duration) {
	t.Helper()
	n.t, n.folder = t, t.TempDir()
	n.write()
	tree, err := cgroupfs.Open(filepath.Join(n.folder, "cg"), cgroupfs.OnOpen(n.open))
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	var log *logrus.Logger
	log, n.log = test.NewNullLogger()
	n.reclaimer = New(Options{Tree: tree, Proc: filepath.Join(n.folder, "proc"), View: n.view, Log: log, OnFreed: func(f Freed) { n.freed = append(n.freed, f) }})
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	if err := n.reclaimer.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// logged are the messages.
func (n *node) logged() (texts []string) {
	for _, entry := range n.log.AllEntries() {
		texts = append(texts, entry.Message)
	}
	return texts
}

func enabled() config.Config { return config.Config{ReclaimBeforeEviction: true} }

func bestEffort(name string, active uint64) *container {
	return &container{name: name, class: memoryqos.BestEffort, active: active}
}

func burstable(name string, active uint64) *container {
	return &container{name: name, class: memoryqos.Burstable, active: active, request: 100}
}

func guaranteed(name string, active uint64) *container {
	return &container{name: name, class: memoryqos.Guaranteed, active: active, request: 4000}
}

// TestWhoIsAsked has the kubelet's threshold at 1000 MiB, so that page cache is asked for while less than 1256 are available.
func TestWhoIsAsked(t *testing.T) {
	for _, c := range []struct {
		name       string
		containers []*container
		want       map[string]uint64 // active MiB afterwards
	}{
		{"there is enough", []*container{bestEffort("a", 2840)}, map[string]uint64{"a": 2840}},
		{"no more than is missing", []*container{bestEffort("a", 3000)}, map[string]uint64{"a": 2840}},
		{"BestEffort first", []*container{burstable("a", 2000), bestEffort("b", 1000)}, map[string]uint64{"a": 2000, "b": 840}},
		{"then Burstable above its request", []*container{burstable("a", 3000), bestEffort("b", 100)}, map[string]uint64{"a": 2840, "b": 0}},
		{"not below its request", []*container{{name: "a", class: memoryqos.Burstable, active: 3000, request: 2936}}, map[string]uint64{"a": 2936}},
		{"not below what its request may be", []*container{{name: "a", class: memoryqos.Burstable, active: 3000, request: 900, unknown: 2036}}, map[string]uint64{"a": 2936}},
		{"no Guaranteed container", []*container{guaranteed("a", 3000)}, map[string]uint64{"a": 3000}},
		{"who made the most of a class", []*container{bestEffort("a", 2500), bestEffort("b", 400)}, map[string]uint64{"a": 2436, "b": 400}},
		{"inactive page cache is available", []*container{{name: "a", class: memoryqos.BestEffort, inactive: 3500, active: 400}}, map[string]uint64{"a": 400}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &node{threshold: 1000, config: enabled(), containers: c.containers}
				n.run(t, 20*time.Second)
				got := map[string]uint64{}
				for _, c := range n.containers {
					got[c.name] = c.active
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestAHotSetIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hot, cold := bestEffort("hot", 2000), bestEffort("cold", 1000)
		hot.hot = 2000
		n := &node{threshold: 1000, config: enabled(), containers: []*container{hot, cold}}
		n.run(t, 5*time.Minute)
		if hot.active+hot.lost != 2000 || cold.active > 840 {
			t.Errorf("left %d of what is hot, %d of what is cold", hot.active, cold.active)
		}
		again := n.reclaimer.Totals().Refaulted / mib
		if again == 0 || again+hot.lost != hot.refaulted {
			t.Errorf("%d MiB were read again, and %d counted", hot.refaulted, again)
		}
	})
}

// TestAHotSetIsAskedBeforeItsPodIsEvicted has a hot set that leaves less than the kubelet's threshold: it is reclaimed again and again, at a
// bounded rate.
func TestAHotSetIsAskedBeforeItsPodIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hot := bestEffort("hot", 3200)
		hot.hot = 3200
		n := &node{threshold: 1000, config: enabled(), containers: []*container{hot}}
		n.run(t, time.Minute)
		most := uint64(restingRate / mib * 60)
		if taken := n.reclaimer.Totals().Bytes[memoryqos.BestEffort] / mib; taken < most/2 || taken > most*5/4 {
			t.Errorf("%d MiB were taken in a minute, want about %d", taken, most)
		}
	})
}

// TestACallThatGivesNothing is not repeated at once, whatever the reason.
func TestACallThatGivesNothing(t *testing.T) {
	for name, answer := range map[string]func() error{
		"EAGAIN": func() error { return unix.EAGAIN }, "EIO": func() error { return unix.EIO }, "done": func() error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := bestEffort("a", 3500)
				c.answer = answer
				n := &node{threshold: 1000, config: enabled(), containers: []*container{c}, reading: time.Millisecond}
				n.run(t, 5*time.Minute)
				if calls := len(n.asked); calls < 2 || calls > 8 { // 0, 2, 6, 14, 30, 62, 126 and 254 s
					t.Errorf("asked %d times in five minutes", calls)
				}
			})
		})
	}
}

// TestACallThatTakesLong holds up no other container, and is not repeated.
func TestACallThatTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		var all []*container
		for i := range 5 {
			c := bestEffort(fmt.Sprintf("slow%d", i), 450)
			c.answer = func() error { <-done; return nil }
			all = append(all, c)
		}
		quick := bestEffort("quick", 400)
		n := &node{threshold: 3000, config: enabled(), containers: append(all, quick)}
		all[4].answer = nil
		all[4].active = 420
		n.run(t, 5*time.Minute)
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.asked) < 5 || quick.active > 200 {
			t.Errorf("asked %q; the quick one has %d MiB left", n.asked, quick.active)
		}
		counts := map[string]int{}
		for _, name := range n.asked {
			counts[name]++
		}
		for _, c := range all[:4] {
			if counts[c.name] > 1 {
				t.Errorf("%s was asked %d times before the kernel was done", c.name, counts[c.name])
			}
		}
		close(done)
		synctest.Wait()
	})
}

// TestALateCallCounts has each call take longer than it is waited for. Where pods are about to be evicted, the next one follows.
func TestALateCallCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := bestEffort("slow", 3*128)
		slow.anon = 3400 - 3*128
		n := &node{threshold: 1000, config: enabled(), containers: []*container{slow}}
		slow.answer = func() error {
			time.Sleep(callLimit + time.Second)
			slow.active, slow.stolen = slow.active-lastBatch/mib, slow.stolen+lastBatch/mib
			n.write()
			return nil
		}
		n.run(t, time.Minute)
		if slow.active != 0 {
			t.Errorf("%d MiB are left", slow.active)
		}
		if diff := cmp.Diff(Totals{Calls: 3, Bytes: map[memoryqos.QOSClass]uint64{memoryqos.BestEffort: 3 * lastBatch, memoryqos.Burstable: 0}}, n.reclaimer.Totals()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestALateCallThatReturnsWhileItsFilesAreRead has the kernel finish a late call after memory.current was read, which then shows nothing of it.
func TestALateCallThatReturnsWhileItsFilesAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := bestEffort("slow", 128)
		slow.anon = 3200
		n := &node{threshold: 1000, config: enabled(), containers: []*container{slow}}
		late, once := make(chan struct{}), sync.Once{}
		slow.answer = func() error {
			<-late
			slow.active = 0
			n.write()
			return nil
		}
		n.opened = func(file string) {
			if n.reclaimer.calls > 0 && file == "memory.stat" {
				once.Do(func() { close(late); synctest.Wait() })
			}
		}
		n.run(t, time.Minute)
		if diff := cmp.Diff(map[memoryqos.QOSClass]uint64{memoryqos.BestEffort: lastBatch, memoryqos.Burstable: 0}, n.reclaimer.Totals().Bytes); diff != "" {
			t.Error(diff)
		}
	})
}

func TestCallsUnderWayAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		n := &node{threshold: 3000, config: enabled()}
		for i := range mostCalls + 2 {
			c := bestEffort(fmt.Sprint("slow", i), 200)
			c.answer = func() error { <-done; return nil }
			n.containers = append(n.containers, c)
		}
		n.run(t, 5*time.Minute)
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.asked) != mostCalls {
			t.Errorf("asked %q at once", n.asked)
		}
		close(done)
		synctest.Wait()
	})
}

func TestACgroupThatVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone, other := bestEffort("gone", 2000), bestEffort("other", 1500)
		n := &node{threshold: 1000, config: enabled(), containers: []*container{gone, other}}
		gone.answer = func() error {
			n.containers = n.containers[1:]
			if err := os.RemoveAll(filepath.Join(n.folder, "cg", gone.cgroup())); err != nil {
				t.Error(err)
			}
			other.anon = 1900
			n.write()
			return unix.ENOENT
		}
		n.run(t, 20*time.Second)
		if other.active != 1500-576 { // 3400 are used, 2840 may be
			t.Errorf("the other has %d MiB left", other.active)
		}
	})
}

// TestWhatTheKernelIsAsked reads the text that was written last.
func TestWhatTheKernelIsAsked(t *testing.T) {
	for _, c := range []struct {
		name   string
		active uint64 // MiB
		swap   string
		first  error // the answer to the first write
		want   []string
		text   string
	}{
		{"page cache alone", 3000, "", nil, []string{"a"}, "33554432 swappiness=0"},
		{"pods are about to be evicted", 3100, "", nil, []string{"a"}, "134217728 swappiness=0"},
		{"a kernel before 6.9", 3000, "", unix.EINVAL, []string{"a", "a"}, "33554432"},
		{"a kernel before 6.9 on a node with swap", 3000, "SwapTotal: 1024 kB\n", unix.EINVAL, []string{"a"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := bestEffort("a", c.active)
				first := c.first
				a.answer = func() (err error) {
					err, first = first, nil
					return err
				}
				n := &node{threshold: 1000, config: enabled(), containers: []*container{a}}
				n.t, n.folder = t, t.TempDir()
				n.write()
				tree, err := cgroupfs.Open(filepath.Join(n.folder, "cg"), cgroupfs.OnOpen(n.open))
				if err != nil {
					t.Fatal(err)
				}
				defer tree.Close()
				r := New(Options{Tree: tree, Proc: filepath.Join(n.folder, "proc"), View: n.view, Log: logrus.New()})
				text, _ := os.ReadFile(filepath.Join(n.folder, "proc/meminfo"))
				n.file("proc/meminfo", string(text)+c.swap)
				r.look(t.Context())
				if diff := cmp.Diff(c.want, n.asked); diff != "" {
					t.Error(diff)
				}
				if got, _ := os.ReadFile(filepath.Join(n.folder, "cg", a.cgroup(), "memory.reclaim")); string(got) != c.text {
					t.Errorf("memory.reclaim: %q, want %q", got, c.text)
				}
			})
		})
	}
}

func TestDryRunSaysAndAsksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bestEffort("a", 3000)
		n := &node{threshold: 1000, config: enabled(), containers: []*container{a}}
		n.config.Profile = config.ProfileObserve
		n.run(t, 130*time.Second)
		want := "dry run, nothing was reclaimed: 2.93Gi of its page cache was reclaimed in 0s, 0 of which it read again: memory.available was 1.07Gi, and below 1000Mi the kubelet evicts pods"
		if diff := cmp.Diff([]string{want, want}, n.logged()); diff != "" || len(n.asked) > 0 || len(n.freed) > 0 {
			t.Errorf("asked %q, reported %+v, logged:\n%s", n.asked, n.freed, diff)
		}
	})
}

func TestWhatIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		a := bestEffort("a", 3000)
		n := &node{threshold: 1000, config: enabled(), containers: []*container{a}}
		n.run(t, 30*time.Second)
		signal := Signal{Name: Available, Capacity: total * mib, Available: 1096 * mib, Threshold: 1000 * mib}
		freed := Freed{Container: Container{ID: "a", Namespace: "shop", Pod: "a", UID: "a", Name: "a", Class: memoryqos.BestEffort, Cgroup: a.cgroup()}, First: begin, Last: begin, Calls: 5,
			Bytes: 160 * mib, Signal: signal}
		now := signal
		now.Available = 1256 * mib
		if diff := cmp.Diff(&Report{Signal: &now, Below: 1256 * mib, Containers: []Freed{freed}}, n.reclaimer.Report()); diff != "" || n.freed != nil {
			t.Errorf("reported %+v: %s", n.freed, diff)
		}
		totals := Totals{Calls: 5, Bytes: map[memoryqos.QOSClass]uint64{memoryqos.BestEffort: 160 * mib, memoryqos.Burstable: 0}}
		if diff := cmp.Diff(totals, n.reclaimer.Totals()); diff != "" {
			t.Error(diff)
		}
		n.reclaimer.follow(n.view(), now, begin.Add(time.Minute))
		if diff := cmp.Diff([]Freed{freed}, n.freed); diff != "" {
			t.Error(diff)
		}
		want := "160Mi of its page cache was reclaimed in 0s, 0 of which it read again: memory.available was 1.07Gi, and below 1000Mi the kubelet evicts pods"
		if diff := cmp.Diff([]string{want}, n.logged()); diff != "" {
			t.Error(diff)
		}
		n.config.ReclaimBeforeEviction = false
		if got := n.reclaimer.Report(); got != nil {
			t.Errorf("reports %+v where it is off", got)
		}
	})
}

func TestWhatIsNotKnownIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{threshold: 1000, config: enabled(), containers: []*container{bestEffort("a", 3000)}, limit: 3500}
		n.t, n.folder = t, t.TempDir()
		tree, err := cgroupfs.Open(n.folder)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		log, hook := test.NewNullLogger()
		r := New(Options{Tree: tree, Proc: n.folder, View: n.view, Log: log})
		r.look(t.Context())
		r.look(t.Context())
		want := "open " + n.folder + "/meminfo: no such file or directory"
		if got := r.Report().Unknown; got != want || len(hook.AllEntries()) != 1 {
			t.Errorf("unknown: %q, want %q; said %d times", got, want, len(hook.AllEntries()))
		}
	})
}

func TestAKernelWithoutMemoryReclaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bestEffort("a", 3000)
		a.answer = func() error { return unix.ENOENT }
		n := &node{threshold: 1000, config: enabled(), containers: []*container{a}}
		n.run(t, 25*time.Minute)
		const want = "this kernel has no memory.reclaim, which Linux has from 5.19 on"
		if diff := cmp.Diff([]string{"no page cache is reclaimed: " + want}, n.logged()); diff != "" {
			t.Error(diff)
		}
		if got := n.reclaimer.Report().Unknown; got != want || len(n.asked) != 3 || len(n.freed) > 0 {
			t.Errorf("unknown: %q; asked %d times, want each 10 minutes; reported %v", got, len(n.asked), n.freed)
		}
	})
}

// TestAllocatableMemory has kubepods' limit decide: the kubelet compares what pods use with it, too.
func TestAllocatableMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bestEffort("a", 2000)
		n := &node{threshold: 500, limit: 2400, config: enabled(), containers: []*container{a}}
		n.run(t, 20*time.Second)
		if got := n.reclaimer.Report(); got.Name != AllocatableAvailable || a.active > 2400-756 {
			t.Errorf("%+v, %d MiB left", got, a.active)
		}
	})
}

// A Burstable pod keeps what it has requested as a whole: with pod-level resources, and where no memory is protected (memoryReservationPolicy:
// None), although one of its containers uses more than its own request.
func TestAPodsRequestIsKept(t *testing.T) {
	for name, c := range map[string]container{
		"of the pod":            {low: 2936},
		"of its two containers": {request: 1000, beside: 1936},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.name, c.class, c.active = "a", memoryqos.Burstable, 3000
				n := &node{threshold: 1000, config: enabled(), containers: []*container{&c}}
				n.run(t, 20*time.Second)
				if c.active < 2936 || c.active == 3000 {
					t.Errorf("the pod requested 2936Mi, and was left %dMi of 3000Mi", c.active)
				}
			})
		})
	}
}

// A container that makes page cache as fast as the kernel takes it, by reading other files all the time, is the one that is asked. Others of
// its class are once the kubelet would evict pods.
func TestWhoMakesPageCacheIsAsked(t *testing.T) {
	for name, test := range map[string]struct {
		active uint64
		pays   bool
	}{"above the threshold": {2000, false}, "below it": {2400, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				maker, quiet := bestEffort("maker", test.active), bestEffort("quiet", 1000)
				n := &node{threshold: 1000, config: enabled(), containers: []*container{maker, quiet}, reading: time.Millisecond}
				maker.answer = func() error {
					maker.stolen += batch / mib // and 32 MiB of other files were read meanwhile
					n.write()
					return nil
				}
				n.run(t, time.Minute)
				count := map[string]int{}
				for _, name := range n.asked {
					count[name]++
				}
				if !test.pays && count["maker"] < 10 || (quiet.active < 1000) != test.pays {
					t.Errorf("in a minute the maker was asked %d times, the other %d times, which has %d of 1000 MiB left", count["maker"], count["quiet"], quiet.active)
				}
			})
		})
	}
}

// What a reload or a rollback turns off is not begun any more.
func TestNothingIsAskedOnceTheConfigurationHasChanged(t *testing.T) {
	for name, off := range map[string]func(*config.Config){
		"turned off":  func(c *config.Config) { c.ReclaimBeforeEviction = false },
		"dry run":     func(c *config.Config) { c.Profile = config.ProfileObserve },
		"rolled back": func(c *config.Config) { c.RolledBack = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := bestEffort("a", 2000), bestEffort("b", 1500)
				n := &node{threshold: 1000, config: enabled(), containers: []*container{a, b}}
				changed, after := false, 0
				n.opened = func(file string) {
					if file != "memory.reclaim" {
						return
					}
					if changed {
						after++
						return
					}
					changed = true
					off(&n.config)
				}
				n.run(t, 5*time.Second)
				if !changed || after > 0 {
					t.Errorf("%d calls of memory.reclaim begin after the configuration has changed", after)
				}
			})
		})
	}
}

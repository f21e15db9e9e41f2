package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// withSysfs gives a node a sysfs in which both NUMA nodes have 2Gi free and 1Gi of file pages.
func withSysfs(t testing.TB) func(*node) {
	return func(n *node) {
		n.sysfs = t.TempDir()
		for id := range 2 {
			n.kernelHas(id, 2*gi, gi)
		}
	}
}

func (n *node) kernelHas(id int, free, file uint64) {
	n.Helper()
	folder := filepath.Join(n.sysfs, "devices/system/node", fmt.Sprintf("node%d", id))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		n.Fatal(err)
	}
	text := fmt.Sprintf("Node %[1]d MemFree: %[2]d kB\nNode %[1]d Active(file): %[3]d kB\n", id, free>>10, file>>10)
	if err := os.WriteFile(filepath.Join(folder, "meminfo"), []byte(text), 0o644); err != nil {
		n.Fatal(err)
	}
}

// uses has the kernel say where a container's pages are: anonymous and file pages on node 0 and 1.
func (n *node) uses(c Container, anon, file [2]uint64) {
	n.Helper()
	text := fmt.Sprintf("anon N0=%d N1=%d\nfile N0=%d N1=%d\nactive_file N0=%[3]d N1=%[4]d\n", anon[0], anon[1], file[0], file[1])
	n.writeFile(c.CgroupsPath, "memory.numa_stat", strings.TrimSpace(text))
}

func (n *node) sample() *deficit.Sample {
	n.sampler.Sample()
	return n.View().NodeMemory
}

func TestWhatIsUnusedOnNodesIsSampled(t *testing.T) {
	n := newNode(t, "", withSysfs(t))
	pod := n.pod("database", memoryqos.Guaranteed)
	c := n.launch(pod, ofPod(pod, "app", 4*gi))
	n.uses(c, [2]uint64{gi, 0}, [2]uint64{gi / 2, 0})
	want := []deficit.NodeMemory{{ID: 0, Unused: 4*gi - gi - gi/2, Free: 2 * gi, Reclaimable: gi / 2, Allocated: 4 * gi}, {ID: 1, Free: 2 * gi, Reclaimable: gi}}
	if difference := cmp.Diff(want, n.sample().Nodes); difference != "" {
		t.Error(difference)
	}
	n.kernelHas(0, gi, gi)
	if deficit := n.sample().Node(0).Deficit(); deficit != gi {
		t.Errorf("the deficit is %d, want 1Gi", deficit)
	}
}

// A process has taken all of a node since the last sample: a new container finds that out, and goes by the sample where it cannot.
func TestANewContainerLooksAtWhatIsFreeNow(t *testing.T) {
	for name, test := range map[string]struct {
		taken func(*node)
		want  string
	}{
		"nothing was taken":         {func(*node) {}, "0"},
		"node 0 was taken":          {func(n *node) { n.kernelHas(0, 0, 0) }, "1"},
		"free, and less page cache": {func(n *node) { n.kernelHas(0, 2*gi, 0) }, "1"},
		"the node cannot be read":   {func(n *node) { n.kernelHas(0, 0, 0); n.unreadable(1) }, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "topologyManagerPolicy: restricted\ntopologyManagerPolicyOptions: {numa-allocation-strategy: least-used}\n", withSysfs(t))
			n.sample()
			test.taken(n)
			pod := n.pod("database", memoryqos.Guaranteed)
			c := n.launch(pod, ofPod(pod, "app", gi))
			if got := n.containerView(pod, c.Name).Nodes.String(); got != test.want {
				t.Errorf("placed on %s, want %s", got, test.want)
			}
		})
	}
}

func (n *node) unreadable(id int) {
	n.Helper()
	if err := os.Remove(filepath.Join(n.sysfs, "devices/system/node", fmt.Sprintf("node%d", id), "meminfo")); err != nil {
		n.Fatal(err)
	}
}

func TestWhatCannotBeReadIsSaid(t *testing.T) {
	for name, test := range map[string]struct {
		config string
		make   func(*node)
		want   string
	}{
		"policy None":    {"memoryManagerPolicy: None\n", withSysfs(t), "memoryManagerPolicy is None"},
		"a machine file": {"", func(*node) {}, "the machine is described by a file"},
		"no meminfo":     {"", func(n *node) { n.sysfs = t.TempDir() }, "read the memory of NUMA node 0: open "},
		"no numa_stat":   {"", withSysfs(t), "memory.numa_stat (before 5.10, without NUMA, or cgroup v1)"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, test.config, test.make)
			pod := n.pod("database", memoryqos.Guaranteed)
			n.launch(pod, ofPod(pod, "app", 4*gi))
			if sample := n.sample(); sample.Known() || !strings.Contains(sample.Unknown, test.want) {
				t.Errorf("the sample is %+v, want one that is not known: %s", sample, test.want)
			}
		})
	}
}

// One cgroup that cannot be read is not counted, and one that is gone uses nothing: the others are known all the same.
func TestAContainerThatCannotBeReadIsNotCounted(t *testing.T) {
	n := newNode(t, "", withSysfs(t))
	launch := func(name string) Container {
		pod := n.pod(name, memoryqos.Guaranteed)
		c := n.launch(pod, ofPod(pod, "app", 4*gi))
		n.uses(c, [2]uint64{gi, 0}, [2]uint64{})
		return c
	}
	good, bad := launch("good"), launch("bad")
	path := func(c Container) string { return strings.TrimPrefix(c.CgroupsPath, "/") }
	n.writeFile(bad.CgroupsPath, "memory.numa_stat", "anon N0=many")
	sample := n.sample()
	if !sample.Known() || sample.Node(0).Unused != 3*gi || sample.Node(0).Allocated != 8*gi {
		t.Errorf("the sample is %+v, want 3Gi of 8Gi unused on node 0", sample)
	}
	if why := sample.Unread[path(bad)]; len(sample.Unread) != 1 || !strings.Contains(why, `want N<node>=<bytes>, not "N0=many"`) {
		t.Errorf("%v are not counted", sample.Unread)
	}
	n.uses(bad, [2]uint64{gi, 0}, [2]uint64{})
	if sample := n.sample(); sample.Unread != nil || sample.Node(0).Unused != 6*gi {
		t.Errorf("the sample is %+v once it can be read again, want 6Gi unused", sample)
	}
	if err := os.RemoveAll(filepath.Join(n.tree.Root(), path(bad))); err != nil {
		t.Fatal(err)
	}
	if sample := n.sample(); !sample.Known() || sample.Unread != nil || sample.Node(0).Unused != 7*gi {
		t.Errorf("the sample is %+v once it is gone, want 7Gi unused", sample)
	}
	n.writeFile(good.CgroupsPath, "memory.numa_stat", "anon N0=many")
	if err := os.MkdirAll(filepath.Join(n.tree.Root(), path(bad)), 0o755); err != nil {
		t.Fatal(err)
	}
	n.writeFile(bad.CgroupsPath, "memory.numa_stat", "anon N0=many")
	if sample := n.sample(); sample.Known() || !strings.Contains(sample.Unknown, "want N<node>=<bytes>") {
		t.Errorf("the sample is %+v, want one that is not known: no container can be read", sample)
	}
}

// The sampler's: how many containers it reads for one sample, and how old that may become.
const sampleReads, sampleAge = 100, 20 * time.Second

// Each sample reads a bounded number of containers, and the first is not shown before all have been read.
func TestSamplesReadABoundedNumberOfContainers(t *testing.T) {
	n := newNode(t, "", withSysfs(t))
	const pods = 2*sampleReads + 10
	for i := range pods {
		pod := n.pod(fmt.Sprintf("pod-%d", i), memoryqos.Guaranteed)
		n.uses(n.launch(pod, ofPod(pod, "app", 4*mi)), [2]uint64{mi, 0}, [2]uint64{})
	}
	for range 2 {
		if sample := n.sample(); sample.Known() || !strings.Contains(sample.Unknown, "not all containers") {
			t.Fatalf("the sample is %+v", sample)
		}
	}
	if unused := n.sample().Node(0).Unused; unused != pods*3*mi {
		t.Errorf("%d are unused on the node, want %d", unused, pods*3*mi)
	}
}

// With many containers another sample is taken when one of the NUMA nodes has lost memory, the pods are others, or the last one is old.
func TestAQuietNodeIsSampledSeldom(t *testing.T) {
	n := newNode(t, "", withSysfs(t))
	const pods = sampleReads + 1
	for i := range pods {
		pod := n.pod(fmt.Sprintf("pod-%d", i), memoryqos.Guaranteed)
		n.uses(n.launch(pod, ofPod(pod, "app", 4*mi)), [2]uint64{mi, 0}, [2]uint64{})
	}
	n.sample()
	last := n.sample()
	if !last.Known() {
		t.Fatalf("the sample is %+v", last)
	}
	slack := last.Node(0).Slack()
	for _, step := range []struct {
		name  string
		does  func()
		taken bool
	}{
		{"nothing happens", func() {}, false},
		{"some memory is taken", func() { n.kernelHas(0, 2*gi-slack/2, gi) }, false},
		{"more is taken", func() { n.kernelHas(0, 2*gi-slack/2-mi, gi) }, true},
		{"it stays so", func() {}, false},
		{"a pod more", func() { pod := n.pod("more", memoryqos.Guaranteed); n.launch(pod, ofPod(pod, "app", 4*mi)) }, true},
		{"half as old", func() { n.clock.add(sampleAge / 2) }, false},
		{"old", func() { n.clock.add(sampleAge / 2) }, true},
	} {
		step.does()
		if sample := n.sample(); (sample != last) != step.taken {
			t.Errorf("%s: a sample was taken: %v", step.name, sample != last)
		}
		last = n.View().NodeMemory
	}
}

// A deficit is logged when it begins and when it ends.
func TestADeficitIsLogged(t *testing.T) {
	n := newNode(t, "", withSysfs(t))
	database := n.pod("database", memoryqos.Guaranteed)
	n.uses(n.launch(database, ofPod(database, "app", 4*gi)), [2]uint64{0, 0}, [2]uint64{})
	for range 2 {
		n.sample()
	}
	n.kernelHas(0, 8*gi, 0)
	for range 2 {
		n.sample()
	}
	for _, text := range []string{"have less memory available than", "have enough memory available again"} {
		if got := strings.Count(n.log.String(), text); got != 1 {
			t.Errorf("%q is logged %d times, want once", text, got)
		}
	}
}

// kernelStat has the lines of memory.numa_stat of kernel 6.12.
var kernelStat = func() string {
	var text strings.Builder
	for _, kind := range strings.Fields("anon file kernel_stack pagetables sec_pagetables shmem file_mapped file_dirty file_writeback swapcached anon_thp " +
		"file_thp shmem_thp inactive_anon active_anon inactive_file active_file unevictable slab_reclaimable slab_unreclaimable " +
		"workingset_refault_anon workingset_refault_file workingset_activate_anon workingset_activate_file workingset_restore_anon " +
		"workingset_restore_file workingset_nodereclaim") {
		fmt.Fprintf(&text, "%s N0=1048576 N1=0\n", kind)
	}
	return strings.TrimSpace(text.String())
}()

func BenchmarkSampleOf1000Containers(b *testing.B) {
	n := newNode(b, "", withSysfs(b))
	n.log.discard()
	for i := range 1000 {
		pod := n.pod(fmt.Sprintf("pod-%d", i), memoryqos.Guaranteed)
		n.writeFile(n.launch(pod, ofPod(pod, "app", 4*mi)).CgroupsPath, "memory.numa_stat", kernelStat)
	}
	b.ReportAllocs()
	for b.Loop() {
		n.sampler.Sample()
	}
}

package cgroupfs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup2"
)

func TestTheUsualMountHasTheModeThatTheLibraryFinds(t *testing.T) {
	refusal := map[cgroups.CGMode]string{cgroups.Legacy: "it is cgroup v1", cgroups.Hybrid: "it is a hybrid of cgroup v1 and v2"}
	err := fmt.Sprint(RequireUnified(usual))
	for mode, text := range refusal {
		if got, want := strings.Contains(err, text), cgroups.Mode() == mode; got != want {
			t.Errorf("mode %d, but %s", cgroups.Mode(), err)
		}
	}
}

// libraryFiles are a container's as a kernel 6.12 writes them; memory.stat has all of its lines.
func libraryFiles() map[string]string {
	files := map[string]string{}
	for name, text := range kernelFiles {
		files[name] = text
	}
	var stat strings.Builder
	for i := range 60 {
		fmt.Fprintf(&stat, "counter_%d %d\n", i, i*4096)
	}
	const pod = "kubepods/pod1/"
	files[pod+"memory.stat"] += stat.String()
	for _, file := range []string{"current", "max", "peak", "swap.current", "swap.max", "swap.peak"} {
		files[pod+"memory."+file] = "1048576\n"
	}
	return files
}

// TestTheLibraryTakesGoneForNothing holds the reason why counters are not read with cgroup2.Manager: where a cgroup has ended,
// or cannot be read for want of descriptors, it answers with zeros. The stall guard would take them for a container without
// memory, and usage for a counter that began again.
func TestTheLibraryTakesGoneForNothing(t *testing.T) {
	tree := makeTree(t, libraryFiles())
	const gone = "kubepods/gone"
	manager, err := cgroup2.Load("/"+gone, cgroup2.WithMountpoint(tree.Root()))
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := manager.StatFiltered(cgroup2.StatMemory | cgroup2.StatMemoryEvents)
	if err != nil || metrics.GetMemory().GetUsage() != 0 {
		t.Errorf("the library tells it apart now, reconsider: %v, %v", metrics, err)
	}
	if _, err := tree.Stat(gone); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("ours: %v", err)
	}
}

// BenchmarkSample is one look at a container's counters: by the stall guard (memory.current, events, stat, pressure), the
// metrics (the same without stat) and with cgroup2.Manager, which reads eight files for any of memory's.
func BenchmarkSample(b *testing.B) {
	tree := makeTree(b, libraryFiles())
	const name = "kubepods/pod1"
	metrics := func() error { _, err := tree.Counters(name); return err }
	manager, err := cgroup2.Load("/"+name, cgroup2.WithMountpoint(tree.Root()))
	if err != nil {
		b.Fatal(err)
	}
	for _, sample := range []struct {
		by   string
		read func() error
	}{
		{"ours/current", func() error { _, err := tree.Current(name); return err }},
		{"ours/metrics", metrics},
		{"ours/guard", func() error {
			if _, err := tree.Stat(name); err != nil {
				return err
			}
			return metrics()
		}},
		{"library", func() error {
			_, err := manager.StatFiltered(cgroup2.StatMemory | cgroup2.StatMemoryEvents)
			return err
		}},
	} {
		b.Run(sample.by, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := sample.read(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

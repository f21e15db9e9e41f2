package protect

import (
	"fmt"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// busyNode is a tree of 334 pods with 3 containers each, and its pods.
func busyNode(b *testing.B) (*cgroupfs.Tree, []Pod) {
	files := make(map[string]string)
	var pods []Pod
	for i := range 334 {
		parent := fmt.Sprintf("kubepods/%spod%d", []string{"", "burstable/"}[i%2], i)
		for c := range 3 {
			files[fmt.Sprintf("%s/c%d/memory.min", parent, c)] = "0"
		}
		for _, cgroup := range []string{"kubepods", "kubepods/burstable", parent} {
			files[cgroup+"/memory.min"], files[cgroup+"/memory.low"], files[cgroup+"/memory.high"] = "0", "0", "max"
		}
		values := minimum(3 * 64 * mi)
		if i%2 == 1 {
			values = low(3 * 64 * mi)
		}
		pods = append(pods, Pod{Path: mustPod(b, parent), Values: values})
	}
	return makeTree(b, files), pods
}

func BenchmarkApplyOneOfAThousandContainersChanges(b *testing.B) {
	tree, pods := busyNode(b)
	p := New(Options{Tree: tree})
	if err := p.applyAll(b.Context(), Targets(pods)); err != nil {
		b.Fatal(err)
	}
	values := [2]memoryqos.Values{minimum(10 * mi), minimum(20 * mi)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		pods[0].Values = values[i%2]
		if err := p.applyAll(b.Context(), Targets(pods)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApplyAThousandContainersAtOnce(b *testing.B) {
	tree, pods := busyNode(b)
	targets := Targets(pods)
	for b.Loop() {
		p := New(Options{Tree: tree})
		if err := p.applyAll(b.Context(), targets); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReconcileAThousandContainers(b *testing.B) {
	tree, pods := busyNode(b)
	p := New(Options{Tree: tree})
	if err := p.applyAll(b.Context(), Targets(pods)); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := p.Reconcile(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTargetsOfAThousandContainers(b *testing.B) {
	_, pods := busyNode(b)
	b.ReportAllocs()
	for b.Loop() {
		Targets(pods)
	}
}

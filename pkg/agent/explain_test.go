package agent

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// explain collects the explanations of a pod's containers; container "" is all of them.
func (n *node) explain(pod, container string) []ledger.Explanation {
	n.Helper()
	explanations, err := n.Explain(pod, container)
	if err != nil {
		n.Fatal(err)
	}
	return slices.Collect(explanations)
}

// crowded is a node with a Guaranteed pod of so many containers, one of which was refused.
func crowded(tb testing.TB, containers int) (*node, Pod) {
	n := newNode(tb, "topologyManagerPolicy: best-effort\nonUnsatisfiable: Reject")
	n.log.discard()
	n.sync(nil, nil)
	big := n.pod("big", memoryqos.Guaranteed)
	for i := range containers {
		n.create(big, ofPod(big, fmt.Sprint("c", i), 32*mi))
	}
	if _, err := n.CreateContainer(context.Background(), big, ofPod(big, "huge", 40*gi)); err == nil {
		tb.Fatal("a container larger than the machine was created")
	}
	return n, big
}

// Each event below takes the agent's lock while an explanation is under way, and changes what it is about.
func TestEventsDoNotWaitForAnExplanation(t *testing.T) {
	n, big := crowded(t, 3)
	want := n.explain("big", "")
	if len(want) < 3 {
		t.Fatalf("%d containers are explained, want at least 3", len(want))
	}
	explanations, err := n.Explain("big", "")
	if err != nil {
		t.Fatal(err)
	}
	var got []ledger.Explanation
	for explanation := range explanations {
		switch got = append(got, explanation); len(got) {
		case 1:
			other := n.pod("other", memoryqos.Guaranteed)
			n.create(other, ofPod(other, "main", 14*gi))
			n.create(big, ofPod(big, "late", 20*gi-14*gi))
		case 2:
			if err := n.endPod(context.Background(), big); err != nil {
				t.Error(err)
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("explained as\n%+v\nwant what was at the beginning\n%+v", got, want)
	}
	if _, err := n.Explain("big", ""); err == nil {
		t.Error("a pod that has ended is explained")
	}
}

// BenchmarkExplain has what an explanation of a pod takes, and how much of it holds the agent's lock.
func BenchmarkExplain(b *testing.B) {
	for _, containers := range []int{1, 300} {
		n, _ := crowded(b, containers)
		b.Run(fmt.Sprintf("whole/containers=%d", containers), func(b *testing.B) {
			for b.Loop() {
				n.explain("big", "")
			}
		})
		b.Run(fmt.Sprintf("locked/containers=%d", containers), func(b *testing.B) {
			for b.Loop() {
				if _, err := n.Explain("big", ""); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	n, all, _ := loaded(b, 1000)
	b.Run("locked/pods=1000", func(b *testing.B) {
		for b.Loop() {
			if _, err := n.Explain(all[0].Name, ""); err != nil {
				b.Fatal(err)
			}
		}
	})
}

package ledger

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// TestWhatIsFoundAtTheStart has what a state file says, if there is one, and Guaranteed containers of pods a, b and so on that run.
func TestWhatIsFoundAtTheStart(t *testing.T) {
	const gi = claimGi
	type running struct {
		mems  string
		limit uint64
		numa  string
		huge  uint64 // huge pages
	}
	entry := func(pod string, blocks ...memorymanager.Block) memorymanager.Entry {
		return memorymanager.Entry{Pod: pod, Container: "main", Blocks: blocks}
	}
	block := func(memory memorymanager.MemoryType, size uint64, nodes ...int) memorymanager.Block {
		return memorymanager.Block{Nodes: nodeset.Of(nodes...), Type: memory, Size: size}
	}
	initEntry := entry("a", block(memorymanager.Memory, 10*gi, 1))
	initEntry.Container = "init"
	const found, before, one = "found pinned, 1Gi of memory", "pinned before this start of the plugin", ", 1Gi of memory"
	for name, test := range map[string]struct {
		machine, yaml string
		stored        []memorymanager.Entry
		running       []running
		want          []string // of each container its nodes, why, and its allocation
		says          string
	}{
		"nothing is stored": {running: []running{{"1", gi, "", 0}, {"", gi, "", 0}}, want: []string{"1: " + found, "0: pinned under best-effort" + one}},
		"stored":            {stored: []memorymanager.Entry{entry("a", block(memorymanager.Memory, gi, 1))}, running: []running{{"1", gi, "", 0}}, want: []string{"1: " + before + one}},
		"stored, and the runtime shows another node": {stored: []memorymanager.Entry{entry("a", block(memorymanager.Memory, gi, 1))},
			running: []running{{"0", gi, "", 0}}, want: []string{"1: " + before + one}},
		"resized meanwhile": {stored: []memorymanager.Entry{entry("a", block(memorymanager.Memory, gi, 1))},
			running: []running{{"1", 4 * gi, "", 0}}, want: []string{"1: " + before + ", 4Gi of memory"}},
		"resized beyond its node": {stored: []memorymanager.Entry{entry("a", block(memorymanager.Memory, gi, 1)), entry("b", block(memorymanager.Memory, gi, 0))},
			running: []running{{"1", 20 * gi, "", 0}, {"0", gi, "", 0}}, want: []string{"0-1: " + before + ", short of 4.5Gi of memory, 15.5Gi of memory", "0: " + before + one},
			says: "a container was resized and found no room: it is allocated less than its limit"},
		"resized beyond what its init container leaves": {stored: []memorymanager.Entry{entry("a", block(memorymanager.Memory, gi, 1)), initEntry},
			running: []running{{"1", 10 * gi, "", 0}}, want: []string{"1: " + before + ", 10Gi of memory"}},
		"huge pages that are there no more": {stored: []memorymanager.Entry{entry("a", block("hugepages-2Mi", gi, 1), block(memorymanager.Memory, gi, 1))},
			running: []running{{"1", gi, "", gi}}, want: []string{"1: " + before + one},
			says: "a container cannot be allocated what it was resized to: its old allocation stays: policy best-effort, scope container: no NUMA node has hugepages-2Mi"},
		"all nodes, as one that is short, beside another": {running: []running{{"0", gi, "", 0}, {"0-1", gi, "", 0}}, want: []string{"0: " + found, "0: pinned under best-effort" + one}},
		"all nodes, alone": {running: []running{{"0-1", gi, "", 0}}, want: []string{"0-1: " + found}},
		"all nodes, which others have made one group": {machine: threeNodes, running: []running{{"0-1", gi, "", 0}, {"0-2", gi, "", 0}, {"1-2", gi, "", 0}},
			want: []string{"0-1: " + found, "0-2: " + found, "1-2: " + found}},
	} {
		t.Run(name, func(t *testing.T) {
			if test.machine == "" {
				test.machine = twoNodes
			}
			if test.yaml == "" {
				test.yaml = "topologyManagerPolicy: best-effort"
			}
			l := newLedgerOn(t, test.machine, test.yaml)
			if _, err := l.Restore(memorymanager.State{Entries: test.stored}); err != nil {
				t.Fatal(err)
			}
			info := &pods.Pod{Ref: pods.Ref{UID: "a", Namespace: "default", Name: "a"}, Class: memoryqos.Guaranteed, Containers: []pods.Container{
				{Name: "init", Kind: memoryqos.Init, Request: 10 * gi, Limit: 10 * gi, Guaranteed: true}, {Name: "main", Kind: memoryqos.App, Request: gi, Limit: gi, Guaranteed: true}}}
			event := Synchronize{Found: Found{Files: map[string]Files{}}}
			if slices.ContainsFunc(test.stored, func(e memorymanager.Entry) bool { return e.Container == "init" }) {
				event.PodInfos = map[string]pods.Answer{"a": {Pod: info}}
			}
			for i, r := range test.running {
				pod := annotated(claimPod(string(rune('a'+i)), ""), "numa", r.numa)
				c := claimed(pod, "main", r.limit).Container
				c.State = Running
				if r.huge > 0 {
					c.Resources.Hugepages = []HugepageLimit{{PageSize: "2MB", Limit: r.huge}}
				}
				event.Pods, event.Containers = append(event.Pods, pod), append(event.Containers, c)
				event.Found.Files[c.ID] = Files{Mems: &r.mems}
			}
			effects := l.Step(time.Unix(1, 0), event)
			for i, want := range test.want {
				pod := string(rune('a' + i))
				got := placed(l, effects, pod, "main")
				for _, b := range l.manager.Blocks(pod, "main") {
					got += ", " + memorymanager.Request{{Type: b.Type, Bytes: b.Size}}.String()
				}
				if got != want {
					t.Errorf("%s: got %s, want %s", pod, got, want)
				}
			}
			if says := said(effects, ""); !strings.Contains(says, test.says) {
				t.Errorf("notes %q, want %q", says, test.says)
			}
		})
	}
}

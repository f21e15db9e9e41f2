package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// plug has the kernel show the memory and the 2Mi pages of a NUMA node.
func (n *node) plug(id int, memory uint64, pages int) {
	n.Helper()
	folder := filepath.Join(n.sysfs, "devices/system/node", fmt.Sprint("node", id))
	pool := filepath.Join(folder, "hugepages/hugepages-2048kB")
	if err := os.MkdirAll(pool, 0o755); err != nil {
		n.Fatal(err)
	}
	for path, text := range map[string]string{
		filepath.Join(folder, "meminfo"):    fmt.Sprintf("Node %d MemTotal: %d kB\nNode %[1]d MemFree: 1024 kB\n", id, memory>>10),
		filepath.Join(pool, "nr_hugepages"): fmt.Sprintln(pages),
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			n.Fatal(err)
		}
	}
}

// published is what resource claims may have of memory and huge pages on node 1, in Mi, and why the configuration is not in force.
func (n *node) published() string {
	n.Helper()
	view := n.View()
	var texts []string
	for _, c := range view.Claimable {
		if c.Node == 1 {
			texts = append(texts, fmt.Sprintf("%s=%d", c.Type, c.Capacity/mi))
		}
	}
	for _, condition := range view.Conditions {
		if condition.Name == ledger.ConditionConfig && !condition.OK {
			texts = append(texts, condition.Message)
		}
	}
	return strings.Join(texts, " ")
}

// TestTheNodeMapFollowsTheMachine: the periodic look is enough, and a configuration that comes between two looks stays.
func TestTheNodeMapFollowsTheMachine(t *testing.T) {
	n := newNode(t, "dra: {enabled: true}", func(n *node) {
		n.sysfs = t.TempDir()
		n.plug(0, 16*gi, 512)
		n.plug(1, 16*gi, 512)
	})
	for _, step := range []struct {
		name   string
		memory uint64
		pages  int
		want   string
	}{
		{"as at the start", 16 * gi, 512, "hugepages-2Mi=512 memory=7424"},
		{"a balloon within stateTolerance", 16*gi - 64*mi, 512, "hugepages-2Mi=512 memory=7424"},
		{"and beyond", 16*gi - 66*mi, 512, "hugepages-2Mi=512 memory=7390"},
		{"plugged in", 32 * gi, 512, "hugepages-2Mi=512 memory=15616"},
		{"more huge pages", 32 * gi, 4096, "hugepages-2Mi=4096 memory=12032"},
		{"less than is reserved", 8 * gi, 4096, "hugepages-2Mi=4096 memory=12032 config:1: reservedMemory[1].limits.memory: 512Mi (536870912 bytes) and huge pages of 8Gi (8589934592 bytes) are more than the 8Gi (8589934592 bytes) of NUMA node 1"},
		{"fewer huge pages", 8 * gi, 0, "memory=3840"},
		{"plugged out", 4 * gi, 0, "memory=1792"},
		{"as at the start again", 16 * gi, 512, "hugepages-2Mi=512 memory=7424"},
	} {
		n.plug(1, step.memory, step.pages)
		n.reconcile(context.Background())
		if got := n.published(); got != step.want {
			t.Errorf("%s: %s, want %s", step.name, got, step.want)
		}
	}
	if want := `msg="the memory of a NUMA node has changed" node=1 now="memory=34359738368,hugepages-2Mi=1073741824" was="memory=17110663168,hugepages-2Mi=1073741824"`; !strings.Contains(n.log.String(), want) {
		t.Errorf("not logged: %s\n%s", want, n.log)
	}
	reloads := n.Counters().Reloads
	n.reconcile(context.Background())
	if now := n.Counters().Reloads; now != reloads {
		t.Errorf("a machine that stays the same was taken %d times", now-reloads)
	}
	if err := n.Reconfigure(context.Background(), parseConfig(t, "dra: {enabled: true, shares: [{limits: {memory: 25%, hugepages-2Mi: 25%}}]}")); err != nil {
		t.Fatal(err)
	}
	n.plug(1, 32*gi, 512)
	n.reconcile(context.Background())
	if got, want := n.published(), "hugepages-2Mi=256 memory=7808"; got != want {
		t.Errorf("after a new configuration: %s, want %s", got, want)
	}
}

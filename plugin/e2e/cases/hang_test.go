package cases

import (
	"strings"
	"syscall"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestAStoppedPluginStopsNoPod stops the plugin's process, which the runtime does not see die. Pods come and go meanwhile; what came is taken in
// when the process goes on.
func TestAStoppedPluginStopsNoPod(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	goes, stays := guaranteed("goes", 48*MiB, 16*MiB), guaranteed("stays", 32*MiB, MiB)
	for _, pod := range []*kubelet.Pod{goes, stays} {
		run(t, k, pod)
	}
	p.signal(t, syscall.SIGSTOP)
	if err := k.Remove(t.Context(), goes); err != nil {
		t.Errorf("a pod does not end: %v", err)
	}
	came := guaranteed("came", 24*MiB, MiB)
	run(t, k, came)
	p.signal(t, syscall.SIGCONT)
	p.onlyAllocated(stays, came)
	p.agrees(k, p.simulate(stays, came), stays, came)
	const note = "default/came/app: it was created without an answer"
	if out, _ := p.ask("verify"); !strings.Contains(out, note) || strings.Count(out, "[unanswered]") != 1 {
		t.Errorf("verify does not name who got no answer, and nobody else:\n%s", out)
	}
}

func (p *plugin) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

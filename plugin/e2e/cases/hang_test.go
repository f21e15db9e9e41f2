package cases

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

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

// TestAStarvedPluginIsNotRestarted leaves the plugin a tenth of an emulated CPU, which is less than a hundredth of a real one, while pods come
// and go: a liveness probe as the chart's never fails three times in a row.
func TestAStarvedPluginIsNotRestarted(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	dir := filepath.Join(kubelet.Root, "starved")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		_ = os.Remove(dir)
	})
	write(t, "10000 100000", dir, "cpu.max")
	write(t, fmt.Sprint(p.cmd.Process.Pid), dir, "cgroup.procs")
	ctx, end := context.WithCancel(t.Context())
	probed := make(chan int)
	go func() {
		most, failed := 0, 0
		for ctx.Err() == nil {
			client := http.Client{Timeout: 3 * time.Second}
			response, err := client.Get("http://" + metricsAddress + "/healthz")
			if failed++; err == nil {
				if response.StatusCode == http.StatusOK {
					failed = 0
				}
				response.Body.Close()
			}
			most = max(most, failed)
			time.Sleep(5 * time.Second)
		}
		probed <- most
	}()
	for round := range 3 {
		var pods []*kubelet.Pod
		for i := range 4 {
			pods = append(pods, guaranteed(fmt.Sprintf("pod-%d-%d", round, i), 16*MiB, MiB))
			run(t, k, pods[i])
		}
		for _, pod := range pods {
			if err := k.Remove(t.Context(), pod); err != nil {
				t.Error(err)
			}
		}
	}
	end()
	if most := <-probed; most >= 3 {
		t.Errorf("%d probes in a row failed", most)
	} else {
		t.Logf("at most %d probes in a row failed; throttled: %s", most, strings.Join(strings.Fields(file(dir, "cpu.stat")), " "))
	}
	p.waitFree()
}

func (p *plugin) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

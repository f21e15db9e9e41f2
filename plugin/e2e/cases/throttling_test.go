package cases

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// near is how far usage may stand above memory.high: the kernel charges in
// batches and throttles afterwards (seen: 1.7 %).
const near = 1.03

// TestThrottlingIsReal shows that beyond memory.high the kernel holds a
// container back, and that a Guaranteed one is never held back.
func TestThrottlingIsReal(t *testing.T) {
	k := criOf(t)
	// With swap, what is beyond memory.high goes there and the work comes to its
	// end. The container has no limit: a limit would keep it from swapping.
	t.Run("with swap", func(t *testing.T) {
		p := startPlugin(t, "memoryThrottlingFactor: 0.02")
		defer p.stop()
		swap(t, 256*MiB)
		pod := &kubelet.Pod{Name: "paged", Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB}}}
		high := value(p.simulate(pod).container(t, "paged", "app").Memory.High, 0)
		steps := fmt.Sprint("grow=", (high/MiB+16)*MiB)
		pod.Containers[0].Args = []string{steps}
		run(t, k, pod)
		dir := dirOf(t, k, pod, "app")
		if set := number(t, dir, "memory.high"); set != high || high == 0 {
			t.Errorf("memory.high is %d, want %d", set, high)
		}
		said(t, k, pod, "app", "done "+steps)
		if n := event(dir, "memory.events", "high"); n == 0 {
			t.Error("no high events although the container asked for more than memory.high")
		}
		eventually(t, "usage stays near memory.high", func() string {
			if now := number(t, dir, "memory.current"); float64(now) > near*float64(high) {
				return fmt.Sprintf("memory.current %d, memory.high %d", now, high)
			}
			return ""
		})
		if err := k.Remove(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	})

	p := startPlugin(t, "memoryThrottlingFactor: 0.5")
	// Without swap there is nowhere to go: the process is stopped, and shows it.
	t.Run("without swap", func(t *testing.T) {
		pod := &kubelet.Pod{Name: "stopped", Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Limit: 96 * MiB, Args: []string{"wait=/ctl/go", fmt.Sprint("grow=", 88*MiB)}}}}
		run(t, k, pod)
		dir := dirOf(t, k, pod, "app")
		high := number(t, dir, "memory.high")
		touchFile(t, k.Control(pod), "go")
		eventually(t, "high events are counted", func() string {
			if n := event(dir, "memory.events", "high"); n < 20 {
				return fmt.Sprintf("%d events, usage %d", n, number(t, dir, "memory.current"))
			}
			return ""
		})
		if now := number(t, dir, "memory.current"); float64(now) > 1.15*float64(high) {
			t.Errorf("after 20 high events usage is %d, far above memory.high %d", now, high)
		}
		eventually(t, "pressure is shown", func() string {
			text := file(dir, "memory.pressure")
			if !strings.Contains(text, "full") || strings.HasSuffix(text, "total=0") {
				return text
			}
			return ""
		})
		if strings.Contains(k.Output(pod, "app"), "done grow") {
			t.Error("the container was not held back")
		}
		if out, _ := p.ask("explain", "stopped"); !strings.Contains(out, "cannot be reclaimed: a request of ") {
			t.Errorf("explain does not say what ends it:\n%s", out)
		}
		if err := k.Remove(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("Guaranteed never", func(t *testing.T) {
		const touched = 56 * MiB
		pod := guaranteed("guaranteed", 64*MiB, touched)
		run(t, k, pod)
		said(t, k, pod, "app", fmt.Sprint("done touch=", touched))
		dir := dirOf(t, k, pod, "app")
		if high := number(t, dir, "memory.high"); high != unlimited {
			t.Errorf("memory.high is %d", high)
		}
		for _, d := range []string{dir, k.Dir(pod)} {
			if n := event(d, "memory.events", "high"); n != 0 {
				t.Errorf("%d high events in %s", n, d)
			}
		}
	})
}

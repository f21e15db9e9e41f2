package cases

import (
	"fmt"
	"sync"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestStormOfPodsLeavesNothing creates and removes 16 pods, 40 with FULL=1, four at a time: the runtime asks its plugins one
// request after the other, and with ten at a time on an emulated CPU containerd misses its own deadlines of ten seconds, loses
// the ends of containers and no longer answers.
func TestStormOfPodsLeavesNothing(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	const atOnce = 4
	pods := 16
	if k.Plan.Full {
		pods = 40
	}
	var wg sync.WaitGroup
	turn := make(chan struct{}, atOnce)
	errs := make(chan error, 2*pods)
	for i := range pods {
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			pod := guaranteed(fmt.Sprint("storm", i), 24*MiB, MiB)
			switch i % 4 {
			case 1:
				pod.Containers[0].CPUs = fmt.Sprint(i / 4 % 2)
			case 2:
				pod = &kubelet.Pod{Name: pod.Name, Containers: []kubelet.Container{{Name: "app", Request: 8 * MiB, Limit: 32 * MiB}}}
			}
			if err := k.Run(t.Context(), pod); err != nil {
				errs <- err
			}
			if err := k.Remove(t.Context(), pod); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	p.waitFree()
	for _, name := range []string{"memory.min", "memory.low"} {
		eventually(t, "kubepods promises nothing", func() string {
			if n := number(t, k.Kubepods(), name); n != 0 {
				return fmt.Sprintf("%s is %d", name, n)
			}
			return ""
		})
	}
}

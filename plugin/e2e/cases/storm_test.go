package cases

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestStormOfPodsLeavesNothing creates and removes 8 pods, 40 with FULL=1, four at a time: the runtime asks its plugins one
// request after the other, and with ten at a time on an emulated CPU containerd misses its own deadlines of ten seconds, loses
// the ends of containers and no longer answers.
func TestStormOfPodsLeavesNothing(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	pods := 5
	if k.Plan.Full {
		pods = 40
	}
	_, err := each(stormOf(pods, 24*MiB), emulated, func(pod *kubelet.Pod) error {
		return errors.Join(k.Run(t.Context(), pod), k.Remove(t.Context(), pod))
	})
	if err != nil {
		t.Error(err)
	}
	leftNothing(t, k, p)
}

// TestMeasureStorm logs how long creates take when the containers of so many pods are created at once: by the runtime alone, with the
// plugin, and the plugin's part of that. None may be refused, and each must be known until it is removed.
func TestMeasureStorm(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t, "logLevel: info")
	const count = 500
	pods := stormOf(count, 12*MiB)
	all := func(what string, atOnce int, do func(*kubelet.Pod) error) []time.Duration {
		t.Helper()
		began := time.Now()
		took, err := each(pods, atOnce, do)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s %d in %.0f s, %d MiB available", what, count, time.Since(began).Seconds(), memAvailable(t)/MiB)
		return took
	}
	create := func(pod *kubelet.Pod) error { return k.Create(t.Context(), pod, "app") }
	all("sandboxes", emulated, func(pod *kubelet.Pod) error { return k.Prepare(t.Context(), pod) })
	p.kill()
	alone := all("created by the runtime alone", count, create)
	all("removed", emulated, func(pod *kubelet.Pod) error { return k.StopContainer(t.Context(), pod, "app") })
	p.restart()
	before := usageOf(t, p)
	with := all("created with the plugin", count, create)
	part, cpu := p.creates(), usageOf(t, p).cpu-before.cpu
	if len(part) != count {
		t.Errorf("the plugin has decided for %d containers", len(part))
	}
	t.Logf("| %d creates at once | p50 | p99 | longest |", count)
	for _, row := range []struct {
		what string
		took []time.Duration
	}{{"the runtime alone", alone}, {"with the plugin", with}, {"the plugin's part", part}} {
		slices.Sort(row.took)
		last := len(row.took) - 1
		t.Logf("| %s | %v | %v | %v |", row.what, row.took[last*50/100], row.took[last*99/100], row.took[last])
	}
	t.Logf("the plugin took %v of CPU for each", cpu/count)
	all("started", emulated, func(pod *kubelet.Pod) error { return k.StartContainer(t.Context(), pod, "app") })
	p.knowsAll(pods)
	all("removed", emulated, func(pod *kubelet.Pod) error { return k.Remove(t.Context(), pod) })
	leftNothing(t, k, p)
	if n := strings.Count(p.output(), synchronized); n != 1 {
		t.Errorf("the runtime has dropped the plugin: synchronized %d times", n)
	}
	if n := metric(t, "nri_memory_manager_deadline_exceeded_total"); n != 0 {
		t.Errorf("%v decisions were not durable in time", n)
	}
}

// emulated is how many pods containerd starts or ends at a time on an emulated CPU.
const emulated = 4

// stormOf are pods of every kind. The Guaranteed ones, three of four, have this limit.
func stormOf(pods int, limit uint64) []*kubelet.Pod {
	var all []*kubelet.Pod
	for i := range pods {
		pod := guaranteed(fmt.Sprint("storm", i), limit, MiB)
		switch i % 4 {
		case 1:
			pod = on(pod, fmt.Sprint(i/4%2))
		case 2:
			pod = &kubelet.Pod{Name: pod.Name, Containers: []kubelet.Container{{Name: "app", Request: 8 * MiB, Limit: 32 * MiB}}}
		}
		all = append(all, pod)
	}
	return all
}

// each does something to all pods, so many at a time, and says how long it took for each.
func each(pods []*kubelet.Pod, atOnce int, do func(*kubelet.Pod) error) ([]time.Duration, error) {
	var wg sync.WaitGroup
	turn := make(chan struct{}, atOnce)
	took, errs := make([]time.Duration, len(pods)), make([]error, len(pods))
	for i, pod := range pods {
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			began := time.Now()
			errs[i] = do(pod)
			took[i] = time.Since(began)
		})
	}
	wg.Wait()
	return took, errors.Join(errs...)
}

// knowsAll checks that each Guaranteed container has an allocation, and that status and explain know every pod.
func (p *plugin) knowsAll(pods []*kubelet.Pod) {
	p.t.Helper()
	s, err := p.read()
	if err != nil {
		p.t.Fatal(err)
	}
	status, _ := p.ask("status", "-o", "json")
	for _, pod := range pods {
		if c := pod.Containers[0]; c.Request == c.Limit && len(s.Entries[pod.UID][c.Name]) == 0 {
			p.t.Errorf("%s has no allocation", pod.Name)
		}
		if !strings.Contains(status, fmt.Sprintf("%q", pod.UID)) {
			p.t.Errorf("status does not know %s", pod.Name)
		}
		if _, err := get("http://" + metricsAddress + "/explain?pod=default/" + pod.Name); err != nil {
			p.t.Error(err)
		}
	}
}

var created = regexp.MustCompile(`msg="container created".* duration="?([^" ]+)`)

// creates is how long the plugin took for each container.
func (p *plugin) creates() (took []time.Duration) {
	p.t.Helper()
	for _, m := range created.FindAllStringSubmatch(p.output(), -1) {
		d, err := time.ParseDuration(m[1])
		if err != nil {
			p.t.Fatal(err)
		}
		took = append(took, d)
	}
	return took
}

// leftNothing waits until nothing is allocated, and kubepods is promised nothing.
func leftNothing(t *testing.T, k machine, p *plugin) {
	t.Helper()
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

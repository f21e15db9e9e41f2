package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// BenchmarkCreateContainer times the creation of a Guaranteed container through a real NRI socket, with the state file on
// tmpfs where there is one, and turn by turn at a second runtime whose plugin does nothing. One operation is the whole life
// of a pod at both; only the create is in p50 and p99. The ratios are ours over nothing's. Beside containers ours is scraped each second.
func BenchmarkCreateContainer(b *testing.B) {
	for _, existing := range []int{0, 100} {
		b.Run(fmt.Sprintf("existing=%d", existing), func(b *testing.B) {
			idle, ours := newHost(b, cri.Options{}, testConfig), newHost(b, cri.Options{}, testConfig)
			defer idle.nothing()()
			ours.onTmpfs()
			plugin := ours.start()
			for i := range existing {
				pod := guaranteed(fmt.Sprintf("existing-%d", i), 4*mi)
				idle.deploy(pod)
				ours.deploy(pod)
			}
			if existing > 0 {
				end := plugin.scrapedEach(time.Second)
				defer end()
			}
			var idleTook, took []time.Duration
			b.ResetTimer()
			for i := range b.N {
				pod := guaranteed(fmt.Sprintf("pod-%d", i), gi)
				idleTook = append(idleTook, idle.timeCreate(pod))
				took = append(took, ours.timeCreate(pod))
			}
			b.StopTimer()
			report(b, idleTook, took)
			plugin.reportMemory(b)
		})
	}
}

// BenchmarkCreateWithDevice times the creation of a Guaranteed container with a device that the kubelet knows, and turn by turn of
// one without devices.
func BenchmarkCreateWithDevice(b *testing.B) {
	h := newHost(b, cri.Options{}, testConfig)
	kubelet := h.devicesAPI()
	h.onTmpfs()
	h.start()
	var without, with []time.Duration
	b.ResetTimer()
	for i := range b.N {
		without = append(without, h.timeCreate(guaranteed(fmt.Sprintf("plain-%d", i), gi)))
		with = append(with, h.timeCreate(kubelet.withGPU(fmt.Sprintf("gpu-%d", i), gi, 1)))
	}
	b.StopTimer()
	for _, percent := range []int{50, 99} {
		plain, device := percentile(without, percent), percentile(with, percent)
		b.ReportMetric(plain, fmt.Sprintf("without-p%d-ns", percent))
		b.ReportMetric(device, fmt.Sprintf("p%d-ns", percent))
		b.ReportMetric(device-plain, fmt.Sprintf("added-p%d-ns", percent))
	}
}

// BenchmarkBeside measures a plugin on two NUMA nodes of 64 CPUs each, beside 100 Guaranteed containers: creates, turn by turn at a second
// runtime whose plugin does nothing; then its memory, its CPU time in a quiet minute, and the size of its binary. It measures the plugin
// that PEER starts, a command for sh that ends in exec and finds the socket in $NRI_SOCKET; without PEER it measures ours. PEER_ANNOTATION,
// as key=value, is an annotation of every pod.
func BenchmarkBeside(b *testing.B) {
	idle, beside := newHost(b, cri.Options{}, testConfig), newHost(b, cri.Options{}, testConfig)
	defer idle.nothing()()
	beside.write("machine.yaml", "nodes: [{id: 0, memory: 128Gi, cpus: 0-63}, {id: 1, memory: 128Gi, cpus: 64-127}]\n")
	beside.usualLog()
	if peer := os.Getenv("PEER"); peer != "" {
		b.Setenv("NRI_SOCKET", beside.path("nri.sock"))
		beside.program, beside.flags = "sh", []string{"-c", peer}
	} else {
		beside.program = filepath.Join(b.TempDir(), "nri-memory-manager") // as it is released, for its size
		must(b, build(beside.program, ".", "-ldflags", "-s -w"))
	}
	annotated := func(name string, limit int64) *testPod {
		pod := guaranteed(name, limit)
		if key, value, ok := strings.Cut(os.Getenv("PEER_ANNOTATION"), "="); ok {
			pod.annotations = map[string]string{key: value}
		}
		return pod
	}
	plugin := beside.start()
	for i := range 100 {
		pod := annotated(fmt.Sprintf("existing-%d", i), 4*mi)
		idle.deploy(pod)
		beside.deploy(pod)
	}
	var idleTook, took []time.Duration
	for b.Loop() {
		pod := annotated(fmt.Sprintf("pod-%d", len(took)), gi)
		idleTook = append(idleTook, idle.timeCreate(pod))
		took = append(took, beside.timeCreate(pod))
	}
	report(b, idleTook, took)
	time.Sleep(3 * time.Second) // what follows the last pod
	b.ReportMetric(shares(time.Minute, plugin)[0], "%-of-a-core")
	plugin.reportMemory(b)
	program, err := os.Stat(fmt.Sprintf("/proc/%d/exe", plugin.cmd.Process.Pid))
	must(b, err)
	b.ReportMetric(float64(program.Size())/1e6, "binary-MB")

	last := annotated("last", gi)
	must(b, beside.runPod(last))
	resources, err := beside.runtime.CreateContainer(b.Context(), last.container())
	must(b, err)
	if resources.CPU.Mems == "" && len(resources.Unified) == 0 { // a runtime drops a plugin that fails, and goes on without it
		b.Fatal("the plugin has not adjusted the last container")
	}
	b.Logf("the last container has cpuset.cpus %q, cpuset.mems %q and %v", resources.CPU.Cpus, resources.CPU.Mems, resources.Unified)
}

// BenchmarkStorm is 500 Guaranteed pods that are created at once and end at once, turn by turn at a runtime whose plugin does nothing. A
// create's time is the caller's, who waits for those before it: runtimes ask their plugins one request after the other.
func BenchmarkStorm(b *testing.B) {
	const pods = 500
	idle, ours := newHost(b, cri.Options{}, testConfig), newHost(b, cri.Options{}, testConfig)
	defer idle.nothing()()
	ours.onTmpfs()
	ours.start()
	var idleTook, took []time.Duration
	b.ResetTimer()
	for i := range b.N {
		idleTook = append(idleTook, idle.storm(i, pods)...)
		took = append(took, ours.storm(i, pods)...)
	}
	b.StopTimer()
	for percent := 10; percent <= 100; percent += 10 {
		b.ReportMetric(percentile(idleTook, percent), fmt.Sprintf("nothing-p%d-ns", percent))
		b.ReportMetric(percentile(took, percent), fmt.Sprintf("p%d-ns", percent))
	}
	report(b, idleTook, took)
}

// storm creates pods at once, each of which must be admitted, and ends them. It returns how long the creates took.
func (h *host) storm(number, pods int) []time.Duration {
	h.t.Helper()
	took, errs := make([]time.Duration, pods), make([]error, pods)
	var group sync.WaitGroup
	atOnce := func(do func(i int, pod *testPod) error) {
		h.t.Helper()
		for i := range pods {
			group.Go(func() { errs[i] = do(i, guaranteed(fmt.Sprintf("storm-%d-%d", number, i), 4*mi)) })
		}
		group.Wait()
		must(h.t, errors.Join(errs...))
	}
	atOnce(func(_ int, pod *testPod) error { return h.runPod(pod) })
	atOnce(func(i int, pod *testPod) error {
		began := time.Now()
		err := h.create(pod)
		took[i] = time.Since(began)
		return err
	})
	atOnce(func(_ int, pod *testPod) error { return cmp.Or(h.endPod(pod), h.removePod(pod)) })
	return took
}

// BenchmarkSynchronize is the start of the plugin beside containers that run. took-ns is what the runtime waits for the answer; it gives
// up after two seconds.
func BenchmarkSynchronize(b *testing.B) {
	for _, containers := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("containers=%d", containers), func(b *testing.B) {
			h := newHost(b, cri.Options{}, testConfig)
			h.onTmpfs()
			for i := range containers {
				if i%2 == 0 {
					h.deploy(guaranteed(fmt.Sprintf("pod-%d", i), mi))
				} else {
					h.deploy(burstable(fmt.Sprintf("pod-%d", i), mi, 990))
				}
			}
			var took time.Duration
			for b.Loop() {
				plugin := h.start()
				took += h.runtime.SynchronizationTook()
				b.StopTimer()
				plugin.stop()
				b.StartTimer()
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "took-ns")
		})
	}
}

// report reports percentiles of ours and of nothing's, and the ratios.
func report(b *testing.B, idleTook, took []time.Duration) {
	for _, percent := range []int{50, 99} {
		nothing, mine := percentile(idleTook, percent), percentile(took, percent)
		b.ReportMetric(nothing, fmt.Sprintf("nothing-p%d-ns", percent))
		b.ReportMetric(mine, fmt.Sprintf("p%d-ns", percent))
		b.ReportMetric(mine/nothing, fmt.Sprintf("p%d-ratio", percent))
	}
}

func percentile(took []time.Duration, percent int) float64 {
	slices.Sort(took)
	return float64(took[(len(took)-1)*percent/100].Nanoseconds())
}

// usualLog leaves the log at its usual level.
func (h *host) usualLog() {
	h.flags = slices.DeleteFunc(h.flags, func(flag string) bool { return flag == "-v" })
}

// onTmpfs moves the state folder to memory, and leaves the log at its usual level.
func (h *host) onTmpfs() {
	h.t.Helper()
	h.usualLog()
	if dir, err := os.MkdirTemp("/dev/shm", "nri-memory-manager"); err == nil {
		h.t.Cleanup(func() { os.RemoveAll(dir) })
		h.flags[slices.Index(h.flags, h.path("state"))] = filepath.Join(dir, "state")
	}
}

// timeCreate lets a pod live and times the creation of its container.
func (h *host) timeCreate(pod *testPod) time.Duration {
	h.t.Helper()
	must(h.t, h.runPod(pod))
	container := pod.container()
	began := time.Now()
	_, err := h.runtime.CreateContainer(context.Background(), container)
	took := time.Since(began)
	must(h.t, err)
	must(h.t, h.endPod(pod))
	must(h.t, h.removePod(pod))
	return took
}

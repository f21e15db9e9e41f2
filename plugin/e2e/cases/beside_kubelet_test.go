package cases

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// shape is a pod with what its cgroups must hold under TieredReservation, throttling factor 0.9 and no headroom. The numbers
// are bytes as the kernel shows them, computed by hand from KEP-2570's formula, not by the code under test.
type shape struct {
	pod *kubelet.Pod
	// protected is the pod's own memory.min (Guaranteed) or memory.low (Burstable): Kubernetes' aggregate.
	protected  uint64
	containers map[string]values
}

// values are a container's: what protects it, and memory.high, 0 for none.
type values struct{ protected, high, limit uint64 }

// unlimitedHigh is memory.high of a container without a limit on this node.
func unlimitedHigh(t *testing.T, request uint64) uint64 {
	t.Helper()
	const factor, page = 0.9, 4096
	return uint64(math.Floor((float64(request)+(float64(memTotal(t))-float64(request))*factor)/page)) * page
}

// shapes are pods of every kind.
func shapes(t *testing.T) []shape {
	app := func(request, limit uint64) kubelet.Container {
		return kubelet.Container{Name: "app", Request: request, Limit: limit}
	}
	return []shape{
		{&kubelet.Pod{Name: "guaranteed", Containers: []kubelet.Container{app(64*MiB, 64*MiB)}}, 64 * MiB,
			map[string]values{"app": {64 * MiB, 0, 64 * MiB}}},
		{&kubelet.Pod{Name: "pair", Containers: []kubelet.Container{app(16*MiB, 16*MiB), {Name: "other", Request: 24 * MiB, Limit: 24 * MiB}}}, 40 * MiB,
			map[string]values{"app": {16 * MiB, 0, 16 * MiB}, "other": {24 * MiB, 0, 24 * MiB}}},
		{&kubelet.Pod{Name: "burstable", Containers: []kubelet.Container{app(64*MiB, 128*MiB)}}, 64 * MiB,
			map[string]values{"app": {64 * MiB, 127504384, 128 * MiB}}},
		{&kubelet.Pod{Name: "unlimited", Containers: []kubelet.Container{app(48*MiB, 0)}}, 48 * MiB,
			map[string]values{"app": {48 * MiB, unlimitedHigh(t, 48*MiB), unlimited}}},
		{&kubelet.Pod{Name: "besteffort", Containers: []kubelet.Container{app(0, 0)}}, 0,
			map[string]values{"app": {0, unlimitedHigh(t, 0), unlimited}}},
		{&kubelet.Pod{Name: "mixed", Containers: []kubelet.Container{app(32*MiB, 64*MiB), {Name: "equal", Request: 24 * MiB, Limit: 24 * MiB}}}, 56 * MiB,
			map[string]values{"app": {32 * MiB, 63750144, 64 * MiB}, "equal": {24 * MiB, 0, 24 * MiB}}},
		{&kubelet.Pod{Name: "phased", Containers: []kubelet.Container{
			{Name: "before", Init: true, Request: 80 * MiB, Limit: 96 * MiB, Args: []string{"exit=0"}}, app(32*MiB, 96*MiB),
		}}, 80 * MiB, map[string]values{"app": {32 * MiB, 93949952, 96 * MiB}}},
		{&kubelet.Pod{Name: "sidecar", Containers: []kubelet.Container{
			{Name: "beside", Sidecar: true, Request: 16 * MiB, Limit: 32 * MiB}, app(24*MiB, 48*MiB),
		}}, 40 * MiB, map[string]values{"beside": {16 * MiB, 31875072, 32 * MiB}, "app": {24 * MiB, 47812608, 48 * MiB}}},
		{&kubelet.Pod{Name: "overhead", Overhead: 8 * MiB, Containers: []kubelet.Container{app(24*MiB, 48*MiB)}}, 32 * MiB,
			map[string]values{"app": {24 * MiB, 47812608, 48 * MiB}}},
		// No multiple of a page: the kernel rounds 10000001 and 30000000 down.
		{&kubelet.Pod{Name: "odd", Containers: []kubelet.Container{app(10000001, 30000000)}}, 9998336,
			map[string]values{"app": {9998336, 27996160, 29999104}}},
	}
}

// files is what a cgroup must hold; a field that is nil is the kubelet's or another test's.
type files struct{ min, low, high, max *uint64 }

// TestEveryFileBesideTheKubelet runs pods of every shape beside a kubelet with its own Memory QoS as by default (off in 1.36, on
// without values from 1.37), off, on without reservations, and on with them; brings the plugin from None to TieredReservation and HardReservation; and rolls back.
// Every file of every level holds what the policy says, and in the end again what the kubelet alone would have it hold.
func TestEveryFileBesideTheKubelet(t *testing.T) {
	for _, theirs := range []struct {
		name   string
		config kubelet.Config
		kubeletQoS
	}{
		{"default", kubelet.Config{}, kubeletQoS{}},
		{"off", withoutMemoryQoS(), kubeletQoS{}},
		{"None", memoryQoS("None"), kubeletQoS{throttles: true}},
		{"TieredReservation", memoryQoS("TieredReservation"), kubeletQoS{throttles: true, reserves: true}},
	} {
		t.Run("kubelet "+theirs.name, func(t *testing.T) {
			// FULL=1 goes through all states with both drivers; else there is the default with cgroupfs, and the state in which
			// the kubelet writes most with systemd.
			plan := planOf(t)
			if usual := map[setup.Driver]string{setup.Cgroupfs: "default", setup.Systemd: "TieredReservation"}; !plan.Full && theirs.name != usual[plan.Driver] {
				t.Skip("with FULL=1, or with the other driver")
			}
			k := kubeletOf(t, theirs.config)
			own := func(policy string) []string {
				return []string{"memoryReservationPolicy: " + policy, "guaranteedHeadroom: 0", "topologyManagerPolicy: none"}
			}
			p := startPlugin(t, own("None")...)
			var all []shape
			for i, s := range shapes(t) { // without FULL=1 half of them with each driver
				if plan.Full || i%2 == map[setup.Driver]int{setup.Cgroupfs: 0, setup.Systemd: 1}[plan.Driver] {
					all = append(all, s)
				}
			}
			var pods []*kubelet.Pod
			for _, s := range all {
				pods = append(pods, s.pod)
			}
			if err := k.RunAll(t.Context(), pods...); err != nil {
				t.Fatal(err)
			}
			hold(t, k, all, "None", theirs.kubeletQoS)
			for _, policy := range []string{"TieredReservation", "HardReservation"} {
				taken := metric(t, updates)
				p.configure(own(policy)...)
				_ = p.cmd.Process.Signal(syscall.SIGHUP)
				hold(t, k, all, policy, theirs.kubeletQoS)
				eventually(t, "the runtime has made the updates", func() string { // later ones would undo a rollback
					if metric(t, updates) <= taken {
						return "it has not"
					}
					return ""
				})
				if out, code := p.ask("status"); code != 0 || strings.Contains(out, "overwritten") {
					t.Errorf("status under %s: exit status %d:\n%s", policy, code, out)
				}
			}
			p.stop()
			out, code := p.ask("rollback")
			if says := strings.Contains(out, "kubelet"); code != 0 || !says {
				t.Errorf("rollback: exit status %d:\n%s", code, out)
			}
			hold(t, k, all, rolledBack, theirs.kubeletQoS)
		})
	}
}

// TestKubeletChangesItsMemoryQoS starts the kubelet again under running pods, with its own Memory QoS on without reservations and
// then off. At each start it writes zeroes over kubepods and the Burstable class, at each create and resize zeroes, or max, over
// the container's values. All of them come back.
func TestKubeletChangesItsMemoryQoS(t *testing.T) {
	k := kubeletOf(t)
	p := startPlugin(t, "memoryReservationPolicy: TieredReservation", "guaranteedHeadroom: 0", "topologyManagerPolicy: none")
	all := shapes(t)[:3]
	for _, s := range all {
		run(t, k, s.pod)
	}
	burstable := all[2]
	for _, step := range []struct {
		name        string
		config      kubelet.Config
		limit, high uint64 // that the pod is resized to, and what follows: 64Mi + 0.9 × (limit − 64Mi) in whole pages
	}{
		{"none", memoryQoS("None"), 160 * MiB, 157704192},
		{"off", withoutMemoryQoS(), 128 * MiB, 127504384},
	} {
		if err := k.Configure(t.Context(), step.config); err != nil {
			t.Fatal(err)
		}
		hold(t, k, all, "TieredReservation", kubeletQoS{})
		created := shape{&kubelet.Pod{Name: "created-" + step.name, Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Limit: 64 * MiB}}},
			32 * MiB, map[string]values{"app": {32 * MiB, 63750144, 64 * MiB}}}
		run(t, k, created.pod)
		all = append(all, created)
		if err := k.Resize(t.Context(), burstable.pod, "app", 64*MiB, step.limit); err != nil {
			t.Fatal(err)
		}
		burstable.containers["app"] = values{64 * MiB, step.high, step.limit}
		hold(t, k, all, "TieredReservation", kubeletQoS{})
	}
	p.stop() // what others wrote stays counted until the plugin starts again
	p.restart()
	p.clean(t)
}

// updates counts the changes of running containers that the runtime has made for the plugin.
const updates = "nri_memory_manager_container_updates_total"

// rolledBack stands for the policy of a plugin that is gone: nothing is left of it, its memory.high neither.
const rolledBack = "rolled back"

// kubeletQoS is what the kubelet's own Memory QoS does. 1.36 gives BestEffort containers no memory.high, and leaves
// memory.low of kubepods at 0; 1.37 writes both.
type kubeletQoS struct{ throttles, reserves bool }

// withoutMemoryQoS is the kubelet's own Memory QoS off, whatever its release has by default.
func withoutMemoryQoS() kubelet.Config {
	return kubelet.Config{"featureGates": map[string]any{"MemoryQoS": false}}
}

// memoryQoS is the kubelet's own Memory QoS.
func memoryQoS(policy string) kubelet.Config {
	return kubelet.Config{
		"featureGates": map[string]any{"MemoryQoS": true}, "memoryThrottlingFactor": 0.9, "memoryReservationPolicy": policy,
	}
}

// hold waits until all files hold what the plugin's policy says; under None and after a rollback, what the kubelet reserves.
func hold(t *testing.T, k machine, all []shape, policy string, kubelets kubeletQoS) {
	t.Helper()
	hard := policy == "HardReservation"
	gone := policy == rolledBack
	reserved := policy != "None" && !gone || kubelets.reserves
	var guaranteed, burstable uint64
	want := map[string]files{}
	for _, s := range all {
		isGuaranteed := s.pod.Class() == "Guaranteed"
		protection := func(bytes uint64) (minimum, low uint64) {
			switch {
			case !reserved:
				return 0, 0
			case isGuaranteed || hard:
				return bytes, 0
			}
			return 0, bytes
		}
		minimum, low := protection(s.protected)
		want[k.Dir(s.pod)] = files{min: &minimum, low: &low}
		if isGuaranteed {
			guaranteed += s.protected
		} else {
			burstable += requested(s)
		}
		for name, v := range s.containers {
			minimum, low := protection(v.protected)
			high := v.high
			if high == 0 || gone && (!kubelets.throttles || s.pod.Class() == "BestEffort" && planOf(t).OlderKubelet) {
				high = unlimited
			}
			want[dirOf(t, k, s.pod, name)] = files{min: &minimum, low: &low, high: &high, max: &v.limit}
		}
	}
	upper, qos := levels(guaranteed, burstable, policy, kubelets.reserves, planOf(t).OlderKubelet)
	want[k.Kubepods()] = upper
	want[filepath.Join(kubelet.Root, kubelet.Paths{Driver: planOf(t).Driver}.QoS(corev1.PodQOSBurstable))] = qos
	eventually(t, "under the plugin's "+policy+" every file holds its value", func() string {
		var wrong []string
		for dir, f := range want {
			for name, bytes := range map[string]*uint64{"memory.min": f.min, "memory.low": f.low, "memory.high": f.high, "memory.max": f.max} {
				if bytes == nil {
					continue
				}
				if got := number(t, dir, name); got != *bytes {
					wrong = append(wrong, fmt.Sprintf("%s/%s is %d, want %d", strings.TrimPrefix(dir, kubelet.Root), name, got, *bytes))
				}
			}
		}
		return strings.Join(wrong, "; ")
	})
}

// requested is what a pod adds to the parent cgroups: not rounded to pages yet.
func requested(s shape) uint64 {
	if s.pod.Name == "odd" {
		return 10000001
	}
	return s.protected
}

// levels are kubepods and the Burstable class. Under None they are the kubelet's, of which 1.36 leaves memory.low of kubepods at 0.
func levels(guaranteed, burstable uint64, policy string, kubeletReserves, older bool) (kubepods, qos files) {
	floor := func(bytes uint64) *uint64 { return new(bytes / 4096 * 4096) }
	none, all := new(uint64(0)), floor(guaranteed+burstable)
	switch {
	case policy == "TieredReservation":
		return files{min: all, low: floor(burstable)}, files{min: none, low: floor(burstable)}
	case policy == "HardReservation":
		return files{min: all, low: none}, files{min: floor(burstable), low: none}
	case kubeletReserves && !older:
		return files{min: all, low: floor(burstable)}, files{min: none, low: floor(burstable)}
	case kubeletReserves:
		return files{min: all, low: none}, files{min: none, low: floor(burstable)}
	}
	return files{min: none, low: none}, files{min: none, low: none}
}

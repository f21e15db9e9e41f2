package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

func minutes(n float64) Duration { return Duration(n * float64(time.Minute)) }

func seconds(n int) Duration { return Duration(n) * Duration(time.Second) }

func node(systemd bool, pods ...Pod) Scenario {
	return Scenario{Seed: 7, Machine: Machine{Nodes: twoNodes.Nodes, Systemd: systemd}, Pods: pods}
}

// live lives a scenario for a while, with a recorder connected, and then shows what is there.
func live(t *testing.T, s Scenario, kind Runtime, p *recorder, during func(*testing.T, *Kubelet, *ContainerRuntime, *Kernel)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := ticking(t, s.Machine)
		r := NewRuntime(k, kind, s.Machine.Systemd)
		defer r.Disconnect()
		p.connect(t, r)
		kubelet := NewKubelet(k, r, s)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go kubelet.Run(ctx)
		synctest.Wait()
		during(t, kubelet, r, k)
	})
}

// of are the events of one pod, without the resources in them.
func of(events []string, pod string) (its []string) {
	for _, e := range events {
		if words := strings.Fields(e); len(words) > 1 && (words[1] == pod || strings.HasPrefix(words[1], pod+"/")) {
			its = append(its, strings.Replace(e, pod+"/", "", 1))
		}
	}
	return its
}

func TestTheLivesOfTwoPods(t *testing.T) {
	web := Pod{Name: "web", Namespace: "shop", Class: "Guaranteed", At: seconds(1), End: minutes(8), Containers: []Container{
		{Name: "prepare", Kind: "init", Request: 64 * mib, Limit: 64 * mib, Lives: []Program{{Exit: seconds(5)}}},
		{Name: "proxy", Kind: "sidecar", Request: 32 * mib, Limit: 32 * mib},
		{Name: "app", Kind: "app", Request: 256 * mib, Limit: 256 * mib, CPUs: 2},
	}, Changes: []Change{{At: minutes(2), Kind: Resize, Container: "app", Limit: 512 * mib}, {At: minutes(5), Kind: NewSandbox}}}
	batch := Pod{Name: "batch", Namespace: "shop", Class: "Burstable", At: seconds(2), End: minutes(3), Containers: []Container{
		{Name: "work", Kind: "app", Request: 100 * mib, Limit: 200 * mib, Lives: []Program{{Exit: seconds(3)}, {Exit: seconds(4)}}},
	}}
	p := &recorder{}
	live(t, node(true, web, batch), newest, p, func(t *testing.T, k *Kubelet, r *ContainerRuntime, f *Kernel) {
		time.Sleep(4 * time.Minute)
		all := k.Pods()
		if len(all) != 1 || all[0].Name != "web" {
			t.Fatalf("after four minutes there is %+v", all)
		}
		app := all[0].Containers[1]
		if app.Spec.Limit != 512*mib || app.Resizing || f.text(app.Cgroup, "memory.max") != fmt.Sprint(512*mib) || f.text(all[0].Cgroup, "memory.max") != fmt.Sprint(544*mib) ||
			f.text(app.Cgroup, "cpuset.cpus") != "0,1" {
			t.Errorf("after the resize: %+v, in its cgroup %v", app, f.text(app.Cgroup, "memory.max"))
		}
		if path, err := cgroup.ParsePod("/" + all[0].Cgroup); err != nil || path.Pod != all[0].Cgroup {
			t.Errorf("the pod's cgroup: %+v, %v", path, err)
		}
		time.Sleep(10 * time.Minute)
		if left := k.Pods(); len(left) > 0 || len(r.record.Living()) > 0 || len(r.pods) > 0 {
			t.Errorf("left: %+v", left)
		}
		if calls := r.Calls(); len(calls.Ends) > 0 || len(calls.Refused) > 0 {
			t.Errorf("failed: %v %v", calls.Ends, calls.Refused)
		}
	})
	first := "CreateContainer prepare, StartContainer prepare, StopContainer prepare, CreateContainer proxy, StartContainer proxy, CreateContainer app, StartContainer app"
	want := "RunPodSandbox web, " + first + ", RemoveContainer prepare, UpdatePodSandbox web 570425344, UpdateContainer app 536870912, " +
		"StopContainer app, StopContainer proxy, StopPodSandbox web, RunPodSandbox web, " + first +
		", RemoveContainer app, RemoveContainer prepare, RemoveContainer proxy, RemovePodSandbox web, " +
		"StopContainer app, StopContainer proxy, StopPodSandbox web, RemoveContainer app, RemoveContainer proxy, RemovePodSandbox web"
	if got := strings.Join(of(p.seen(), "web"), ", "); got != want {
		t.Errorf("web:\n%s\nwant\n%s", got, want)
	}
	// Starts after 0, 0, 10, 20, 40, 80 s of waiting.
	var starts []string
	for _, e := range of(p.seen(), "batch") {
		if strings.HasPrefix(e, "Create") {
			starts = append(starts, e)
		}
	}
	if len(starts) != 6 {
		t.Errorf("batch has been started %d times: %q", len(starts), of(p.seen(), "batch"))
	}
}

func TestBackOffs(t *testing.T) {
	began := time.Unix(0, 0)
	var waits []time.Duration
	c, now := &member{}, began
	for range 8 {
		c.crashed(now)
		waits = append(waits, c.notBefore.Sub(now))
		c.restarted = c.notBefore
		now = c.notBefore.Add(time.Second)
	}
	want := []time.Duration{0, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute}
	if !slices.Equal(waits, want) {
		t.Errorf("waits %v, want %v", waits, want)
	}
	if c.crashed(now.Add(11 * time.Minute)); c.notBefore != now.Add(11*time.Minute) {
		t.Error("what has run for so long starts at once")
	}
}

func TestPodLevelResources(t *testing.T) {
	web := Pod{Name: "web", Namespace: "shop", Class: "Burstable", At: seconds(1), Request: 512 * mib, Limit: 1024 * mib, Containers: []Container{
		{Name: "one", Kind: "app", Request: 64 * mib, Limit: 128 * mib}, {Name: "two", Kind: "app"}},
		Changes: []Change{{At: minutes(1), Kind: Resize, Limit: 2048 * mib}}}
	p := &recorder{}
	live(t, node(false, web), newest, p, func(t *testing.T, k *Kubelet, r *ContainerRuntime, f *Kernel) {
		for _, limit := range []uint64{1024 * mib, 2048 * mib} {
			time.Sleep(50 * time.Second)
			pod := k.Pods()[0]
			if got := f.text(pod.Cgroup, "memory.max"); got != fmt.Sprint(limit) || *pod.PodLimit != limit || *pod.PodRequest != limit/2 {
				t.Errorf("the pod has %s of %d, and %+v", got, limit, pod.Pod)
			}
			for i, want := range []uint64{128 * mib, limit} {
				if got := f.text(pod.Containers[i].Cgroup, "memory.max"); got != fmt.Sprint(want) {
					t.Errorf("container %d has %s, want %d", i, got, want)
				}
			}
		}
		// Burstable: 1000 - a thousandth of the node's memory for each; two has half of what one leaves of the pod's request.
		if score := r.record.Living()[1].Linux.OomScoreAdj.GetValue(); score != 1000-224*1000/(16<<10) {
			t.Errorf("oom_score_adj is %d", score)
		}
	})
}

func TestCPUs(t *testing.T) {
	c := newCPUManager(twoNodes)
	one, two, both := c.take(3), c.take(2), c.take(3)
	if list(one) != "0,1,2" || list(two) != "4,5" || list(both) != "3,6,7" || c.take(1) != nil {
		t.Errorf("took %v, %v, %v", one, two, both)
	}
	if c.give(two); list(c.take(2)) != "4,5" {
		t.Error("what was given back is not there")
	}
}

func TestACreateIsTriedAgain(t *testing.T) {
	p := &recorder{refuse: map[string]error{"CreateContainer": errors.New("no room")}}
	web := Pod{Name: "web", Namespace: "shop", Class: "BestEffort", At: seconds(1), End: minutes(5), Containers: []Container{{Name: "app", Kind: "app"}}}
	live(t, node(false, web), older, p, func(t *testing.T, k *Kubelet, r *ContainerRuntime, f *Kernel) {
		time.Sleep(time.Minute)
		if n := len(r.Calls().Refused); n < 4 || n > 6 {
			t.Errorf("tried %d times in a minute", n)
		}
		p.mu.Lock()
		p.refuse = nil
		p.mu.Unlock()
		time.Sleep(20 * time.Second)
		if all := k.Pods(); len(all) != 1 || len(all[0].Containers) != 1 {
			t.Errorf("the container does not run: %+v", all)
		}
	})
}

func TestAPodDeletedByForce(t *testing.T) {
	p := &recorder{}
	web := Pod{Name: "web", Namespace: "shop", Class: "BestEffort", At: seconds(1), End: minutes(1), Forced: true, Containers: []Container{{Name: "app", Kind: "app"}}}
	live(t, node(false, web), newest, p, func(t *testing.T, k *Kubelet, r *ContainerRuntime, f *Kernel) {
		time.Sleep(time.Minute + time.Millisecond)
		pod := k.Pods()[0]
		if _, err := k.Provider().Ask(t.Context(), pod.Ref); !errors.Is(err, podinfo.ErrNotFound) || len(pod.Containers) != 1 || !pod.Ending {
			t.Errorf("%v, and %+v", err, pod)
		}
		time.Sleep(5 * time.Minute)
		if left := k.Pods(); len(left) > 0 {
			t.Errorf("left: %+v", left)
		}
	})
}

func TestAStaticPodIsMadeAgainWithItsUID(t *testing.T) {
	p := &recorder{}
	one := Pod{Name: "etcd", Namespace: "kube-system", Class: "BestEffort", Static: true, At: seconds(1), End: minutes(1), Containers: []Container{{Name: "app", Kind: "app"}}}
	two := one
	two.At, two.End = one.End+1, 0
	live(t, node(false, one, two), newest, p, func(t *testing.T, k *Kubelet, r *ContainerRuntime, f *Kernel) {
		time.Sleep(30 * time.Second)
		before := k.Pods()[0]
		time.Sleep(time.Minute)
		after := k.Pods()
		if len(after) != 1 || after[0].UID != before.UID || after[0].Sandboxes[0] == before.Sandboxes[0] {
			t.Errorf("before %+v, after %+v", before, after)
		}
	})
}

func TestASilentPodAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newPodAPI()
		one := &pods.Pod{Ref: pods.Ref{UID: "1", Name: "one"}}
		two := &pods.Pod{Ref: pods.Ref{UID: "2", Name: "two"}}
		api.put(one)
		provider := podinfo.Provider(api.client())
		var heard []string
		go provider.Run(t.Context(), func(pod *pods.Pod) { heard = append(heard, pod.Name) })
		synctest.Wait()
		api.silence(true)
		api.put(two)
		synctest.Wait()
		if _, ok := provider.Known(two.Ref); ok || provider.Connected() || provider.Problem() == "" || !slices.Equal(heard, []string{"one"}) {
			t.Errorf("in the silence: connected %t, problem %q, heard %q", provider.Connected(), provider.Problem(), heard)
		}
		if _, ok := provider.Known(one.Ref); !ok {
			t.Error("what was told before is forgotten")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := provider.Ask(ctx, two.Ref); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a question in the silence: %v", err)
		}
		api.silence(false)
		synctest.Wait()
		if pod, err := provider.Ask(t.Context(), two.Ref); err != nil || pod != two || !slices.Equal(heard, []string{"one", "one", "two"}) {
			t.Errorf("after it: %v, %v, heard %q", pod, err, heard)
		}
	})
}

// manyPods are pods that crash, end and are changed at any time.
func manyPods(seed uint64) (all []Pod) {
	draw := draws(seed, "pods")
	for i := range 12 {
		at := Duration(draw.Int64N(int64(10 * time.Minute)))
		all = append(all, Pod{Name: fmt.Sprint("pod", i), Namespace: "shop", Class: "Burstable", At: at, End: at + Duration(draw.Int64N(int64(40*time.Minute))),
			Forced: i%5 == 0, Static: i%7 == 0, Containers: []Container{
				{Name: "init", Kind: "init", Request: mib, Limit: 64 * mib, Lives: []Program{{Heap: 100 * mib}, {Exit: seconds(3)}}},
				{Name: "side", Kind: "sidecar", Request: mib, Limit: 64 * mib, Lives: []Program{{Heap: 20 * mib}}},
				{Name: "app", Kind: "app", Request: mib, Limit: 64 * mib, Lives: []Program{{Heap: 20 * mib, Exit: seconds(20 + i)}}},
			}, Changes: []Change{{At: at + minutes(3), Kind: Resize, Container: "app", Limit: 96 * mib}, {At: at + minutes(6), Kind: NewSandbox}}})
	}
	return all
}

// Many pods beside restarts of the runtime: in the quiet all run, at the end nothing is left of them, and a second run is the same.
func TestManyPods(t *testing.T) {
	for _, kind := range []Runtime{newest, older} {
		t.Run(kind.Name, func(t *testing.T) {
			var runs [2]recorder
			for i := range runs {
				live(t, node(true, manyPods(3)...), kind, &runs[i], func(t *testing.T, k *Kubelet, r *ContainerRuntime, f *Kernel) {
					liveMany(t, k, r, f, &runs[i])
				})
			}
			one, two := runs[0].timed(), runs[1].timed()
			for i := range min(len(one), len(two)) {
				if one[i] != two[i] {
					t.Fatalf("the same scenario is not the same run: %q and %q", one[i:min(i+4, len(one))], two[i:min(i+4, len(two))])
				}
			}
		})
	}
}

func liveMany(t *testing.T, k *Kubelet, r *ContainerRuntime, f *Kernel, p *recorder) {
	for range 6 {
		time.Sleep(4 * time.Minute)
		r.Restart(20123 * time.Millisecond) // never in the instant of a tick
		p.connect(t, r)
	}
	k.Quiet()
	time.Sleep(11 * time.Minute)
	pods := k.Pods()
	if len(pods) < 2 {
		t.Errorf("only %d pods in the quiet", len(pods))
	}
	for _, pod := range pods {
		if len(pod.Containers) != 2 || pod.Ending {
			t.Errorf("in the quiet, %+v", pod)
		}
	}
	k.EndPods()
	time.Sleep(time.Minute)
	if len(k.Pods()) > 0 || len(r.pods) > 0 || len(r.record.Living()) > 0 || len(r.running) > 0 {
		t.Errorf("left: %v, %v, %v, %v", k.Pods(), r.pods, r.record.Living(), r.running)
	}
	for name := range f.groups {
		if strings.Contains(name, "-pod") {
			t.Errorf("left: %s", name)
		}
	}
	if calls := r.Calls(); len(calls.Ends) > 0 || calls.Count["CreateContainer"] < 60 {
		t.Errorf("failed: %v of %v", calls.Ends, calls.Count)
	}
}

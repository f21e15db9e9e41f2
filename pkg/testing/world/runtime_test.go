package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/nri/pkg/stub"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

// ticking is a kernel whose time passes until the test ends.
func ticking(t *testing.T, m Machine) *Kernel {
	t.Helper()
	m.Kernel = "6.18.0"
	k := NewKernel(m, cgroups.InMemory(t))
	go func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case now := <-ticker.C:
				k.Tick(now)
			case <-t.Context().Done():
				return
			}
		}
	}()
	return k
}

// text is what a file of a cgroup shows, "" where there is none.
func (k *Kernel) text(cgroup, file string) string {
	text, _ := k.Text(cgroup, file)
	return text
}

// recorder is a plugin that writes down what it is sent, and answers as a test wants.
type recorder struct {
	mu     sync.Mutex
	events []string
	times  []time.Time
	hang   map[string]time.Duration // before the answer, by event
	refuse map[string]error
	adjust func(*api.ContainerAdjustment)
	stub   stub.Stub
}

func (p *recorder) note(event, subject string) error {
	p.mu.Lock()
	hang, err := p.hang[event], p.refuse[event]
	p.events = append(p.events, strings.TrimSpace(event+" "+subject))
	p.times = append(p.times, time.Now())
	p.mu.Unlock()
	time.Sleep(hang)
	return err
}

func (p *recorder) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.events)
}

func (p *recorder) timed() (events []string) {
	for i, e := range p.events {
		events = append(events, p.times[i].Format("15:04:05.000000 ")+e)
	}
	return events
}

func (p *recorder) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	return 0, p.note("Configure", runtime+" "+version)
}

func (p *recorder) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	return nil, p.note("Synchronize", fmt.Sprintf("%d %d", len(pods), len(containers)))
}

func (p *recorder) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("RunPodSandbox", pod.Name)
}

func (p *recorder) UpdatePodSandbox(_ context.Context, pod *api.PodSandbox, _, to *api.LinuxResources) error {
	return p.note("UpdatePodSandbox", fmt.Sprintf("%s %d", pod.Name, to.GetMemory().GetLimit().GetValue()))
}

func (p *recorder) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("StopPodSandbox", pod.Name)
}

func (p *recorder) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("RemovePodSandbox", pod.Name)
}

func (p *recorder) CreateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adjustment := &api.ContainerAdjustment{}
	if p.adjust != nil {
		p.adjust(adjustment)
	}
	return adjustment, nil, p.note("CreateContainer", pod.Name+"/"+c.Name)
}

func (p *recorder) StartContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	return p.note("StartContainer", pod.Name+"/"+c.Name)
}

func (p *recorder) UpdateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container, to *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	u := &api.ContainerUpdate{ContainerId: c.Id}
	u.AddLinuxUnified("memory.high", "8192")
	return []*api.ContainerUpdate{u}, p.note("UpdateContainer", fmt.Sprintf("%s/%s %d", pod.Name, c.Name, to.GetMemory().GetLimit().GetValue()))
}

func (p *recorder) StopContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, p.note("StopContainer", pod.Name+"/"+c.Name)
}

func (p *recorder) RemoveContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	return p.note("RemoveContainer", pod.Name+"/"+c.Name)
}

// connect keeps the plugin connected until the test ends.
func (p *recorder) connect(t *testing.T, r *ContainerRuntime, options ...stub.Option) {
	t.Helper()
	conn, err := r.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	options = append(options, stub.WithConnection(conn), stub.WithPluginName("recorder"), stub.WithPluginIdx("10"), stub.WithLogger(quiet{}), stub.WithOnClose(func() {}))
	if p.stub, err = stub.New(p, options...); err != nil {
		t.Fatal(err)
	}
	if err := p.stub.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Infof(context.Context, string, ...any)  {}
func (quiet) Warnf(context.Context, string, ...any)  {}
func (quiet) Errorf(context.Context, string, ...any) {}

var _ nrilog.Logger = quiet{}

// inBubble runs a test in virtual time with a runtime; all that is connected to it ends with it.
func inBubble(t *testing.T, kind Runtime, test func(*testing.T, *Kernel, *ContainerRuntime)) {
	synctest.Test(t, func(t *testing.T) {
		k := ticking(t, twoNodes)
		r := NewRuntime(k, kind, true)
		defer r.Disconnect()
		test(t, k, r)
		time.Sleep(10 * time.Second) // what is under way ends
	})
}

var twoNodes = Machine{Nodes: []NUMANode{{Memory: 8 << 30, Outside: 1 << 30, CPUs: 4}, {Memory: 8 << 30, Outside: 1 << 30, CPUs: 4}}, Systemd: true}

var (
	newest = Runtime{Name: "containerd", Version: "v2.4.2", NRI: "v0.12.5"}
	older  = Runtime{Name: "cri-o", Version: "1.35.2", NRI: "v0.11.0", Crun: true}
)

const parent = "kubepods.slice/kubepods-podu1.slice"

func runPod(t *testing.T, k *Kernel, r *ContainerRuntime) {
	t.Helper()
	must(k.Make(parent))
	if err := r.RunPodSandbox(&api.PodSandbox{Id: "s1", Uid: "u1", Name: "pod", Linux: &api.LinuxPodSandbox{CgroupParent: r.Parent(parent)}}); err != nil {
		t.Fatal(err)
	}
}

func asked(id string) *api.Container {
	return &api.Container{Id: id, PodSandboxId: "s1", Name: id, Linux: &api.LinuxContainer{Resources: &api.LinuxResources{}}}
}

func TestAdjustmentsReachTheCgroup(t *testing.T) {
	for name, test := range map[string]struct {
		kind   Runtime
		cgroup string
		high   string // after an update
	}{
		"containerd": {newest, parent + "/cri-containerd-a.scope", "8192"},
		"CRI-O with crun, which drops the unified map of an update": {older, parent + "/crio-a.scope/container", "4096"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, test.kind, func(t *testing.T, k *Kernel, r *ContainerRuntime) {
				p := &recorder{adjust: func(a *api.ContainerAdjustment) {
					a.SetLinuxCPUSetMems("1")
					a.AddLinuxUnified("memory.high", "4096")
				}}
				p.connect(t, r)
				runPod(t, k, r)
				if _, err := r.CreateContainer(asked("a")); err != nil {
					t.Fatal(err)
				}
				if mems, high := k.text(test.cgroup, "cpuset.mems"), k.text(test.cgroup, "memory.high"); mems != "1" || high != "4096" {
					t.Errorf("cpuset.mems is %q and memory.high %q", mems, high)
				}
				if err := r.UpdateContainer("a", &api.LinuxResources{Memory: memoryOf(1 << 20)}); err != nil {
					t.Fatal(err)
				}
				if limit, high := k.text(test.cgroup, "memory.max"), k.text(test.cgroup, "memory.high"); limit != "1048576" || high != test.high {
					t.Errorf("after an update, memory.max is %q and memory.high %q", limit, high)
				}
				u := &api.ContainerUpdate{ContainerId: "a"}
				u.AddLinuxUnified("memory.high", "12288")
				if _, err := p.stub.UpdateContainers([]*api.ContainerUpdate{u}); err != nil {
					t.Fatal(err)
				}
				if high := k.text(test.cgroup, "memory.high"); high != "12288" {
					t.Errorf("after an unasked update, memory.high is %q", high)
				}
			})
		})
	}
}

func TestWhoDoesNotAnswer(t *testing.T) {
	fail := stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true})
	for name, test := range map[string]struct {
		kind      Runtime
		options   []stub.Option
		err       string
		connected bool
	}{
		"has a failure policy":               {newest, []stub.Option{fail}, "failed to handle CreateContainer request: context deadline exceeded", true},
		"has none":                           {newest, nil, "", false},
		"has one that the runtime knows not": {older, []stub.Option{fail}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, test.kind, func(t *testing.T, k *Kernel, r *ContainerRuntime) {
				p := &recorder{hang: map[string]time.Duration{"CreateContainer": 3 * time.Second}}
				p.connect(t, r, test.options...)
				runPod(t, k, r)
				_, err := r.CreateContainer(asked("a"))
				if got := fmt.Sprint(err); test.err == "" && err != nil || !strings.Contains(got, test.err) {
					t.Errorf("the create: %v", err)
				}
				if worst := r.Calls().Worst["CreateContainer"]; worst != requestTime {
					t.Errorf("waited for %s", worst)
				}
				if r.Connected() != test.connected {
					t.Errorf("connected is %t", r.Connected())
				}
				time.Sleep(5 * time.Second)
			})
		})
	}
}

func TestRefusalsAreKept(t *testing.T) {
	inBubble(t, newest, func(t *testing.T, k *Kernel, r *ContainerRuntime) {
		p := &recorder{refuse: map[string]error{"CreateContainer": errors.New("no room"), "StopPodSandbox": errors.New("never")}}
		p.connect(t, r)
		runPod(t, k, r)
		_, err := r.CreateContainer(asked("a"))
		if err == nil || !strings.Contains(err.Error(), "no room") {
			t.Errorf("the create: %v", err)
		}
		_ = r.StopPodSandbox("s1")
		calls := r.Calls()
		if len(calls.Refused) != 1 || calls.Refused[0].Subject != "a" || len(calls.Ends) != 1 || calls.Ends[0].Event != "StopPodSandbox" {
			t.Errorf("refused %v, ends %v", calls.Refused, calls.Ends)
		}
	})
}

func TestAFrozenPluginAnswersAfterwards(t *testing.T) {
	inBubble(t, newest, func(t *testing.T, k *Kernel, r *ContainerRuntime) {
		p := &recorder{}
		p.connect(t, r)
		r.Freeze(true)
		runPod(t, k, r)
		if seen := p.seen(); slices.Contains(seen, "RunPodSandbox pod") || r.Connected() {
			t.Errorf("connected is %t, seen %q", r.Connected(), seen)
		}
		r.Freeze(false)
		synctest.Wait()
		if seen := p.seen(); !slices.Contains(seen, "RunPodSandbox pod") {
			t.Errorf("seen %q", seen)
		}
	})
}

func TestARestartOfTheRuntime(t *testing.T) {
	for name, test := range map[string]struct {
		kind Runtime
		high string // that the runtime has of the container afterwards
	}{
		"containerd forgets nothing": {newest, "12288"},
		"CRI-O has what it created":  {older, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, test.kind, func(t *testing.T, k *Kernel, r *ContainerRuntime) {
				p := &recorder{}
				p.connect(t, r)
				runPod(t, k, r)
				if _, err := r.CreateContainer(asked("a")); err != nil {
					t.Fatal(err)
				}
				if _, err := r.CreateContainer(asked("b")); err != nil {
					t.Fatal(err)
				}
				if err := r.StartContainer("b", Program{Exit: Duration(3 * time.Second)}, Who{}, Ending{Notice: time.Second}, nil); err != nil {
					t.Fatal(err)
				}
				u := &api.ContainerUpdate{ContainerId: "a"}
				u.AddLinuxUnified("memory.high", "12288")
				if _, err := p.stub.UpdateContainers([]*api.ContainerUpdate{u}); err != nil {
					t.Fatal(err)
				}
				done := make(chan struct{})
				go func() { r.Restart(10 * time.Second); close(done) }()
				synctest.Wait()
				if _, err := r.Dial(t.Context()); err == nil || r.Connected() {
					t.Error("there is a connection while the runtime is away")
				}
				if err := r.StopPodSandbox("s1"); !errors.Is(err, errAway) {
					t.Errorf("a request while it is away: %v", err)
				}
				<-done
				synctest.Wait()
				p.connect(t, r)
				seen := p.seen()
				if got := seen[len(seen)-1]; got != "Synchronize 1 1" { // b has ended meanwhile
					t.Errorf("the last event is %q", got)
				}
				if slices.Contains(seen, "StopContainer pod/b") {
					t.Error("the runtime has told of an end that it did not see")
				}
				if high := r.record.Find("a").Linux.Resources.Unified["memory.high"]; high != test.high {
					t.Errorf("memory.high is %q", high)
				}
			})
		})
	}
}

func TestACreateThatTheOCIRuntimeRefusesLeavesNothing(t *testing.T) {
	inBubble(t, newest, func(t *testing.T, k *Kernel, r *ContainerRuntime) {
		p := &recorder{adjust: func(a *api.ContainerAdjustment) { a.AddLinuxUnified("../memory.high", "1") }}
		p.connect(t, r)
		runPod(t, k, r)
		if _, err := r.CreateContainer(asked("a")); err == nil || !strings.Contains(err.Error(), "is not a file of a cgroup") {
			t.Errorf("the create: %v", err)
		}
		_, err := k.Text(parent+"/cri-containerd-a.scope", "memory.max")
		if !errors.Is(err, unix.ENOENT) || len(r.running) > 0 || len(r.record.Living()) > 0 {
			t.Errorf("left: %v, %v, %v", err, r.running, r.record.Living())
		}
	})
}

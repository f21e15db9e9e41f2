package nriplugin_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// bound is how long a test waits for something that must come.
const bound = 60 * time.Second

// recorder is an agent, and its own session, that remembers what it was told.
type recorder struct {
	mu       sync.Mutex
	runtime  ledger.Runtime
	apply    func(context.Context, []ledger.Update) error
	events   []string
	lost     []string
	changed  chan struct{}
	onCreate func(context.Context) error
	onStop   func() // once a StopContainer is known
	fails    error  // of every event
}

func newRecorder() *recorder { return &recorder{changed: make(chan struct{})} }

func (r *recorder) note(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) event(name string) (err error) {
	r.note(func() { r.events, err = append(r.events, name), r.fails })
	return err
}

// wait waits until the condition holds.
func (r *recorder) wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(bound)
	for {
		r.mu.Lock()
		holds, changed := condition(), r.changed
		r.mu.Unlock()
		if holds {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%s did not come within %s; events so far: %v", what, bound, r.events)
		}
	}
}

func (r *recorder) Connected(runtime ledger.Runtime, apply func(context.Context, []ledger.Update) error) *recorder {
	r.note(func() { r.runtime, r.apply = runtime, apply })
	return r
}
func (r *recorder) Disconnected(reason error) {
	r.note(func() { r.lost = append(r.lost, reason.Error()) })
}
func (r *recorder) Synchronize(context.Context, []ledger.Pod, []ledger.Container) ([]ledger.Update, error) {
	return nil, r.event("Synchronize")
}
func (r *recorder) RunPodSandbox(context.Context, ledger.Pod) error { return r.event("RunPodSandbox") }
func (r *recorder) UpdatePodSandbox(context.Context, ledger.Pod, uint64, uint64) error {
	return r.event("UpdatePodSandbox")
}
func (r *recorder) StopPodSandbox(context.Context, ledger.Pod) error {
	return r.event("StopPodSandbox")
}
func (r *recorder) RemovePodSandbox(context.Context, ledger.Pod) error {
	return r.event("RemovePodSandbox")
}
func (r *recorder) CreateContainer(ctx context.Context, _ ledger.Pod, _ ledger.Container) (ledger.Adjustment, error) {
	if r.onCreate != nil {
		if err := r.onCreate(ctx); err != nil {
			return ledger.Adjustment{}, err
		}
	}
	return ledger.Adjustment{CpusetMems: "0", Unified: map[string]string{"memory.high": "4096"}}, r.event("CreateContainer")
}
func (r *recorder) StartContainer(context.Context, ledger.Pod, ledger.Container) error {
	return r.event("StartContainer")
}
func (r *recorder) UpdateContainer(context.Context, ledger.Pod, ledger.Container, ledger.Resources) (*ledger.Adjustment, error) {
	return &ledger.Adjustment{Unified: map[string]string{"memory.high": "8192"}}, r.event("UpdateContainer")
}
func (r *recorder) PostUpdateContainer(context.Context, ledger.Pod, ledger.Container) error {
	return r.event("PostUpdateContainer")
}
func (r *recorder) StopContainer(context.Context, ledger.Pod, ledger.Container) error {
	err := r.event("StopContainer")
	if r.onStop != nil {
		r.onStop()
	}
	return err
}
func (r *recorder) RemoveContainer(context.Context, ledger.Pod, ledger.Container) error {
	return r.event("RemoveContainer")
}

// observer remembers what was handled.
type observer struct {
	mu      sync.Mutex
	handled map[string]error
}

func (o *observer) Handled(event string, _ time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.handled == nil {
		o.handled = map[string]error{}
	}
	o.handled[event] = err
}

func (o *observer) result(event string) (error, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	err, ok := o.handled[event]
	return err, ok
}

// wait waits until an event was handled.
func (o *observer) wait(t *testing.T, event string) {
	t.Helper()
	for deadline := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
		if _, ok := o.result(event); ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s was not handled within %s", event, bound)
		}
	}
}

func silent() logrus.FieldLogger {
	log, _ := logtest.NewNullLogger()
	return log
}

// connect runs a plugin until the test ends.
func connect(t *testing.T, socket string, recorder *recorder, observer nriplugin.Observer, fail bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	plugin := nriplugin.New(recorder, nriplugin.Options{
		Socket: socket, Name: "memory-manager", Index: "92", Observer: observer, Fail: fail, Log: silent(),
	})
	go func() { ended <- plugin.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run ended with %v", err)
			}
		case <-time.After(bound):
			t.Errorf("Run did not end within %s after its context", bound)
		}
	})
}

func start(t *testing.T, options cri.Options) *cri.Runtime {
	t.Helper()
	runtime := cri.New(options)
	if err := runtime.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runtime.Stop)
	return runtime
}

func socketIn(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "nri.sock")
}

func synchronized(t *testing.T, runtime *cri.Runtime, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if err := runtime.WaitSynchronized(ctx, count); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var (
	testPod       = &api.PodSandbox{Id: "sandbox", Uid: "uid", Namespace: "ns", Name: "pod"}
	testContainer = &api.Container{Id: "container", PodSandboxId: "sandbox", Name: "app"}
)

func TestEveryNRIVersionTakesThePluginAndItsAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		runtime, version string
		nri              nriplugin.Version
		wantNRI          string
		updatePod        bool
		apply            bool
	}{
		"containerd 1.7.20":    {"containerd", "v1.7.20", nriplugin.Version{Minor: 6, Patch: 1}, "0.6.1", false, false},
		"containerd of Ubuntu": {"containerd", "1.7.28-0ubuntu1", nriplugin.Version{Minor: 8}, "0.8.0", false, false},
		"containerd 2.1":       {"containerd", "v2.1.0", nriplugin.Version{Minor: 8}, "0.8.0", false, false},
		"CRI-O 1.33":           {"cri-o", "1.33.1", nriplugin.Version{Minor: 9}, "0.9.0", false, false},
		"CRI-O 1.34":           {"cri-o", "1.34.2", nriplugin.Version{Minor: 10}, "0.10.0", true, false},
		"containerd 2.2.1":     {"containerd", "v2.2.1", nriplugin.Version{Minor: 11}, "0.11.0", true, false},
		"containerd 2.3":       {"containerd", "v2.3.0", nriplugin.Version{Minor: 12}, "0.12.0", true, false},
		"containerd 2.4.2":     {"containerd", "v2.4.2", nriplugin.Version{Minor: 12, Patch: 3}, "0.12.3", true, true},
		"not known":            {"magic", "v1", nriplugin.Version{Minor: 8}, "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, socket, recorder, observer := context.Background(), socketIn(t), newRecorder(), &observer{}
			runtime := start(t, cri.Options{Socket: socket, Name: test.runtime, Version: test.version, NRI: test.nri})
			connect(t, socket, recorder, observer, false)
			synchronized(t, runtime, 1)
			must(t, runtime.RunPodSandbox(ctx, testPod))
			resources, err := runtime.CreateContainer(ctx, testContainer)
			must(t, err)
			if resources == nil || resources.CPU == nil {
				t.Fatalf("the OCI spec has resources %+v; events: %v", resources, recorder.events)
			}
			if resources.CPU.Mems != "0" || resources.Unified["memory.high"] != "4096" {
				t.Errorf("the OCI spec has cpuset.mems %q and unified %v", resources.CPU.Mems, resources.Unified)
			}
			must(t, runtime.StartContainer(ctx, "container"))
			must(t, runtime.UpdateContainer(ctx, "container", &api.LinuxResources{}))
			if got := runtime.Containers()[0].Linux.Resources.Unified["memory.high"]; got != "8192" {
				t.Errorf("memory.high is %s after the update, want 8192", got)
			}
			must(t, runtime.UpdatePodSandbox(ctx, "sandbox", nil, &api.LinuxResources{}))
			must(t, runtime.StopPodSandbox(ctx, "sandbox"))
			must(t, runtime.RemovePodSandbox(ctx, "sandbox"))

			want := []string{"Synchronize", "RunPodSandbox", "CreateContainer", "StartContainer", "UpdateContainer", "PostUpdateContainer"}
			if test.updatePod {
				want = append(want, "UpdatePodSandbox")
			}
			want = append(want, "StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox")
			observer.wait(t, "RemovePodSandbox")
			recorder.mu.Lock()
			defer recorder.mu.Unlock()
			if got := strings.Join(recorder.events, " "); got != strings.Join(want, " ") {
				t.Errorf("events:\ngot  %s\nwant %s", got, strings.Join(want, " "))
			}
			for _, event := range want {
				if err, ok := observer.result(event); !ok || err != nil {
					t.Errorf("%s was observed: %v, with the error %v", event, ok, err)
				}
			}
			all := nriplugin.EventNames()
			if !test.updatePod {
				all = slices.DeleteFunc(all, func(event string) bool { return event == "UpdatePodSandbox" })
			}
			if slices.Sort(want); !slices.Equal(slices.Sorted(slices.Values(all)), want) {
				t.Errorf("the names of the events are %q, observed were %q", all, want)
			}
			if recorder.runtime.Name != test.runtime || recorder.runtime.NRIVersion != test.wantNRI {
				t.Errorf("the agent was told of %+v, want NRI %q", recorder.runtime, test.wantNRI)
			}
			if got := recorder.apply != nil; got != test.apply {
				t.Errorf("unasked updates: %v, want %v", got, test.apply)
			}
		})
	}
}

func TestUnaskedUpdatesReachTheRuntime(t *testing.T) {
	ctx, socket, recorder := context.Background(), socketIn(t), newRecorder()
	runtime := start(t, cri.Options{Socket: socket})
	connect(t, socket, recorder, nil, false)
	synchronized(t, runtime, 1)
	must(t, runtime.RunPodSandbox(ctx, testPod))
	_, err := runtime.CreateContainer(ctx, testContainer)
	must(t, err)
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	must(t, recorder.apply(ctx, []ledger.Update{{ContainerID: "container", Adjustment: ledger.Adjustment{CpusetMems: "1"}}}))
	if got := runtime.Containers()[0].Linux.Resources.Cpu.Mems; got != "1" {
		t.Errorf("cpuset.mems is %q, want 1", got)
	}
}

// A runtime that does not answer is left alone: it gets the next updates once it has answered these.
func TestAnUpdateThatHangsIsTheOnlyOne(t *testing.T) {
	ctx, socket, recorder := context.Background(), socketIn(t), newRecorder()
	entered, gate := make(chan struct{}), make(chan struct{})
	recorder.onCreate = func(context.Context) error { close(entered); <-gate; return nil }
	adaptation.SetPluginRequestTimeout(bound)
	t.Cleanup(func() { adaptation.SetPluginRequestTimeout(adaptation.DefaultPluginRequestTimeout) })
	runtime := start(t, cri.Options{Socket: socket})
	connect(t, socket, recorder, nil, false)
	synchronized(t, runtime, 1)
	must(t, runtime.RunPodSandbox(ctx, testPod))
	created := make(chan error, 1)
	go func() { _, err := runtime.CreateContainer(ctx, testContainer); created <- err }()
	<-entered // updates wait for the create, in this runtime as in containerd

	updates := []ledger.Update{{ContainerID: "container", Adjustment: ledger.Adjustment{CpusetMems: "1"}}}
	givenUp, abort := context.WithCancel(ctx)
	abort()
	if err := recorder.apply(givenUp, updates); !errors.Is(err, context.Canceled) {
		t.Fatalf("an update that is given up ended with %v", err)
	}
	for range 3 {
		err := recorder.apply(ctx, updates)
		if err == nil || err.Error() != "the runtime has not answered the updates before these" {
			t.Fatalf("an update behind one that hangs ended with %v", err)
		}
	}
	close(gate)
	must(t, <-created)
	for deadline := time.Now().Add(bound); recorder.apply(ctx, updates) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("the runtime gets no updates after it has answered")
		}
	}
}

func TestReconnectsWithEveryRuntimeThatComesBack(t *testing.T) {
	socket, recorder := socketIn(t), newRecorder()
	connect(t, socket, recorder, nil, false)
	recorder.wait(t, "the word that there is no runtime", func() bool { return len(recorder.lost) > 0 })
	runtime := cri.New(cri.Options{Socket: socket})
	for count := 1; count <= 3; count++ {
		must(t, runtime.Start())
		synchronized(t, runtime, count)
		recorder.mu.Lock()
		lost := len(recorder.lost)
		recorder.mu.Unlock()
		runtime.Stop()
		recorder.wait(t, "the word that the runtime is gone", func() bool { return len(recorder.lost) > lost })
	}
}

func TestARuntimeThatNeverConfiguresIsLeft(t *testing.T) {
	// A server that takes the connection and says nothing: the registration itself runs into its time limit.
	socket, recorder := socketIn(t), newRecorder()
	listener, err := net.Listen("unix", socket)
	must(t, err)
	defer listener.Close()
	connect(t, socket, recorder, nil, false)
	recorder.wait(t, "the end of the try", func() bool { return len(recorder.lost) > 0 })
	recorder.mu.Lock()
	defer recorder.mu.Unlock()
	if !strings.Contains(recorder.lost[0], "failed to register") {
		t.Errorf("lost: %v", recorder.lost)
	}
}

func TestAnEventThatIsNotAnsweredInTime(t *testing.T) {
	adaptation.SetPluginRequestTimeout(5 * time.Second)
	t.Cleanup(func() { adaptation.SetPluginRequestTimeout(adaptation.DefaultPluginRequestTimeout) })
	for version, nri := range map[string]nriplugin.Version{"v2.1.0": {Minor: 8}, "v2.4.2": cri.BuiltIn} {
		for name, fail := range map[string]bool{"Ignore": false, "Fail": true} {
			t.Run(name+" with NRI "+nri.String(), func(t *testing.T) {
				ctx, socket, recorder, observer := context.Background(), socketIn(t), newRecorder(), &observer{}
				stuck := make(chan struct{})
				recorder.onCreate = func(context.Context) error { <-stuck; return nil }
				runtime := start(t, cri.Options{Socket: socket, Name: "containerd", Version: version, NRI: nri})
				connections := 1
				if fail && nri == cri.BuiltIn {
					connections = 2
				}
				connect(t, socket, recorder, observer, fail)
				synchronized(t, runtime, connections)
				must(t, runtime.RunPodSandbox(ctx, testPod))
				_, err := runtime.CreateContainer(ctx, testContainer)
				if err, _ := observer.result("CreateContainer"); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("observed: %v", err)
				}
				const want = "nri-memory-manager did not get CreateContainer done within"
				if fail {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Fatalf("a stuck create ended with %v, want %q", err, want)
					}
				} else {
					must(t, err)
					must(t, runtime.StopContainer(ctx, testContainer.Id)) // nobody is asked
					recorder.wait(t, "the end of the connection", func() bool { return len(recorder.lost) > 0 })
					connections++
					if !strings.Contains(recorder.lost[0], want) {
						t.Errorf("the connection ended because %q, want %q", recorder.lost[0], want)
					}
				}
				// The end of a pod waits for no create.
				must(t, runtime.StopPodSandbox(ctx, "sandbox"))
				close(stuck)
				synchronized(t, runtime, connections)
				if count := runtime.Synchronizations(); count != connections {
					t.Errorf("the plugin has connected %d times, want %d", count, connections)
				}
			})
		}
	}
}

// The runtime has the events of a pod and its containers go on before they are worked on; a create is decided after all of them.
func TestEventsAreWorkedOnInTheirOrder(t *testing.T) {
	ctx, socket, recorder := context.Background(), socketIn(t), newRecorder()
	gate := make(chan struct{})
	recorder.onStop = func() { <-gate }
	runtime := start(t, cri.Options{Socket: socket})
	connect(t, socket, recorder, nil, false)
	synchronized(t, runtime, 1)
	must(t, runtime.RunPodSandbox(ctx, testPod))
	_, err := runtime.CreateContainer(ctx, testContainer)
	must(t, err)
	must(t, runtime.StopPodSandbox(ctx, "sandbox"))
	must(t, runtime.RemovePodSandbox(ctx, "sandbox"))
	next := &api.PodSandbox{Id: "next", Uid: "next", Namespace: "ns", Name: "next"}
	must(t, runtime.RunPodSandbox(ctx, next))
	recorder.wait(t, "the end of the container", func() bool { return slices.Contains(recorder.events, "StopContainer") })
	close(gate)
	_, err = runtime.CreateContainer(ctx, &api.Container{Id: "second", PodSandboxId: "next", Name: "app"})
	must(t, err)
	want := "Synchronize RunPodSandbox CreateContainer StopContainer StopPodSandbox RemoveContainer RemovePodSandbox RunPodSandbox CreateContainer"
	recorder.mu.Lock()
	defer recorder.mu.Unlock()
	if got := strings.Join(recorder.events, " "); got != want {
		t.Errorf("events:\ngot  %s\nwant %s", got, want)
	}
}

// What is wrong with a notification is ours alone.
func TestNoNotificationFails(t *testing.T) {
	ctx, socket, recorder, observer := context.Background(), socketIn(t), newRecorder(), &observer{}
	wrong := errors.New("wrong")
	runtime := start(t, cri.Options{Socket: socket})
	connect(t, socket, recorder, observer, false)
	synchronized(t, runtime, 1)
	recorder.note(func() { recorder.fails = wrong })
	must(t, runtime.RunPodSandbox(ctx, testPod))
	if _, err := runtime.CreateContainer(ctx, testContainer); err == nil {
		t.Fatal("a create that is refused succeeds")
	}
	recorder.note(func() { recorder.fails = nil })
	_, err := runtime.CreateContainer(ctx, testContainer)
	must(t, err)
	recorder.note(func() { recorder.fails = wrong })
	must(t, runtime.StartContainer(ctx, "container"))
	must(t, runtime.UpdatePodSandbox(ctx, "sandbox", nil, &api.LinuxResources{}))
	must(t, runtime.StopPodSandbox(ctx, "sandbox"))
	must(t, runtime.RemovePodSandbox(ctx, "sandbox"))
	recorder.wait(t, "the last event", func() bool { return slices.Contains(recorder.events, "RemovePodSandbox") })
	for _, event := range []string{"RunPodSandbox", "StartContainer", "UpdatePodSandbox", "StopContainer", "StopPodSandbox"} {
		if err, ok := observer.result(event); !ok || err != wrong {
			t.Errorf("%s was observed: %v, with %v", event, ok, err)
		}
	}
}

func TestCheckSocket(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	socket := socketIn(t)
	listener, err := net.Listen("unix", socket)
	must(t, err)
	defer listener.Close()
	for name, test := range map[string]struct{ path, want string }{
		"a socket":      {socket, ""},
		"not there yet": {filepath.Join(dir, "absent"), ""},
		"a file":        {file, "is a regular file, not a socket"},
		"a folder":      {dir, "is a folder, not a socket"},
		"no path":       {filepath.Join(file, "nri.sock"), "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			err := nriplugin.CheckSocket(test.path)
			if test.want == "" {
				must(t, err)
			} else if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

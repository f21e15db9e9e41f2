package world

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// processes is what a runtime needs of a kernel.
type processes interface {
	cri.Cgroups
	Start(cgroup string, p Program, who Who, exited func(Exit)) (stop func())
	Requests(now Who)
}

// ContainerRuntime is containerd or CRI-O with the part of NRI that plugins talk to (pkg/adaptation of containerd/nri), which cannot run
// in virtual time itself: its requests wait for each other at a sync.Mutex.
type ContainerRuntime struct {
	kernel  processes
	kind    Runtime
	nri     nriplugin.Version
	systemd bool
	fails   func(kind string) error // of the runtime itself
	cdi     func() string           // the folder of CDI specifications
	// answered is called after each event that a plugin was sent, asked before plugins hear of a container, and created before it is made as they
	// have it.
	answered func(event api.Event, subject string, began time.Time)
	asked    func(*api.PodSandbox, *api.Container)
	created  func(*api.PodSandbox, *api.Container)
	refused  func(*api.PodSandbox, *api.Container, error) // by a plugin, to be created
	applies  func(*api.PodSandbox, *api.Container) func() // is called with the answers to an update, and what it returns before that is applied

	accepting lock // one plugin registers at a time
	// configuring is held while one does. NRI's stub waits for its configuration with a lock in its hand, and for ever: no daemon ends meanwhile.
	configuring lock
	turn        lock // one request at a time, as in both runtimes; guards what follows
	record      cri.Record
	pods        []*api.PodSandbox
	running     map[string]*task // by the container's ID, from its creation to its removal

	mu        sync.Mutex
	back      chan struct{} // closed when the runtime is there again; nil while it is
	unplugged time.Time     // until then nobody can connect
	thawed    chan struct{} // closed when the daemon goes on; nil while it does
	daemon    []*socket     // its ends of connections
	plugins   []*plugin     // in the order of requests
	calls     Calls
}

// lock is a mutex whose waiters are durably blocked, so that virtual time goes on.
type lock chan struct{}

func (l lock) hold() (release func()) {
	l <- struct{}{}
	return func() { <-l }
}

// Calls is what became of the events that plugins were sent.
type Calls struct {
	Count map[string]int           // by the event's name in NRI
	Worst map[string]time.Duration // until the answer, or until the runtime waited no longer
	// Ends are StopContainer, RemoveContainer, StopPodSandbox, RemovePodSandbox and RunPodSandbox that failed, which they never may.
	Ends []Refusal
	// Refused are other events that failed.
	Refused []Refusal
	Lost    int // plugins that the runtime closed because they did not answer
}

// Refusal is an event that a plugin answered with an error, or that failed by its failure policy.
type Refusal struct {
	At      time.Time
	Event   string
	Subject string // ID of the container or the sandbox
	Reason  error
}

func (r Refusal) String() string {
	return fmt.Sprintf("%s %s of %s: %v", r.At.Format("15:04:05.000"), r.Event, r.Subject, r.Reason)
}

var ends = []api.Event{api.Event_RUN_POD_SANDBOX, api.Event_STOP_CONTAINER, api.Event_REMOVE_CONTAINER,
	api.Event_STOP_POD_SANDBOX, api.Event_REMOVE_POD_SANDBOX}

// errAway is what the kubelet gets while the runtime is not there.
var errAway = errors.New("the container runtime is down")

// NewRuntime returns a runtime that nothing runs on yet.
func NewRuntime(k processes, r Runtime, systemd bool) *ContainerRuntime {
	return &ContainerRuntime{
		kernel: k, kind: r, fails: func(string) error { return nil }, answered: func(api.Event, string, time.Time) {}, asked: func(*api.PodSandbox, *api.Container) {}, created: func(*api.PodSandbox, *api.Container) {}, refused: func(*api.PodSandbox, *api.Container, error) {}, applies: func(*api.PodSandbox, *api.Container) func() { return func() {} }, nri: nriplugin.RuntimeNRIVersion(r.NRI, r.Name, r.Version), systemd: systemd,
		accepting: make(lock, 1), configuring: make(lock, 1), turn: make(lock, 1), running: map[string]*task{},
		record: cri.Record{CRIO: r.Name == "cri-o", Crun: r.Crun, Cgroups: k},
		calls:  Calls{Count: map[string]int{}, Worst: map[string]time.Duration{}},
	}
}

// Dial is the daemon's connect(2) to the NRI socket.
func (r *ContainerRuntime) Dial(ctx context.Context) (net.Conn, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		daemon, ours, thawed, err := r.connect()
		if thawed == nil {
			if err != nil {
				return nil, err
			}
			go r.accept(ours)
			return daemon, nil
		}
		select {
		case <-thawed:
		case <-ctx.Done():
		}
	}
}

// connect makes a connection; thawed is what to wait for while the daemon is stopped.
func (r *ContainerRuntime) connect() (daemon, ours *socket, thawed <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.thawed != nil:
		return nil, nil, r.thawed, nil
	case r.back != nil, time.Now().Before(r.unplugged):
		return nil, nil, nil, fmt.Errorf("connect: %w", fs.ErrNotExist)
	}
	daemon, ours = newSockets()
	r.daemon = append(slices.DeleteFunc(r.daemon, (*socket).closed), daemon)
	return daemon, ours, nil, nil
}

// Freeze is SIGSTOP and SIGCONT of the daemon, as its connections have it.
func (r *ContainerRuntime) Freeze(frozen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if frozen == (r.thawed != nil) {
		return
	}
	for _, s := range r.daemon {
		s.freeze(frozen)
	}
	if frozen {
		r.thawed = make(chan struct{})
		return
	}
	close(r.thawed)
	r.thawed = nil
}

// Disconnect is SIGKILL of the daemon, as its connections have it.
func (r *ContainerRuntime) Disconnect() {
	r.Freeze(false)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.daemon {
		s.kill()
	}
	r.daemon = nil
}

// Connected reports whether a plugin takes part in requests.
func (r *ContainerRuntime) Connected() bool { return len(r.connected()) > 0 }

func (r *ContainerRuntime) connected() (open []*plugin) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.plugins {
		if !p.gone() {
			open = append(open, p)
		}
	}
	r.plugins = slices.Clone(open)
	return open
}

// Calls returns what became of all events so far.
func (r *ContainerRuntime) Calls() Calls {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	calls.Count, calls.Worst = maps.Clone(calls.Count), maps.Clone(calls.Worst)
	calls.Ends, calls.Refused = slices.Clone(calls.Ends), slices.Clone(calls.Refused)
	return calls
}

// Restart has the runtime be away for so long. What it was about to do when it died is not done; containers live on. CRI-O then has of
// its containers what it wrote when it created them.
func (r *ContainerRuntime) Restart(away time.Duration) {
	r.mu.Lock()
	if r.back != nil {
		r.mu.Unlock()
		return
	}
	r.back = make(chan struct{})
	plugins := r.plugins
	r.plugins = nil
	r.mu.Unlock()
	for _, p := range plugins {
		p.close()
	}
	time.Sleep(away)
	defer r.turn.hold()()
	r.startUp()
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.back)
	r.back = nil
}

// Unplug has the runtime serve the kubelet without plugins for so long.
func (r *ContainerRuntime) Unplug(length time.Duration) {
	r.mu.Lock()
	r.unplugged = time.Now().Add(length)
	plugins := r.plugins
	r.plugins = nil
	r.mu.Unlock()
	for _, p := range plugins {
		p.close()
	}
}

// away is closed when the runtime is there again; nil while it is.
func (r *ContainerRuntime) away() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.back
}

// request is a request of the kubelet. It is alone, and fails while the runtime is away.
func (r *ContainerRuntime) request(do func() error) error {
	defer r.turn.hold()()
	if r.away() != nil {
		return errAway
	}
	return do()
}

// send sends an event to the plugins that have subscribed to it; answered takes what each answers.
func send[Q, A any](r *ContainerRuntime, event api.Event, subject string, method func(api.PluginService, context.Context, Q) (A, error),
	request Q, answered func(A) error) error {
	for _, p := range r.connected() {
		if !p.events.IsSet(event) {
			continue
		}
		began := time.Now()
		err := p.ask(event, func(ctx context.Context) error {
			answer, err := method(p, ctx, request)
			if err == nil && answered != nil {
				err = answered(answer)
			}
			return err
		})
		r.note(event, subject, time.Since(began), err)
		r.answered(event, subject, began)
		if r.away() != nil {
			return errAway
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *ContainerRuntime) note(event api.Event, subject string, took time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := event.PrettyName()
	r.calls.Count[name]++
	r.calls.Worst[name] = max(r.calls.Worst[name], took)
	if err == nil {
		return
	}
	to := &r.calls.Refused
	if slices.Contains(ends, event) {
		to = &r.calls.Ends
	}
	*to = append(*to, Refusal{At: time.Now(), Event: name, Subject: subject, Reason: err})
}

// update applies what a plugin wants of containers. An ID that is not known is silently left out, as in CRI-O.
func (r *ContainerRuntime) update(updates []*api.ContainerUpdate) (failed []*api.ContainerUpdate, err error) {
	for _, u := range updates {
		c := r.record.Find(u.ContainerId)
		if c == nil || u.GetLinux().GetResources() == nil {
			continue
		}
		if e := r.record.Update(c, u.Linux.Resources); e != nil {
			failed = append(failed, u)
			if !u.IgnoreFailure {
				err = errors.Join(err, fmt.Errorf("update of container %s: %w", u.ContainerId, e))
			}
		}
	}
	return failed, err
}

// sandboxCgroup is where the sandbox's own process is, in the pod's cgroup; "" where it has none.
func (r *ContainerRuntime) sandboxCgroup(pod *api.PodSandbox) string {
	if r.record.CRIO { // drop_infra_ctr
		return ""
	}
	_, dir := r.record.Path(pod.Linux.CgroupParent, pod.Id)
	return dir
}

// Parent is how the runtime names a pod's cgroup to plugins.
func (r *ContainerRuntime) Parent(cgroup string) string {
	if r.systemd && r.record.CRIO {
		return path.Base(cgroup)
	}
	return "/" + cgroup
}

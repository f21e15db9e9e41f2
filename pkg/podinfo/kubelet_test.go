package podinfo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// long is the bound of every wait: far more than a loaded machine needs.
const long = time.Minute

func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(long); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}

func quiet() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(&strings.Builder{})
	log.SetLevel(logrus.DebugLevel)
	return log
}

// fakeKubelet serves the kubelet's pod API on a socket: the real gRPC service, filled by the test.
type fakeKubelet struct {
	podsv1alpha1.UnimplementedPodsServer
	socket string
	server *grpc.Server

	mu       sync.Mutex
	pods     map[types.UID]*corev1.Pod
	watchers map[chan *podsv1alpha1.WatchPodsEvent]struct{}
	silent   bool          // the watch says nothing, not even that it has told of all
	hang     chan struct{} // GetPod does not answer before it is closed
	wrong    []byte        // what GetPod answers instead
	asked    int
	refuse   error // what WatchPods and GetPod answer; nil serves pods
	limited  bool  // GetPod is asked too often
	watched  int
}

func newFakeKubelet(t testing.TB) *fakeKubelet {
	dir, err := os.MkdirTemp("", "kubelet") // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	k := &fakeKubelet{socket: filepath.Join(dir, "kubelet.sock"), pods: map[types.UID]*corev1.Pod{},
		watchers: map[chan *podsv1alpha1.WatchPodsEvent]struct{}{}}
	t.Cleanup(k.stop)
	return k
}

func (k *fakeKubelet) start(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("unix", k.socket)
	if err != nil {
		t.Fatal(err)
	}
	k.server = grpc.NewServer()
	podsv1alpha1.RegisterPodsServer(k.server, k)
	go k.server.Serve(listener)
}

// stop ends the server as a kubelet that is killed: all connections break, the socket goes.
func (k *fakeKubelet) stop() {
	if k.server != nil {
		k.server.Stop()
		os.Remove(k.socket)
	}
}

func (k *fakeKubelet) with(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

func (k *fakeKubelet) put(pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kind := podsv1alpha1.EventType_ADDED
	if _, ok := k.pods[pod.UID]; ok {
		kind = podsv1alpha1.EventType_MODIFIED
	}
	k.pods[pod.UID] = pod
	k.send(kind, encoded(pod))
}

func (k *fakeKubelet) drop(pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, pod.UID)
	k.send(podsv1alpha1.EventType_DELETED, encoded(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID}}))
}

func (k *fakeKubelet) send(kind podsv1alpha1.EventType, pod []byte) {
	for watcher := range k.watchers {
		watcher <- &podsv1alpha1.WatchPodsEvent{Type: kind, Pod: pod}
	}
}

func encoded(pod *corev1.Pod) []byte {
	data, err := pod.Marshal()
	if err != nil {
		panic(err)
	}
	return data
}

func (k *fakeKubelet) WatchPods(_ *podsv1alpha1.WatchPodsRequest, stream grpc.ServerStreamingServer[podsv1alpha1.WatchPodsEvent]) error {
	events := make(chan *podsv1alpha1.WatchPodsEvent, 10_000)
	k.mu.Lock()
	k.watched++
	if err := k.refuse; err != nil {
		k.mu.Unlock()
		return err
	}
	if k.silent {
		k.mu.Unlock()
		<-stream.Context().Done()
		return nil
	}
	for _, pod := range k.pods {
		events <- &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_ADDED, Pod: encoded(pod)}
	}
	events <- &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE}
	k.watchers[events] = struct{}{}
	k.mu.Unlock()
	defer k.with(func() { delete(k.watchers, events) })
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case event := <-events:
			if event == nil {
				return nil // the end of the stream
			}
			if err := stream.Send(event); err != nil {
				return err
			}
		}
	}
}

func (k *fakeKubelet) GetPod(ctx context.Context, request *podsv1alpha1.GetPodRequest) (*podsv1alpha1.GetPodResponse, error) {
	k.mu.Lock()
	pod, hang, wrong := k.pods[types.UID(request.GetPodUID())], k.hang, k.wrong
	refuse, limited := k.refuse, k.limited
	k.asked++
	k.mu.Unlock()
	if refuse != nil {
		return nil, refuse
	}
	if limited {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	switch {
	case wrong != nil:
		return &podsv1alpha1.GetPodResponse{Pod: wrong}, nil
	case pod == nil:
		return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", request.GetPodUID())
	case pod.Name == "broken":
		return nil, status.Error(codes.Internal, "failed to marshal pod")
	}
	return &podsv1alpha1.GetPodResponse{Pod: encoded(pod)}, nil
}

// testPod is a Burstable pod of one container with a request.
func testPod(t testing.TB, name, request string) *corev1.Pod {
	return manifest(t, fmt.Sprintf(`
metadata: {uid: uid-%s, namespace: ns, name: %s}
spec: {containers: [{name: app, resources: {requests: {memory: %s}}}]}`, name, name, request))
}

func refOf(pod *corev1.Pod) pods.Ref { return FromPod(pod).Ref }

// running runs a provider until the test's end.
func running(t testing.TB, provider Provider, changed func(*pods.Pod)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		provider.Run(ctx, changed)
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func newTestKubelet(server *fakeKubelet) *Kubelet {
	k := NewKubelet(server.socket)
	k.Log = quiet()
	k.absent, k.retry = 5*time.Millisecond, [2]time.Duration{time.Millisecond, 10 * time.Millisecond}
	return k
}

func requestOf(p Provider, ref pods.Ref) uint64 {
	pod, ok := p.Known(ref)
	if !ok {
		return 0
	}
	return pod.Containers[0].Request
}

func TestKubeletIsFollowedThroughItsLife(t *testing.T) {
	server := newFakeKubelet(t)
	first, second := testPod(t, "first", "64Mi"), testPod(t, "second", "65Mi")
	server.put(first)

	kubelet := newTestKubelet(server)
	var mu sync.Mutex
	heard := map[string]int{}
	running(t, kubelet, func(pod *pods.Pod) { mu.Lock(); defer mu.Unlock(); heard[pod.Name]++ })
	if _, err := kubelet.Ask(t.Context(), refOf(first)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without a socket: got %v", err)
	}

	server.start(t) // the socket appears later
	eventually(t, "the first pod", func() bool { return kubelet.Connected() && requestOf(kubelet, refOf(first)) == 64*mi })
	server.put(second)
	eventually(t, "the second pod", func() bool { return requestOf(kubelet, refOf(second)) == 65*mi })
	second = testPod(t, "second", "66Mi")
	server.put(second)
	eventually(t, "its resize", func() bool { return requestOf(kubelet, refOf(second)) == 66*mi })
	server.put(second) // nothing new, as most updates of a status
	server.with(func() { server.send(podsv1alpha1.EventType_MODIFIED, []byte("no pod")) })
	server.drop(first)
	eventually(t, "the first pod's end", func() bool { return kubelet.Len() == 1 })
	mu.Lock()
	if heard["first"] != 1 || heard["second"] != 2 {
		t.Errorf("heard %v, want first once and second twice", heard)
	}
	mu.Unlock()

	server.stop()
	eventually(t, "the loss of the kubelet", func() bool { return !kubelet.Connected() })
	if requestOf(kubelet, refOf(second)) != 66*mi {
		t.Error("a pod is forgotten while the kubelet is away")
	}
	third := testPod(t, "third", "67Mi")
	server.with(func() { server.pods = map[types.UID]*corev1.Pod{third.UID: third} })
	server.start(t)
	eventually(t, "the pods after the restart", func() bool {
		return kubelet.Connected() && requestOf(kubelet, refOf(third)) == 67*mi && kubelet.Len() == 1
	})
	fourth := testPod(t, "fourth", "68Mi")
	server.with(func() { // a client that is too slow is dropped, and not told of the fourth pod
		server.pods[fourth.UID] = fourth
		for watcher := range server.watchers {
			watcher <- nil
		}
	})
	eventually(t, "the new stream", func() bool { return requestOf(kubelet, refOf(fourth)) == 68*mi })
}

func TestKubeletIsAskedForAPodThatTheWatchHasNotToldOf(t *testing.T) {
	server := newFakeKubelet(t)
	server.start(t)
	kubelet := newTestKubelet(server)
	stop := running(t, kubelet, func(*pods.Pod) {})
	eventually(t, "the connection", kubelet.Connected)

	pod := testPod(t, "late", "64Mi")
	server.with(func() { server.pods[pod.UID] = pod })
	got, err := kubelet.Ask(t.Context(), refOf(pod))
	if err != nil || got.Containers[0].Request != 64*mi {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := kubelet.Ask(t.Context(), pods.Ref{UID: "none"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("a pod that is not there: got %v", err)
	}
	broken := testPod(t, "broken", "64Mi")
	server.with(func() { server.pods[broken.UID] = broken })
	if _, err := kubelet.Ask(t.Context(), refOf(broken)); err == nil || !strings.HasPrefix(err.Error(), "ask the kubelet for pod ns/broken (uid-broken): ") {
		t.Errorf("a broken pod: got %v", err)
	}
	server.with(func() { server.wrong = []byte("no pod") })
	if _, err := kubelet.Ask(t.Context(), refOf(pod)); err == nil || !strings.Contains(err.Error(), "decode v1.Pod of 6 bytes") {
		t.Errorf("bytes that are no pod: got %v", err)
	}
	server.with(func() { server.wrong = encoded(broken) })
	if _, err := kubelet.Ask(t.Context(), refOf(pod)); err == nil || !strings.Contains(err.Error(), "it answers with pod ns/broken") {
		t.Errorf("another pod: got %v", err)
	}
	server.with(func() { server.hang = make(chan struct{}) })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := kubelet.Ask(ctx, refOf(pod)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a kubelet that hangs: got %v", err)
	}
	server.put(pod)
	eventually(t, "the watch", func() bool { return kubelet.Len() == 1 })
	if got, err := kubelet.Ask(t.Context(), refOf(pod)); err != nil || got.Name != "late" {
		t.Errorf("a known pod of a kubelet that hangs: got %+v, %v", got, err)
	}
	stop()
	if _, err := kubelet.Ask(t.Context(), pods.Ref{UID: "none"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("after the end: got %v", err)
	}
}

func TestKubeletThatNeverTellsOfAllPodsIsTriedAgain(t *testing.T) {
	server := newFakeKubelet(t)
	server.silent = true
	server.start(t)
	kubelet := newTestKubelet(server)
	kubelet.syncing = 20 * time.Millisecond
	pod := testPod(t, "a", "64Mi")
	server.put(pod)
	synced, err := kubelet.watch(t.Context(), func(*pods.Pod) {})
	if synced || err == nil || !strings.Contains(err.Error(), "did not send all pods within 20ms") {
		t.Errorf("got %t, %v", synced, err)
	}
	kubelet.syncing = long
	server.with(func() { server.silent = false })
	running(t, kubelet, func(*pods.Pod) {})
	eventually(t, "the pods", kubelet.Connected)
}

// TestKubeletWhoseGateIsOff serves its socket, as from Kubernetes 1.37, and answers everything with an error.
func TestKubeletWhoseGateIsOff(t *testing.T) {
	for name, refuse := range map[string]error{
		"a plain error":       errors.New("PodsAPI is disabled"),
		"FailedPrecondition":  status.Error(codes.FailedPrecondition, "PodsAPI is disabled"),
		"Unimplemented":       status.Error(codes.Unimplemented, "PodsAPI is disabled"),
		"permission is wrong": status.Error(codes.PermissionDenied, "PodsAPI is disabled"),
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeKubelet(t)
			server.refuse = refuse
			server.start(t)
			var logged lines
			log := logrus.New()
			log.SetOutput(&strings.Builder{})
			log.AddHook(&logged)
			kubelet := newTestKubelet(server)
			kubelet.Log, kubelet.off = log, time.Millisecond
			stop := running(t, kubelet, func(*pods.Pod) {})
			eventually(t, "three attempts", func() bool { server.mu.Lock(); defer server.mu.Unlock(); return server.watched >= 3 })
			if kubelet.Connected() || !strings.Contains(kubelet.Problem(), "turned off: ") || !strings.Contains(kubelet.Problem(), "PodsAPI is disabled") {
				t.Errorf("connected %t, problem %q", kubelet.Connected(), kubelet.Problem())
			}
			server.with(func() { server.refuse = nil })
			eventually(t, "the pods of a kubelet that was restarted with the gate", kubelet.Connected)
			stop()
			if len(logged) < 2 || !strings.HasPrefix(logged[0], "info: the kubelet's pod API is turned off: another source of memory requests is used until it answers; it needs the kubelet's feature gate PodsAPI") ||
				logged[1] != "info: the kubelet's pod API answers" {
				t.Errorf("logged %q", logged)
			}
		})
	}
}

// TestKubeletIsTriedAgainAfterAWhile: the longer it is of no use, the longer the time between two attempts.
func TestKubeletIsTriedAgainAfterAWhile(t *testing.T) {
	k := NewKubelet("/nowhere")
	failure := status.Error(codes.Internal, "broken")
	for name, tt := range map[string]struct {
		err             error
		wait, now, next time.Duration
	}{
		"no socket":              {os.ErrNotExist, time.Second, 2 * time.Second, time.Second},
		"off":                    {fmt.Errorf("watch: %w: %w", errOff, failure), time.Second, time.Minute, time.Second},
		"the first failure":      {failure, 100 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond},
		"many failures":          {failure, 10 * time.Second, 10 * time.Second, 15 * time.Second},
		"a rate limit":           {status.Error(codes.ResourceExhausted, "limit"), 10 * time.Second, 10 * time.Second, 15 * time.Second},
		"a kubelet that is gone": {status.Error(codes.Unavailable, "refused"), time.Second, time.Second, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if now, next := k.pause(tt.err, tt.wait); now != tt.now || next != tt.next {
				t.Errorf("%s, then %s, want %s, then %s", now, next, tt.now, tt.next)
			}
		})
	}
}

// TestAnswersOfAKubeletWhoseGateIsOff are those that no kubelet gives that serves pods, or is about to.
func TestAnswersOfAKubeletWhoseGateIsOff(t *testing.T) {
	for code, want := range map[codes.Code]bool{
		codes.Unknown: true, codes.Unimplemented: true, codes.FailedPrecondition: true, codes.PermissionDenied: true,
		codes.Unavailable: false, codes.ResourceExhausted: false, codes.Internal: false, codes.Canceled: false, codes.DeadlineExceeded: false,
	} {
		if got := off(status.Error(code, "")); got != want {
			t.Errorf("%s: off %t", code, got)
		}
	}
}

// TestAKubeletThatLimitsTheRateIsNotAskedForAWhile: its watch goes on all the same.
func TestAKubeletThatLimitsTheRateIsNotAskedForAWhile(t *testing.T) {
	server := newFakeKubelet(t)
	server.limited = true
	server.start(t)
	kubelet := newTestKubelet(server)
	changed := make(chan string, 10)
	r := New(Options{Providers: []Provider{kubelet}, Timeout: long, Changed: func(a pods.Answer) { changed <- a.Pod.Name }, Log: quiet()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	defer func() { cancel(); <-done }()
	eventually(t, "the connection", kubelet.Connected)

	first, second := testPod(t, "first", "64Mi"), testPod(t, "second", "65Mi")
	for _, pod := range []*corev1.Pod{first, second} {
		if answer, ok := r.Resolve(t.Context(), refOf(pod)); ok {
			t.Errorf("%s: got %+v", pod.Name, answer)
		}
	}
	server.mu.Lock()
	asked := server.asked
	server.mu.Unlock()
	if stats := r.Stats().Sources[0]; asked != 1 || stats.Errors != 1 || !stats.Suspended || !stats.Connected {
		t.Errorf("asked %d times, %+v", asked, stats)
	}
	server.put(second)
	if name := <-changed; name != "second" {
		t.Errorf("heard of %s", name)
	}
}

func TestKubeletSocketThatIsNoSocket(t *testing.T) {
	server := newFakeKubelet(t)
	if err := os.WriteFile(server.socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	kubelet := newTestKubelet(server)
	kubelet.Log = nil
	if synced, err := kubelet.watch(t.Context(), func(*pods.Pod) {}); synced || err == nil || !strings.Contains(err.Error(), server.socket) {
		t.Errorf("got %t, %v", synced, err)
	}
	if _, err := kubelet.watch(t.Context(), nil); err == nil {
		t.Error("no error")
	}
}

func TestKubeletThatDoesNotServePods(t *testing.T) {
	server := newFakeKubelet(t)
	listener, err := net.Listen("unix", server.socket)
	if err != nil {
		t.Fatal(err)
	}
	other := grpc.NewServer()
	defer other.Stop()
	go other.Serve(listener)
	if _, err := newTestKubelet(server).watch(t.Context(), func(*pods.Pod) {}); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v, want Unimplemented", err)
	}
}

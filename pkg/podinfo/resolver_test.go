package podinfo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// following runs a resolver over a kubelet and an API server until the test's end, and collects what it tells of.
type following struct {
	*Resolver
	mu   sync.Mutex
	told []pods.Answer
	stop func()
}

func follow(t testing.TB, timeout time.Duration, providers ...Provider) *following {
	t.Helper()
	return followFile(t, timeout, "", providers...)
}

// followFile is follow with a file of known pods.
func followFile(t testing.TB, timeout time.Duration, file string, providers ...Provider) *following {
	t.Helper()
	f := &following{}
	f.Resolver = New(Options{Providers: providers, Timeout: timeout, File: file, Log: quiet(), Changed: func(a pods.Answer) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.told = append(f.told, a)
	}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx)
	}()
	f.stop = func() { cancel(); <-done }
	t.Cleanup(f.stop)
	return f
}

// last is the newest answer for a pod that was told, as source and request.
func (f *following) last(ref pods.Ref) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := len(f.told) - 1; i >= 0; i-- {
		if f.told[i].Pod.Ref == ref {
			return shown(f.told[i])
		}
	}
	return "nothing"
}

func (f *following) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.told)
}

func shown(a pods.Answer) string {
	if a.Pod == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s %dMi", a.Source, a.Pod.Containers[0].Request/mi)
}

func resolved(t testing.TB, r *following, ref pods.Ref) string {
	t.Helper()
	answer, ok := r.Resolve(t.Context(), ref)
	if ok != (answer.Pod != nil) {
		t.Errorf("%s: got %+v, %t", ref, answer, ok)
	}
	return shown(answer)
}

func TestResolverBelievesTheFirstSourceInOrder(t *testing.T) {
	kubeletServer, podServer := newFakeKubelet(t), newPodServer(t)
	kubeletServer.start(t)
	kubeletServer.put(testPod(t, "both", "64Mi"))
	podServer.Put(testPod(t, "both", "65Mi"))
	podServer.Put(testPod(t, "api", "66Mi"))
	kubelet, api := newTestKubelet(kubeletServer), newTestAPIServer(t, podServer)
	both, only := refOf(testPod(t, "both", "1")), refOf(testPod(t, "api", "1"))

	for name, tt := range map[string]struct {
		order []Provider
		want  string
	}{
		"kubelet first":    {[]Provider{kubelet, api}, "kubelet 64Mi"},
		"API server first": {[]Provider{api, kubelet}, "apiserver 65Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			r := follow(t, long, tt.order...)
			eventually(t, "both sources", func() bool { return kubelet.Connected() && api.Connected() })
			if got := resolved(t, r, both); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if got := resolved(t, r, only); got != "apiserver 66Mi" {
				t.Errorf("got %s, want the only source that knows", got)
			}
			stats := r.Stats()
			answers := map[memoryqos.Source]uint64{}
			for _, s := range stats.Sources {
				answers[s.Source] += s.Answers
				if !s.Connected || s.Suspended {
					t.Errorf("got %+v", s)
				}
			}
			if answers[tt.order[0].Source()]+answers[tt.order[1].Source()] != 2 {
				t.Errorf("got %+v", stats)
			}
			r.stop()
		})
	}
}

func TestResolverCorrectsWhenABetterSourceSpeaks(t *testing.T) {
	kubeletServer, podServer := newFakeKubelet(t), newPodServer(t)
	kubelet, api := newTestKubelet(kubeletServer), newTestAPIServer(t, podServer)
	r := follow(t, 20*time.Millisecond, kubelet, api)
	pod := testPod(t, "a", "64Mi")
	ref := refOf(pod)
	eventually(t, "the API server", api.Connected)

	if got := resolved(t, r, ref); got != "nothing" {
		t.Errorf("before any source knows: got %s", got)
	}
	podServer.Put(pod)
	eventually(t, "the API server's answer", func() bool { return r.last(ref) == "apiserver 64Mi" })
	kubeletServer.put(testPod(t, "a", "65Mi"))
	kubeletServer.start(t)
	eventually(t, "the kubelet's answer", func() bool { return r.last(ref) == "kubelet 65Mi" })
	if got := resolved(t, r, ref); got != "kubelet 65Mi" {
		t.Errorf("got %s", got)
	}
	podServer.Put(testPod(t, "a", "66Mi")) // the lesser source does not count
	eventually(t, "the lesser source", func() bool { return requestOf(api, ref) == 66*mi })
	kubeletServer.put(testPod(t, "a", "67Mi"))
	eventually(t, "a resize", func() bool { return r.last(ref) == "kubelet 67Mi" })

	// Without the kubelet its word stands until the API server says something else.
	before := r.count()
	kubeletServer.stop()
	eventually(t, "the loss of the kubelet", func() bool { return !kubelet.Connected() })
	if answer, _ := r.Known(ref); shown(answer) != "kubelet 67Mi" || resolved(t, r, ref) != "kubelet 67Mi" {
		t.Errorf("without the kubelet: known %s, want what it said last", shown(answer))
	}
	podServer.Put(testPod(t, "a", "68Mi"))
	eventually(t, "the API server's word", func() bool { return r.last(ref) == "apiserver 68Mi" })
	if got := r.count(); got != before+1 {
		t.Errorf("told %d times, want once", got-before)
	}

	// A pod that the sources drop is known until its sandbox is gone.
	podServer.With(func() { podServer.Broken = true; podServer.Cut() })
	eventually(t, "the loss of both", func() bool { return !api.Connected() })
	if answer, _ := r.Known(ref); shown(answer) != "apiserver 68Mi" {
		t.Errorf("without both: known %s, want what was said last", shown(answer))
	}
	podServer.With(func() { podServer.Broken = false })
	podServer.Drop("a")
	kubeletServer.with(func() { clear(kubeletServer.pods) })
	kubeletServer.start(t)
	eventually(t, "the pod's end", func() bool { return kubelet.Connected() && api.Len() == 0 && kubelet.Len() == 0 })
	if got := resolved(t, r, ref); got != "apiserver 68Mi" {
		t.Errorf("after the pod's end: got %s", got)
	}
	if answer, ok := r.Known(ref); !ok || shown(answer) != "apiserver 68Mi" {
		t.Errorf("after the pod's end: known %s", shown(answer))
	}
	r.Forget(ref)
	if answer, ok := r.Known(ref); ok {
		t.Errorf("after the sandbox's end: known %s", shown(answer))
	}
	kubeletServer.put(pod)
	eventually(t, "the pod's return", func() bool { return kubelet.Len() == 1 })
	if got := r.count(); got != before+1 {
		t.Errorf("a forgotten pod was told of")
	}
}

func TestResolverReturnsToABetterSourceThatHasNothingNew(t *testing.T) {
	kubeletServer, podServer := newFakeKubelet(t), newPodServer(t)
	pod := testPod(t, "a", "64Mi")
	kubeletServer.put(pod)
	podServer.Put(testPod(t, "a", "65Mi"))
	kubeletServer.start(t)
	kubelet, api := newTestKubelet(kubeletServer), newTestAPIServer(t, podServer)
	r := follow(t, long, kubelet, api)
	eventually(t, "both sources", func() bool { return kubelet.Connected() && api.Connected() })
	if got := resolved(t, r, refOf(pod)); got != "kubelet 64Mi" {
		t.Errorf("got %s", got)
	}
	kubeletServer.stop()
	eventually(t, "the loss of the kubelet", func() bool { return !kubelet.Connected() })
	podServer.Put(testPod(t, "a", "66Mi"))
	eventually(t, "the other source's word", func() bool { return r.last(refOf(pod)) == "apiserver 66Mi" })
	kubeletServer.start(t)
	eventually(t, "the kubelet's return", func() bool { return r.last(refOf(pod)) == "kubelet 64Mi" })

	// The same for the API server, which resumes its watch without another list.
	r.stop()
	other := follow(t, long, api, kubelet)
	eventually(t, "both sources", func() bool { return kubelet.Connected() && api.Connected() })
	if got := resolved(t, other, refOf(pod)); got != "apiserver 66Mi" {
		t.Errorf("got %s", got)
	}
	podServer.With(func() { podServer.Broken = true; podServer.Cut() })
	eventually(t, "the loss of the API server", func() bool { return !api.Connected() })
	kubeletServer.put(testPod(t, "a", "67Mi"))
	eventually(t, "the kubelet's word", func() bool { return other.last(refOf(pod)) == "kubelet 67Mi" })
	podServer.With(func() { podServer.Broken = false })
	eventually(t, "the API server's return", func() bool { return other.last(refOf(pod)) == "apiserver 66Mi" })
}

func TestResolverAsksWhenTheWatchIsLate(t *testing.T) {
	server := newFakeKubelet(t)
	server.start(t)
	kubelet := newTestKubelet(server)
	r := follow(t, long, kubelet)
	eventually(t, "the kubelet", kubelet.Connected)
	pod := testPod(t, "late", "64Mi")
	server.with(func() { server.pods[pod.UID] = pod })
	r.Expect(refOf(pod))
	r.Expect(refOf(pod))
	for range 3 {
		if got := resolved(t, r, refOf(pod)); got != "kubelet 64Mi" {
			t.Errorf("got %s", got)
		}
	}
	server.with(func() {
		if server.asked != 1 {
			t.Errorf("the kubelet was asked %d times, want once", server.asked)
		}
	})
	if got := resolved(t, r, pods.Ref{UID: "none"}); got != "nothing" {
		t.Errorf("got %s", got)
	}
	stats := r.Stats()
	if diff := cmp.Diff(Stats{Sources: []SourceStats{
		{Source: memoryqos.SourceKubelet, Answers: 3, NotFound: 1, Connected: true}}}, stats); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if r.count() != 0 {
		t.Error("told of what Resolve had answered")
	}
}

func TestResolverTellsOfAnAnswerThatCameAfterResolveGaveUp(t *testing.T) {
	server := newFakeKubelet(t)
	server.start(t)
	kubelet := newTestKubelet(server)
	r := follow(t, long, kubelet)
	eventually(t, "the kubelet", kubelet.Connected)
	pod, hang := testPod(t, "slow", "64Mi"), make(chan struct{})
	server.with(func() { server.pods[pod.UID] = pod; server.hang = hang })
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond) // the event's own deadline is nearer
	defer cancel()
	if answer, ok := r.Resolve(ctx, refOf(pod)); ok {
		t.Errorf("got %s", shown(answer))
	}
	close(hang)
	eventually(t, "the answer", func() bool { return r.last(refOf(pod)) == "kubelet 64Mi" })
}

func TestResolverDoesNotPayForAHangingSourceEachTime(t *testing.T) {
	server := newFakeKubelet(t)
	server.start(t)
	kubelet := newTestKubelet(server)
	r := follow(t, 20*time.Millisecond, kubelet)
	eventually(t, "the kubelet", kubelet.Connected)
	server.with(func() { server.hang = make(chan struct{}) })
	for i := range 50 {
		if got := resolved(t, r, pods.Ref{UID: fmt.Sprint(i)}); got != "nothing" {
			t.Errorf("got %s", got)
		}
		if i < mostFailures {
			eventually(t, "the failure", func() bool { return r.Stats().Sources[0].Timeouts == uint64(i+1) })
		}
	}
	if got := r.Stats().Sources[0]; got.Timeouts != mostFailures || !got.Suspended {
		t.Errorf("got %+v, want %d timeouts and suspended", got, mostFailures)
	}
	// The source speaks again: it is trusted at once.
	server.with(func() { server.hang = nil })
	server.put(testPod(t, "news", "64Mi"))
	eventually(t, "the source's return", func() bool { return !r.Stats().Sources[0].Suspended })
	r.timeout = long
	pod := testPod(t, "late", "64Mi")
	server.with(func() { server.pods[pod.UID] = pod })
	if got := resolved(t, r, refOf(pod)); got != "kubelet 64Mi" {
		t.Errorf("got %s", got)
	}
}

func TestResolverIsAnsweredByTheOtherSourceWhenOneHangs(t *testing.T) {
	kubeletServer, podServer := newFakeKubelet(t), newPodServer(t)
	kubeletServer.hang = make(chan struct{})
	kubeletServer.start(t)
	kubelet, api := newTestKubelet(kubeletServer), newTestAPIServer(t, podServer)
	r := follow(t, long, kubelet, api)
	eventually(t, "both sources", func() bool { return kubelet.Connected() && api.Connected() })
	pod := testPod(t, "a", "64Mi")
	r.Expect(refOf(pod))
	podServer.Put(pod)
	if got := resolved(t, r, refOf(pod)); got != "apiserver 64Mi" {
		t.Errorf("got %s", got)
	}
}

func TestResolverWithoutSources(t *testing.T) {
	r := New(Options{})
	if _, ok := r.Resolve(t.Context(), pods.Ref{UID: "a"}); ok {
		t.Error("got an answer")
	}
	if got := r.source("unknown").rank; got != 0 {
		t.Errorf("got rank %d", got)
	}
}

func TestResolverQuestionEndsWithTheResolver(t *testing.T) {
	server := newFakeKubelet(t)
	server.hang = make(chan struct{})
	server.start(t)
	kubelet := newTestKubelet(server)
	r := follow(t, long, kubelet)
	eventually(t, "the kubelet", kubelet.Connected)
	done := make(chan string)
	go func() { done <- resolved(t, r, pods.Ref{UID: "a"}) }()
	eventually(t, "the question", func() (asked bool) {
		server.with(func() { asked = server.asked > 0 })
		return asked
	})
	r.stop()
	if got := <-done; got != "nothing" {
		t.Errorf("got %s", got)
	}
}

// silent is a source that never answers.
type silent struct{ failing }

func (*silent) Ask(ctx context.Context, _ pods.Ref) (*pods.Pod, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestResolverWithoutATimeoutDoesNotWait(t *testing.T) {
	r := follow(t, 0, &silent{})
	if got := resolved(t, r, pods.Ref{UID: "a"}); got != "nothing" {
		t.Errorf("got %s", got)
	}
}

// failing is a source whose answers are errors.
type failing struct{ Kubelet }

func (*failing) Known(pods.Ref) (*pods.Pod, bool)                 { return nil, false }
func (*failing) Len() int                                         { return 0 }
func (*failing) Ask(context.Context, pods.Ref) (*pods.Pod, error) { return nil, errors.New("no") }

func TestResolverCountsErrors(t *testing.T) {
	r := New(Options{Providers: []Provider{&failing{}}, Timeout: long})
	for i := range mostFailures + 1 {
		if _, ok := r.Resolve(t.Context(), pods.Ref{UID: fmt.Sprint(i)}); ok {
			t.Error("got an answer")
		}
	}
	want := SourceStats{Source: memoryqos.SourceKubelet, Errors: mostFailures, Suspended: true}
	if diff := cmp.Diff(want, r.Stats().Sources[0]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestResolverUnderRaces(t *testing.T) {
	kubeletServer, podServer := newFakeKubelet(t), newPodServer(t)
	kubeletServer.start(t)
	kubelet, api := newTestKubelet(kubeletServer), newTestAPIServer(t, podServer)
	r := follow(t, 5*time.Millisecond, kubelet, api)
	const pods = 20
	pod := func(i, request int) *corev1.Pod { return testPod(t, fmt.Sprint("p", i), fmt.Sprint(request, "Mi")) }
	var all sync.WaitGroup
	for worker := range 4 {
		random := rand.New(rand.NewPCG(uint64(worker), 0))
		all.Go(func() {
			for range 300 {
				p := pod(random.IntN(pods), 1+random.IntN(50))
				switch ref := refOf(p); random.IntN(10) {
				case 0:
					r.Forget(ref)
				case 1:
					r.Expect(ref)
				case 2:
					r.Known(ref)
				case 3:
					r.Stats()
				case 4:
					kubeletServer.put(p)
				case 5:
					podServer.Put(p)
				case 6:
					kubeletServer.drop(p)
				case 7:
					podServer.With(podServer.Cut)
				default:
					if answer, ok := r.Resolve(t.Context(), ref); ok && answer.Pod.Ref != ref {
						t.Errorf("asked for %s, got %s", ref, answer.Pod.Ref)
					}
				}
			}
		})
	}
	all.Wait()
	kubeletServer.stop()
	eventually(t, "the loss of the kubelet", func() bool { return !kubelet.Connected() })
	kubeletServer.with(func() {
		clear(kubeletServer.pods)
		for i := range pods {
			p := pod(i, 100+i)
			kubeletServer.pods[types.UID(p.UID)] = p
		}
	})
	for i := range pods {
		r.Resolve(t.Context(), refOf(pod(i, 1)))
	}
	kubeletServer.start(t)
	for i := range pods {
		want := fmt.Sprintf("kubelet %dMi", 100+i)
		eventually(t, want, func() bool { return r.last(refOf(pod(i, 1))) == want })
		if got := resolved(t, r, refOf(pod(i, 1))); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

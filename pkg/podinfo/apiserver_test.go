package podinfo

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// podServer is a small HTTP server that speaks the pod list and watch of the Kubernetes API, in protobuf. It is not an API
// server: it has no storage, no admission and no other resource. deploy/apiserver has a test against a real one.
type podServer struct {
	*httptest.Server
	codec    runtime.SerializerInfo
	noStream bool // lists cannot be streamed (Kubernetes before 1.32)

	mu       sync.Mutex
	version  int
	pods     map[string]*corev1.Pod
	history  []happened
	watchers map[chan metav1.WatchEvent]struct{}
	broken   bool // every request fails
	requests []string
}

// happened is an event of the past, for a watch that starts before it.
type happened struct {
	version int
	event   metav1.WatchEvent
}

func newPodServer(t testing.TB) *podServer {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	codecs := serializer.NewCodecFactory(scheme)
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		t.Fatal("no protobuf")
	}
	s := &podServer{codec: info, pods: map[string]*corev1.Pod{}, watchers: map[chan metav1.WatchEvent]struct{}{}, version: 100}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() { s.with(s.cut); s.Close() })
	return s
}

func (s *podServer) with(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// cut ends all watches.
func (s *podServer) cut() {
	for watcher := range s.watchers {
		close(watcher)
	}
	clear(s.watchers)
}

func (s *podServer) put(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := watch.Added
	if _, ok := s.pods[pod.Name]; ok {
		kind = watch.Modified
	}
	s.version++
	pod = pod.DeepCopy()
	pod.ResourceVersion = strconv.Itoa(s.version)
	s.pods[pod.Name] = pod
	s.send(kind, pod)
}

func (s *podServer) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	pod := s.pods[name]
	pod.ResourceVersion = strconv.Itoa(s.version)
	delete(s.pods, name)
	s.send(watch.Deleted, pod)
}

func (s *podServer) send(kind watch.EventType, object runtime.Object) {
	event := s.event(kind, object)
	s.history = append(s.history, happened{s.version, event})
	for watcher := range s.watchers {
		watcher <- event
	}
}

func (s *podServer) event(kind watch.EventType, object runtime.Object) metav1.WatchEvent {
	object.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	raw, err := runtime.Encode(s.codec.Serializer, object)
	if err != nil {
		panic(err)
	}
	return metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}
}

func (s *podServer) serve(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	s.mu.Lock()
	s.requests = append(s.requests, r.URL.String())
	switch streamed := query.Get("sendInitialEvents") == "true"; {
	case s.broken, r.URL.Path != "/api/v1/pods", query.Get("fieldSelector") != "spec.nodeName=node1":
		s.mu.Unlock()
		http.Error(w, "no", http.StatusInternalServerError)
	case streamed && s.noStream:
		s.mu.Unlock()
		http.Error(w, "sendInitialEvents is forbidden", http.StatusUnprocessableEntity)
	case query.Get("watch") != "true":
		list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
		for _, pod := range s.pods {
			list.Items = append(list.Items, *pod)
		}
		s.mu.Unlock()
		list.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		if err := s.codec.Serializer.Encode(list, w); err != nil {
			panic(err)
		}
	default:
		events := make(chan metav1.WatchEvent, 10_000)
		if streamed {
			for _, pod := range s.pods {
				events <- s.event(watch.Added, pod)
			}
			events <- s.event(watch.Bookmark, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: strconv.Itoa(s.version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
		} else {
			since, _ := strconv.Atoi(query.Get("resourceVersion"))
			for _, past := range s.history {
				if past.version > since {
					events <- past.event
				}
			}
		}
		s.watchers[events] = struct{}{}
		s.mu.Unlock()
		s.stream(w, r, events)
		s.with(func() { delete(s.watchers, events) })
	}
}

func (s *podServer) stream(w http.ResponseWriter, r *http.Request, events <-chan metav1.WatchEvent) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	frames := s.codec.StreamSerializer.Framer.NewFrameWriter(w)
	for {
		select {
		case <-r.Context().Done():
			return
		case event, open := <-events:
			if !open {
				return
			}
			if err := s.codec.StreamSerializer.Serializer.Encode(&event, frames); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

func newTestAPIServer(t testing.TB, server *podServer) *APIServer {
	t.Helper()
	a, err := NewAPIServer(&rest.Config{Host: server.URL}, "node1")
	if err != nil {
		t.Fatal(err)
	}
	a.Log = quiet()
	a.backoff = &wait.Backoff{Duration: time.Millisecond, Cap: 10 * time.Millisecond, Steps: 5, Factor: 2}
	return a
}

func TestAPIServerIsFollowedThroughItsLife(t *testing.T) {
	for name, noStream := range map[string]bool{"streamed list": false, "list, then watch": true} {
		t.Run(name, func(t *testing.T) {
			server := newPodServer(t)
			server.noStream = noStream
			first, second := testPod(t, "first", "64Mi"), testPod(t, "second", "65Mi")
			server.put(first)
			api := newTestAPIServer(t, server)
			var mu sync.Mutex
			heard := map[string]int{}
			running(t, api, func(pod *pods.Pod) { mu.Lock(); defer mu.Unlock(); heard[pod.Name]++ })

			eventually(t, "the first pod", func() bool { return api.Connected() && requestOf(api, refOf(first)) == 64*mi })
			eventually(t, "the watch", func() (watched bool) {
				server.with(func() { watched = len(server.watchers) == 1 })
				return watched
			})
			server.put(second)
			if got, err := api.Ask(t.Context(), refOf(second)); err != nil || got.Containers[0].Request != 65*mi {
				t.Errorf("the second pod: got %+v, %v", got, err)
			}
			second = testPod(t, "second", "66Mi")
			server.put(second)
			eventually(t, "its resize", func() bool { return requestOf(api, refOf(second)) == 66*mi })
			server.put(second)
			server.drop("first")
			eventually(t, "the first pod's end", func() bool { return api.Len() == 1 })
			mu.Lock()
			if heard["first"] != 1 || heard["second"] != 2 {
				t.Errorf("heard %v, want first once and second twice", heard)
			}
			mu.Unlock()

			server.with(func() { server.broken = true; server.cut() })
			eventually(t, "the loss of the server", func() bool { return !api.Connected() && api.Problem() != "" })
			if requestOf(api, refOf(second)) != 66*mi {
				t.Error("a pod is forgotten while the server is away")
			}
			if got, err := api.Ask(t.Context(), refOf(second)); err != nil || got.Name != "second" {
				t.Errorf("a known pod while the server is away: got %+v, %v", got, err)
			}
			if _, err := api.Ask(t.Context(), pods.Ref{UID: "other"}); !errors.Is(err, ErrUnavailable) {
				t.Errorf("another pod while the server is away: got %v", err)
			}
			third := testPod(t, "third", "67Mi")
			server.put(third)
			server.drop("second")
			server.with(func() { server.broken = false })
			eventually(t, "what was missed meanwhile", func() bool {
				return api.Connected() && requestOf(api, refOf(third)) == 67*mi && api.Len() == 1
			})
		})
	}
}

func TestAPIServerIsAskedForThisNodesPodsOnly(t *testing.T) {
	server := newPodServer(t)
	api := newTestAPIServer(t, server)
	running(t, api, func(*pods.Pod) {})
	eventually(t, "the connection", api.Connected)
	server.mu.Lock()
	defer server.mu.Unlock()
	for _, request := range server.requests {
		if !strings.Contains(request, "fieldSelector=spec.nodeName%3Dnode1") {
			t.Errorf("asked for %s", request)
		}
	}
}

func TestAPIServerPodThatNeverComes(t *testing.T) {
	server := newPodServer(t)
	api := newTestAPIServer(t, server)
	running(t, api, func(*pods.Pod) {})
	eventually(t, "the connection", api.Connected)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := api.Ask(ctx, pods.Ref{UID: "none"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestAPIServerMirrorIsFoundByTheStaticPodsUID(t *testing.T) {
	server := newPodServer(t)
	mirror := manifest(t, `
metadata: {uid: made-by-the-server, namespace: kube-system, name: etcd, annotations: {kubernetes.io/config.mirror: hash1}}
spec: {containers: [{name: app, resources: {requests: {memory: 64Mi}}}]}`)
	server.put(mirror)
	api := newTestAPIServer(t, server)
	running(t, api, func(*pods.Pod) {})
	ref := pods.Ref{UID: "hash1", Namespace: "kube-system", Name: "etcd"}
	eventually(t, "the mirror", func() bool { return requestOf(api, ref) == 64*mi })
	// Another pod cannot pass itself off as the mirror: its own names are not those that the runtime asks for.
	server.put(manifest(t, `
metadata: {uid: forged, namespace: evil, name: etcd2, annotations: {kubernetes.io/config.mirror: hash1}}
spec: {containers: [{name: app, resources: {requests: {memory: 64Gi}}}]}`))
	eventually(t, "the forged mirror", func() bool { return api.Len() == 2 })
	if got := requestOf(api, ref); got != 64*mi {
		t.Errorf("got %d", got)
	}
	server.drop("etcd")
	eventually(t, "the mirror's end", func() bool { return api.Len() == 1 })
}

func TestAPIStoreTakesOnlyPods(t *testing.T) {
	store := &apiStore{server: newTestAPIServer(t, newPodServer(t)), changed: func(*pods.Pod) {}}
	for name, err := range map[string]error{
		"Add": store.Add(1), "Update": store.Update(1), "Delete": store.Delete(1), "Replace": store.Replace([]any{1}, ""),
	} {
		if err == nil || err.Error() != "take a pod from the API server: it is a int" {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got, err := store.Transformer()(1); got != 1 || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	if err := store.Resync(); err != nil {
		t.Error(err)
	}
}

func TestProviders(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`), 0o600); err != nil {
		t.Fatal(err)
	}
	tls := filepath.Join(dir, "tls")
	if err := os.WriteFile(tls, []byte(`
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1", certificate-authority-data: bm8=}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, tt := range map[string]struct {
		order []memoryqos.Source
		at    Places
		want  string
		err   string
	}{
		"automatic, outside of a cluster": {want: "kubelet"},
		"automatic, with a kubeconfig":    {at: Places{Kubeconfig: kubeconfig, Node: "n"}, want: "kubelet apiserver"},
		"automatic, outside, with a node": {at: Places{Node: "n"}, want: "kubelet"},
		"automatic, with a kubeconfig and no node": {at: Places{Kubeconfig: kubeconfig},
			err: "requestSources: apiserver: watch pods in the API server: the node's name is not known: set NODE_NAME"},
		"the given order": {order: []memoryqos.Source{memoryqos.SourceAPIServer, memoryqos.SourceAnnotation, memoryqos.SourceKubelet, memoryqos.SourceOOMScore},
			at: Places{Kubeconfig: kubeconfig, Node: "n", KubeletSocket: "/s"}, want: "apiserver kubelet"},
		"only the events": {order: []memoryqos.Source{memoryqos.SourceOOMScore}, want: ""},
		"API server outside of a cluster": {order: []memoryqos.Source{memoryqos.SourceAPIServer}, at: Places{Node: "n"},
			err: "requestSources: apiserver: unable to load in-cluster configuration"},
		"no such kubeconfig": {order: []memoryqos.Source{memoryqos.SourceAPIServer}, at: Places{Kubeconfig: filepath.Join(dir, "none"), Node: "n"},
			err: "requestSources: apiserver: read kubeconfig " + filepath.Join(dir, "none") + ": "},
		"a certificate that is none": {at: Places{Kubeconfig: tls, Node: "n"},
			err: "requestSources: apiserver: watch pods in the API server: "},
	} {
		t.Run(name, func(t *testing.T) {
			providers, err := Providers(tt.order, tt.at, quiet())
			if tt.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tt.err) {
					t.Fatalf("got error %v, want %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, p := range providers {
				names = append(names, string(p.Source()))
			}
			if got := strings.Join(names, " "); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

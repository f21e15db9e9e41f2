package podinfo

import (
	"context"
	"errors"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/podserver"
)

// podServer is podserver.Pods over a socket.
type podServer struct {
	*httptest.Server
	*podserver.Pods
}

func newPodServer(t testing.TB) *podServer {
	pods := podserver.New("node1")
	s := &podServer{httptest.NewServer(pods), pods}
	t.Cleanup(func() { s.With(s.Cut); s.Close() })
	return s
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
			server.NoStream = noStream
			first, second := testPod(t, "first", "64Mi"), testPod(t, "second", "65Mi")
			server.Put(first)
			api := newTestAPIServer(t, server)
			var mu sync.Mutex
			heard := map[string]int{}
			running(t, api, func(pod *pods.Pod) { mu.Lock(); defer mu.Unlock(); heard[pod.Name]++ })

			eventually(t, "the first pod", func() bool { return api.Connected() && requestOf(api, refOf(first)) == 64*mi })
			eventually(t, "the watch", func() (watched bool) {
				server.With(func() { watched = len(server.Watchers) == 1 })
				return watched
			})
			server.Put(second)
			if got, err := api.Ask(t.Context(), refOf(second)); err != nil || got.Containers[0].Request != 65*mi {
				t.Errorf("the second pod: got %+v, %v", got, err)
			}
			second = testPod(t, "second", "66Mi")
			server.Put(second)
			eventually(t, "its resize", func() bool { return requestOf(api, refOf(second)) == 66*mi })
			server.Put(second)
			server.Drop("first")
			eventually(t, "the first pod's end", func() bool { return api.Len() == 1 })
			mu.Lock()
			if heard["first"] != 1 || heard["second"] != 2 {
				t.Errorf("heard %v, want first once and second twice", heard)
			}
			mu.Unlock()

			server.With(func() { server.Broken = true; server.Cut() })
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
			server.Put(third)
			server.Drop("second")
			server.With(func() { server.Broken = false })
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
	var requests []string
	server.With(func() { requests = slices.Clone(server.Requests) })
	for _, request := range requests {
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
	server.Put(mirror)
	api := newTestAPIServer(t, server)
	running(t, api, func(*pods.Pod) {})
	ref := pods.Ref{UID: "hash1", Namespace: "kube-system", Name: "etcd"}
	eventually(t, "the mirror", func() bool { return requestOf(api, ref) == 64*mi })
	// Another pod cannot pass itself off as the mirror: its own names are not those that the runtime asks for.
	server.Put(manifest(t, `
metadata: {uid: forged, namespace: evil, name: etcd2, annotations: {kubernetes.io/config.mirror: hash1}}
spec: {containers: [{name: app, resources: {requests: {memory: 64Gi}}}]}`))
	eventually(t, "the forged mirror", func() bool { return api.Len() == 2 })
	if got := requestOf(api, ref); got != 64*mi {
		t.Errorf("got %d", got)
	}
	server.Drop("etcd")
	eventually(t, "the mirror's end", func() bool { return api.Len() == 1 })
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

// TestAPodWithoutAServiceAccount, such as a static pod or one with automountServiceAccountToken: false, has the variables of the API server and
// no token: by itself the API server is no source there, and on request an error.
func TestAPodWithoutAServiceAccount(t *testing.T) {
	if _, err := os.Stat("/var/run/secrets/kubernetes.io/serviceaccount/token"); err == nil {
		t.Skip("this runs in a pod with a service account")
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	providers, err := Providers(nil, Places{Node: "n"}, quiet())
	if err != nil || len(providers) != 1 || providers[0].Source() != memoryqos.SourceKubelet {
		t.Errorf("automatic: got %d providers and error %v, want the kubelet", len(providers), err)
	}
	if _, err := Providers([]memoryqos.Source{memoryqos.SourceAPIServer}, Places{Node: "n"}, quiet()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("on request: error %v, want that there is no token", err)
	}
}

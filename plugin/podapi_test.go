package main

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// podAPI is the kubelet's pod API of a test's host. It can come, go and come back with other pods.
type podAPI struct {
	podsapi.UnimplementedPodsServer
	t      testing.TB
	socket string
	server *grpc.Server

	mu       sync.Mutex
	pods     map[string][]byte // by UID
	watchers map[chan *podsapi.WatchPodsEvent]bool
}

func (h *host) podAPI() *podAPI {
	a := &podAPI{t: h.t, socket: h.path("kubelet.sock"), pods: map[string][]byte{}, watchers: map[chan *podsapi.WatchPodsEvent]bool{}}
	h.t.Cleanup(a.stop)
	return a
}

func (a *podAPI) start() {
	a.t.Helper()
	listener, err := net.Listen("unix", a.socket)
	must(a.t, err)
	a.server = grpc.NewServer()
	podsapi.RegisterPodsServer(a.server, a)
	go a.server.Serve(listener)
}

// stop ends the API as a kubelet that stops: its socket goes.
func (a *podAPI) stop() {
	if a.server != nil {
		a.server.Stop()
		a.server = nil
	}
}

// put sets what the kubelet says of a pod: its spec and status in YAML.
func (a *podAPI) put(p *testPod, text string) {
	a.t.Helper()
	var pod corev1.Pod
	must(a.t, yaml.UnmarshalStrict([]byte(text), &pod))
	pod.UID, pod.Namespace, pod.Name = types.UID(p.uid()), "default", p.name
	data, err := pod.Marshal()
	must(a.t, err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pods[p.uid()] = data
	for watcher := range a.watchers {
		watcher <- &podsapi.WatchPodsEvent{Type: podsapi.EventType_MODIFIED, Pod: data}
	}
}

// forget has the kubelet not know any pod.
func (a *podAPI) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.pods)
}

func (a *podAPI) GetPod(_ context.Context, request *podsapi.GetPodRequest) (*podsapi.GetPodResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if data, ok := a.pods[request.GetPodUID()]; ok {
		return &podsapi.GetPodResponse{Pod: data}, nil
	}
	return nil, grpcstatus.Errorf(codes.NotFound, "no pod %s", request.GetPodUID())
}

func (a *podAPI) WatchPods(_ *podsapi.WatchPodsRequest, stream grpc.ServerStreamingServer[podsapi.WatchPodsEvent]) error {
	a.mu.Lock()
	events := make(chan *podsapi.WatchPodsEvent, 100+len(a.pods))
	for _, data := range a.pods {
		events <- &podsapi.WatchPodsEvent{Type: podsapi.EventType_ADDED, Pod: data}
	}
	events <- &podsapi.WatchPodsEvent{Type: podsapi.EventType_INITIAL_SYNC_COMPLETE}
	a.watchers[events] = true
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.watchers, events)
	}()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case event := <-events:
			if err := stream.Send(event); err != nil {
				return err
			}
		}
	}
}

func TestARequestSourceThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	api := h.podAPI()
	const absent = "request source kubelet does not answer (stat "
	sources := func() []status.Source {
		var document status.Document
		must(t, json.Unmarshal([]byte(h.ask(0, "status", "-o", "json")), &document))
		return document.RequestSources
	}
	missing := func() bool {
		all := sources()
		return len(all) == 1 && all[0].Source == "kubelet" && !all[0].Connected && strings.Contains(all[0].Problem, "no such file or directory")
	}
	eventually(t, "status has the kubelet as missing", missing)
	wantAll(t, h.ask(0, "status"), absent+h.path("kubelet.sock")+": no such file or directory): memory requests of Burstable pods are estimates")

	api.start()
	eventually(t, "status has the kubelet as connected", func() bool { return sources()[0] == status.Source{Source: "kubelet", Connected: true} })
	if text := h.ask(0, "status"); strings.Contains(text, "does not answer") {
		t.Errorf("a source that answers is named:\n%s", text)
	}
	api.stop()
	eventually(t, "status has the kubelet as missing again", missing)

	for line, times := range map[string]int{
		`level=info msg="the kubelet's pod API does not answer: another source of memory requests is used until it answers; ` +
			`it needs the kubelet's feature gate PodsAPI, which is on by default from Kubernetes 1.37" error="stat `: 1,
		`level=info msg="the kubelet's pod API answers" pods=0`: 1,
		`level=info msg="lost the kubelet's pod API"`:           1,
		"pod API": 3,
	} {
		if count := strings.Count(plugin.log.String(), line); count != times {
			t.Errorf("%q is in the log %d times, want %d", line, count, times)
		}
	}
}

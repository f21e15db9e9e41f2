package nodetopology

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	topology "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha2"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

func nodes(free uint64) []memorymanager.NodeState {
	return []memorymanager.NodeState{
		{ID: 0, Memory: []memorymanager.TypeTable{
			{Type: "hugepages-2Mi", Table: memorymanager.Table{Total: 1 << 30, Allocatable: 1 << 30, Free: 1 << 29}},
			{Type: "memory", Table: memorymanager.Table{Total: 64 << 30, SystemReserved: 1 << 30, Allocatable: 63 << 30, Free: free}}}},
		{ID: 2, Memory: []memorymanager.TypeTable{
			{Type: "memory", Table: memorymanager.Table{Total: 32 << 30, Allocatable: 32 << 30, Free: 32 << 30}}}},
	}
}

var hardware = machine.Machine{Nodes: []machine.Node{{ID: 0, Distances: []int{10, 21}}, {ID: 2, Distances: []int{21, 10}}}}

const zonesWithAllFree = `[
 {"name": "node-0", "type": "Node", "costs": [{"name": "node-0", "value": 10}, {"name": "node-2", "value": 21}], "resources": [
  {"name": "hugepages-2Mi", "capacity": "1Gi", "allocatable": "1Gi", "available": "512Mi"},
  {"name": "memory", "capacity": "64Gi", "allocatable": "63Gi", "available": "63Gi"}]},
 {"name": "node-2", "type": "Node", "costs": [{"name": "node-0", "value": 21}, {"name": "node-2", "value": 10}], "resources": [
  {"name": "memory", "capacity": "32Gi", "allocatable": "32Gi", "available": "32Gi"}]}]`

func TestZones(t *testing.T) {
	text, err := json.Marshal(Zones(nodes(63<<30), hardware))
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := errors.Join(json.Unmarshal(text, &got), json.Unmarshal([]byte(zonesWithAllFree), &want)); err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(want, got); difference != "" {
		t.Error(difference)
	}
}

// apiServer serves the one object of a node as an API server does for a custom resource.
type apiServer struct {
	t  *testing.T
	mu sync.Mutex
	// object is nil until it was created.
	object   *topology.NodeResourceTopology
	requests map[string]int
	failures int // answers to PUT that are still to fail
	forbid   bool
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const collection = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == "/api/v1/nodes/worker" {
		io.WriteString(w, `{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "worker", "uid": "u1"}}`)
		return
	}
	s.requests[r.Method]++
	switch {
	case s.forbid:
		refuse(w, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "worker", errors.New("no such right")))
		return
	case r.Method == "GET" && r.URL.Path == collection+"/worker" && s.object == nil:
		refuse(w, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, "worker"))
		return
	case r.Method == "GET" && r.URL.Path == collection+"/worker":
	case r.Method == "POST" && r.URL.Path == collection && s.object == nil,
		r.Method == "PUT" && r.URL.Path == collection+"/worker" && s.object != nil:
		if s.failures > 0 && r.Method == "PUT" {
			s.failures--
			refuse(w, apierrors.NewConflict(schema.GroupResource{Resource: resource}, "worker", errors.New("changed")))
			return
		}
		s.object = &topology.NodeResourceTopology{}
		if err := json.NewDecoder(r.Body).Decode(s.object); err != nil {
			s.t.Errorf("body: %v", err)
		}
	default:
		s.t.Errorf("unexpected request %s %s", r.Method, r.URL)
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	json.NewEncoder(w).Encode(s.object)
}

func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.WriteHeader(int(status.Code))
	json.NewEncoder(w).Encode(status)
}

func newExporter(t *testing.T, view *agent.View) (*Exporter, *apiServer) {
	t.Helper()
	api := &apiServer{t: t, requests: map[string]int{}}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	return &Exporter{Client: client, Node: "worker", View: func() *agent.View { return view }, Machine: hardware, Period: time.Millisecond, Log: log}, api
}

func TestOnlyChangesAreSent(t *testing.T) {
	view := &agent.View{Nodes: nodes(63 << 30)}
	e, api := newExporter(t, view)
	for range 3 {
		if err := e.export(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	view.Nodes = nodes(1 << 30)
	if err := e.export(t.Context()); err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(map[string]int{"GET": 1, "POST": 1, "PUT": 1}, api.requests); difference != "" {
		t.Error(difference)
	}
	if available := api.object.Zones[0].Resources[1].Available; available.Value() != 1<<30 {
		t.Errorf("node 0 has %s available, want 1Gi", available.String())
	}
	want := metav1.ObjectMeta{Name: "worker", Labels: map[string]string{"app.kubernetes.io/managed-by": "nri-memory-manager"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "worker", UID: "u1"}}}
	if difference := cmp.Diff(want, api.object.ObjectMeta); difference != "" {
		t.Error(difference)
	}
}

func TestNothingIsSentBeforeThereIsANodeMap(t *testing.T) {
	e, api := newExporter(t, &agent.View{})
	if err := e.export(t.Context()); err != nil || len(api.requests) > 0 {
		t.Errorf("error %v, requests %v, want none of either", err, api.requests)
	}
}

func TestObjectIsLookedAtNowAndThen(t *testing.T) {
	e, api := newExporter(t, &agent.View{Nodes: nodes(0)})
	for range 1 + 2*lookEvery {
		if err := e.export(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if difference := cmp.Diff(map[string]int{"GET": 3, "POST": 1}, api.requests); difference != "" {
		t.Error(difference)
	}
}

func TestRefusalIsToldOnce(t *testing.T) {
	e, api := newExporter(t, &agent.View{Nodes: nodes(0)})
	log, lines := logtest.NewNullLogger()
	e.Log, api.forbid = log, true
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	ended := make(chan struct{})
	go func() { e.Run(ctx); close(ended) }()
	for asked := 0; asked < 5 && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		api.mu.Lock()
		asked = api.requests["GET"]
		api.mu.Unlock()
	}
	cancel()
	<-ended
	const want = `write NodeResourceTopology worker: noderesourcetopologies "worker" is forbidden: no such right`
	var told []string
	for _, line := range lines.AllEntries() {
		told = append(told, fmt.Sprint(line.Data[logrus.ErrorKey]))
	}
	if difference := cmp.Diff([]string{want}, told); difference != "" {
		t.Error(difference)
	}
}

func TestFailureIsTriedAgain(t *testing.T) {
	e, api := newExporter(t, &agent.View{Nodes: nodes(0)})
	api.object, api.failures = &topology.NodeResourceTopology{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}, 3
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan struct{})
	go func() { e.Run(ctx); close(ended) }()
	for written := false; !written; {
		time.Sleep(time.Millisecond)
		api.mu.Lock()
		written = len(api.object.Zones) == 2
		api.mu.Unlock()
		if ctx.Err() != nil {
			t.Fatal("the object was not written within a minute")
		}
	}
	cancel()
	<-ended
}

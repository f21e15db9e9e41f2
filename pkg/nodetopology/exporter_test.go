package nodetopology

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	topology "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha2"
	"github.com/sirupsen/logrus"
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
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[r.Method]++
	const collection = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == "GET" && r.URL.Path == collection+"/worker" && s.object == nil:
		w.WriteHeader(http.StatusNotFound)
		json.NewEncoder(w).Encode(apierrors.NewNotFound(schema.GroupResource{}, "worker").Status())
		return
	case r.Method == "GET" && r.URL.Path == collection+"/worker":
	case r.Method == "POST" && r.URL.Path == collection && s.object == nil,
		r.Method == "PUT" && r.URL.Path == collection+"/worker" && s.object != nil:
		if s.failures > 0 && r.Method == "PUT" {
			s.failures--
			w.WriteHeader(http.StatusConflict)
			json.NewEncoder(w).Encode(apierrors.NewConflict(schema.GroupResource{}, "worker", errors.New("changed")).Status())
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
	if difference := cmp.Diff(map[string]int{"GET": 2, "POST": 1, "PUT": 1}, api.requests); difference != "" {
		t.Error(difference)
	}
	if available := api.object.Zones[0].Resources[1].Available; available.Value() != 1<<30 {
		t.Errorf("node 0 has %s available, want 1Gi", available.String())
	}
}

func TestNothingIsSentBeforeThereIsANodeMap(t *testing.T) {
	e, api := newExporter(t, &agent.View{})
	if err := e.export(t.Context()); err != nil || len(api.requests) > 0 {
		t.Errorf("error %v, requests %v, want none of either", err, api.requests)
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

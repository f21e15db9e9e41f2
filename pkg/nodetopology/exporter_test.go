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
	"github.com/k8stopologyawareschedwg/podfingerprint"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
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

var hardware = machine.Machine{Nodes: []machine.Node{
	{ID: 0, CPUs: cpuset.New(0, 1, 2, 3), Distances: []int{10, 21}},
	{ID: 2, Distances: []int{21, 10}}}} // a memory expander

const zonesWithAllFree = `[
 {"name": "node-0", "type": "Node", "costs": [{"name": "node-0", "value": 10}, {"name": "node-2", "value": 21}], "resources": [
  {"name": "cpu", "capacity": "4", "allocatable": "4", "available": "4"},
  {"name": "hugepages-2Mi", "capacity": "1Gi", "allocatable": "1Gi", "available": "512Mi"},
  {"name": "memory", "capacity": "64Gi", "allocatable": "63Gi", "available": "63Gi"}]},
 {"name": "node-2", "type": "Node", "costs": [{"name": "node-0", "value": 21}, {"name": "node-2", "value": 10}], "resources": [
  {"name": "cpu", "capacity": "0", "allocatable": "0", "available": "0"},
  {"name": "memory", "capacity": "32Gi", "allocatable": "32Gi", "available": "32Gi"}]}]`

func TestZones(t *testing.T) {
	text, err := json.Marshal(zones(&ledger.View{Nodes: nodes(63 << 30)}, hardware))
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

func TestADeficitIsAnAttributeOfItsZone(t *testing.T) {
	sample := &deficit.Sample{Nodes: []deficit.NodeMemory{{ID: 0, Unused: 300 << 20, Free: 10 << 20}, {ID: 2, Unused: 1, Free: 1}}}
	zones := zones(&ledger.View{Nodes: nodes(63 << 30), NodeMemory: sample}, hardware)
	want := []Attribute{{Name: "memoryDeficit", Value: "536870912"}}
	if difference := cmp.Diff([][]Attribute{want, nil}, [][]Attribute{zones[0].Attributes, zones[1].Attributes}); difference != "" {
		t.Error(difference)
	}
}

func TestTheGroupOfAZoneIsItsAttribute(t *testing.T) {
	var capacities []memorymanager.NodeCapacity
	for id := range 4 {
		capacities = append(capacities, memorymanager.NodeCapacity{ID: id, Total: 64 << 30})
	}
	manager, err := memorymanager.New(capacities, memorymanager.Options{Policy: "restricted"})
	must(t, err)
	allocate := func(pod string, bytes uint64) {
		request := memorymanager.Container{Pod: pod, Name: "app", Request: memorymanager.Request{{Type: memorymanager.Memory, Bytes: bytes}}}
		if _, err := manager.Allocate(request); err != nil {
			t.Fatal(err)
		}
	}
	allocate("small", 1<<30)
	allocate("large", 100<<30)
	var got []string
	for _, zone := range zones(&ledger.View{Nodes: manager.Nodes()}, hardware) {
		got = append(got, fmt.Sprint(zone.Attributes))
	}
	want := []string{"[{memoryGroup node-0} {memoryGroupBars multi-numa-node}]", "[{memoryGroup node-1,node-2} {memoryGroupBars single-numa-node}]",
		"[{memoryGroup node-1,node-2} {memoryGroupBars single-numa-node}]", "[]"}
	if difference := cmp.Diff(want, got); difference != "" {
		t.Error(difference)
	}
}

func TestExclusiveCPUsAreNotAvailable(t *testing.T) {
	container := func(state ledger.Phase, cpus map[int]int) ledger.ContainerView {
		return ledger.ContainerView{State: state, CPUs: cpus}
	}
	for name, tc := range map[string]struct {
		containers []ledger.ContainerView
		want       int64
	}{
		"nothing runs":                   {nil, 4},
		"a container of the shared pool": {[]ledger.ContainerView{container(ledger.Running, nil)}, 4},
		"exclusive CPUs":                 {[]ledger.ContainerView{container(ledger.Running, map[int]int{0: 2}), container(ledger.Created, map[int]int{0: 1, 2: 1})}, 1},
		"an ended container":             {[]ledger.ContainerView{container(ledger.Stopped, map[int]int{0: 3})}, 4},
		"more than there are":            {[]ledger.ContainerView{container(ledger.Running, map[int]int{0: 5})}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			view := &ledger.View{Nodes: nodes(0), Pods: []*ledger.PodView{{Containers: tc.containers}}}
			if got := zones(view, hardware)[0].Resources[0]; got.Name != "cpu" || got.Available.Value() != tc.want || got.Capacity.Value() != 4 {
				t.Errorf("%s: %s of %s available, want %d of 4", got.Name, got.Available.String(), got.Capacity.String(), tc.want)
			}
		})
	}
}

func TestFingerprintIsOfThePodsThatRunOrWill(t *testing.T) {
	pod := func(name string, containers ...ledger.ContainerView) *ledger.PodView {
		return &ledger.PodView{UID: "uid-" + name, Namespace: "default", Name: name, Containers: containers}
	}
	app := ledger.ContainerView{Name: "app"}
	rejection := func(name string, refused bool) ledger.Rejection {
		return ledger.Rejection{UID: "uid-" + name, Refused: refused}
	}
	for name, tc := range map[string]struct {
		view ledger.View
		want []string
	}{
		"no pods":                        {ledger.View{}, nil},
		"a pod that runs":                {ledger.View{Pods: []*ledger.PodView{pod("a", app)}}, []string{"a"}},
		"a pod that starts":              {ledger.View{Pods: []*ledger.PodView{pod("b"), pod("a", app)}}, []string{"a", "b"}},
		"a refused pod":                  {ledger.View{Pods: []*ledger.PodView{pod("a", app), pod("b")}, Rejections: []ledger.Rejection{rejection("b", true)}}, []string{"a"}},
		"a pod that was refused earlier": {ledger.View{Pods: []*ledger.PodView{pod("a", app)}, Rejections: []ledger.Rejection{rejection("a", true)}}, []string{"a"}},
		"a pod that runs unpinned":       {ledger.View{Pods: []*ledger.PodView{pod("a")}, Rejections: []ledger.Rejection{rejection("a", false)}}, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			scheduler := podfingerprint.NewFingerprint(0)
			for _, name := range tc.want {
				must(t, scheduler.Add("default", name))
			}
			must(t, scheduler.Check(fingerprint(&tc.view)))
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// apiServer serves the one object of a node as an API server does for a custom resource.
type apiServer struct {
	t  *testing.T
	mu sync.Mutex
	// object is nil until it was created.
	object   *NodeResourceTopology
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
	case r.Method == "DELETE" && r.URL.Path == collection+"/worker" && s.object != nil:
		s.object = nil
		json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
		return
	case r.Method == "POST" && r.URL.Path == collection && s.object == nil,
		r.Method == "PUT" && r.URL.Path == collection+"/worker" && s.object != nil:
		if s.failures > 0 && r.Method == "PUT" {
			s.failures--
			refuse(w, apierrors.NewConflict(schema.GroupResource{Resource: resource}, "worker", errors.New("changed")))
			return
		}
		s.object = &NodeResourceTopology{}
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

func newExporter(t *testing.T, view *ledger.View) (*Exporter, *apiServer) {
	t.Helper()
	view.Config.Config.NodeResourceTopology = true
	api := &apiServer{t: t, requests: map[string]int{}}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	return &Exporter{Client: client, Node: "worker", View: func() *ledger.View { return view }, Machine: hardware, Period: time.Millisecond, Log: log}, api
}

// exports exports once.
func exports(t *testing.T, e *Exporter) {
	t.Helper()
	must(t, e.export(t.Context(), e.View()))
}

func TestOnlyChangesAreSent(t *testing.T) {
	view := &ledger.View{Nodes: nodes(63 << 30)}
	e, api := newExporter(t, view)
	e.Period = time.Hour // nothing is read again by itself
	for range 3 {
		exports(t, e)
	}
	view.Nodes = nodes(1 << 30)
	exports(t, e)
	if difference := cmp.Diff(map[string]int{"GET": 1, "POST": 1, "PUT": 1}, api.requests); difference != "" {
		t.Error(difference)
	}
	if available := api.object.Zones[0].Resources[2].Available; available.Value() != 1<<30 {
		t.Errorf("node 0 has %s available, want 1Gi", available.String())
	}
	want := metav1.ObjectMeta{Name: "worker", Labels: map[string]string{"app.kubernetes.io/managed-by": "nri-memory-manager"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "worker", UID: "u1"}}}
	if difference := cmp.Diff(want, api.object.ObjectMeta); difference != "" {
		t.Error(difference)
	}
}

// While the node is rolled back, or nothing is to be exported any more, there is no object: no scheduler must trust it.
func TestAnExportThatEndsDeletesTheObject(t *testing.T) {
	for name, end := range map[string]func(c *config.Config, ended bool){
		"rolled back":          func(c *config.Config, ended bool) { c.RolledBack = ended },
		"nodeResourceTopology": func(c *config.Config, ended bool) { c.NodeResourceTopology = !ended },
	} {
		view := &ledger.View{Nodes: nodes(63 << 30)}
		e, api := newExporter(t, view)
		exports(t, e)
		for _, ended := range []bool{true, false} {
			end(&view.Config.Config, ended)
			if !e.due(view, time.Now()) {
				t.Fatalf("%s, ended %t: nothing is due", name, ended)
			}
			exports(t, e)
			if gone := api.object == nil; gone != ended || e.due(view, time.Now()) {
				t.Errorf("%s, ended %t: the object is gone: %t, more is due: %t", name, ended, gone, e.due(view, time.Now()))
			}
		}
	}
}

func TestWhatIsDue(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		change func(*Exporter, *ledger.View)
		want   bool
	}{
		"nothing that is exported":        {func(*Exporter, *ledger.View) {}, false},
		"memory was allocated":            {func(_ *Exporter, v *ledger.View) { v.Nodes = nodes(1) }, true},
		"a pod came":                      {func(_ *Exporter, v *ledger.View) { v.Pods = []*ledger.PodView{{Name: "a"}} }, true},
		"no node map":                     {func(_ *Exporter, v *ledger.View) { v.Nodes = nil }, false},
		"nothing was read for long":       {func(e *Exporter, _ *ledger.View) { e.read = now.Add(-readEvery * e.Period) }, true},
		"the last request failed":         {func(e *Exporter, _ *ledger.View) { e.known = nil }, true},
		"failed, and no node map anymore": {func(e *Exporter, v *ledger.View) { e.known, v.Nodes = nil, nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			view := &ledger.View{Nodes: nodes(0)}
			e, _ := newExporter(t, view)
			e.Period = time.Hour
			exports(t, e)
			tc.change(e, view)
			view.Generation++
			if got := e.due(view, now); got != tc.want {
				t.Errorf("due: %t, want %t", got, tc.want)
			}
		})
	}
}

func TestObjectIsReadNowAndThen(t *testing.T) {
	e, api := newExporter(t, &ledger.View{Nodes: nodes(0)})
	e.Period = time.Hour // nothing is read again by itself
	exports(t, e)
	e.read = time.Time{}
	exports(t, e)
	if difference := cmp.Diff(map[string]int{"GET": 2, "POST": 1}, api.requests); difference != "" {
		t.Error(difference)
	}
}

// A burst of changes is written as it comes, and the rest at the pace of the period.
func TestWritesAreBounded(t *testing.T) {
	changes := uint64(0)
	view := &ledger.View{}
	e, api := newExporter(t, view)
	e.Period, e.look = time.Hour, time.Microsecond
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e.View = func() *ledger.View {
		if changes++; changes == 100 {
			cancel()
		}
		return &ledger.View{Generation: changes, Nodes: nodes(changes), Config: view.Config}
	}
	e.Run(ctx)
	if difference := cmp.Diff(map[string]int{"GET": 1, "POST": 1, "PUT": 4}, api.requests); difference != "" {
		t.Error(difference)
	}
}

func TestRefusalIsToldOnce(t *testing.T) {
	e, api := newExporter(t, &ledger.View{Nodes: nodes(0)})
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
	e, api := newExporter(t, &ledger.View{Nodes: nodes(0)})
	api.object, api.failures = &NodeResourceTopology{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}, 3
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

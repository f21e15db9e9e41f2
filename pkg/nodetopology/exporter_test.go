package nodetopology

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	topology "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha2"
	"github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/generated/clientset/versioned/fake"
	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"

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

func exporter(client *fake.Clientset, view *agent.View) *Exporter {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return &Exporter{Client: client, Node: "worker", View: func() *agent.View { return view }, Machine: hardware, Period: time.Millisecond, Log: log}
}

func writes(client *fake.Clientset) map[string]int {
	count := map[string]int{}
	for _, action := range client.Actions() {
		count[action.GetVerb()]++
	}
	return count
}

func TestOnlyChangesAreSent(t *testing.T) {
	client := fake.NewSimpleClientset()
	view := &agent.View{Nodes: nodes(63 << 30)}
	e := exporter(client, view)
	for range 3 {
		if err := e.export(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	view.Nodes = nodes(1 << 30)
	if err := e.export(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := writes(client); got["create"] != 1 || got["update"] != 1 || got["get"] != 2 {
		t.Errorf("requests %v, want one create, one update, and a get before each", got)
	}
	object, err := client.TopologyV1alpha2().NodeResourceTopologies().Get(t.Context(), "worker", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if available := object.Zones[0].Resources[1].Available; available.Value() != 1<<30 {
		t.Errorf("node 0 has %s available, want 1Gi", available.String())
	}
}

func TestNothingIsSentBeforeThereIsANodeMap(t *testing.T) {
	client := fake.NewSimpleClientset()
	if err := exporter(client, &agent.View{}).export(t.Context()); err != nil || len(client.Actions()) > 0 {
		t.Errorf("error %v, requests %v, want none of either", err, client.Actions())
	}
}

func TestFailureIsTriedAgain(t *testing.T) {
	client := fake.NewSimpleClientset(&topology.NodeResourceTopology{ObjectMeta: metav1.ObjectMeta{Name: "worker"}})
	failures := 3
	client.PrependReactor("update", "*", func(ktesting.Action) (bool, runtime.Object, error) {
		failures--
		return failures >= 0, nil, errors.New("the API server is away")
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan struct{})
	go func() { exporter(client, &agent.View{Nodes: nodes(0)}).Run(ctx); close(ended) }()
	for {
		object, err := client.Tracker().Get(topology.SchemeGroupVersion.WithResource("noderesourcetopologies"), "", "worker")
		if err != nil {
			t.Fatal(err)
		}
		if len(object.(*topology.NodeResourceTopology).Zones) == 2 {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the object was not written within a minute")
		}
	}
	cancel()
	<-ended
}

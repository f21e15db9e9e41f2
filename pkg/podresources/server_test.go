package podresources

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

var view = &ledger.View{
	Nodes: []memorymanager.NodeState{
		{ID: 0, Memory: []memorymanager.TypeTable{
			{Type: "hugepages-2Mi", Table: memorymanager.Table{Allocatable: 4 << 20}},
			{Type: "memory", Table: memorymanager.Table{Allocatable: 64 << 30}}}},
		{ID: 3, Memory: []memorymanager.TypeTable{
			{Type: "hugepages-1Gi"},
			{Type: "hugepages-2Mi"},
			{Type: "memory", Table: memorymanager.Table{Allocatable: 24 << 30}}}},
	},
	Claimable: []claims.Capacity{
		{Node: 3, Type: "hugepages-1Gi", Capacity: 1 << 30, Claimed: 1 << 30}, {Node: 3, Type: "memory", Capacity: 8 << 30},
	},
	Pods: []*ledger.PodView{
		{Namespace: "default", Name: "database", Containers: []ledger.ContainerView{
			{Name: "postgres", Blocks: []memorymanager.Block{
				{Nodes: nodeset.Of(0, 3), Type: "memory", Size: 80 << 30},
				{Nodes: nodeset.Of(0), Type: "hugepages-2Mi", Size: 2 << 20}}},
			{Name: "migrate", Kind: memoryqos.Init, Blocks: []memorymanager.Block{{Nodes: nodeset.Of(0), Type: "memory", Size: 1 << 30}}},
			{Name: "exporter", Kind: memoryqos.Sidecar}}},
		{Namespace: "kube-system", Name: "proxy"},
		{Namespace: "default", Name: "whole", Blocks: []memorymanager.Block{{Nodes: nodeset.Of(3), Type: "memory", Size: 4 << 30}},
			Containers: []ledger.ContainerView{
				{Name: "own", Blocks: []memorymanager.Block{{Nodes: nodeset.Of(3), Type: "memory", Size: 1 << 30}}},
				{Name: "shared", Shared: true, Blocks: []memorymanager.Block{{Nodes: nodeset.Of(3), Type: "memory", Size: 3 << 30}}}}},
	},
}

func client(t *testing.T) podresources.PodResourcesListerClient {
	t.Helper()
	folder, err := os.MkdirTemp("", "pr")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(folder, "s")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- Serve(ctx, listener, func() *ledger.View { return view }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the server ended with: %v", err)
		}
		os.RemoveAll(folder)
	})
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return podresources.NewPodResourcesListerClient(connection)
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func same(t *testing.T, got proto.Message, err error, wantJSON string, want proto.Message) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal([]byte(wantJSON), want); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Error(cmp.Diff(protojson.Format(want), protojson.Format(got)))
	}
}

const database = `{"name": "database", "namespace": "default", "containers": [
 {"name": "postgres", "memory": [
  {"memory_type": "memory", "size": "85899345920", "topology": {"nodes": [{}, {"ID": "3"}]}},
  {"memory_type": "hugepages-2Mi", "size": "2097152", "topology": {"nodes": [{}]}}]},
 {"name": "exporter"}]}`

// A pod that is allocated as a whole has the memory, and a container that shares it has none of its own.
const whole = `{"name": "whole", "namespace": "default",
 "memory": [{"memory_type": "memory", "size": "4294967296", "topology": {"nodes": [{"ID": "3"}]}}],
 "containers": [
  {"name": "own", "memory": [{"memory_type": "memory", "size": "1073741824", "topology": {"nodes": [{"ID": "3"}]}}]},
  {"name": "shared"}]}`

func TestListHasOneMemoryPerBlock(t *testing.T) {
	got, err := client(t).List(within(t), &podresources.ListPodResourcesRequest{})
	same(t, got, err, `{"pod_resources": [`+database+`, {"name": "proxy", "namespace": "kube-system"}, `+whole+`]}`, &podresources.ListPodResourcesResponse{})
}

func TestGet(t *testing.T) {
	c := client(t)
	got, err := c.Get(within(t), &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: "database"})
	same(t, got, err, `{"pod_resources": `+database+`}`, &podresources.GetPodResourcesResponse{})
	_, err = c.Get(within(t), &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: "proxy"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("a pod of another namespace: %v, want NotFound", err)
	}
}

func TestAllocatableIsPerNodeAndType(t *testing.T) {
	got, err := client(t).GetAllocatableResources(within(t), &podresources.AllocatableResourcesRequest{})
	same(t, got, err, `{"memory": [
 {"memory_type": "hugepages-2Mi", "size": "4194304", "topology": {"nodes": [{}]}},
 {"memory_type": "memory", "size": "68719476736", "topology": {"nodes": [{}]}},
 {"memory_type": "hugepages-1Gi", "size": "1073741824", "topology": {"nodes": [{"ID": "3"}]}},
 {"memory_type": "memory", "size": "34359738368", "topology": {"nodes": [{"ID": "3"}]}}]}`, &podresources.AllocatableResourcesResponse{})
}

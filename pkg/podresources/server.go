// Package podresources serves the kubelet's PodResources v1 API from the agent's allocations, so that clients that read NUMA
// placement from a kubelet read it here (https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/#monitoring-device-plugin-resources).
// Only memory and huge pages are filled: CPUs and devices stay the kubelet's.
package podresources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Serve answers on a listener until ctx ends.
func Serve(ctx context.Context, listener net.Listener, view func() *ledger.View) error {
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, lister{view: view})
	defer context.AfterFunc(ctx, server.Stop)()
	if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve the PodResources API: %w", err)
	}
	return nil
}

type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	view func() *ledger.View
}

// List returns every living pod with the memory of its containers, one ContainerMemory per block. A pod that is allocated as
// a whole (pod-level resources) has its blocks as the pod's memory; its containers have only parts of their own.
func (l lister) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	view := l.view()
	response := &podresources.ListPodResourcesResponse{PodResources: make([]*podresources.PodResources, 0, len(view.Pods))}
	for _, pod := range view.Pods {
		response.PodResources = append(response.PodResources, resourcesOf(pod))
	}
	return response, nil
}

// Get returns one pod; NotFound where the agent does not know it.
func (l lister) Get(_ context.Context, request *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	for _, pod := range l.view().Pods {
		if pod.Namespace == request.GetPodNamespace() && pod.Name == request.GetPodName() {
			return &podresources.GetPodResourcesResponse{PodResources: resourcesOf(pod)}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod %s in namespace %s is not on this node", request.GetPodName(), request.GetPodNamespace())
}

// GetAllocatableResources returns what containers can be given, one ContainerMemory per NUMA node and type; like the
// kubelet's, without the types that a node has nothing of. What resource claims may have is a part of it, for List has the memory of
// containers with claims.
func (l lister) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	view, bytes := l.view(), claims.Sums{}
	for _, node := range view.Nodes {
		for _, table := range node.Memory {
			bytes[claims.NodeType{Node: node.ID, Type: table.Type}] = table.Allocatable
		}
	}
	for _, claimable := range view.Claimable {
		bytes[claims.NodeType{Node: claimable.Node, Type: claimable.Type}] += claimable.Capacity
	}
	response := &podresources.AllocatableResourcesResponse{}
	for _, at := range slices.SortedFunc(maps.Keys(bytes), claims.NodeType.Compare) {
		if bytes[at] > 0 {
			response.Memory = append(response.Memory, memory(string(at.Type), bytes[at], nodeset.Of(at.Node)))
		}
	}
	return response, nil
}

func resourcesOf(pod *ledger.PodView) *podresources.PodResources {
	resources := &podresources.PodResources{Name: pod.Name, Namespace: pod.Namespace, Memory: memories(pod.Blocks)}
	for _, container := range pod.Containers {
		if container.Kind == memoryqos.Init { // the kubelet lists none either: it is ended before the pod runs
			continue
		}
		c := &podresources.ContainerResources{Name: container.Name}
		if !container.Shared { // what it shares is the pod's
			c.Memory = memories(container.Blocks)
		}
		resources.Containers = append(resources.Containers, c)
	}
	return resources
}

func memories(blocks []memorymanager.Block) (list []*podresources.ContainerMemory) {
	for _, block := range blocks {
		list = append(list, memory(string(block.Type), block.Size, block.Nodes))
	}
	return list
}

func memory(memoryType string, bytes uint64, nodes nodeset.Set) *podresources.ContainerMemory {
	topology := &podresources.TopologyInfo{}
	for id := range nodes.All() {
		topology.Nodes = append(topology.Nodes, &podresources.NUMANode{ID: int64(id)})
	}
	return &podresources.ContainerMemory{MemoryType: memoryType, Size: bytes, Topology: topology}
}

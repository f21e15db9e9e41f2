package main

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// podAPI is the kubelet's pod API (KEP-4188) over pods that do not change.
type podAPI struct {
	podsapi.UnimplementedPodsServer
	order []string
	pods  map[string][]byte // by UID, encoded
}

// servePods serves the API on a socket until stop is called.
func servePods(socket string, pods []*corev1.Pod) (stop func(), err error) {
	api := &podAPI{pods: map[string][]byte{}}
	for _, pod := range pods {
		data, err := pod.Marshal()
		if err != nil {
			return nil, fmt.Errorf("encoding pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		api.order = append(api.order, string(pod.UID))
		api.pods[string(pod.UID)] = data
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("serving the kubelet's pod API: %w", err)
	}
	server := grpc.NewServer()
	podsapi.RegisterPodsServer(server, api)
	go server.Serve(listener)
	return server.Stop, nil
}

func (a *podAPI) ListPods(context.Context, *podsapi.ListPodsRequest) (*podsapi.ListPodsResponse, error) {
	list := &podsapi.ListPodsResponse{}
	for _, uid := range a.order {
		list.Pods = append(list.Pods, a.pods[uid])
	}
	return list, nil
}

func (a *podAPI) GetPod(_ context.Context, request *podsapi.GetPodRequest) (*podsapi.GetPodResponse, error) {
	pod, ok := a.pods[request.PodUID]
	if !ok {
		return nil, status.Errorf(codes.NotFound, "pod %q not found", request.PodUID)
	}
	return &podsapi.GetPodResponse{Pod: pod}, nil
}

func (a *podAPI) WatchPods(_ *podsapi.WatchPodsRequest, stream grpc.ServerStreamingServer[podsapi.WatchPodsEvent]) error {
	for _, uid := range a.order {
		if err := stream.Send(&podsapi.WatchPodsEvent{Type: podsapi.EventType_ADDED, Pod: a.pods[uid]}); err != nil {
			return err
		}
	}
	if err := stream.Send(&podsapi.WatchPodsEvent{Type: podsapi.EventType_INITIAL_SYNC_COMPLETE}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

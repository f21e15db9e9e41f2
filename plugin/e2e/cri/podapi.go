package cri

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// podAPI serves the pods of this kubelet.
type podAPI struct {
	podsv1alpha1.UnimplementedPodsServer
	server *grpc.Server

	mu       sync.Mutex
	pods     map[string][]byte // by UID
	watchers map[chan *podsv1alpha1.WatchPodsEvent]bool
}

// servePods starts the pod API.
func servePods(socket string) (*podAPI, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, fmt.Errorf("serve the pod API: %w", err)
	}
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("serve the pod API: %w", err)
	}
	a := &podAPI{server: grpc.NewServer(), pods: map[string][]byte{}, watchers: map[chan *podsv1alpha1.WatchPodsEvent]bool{}}
	podsv1alpha1.RegisterPodsServer(a.server, a)
	go func() { _ = a.server.Serve(listener) }()
	return a, nil
}

// Stop ends the pod API; a real kubelet serves it then.
func (k *Kubelet) Stop() { k.api.server.Stop() }

func (a *podAPI) set(p *kubelet.Pod, kind podsv1alpha1.EventType) error {
	data, err := p.Object().Marshal()
	if err != nil {
		return fmt.Errorf("encode pod %s: %w", p.Name, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pods[p.UID] = data
	if kind == podsv1alpha1.EventType_DELETED {
		delete(a.pods, p.UID)
	}
	for watcher := range a.watchers {
		select {
		case watcher <- &podsv1alpha1.WatchPodsEvent{Type: kind, Pod: data}:
		default: // a watcher that does not read is cut off
			delete(a.watchers, watcher)
			close(watcher)
		}
	}
	return nil
}

// WatchPods sends all pods, the end of the list, then every change.
func (a *podAPI) WatchPods(_ *podsv1alpha1.WatchPodsRequest, stream grpc.ServerStreamingServer[podsv1alpha1.WatchPodsEvent]) error {
	a.mu.Lock()
	events := make(chan *podsv1alpha1.WatchPodsEvent, len(a.pods)+1024)
	for _, data := range a.pods {
		events <- &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_ADDED, Pod: data}
	}
	events <- &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE}
	a.watchers[events] = true
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watchers, events)
		a.mu.Unlock()
	}()
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case event, open := <-events:
			if !open {
				return status.Error(codes.ResourceExhausted, "the watcher is too slow")
			}
			if err := stream.Send(event); err != nil {
				return err
			}
		}
	}
}

// ListPods returns every pod.
func (a *podAPI) ListPods(context.Context, *podsv1alpha1.ListPodsRequest) (*podsv1alpha1.ListPodsResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	response := &podsv1alpha1.ListPodsResponse{}
	for _, data := range a.pods {
		response.Pods = append(response.Pods, data)
	}
	return response, nil
}

// GetPod returns one pod.
func (a *podAPI) GetPod(_ context.Context, r *podsv1alpha1.GetPodRequest) (*podsv1alpha1.GetPodResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	data, found := a.pods[r.GetPodUID()]
	if !found {
		return nil, status.Errorf(codes.NotFound, "no pod with UID %q", r.GetPodUID())
	}
	return &podsv1alpha1.GetPodResponse{Pod: data}, nil
}

package podinfo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// DefaultKubeletSocket is where a kubelet with the root directory /var/lib/kubelet serves its pod API (DefaultKubeletPodsAPIDirName
// in pkg/kubelet/kubeletconfig and Socket in pkg/kubelet/apis/pods of Kubernetes 1.36).
const DefaultKubeletSocket = "/var/lib/kubelet/pods-api/pods-api.sock"

// Kubelet is the kubelet's own pod API over its gRPC socket (KEP-4188; alpha in Kubernetes 1.36, beta from 1.37).
type Kubelet struct {
	watched
	socket string
	// absent is the time between two looks for a socket that is not there, off the time before the next attempt after the kubelet
	// has answered that the API is turned off, syncing how long the kubelet may take to send all pods, retry the time before the
	// next attempt after a failure, at first and at most.
	absent, off, syncing time.Duration
	retry                [2]time.Duration

	mu        sync.Mutex
	client    podsv1alpha1.PodsClient // nil while there is no connection
	connected bool
}

// window is how many bytes the kubelet may send ahead of us. On a local socket the default, which grows, gains nothing and
// holds megabytes while the first list comes in.
const window = 64 << 10

// NewKubelet returns a provider for a socket, which may appear later, or never.
func NewKubelet(socket string) *Kubelet {
	return &Kubelet{
		socket: socket, absent: 2 * time.Second, off: time.Minute, syncing: 30 * time.Second,
		retry: [2]time.Duration{100 * time.Millisecond, 15 * time.Second},
		watched: watched{pods: newTable(), server: presence{name: "the kubelet's pod API",
			hint: ": another source of memory requests is used until it answers; it needs the kubelet's feature gate PodsAPI, which is on by default from Kubernetes 1.37"}},
	}
}

// Source returns SourceKubelet.
func (k *Kubelet) Source() memoryqos.Source { return memoryqos.SourceKubelet }

// Connected reports whether the watch is there and has sent all pods.
func (k *Kubelet) Connected() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.connected
}

// Ask returns a pod that the watch has delivered, else asks for it (GetPod).
func (k *Kubelet) Ask(ctx context.Context, ref pods.Ref) (*pods.Pod, error) {
	if pod, ok := k.pods.get(ref); ok {
		return pod, nil
	}
	k.mu.Lock()
	client := k.client
	k.mu.Unlock()
	if client == nil {
		return nil, ErrUnavailable
	}
	answer, err := client.GetPod(ctx, &podsv1alpha1.GetPodRequest{PodUID: ref.UID})
	switch code := status.Code(err); {
	case code == codes.NotFound:
		return nil, ErrNotFound
	case code == codes.Unavailable:
		return nil, ErrUnavailable
	case code == codes.ResourceExhausted: // from Kubernetes 1.37 the kubelet limits the rate
		return nil, fmt.Errorf("ask the kubelet for pod %s: %w: %w", ref, ErrBusy, err)
	case code == codes.DeadlineExceeded: // the server's clock may be ahead of ctx
		return nil, context.DeadlineExceeded
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("ask the kubelet for pod %s: %w", ref, err)
	}
	pod, err := decode(answer.GetPod())
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet for pod %s: %w", ref, err)
	}
	if pod.Ref != ref {
		return nil, fmt.Errorf("ask the kubelet for pod %s: it answers with pod %s", ref, pod.Ref)
	}
	return pod, nil
}

// Run watches the pods until ctx ends, connecting again whenever it must.
func (k *Kubelet) Run(ctx context.Context, changed func(*pods.Pod)) {
	wait := k.retry[0]
	for ctx.Err() == nil {
		synced, err := k.watch(ctx, changed)
		if synced {
			wait = k.retry[0]
		}
		if synced || ctx.Err() == nil {
			k.server.failed(k.log(), err)
		}
		var pause time.Duration
		pause, wait = k.pause(err, wait)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// pause is the time before the next attempt, and what it will be after another failure.
func (k *Kubelet) pause(err error, wait time.Duration) (now, next time.Duration) {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return k.absent, wait
	case errors.Is(err, errOff):
		return k.off, wait
	}
	return wait, min(2*wait, k.retry[1])
}

// off reports whether an error is the whole answer of a kubelet whose feature gate PodsAPI is off. From Kubernetes 1.37 such a
// kubelet serves the socket all the same.
func off(err error) bool {
	switch status.Code(err) {
	case codes.Unknown, codes.Unimplemented, codes.FailedPrecondition, codes.PermissionDenied:
		return true
	}
	return false
}

// watch follows one connection to its end. synced reports whether the kubelet had sent all its pods.
func (k *Kubelet) watch(ctx context.Context, changed func(*pods.Pod)) (synced bool, err error) {
	if _, err := os.Stat(k.socket); err != nil {
		return false, err
	}
	conn, err := grpc.NewClient("unix:"+k.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window))
	if err != nil {
		return false, fmt.Errorf("connect to %s: %w", k.socket, err)
	}
	defer conn.Close()
	client := podsv1alpha1.NewPodsClient(conn)
	k.set(client, false)
	defer k.set(nil, false)

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(k.syncing, func() {
		cancel(fmt.Errorf("%s: the kubelet did not send all pods within %s", k.socket, k.syncing))
	})
	defer late.Stop()
	stream, err := client.WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		return false, fmt.Errorf("watch pods at %s: %w", k.socket, err)
	}
	first := map[pods.Ref]struct{}{} // what the kubelet has, until it has sent all
	for events := 0; ; events++ {
		event, err := stream.Recv()
		if cause := context.Cause(ctx); err != nil && cause != nil {
			return synced, cause
		}
		if errors.Is(err, io.EOF) {
			return synced, fmt.Errorf("watch pods at %s: ended by the kubelet", k.socket)
		}
		if err != nil && events == 0 && off(err) {
			return false, fmt.Errorf("watch pods at %s: %w: %w", k.socket, errOff, err)
		}
		if err != nil {
			return synced, fmt.Errorf("watch pods at %s: %w", k.socket, err)
		}
		if event.GetType() == podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE {
			if !synced && late.Stop() {
				synced = true
				k.pods.keep(first)
				first = nil
				k.set(client, true)
				k.server.succeeded(k.log().WithField("pods", k.Len()))
				for _, pod := range k.pods.all() {
					changed(pod)
				}
			}
			continue
		}
		k.take(event, first, changed)
	}
}

// take brings one event into the table.
func (k *Kubelet) take(event *podsv1alpha1.WatchPodsEvent, first map[pods.Ref]struct{}, changed func(*pods.Pod)) {
	pod, err := decode(event.GetPod())
	if err != nil {
		k.log().WithError(err).Warn("passed over a pod that the kubelet sent")
		return
	}
	if event.GetType() == podsv1alpha1.EventType_DELETED {
		// Only its names are sure to be set.
		delete(first, pod.Ref)
		k.pods.drop(pod.Ref)
		return
	}
	different := k.pods.put(pod)
	if first != nil {
		first[pod.Ref] = struct{}{} // reported when all are there
	} else if different {
		changed(pod)
	}
}

func (k *Kubelet) set(client podsv1alpha1.PodsClient, connected bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.client, k.connected = client, connected
}

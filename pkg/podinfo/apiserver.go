package podinfo

import (
	"context"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// APIServer is a watch on this node's pods in the API server. It needs the right to list and watch pods.
type APIServer struct {
	watched
	node    string
	client  rest.Interface
	backoff *wait.Backoff // nil for client-go's
	listed  atomic.Bool   // the first list is complete
}

// NewAPIServer returns a provider for the pods of a node (the value of spec.nodeName).
func NewAPIServer(config *rest.Config, node string) (*APIServer, error) {
	if node == "" {
		return nil, fmt.Errorf("watch pods in the API server: the node's name is not known: set NODE_NAME")
	}
	// Unlike our other clients it speaks protobuf.
	scheme := apiserver.Scheme(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{})
	config = rest.CopyConfig(config)
	config.APIPath = "/api"
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if config.UserAgent == "" {
		config.UserAgent = "nri-memory-manager"
	}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("watch pods in the API server: %w", err)
	}
	return &APIServer{
		node: node, client: client,
		watched: watched{pods: newTable(), server: presence{name: "the API server"}},
	}, nil
}

// Source returns SourceAPIServer.
func (a *APIServer) Source() memoryqos.Source { return memoryqos.SourceAPIServer }

// Connected reports whether the first list is complete and the watch goes on.
func (a *APIServer) Connected() bool {
	return a.listed.Load() && a.server.up()
}

// Ask returns a pod that the watch has delivered, waiting for it until ctx ends: the kubelet may have heard of it earlier.
// While the last attempt to reach the server has failed it does not wait.
func (a *APIServer) Ask(ctx context.Context, ref pods.Ref) (*pods.Pod, error) {
	if pod, ok := a.pods.get(ref); ok {
		return pod, nil
	}
	if a.server.problem() != "" {
		return nil, ErrUnavailable
	}
	return a.pods.wait(ctx, ref)
}

// Run lists and watches the pods until ctx ends.
func (a *APIServer) Run(ctx context.Context, changed func(*pods.Pod)) {
	announce := func() { // all pods, which count for more than before
		if a.Connected() {
			for _, pod := range a.pods.all() {
				changed(pod)
			}
		}
	}
	apiserver.Followed[*corev1.Pod, *pods.Pod]{
		Client: a.client, Resource: "pods", Field: "spec.nodeName", Value: a.node, Object: &corev1.Pod{}, List: &corev1.PodList{}, Backoff: a.backoff,
		Small: FromPod,
		Put: func(pod *pods.Pod) {
			if a.pods.put(pod) {
				changed(pod)
			}
		},
		Drop: func(pod *pods.Pod) { a.pods.drop(pod.Ref) },
		Replace: func(all []*pods.Pod) {
			a.pods.replace(all)
			a.listed.Store(true)
			announce()
		},
		Attempted: func(err error) {
			if err != nil {
				a.server.failed(a.log(), err)
			} else if a.server.succeeded(a.log()) {
				announce()
			}
		},
	}.Run(ctx)
	a.server.failed(a.log(), ctx.Err())
}

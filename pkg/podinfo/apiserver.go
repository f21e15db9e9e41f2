package podinfo

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// APIServer is a watch on this node's pods in the API server. It needs the right to list and watch pods.
type APIServer struct {
	watched
	node     string
	client   rest.Interface
	params   runtime.ParameterCodec
	pageSize int64         // of a list, where the server cannot stream it
	backoff  *wait.Backoff // nil for client-go's

	mu      sync.Mutex
	changed func(*pods.Pod)
	listed  bool // the first list is complete
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
		node: node, client: client, params: runtime.NewParameterCodec(scheme), pageSize: 100,
		watched: watched{pods: newTable(), server: presence{name: "the API server"}},
	}, nil
}

// Source returns SourceAPIServer.
func (a *APIServer) Source() memoryqos.Source { return memoryqos.SourceAPIServer }

// Connected reports whether the first list is complete and the watch goes on.
func (a *APIServer) Connected() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.listed && a.server.up()
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
	a.mu.Lock()
	a.changed = changed
	a.mu.Unlock()
	silent := klog.New(nil) // Log has failures, once
	reflector := cache.NewReflectorWithOptions(
		&cache.ListWatch{ListWithContextFunc: a.list, WatchFuncWithContext: a.watch},
		&corev1.Pod{}, &apiStore{server: a, changed: changed},
		cache.ReflectorOptions{Name: "podinfo", Logger: &silent, Backoff: a.backoff})
	reflector.WatchListPageSize = a.pageSize
	reflector.RunWithContext(klog.NewContext(ctx, silent))
	a.server.failed(a.log(), ctx.Err())
}

func (a *APIServer) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list := &corev1.PodList{}
	err := a.request(options).Do(ctx).Into(list)
	a.attempted(ctx, err)
	return list, err
}

func (a *APIServer) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	w, err := a.request(options).Watch(ctx)
	a.attempted(ctx, err)
	return w, err
}

func (a *APIServer) request(options metav1.ListOptions) *rest.Request {
	options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", a.node).String()
	return a.client.Get().Resource("pods").VersionedParams(&options, a.params)
}

// attempted notes how an attempt to reach the server ended.
func (a *APIServer) attempted(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil:
		a.server.failed(a.log(), err)
	case a.server.succeeded(a.log()):
		a.announce()
	}
}

// announce reports all pods if the server is connected: they count for more than before.
func (a *APIServer) announce() {
	a.mu.Lock()
	changed := a.changed
	a.mu.Unlock()
	if !a.Connected() {
		return
	}
	for _, pod := range a.pods.all() {
		changed(pod)
	}
}

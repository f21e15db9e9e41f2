package world

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/podserver"
)

// Kinds of faults of the API server, on a node where the daemon asks it for pods.
const (
	APIAway    = "API server away"    // connections break, and are refused
	APIHangs   = "API server hangs"   // it answers nothing, and its watches say nothing
	APIRefuses = "API server refuses" // watches end, and every request is 429
	APILags    = "API server lags"    // it has what was so when that began; a request for what is new is 504
	APIExpires = "watches expire"     // they end, and to take them up again is 410, in a moment
)

// NodeName is the node's name in the API.
const NodeName = "node1"

// apiServer is the API server with this node's pods, over connections in memory.
type apiServer struct {
	trouble  *trouble
	pods     *podserver.Pods
	server   http.Server
	accepted chan net.Conn
	ended    chan struct{}

	mu    sync.Mutex
	conns []net.Conn // the daemon's ends
	claimObjects
	late []func() // changes that it does not have while it lags
}

func newAPIServer(t *trouble, lists bool) *apiServer {
	a := &apiServer{trouble: t, pods: podserver.New(NodeName), accepted: make(chan net.Conn), ended: make(chan struct{})}
	a.pods.NoStream, a.pods.Before, a.pods.Wait = lists, a.before, func() { time.Sleep(t.left(APIHangs)) }
	a.server.Handler = a.handler()
	go func() { _ = a.server.Serve(a) }()
	return a
}

// before holds or refuses a request as the faults of the moment have it.
func (a *apiServer) before(r *http.Request) int {
	time.Sleep(a.trouble.left(APIHangs))
	query := r.URL.Query()
	switch version := query.Get("resourceVersion"); {
	case a.trouble.left(APIRefuses) > 0:
		return http.StatusTooManyRequests
	case a.trouble.left(APILags) > 0 && version != "0" && (query.Get("watch") != "true" || query.Get("sendInitialEvents") == "true"):
		return http.StatusGatewayTimeout
	}
	return 0
}

// change changes pods, once it does not lag any more.
func (a *apiServer) change(how func()) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.late = append(a.late, how); a.trouble.left(APILags) == 0 {
		a.catchUp()
	}
}

// catchUp takes in what it lacks. The lock is held.
func (a *apiServer) catchUp() {
	for _, how := range a.late {
		how()
	}
	a.late = nil
}

// fault has a fault begin, and end later.
func (a *apiServer) fault(f Fault) {
	switch f.Kind {
	case APIAway:
		a.disconnect()
	case APIRefuses:
		a.pods.With(a.pods.Cut)
		a.With(a.Cut)
	case APIExpires:
		a.pods.With(a.pods.Expire)
	case APILags:
		time.AfterFunc(time.Duration(f.Length), func() { a.change(func() {}) })
	}
}

// disconnect breaks all connections.
func (a *apiServer) disconnect() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, conn := range a.conns {
		conn.Close()
	}
	a.conns = nil
}

// transport is how one life of the daemon reaches the API server.
func (a *apiServer) transport(l *life) http.RoundTripper {
	return &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		a.trouble.thaw()
		if l.killed.Load() || a.trouble.left(APIAway) > 0 {
			return nil, unix.ECONNREFUSED
		}
		client, server := net.Pipe()
		a.mu.Lock()
		a.conns = append(a.conns, client)
		a.mu.Unlock()
		select {
		case a.accepted <- server:
			return thawed{client, a.trouble}, nil
		case <-a.ended:
			return nil, unix.ECONNREFUSED
		}
	}}
}

// Provider is the daemon's client for pods.
func (a *apiServer) Provider(transport http.RoundTripper) podinfo.Provider {
	client, err := podinfo.NewAPIServer(&rest.Config{Host: "http://kubernetes.default", Transport: transport}, NodeName)
	must(err)
	return client
}

// thawed is a connection of a daemon that reads and writes nothing while it is frozen.
type thawed struct {
	net.Conn
	trouble *trouble
}

func (c thawed) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.trouble.thaw()
	return n, err
}

func (c thawed) Write(b []byte) (int, error) {
	c.trouble.thaw()
	return c.Conn.Write(b)
}

// Accept, Close and Addr are net.Listener.
func (a *apiServer) Accept() (net.Conn, error) {
	select {
	case conn := <-a.accepted:
		return conn, nil
	case <-a.ended:
		return nil, net.ErrClosed
	}
}

func (a *apiServer) Close() error {
	select {
	case <-a.ended:
		return errors.New("closed before")
	default:
		close(a.ended)
		return nil
	}
}

func (a *apiServer) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// publish has the pod APIs tell of a pod as it was admitted.
func (p *pod) publish(facts *pods.Pod) {
	p.api.put(facts)
	p.server.change(func() { p.server.pods.Put(v1Pod(facts, p.spec)) })
}

// unpublish has them tell that it is deleted.
func (p *pod) unpublish() {
	p.api.remove(p.facts.Ref)
	p.server.change(func() { p.server.pods.Drop(p.spec.Name) })
}

// v1Pod is a pod as the API server has it; of a static one that is its mirror.
func v1Pod(facts *pods.Pod, spec Pod) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(facts.UID), Namespace: facts.Namespace, Name: facts.Name, Annotations: map[string]string{}}}
	maps.Copy(pod.Annotations, spec.Annotations)
	if facts.Static {
		pod.UID = types.UID("mirror-of-" + facts.UID)
		pod.Annotations["kubernetes.io/config.source"], pod.Annotations["kubernetes.io/config.mirror"] = "file", facts.UID
	}
	pod.Spec.NodeName, pod.Spec.PriorityClassName, pod.Status.QOSClass = NodeName, facts.PriorityClass, corev1.PodQOSClass(facts.Class)
	for _, c := range facts.Containers {
		one := corev1.Container{Name: c.Name, Resources: *needs(c.Request, c.Limit)}
		cpu := resource.MustParse("10m")
		if c.Guaranteed {
			one.Resources.Limits[corev1.ResourceCPU] = cpu
		}
		if facts.Class != memoryqos.BestEffort {
			one.Resources.Requests[corev1.ResourceCPU] = cpu
		}
		for _, huge := range c.Hugepages {
			one.Resources.Limits[corev1.ResourceName(huge.Type)], one.Resources.Requests[corev1.ResourceName(huge.Type)] = bytesOf(huge.Bytes), bytesOf(huge.Bytes)
		}
		switch c.Kind {
		case memoryqos.App:
			pod.Spec.Containers = append(pod.Spec.Containers, one)
			continue
		case memoryqos.Sidecar:
			always := corev1.ContainerRestartPolicyAlways
			one.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, one)
	}
	if facts.PodLevel() {
		pod.Spec.Resources = &corev1.ResourceRequirements{}
		if request, limit := facts.PodRequest, facts.PodLimit; request != nil && limit != nil {
			pod.Spec.Resources = needs(*request, *limit)
		}
	}
	return pod
}

// needs are a request and a limit of memory; 0 is none.
func needs(request, limit uint64) *corev1.ResourceRequirements {
	r := &corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	if request > 0 {
		r.Requests[corev1.ResourceMemory] = bytesOf(request)
	}
	if limit > 0 {
		r.Limits[corev1.ResourceMemory] = bytesOf(limit)
	}
	return r
}

func bytesOf(bytes uint64) resource.Quantity {
	return *resource.NewQuantity(int64(bytes), resource.BinarySI)
}

// apiServer has the daemon on a third of the nodes ask the API server, where the kubelet has no pod API, and adds what goes wrong with it.
func (d drawer) apiServer(s *Scenario) {
	d.Rand = draws(s.Seed, "API server")
	if !d.oneIn(3) {
		return
	}
	s.APIServer = pick(d, "streams", "lists")
	for i := range s.Faults {
		if strings.HasPrefix(s.Faults[i].Kind, "pod API") {
			s.Faults[i].Kind = APIHangs
		}
	}
	for range 1 + d.IntN(3) {
		s.Faults = append(s.Faults, Fault{At: d.when(d.between(10*time.Second, d.length)), Kind: pick(d, APIAway, APIHangs, APIRefuses, APILags, APIExpires),
			Length: Duration(d.between(time.Second, 2*time.Minute))})
	}
}

package apiserver

import (
	"context"
	"os/exec"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// TestPodsAreFollowed has a real API server tell of pods: its defaults, field selector, protobuf, streamed lists, resizes and a restart.
func TestPodsAreFollowed(t *testing.T) {
	t.Parallel()
	server, admin, _ := newKubernetes(t)
	client, err := kubernetes.NewForConfig(ready(t, admin, server))
	must(t, err)
	size := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourceCPU: resource.MustParse("4")}
	_, err = client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"},
		Status: corev1.NodeStatus{Allocatable: size}}, metav1.CreateOptions{})
	must(t, err)
	onNode := client.CoreV1().Pods("default")
	add := func(text string) pods.Ref {
		t.Helper()
		var pod corev1.Pod
		must(t, yaml.UnmarshalStrict([]byte(text), &pod))
		created, err := onNode.Create(t.Context(), &pod, metav1.CreateOptions{})
		must(t, err)
		return pods.Ref{UID: string(created.UID), Namespace: created.Namespace, Name: created.Name}
	}
	patch := func(text, subresource string) {
		t.Helper()
		_, err := onNode.Patch(t.Context(), "resized", types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{}, subresource)
		must(t, err)
	}
	before := add(`
metadata: {name: before}
spec:
  nodeName: worker
  initContainers:
  - {name: setup, image: image, resources: {requests: {memory: 1Gi}}}
  - {name: proxy, image: image, restartPolicy: Always, resources: {requests: {memory: 64Mi}}}
  containers: [{name: app, image: image, resources: {limits: {memory: 128Mi}}}]
`)
	add("{metadata: {name: elsewhere}, spec: {nodeName: other, containers: [{name: app, image: image}]}}")

	api, err := podinfo.NewAPIServer(admin, "worker")
	must(t, err)
	resolver := podinfo.New(podinfo.Options{Providers: []podinfo.Provider{api}, Timeout: bound})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); resolver.Run(ctx) }()
	defer func() { cancel(); <-done }()
	requests := func(ref pods.Ref) (all []uint64) {
		if pod, known := api.Known(ref); known {
			for _, c := range pod.Containers {
				all = append(all, c.Request>>20)
			}
		}
		return all
	}
	become := func(what string, ref pods.Ref, want ...uint64) {
		t.Helper()
		eventually(t, what, func() bool { return slices.Equal(requests(ref), want) })
	}
	become("the first list", before, 1024, 64, 128)
	if api.Len() != 1 {
		t.Errorf("%d pods are known, want the node's only one", api.Len())
	}

	level := add(`
metadata: {name: level}
spec:
  nodeName: worker
  resources: {limits: {memory: 1Gi, cpu: 1}}
  containers: [{name: app, image: image, resources: {requests: {memory: 100Mi}}}]
`)
	eventually(t, "a pod with resources of its own", func() bool {
		pod, known := api.Known(level)
		return known && pod.PodRequest != nil && *pod.PodRequest == 100<<20
	})

	add(`
metadata:
  name: static-worker
  annotations: {kubernetes.io/config.mirror: hash1, kubernetes.io/config.hash: hash1, kubernetes.io/config.source: file}
spec: {nodeName: worker, containers: [{name: app, image: image, resources: {requests: {memory: 32Mi}}}]}
`)
	answer, ok := resolver.Resolve(t.Context(), pods.Ref{UID: "hash1", Namespace: "default", Name: "static-worker"})
	if !ok || answer.Source != memoryqos.SourceAPIServer || !answer.Pod.Mirror || answer.Pod.Containers[0].Request != 32<<20 {
		t.Errorf("the mirror of a static pod: got %+v, %t", answer.Pod, ok)
	}

	resized := add("{metadata: {name: resized}, spec: {nodeName: worker, containers: [{name: app, image: image, resources: {requests: {memory: 100Mi}}}]}}")
	become("the pod to resize", resized, 100)
	status := func(allocated string) string {
		return `{"status": {"containerStatuses": [{"name": "app", "image": "image", "imageID": "image", "ready": true, "restartCount": 0,
			"allocatedResources": {"memory": "` + allocated + `"}, "resources": {"requests": {"memory": "100Mi"}}}]}}`
	}
	patch(status("100Mi"), "status")
	patch(`{"spec": {"containers": [{"name": "app", "resources": {"requests": {"memory": "200Mi"}}}]}}`, "resize")
	marker := add("{metadata: {name: marker}, spec: {nodeName: worker, containers: [{name: app, image: image}]}}")
	become("what came after the resize", marker, 0)
	if got := requests(resized); !slices.Equal(got, []uint64{100}) {
		t.Errorf("a resize that the kubelet has not admitted: got %v", got)
	}
	patch(status("200Mi"), "status")
	become("the admitted resize", resized, 200)

	now := int64(0)
	must(t, onNode.Delete(t.Context(), "level", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	become("a pod's end", level)

	must(t, server.Process.Kill())
	eventually(t, "the loss of the server", func() bool { return !api.Connected() })
	if got, ok := resolver.Resolve(t.Context(), before); !ok || got.Source != memoryqos.SourceAPIServer {
		t.Errorf("a known pod while the server is away: got %+v, %t", got, ok)
	}
	start(t, exec.Command(server.Path, server.Args[1:]...))
	eventually(t, "the server's return", api.Connected)
	become("a pod after the restart", add("{metadata: {name: after}, spec: {nodeName: worker, containers: [{name: app, image: image, resources: {requests: {memory: 16Mi}}}]}}"), 16)
}

package podinfo

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// apiStore takes what client-go's reflector reads and keeps only the small pods, so that no v1.Pod outlives its event.
type apiStore struct {
	server  *APIServer
	changed func(*pods.Pod)
}

// streamed is a pod while a streamed list is being collected: the reflector wants its names.
type streamed struct {
	metav1.ObjectMeta
	pod *pods.Pod
}

// Transformer makes pods small while the reflector collects a streamed list.
func (s *apiStore) Transformer() cache.TransformFunc {
	return func(object any) (any, error) {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return object, nil
		}
		return &streamed{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, pod: FromPod(pod)}, nil
	}
}

// small makes one of what the reflector hands over.
func small(object any) (*pods.Pod, error) {
	switch o := object.(type) {
	case *corev1.Pod:
		return FromPod(o), nil
	case *streamed:
		return o.pod, nil
	}
	return nil, fmt.Errorf("take a pod from the API server: it is a %T", object)
}

// Add stores a new pod.
func (s *apiStore) Add(object any) error {
	pod, err := small(object)
	if err != nil {
		return err
	}
	if s.server.pods.put(pod) {
		s.changed(pod)
	}
	return nil
}

// Update stores a pod that may have changed.
func (s *apiStore) Update(object any) error { return s.Add(object) }

// Delete drops a pod.
func (s *apiStore) Delete(object any) error {
	pod, err := small(object)
	if err == nil {
		s.server.pods.drop(pod.Ref)
	}
	return err
}

// Replace stores the whole list of pods and drops all others.
func (s *apiStore) Replace(objects []any, _ string) error {
	refs := make(map[pods.Ref]struct{}, len(objects))
	for i, object := range objects {
		pod, err := small(object)
		if err != nil {
			return err
		}
		objects[i] = nil // not needed any more, and large
		refs[pod.Ref] = struct{}{}
		s.server.pods.put(pod)
	}
	s.server.pods.keep(refs)
	s.server.mu.Lock()
	s.server.listed = true
	s.server.mu.Unlock()
	s.server.announce()
	return nil
}

// Resync does nothing: there is no cache to compare with.
func (s *apiStore) Resync() error { return nil }

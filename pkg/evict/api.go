package evict

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
)

type api struct{ client rest.Interface }

// NewAPI returns the API server. It needs the rights to get pods and to create pods/eviction.
func NewAPI(config *rest.Config) (API, error) {
	client, err := apiserver.NewClient(config, corev1.SchemeGroupVersion, &corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("evict pods by the API server: %w", err)
	}
	return api{client}, nil
}

// Pod implements API.
func (a api) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, a.client.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(pod)
}

// Evict implements API. https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
func (a api) Evict(ctx context.Context, pod *corev1.Pod) error {
	eviction := policyv1.Eviction{
		TypeMeta:      metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "Eviction"},
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: metav1.NewPreconditionDeleteOptions(string(pod.UID)),
	}
	body, err := json.Marshal(eviction)
	if err != nil {
		return err
	}
	return a.client.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Error()
}

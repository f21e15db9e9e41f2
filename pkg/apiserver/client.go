// Package apiserver makes clients of the API server that know the types they are made for, and no others: Kubernetes' clientset and
// what is built on it would draw all API groups into the binary, 16 MB of them. It keeps the objects that follow from this node, too.
package apiserver

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Config reads a kubeconfig file, or with an empty path the service account that Kubernetes gives a pod; outside of
// a pod that is rest.ErrNotInCluster.
func Config(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	return config, nil
}

// Scheme knows these types of a version of an API group.
func Scheme(version schema.GroupVersion, types ...runtime.Object) *runtime.Scheme {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(version, types...)
	metav1.AddToGroupVersion(scheme, version)
	return scheme
}

// NewClient returns a client for these types of a version of an API group. It speaks JSON, which custom resources have alone.
func NewClient(config *rest.Config, version schema.GroupVersion, types ...runtime.Object) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/apis", &version
	if version.Group == "" {
		config.APIPath = "/api" // of the first resources, which have no group
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(Scheme(version, types...)).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	return rest.RESTClientFor(config)
}

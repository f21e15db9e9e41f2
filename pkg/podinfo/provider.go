package podinfo

import (
	"context"
	"errors"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// ErrNotFound is what a provider answers for a pod that its source does not know.
var ErrNotFound = errors.New("pod not found")

// ErrUnavailable is what a provider answers while its source is not there: no socket, no connection.
var ErrUnavailable = errors.New("source not available")

// ErrBusy is what a provider answers whose source is asked too often.
var ErrBusy = errors.New("source is asked too often")

// Provider is a source that knows pods. Its methods may be called from any goroutine.
type Provider interface {
	// Source is the provider's name.
	Source() memoryqos.Source
	// Run keeps the provider connected until ctx ends. It calls changed for every pod when it has become connected, and then
	// for every pod that is new or different.
	Run(ctx context.Context, changed func(*pods.Pod))
	// Known returns a pod from memory, without waiting; also while the source is away, because a request rarely changes.
	Known(ref pods.Ref) (*pods.Pod, bool)
	// Ask returns a pod, waiting for the source until ctx ends. The error is ErrNotFound, ErrUnavailable, ErrBusy, ctx's error or
	// what the source said.
	Ask(ctx context.Context, ref pods.Ref) (*pods.Pod, error)
	// Connected reports whether the source is there and has sent all pods that it has.
	Connected() bool
	// Problem says why the source does not answer; "" while it does and while that is not known yet.
	Problem() string
	// Len is the number of pods in memory.
	Len() int
}

package podinfo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// Places say where the pod APIs are.
type Places struct {
	// KubeletSocket is empty for DefaultKubeletSocket.
	KubeletSocket string
	// Kubeconfig is empty for the service account of our own pod.
	Kubeconfig string
	// Node is our name in spec.nodeName.
	Node string
}

// Providers makes the providers that order names (requestSources); other sources in it are passed over, because the
// events themselves bring them. An empty order finds out by itself: the kubelet, whose socket may appear at any time, and
// the API server where a kubeconfig or a service account and the node's name are given.
func Providers(order []memoryqos.Source, at Places, log logrus.FieldLogger) ([]Provider, error) {
	automatic := len(order) == 0
	if automatic {
		order = []memoryqos.Source{memoryqos.SourceKubelet, memoryqos.SourceAPIServer}
	}
	var all []Provider
	for _, source := range order {
		switch source {
		case memoryqos.SourceKubelet:
			kubelet := NewKubelet(cmp.Or(at.KubeletSocket, DefaultKubeletSocket))
			kubelet.Log = log
			all = append(all, kubelet)
		case memoryqos.SourceAPIServer:
			server, err := at.apiServer()
			given := !errors.Is(err, rest.ErrNotInCluster) && !errors.Is(err, fs.ErrNotExist) && at.Node != "" // else a token is missing, or the name
			if automatic && at.Kubeconfig == "" && !given {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("requestSources: %s: %w", source, err)
			}
			server.Log = log
			all = append(all, server)
		}
	}
	return all, nil
}

func (at Places) apiServer() (*APIServer, error) {
	config, err := apiserver.Config(at.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return NewAPIServer(config, at.Node)
}

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
}

// watched is what a provider's watch has delivered, and whether its source answers.
type watched struct {
	// Log is nil for logrus' standard logger. It receives a line when the source comes and goes, not for each attempt.
	Log logrus.FieldLogger

	pods   *table
	server presence
}

// Known returns a pod that the watch has delivered.
func (w *watched) Known(ref pods.Ref) (*pods.Pod, bool) { return w.pods.get(ref) }

// Len is the number of pods in memory.
func (w *watched) Len() int { return w.pods.len() }

// Problem says why the source does not answer.
func (w *watched) Problem() string { return w.server.problem() }

func (w *watched) log() logrus.FieldLogger { return logger(w.Log) }

func logger(log logrus.FieldLogger) logrus.FieldLogger {
	if log == nil {
		return logrus.StandardLogger()
	}
	return log
}

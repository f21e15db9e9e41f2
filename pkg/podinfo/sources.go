package podinfo

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
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
			if automatic && (errors.Is(err, rest.ErrNotInCluster) || at.Node == "" && at.Kubeconfig == "") {
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

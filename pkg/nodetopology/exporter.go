package nodetopology

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	topology "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha2"
	"github.com/sirupsen/logrus"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

const resource = "noderesourcetopologies"

// NewClient returns a client for the API group topology.node.k8s.io. The generated clientset would do the same and draw
// all of Kubernetes' API groups into the binary, 16 MB of them.
func NewClient(config *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := topology.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &topology.SchemeGroupVersion, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON // custom resources have no other
	return rest.RESTClientFor(config)
}

// Exporter keeps one object, named after the node, equal to the node map.
type Exporter struct {
	Client  rest.Interface // from NewClient
	Node    string         // the Kubernetes node's name
	View    func() *agent.View
	Machine machine.Machine
	// Period is the least time between two writes; each wait is stretched by up to a fifth at random, so that a cluster's
	// nodes do not write in step.
	Period time.Duration
	Log    logrus.FieldLogger

	sent *topology.NodeResourceTopology
}

// Run exports until ctx ends. Nothing is sent while nothing has changed; an API server that does not answer is asked
// again after the next period.
func (e *Exporter) Run(ctx context.Context) {
	failing := false
	for {
		if err := e.export(ctx); err != nil && ctx.Err() == nil {
			if !failing {
				e.Log.WithError(err).Warn("the NodeResourceTopology of this node is not up to date")
			}
			failing = true
		} else if failing {
			e.Log.Info("the NodeResourceTopology of this node is up to date again")
			failing = false
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(e.Period + rand.N(e.Period/5+1)):
		}
	}
}

// export writes the object if it differs from what was sent last.
func (e *Exporter) export(ctx context.Context) error {
	view := e.View()
	zones, attributes := Zones(view.Nodes, e.Machine), attributes(view)
	if len(zones) == 0 || e.sent != nil && same(e.sent, zones, attributes) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var current topology.NodeResourceTopology
	err := e.Client.Get().Resource(resource).Name(e.Node).Do(ctx).Into(&current)
	switch {
	case apierrors.IsNotFound(err):
		object := topology.NodeResourceTopology{ObjectMeta: metav1.ObjectMeta{Name: e.Node}, Zones: zones, Attributes: attributes}
		err = e.Client.Post().Resource(resource).Body(&object).Do(ctx).Into(&current)
	case err == nil && !same(&current, zones, attributes):
		current.Zones, current.Attributes = zones, attributes
		err = e.Client.Put().Resource(resource).Name(e.Node).Body(&current).Do(ctx).Into(&current)
	}
	if err != nil {
		return fmt.Errorf("write NodeResourceTopology %s: %w", e.Node, err)
	}
	e.sent = &current
	return nil
}

func same(object *topology.NodeResourceTopology, zones topology.ZoneList, attributes topology.AttributeList) bool {
	return apiequality.Semantic.DeepEqual(object.Zones, zones) && apiequality.Semantic.DeepEqual(object.Attributes, attributes)
}

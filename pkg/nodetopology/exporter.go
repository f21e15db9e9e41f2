package nodetopology

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	topology "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha2"
	client "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/generated/clientset/versioned"
	"github.com/sirupsen/logrus"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

// Exporter keeps one object, named after the node, equal to the node map.
type Exporter struct {
	Client  client.Interface
	Node    string // the Kubernetes node's name
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
	objects := e.Client.TopologyV1alpha2().NodeResourceTopologies()
	current, err := objects.Get(ctx, e.Node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		current = &topology.NodeResourceTopology{ObjectMeta: metav1.ObjectMeta{Name: e.Node}, Zones: zones, Attributes: attributes}
		current, err = objects.Create(ctx, current, metav1.CreateOptions{})
	case err == nil && !same(current, zones, attributes):
		current.Zones, current.Attributes = zones, attributes
		current, err = objects.Update(ctx, current, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write NodeResourceTopology %s: %w", e.Node, err)
	}
	e.sent = current
	return nil
}

func same(object *topology.NodeResourceTopology, zones topology.ZoneList, attributes topology.AttributeList) bool {
	return apiequality.Semantic.DeepEqual(object.Zones, zones) && apiequality.Semantic.DeepEqual(object.Attributes, attributes)
}

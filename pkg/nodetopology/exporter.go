package nodetopology

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

const resource = "noderesourcetopologies"

// NewClient returns a client for the API group topology.node.k8s.io.
func NewClient(config *rest.Config) (rest.Interface, error) {
	return apiserver.NewClient(config, groupVersion, &NodeResourceTopology{})
}

// Exporter keeps one object, named after the node, equal to the node map. It needs the rights to get, create, update and
// delete noderesourcetopologies, and to get nodes.
type Exporter struct {
	Client  rest.Interface // from NewClient
	Node    string         // the Kubernetes node's name
	View    func() *ledger.View
	Machine machine.Machine
	// Period is the mean time between two writes while something changes all the time. A change after a quiet time is written at once.
	Period time.Duration
	Log    logrus.FieldLogger

	known  *NodeResourceTopology // as the API server had it last; nil is not known
	read   time.Time             // when it was read
	gone   bool                  // it was deleted for a rollback
	equal  uint64                // the last generation of the View that it was found to be equal to
	sample *deficit.Sample       // that of the same View
	look   time.Duration         // a test's, of the View
}

// readEvery is after how many periods the object is read although nothing has changed here: somebody may have deleted
// it or written into it.
const readEvery = 30

// requestTimeout bounds one export, and the deletion.
const requestTimeout = 10 * time.Second

// managedBy finds the objects of all nodes: "kubectl delete noderesourcetopologies -l".
var managedBy = map[string]string{"app.kubernetes.io/managed-by": "nri-memory-manager"}

// Run exports until ctx ends. Nothing is sent while nothing has changed, but for a look at every readEvery'th period.
func (e *Exporter) Run(ctx context.Context) {
	apiserver.Kept[*ledger.View]{
		Kind: "NodeResourceTopology", View: e.View, Write: e.export, Period: e.Period, Look: e.look, Log: e.Log,
		Due: func(view *ledger.View) bool { return e.due(view, time.Now()) },
	}.Run(ctx)
}

// Delete deletes the object, so that no scheduler trusts it any more.
func (e *Exporter) Delete() error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	if err := e.Client.Delete().Resource(resource).Name(e.Node).Do(ctx).Error(); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete NodeResourceTopology %s: %w", e.Node, err)
	}
	return nil
}

// off reports whether the object is to be gone: a scheduler would heed what nothing updates, or holds.
func off(view *ledger.View) bool {
	c := view.Config.Config
	return c.RolledBack || !c.NodeResourceTopology
}

// due reports whether there is something to send or to read. A node without a map has no zones to export.
func (e *Exporter) due(view *ledger.View, now time.Time) bool {
	switch {
	case off(view):
		return !e.gone
	case len(view.Nodes) == 0:
		return false
	case e.stale(now):
		return true
	case e.equal == view.Generation && e.sample == view.NodeMemory:
		return false
	case same(e.known, zones(view, e.Machine), attributes(view)):
		e.equal, e.sample = view.Generation, view.NodeMemory
		return false
	}
	return true
}

func (e *Exporter) stale(now time.Time) bool {
	return e.known == nil || now.Sub(e.read) >= readEvery*e.Period
}

func (e *Exporter) export(ctx context.Context, view *ledger.View) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if off(view) {
		err := e.Delete()
		e.known, e.gone = nil, err == nil
		return err
	}
	e.gone = false
	zones, attributes := zones(view, e.Machine), attributes(view)
	err := e.write(ctx, zones, attributes)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) { // changed or deleted since it was read
		e.read = time.Time{}
		err = e.write(ctx, zones, attributes)
	}
	if err != nil {
		e.known = nil // whatever it is now
		return fmt.Errorf("write NodeResourceTopology %s: %w", e.Node, err)
	}
	return nil
}

// write updates the object. It reads it first if it is not known or was last read long ago.
func (e *Exporter) write(ctx context.Context, zones []Zone, attributes []Attribute) error {
	if e.stale(time.Now()) {
		if err := e.get(ctx); err != nil {
			return err
		}
	}
	if e.known == nil {
		return e.create(ctx, zones, attributes)
	}
	if same(e.known, zones, attributes) {
		return nil
	}
	object := *e.known
	object.Zones, object.Attributes = zones, attributes
	return e.send(ctx, e.Client.Put().Name(e.Node), &object)
}

// get asks for the object, and says so when it is not what it was.
func (e *Exporter) get(ctx context.Context) error {
	found := &NodeResourceTopology{}
	err := e.Client.Get().Resource(resource).Name(e.Node).Do(ctx).Into(found)
	if apierrors.IsNotFound(err) {
		found, err = nil, nil
	}
	if err != nil {
		return err
	}
	switch {
	case e.known == nil:
	case found == nil:
		e.Log.Info("the NodeResourceTopology was deleted of this node")
	case !same(found, e.known.Zones, e.known.Attributes):
		e.Log.Info("the NodeResourceTopology of this node was changed externally")
	}
	e.known, e.read = found, time.Now()
	return nil
}

func (e *Exporter) create(ctx context.Context, zones []Zone, attributes []Attribute) error {
	owners, unowned := apiserver.Owners(ctx, e.Client, e.Node)
	err := e.send(ctx, e.Client.Post(), &NodeResourceTopology{
		ObjectMeta: metav1.ObjectMeta{Name: e.Node, Labels: managedBy, OwnerReferences: owners}, Zones: zones, Attributes: attributes})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("is the CustomResourceDefinition of %s installed? %w", resource, err)
	}
	if err == nil && unowned != nil {
		e.Log.WithError(unowned).Warn("the NodeResourceTopology of this node will outlive the Node, whose UID cannot be read")
	}
	return err
}

func (e *Exporter) send(ctx context.Context, request *rest.Request, object *NodeResourceTopology) error {
	written := &NodeResourceTopology{}
	err := request.Resource(resource).Body(object).Do(ctx).Into(written)
	if err == nil {
		e.known = written
	}
	return err
}

func same(object *NodeResourceTopology, zones []Zone, attributes []Attribute) bool {
	return apiequality.Semantic.DeepEqual(object.Zones, zones) && apiequality.Semantic.DeepEqual(object.Attributes, attributes)
}

package dra

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodetopology"
)

// Publisher keeps one ResourceSlice equal to what claims may have of this machine's NUMA nodes. It needs the rights to get, watch,
// create and update resourceslices, and to get nodes.
type Publisher struct {
	Client       rest.Interface // of NewClient
	Driver, Node string
	View         func() *ledger.View
	Machine      machine.Machine
	Log          logrus.FieldLogger

	known *resourceapi.ResourceSlice // as the API server had it last; nil is not known
	order []int
	equal uint64        // the last generation of the View that it was found to be equal to
	since time.Time     // when the View's sample was taken then
	look  time.Duration // a test's lookEvery
}

const resource = "resourceslices"

const (
	// lookEvery is how often the ledger is looked at for a change.
	lookEvery = 200 * time.Millisecond
	// writeEvery is the mean time between two writes while something changes all the time, writeBurst how many a calm allows.
	writeEvery = 10 * time.Second
	writeBurst = 5
	// coverEvery is how often a sample of the nodes' cover is looked at while nothing else changes.
	coverEvery = time.Minute
	// watchRetry is the pause before a watch that has ended is opened again.
	watchRetry = 10 * time.Second
)

// Run publishes until ctx ends. The slice is watched, because a kubelet deletes it when it starts and when this driver is away.
func (p *Publisher) Run(ctx context.Context) {
	limit := rate.NewLimiter(rate.Every(writeEvery), writeBurst)
	changed := make(chan string)
	go p.watch(ctx, changed)
	failing := false
	for {
		pause := cmp.Or(p.look, lookEvery)
		if view := p.View(); p.due(view) && limit.Allow() {
			switch err := p.publish(ctx, view); {
			case ctx.Err() != nil:
				return
			case err != nil:
				pause = writeEvery + rand.N(writeEvery/5)
				if !failing {
					p.Log.WithError(err).Warn("the ResourceSlice of this node is not up to date")
				}
				failing = true
			case failing:
				p.Log.Info("the ResourceSlice of this node is up to date again")
				failing = false
			}
		}
		select {
		case <-ctx.Done():
			return
		case version := <-changed:
			if p.known != nil && p.known.ResourceVersion != version {
				p.known = nil
			}
		case <-time.After(pause):
		}
	}
}

// watch sends the version of the slice whenever it changes, and "" when it is deleted or may have been.
func (p *Publisher) watch(ctx context.Context, changed chan<- string) {
	send := func(version string) {
		select {
		case changed <- version:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		watch, err := p.Client.Get().Resource(resource).VersionedParams(&metav1.ListOptions{
			Watch: true, FieldSelector: "metadata.name=" + p.name(),
		}, metav1.ParameterCodec).Watch(ctx)
		send("")
		if err == nil {
			for event := range watch.ResultChan() {
				slice, ok := event.Object.(*resourceapi.ResourceSlice)
				if !ok {
					break // an error: the watch is too old
				}
				if event.Type == "DELETED" {
					slice.ResourceVersion = ""
				}
				send(slice.ResourceVersion)
			}
			watch.Stop()
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry + rand.N(watchRetry/5)):
		}
	}
}

// name is the slice's: one a node and driver.
func (p *Publisher) name() string { return p.Node + "-" + p.Driver }

// due reports whether there is something to write or to read.
func (p *Publisher) due(view *ledger.View) bool {
	if p.known == nil {
		return true
	}
	sampled := p.since
	if view.Cover.Known() {
		sampled = view.Cover.At
	}
	if p.equal == view.Generation && sampled.Sub(p.since) < coverEvery {
		return false
	}
	if apiequality.Semantic.DeepEqual(p.known.Spec, p.spec(view)) {
		p.equal, p.since = view.Generation, sampled
		return false
	}
	return true
}

// spec is what the slice should be.
func (p *Publisher) spec(view *ledger.View) resourceapi.ResourceSliceSpec {
	p.order = Order(view.Claimable, view.Cover, p.order)
	return resourceapi.ResourceSliceSpec{
		Driver: p.Driver, NodeName: &p.Node,
		Pool:    resourceapi.ResourcePool{Name: p.Node, Generation: 1, ResourceSliceCount: 1},
		Devices: Devices(view.Claimable, p.Machine, p.order),
	}
}

// publish writes the slice if it differs from what the API server has.
func (p *Publisher) publish(ctx context.Context, view *ledger.View) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := p.write(ctx, view)
	if err != nil {
		p.known = nil // whatever it is now
		return fmt.Errorf("write ResourceSlice %s: %w", p.name(), err)
	}
	return nil
}

func (p *Publisher) write(ctx context.Context, view *ledger.View) error {
	if p.known == nil {
		found := &resourceapi.ResourceSlice{}
		err := p.Client.Get().Resource(resource).Name(p.name()).Do(ctx).Into(found)
		switch {
		case apierrors.IsNotFound(err):
			return p.create(ctx, view)
		case err != nil:
			return err
		}
		p.known = found
		p.order = publishedOrder(p.order, found)
	}
	spec := p.spec(view)
	if apiequality.Semantic.DeepEqual(p.known.Spec, spec) {
		return nil
	}
	object := p.known.DeepCopy()
	object.Spec = spec
	return p.send(ctx, p.Client.Put().Name(p.name()), object)
}

// publishedOrder is the order that this driver knows, or the one that was published before its start.
func publishedOrder(order []int, found *resourceapi.ResourceSlice) []int {
	if len(order) > 0 {
		return order
	}
	for _, device := range found.Spec.Devices {
		if id, err := strconv.Atoi(strings.TrimPrefix(device.Name, claims.DevicePrefix)); err == nil && !slices.Contains(order, id) {
			order = append(order, id)
		}
	}
	return order
}

func (p *Publisher) create(ctx context.Context, view *ledger.View) error {
	owners, unowned := nodetopology.Owners(ctx, p.Client, p.Node)
	err := p.send(ctx, p.Client.Post(), &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: p.name(), OwnerReferences: owners}, Spec: p.spec(view),
	})
	if err == nil && unowned != nil {
		p.Log.WithError(unowned).Warn("the ResourceSlice of this node will outlive the Node, whose UID cannot be read")
	}
	return err
}

func (p *Publisher) send(ctx context.Context, request *rest.Request, object *resourceapi.ResourceSlice) error {
	written := &resourceapi.ResourceSlice{}
	err := request.Resource(resource).Body(object).Do(ctx).Into(written)
	if err == nil {
		p.known = written
	}
	return err
}

package dra

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// publisher keeps one ResourceSlice equal to what claims may have of this machine's NUMA nodes.
type publisher struct {
	Options
	watched chan string // versions of the slice, "" where it is deleted or may have been

	known *resourceapi.ResourceSlice     // as the API server had it last; nil is not known
	cut   *resourceapi.ResourceSliceSpec // as it was sent last, if the API server has dropped fields of it
	order []int
	equal uint64    // the last generation of the View that it was found to be equal to
	since time.Time // when the View's sample was taken then
	// unmapped is nil unless the slice has no nodeAllocatableResources although it should.
	unmapped atomic.Pointer[unmapped]
}

// unmapped is why the API server has the slice without nodeAllocatableResources.
type unmapped struct {
	why   string
	until time.Time // when they are tried again; zero waits until the slice is created again
}

const (
	resource = "resourceslices"
	// writeEvery is the mean time between two writes while something changes all the time.
	writeEvery = 10 * time.Second
	// sampleEvery is how often a sample of the nodes' memory is looked at while nothing else changes.
	sampleEvery = time.Minute
	// mappedRetry is the pause before a slice whose nodeAllocatableResources were refused is written with them again. A kubelet that
	// starts may have its slices deleted before the Node says what it supports.
	mappedRetry = 5 * time.Minute
	// watchRetry is the pause before a watch that has ended is opened again.
	watchRetry = 10 * time.Second
)

func newPublisher(o Options) *publisher { return &publisher{Options: o, watched: make(chan string)} }

// run publishes until ctx ends. The slice is watched, because a kubelet deletes it when it starts and when this driver is away.
func (p *publisher) run(ctx context.Context) {
	go p.watch(ctx)
	apiserver.Kept[*ledger.View]{
		Kind: "ResourceSlice", View: p.Ledger.View, Due: p.due, Write: p.publish, Period: writeEvery, Log: p.Log,
	}.Run(ctx)
}

// watch sends the version of the slice whenever it changes, and "" when it is deleted or may have been.
func (p *publisher) watch(ctx context.Context) {
	send := func(version string) {
		select {
		case p.watched <- version:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		watch, err := p.Client.Get().Resource(resource).VersionedParams(&metav1.ListOptions{
			Watch: true, FieldSelector: "metadata.name=" + p.slice(),
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

// slice is the slice's: one a node and driver.
func (p *publisher) slice() string { return p.Node + "-" + p.Name }

// due reports whether there is something to write or to read.
func (p *publisher) due(view *ledger.View) bool {
	select {
	case version := <-p.watched:
		if p.known != nil && p.known.ResourceVersion != version {
			p.known = nil
		}
	default:
	}
	if p.known == nil {
		return true
	}
	sampled := p.since
	if view.NodeMemory.Known() {
		sampled = view.NodeMemory.At
	}
	if p.equal == view.Generation && sampled.Sub(p.since) < sampleEvery {
		return false
	}
	if p.has(p.spec(view)) {
		p.equal, p.since = view.Generation, sampled
		return false
	}
	return true
}

// has reports whether the API server has what it keeps of a spec.
func (p *publisher) has(spec resourceapi.ResourceSliceSpec) bool {
	return apiequality.Semantic.DeepEqual(p.known.Spec, spec) || p.cut != nil && apiequality.Semantic.DeepEqual(*p.cut, spec)
}

// empties reports whether nothing is published: the kubelet is answered about the claims that there are, so that their pods can end.
func empties(c config.Config) bool { return c.DryRun() || c.DRA.Ending }

// spec is what the slice should be.
func (p *publisher) spec(view *ledger.View) resourceapi.ResourceSliceSpec {
	spec := resourceapi.ResourceSliceSpec{
		Driver: p.Name, NodeName: &p.Node, Pool: resourceapi.ResourcePool{Name: p.Node, Generation: 1, ResourceSliceCount: 1},
	}
	empty, wanted := empties(view.Config.Config), view.Config.Config.DRA.PublishNodeAllocatable
	if empty || !wanted {
		p.unmapped.Store(nil)
	}
	if empty {
		return spec
	}
	var order []int
	for of := range 2 { // each tier by itself: a large node that the scheduler takes last is no reason to keep the order of the others
		others := func(id int) bool { return tier(id, p.Machine) != of }
		order = append(order, claims.Order(view.Claimable, view.NodeMemory, p.order, others)...)
	}
	p.order = order
	spec.Devices = sliceDevices(view.Claimable, p.Machine, p.order, wanted && p.unmapped.Load().over())
	return spec
}

// publish writes the slice if it differs from what the API server has.
func (p *publisher) publish(ctx context.Context, view *ledger.View) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err := p.write(ctx, view)
	if err != nil {
		p.known = nil // whatever it is now
		return fmt.Errorf("write ResourceSlice %s: %w", p.slice(), err)
	}
	return nil
}

func (p *publisher) write(ctx context.Context, view *ledger.View) error {
	if p.known == nil || p.known.ResourceVersion == "" {
		found := &resourceapi.ResourceSlice{}
		err := p.Client.Get().Resource(resource).Name(p.slice()).Do(ctx).Into(found)
		switch {
		case apierrors.IsNotFound(err) && empties(view.Config.Config):
			p.known, p.cut = &resourceapi.ResourceSlice{Spec: p.spec(view)}, nil // there is none to empty
			return nil
		case apierrors.IsNotFound(err):
			return p.create(ctx, view)
		case err != nil:
			return err
		}
		p.known, p.cut = found, nil
		if len(p.order) == 0 { // as it was published before this start
			p.order = orderOf(found.Spec.Devices)
		}
	}
	spec := p.spec(view)
	if p.has(spec) {
		return nil
	}
	object := p.known.DeepCopy()
	object.Spec = spec
	return p.send(ctx, p.Client.Put().Name(p.slice()), object)
}

func orderOf(devices []resourceapi.Device) (order []int) {
	for _, device := range devices {
		if id, ours := claims.DeviceNode(device.Name); ours && !slices.Contains(order, id) {
			order = append(order, id)
		}
	}
	return order
}

func (p *publisher) create(ctx context.Context, view *ledger.View) error {
	if u := p.unmapped.Load(); u != nil { // a kubelet that starts deletes its slices, and may support more than before
		p.unmapped.Store(&unmapped{u.why, time.Now()})
	}
	owners, unowned := apiserver.Owners(ctx, p.Client, p.Node)
	err := p.send(ctx, p.Client.Post(), &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: p.slice(), OwnerReferences: owners}, Spec: p.spec(view),
	})
	if err == nil && unowned != nil {
		p.Log.WithError(unowned).Warn("the ResourceSlice of this node will outlive the Node, whose UID cannot be read")
	}
	return err
}

// send writes the slice. An API server without the feature drops nodeAllocatableResources. One with it refuses the whole slice if the
// kubelet does not declare the feature; then the slice is written without them.
// https://github.com/kubernetes/kubernetes/blob/v1.37.2/plugin/pkg/admission/nodedeclaredfeatures/admission.go
func (p *publisher) send(ctx context.Context, request *rest.Request, object *resourceapi.ResourceSlice) error {
	request = request.Resource(resource)
	written := &resourceapi.ResourceSlice{}
	err := request.Body(object).Do(ctx).Into(written)
	switch {
	case !mapped(object):
	case err == nil && mapped(written):
		p.unmapped.Store(nil)
	case err == nil:
		p.unmap("the API server drops nodeAllocatableResources: it is older than 1.37, or its feature gate DRANodeAllocatableResources is off", time.Time{})
	case apierrors.IsForbidden(err):
		refused := err
		for i := range object.Spec.Devices {
			object.Spec.Devices[i].NodeAllocatableResources = nil
		}
		if p.known != nil && apiequality.Semantic.DeepEqual(p.known.Spec, object.Spec) {
			written, err = p.known, nil
		} else {
			err = request.Body(object).Do(ctx).Into(written)
		}
		if err == nil {
			p.unmap("the API server refuses nodeAllocatableResources: "+refused.Error(), time.Now().Add(mappedRetry))
		}
	}
	if err == nil {
		p.known = written
		p.noteCut(object)
	}
	return err
}

// noteCut notes whether the API server has dropped fields of a slice that was sent.
func (p *publisher) noteCut(sent *resourceapi.ResourceSlice) {
	before := p.cut
	unmaps := mapped(sent) && !mapped(p.known) // it is sent again without
	if p.cut = nil; unmaps || apiequality.Semantic.DeepEqual(p.known.Spec, sent.Spec) {
		return
	}
	if p.cut = &sent.Spec; before == nil {
		p.Log.Warn("the API server drops fields of the ResourceSlice: its feature gate DRAConsumableCapacity is off, and claims cannot share a NUMA node")
	}
}

func (p *publisher) unmap(why string, until time.Time) {
	if last := p.unmapped.Swap(&unmapped{why, until}); last == nil || last.why != why {
		p.Log.Warn(why)
	}
}

// over reports whether nodeAllocatableResources are to be tried.
func (u *unmapped) over() bool { return u == nil || !u.until.IsZero() && !time.Now().Before(u.until) }

// mapped reports whether a slice says that its capacities count as the node's resources.
func mapped(slice *resourceapi.ResourceSlice) bool {
	return slices.ContainsFunc(slice.Spec.Devices, func(d resourceapi.Device) bool { return d.NodeAllocatableResources != nil })
}

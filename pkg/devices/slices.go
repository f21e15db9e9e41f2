package devices

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	clientcache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/breaker"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// SlicesOptions are what Slices are made of.
type SlicesOptions struct {
	// Client is of dra.NewClient. It needs the rights to list and watch resourceslices, and to get resourceclaims.
	Client rest.Interface
	// Node is the Kubernetes node's name.
	Node string
	// Own is the driver whose devices are left out.
	Own string
	// Nodes are the machine's NUMA nodes.
	Nodes nodeset.Set
	// Log is nil for logrus' standard logger. The API server's coming and going is logged, not each attempt.
	Log logrus.FieldLogger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Slices know the NUMA nodes of this node's devices from the attributes in its ResourceSlices. Nobody waits for a slice: one that has
// not come yet says nothing.
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
type Slices struct {
	SlicesOptions
	backoff *wait.Backoff    // nil for client-go's
	breaker *breaker.Breaker // of questions for claims
	claims  cache[claimOfPod, []claimedDevice]

	mu        sync.Mutex
	published map[string]published // by the slice's name
	placed    int                  // devices on a node in all of published
	listed    bool                 // the first list is complete
	tried     bool                 // an attempt to list or watch has ended
	err       error                // of the last attempt
	full      bool                 // mostSlices is reached, and that is logged
	strange   map[string]bool      // drivers with a device on a node that cannot be, which is logged
}

// claim is a resource claim of a container.
type claim struct {
	namespace, name string
	// devices are those that the kubelet names. It knows what a driver has answered when it prepared the claim: a driver that moves
	// network devices into the pod answers that there is nothing to add to a container.
	devices []claimedDevice
}

type claimedDevice struct{ driver, pool, name string }

type claimOfPod struct{ uid, namespace, name string }

const (
	// mostSlices is more than a node has, each with at most 128 devices.
	mostSlices = 128
	// mostClaims bounds the claims of a container that are looked at.
	mostClaims = 32
	pageSize   = 50
)

// NewSlices returns Slices that know nothing until they Run.
func NewSlices(o SlicesOptions) *Slices {
	if o.Log == nil {
		o.Log = logrus.StandardLogger()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Slices{SlicesOptions: o, breaker: breaker.New(1, firstPause, o.Now), published: map[string]published{}, strange: map[string]bool{}}
}

// Run follows the slices until ctx ends.
func (s *Slices) Run(ctx context.Context) error {
	silent := klog.New(nil) // Log has failures, once
	reflector := clientcache.NewReflectorWithOptions(
		&clientcache.ListWatch{ListWithContextFunc: s.list, WatchFuncWithContext: s.watch},
		&resourceapi.ResourceSlice{}, sliceStore{s},
		clientcache.ReflectorOptions{Name: "resourceslices", Logger: &silent, Backoff: s.backoff})
	reflector.WatchListPageSize = pageSize
	reflector.RunWithContext(klog.NewContext(ctx, silent))
	return nil
}

func (s *Slices) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list := &resourceapi.ResourceSliceList{}
	err := s.request(options).Do(ctx).Into(list)
	s.attempted(ctx, err)
	return list, err
}

func (s *Slices) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	w, err := s.request(options).Watch(ctx)
	if options.SendInitialEvents == nil || !apierrors.IsInvalid(err) { // a server that cannot stream the list is asked for it
		s.attempted(ctx, err)
	}
	return w, err
}

func (s *Slices) request(options metav1.ListOptions) *rest.Request {
	options.FieldSelector = fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorNodeName, s.Node).String()
	return s.Client.Get().Resource("resourceslices").VersionedParams(&options, metav1.ParameterCodec)
}

// attempted notes how an attempt to reach the API server ended.
func (s *Slices) attempted(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	news := !s.tried || (s.err == nil) != (err == nil)
	s.tried, s.err = true, err
	s.mu.Unlock()
	switch {
	case !news:
	case err != nil:
		s.Log.WithError(err).Warn("this node's ResourceSlices cannot be followed: NUMA nodes of devices come from the kubelet and sysfs")
	default:
		s.Log.Info("this node's ResourceSlices are followed for the NUMA nodes of devices")
	}
}

// State reports whether the slices are known and followed, and else why not; "" while that is not known yet.
func (s *Slices) State() (connected bool, problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return false, s.err.Error()
	}
	return s.listed, ""
}

// any reports whether some device is known to be on a node.
func (s *Slices) any() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.placed > 0
}

// devices are those of a container's claims that are known to be on a node. A claim is read in the API server where the kubelet names
// no device of it, which ends with ctx.
func (s *Slices) devices(ctx context.Context, uid string, claims []claim) (devices []topologymanager.Device) {
	if !s.any() {
		return nil
	}
	for _, claim := range claims {
		named := claim.devices
		if len(named) == 0 {
			named = s.allocated(ctx, claimOfPod{uid, claim.namespace, claim.name})
		}
		for _, d := range named {
			if nodes := s.nodesOf(d); !nodes.Empty() && len(devices) < mostDevices {
				devices = append(devices, topologymanager.NewDevice(d.driver, s.id(d), SourceResourceSlice, nodes))
			}
		}
	}
	return topologymanager.Join(devices)
}

// id names a device as kubectl shows it; the pool is usually the node's.
func (s *Slices) id(d claimedDevice) string {
	if d.pool == s.Node {
		return d.name
	}
	return d.pool + "/" + d.name
}

// nodesOf are the nodes of a device. Of a pool only the slices of the highest generation count.
func (s *Slices) nodesOf(d claimedDevice) (nodes nodeset.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest := int64(-1)
	for _, p := range s.published {
		if p.driver != d.driver || p.pool != d.pool || p.generation < newest {
			continue
		}
		if p.generation > newest {
			newest, nodes = p.generation, 0
		}
		nodes |= p.nodes[d.name] // its name is there once
	}
	return nodes
}

// allocated are the devices that the scheduler has allocated for a claim; none where the API server does not say.
func (s *Slices) allocated(ctx context.Context, of claimOfPod) (devices []claimedDevice) {
	if devices, ok := s.claims.get(of); ok {
		return devices
	}
	if !s.breaker.Allow() {
		return nil
	}
	claim := &resourceapi.ResourceClaim{}
	err := s.Client.Get().Namespace(of.namespace).Resource("resourceclaims").Name(of.name).Do(ctx).Into(claim)
	if apierrors.IsNotFound(err) {
		claim, err = &resourceapi.ResourceClaim{}, nil
	}
	switch news := s.breaker.Ended(err); {
	case err != nil && news:
		s.Log.WithError(err).Warnf("resource claim %s/%s cannot be read: devices of claims that the kubelet does not name have no NUMA node", of.namespace, of.name)
	case news:
		s.Log.Info("resource claims can be read again")
	}
	if err != nil || claim.Status.Allocation == nil {
		return nil
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if len(devices) < mostDevices {
			devices = append(devices, claimedDevice{result.Driver, result.Pool, result.Device})
		}
	}
	s.claims.put(of, devices)
	return devices
}

// take keeps what a slice says.
func (s *Slices) take(name string, p published, strange string) {
	if p.driver == s.Own {
		return
	}
	s.mu.Lock()
	_, known := s.published[name]
	tooMany := !known && len(s.published) >= mostSlices
	if !tooMany {
		s.placed += len(p.nodes) - len(s.published[name].nodes)
		s.published[name] = p
	}
	news := tooMany && !s.full
	s.full = s.full || tooMany
	wrong := strange != "" && !s.strange[p.driver] && len(s.strange) < mostSlices
	if wrong {
		s.strange[p.driver] = true
	}
	s.mu.Unlock()
	if news {
		s.Log.WithField("slice", name).Warnf("this node has more than %d ResourceSlices: the NUMA nodes in the others are not known", mostSlices)
	}
	if wrong {
		s.Log.WithFields(logrus.Fields{"driver": p.driver, "slice": name}).Warnf("the NUMA node in a ResourceSlice is ignored: %s", strange)
	}
}

func (s *Slices) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.placed -= len(s.published[name].nodes)
	delete(s.published, name)
}

// sliceStore takes what client-go's reflector reads and keeps only the devices on a node.
type sliceStore struct{ *Slices }

// smallSlice is a slice while a streamed list is being collected: the reflector wants its name.
type smallSlice struct {
	metav1.ObjectMeta
	published
	strange string
}

func (s sliceStore) small(object any) (*smallSlice, error) {
	switch o := object.(type) {
	case *resourceapi.ResourceSlice:
		small := &smallSlice{ObjectMeta: metav1.ObjectMeta{Name: o.Name}}
		small.published, small.strange = readSlice(o, s.Nodes)
		return small, nil
	case *smallSlice:
		return o, nil
	}
	return nil, fmt.Errorf("take a ResourceSlice from the API server: it is a %T", object)
}

// Transformer makes slices small while the reflector collects a streamed list.
func (s sliceStore) Transformer() clientcache.TransformFunc {
	return func(object any) (any, error) {
		if _, ok := object.(*resourceapi.ResourceSlice); !ok {
			return object, nil
		}
		return s.small(object)
	}
}

// Add takes in a new slice.
func (s sliceStore) Add(object any) error {
	small, err := s.small(object)
	if err == nil {
		s.take(small.Name, small.published, small.strange)
	}
	return err
}

// Update takes in a slice that has changed.
func (s sliceStore) Update(object any) error { return s.Add(object) }

// Delete drops a slice.
func (s sliceStore) Delete(object any) error {
	small, err := s.small(object)
	if err == nil {
		s.drop(small.Name)
	}
	return err
}

// Replace takes in all the slices that there are.
func (s sliceStore) Replace(objects []any, _ string) error {
	there := make([]*smallSlice, len(objects))
	for i, object := range objects {
		small, err := s.small(object)
		if err != nil {
			return err
		}
		there[i], objects[i] = small, nil // not needed any more, and large
	}
	for _, name := range s.names() {
		if !slices.ContainsFunc(there, func(small *smallSlice) bool { return small.Name == name }) {
			s.drop(name)
		}
	}
	for _, small := range there {
		s.take(small.Name, small.published, small.strange)
	}
	s.mu.Lock()
	s.listed = true
	s.mu.Unlock()
	return nil
}

// Resync has nothing to do.
func (sliceStore) Resync() error { return nil }

func (s *Slices) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.published))
}

package devices

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/lru"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/apiserver"
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
	claims  *lru.Cache       // of []claimedDevice, by claimOfPod

	mu        sync.Mutex
	published map[string]published // by the slice's name
	listed    bool                 // the first list is complete
	tried     bool                 // an attempt to list or watch has ended
	err       error                // of the last attempt
	full      bool                 // mostSlices is reached, and that is logged
	strange   map[string]bool      // drivers with a device on a node that cannot be, which is logged
}

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
)

// NewSlices returns Slices that know nothing until they Run.
func NewSlices(o SlicesOptions) *Slices {
	if o.Log == nil {
		o.Log = logrus.StandardLogger()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Slices{SlicesOptions: o, breaker: breaker.New(1, firstPause, o.Now), claims: lru.New(mostCached), published: map[string]published{}, strange: map[string]bool{}}
}

// Run follows the slices until ctx ends.
func (s *Slices) Run(ctx context.Context) error {
	apiserver.Followed[*resourceapi.ResourceSlice, published]{
		Client: s.Client, Resource: "resourceslices", Field: resourceapi.ResourceSliceSelectorNodeName, Value: s.Node,
		Object: &resourceapi.ResourceSlice{}, List: &resourceapi.ResourceSliceList{}, Backoff: s.backoff,
		Small: s.read, Put: s.put, Drop: s.drop, Replace: s.replace, Attempted: s.attempted,
	}.Run(ctx)
	return nil
}

// attempted notes how an attempt to reach the API server ended.
func (s *Slices) attempted(err error) {
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
	for _, p := range s.published {
		if len(p.nodes) > 0 {
			return true
		}
	}
	return false
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
	if devices, ok := s.claims.Get(of); ok {
		return devices.([]claimedDevice)
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
	s.claims.Add(of, devices)
	return devices
}

func (s *Slices) put(p published) {
	if p.driver == s.Own {
		return
	}
	s.mu.Lock()
	_, known := s.published[p.slice]
	tooMany := !known && len(s.published) >= mostSlices
	if !tooMany {
		s.published[p.slice] = p
	}
	news := tooMany && !s.full
	s.full = s.full || tooMany
	wrong := p.strange != "" && !s.strange[p.driver] && len(s.strange) < mostSlices
	if wrong {
		s.strange[p.driver] = true
	}
	s.mu.Unlock()
	if news {
		s.Log.WithField("slice", p.slice).Warnf("this node has more than %d ResourceSlices: the NUMA nodes in the others are not known", mostSlices)
	}
	if wrong {
		s.Log.WithFields(logrus.Fields{"driver": p.driver, "slice": p.slice}).Warnf("the NUMA node in a ResourceSlice is ignored: %s", p.strange)
	}
}

func (s *Slices) drop(p published) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.published, p.slice)
}

// replace keeps all the slices that there are.
func (s *Slices) replace(all []published) {
	s.mu.Lock()
	maps.DeleteFunc(s.published, func(name string, _ published) bool {
		return !slices.ContainsFunc(all, func(p published) bool { return p.slice == name })
	})
	s.mu.Unlock()
	for _, p := range all {
		s.put(p)
	}
	s.mu.Lock()
	s.listed = true
	s.mu.Unlock()
}

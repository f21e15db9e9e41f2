package world

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/sliceserver"
)

// claimDriver is the name of the daemon's driver for resource claims.
const claimDriver = "memory.noderesource.dev"

// claimObjects are the claims and the node's ResourceSlice as the API server has them. The scheduler is there, too.
type claimObjects struct{ *sliceserver.Server }

// sliceName is the daemon's ResourceSlice.
const sliceName = NodeName + "-" + claimDriver

// hasClaims reports whether the daemon may be the driver for claims.
func (s Scenario) hasClaims() bool {
	enabled := func(config string) bool { return strings.Contains(config, "dra: {") }
	return enabled(s.Config) || slices.ContainsFunc(s.Faults, func(f Fault) bool { return enabled(f.Target) })
}

// handler serves pods, claims and slices.
func (a *apiServer) handler() http.Handler {
	a.Server = sliceserver.New(NodeName)
	a.Server.Before, a.Server.Wait = a.pods.Before, a.pods.Wait
	all := http.NewServeMux()
	all.Handle("/", a.pods)
	all.Handle("/apis/", a.Server)
	all.Handle("/api/v1/nodes/", a.Server)
	return all
}

// published is the slice; nil while there is none.
func (c claimObjects) published() (slice *resourceapi.ResourceSlice) {
	c.With(func() { slice = c.Slices[sliceName].DeepCopy() })
	return slice
}

// allocate is the scheduler: it gives a claim the first devices of the slice that have enough left, or by the nodes' memory where it is hasty.
// It returns nil where the claim has to wait. One that knows nothing of other claims takes what these have, too.
func (c claimObjects) allocate(uid, namespace, name, podUID string, claim Claim, nodes []NUMANode) (theUID string, on []int) {
	c.With(func() {
		reserved := resourceapi.ResourceClaimConsumerReference{Resource: "pods", UID: types.UID(podUID)}
		object := c.Claims[namespace+"/"+name].DeepCopy() // of another pod
		if object == nil {
			object = &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: namespace, Name: name}}
			if object.Status.Allocation = c.fit(claim, nodes); object.Status.Allocation == nil {
				return
			}
		}
		object.Status.ReservedFor = append(object.Status.ReservedFor, reserved)
		c.Claims[namespace+"/"+name] = object
		theUID = string(object.UID)
		for _, result := range object.Status.Allocation.Devices.Results {
			on = append(on, nodeOf(result.Device))
		}
	})
	return theUID, on
}

// fit returns the devices for a claim; nil where there are too few with room. It is called in With.
func (c claimObjects) fit(claim Claim, nodes []NUMANode) *resourceapi.AllocationResult {
	used := map[string]int64{}
	for _, other := range c.Claims {
		for _, result := range other.Status.Allocation.Devices.Results {
			used[result.Device] += bytesIn(result.ConsumedCapacity["memory"])
		}
	}
	var devices []resourceapi.Device
	if slice := c.Slices[sliceName]; slice != nil {
		devices = slice.Spec.Devices
	}
	var results []resourceapi.DeviceRequestAllocationResult
	for _, device := range devices {
		has := bytesIn(device.Capacity["memory"].Value)
		if claim.Hasty {
			has = int64(nodes[nodeOf(device.Name)].Memory)
		}
		if claim.Blind {
			used[device.Name] = 0
		}
		if len(results) < max(claim.Nodes, 1) && used[device.Name]+int64(claim.Memory) <= has {
			results = append(results, resourceapi.DeviceRequestAllocationResult{
				Request: "mem", Driver: claimDriver, Pool: NodeName, Device: device.Name,
				ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": bytesOf(claim.Memory)},
			})
		}
	}
	if len(results) < max(claim.Nodes, 1) {
		return nil
	}
	return &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
}

// nodeOf is the NUMA node of a device.
func nodeOf(device string) int {
	id, err := strconv.Atoi(strings.TrimPrefix(device, "numa-"))
	must(err)
	return id
}

func bytesIn(q resource.Quantity) int64 { return q.Value() }

// deallocate removes a pod from a claim. A claim without pods is deleted, and its memory can be allocated again.
func (c claimObjects) deallocate(namespace, name, podUID string) {
	c.With(func() {
		there := c.Claims[namespace+"/"+name].DeepCopy()
		if there == nil {
			return
		}
		there.Status.ReservedFor = slices.DeleteFunc(there.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return string(r.UID) == podUID })
		if c.Claims[namespace+"/"+name] = there; len(there.Status.ReservedFor) == 0 {
			delete(c.Claims, namespace+"/"+name)
		}
	})
}

// devicesIn are the bytes of memory of a slice's devices, by NUMA node.
func devicesIn(slice *resourceapi.ResourceSlice) map[int]uint64 {
	all := map[int]uint64{}
	if slice != nil {
		for _, device := range slice.Spec.Devices {
			all[nodeOf(device.Name)] = uint64(bytesIn(device.Capacity["memory"].Value))
		}
	}
	return all
}

// heldClaim is a claim of a pod that was scheduled.
type heldClaim struct {
	Claim
	uid     string
	object  string // its name in the API
	nodes   []int
	asked   bool     // the driver was asked to prepare it, and may have
	devices []string // names of its CDI devices once it is prepared
	gone    bool     // the API server has it no more

	prepared time.Time
	released bool // the driver has released it, whether or not the kubelet has its answer
}

func (h heldClaim) bits() (bits int) {
	for _, node := range h.nodes {
		bits |= 1 << node
	}
	return bits
}

func (h heldClaim) String() string {
	return fmt.Sprintf("%s with %dMi on NUMA nodes %v", h.object, h.Memory/mi, h.nodes)
}

// schedule waits until the pod's claims are allocated; false where it ends before.
func (p *pod) schedule() bool {
	if len(p.spec.Claims) == 0 {
		return true
	}
	d := drawer{Rand: draws(p.scenario.Seed, "scheduler", p.facts.UID)}
	for p.alive() && !p.isQuiet() {
		if p.allocated() {
			return true
		}
		p.sleep(d.between(time.Second, 5*time.Second))
	}
	return false
}

// allocated allocates all claims of the pod, or none.
func (p *pod) allocated() bool {
	held := map[string]heldClaim{}
	for _, claim := range p.spec.Claims {
		h := heldClaim{Claim: claim, object: cmp.Or(claim.Of, p.spec.Name) + "-" + claim.Name}
		uid := identify(p.facts.UID, claim.Name)[:32]
		if h.uid, h.nodes = p.server.allocate(uid, p.spec.Namespace, h.object, p.facts.UID, claim, p.scenario.Machine.Nodes); h.nodes == nil {
			for _, before := range held {
				p.server.deallocate(p.spec.Namespace, before.object, p.facts.UID)
			}
			return false
		}
		held[claim.Name] = h
	}
	p.locked(func() { p.claims = held })
	return true
}

// deallocate has the pod's claims be gone from the API server.
func (p *pod) deallocate(held []heldClaim) {
	for _, h := range held {
		p.server.deallocate(p.spec.Namespace, h.object, p.facts.UID)
		p.locked(func() {
			if left, has := p.claims[h.Name]; has {
				left.gone = true
				p.claims[h.Name] = left
			}
		})
	}
}

// heldClaims are the pod's claims in their order.
func (p *pod) heldClaims() (all []heldClaim) {
	for _, h := range p.claims {
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b heldClaim) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

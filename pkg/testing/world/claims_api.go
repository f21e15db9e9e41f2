package world

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// claimDriver is the name of the daemon's driver for resource claims.
const claimDriver = "memory.noderesource.dev"

// claimObjects are the claims and the node's ResourceSlice as the API server has them. The scheduler is there, too.
type claimObjects struct {
	mu       sync.Mutex
	claims   map[string]*resourceapi.ResourceClaim // by NAMESPACE/NAME, allocated ones only
	slice    *resourceapi.ResourceSlice            // nil while there is none
	version  int
	watchers map[chan metav1.WatchEvent]bool
}

// hasClaims reports whether the daemon may be the driver for claims.
func (s Scenario) hasClaims() bool {
	enabled := func(config string) bool { return strings.Contains(config, "dra: {") }
	return enabled(s.Config) || slices.ContainsFunc(s.Faults, func(f Fault) bool { return enabled(f.Target) })
}

// handler serves pods, claims and slices.
func (a *apiServer) handler() http.Handler {
	a.claims, a.watchers = map[string]*resourceapi.ResourceClaim{}, map[chan metav1.WatchEvent]bool{}
	const slices = "/apis/resource.k8s.io/v1/resourceslices"
	mux, all := http.NewServeMux(), http.NewServeMux()
	mux.HandleFunc("GET /api/v1/nodes/{name}", func(w http.ResponseWriter, r *http.Request) {
		reply(w, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: r.PathValue("name"), UID: "uid-of-the-node"}})
	})
	mux.HandleFunc("GET /apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}", func(w http.ResponseWriter, r *http.Request) {
		a.claimObjects.mu.Lock()
		defer a.claimObjects.mu.Unlock()
		reply(w, a.claims[r.PathValue("namespace")+"/"+r.PathValue("name")])
	})
	mux.HandleFunc("GET "+slices+"/{name}", func(w http.ResponseWriter, _ *http.Request) { reply(w, a.published()) })
	mux.HandleFunc("GET "+slices, a.watchSlice)
	mux.HandleFunc("POST "+slices, a.putSlice)
	mux.HandleFunc("PUT "+slices+"/{name}", a.putSlice)
	all.Handle("/", a.pods)
	serve := func(w http.ResponseWriter, r *http.Request) {
		if status := a.before(r); status != 0 {
			w.Header().Set("Retry-After", "1")
			refuse(w, status)
			return
		}
		mux.ServeHTTP(w, r)
	}
	all.HandleFunc("/apis/", serve)
	all.HandleFunc("/api/v1/nodes/", serve)
	return all
}

// reply answers with an object, NotFound where it is nil.
func reply[T any](w http.ResponseWriter, object *T) {
	if object == nil {
		refuse(w, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object) // the client may be gone
}

func refuse(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	reasons := map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusConflict: metav1.StatusReasonConflict}
	_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: reasons[status], Code: int32(status)})
}

// published is the slice; nil while there is none.
func (c *claimObjects) published() *resourceapi.ResourceSlice {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.slice.DeepCopy()
}

// putSlice makes or changes the slice, but not by one who has not seen it as it is.
func (a *apiServer) putSlice(w http.ResponseWriter, r *http.Request) {
	var slice resourceapi.ResourceSlice
	if err := json.NewDecoder(r.Body).Decode(&slice); err != nil {
		refuse(w, http.StatusBadRequest)
		return
	}
	c := &a.claimObjects
	c.mu.Lock()
	defer c.mu.Unlock()
	switch known := c.slice; {
	case known == nil && r.Method == http.MethodPut:
		refuse(w, http.StatusNotFound)
	case known != nil && slice.ResourceVersion != known.ResourceVersion:
		refuse(w, http.StatusConflict)
	default:
		c.version++
		slice.ResourceVersion = strconv.Itoa(c.version)
		c.slice = &slice
		c.send("MODIFIED", slice)
		reply(w, &slice)
	}
}

// dropSlice is what a kubelet does that starts, or that has missed the driver for half a minute.
func (c *claimObjects) dropSlice() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slice != nil {
		c.send("DELETED", *c.slice)
		c.slice = nil
	}
}

// send has the watchers know the slice. The lock is held.
func (c *claimObjects) send(kind string, slice resourceapi.ResourceSlice) {
	slice.Kind, slice.APIVersion = "ResourceSlice", "resource.k8s.io/v1"
	text, err := json.Marshal(slice)
	must(err)
	event := metav1.WatchEvent{Type: kind}
	event.Object.Raw = text
	for watcher := range c.watchers {
		watcher <- event
	}
}

// endWatches ends the watches of the slice.
func (c *claimObjects) endWatches() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for watcher := range c.watchers {
		close(watcher)
	}
	clear(c.watchers)
}

func (a *apiServer) watchSlice(w http.ResponseWriter, r *http.Request) {
	c, events := &a.claimObjects, make(chan metav1.WatchEvent, 10_000)
	c.mu.Lock()
	c.watchers[events] = true
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.watchers, events)
		c.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case event, open := <-events:
			if !open {
				return
			}
			time.Sleep(a.trouble.left(APIHangs))
			if json.NewEncoder(w).Encode(event) != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

// allocate is the scheduler: it gives a claim the first devices of the slice that have enough left, or by the nodes' memory where it is hasty.
// It returns nil where the claim has to wait.
func (c *claimObjects) allocate(uid, namespace, name, podUID string, claim Claim, nodes []NUMANode) (theUID string, on []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reserved := resourceapi.ResourceClaimConsumerReference{Resource: "pods", UID: types.UID(podUID)}
	if there := c.claims[namespace+"/"+name]; there != nil { // of another pod
		there = there.DeepCopy()
		there.Status.ReservedFor = append(there.Status.ReservedFor, reserved)
		c.claims[namespace+"/"+name] = there
		for _, result := range there.Status.Allocation.Devices.Results {
			on = append(on, nodeOf(result.Device))
		}
		return string(there.UID), on
	}
	used := map[string]int64{}
	for _, other := range c.claims {
		for _, result := range other.Status.Allocation.Devices.Results {
			used[result.Device] += bytesIn(result.ConsumedCapacity["memory"])
		}
	}
	var devices []resourceapi.Device
	if c.slice != nil {
		devices = c.slice.Spec.Devices
	}
	object := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: namespace, Name: name}}
	object.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{reserved}
	object.Status.Allocation = &resourceapi.AllocationResult{}
	for _, device := range devices {
		id := nodeOf(device.Name)
		has := bytesIn(device.Capacity["memory"].Value)
		if claim.Hasty {
			has = int64(nodes[id].Memory)
		}
		if len(on) == max(claim.Nodes, 1) || used[device.Name]+int64(claim.Memory) > has {
			continue
		}
		on = append(on, id)
		object.Status.Allocation.Devices.Results = append(object.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "mem", Driver: claimDriver, Pool: NodeName, Device: device.Name,
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": bytesOf(claim.Memory)},
		})
	}
	if len(on) < max(claim.Nodes, 1) {
		return "", nil
	}
	c.claims[namespace+"/"+name] = object
	return uid, on
}

// nodeOf is the NUMA node of a device.
func nodeOf(device string) int {
	id, err := strconv.Atoi(strings.TrimPrefix(device, "numa-"))
	must(err)
	return id
}

func bytesIn(q resource.Quantity) int64 { return q.Value() }

// deallocate removes a pod from a claim. A claim without pods is deleted, and its memory can be allocated again.
func (c *claimObjects) deallocate(namespace, name, podUID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	there := c.claims[namespace+"/"+name].DeepCopy()
	if there == nil {
		return
	}
	there.Status.ReservedFor = slices.DeleteFunc(there.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return string(r.UID) == podUID })
	if c.claims[namespace+"/"+name] = there; len(there.Status.ReservedFor) == 0 {
		delete(c.claims, namespace+"/"+name)
	}
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

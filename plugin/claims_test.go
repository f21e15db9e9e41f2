package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	kresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

const claimsDriver = "memory.noderesource.dev"

// nodeAllocatable is what an API server does with nodeAllocatableResources.
type nodeAllocatable int

const (
	keeps   nodeAllocatable = iota
	drops                   // its feature gate is off, or it is too old to know them
	refuses                 // the slice, because the kubelet does not declare the feature
)

// claimsServer is the part of an API server that the driver needs: it keeps claims and slices.
type claimsServer struct {
	t      testing.TB
	server *httptest.Server

	mu       sync.Mutex
	claims   map[string]*resourceapi.ResourceClaim // by namespace/name
	slices   map[string]*resourceapi.ResourceSlice
	version  int
	writes   int
	refused  int
	mapped   nodeAllocatable
	watchers map[chan metav1.WatchEvent]bool
	held     chan struct{} // a question for a claim waits until it is closed
	asked    chan struct{} // receives each question for a claim
}

func newClaimsServer(t testing.TB) *claimsServer {
	s := &claimsServer{
		t: t, claims: map[string]*resourceapi.ResourceClaim{}, slices: map[string]*resourceapi.ResourceSlice{},
		watchers: map[chan metav1.WatchEvent]bool{}, asked: make(chan struct{}, 1000),
	}
	mux := http.NewServeMux()
	const group = "/apis/resource.k8s.io/v1/"
	mux.HandleFunc("GET /api/v1/nodes/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: r.PathValue("name"), UID: "node-uid"}})
	})
	mux.HandleFunc("GET "+group+"namespaces/{namespace}/resourceclaims/{name}", func(w http.ResponseWriter, r *http.Request) {
		s.asked <- struct{}{}
		s.mu.Lock()
		held := s.held
		s.mu.Unlock()
		if held != nil {
			<-held
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		answer(w, s.claims[path.Join(r.PathValue("namespace"), r.PathValue("name"))])
	})
	mux.HandleFunc("GET "+group+"resourceslices", s.watch)
	mux.HandleFunc("GET "+group+"resourceslices/{name}", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		answer(w, s.slices[r.PathValue("name")])
	})
	put := func(w http.ResponseWriter, r *http.Request) {
		var slice resourceapi.ResourceSlice
		if err := json.NewDecoder(r.Body).Decode(&slice); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range slice.Spec.Devices {
			switch resources := &slice.Spec.Devices[i].NodeAllocatableResources; {
			case s.mapped == drops:
				*resources = nil
			case s.mapped == refuses && *resources != nil:
				s.refused++
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusForbidden)
				json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden,
					Message: `node "worker" does not support DRANodeAllocatableResources feature`})
				return
			}
		}
		s.writes++
		s.version++
		slice.ResourceVersion = strconv.Itoa(s.version)
		s.slices[slice.Name] = &slice
		s.send("MODIFIED", &slice)
		answer(w, &slice)
	}
	mux.HandleFunc("POST "+group+"resourceslices", put)
	mux.HandleFunc("PUT "+group+"resourceslices/{name}", put)
	s.server = httptest.NewServer(mux)
	t.Cleanup(s.server.Close)
	t.Cleanup(s.server.CloseClientConnections)
	return s
}

// answer writes an object, NotFound where it is nil.
func answer[T any](w http.ResponseWriter, object *T) {
	w.Header().Set("Content-Type", "application/json")
	if object == nil {
		w.WriteHeader(http.StatusNotFound)
		json.NewEncoder(w).Encode(metav1.Status{Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
		return
	}
	json.NewEncoder(w).Encode(object)
}

// watch sends what changes from now on. A list is not streamed, and has the slices of the node that is asked for.
func (s *claimsServer) watch(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Get("sendInitialEvents") == "true" {
		w.WriteHeader(http.StatusUnprocessableEntity)
		json.NewEncoder(w).Encode(metav1.Status{Status: "Failure", Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
		return
	}
	if query.Get("watch") != "true" {
		list := &resourceapi.ResourceSliceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
		s.mu.Lock()
		for _, slice := range s.slices {
			if query.Get("fieldSelector") == "spec.nodeName="+*slice.Spec.NodeName {
				list.Items = append(list.Items, *slice)
			}
		}
		s.mu.Unlock()
		answer(w, list)
		return
	}
	events := make(chan metav1.WatchEvent, 100)
	s.mu.Lock()
	s.watchers[events] = true
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case event := <-events:
			json.NewEncoder(w).Encode(event)
			w.(http.Flusher).Flush()
		}
	}
}

// send has the watchers know a slice. The lock is held.
func (s *claimsServer) send(kind string, slice *resourceapi.ResourceSlice) {
	slice.Kind, slice.APIVersion = "ResourceSlice", "resource.k8s.io/v1"
	text, _ := json.Marshal(slice)
	event := metav1.WatchEvent{Type: kind}
	event.Object.Raw = text
	for watcher := range s.watchers {
		watcher <- event
	}
}

// deleteSlices is what a kubelet does when it starts.
func (s *claimsServer) deleteSlices() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, slice := range s.slices {
		delete(s.slices, name)
		s.send("DELETED", slice.DeepCopy())
	}
}

// devices are the capacities published, as "numa-0 memory=7Gi" each, in their order.
func (s *claimsServer) devices() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slice := s.slices["worker-"+claimsDriver]
	if slice == nil {
		return nil
	}
	for _, device := range slice.Spec.Devices {
		memory := device.Capacity["memory"].Value
		all = append(all, device.Name+" memory="+memory.String())
	}
	return all
}

// allocate makes a claim that the scheduler has allocated: 2Gi of memory on each of the nodes, for pods.
func (s *claimsServer) allocate(name string, pods []string, nodes ...int) *drav1.Claim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	for _, node := range nodes {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "mem", Driver: claimsDriver, Pool: "worker", Device: fmt.Sprint("numa-", node),
			ConsumedCapacity: map[resourceapi.QualifiedName]kresource.Quantity{"memory": kresource.MustParse("2Gi")},
		})
	}
	for _, pod := range pods {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID("uid-" + pod)})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims["default/"+name] = claim
	return &drav1.Claim{Namespace: "default", Name: name, Uid: "uid-" + name}
}

func (s *claimsServer) delete(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.claims, "default/"+name)
}

// claimsHost is a host whose plugin is a driver for claims, and the kubelet's side of it.
type claimsHost struct {
	*host
	api *claimsServer
}

func kubeconfig(server string) string {
	return "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '" + server + "'}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
}

func newClaimsHost(t testing.TB) *claimsHost {
	s := newClaimsServer(t)
	h := newHost(t, cri.Options{}, "")
	h.write("kubeconfig", kubeconfig(s.server.URL))
	h.write("config.yaml", "requestSources: [oomscore]\ntopologyManagerPolicy: single-numa-node\ndra: {enabled: true}\n")
	must(t, os.Mkdir(h.path("registry"), 0o755))
	h.ofNode("worker")
	h.flags = append(h.flags, "--plugin-registry", h.path("registry"), "--cdi-dir", h.path("cdi"))
	return &claimsHost{host: h, api: s}
}

// dial connects as the kubelet does once it has found the socket.
func (h *claimsHost) dial() *grpc.ClientConn {
	h.t.Helper()
	connection, err := grpc.NewClient("unix:"+h.path("registry/"+claimsDriver+".sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(h.t, err)
	h.t.Cleanup(func() { connection.Close() })
	return connection
}

// prepare returns the claim's CDI devices, or the error.
func (h *claimsHost) prepare(claim *drav1.Claim) (devices []string, problem string) {
	h.t.Helper()
	response, err := drav1.NewDRAPluginClient(h.dial()).NodePrepareResources(context.Background(), &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{claim}})
	if err != nil {
		return nil, err.Error()
	}
	for _, device := range response.Claims[claim.Uid].Devices {
		devices = append(devices, device.CdiDeviceIds...)
	}
	return devices, response.Claims[claim.Uid].Error
}

func (h *claimsHost) unprepare(claim *drav1.Claim) {
	h.t.Helper()
	if problem := h.tryUnprepare(claim); problem != "" {
		h.t.Error(problem)
	}
}

// tryUnprepare returns the error.
func (h *claimsHost) tryUnprepare(claim *drav1.Claim) (problem string) {
	h.t.Helper()
	response, err := drav1.NewDRAPluginClient(h.dial()).NodeUnprepareResources(context.Background(), &drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{claim}})
	must(h.t, err)
	return response.Claims[claim.Uid].Error
}

// stop ends the container of a pod.
func (h *claimsHost) stop(p *testPod) {
	h.t.Helper()
	must(h.t, h.runtime.StopContainer(context.Background(), p.id()))
}

// record are the names of the claims in the CDI folder, and of those that the daemon shows.
func (h *claimsHost) record() (kept, shown []string) {
	h.t.Helper()
	files, _ := filepath.Glob(h.path("cdi/*.json"))
	for _, file := range files {
		_, name, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".json"), "_uid-")
		kept = append(kept, name)
	}
	var status struct {
		Claims struct{ Prepared []struct{ Name string } }
	}
	must(h.t, json.Unmarshal([]byte(h.shown("status", "-o", "json")), &status))
	for _, claim := range status.Claims.Prepared {
		shown = append(shown, claim.Name)
	}
	slices.Sort(shown)
	return kept, shown
}

func (h *claimsHost) wantRecord(names ...string) {
	h.t.Helper()
	if kept, shown := h.record(); !slices.Equal(kept, names) || !slices.Equal(shown, names) {
		h.t.Errorf("the CDI folder has claims %v and the daemon %v, want %v", kept, shown, names)
	}
}

// createWith creates the container of a pod as the kubelet and a runtime with CDI do: its specification has the devices' environment.
func (h *claimsHost) createWith(p *testPod, devices []string, showsDevices bool) error {
	container := p.container()
	for _, device := range devices {
		if showsDevices {
			container.CDIDevices = append(container.CDIDevices, &api.CDIDevice{Name: device})
		}
		_, name, _ := strings.Cut(device, "=")
		container.Env = append(container.Env, h.environment(name))
	}
	_, err := h.runtime.CreateContainer(context.Background(), container)
	return err
}

// environment is what the CDI specifications have a device add.
func (h *claimsHost) environment(device string) string {
	files, _ := filepath.Glob(h.path("cdi/*.json"))
	for _, file := range files {
		var spec struct {
			Devices []struct {
				Name           string
				ContainerEdits struct{ Env []string }
			}
		}
		text, err := os.ReadFile(file)
		must(h.t, err)
		must(h.t, json.Unmarshal(text, &spec))
		for _, d := range spec.Devices {
			if d.Name == device {
				return d.ContainerEdits.Env[0]
			}
		}
	}
	h.t.Fatalf("no CDI specification has the device %s", device)
	return ""
}

// shown is what a command says of the host.
func (h *claimsHost) shown(words ...string) string {
	h.t.Helper()
	code, out, problem := run(h.t, "", append(words, "--state-dir", h.path("state"))...)
	if code != 0 {
		h.t.Fatalf("%v: exit status %d: %s", words, code, problem)
	}
	return out
}

func (h *claimsHost) mems(p *testPod) string {
	return h.knob(path.Join(p.cgroup(), p.id()), "cpuset.mems")
}

func TestTheDriverForClaimsFromRegistrationToUnprepare(t *testing.T) {
	t.Parallel()
	h := newClaimsHost(t)
	plugin := h.start()
	info, err := registration.NewRegistrationClient(h.dial()).GetInfo(context.Background(), &registration.InfoRequest{})
	must(t, err)
	if info.Type != "DRAPlugin" || info.Name != claimsDriver || info.Endpoint != "" || !slices.Equal(info.SupportedVersions, []string{"v1.DRAPlugin"}) {
		t.Errorf("the kubelet reads %v", info)
	}
	var published []string
	eventually(t, "the slice is published", func() bool { published = h.api.devices(); return published != nil })
	if diff := cmp.Diff([]string{"numa-0 memory=8166Mi", "numa-1 memory=8166Mi"}, slices.Sorted(slices.Values(published))); diff != "" {
		t.Errorf("published: %s", diff)
	}
	slice := h.api.slices["worker-"+claimsDriver]
	if len(slice.OwnerReferences) != 1 || slice.OwnerReferences[0].UID != "node-uid" || *slice.Spec.NodeName != "worker" {
		t.Errorf("slice %+v", slice)
	}
	h.api.deleteSlices()
	eventually(t, "the slice that a kubelet has deleted is published again", func() bool { return h.api.devices() != nil })
	configured, err := os.ReadFile(h.path("config.yaml"))
	must(t, err)
	h.write("config.yaml", strings.Replace(string(configured), "enabled: true}", "enabled: true, shares: [{limits: {memory: 25%}}]}", 1))
	eventually(t, "a share that a reload changes is published", func() bool { return slices.Contains(h.api.devices(), "numa-1 memory=4082Mi") })
	h.write("config.yaml", string(configured))
	eventually(t, "the first share is published again", func() bool { return slices.Contains(h.api.devices(), published[0]) })

	one, two := h.api.allocate("one", []string{"a"}, 1), h.api.allocate("two", []string{"b"}, 0, 1)
	devices, problem := h.prepare(one)
	if diff := cmp.Diff([]string{claimsDriver + "/numa-memory=uid-one-0"}, devices); diff != "" || problem != "" {
		t.Errorf("%s %s", problem, diff)
	}
	split, problem := h.prepare(two)
	if len(split) != 2 || problem != "" {
		t.Errorf("%v %s", split, problem)
	}
	h.wantRecord("one", "two")
	if got := h.environment("uid-two-1"); got != "NUMA_MEMORY_CLAIM_UID_TWO_1=numa-1:memory=2Gi" {
		t.Errorf("environment %s", got)
	}

	a, b, plain := guaranteed("a", 2*gi), burstable("b", 8*gi, 990), guaranteed("plain", 7*gi)
	for _, test := range []struct {
		pod      *testPod
		devices  []string
		shown    bool
		mems     string
		min, low string
	}{
		{a, devices, true, "1", "2104532992", "0"},
		{b, split, false, "0-1", "0", "4294967296"},
		{plain, nil, true, "0", "7365865472", "0"},
	} {
		must(t, h.runPod(test.pod))
		must(t, h.createWith(test.pod, test.devices, test.shown))
		must(t, h.startContainer(test.pod))
		cgroup := path.Join(test.pod.cgroup(), test.pod.id())
		if got := []string{h.knob(cgroup, "cpuset.mems"), h.knob(cgroup, "memory.min"), h.knob(cgroup, "memory.low")}; !slices.Equal(got, []string{test.mems, test.min, test.low}) {
			t.Errorf("pod %s has %v, want %s %s %s", test.pod.name, got, test.mems, test.min, test.low)
		}
	}
	if got := h.entries(); !slices.Equal(got, []string{"uid-plain/app 0 7516192768"}) {
		t.Errorf("the state file has %v", got)
	}
	out := h.shown("status")
	for _, want := range []string{
		"RESOURCE CLAIMS\n", "\n0     memory  7.975Gi     2Gi      5.975Gi\n", "\ndefault/two  0-1    4Gi of memory  b/app\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q:\n%s", want, out)
		}
	}
	if out := h.shown("explain", "default/b"); !strings.Contains(out, "pinned by resource claim default/two") || !strings.Contains(out, "request = 4Gi, from source claim") {
		t.Errorf("explain:\n%s", out)
	}
	if text := plugin.get("/metrics"); !strings.Contains(text, `nri_memory_manager_numa_claimed_bytes{numa_node="1",type="memory"} 4.294967296e+09`) {
		t.Error("the metrics have no claims")
	}
	if err := h.createWith(guaranteed("thief", gi), devices, true); err == nil {
		t.Error("a pod got the claim of another")
	}
	h.stop(a)
	h.stop(b)
	h.unprepare(one)
	h.unprepare(one)
	h.unprepare(two)
	h.wantRecord()
}

// TestDevicesCountAsRequestsOnceTheClusterKnows: whatever the API server does with nodeAllocatableResources, a slice is written once for
// each change, and verify says why claims do not count as requests.
func TestDevicesCountAsRequestsOnceTheClusterKnows(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first, then nodeAllocatable
		is, becomes bool // mapped
		refused     int
		says        string // verify, in the end
	}{
		"kept":               {first: keeps, then: keeps, is: true, becomes: true},
		"dropped":            {first: drops, then: drops, says: "the API server drops nodeAllocatableResources: it is older than 1.37, or its feature gate DRANodeAllocatableResources is off"},
		"refused":            {first: refuses, then: refuses, refused: 2, says: `the API server refuses nodeAllocatableResources: node "worker" does not support DRANodeAllocatableResources feature`},
		"dropped, then kept": {first: drops, then: keeps, becomes: true},
		"refused, then kept": {first: refuses, then: keeps, becomes: true, refused: 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newClaimsHost(t)
			h.api.mapped = test.first
			const enabled = "requestSources: [oomscore]\ntopologyManagerPolicy: single-numa-node\ndra: {enabled: true, publishNodeAllocatable: true, shares: [{limits: {memory: %s}}]}\n"
			h.write("config.yaml", fmt.Sprintf(enabled, "50%"))
			plugin := h.start()
			is := func(memory string, mapped bool, writes, refused int) {
				t.Helper()
				eventually(t, "the slice has "+memory, func() bool { return slices.Contains(h.api.devices(), "numa-1 memory="+memory) })
				h.api.mu.Lock()
				defer h.api.mu.Unlock()
				text, err := json.Marshal(h.api.slices["worker-"+claimsDriver].Spec.Devices[0].NodeAllocatableResources)
				must(t, err)
				want := "null"
				if mapped {
					want = `{"memory":{"mapping":{"capacityKey":"memory","capacityMultiplier":"1"}}}`
				}
				if string(text) != want || h.api.writes != writes || h.api.refused != refused {
					t.Errorf("nodeAllocatableResources are %s after %d writes and %d refusals, want %s after %d and %d", text, h.api.writes, h.api.refused, want, writes, refused)
				}
			}
			is("8166Mi", test.is, 1, min(test.refused, 1))
			h.write("config.yaml", fmt.Sprintf(enabled, "25%"))
			is("4082Mi", test.is, 2, min(test.refused, 1))
			h.api.mu.Lock()
			h.api.mapped = test.then
			h.api.mu.Unlock()
			h.api.deleteSlices() // as a kubelet that starts
			is("4082Mi", test.becomes, 3, test.refused)
			_, out, problem := run(t, "", "verify", "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml"))
			if says := strings.Contains(out, "dra.publishNodeAllocatable: claims do not count as requests of their pods: "+test.says); says != (test.says != "") {
				t.Errorf("verify says %s%s, want %q", out, problem, test.says)
			}
			h.write("config.yaml", strings.Replace(fmt.Sprintf(enabled, "10%"), "publishNodeAllocatable: true", "publishNodeAllocatable: false", 1))
			is("1632Mi", false, 4, test.refused)
			if out := h.shown("status", "-o", "json"); strings.Contains(out, "notNodeAllocatable") {
				t.Error("the status says why what is not wanted is not published")
			}
			plugin.stop()
		})
	}
}

// A claim that counts as a request is protected once: in its container, whose limit the kubelet has raised by it, and in the pod.
func TestAClaimThatCountsAsARequestIsProtectedOnce(t *testing.T) {
	t.Parallel()
	h := newClaimsHost(t)
	h.write("config.yaml", "requestSources: [kubelet]\nmemoryReservationPolicy: TieredReservation\ndra: {enabled: true, publishNodeAllocatable: true}\n")
	api := h.podAPI()
	const spec = `{spec: {containers: [{name: app, resources: {requests: {cpu: 1}}}]},
status: {nodeAllocatableResourceClaimStatuses: [{resourceClaimName: %s, containers: [app], mapping: [{name: memory, quantity: 2Gi}]}]}}`
	limited, unlimited := burstable("limited", 2*gi+64*mi, 990), burstable("unlimited", 0, 990)
	api.put(limited, strings.Replace(fmt.Sprintf(spec, "limited"), "{cpu: 1}", "{memory: 32Mi}, limits: {memory: 64Mi}", 1))
	api.put(unlimited, fmt.Sprintf(spec, "unlimited"))
	api.start()
	h.start()
	for _, test := range []struct {
		pod  *testPod
		low  int64
		says bool // verify
	}{{limited, 2*gi + 32*mi, false}, {unlimited, 2 * gi, true}} {
		devices, problem := h.prepare(h.api.allocate(test.pod.name, []string{test.pod.name}, 1))
		if problem != "" {
			t.Fatal(problem)
		}
		must(t, h.runPod(test.pod))
		must(t, h.createWith(test.pod, devices, true))
		must(t, h.startContainer(test.pod))
		want := fmt.Sprint(test.low)
		container := path.Join(test.pod.cgroup(), test.pod.id())
		eventually(t, "the container of "+test.pod.name+" is protected", func() bool { return h.knob(container, "memory.low") == want })
		eventually(t, "the pod "+test.pod.name+" is protected as much", func() bool { return h.knob(test.pod.cgroup(), "memory.low") == want })
		_, out, problem := run(t, "", "verify", "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml"))
		const noLimit = "/app: it has no memory limit, and its resource claims have 2Gi"
		if says := strings.Contains(out, "default/"+test.pod.name+noLimit); says != test.says || strings.Contains(out, "is above the") {
			t.Errorf("verify says %s%s; want it to say that pod %s has no limit: %t", out, problem, test.pod.name, test.says)
		}
	}
}

// An admission policy sees one claim template at a time; the node compares a limit with the sum of all claims.
func TestALimitAboveSeveralClaims(t *testing.T) {
	t.Parallel()
	h := newClaimsHost(t)
	h.start()
	for name, test := range map[string]struct {
		limit int64
		want  string
	}{
		"as-claimed": {3 * 2 * gi, ""},
		"above":      {3*2*gi + mi, "default/above/app: its memory limit of 6.001Gi is above the 6Gi that its resource claims have"},
	} {
		var devices []string
		claims := []*drav1.Claim{h.api.allocate(name+"-one", []string{name}, 1), h.api.allocate(name+"-two", []string{name}, 0, 1)}
		for _, claim := range claims {
			prepared, problem := h.prepare(claim)
			if problem != "" {
				t.Fatal(problem)
			}
			devices = append(devices, prepared...)
		}
		pod := guaranteed(name, test.limit)
		must(t, h.runPod(pod))
		must(t, h.createWith(pod, devices, true))
		must(t, h.startContainer(pod))
		if got := h.mems(pod); got != "0-1" {
			t.Errorf("%s: cpuset.mems is %s, want the nodes of both claims", name, got)
		}
		_, out, problem := run(t, "", "verify", "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml"))
		if test.want != "" && !strings.Contains(out, test.want) || test.want == "" && strings.Contains(out, "[above-claim]") {
			t.Errorf("%s: verify says %q%s, want %q", name, out, problem, test.want)
		}
		h.stop(pod)
		for _, claim := range claims {
			h.unprepare(claim)
		}
	}
}

func TestClaimsThatCannotBePrepared(t *testing.T) {
	t.Parallel()
	h := newClaimsHost(t)
	h.start()
	unallocated, other := h.api.allocate("unallocated", []string{"a"}, 0), h.api.allocate("other", []string{"a"}, 0)
	h.api.claims["default/unallocated"].Status.Allocation = nil
	h.api.claims["default/other"].UID = "recreated"
	pool := h.api.allocate("pool", []string{"a"}, 0)
	h.api.claims["default/pool"].Status.Allocation.Devices.Results[0].Pool = "elsewhere"
	for _, test := range []struct {
		claim *drav1.Claim
		want  string
	}{
		{&drav1.Claim{Namespace: "default", Name: "path", Uid: "../../etc/x"}, `prepare claim default/path: "../../etc/x" is not a UID`},
		{unallocated, "prepare claim default/unallocated: the claim is gone: it is not allocated and reserved for a pod"},
		{other, `prepare claim default/other: the claim is gone: metadata.uid is "recreated", want "uid-other": it was deleted and created again`},
		{pool, `prepare claim default/pool: status.allocation.devices.results[0].pool is "elsewhere", want this node's "worker"`},
		{h.api.allocate("node", []string{"a"}, 5), "prepare claim default/node: claim default/node: NUMA node 5 has no memory for claims"},
	} {
		if _, problem := h.prepare(test.claim); problem != test.want {
			t.Errorf("got  %s\nwant %s", problem, test.want)
		}
	}
	h.wantRecord()
}

// Wherever a crash comes, the kubelet's next try finds one allocation, and its Unprepare leaves none.
func TestAKillAtEachStepOfPrepare(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]struct {
		before func(h *claimsHost)                 // the Prepare
		reach  func(h *claimsHost, done chan bool) // where the kill comes
	}{
		"while the API server is asked": {
			func(h *claimsHost) { h.api.held = make(chan struct{}) },
			func(h *claimsHost, _ chan bool) { <-h.api.asked },
		},
		"between the allocation and the record": {
			func(h *claimsHost) {
				must(h.t, os.MkdirAll(h.path("cdi/"+claimsDriver+"-numa-memory_uid-one.json.tmp"), 0o755))
			},
			func(h *claimsHost, done chan bool) { <-done },
		},
		"when the record is on its way": {
			func(*claimsHost) {},
			func(h *claimsHost, _ chan bool) {
				eventually(h.t, "a record", func() bool { kept, _ := filepath.Glob(h.path("cdi/*.json*")); return kept != nil })
			},
		},
		"before the kubelet hears of it": {func(*claimsHost) {}, func(h *claimsHost, done chan bool) { <-done }},
	} {
		t.Run(name, func(t *testing.T) {
			h := newClaimsHost(t)
			plugin := h.start()
			claim := h.api.allocate("one", []string{"a"}, 1)
			step.before(h)
			done := make(chan bool)
			go func() {
				drav1.NewDRAPluginClient(h.dial()).NodePrepareResources(context.Background(), &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{claim}})
				close(done)
			}()
			step.reach(h, done)
			plugin.kill()
			<-done
			if h.api.held != nil {
				close(h.api.held)
			}
			os.Remove(h.path("cdi/" + claimsDriver + "-numa-memory_uid-one.json.tmp"))
			plugin = h.start()
			if _, problem := h.prepare(claim); problem != "" {
				t.Fatal(problem)
			}
			h.wantRecord("one")
			plugin.kill()
			h.start()
			h.unprepare(claim)
			h.wantRecord()
		})
	}
}

// What ended while the plugin was away is released, and so is what cannot be read.
func TestOrphansAndUnreadableRecordsOfClaims(t *testing.T) {
	t.Parallel()
	h := newClaimsHost(t)
	plugin := h.start()
	var devices []string
	for _, name := range []string{"gone", "kept", "unused"} {
		got, problem := h.prepare(h.api.allocate(name, []string{name}, 0))
		if problem != "" {
			t.Fatal(problem)
		}
		devices = append(devices, got...)
	}
	plugin.kill()
	h.api.delete("gone")
	must(t, os.WriteFile(h.path("cdi/"+claimsDriver+"-numa-memory_uid-unreadable.json"), []byte("{"), 0o644))
	must(t, os.WriteFile(h.path("cdi/other-driver_uid-gone.yaml"), nil, 0o644))
	pod := guaranteed("kept", 2*gi) // its container is created while the plugin is away
	must(t, h.runPod(pod))
	must(t, h.createWith(pod, devices[1:2], true))
	must(t, h.startContainer(pod))
	h.start()
	eventually(t, "what is left of claims is settled", func() bool {
		kept, shown := h.record()
		return slices.Equal(kept, []string{"kept", "unused"}) && slices.Equal(shown, kept)
	})
	eventually(t, "the container has its claim's node", func() bool { return h.mems(pod) == "0" })
	if _, err := os.Stat(h.path("cdi/other-driver_uid-gone.yaml")); err != nil {
		t.Error(err)
	}
}

// The kubelet prepares a claim that passes from one pod to the next only once.
func TestAClaimThatPassesToAnotherPod(t *testing.T) {
	t.Parallel()
	h := newClaimsHost(t)
	h.start()
	devices, problem := h.prepare(h.api.allocate("one", []string{"first"}, 1))
	if problem != "" {
		t.Fatal(problem)
	}
	first, second := guaranteed("first", 2*gi), guaranteed("second", 2*gi)
	must(t, h.runPod(first))
	must(t, h.createWith(first, devices, true))
	h.api.allocate("one", []string{"first", "second"}, 1)
	must(t, h.runPod(second))
	err := h.createWith(second, devices, true)
	if err == nil || !strings.Contains(err.Error(), "the resource claim default/one is in use by pod default/first: containers of one pod can share a claim, pods cannot") {
		t.Errorf("error %v", err)
	}
	h.stop(first)
	must(t, h.createWith(second, devices, true))
	must(t, h.startContainer(second))
	if got := h.mems(second); got != "1" {
		t.Errorf("cpuset.mems %q", got)
	}
}

// After a forced deletion the API server has forgotten a pod whose containers run for their grace period, and the claim is the next
// pod's. The running container keeps it, also over a restart of the plugin.
func TestAClaimThatIsTakenFromARunningContainer(t *testing.T) {
	t.Parallel()
	h := newClaimsHost(t)
	plugin := h.start()
	claim := h.api.allocate("one", []string{"first"}, 1)
	devices, problem := h.prepare(claim)
	if problem != "" {
		t.Fatal(problem)
	}
	first, second := guaranteed("first", 2*gi), guaranteed("second", 2*gi)
	must(t, h.runPod(first))
	must(t, h.createWith(first, devices, true))
	must(t, h.startContainer(first))
	h.api.allocate("one", []string{"second"}, 1)
	must(t, h.runPod(second))
	const inUse = "the resource claim default/one is in use by pod default/first"
	refused := func() {
		t.Helper()
		if err := h.createWith(second, devices, true); err == nil || !strings.Contains(err.Error(), inUse) {
			t.Errorf("creating the other pod's container: got %v, want %s", err, inUse)
		}
	}
	refused()
	if _, problem := h.prepare(claim); problem != "prepare claim default/one: "+inUse {
		t.Errorf("preparing it for the other pod: %q", problem)
	}
	if problem := h.tryUnprepare(claim); problem != "release claim: "+inUse {
		t.Errorf("releasing it: %q", problem)
	}
	plugin.kill()
	h.start()
	refused()
	h.wantRecord("one")
	cgroup := path.Join(first.cgroup(), first.id())
	if got := []string{h.knob(cgroup, "cpuset.mems"), h.knob(cgroup, "memory.min")}; !slices.Equal(got, []string{"1", "2104532992"}) {
		t.Errorf("the running container has %v", got)
	}
	h.stop(first)
	must(t, h.createWith(second, devices, true))
	h.stop(second)
	h.unprepare(claim)
	h.wantRecord()
}

// A claim that the API server has forgotten is released at a start of the plugin, but not under its container. The runtime does not report
// that one's end.
func TestAClaimThatIsGoneUnderItsContainer(t *testing.T) {
	t.Parallel()
	h := newClaimsHost(t)
	plugin := h.start()
	used := h.api.allocate("a-used", []string{"one"}, 1)
	devices, problem := h.prepare(used)
	if problem != "" {
		t.Fatal(problem)
	}
	if _, problem := h.prepare(h.api.allocate("b-unused", []string{"two"}, 0)); problem != "" {
		t.Fatal(problem)
	}
	pod := guaranteed("one", 2*gi)
	must(t, h.runPod(pod))
	must(t, h.createWith(pod, devices, true))
	must(t, h.startContainer(pod))
	plugin.kill()
	h.api.delete("a-used")
	h.api.delete("b-unused")
	h.start()
	eventually(t, "the claims are looked up, in the order of their names", func() bool {
		kept, _ := h.record()
		return !slices.Contains(kept, "b-unused")
	})
	h.wantRecord("a-used")
	if got := h.knob(path.Join(pod.cgroup(), pod.id()), "memory.min"); got != "2104532992" {
		t.Errorf("memory.min is %s", got)
	}
	if problem := h.tryUnprepare(used); !strings.HasSuffix(problem, "default/a-used is in use by pod default/one") {
		t.Errorf("releasing it: %q", problem)
	}
	must(t, h.tree.Remove(path.Join(pod.cgroup(), pod.id())))
	h.unprepare(used)
	h.wantRecord()
}

// BenchmarkPrepare is what the kubelet waits for before a pod's sandbox: socket, API server (a fake one), records and answer. Put
// TMPDIR on tmpfs to leave the disk out.
func BenchmarkPrepare(b *testing.B) {
	h := newClaimsHost(b)
	h.start()
	kubelet := drav1.NewDRAPluginClient(h.dial())
	times := make([]time.Duration, 0, b.N)
	for b.Loop() {
		claim := h.api.allocate("bench", []string{"a"}, 1)
		request := []*drav1.Claim{claim}
		began := time.Now()
		if _, err := kubelet.NodePrepareResources(b.Context(), &drav1.NodePrepareResourcesRequest{Claims: request}); err != nil {
			b.Fatal(err)
		}
		times = append(times, time.Since(began))
		if _, err := kubelet.NodeUnprepareResources(b.Context(), &drav1.NodeUnprepareResourcesRequest{Claims: request}); err != nil {
			b.Fatal(err)
		}
		<-h.api.asked
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
}

package podinfo

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

const (
	mi = 1 << 20
	gi = 1 << 30
)

// manifest reads a pod from YAML, as a test's author writes it.
func manifest(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(text, "\t", "  ")), &pod); err != nil {
		t.Fatal(err)
	}
	return &pod
}

func TestWhatKeepsAContainerFromBeingGuaranteed(t *testing.T) {
	for resources, want := range map[string]string{
		"{limits: {cpu: 1, memory: 1Gi}}": "",
		"{}":                              "has no CPU limit and no memory limit",
		"{limits: {memory: 1Gi}}":         "has no CPU limit",
		"{requests: {cpu: 1}, limits: {memory: 1Gi}}":                         "has no CPU limit",
		"{limits: {cpu: 1}}":                                                  "has no memory limit",
		"{requests: {memory: 1Gi}, limits: {cpu: 1, memory: 2Gi}}":            "requests 1Gi of memory and has a limit of 2Gi",
		"{requests: {cpu: 500m}, limits: {cpu: 1, memory: 1Gi}}":              "has a CPU request of 500m and a CPU limit of 1",
		"{requests: {cpu: 1, memory: 1023Mi}, limits: {cpu: 2, memory: 1Gi}}": "requests 1023Mi of memory and has a limit of 1Gi",
	} {
		got := FromPod(manifest(t, "spec: {containers: [{name: app, resources: "+resources+"}]}")).Containers[0]
		if got.Lacks != want || got.Guaranteed != (want == "") {
			t.Errorf("%s: it lacks %q, Guaranteed: %t; want %q", resources, got.Lacks, got.Guaranteed, want)
		}
	}
}

func TestFromPod(t *testing.T) {
	lacks := cmpopts.IgnoreFields(pods.Container{}, "Lacks") // TestWhatKeepsAContainerFromBeingGuaranteed
	for name, tt := range map[string]struct {
		pod  string
		want pods.Pod
	}{
		"every kind of container, in the order of their start": {
			pod: `
metadata: {uid: u1, namespace: ns, name: web}
spec:
	initContainers:
	- {name: setup, resources: {requests: {memory: 1Gi}}}
	- {name: proxy, restartPolicy: Always, resources: {requests: {memory: 64Mi}, limits: {memory: 128Mi}}}
	containers:
	- {name: app, resources: {requests: {memory: 1.5Ki, cpu: 1}}}
	- {name: idle}
	ephemeralContainers:
	- {name: debugger}
	overhead: {memory: 10Mi}
`,
			want: pods.Pod{Ref: pods.Ref{UID: "u1", Namespace: "ns", Name: "web"}, Class: memoryqos.Burstable, Overhead: 10 * mi, Containers: []pods.Container{
				{Name: "setup", Kind: memoryqos.Init, Request: gi},
				{Name: "proxy", Kind: memoryqos.Sidecar, Request: 64 * mi, Limit: 128 * mi},
				{Name: "app", Kind: memoryqos.App, Request: 1536},
				{Name: "idle", Kind: memoryqos.App},
				{Name: "debugger", Kind: memoryqos.Ephemeral},
			}},
		},
		"a limit alone is also the request": {
			pod: `
spec:
	containers:
	- {name: app, resources: {limits: {memory: 64Mi, cpu: 1}}}
`,
			want: pods.Pod{Class: memoryqos.Guaranteed, Containers: []pods.Container{
				{Name: "app", Kind: memoryqos.App, Request: 64 * mi, Limit: 64 * mi, Guaranteed: true}}},
		},
		"pod-level resources and containers with and without their own": {
			pod: `
spec:
	resources: {requests: {cpu: 2, memory: 4Gi, hugepages-2Mi: 8Mi}, limits: {cpu: 2, memory: 4Gi, hugepages-2Mi: 8Mi}}
	containers:
	- {name: own, resources: {limits: {memory: 1Gi, cpu: 500m, hugepages-2Mi: 4Mi}}}
	- {name: no-cpu, resources: {limits: {memory: 1Gi}}}
	- {name: less, resources: {requests: {memory: 512Mi}, limits: {memory: 1Gi, cpu: 1}}}
	- {name: shared}
`,
			want: pods.Pod{Class: memoryqos.Guaranteed, PodRequest: new(uint64(4 * gi)), PodLimit: new(uint64(4 * gi)),
				PodHugepages: memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 8 * mi}},
				Containers: []pods.Container{
					{Name: "own", Kind: memoryqos.App, Request: gi, Limit: gi, Guaranteed: true,
						Hugepages: memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 4 * mi}}},
					{Name: "no-cpu", Kind: memoryqos.App, Request: gi, Limit: gi},
					{Name: "less", Kind: memoryqos.App, Request: 512 * mi, Limit: gi},
					{Name: "shared", Kind: memoryqos.App}}},
		},
		"huge pages, by request or limit": {
			pod: `
spec:
	containers:
	- name: app
		resources: {requests: {memory: 1, hugepages-2Mi: 4Mi}, limits: {hugepages-2Mi: 4Mi, hugepages-1Gi: 2Gi, hugepages-64Ki: 0}}
`,
			want: pods.Pod{Class: memoryqos.Burstable, Containers: []pods.Container{{Name: "app", Kind: memoryqos.App, Request: 1,
				Hugepages: memorymanager.Request{{Type: "hugepages-1Gi", Bytes: 2 * gi}, {Type: "hugepages-2Mi", Bytes: 4 * mi}}}}},
		},
		"a negative quantity is none": {
			pod: `
spec:
	containers:
	- {name: app, resources: {requests: {memory: -5}}}
`,
			want: pods.Pod{Class: memoryqos.BestEffort, Containers: []pods.Container{{Name: "app", Kind: memoryqos.App}}},
		},
		"a static pod as the kubelet has it": {
			pod: `
metadata: {uid: 0123abc, namespace: kube-system, name: etcd-node1, annotations: {kubernetes.io/config.source: file, kubernetes.io/config.hash: 0123abc}}
`,
			want: pods.Pod{Ref: pods.Ref{UID: "0123abc", Namespace: "kube-system", Name: "etcd-node1"}, Class: memoryqos.BestEffort, Static: true, Containers: []pods.Container{}},
		},
		"its mirror in the API server goes by the UID that the runtime knows": {
			pod: `
metadata:
	uid: 6c1f8a34-0000-0000-0000-000000000000
	namespace: kube-system
	name: etcd-node1
	annotations: {kubernetes.io/config.source: file, kubernetes.io/config.hash: 0123abc, kubernetes.io/config.mirror: 0123abc}
`,
			want: pods.Pod{Ref: pods.Ref{UID: "0123abc", Namespace: "kube-system", Name: "etcd-node1"}, Class: memoryqos.BestEffort, Static: true, Mirror: true, Containers: []pods.Container{}},
		},
		"a pod from the API server is not static": {
			pod:  `metadata: {uid: u, annotations: {kubernetes.io/config.source: api}}`,
			want: pods.Pod{Ref: pods.Ref{UID: "u"}, Class: memoryqos.BestEffort, Containers: []pods.Container{}},
		},
		"a resize that was admitted and not actuated counts": {
			pod: `
spec:
	containers:
	- {name: app, resources: {requests: {memory: 2Gi}, limits: {memory: 3Gi}}}
status:
	conditions: [{type: PodResizeInProgress, status: "True"}]
	containerStatuses:
	- {name: app, allocatedResources: {memory: 2Gi}, resources: {requests: {memory: 1Gi}, limits: {memory: 1Gi}}}
`,
			want: pods.Pod{Class: memoryqos.Burstable, Containers: []pods.Container{{Name: "app", Kind: memoryqos.App, Request: 2 * gi, Limit: 3 * gi}}},
		},
		"a resize that was deferred does not": {
			pod: `
spec:
	containers:
	- {name: app, resources: {requests: {memory: 2Gi}, limits: {memory: 3Gi}}}
	- {name: other, resources: {requests: {memory: 1Mi}}}
status:
	conditions: [{type: Ready, status: "True"}, {type: PodResizePending, status: "True", reason: Deferred}]
	containerStatuses:
	- {name: other}
	- {name: app, allocatedResources: {memory: 1Gi}, resources: {requests: {memory: 1Gi}, limits: {memory: 1536Mi}}}
`,
			want: pods.Pod{Class: memoryqos.Burstable, Containers: []pods.Container{
				{Name: "app", Kind: memoryqos.App, Request: gi, Limit: 1536 * mi},
				{Name: "other", Kind: memoryqos.App, Request: mi}}},
		},
		"a resize that the kubelet has not seen yet does not": {
			pod: `
spec:
	containers:
	- {name: app, resources: {requests: {memory: 2Gi}, limits: {memory: 3Gi}}}
status:
	containerStatuses:
	- {name: app, allocatedResources: {memory: 1Gi}, resources: {requests: {memory: 1Gi}, limits: {memory: 1536Mi}}}
`,
			want: pods.Pod{Class: memoryqos.Burstable, Containers: []pods.Container{{Name: "app", Kind: memoryqos.App, Request: gi, Limit: 1536 * mi}}},
		},
		"an infeasible resize of a sidecar, told the old way, without allocatedResources": {
			pod: `
spec:
	initContainers:
	- {name: proxy, restartPolicy: Always, resources: {requests: {memory: 2Gi}}}
status:
	resize: Infeasible
	initContainerStatuses:
	- {name: proxy, resources: {requests: {memory: 1Gi}}}
`,
			want: pods.Pod{Class: memoryqos.Burstable, Containers: []pods.Container{{Name: "proxy", Kind: memoryqos.Sidecar, Request: gi}}},
		},
		"a resize told the old way that is in progress": {
			pod: `
spec:
	containers:
	- {name: app, resources: {requests: {memory: 2Gi}}}
status:
	resize: InProgress
	containerStatuses:
	- {name: app, resources: {requests: {memory: 1Gi}}}
`,
			want: pods.Pod{Class: memoryqos.Burstable, Containers: []pods.Container{{Name: "app", Kind: memoryqos.App, Request: 2 * gi}}},
		},
		"pod-level resources": {
			pod: `
spec:
	resources: {requests: {memory: 100Mi}, limits: {memory: 200Mi}}
	containers:
	- {name: app, resources: {requests: {memory: 10Mi}}}
`,
			want: pods.Pod{Class: memoryqos.Burstable, PodRequest: new(uint64(100 * mi)), PodLimit: new(uint64(200 * mi)),
				Containers: []pods.Container{{Name: "app", Kind: memoryqos.App, Request: 10 * mi}}},
		},
		"a pod-level limit alone, with containers that ask": {
			pod: `
spec:
	resources: {limits: {memory: 2Gi}}
	initContainers:
	- {name: before, resources: {requests: {memory: 50Mi}}}
	- {name: proxy, restartPolicy: Always, resources: {requests: {memory: 100Mi}}}
	- {name: setup, resources: {requests: {memory: 300Mi}}}
	containers:
	- {name: app, resources: {limits: {memory: 30Mi}}}
`,
			want: pods.Pod{Class: memoryqos.Burstable, PodRequest: new(uint64(400 * mi)), PodLimit: new(uint64(2 * gi)), Containers: []pods.Container{
				{Name: "before", Kind: memoryqos.Init, Request: 50 * mi},
				{Name: "proxy", Kind: memoryqos.Sidecar, Request: 100 * mi},
				{Name: "setup", Kind: memoryqos.Init, Request: 300 * mi},
				{Name: "app", Kind: memoryqos.App, Request: 30 * mi, Limit: 30 * mi}}},
		},
		"a pod-level limit alone, and nobody asks": {
			pod: `
spec:
	resources: {limits: {memory: 200Mi, cpu: 2}}
	containers: [{name: app}]
`,
			want: pods.Pod{Class: memoryqos.Guaranteed, PodRequest: new(uint64(200 * mi)), PodLimit: new(uint64(200 * mi)),
				Containers: []pods.Container{{Name: "app", Kind: memoryqos.App}}},
		},
		"pod-level resources of CPU only": {
			pod: `
spec:
	resources: {requests: {cpu: 1}}
	containers: [{name: app}]
`,
			want: pods.Pod{Class: memoryqos.Burstable, Containers: []pods.Container{{Name: "app", Kind: memoryqos.App}}},
		},
		"a pod-level resize that is pending": {
			pod: `
spec:
	overhead: {memory: 8Mi}
	resources: {requests: {memory: 500Mi}, limits: {memory: 600Mi}}
	containers: [{name: app}]
status:
	qosClass: Burstable
	conditions: [{type: PodResizePending, status: "True", reason: Infeasible}]
	allocatedResources: {memory: 108Mi}
	resources: {requests: {memory: 100Mi}, limits: {memory: 200Mi}}
`,
			want: pods.Pod{Class: memoryqos.Burstable, Overhead: 8 * mi, PodRequest: new(uint64(100 * mi)), PodLimit: new(uint64(200 * mi)),
				Containers: []pods.Container{{Name: "app", Kind: memoryqos.App}}},
		},
		"a resource claim of one container": {
			pod: `
spec:
	containers:
	- {name: app, resources: {requests: {memory: 1Gi}, limits: {memory: 2Gi}}}
	- {name: other}
status:
	nodeAllocatableResourceClaimStatuses:
	- resourceClaimName: c
		containers: [app]
		mapping: [{name: memory, quantity: 5Gi}, {name: cpu, quantity: 7}]
`,
			want: pods.Pod{Class: memoryqos.Burstable, Claimed: 5 * gi, Mapped: map[string]uint64{"c": 5 * gi}, Containers: []pods.Container{
				{Name: "app", Kind: memoryqos.App, Request: gi, Limit: 2 * gi, Claimed: 5 * gi}, {Name: "other", Kind: memoryqos.App}}},
		},
		"claims with overhead count once for the pod and in full for each container": {
			pod: `
spec:
	initContainers:
	- {name: i}
	containers:
	- {name: a, resources: {requests: {memory: 2Gi}, limits: {memory: 4Gi}}}
	- {name: b, resources: {requests: {memory: 4Gi}, limits: {memory: 8Gi}}}
status:
	nodeAllocatableResourceClaimStatuses:
	- resourceClaimName: shared
		containers: [a, b]
		mapping: [{name: memory, quantity: 5Gi}]
		overhead: [{name: memory, perPod: 1Gi, perContainer: 100Mi}]
	- resourceClaimName: "of an init container"
		containers: [i]
		overhead: [{name: memory, perContainer: 10Mi}]
	- resourceClaimName: "of none"
		overhead: [{name: memory, perPod: 1Mi, perContainer: 10Mi}]
	- {resourceClaimName: empty, containers: [a]}
`,
			want: pods.Pod{Class: memoryqos.Burstable, Claimed: 6*gi + 200*mi + 10*mi + mi, Mapped: map[string]uint64{"shared": 5 * gi}, Containers: []pods.Container{
				{Name: "i", Kind: memoryqos.Init, Claimed: 10 * mi},
				{Name: "a", Kind: memoryqos.App, Request: 2 * gi, Limit: 4 * gi, Claimed: 6*gi + 100*mi},
				{Name: "b", Kind: memoryqos.App, Request: 4 * gi, Limit: 8 * gi, Claimed: 6*gi + 100*mi}}},
		},
		"claims that name no memory, or less than none": {
			pod: `
spec:
	containers: [{name: a}]
status:
	nodeAllocatableResourceClaimStatuses:
	- {resourceClaimName: cpu, containers: [a], mapping: [{name: cpu, quantity: 5}]}
	- {resourceClaimName: negative, containers: [a], mapping: [{name: memory, quantity: -5Gi}, {name: memory}]}
`,
			want: pods.Pod{Class: memoryqos.BestEffort, Containers: []pods.Container{{Name: "a", Kind: memoryqos.App}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := manifest(t, tt.pod)
			if diff := cmp.Diff(&tt.want, FromPod(pod), lacks); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			data, err := pod.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			got, err := decode(data)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, got, lacks); diff != "" {
				t.Errorf("through protobuf: -want +got:\n%s", diff)
			}
		})
	}
}

// TestTheResourcesOfAnOlderClaimStatusAreIgnored: until Kubernetes 1.36 field 3 held them, with another meaning.
func TestTheResourcesOfAnOlderClaimStatusAreIgnored(t *testing.T) {
	pod := manifest(t, "spec: {containers: [{name: a}]}")
	data, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	old := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte("a"))
	old = protowire.AppendBytes(protowire.AppendTag(old, 3, protowire.BytesType), []byte("\xff not a message"))
	status := protowire.AppendBytes(protowire.AppendTag(nil, 21, protowire.BytesType), old)
	got, err := decode(protowire.AppendBytes(protowire.AppendTag(data, 3, protowire.BytesType), status))
	if err != nil || got.Claimed != 0 || got.OwnMemory() {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestQOSClass(t *testing.T) {
	for name, tt := range map[string]struct {
		spec string
		want memoryqos.QOSClass
	}{
		"nothing":                           {`{containers: [{name: a}]}`, memoryqos.BestEffort},
		"zeros":                             {`{containers: [{name: a, resources: {requests: {memory: 0}, limits: {cpu: 0}}}]}`, memoryqos.BestEffort},
		"only other resources":              {`{containers: [{name: a, resources: {requests: {hugepages-2Mi: 2Mi}}}]}`, memoryqos.BestEffort},
		"memory only":                       {`{containers: [{name: a, resources: {limits: {memory: 1Gi}}}]}`, memoryqos.Burstable},
		"both equal":                        {`{containers: [{name: a, resources: {requests: {memory: 1Gi, cpu: 1}, limits: {memory: 1024Mi, cpu: 1000m}}}]}`, memoryqos.Guaranteed},
		"limits only":                       {`{containers: [{name: a, resources: {limits: {memory: 1Gi, cpu: 1}}}]}`, memoryqos.Guaranteed},
		"request below limit":               {`{containers: [{name: a, resources: {requests: {memory: 1Mi}, limits: {memory: 1Gi, cpu: 1}}}]}`, memoryqos.Burstable},
		"one container without":             {`{containers: [{name: a, resources: {limits: {memory: 1Gi, cpu: 1}}}, {name: b}]}`, memoryqos.Burstable},
		"an init container without":         {`{initContainers: [{name: i}], containers: [{name: a, resources: {limits: {memory: 1Gi, cpu: 1}}}]}`, memoryqos.Burstable},
		"ephemeral containers do not count": {`{ephemeralContainers: [{name: e}], containers: [{name: a, resources: {limits: {memory: 1Gi, cpu: 1}}}]}`, memoryqos.Guaranteed},
		"pod-level equal, containers as they are":  {`{resources: {requests: {memory: 1Gi, cpu: 1}, limits: {memory: 1Gi, cpu: 1}}, containers: [{name: a, resources: {requests: {memory: 1}}}]}`, memoryqos.Guaranteed},
		"pod-level request only":                   {`{resources: {requests: {memory: 1Gi}}, containers: [{name: a}]}`, memoryqos.Burstable},
		"pod-level limits, containers ask less":    {`{resources: {limits: {memory: 1Gi, cpu: 1}}, containers: [{name: a, resources: {requests: {cpu: 100m}}}]}`, memoryqos.Burstable},
		"pod-level and empty, a container asks":    {`{resources: {}, containers: [{name: a, resources: {requests: {memory: 1}}}]}`, memoryqos.Burstable},
		"pod-level and empty, all limited":         {`{resources: {}, containers: [{name: a, resources: {limits: {memory: 1Gi, cpu: 1}}}]}`, memoryqos.Guaranteed},
		"pod-level and empty, nobody asks":         {`{resources: {requests: {}, limits: {}}, containers: [{name: a}]}`, memoryqos.BestEffort},
		"pod-level memory, CPU limits of all":      {`{resources: {limits: {memory: 1Gi}}, containers: [{name: a, resources: {limits: {cpu: 1}}}, {name: b, resources: {limits: {cpu: 1}}}]}`, memoryqos.Guaranteed},
		"the same, as an API server 1.36 keeps it": {`{resources: {requests: {memory: 1Gi, cpu: 1}, limits: {memory: 1Gi}}, containers: [{name: a, resources: {requests: {cpu: 1}, limits: {cpu: 1}}}]}`, memoryqos.Burstable},
	} {
		t.Run(name, func(t *testing.T) {
			pod := manifest(t, "spec: "+tt.spec)
			if got := FromPod(pod).Class; got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
	t.Run("the status is believed, as the kubelet does", func(t *testing.T) {
		pod := manifest(t, "spec: {containers: [{name: a}]}\nstatus: {qosClass: Guaranteed}")
		if got := FromPod(pod).Class; got != memoryqos.Guaranteed {
			t.Errorf("got %s", got)
		}
	})
}

func TestPodContainer(t *testing.T) {
	pod := &pods.Pod{Containers: []pods.Container{{Name: "a", Request: 1}, {Name: "b", Request: 2}}}
	if c, ok := pod.Container("b"); !ok || c.Request != 2 {
		t.Errorf("b: got %+v, %t", c, ok)
	}
	if _, ok := pod.Container("c"); ok {
		t.Error("c: found")
	}
	answer := pods.Answer{Pod: pod, Source: memoryqos.SourceKubelet}
	if e, ok := answer.Estimate("a"); !ok || e != (pods.Estimate{Request: 1, Source: memoryqos.SourceKubelet}) || !e.Exact() {
		t.Errorf("a: got %+v, %t", e, ok)
	}
	if _, ok := answer.Estimate("c"); ok {
		t.Error("estimated a container that is not there")
	}
	if _, ok := (pods.Answer{}).Estimate("a"); ok {
		t.Error("estimated without a pod")
	}
}

func FuzzDecode(f *testing.F) {
	seed := manifest(f, `
metadata: {uid: u1, namespace: ns, name: web}
spec:
	resources: {limits: {memory: 1Gi}}
	initContainers: [{name: proxy, restartPolicy: Always, resources: {requests: {memory: 64Mi}}}]
	containers: [{name: app, resources: {requests: {memory: 1e30, hugepages-2Mi: 2Mi}}}]
status:
	containerStatuses: [{name: app, allocatedResources: {memory: 2Gi}}]
	nodeAllocatableResourceClaimStatuses: [{containers: [app], mapping: [{name: memory, quantity: 5Gi}], overhead: [{name: memory, perContainer: 1e30}]}]
`)
	data, err := seed.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		pod, err := decode(data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "decode v1.Pod of ") {
				t.Errorf("got error %v", err)
			}
			return
		}
		if pod.Claimed > 1<<63 {
			t.Errorf("claimed %d", pod.Claimed)
		}
		for _, c := range pod.Containers {
			if c.Request > 1<<63 || c.Limit > 1<<63 || c.Claimed > 1<<63 {
				t.Errorf("container %q: request %d, limit %d, claimed %d", c.Name, c.Request, c.Limit, c.Claimed)
			}
		}
	})
}

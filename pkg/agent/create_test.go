package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

func TestACreatedContainerGetsItsNodesAndValues(t *testing.T) {
	n := newNode(t, "")
	adj, highest := int64(500), int64(999)
	tests := map[string]struct {
		class       memoryqos.QOSClass
		limit       uint64
		oomScoreAdj *int64
		mems        string
		unified     map[string]string
		ancestors   map[string]string
	}{
		"Guaranteed": {
			class: memoryqos.Guaranteed, limit: gi, mems: "0",
			unified: map[string]string{"memory.min": bytesOf(1052266496)}, // 98 % of the limit, in pages
		},
		"Guaranteed over both nodes": {
			class: memoryqos.Guaranteed, limit: 20 * gi, mems: "0-1",
			unified: map[string]string{"memory.min": bytesOf(21045338112)},
		},
		"Burstable with an estimated request": {
			class: memoryqos.Burstable, limit: 18 * gi, oomScoreAdj: &adj,
			unified: map[string]string{"memory.low": bytesOf(17179869184), "memory.high": bytesOf(19112603648)},
		},
		"Burstable with a request that may be its limit": {
			class: memoryqos.Burstable, limit: 17179869184 + 16*mi, oomScoreAdj: &adj, // half of 32Gi, to within 33Mi
			unified: map[string]string{"memory.low": bytesOf(17179869184)},
		},
		"Burstable with an unknown request": {
			class: memoryqos.Burstable, limit: 1000 * mi,
		},
		"Burstable without a request": {
			class: memoryqos.Burstable, limit: 1000 * mi, oomScoreAdj: &highest,
			unified: map[string]string{"memory.high": bytesOf(900 * mi)},
		},
		"BestEffort": {
			class:   memoryqos.BestEffort,
			unified: map[string]string{"memory.high": bytesOf(30051766272)}, // 90 % of 32Gi less the 924Mi of the system
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n.TB = t
			pod := n.pod(strings.ReplaceAll(strings.ToLower(name), " ", "-"), test.class)
			c := ofPod(pod, "main", test.limit)
			c.Resources.OOMScoreAdj = test.oomScoreAdj
			got := n.create(pod, c)
			n.want("cpuset.mems", got.CpusetMems, test.mems)
			for _, file := range []string{"memory.min", "memory.low", "memory.high"} {
				n.want(file, got.Unified[file], test.unified[file])
			}
			// Every parent cgroup carries what the container was promised, before the answer is out.
			for _, file := range []string{"memory.min", "memory.low"} {
				if test.unified[file] != "" {
					n.want("the pod's "+file, n.file(pod.CgroupParent, file), test.unified[file])
					n.want("kubepods' memory.min", n.file("kubepods", "memory.min"), test.unified[file])
				}
			}
			if err := n.endPod(context.Background(), pod); err != nil {
				t.Fatal(err)
			}
			n.want("the allocations after the pod", n.allocated(), "0 0")
			for _, dir := range []string{"kubepods", "kubepods/burstable"} {
				for _, file := range []string{"memory.min", "memory.low"} {
					if left := n.file(dir, file); left != "" && left != "0" {
						t.Errorf("%s/%s holds %s after the last pod", dir, file, left)
					}
				}
			}
		})
	}
}

func TestAnAllocationLivesAsLongAsItsPod(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("loops", memoryqos.Guaranteed)
	first := n.launch(pod, ofPod(pod, "main", 3*gi))
	other := n.pod("other", memoryqos.Guaranteed)
	n.launch(other, ofPod(other, "main", 11*gi)) // node 0 is full now
	n.want("allocations", n.allocated(), "14336 0")

	for range 3 { // stopping twice is as good as once
		if err := n.StopContainer(context.Background(), pod, first); err != nil {
			t.Fatal(err)
		}
	}
	n.want("the allocations of a container that ended", n.allocated(), "14336 0")
	n.want("the pod's memory.min meanwhile", n.file(pod.CgroupParent, "memory.min"), "0")

	again := ofPod(pod, "main", 3*gi)
	again.ID += "-2"
	again.CgroupsPath += "-2"
	n.want("the nodes of the second start", n.create(pod, again).CpusetMems, "0")
	if err := n.RemoveContainer(context.Background(), pod, first); err != nil {
		t.Fatal(err)
	}
	if !n.containerView(pod, "main").State.Alive() {
		t.Error("the late removal of the first start ended the second")
	}
	for range 2 {
		if err := n.endPod(context.Background(), pod); err != nil {
			t.Fatal(err)
		}
		if err := n.RemovePodSandbox(context.Background(), pod); err != nil {
			t.Fatal(err)
		}
	}
	n.want("allocations after the pod", n.allocated(), "11264 0")
}

func TestALateRemovalOfAnOldSandboxLeavesTheNewOneAlone(t *testing.T) {
	n := newNode(t, "")
	old := n.pod("web", memoryqos.Guaranteed)
	n.launch(old, ofPod(old, "main", gi))
	if err := n.StopPodSandbox(context.Background(), old); err != nil {
		t.Fatal(err)
	}
	fresh := old
	fresh.ID = "web-sandbox-2"
	if err := n.RunPodSandbox(context.Background(), fresh); err != nil {
		t.Fatal(err)
	}
	n.launch(fresh, ofPod(fresh, "main", gi))
	if err := n.RemovePodSandbox(context.Background(), old); err != nil {
		t.Fatal(err)
	}
	n.want("allocations", n.allocated(), "1024 0")
}

func TestACreateAfterItsSandboxHasStoppedIsRefused(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("late", memoryqos.Guaranteed)
	if err := n.RunPodSandbox(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	if err := n.endPod(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	_, err := n.CreateContainer(context.Background(), pod, ofPod(pod, "main", gi))
	if err == nil || !strings.Contains(err.Error(), "the pod sandbox has been stopped") {
		t.Errorf("the late create's error is %v", err)
	}
	n.want("allocations", n.allocated(), "0 0")
}

func TestWhatCannotBePlacedIsRefusedOrRunsUnpinned(t *testing.T) {
	tests := map[string]struct {
		yaml        string
		annotations map[string]string
		limit       uint64
		mems        string
		pinning     string
		err         string
		reason      string
	}{
		"restricted refuses": {
			yaml: "topologyManagerPolicy: restricted", limit: 40 * gi,
			err: "container main of pod default/pod: policy restricted, scope container: no set of NUMA nodes has room: node 0: 14.5Gi of 14.5Gi free, 40Gi needed; node 1: ", reason: "UnexpectedAdmissionError",
		},
		"single-numa-node refuses two nodes": {
			yaml: "topologyManagerPolicy: single-numa-node", limit: 20 * gi,
			err: "container main of pod default/pod", reason: "TopologyAffinityError",
		},
		"best-effort runs unpinned": {
			yaml: "", limit: 40 * gi, pinning: "not pinned: UnexpectedAdmissionError", reason: "UnexpectedAdmissionError",
		},
		"best-effort told to refuse": {
			yaml: "onUnsatisfiable: Reject", limit: 40 * gi, err: "container main of pod", reason: "UnexpectedAdmissionError",
		},
		"restricted told to let run": {
			yaml: "{topologyManagerPolicy: restricted, onUnsatisfiable: Unpinned}", limit: 40 * gi,
			pinning: "not pinned: UnexpectedAdmissionError", reason: "UnexpectedAdmissionError",
		},
		"annotation preferred": {
			yaml: "topologyManagerPolicy: restricted", annotations: map[string]string{"numa.memory-manager.noderesource.dev": "preferred"},
			limit: 40 * gi, pinning: "not pinned: UnexpectedAdmissionError", reason: "UnexpectedAdmissionError",
		},
		"annotation required": {
			annotations: map[string]string{"numa.memory-manager.noderesource.dev": "required"},
			limit:       40 * gi, err: "container main of pod", reason: "UnexpectedAdmissionError",
		},
		"annotation none": {
			annotations: map[string]string{"numa.memory-manager.noderesource.dev": "none"},
			limit:       gi, pinning: "not pinned: the pod's annotation numa is none",
		},
		"no memory manager": {
			yaml: "memoryManagerPolicy: None", limit: gi, pinning: "not pinned: memoryManagerPolicy is None",
		},
		"no limit of its own": {limit: 0, pinning: "not pinned: the container asks for no memory"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			yaml := strings.NewReplacer("{", "", "}", "", ", ", "\n").Replace(test.yaml)
			if strings.Contains(yaml, "memoryManagerPolicy: None") {
				yaml += "\nreservedMemory: []"
			}
			n := newNode(t, "")
			n.reconfigure(yaml)
			pod := n.pod("pod", memoryqos.Guaranteed)
			pod.Annotations = test.annotations
			got, err := n.CreateContainer(context.Background(), pod, ofPod(pod, "main", test.limit))
			n.want("cpuset.mems", got.CpusetMems, test.mems)
			view := n.View()
			if test.reason != "" {
				if len(view.Rejections) != 1 {
					t.Fatalf("%d rejections are shown, want 1", len(view.Rejections))
				}
				shown := view.Rejections[0]
				n.want("the reason", shown.Reason, test.reason)
				if shown.Refused != (test.err != "") {
					t.Errorf("shown as refused %v", shown.Refused)
				}
			}
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("the error is %v, want %q in it", err, test.err)
				}
				if n.Counters().Rejections[test.reason] != 1 {
					t.Errorf("counted: %v", n.Counters().Rejections)
				}
				n.want("kubepods memory.min", strings.Trim(n.file("kubepods", "memory.min"), "0"), "")
				n.want("allocations", n.allocated(), "0 0")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			n.want("pinning", n.containerView(pod, "main").Pinning, test.pinning)
		})
	}
}

func TestRequiredRefusesMoreNodesThanNeeded(t *testing.T) {
	n := newNode(t, "")
	// Both nodes are filled to a half, so that 10Gi fit only on both, though one could hold them.
	for _, name := range []string{"a", "b"} {
		pod := n.pod(name, memoryqos.Guaranteed)
		n.launch(pod, ofPod(pod, "main", 8*gi))
	}
	pod := n.pod("wide", memoryqos.Guaranteed)
	pod.Annotations = map[string]string{"numa.memory-manager.noderesource.dev": "required"}
	_, err := n.CreateContainer(context.Background(), pod, ofPod(pod, "main", 10*gi))
	if err == nil {
		t.Fatal("it was created")
	}
	n.want("allocations", n.allocated(), "8192 8192")
}

func TestTheKubeletsOwnNodesAreRespectedAndAllocated(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pinned", memoryqos.Guaranteed)
	c := ofPod(pod, "main", 2*gi)
	c.Resources.Mems = "1"
	n.want("cpuset.mems", n.create(pod, c).CpusetMems, "")
	n.want("allocations", n.allocated(), "0 2048")
	n.want("pinning", n.containerView(pod, "main").Pinning, "pinned by the kubelet")
	if !strings.Contains(n.log.String(), "pinned by the kubelet: its memory is allocated where it is") {
		t.Errorf("the log does not say so:\n%s", n.log)
	}
	// More than the node has is allocated all the same.
	big := n.pod("big", memoryqos.Guaranteed)
	c = ofPod(big, "main", 30*gi)
	c.Resources.Mems = "1"
	n.create(big, c)
	if !strings.Contains(n.log.String(), "a node has more allocated than it has") {
		t.Errorf("the log does not say so:\n%s", n.log)
	}
	// A node that is not there is not allocated, and the container runs.
	gone := n.pod("gone", memoryqos.Guaranteed)
	c = ofPod(gone, "main", gi)
	c.Resources.Mems = "7"
	n.create(gone, c)
	if pinning := n.containerView(gone, "main").Pinning; !strings.Contains(pinning, "not allocated") {
		t.Errorf("pinning is %q", pinning)
	}
}

func TestHugepagesAreAllocatedWithTheMemory(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("huge", memoryqos.Guaranteed)
	c := ofPod(pod, "main", gi)
	c.Resources.Hugepages = []HugepageLimit{{PageSize: "2MB", Limit: 600 * 2 * mi}, {PageSize: "1GB", Limit: 0}, {PageSize: "odd", Limit: 5}}
	n.want("cpuset.mems", n.create(pod, c).CpusetMems, "0-1") // a node has 512 pages
	blocks := n.containerView(pod, "main").Blocks
	if len(blocks) != 2 || blocks[0].Type != "hugepages-2Mi" || blocks[1].Type != "memory" {
		t.Errorf("blocks are %v", blocks)
	}
}

func TestExclusiveCPUsLeadTheMemory(t *testing.T) {
	shares := func(n uint64) *uint64 { return &n }
	tests := map[string]struct {
		cpus   string
		shares *uint64
		other  string // cpuset of a container of another pod
		mems   string
	}{
		"as many as asked for":             {cpus: "8-9", shares: shares(2048), mems: "1"},
		"a shared pool":                    {cpus: "8-15", shares: shares(1536), mems: "0"},
		"no shares told, nobody else's":    {cpus: "8-9", mems: "1"},
		"no shares told, another's too":    {cpus: "8-15", other: "8-15", mems: "0"},
		"no shares told, all there are":    {cpus: "0-15", mems: "0"},
		"no list":                          {cpus: "eight", mems: "0"},
		"CPUs that the machine has not":    {cpus: "99", shares: shares(1024), mems: "0"},
		"more than memory could list":      {cpus: "0-999999999", mems: "0"},
		"shares of 0 are no shares at all": {cpus: "8-9", shares: shares(0), mems: "1"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "topologyManagerPolicy: restricted")
			if test.other != "" {
				pod := n.pod("other", memoryqos.Burstable)
				c := ofPod(pod, "main", 0)
				c.Resources.CPUs = test.other
				n.launch(pod, c)
			}
			pod := n.pod("pod", memoryqos.Guaranteed)
			c := ofPod(pod, "main", gi)
			c.Resources.CPUs, c.Resources.CPUShares = test.cpus, test.shares
			n.want("cpuset.mems", n.create(pod, c).CpusetMems, test.mems)
		})
	}
}

func TestPodsOutsideKubepodsAreLeftAlone(t *testing.T) {
	n := newNode(t, "")
	pod := Pod{ID: "sandbox", Namespace: "default", Name: "crictl", CgroupParent: "/user.slice/test"}
	c := ofPod(pod, "main", gi)
	if got := n.create(pod, c); !got.Empty() {
		t.Errorf("it was adjusted: %+v", got)
	}
	for _, event := range []func() error{
		func() error { return n.RunPodSandbox(context.Background(), pod) },
		func() error { return n.StartContainer(context.Background(), pod, c) },
		func() error { _, err := n.UpdateContainer(context.Background(), pod, c, Resources{}); return err },
		func() error { return n.PostUpdateContainer(context.Background(), pod, c) },
		func() error { return n.StopContainer(context.Background(), pod, c) },
		func() error { return n.UpdatePodSandbox(context.Background(), pod, 0, 0) },
		func() error { return n.StopPodSandbox(context.Background(), pod) },
	} {
		if err := event(); err != nil {
			t.Error(err)
		}
	}
	for _, parent := range []string{"/kubepods/../../etc", "../../kubepods/pod1", "/kubepods/what/ever/pod1"} {
		pod := Pod{ID: "hostile", UID: "1", Namespace: "default", Name: "hostile", CgroupParent: parent}
		if _, err := n.CreateContainer(context.Background(), pod, ofPod(pod, "main", gi)); err == nil || !strings.Contains(err.Error(), "cgroup parent") {
			t.Errorf("cgroup parent %s: the error is %v", parent, err)
		}
	}
}

func TestBadAnnotationsAreIgnoredOrRefuse(t *testing.T) {
	for name, test := range map[string]struct{ yaml, err string }{
		"ignored": {"", ""},
		"refused": {"onBadAnnotation: Reject", "bad annotations: "},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, test.yaml)
			pod := n.pod("pod", memoryqos.Burstable)
			pod.Annotations = map[string]string{"throttling-factor.memory-manager.noderesource.dev": "seven"}
			_, err := n.CreateContainer(context.Background(), pod, ofPod(pod, "main", gi))
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("the error is %v, want %q", err, test.err)
			}
			if problems := n.podView(pod).Problems; len(problems) != 1 {
				t.Errorf("the view shows the problems %v", problems)
			}
		})
	}
}

// reconfigure puts a configuration in force.
func (n *node) reconfigure(yaml string) {
	n.Helper()
	if err := n.Reconfigure(context.Background(), parseConfig(n, yaml)); err != nil {
		n.Fatal(err)
	}
	if err := n.protector.WriteLate(context.Background()); err != nil {
		n.Fatal(err)
	}
}

func TestAContainerThatStartsWithoutAnAnswerIsBroughtIn(t *testing.T) {
	n := newNode(t, "")
	late, cancel := context.WithCancel(context.Background())
	cancel()
	pod := n.pod("pod", memoryqos.Guaranteed)
	c := ofPod(pod, "main", gi)
	if _, err := n.CreateContainer(late, pod, c); err == nil {
		t.Fatal("the create was answered in time")
	}
	n.run(pod, c, Adjustment{}) // by a runtime that does not know the failure policy
	n.want("memory.min", n.file(c.CgroupsPath, "memory.min"), "1052266496")
	n.want("cpuset.mems", n.file(c.CgroupsPath, "cpuset.mems"), "0")
	n.want("kubepods' memory.min", n.file("kubepods", "memory.min"), "1052266496")
	n.want("allocations", n.allocated(), "1024 0")
}

// ending is a context that ends once it has been asked this often whether it has.
type ending struct {
	context.Context
	asks int
}

func (c *ending) Err() error {
	if c.asks--; c.asks < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// A deadline may pass before the decision, and after it.
func TestWhatIsAnsweredTooLateIsTakenBack(t *testing.T) {
	for name, test := range map[string]struct {
		event func(ctx context.Context, n *node, p Pod, c Container) error
		want  string // of the container afterwards
	}{
		"a create": {func(ctx context.Context, n *node, p Pod, _ Container) error {
			_, err := n.CreateContainer(ctx, p, ofPod(p, "next", gi))
			return err
		}, "main running; next stopped"},
		"an update": {func(ctx context.Context, n *node, p Pod, c Container) error {
			_, err := n.UpdateContainer(ctx, p, c, Resources{MemoryLimit: limit(int64(4 * gi))})
			return err
		}, "main running"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			for asks := range 100 {
				n := newNode(t, "")
				p := n.pod("pod", memoryqos.Burstable)
				c := n.launch(p, ofPod(p, "main", gi))
				n.writeFile(c.CgroupsPath, "memory.max", bytesOf(gi))
				if err := test.event(&ending{t.Context(), asks}, n, p, c); err == nil {
					break
				}
				n.work(t.Context())
				var all []string
				for _, c := range n.podView(p).Containers {
					all = append(all, fmt.Sprintf("%s %v", c.Name, c.State))
				}
				n.want("the limit", bytesOf(n.containerView(p, "main").Limit), bytesOf(gi))
				got = strings.Join(all, "; ")
			}
			if got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

func TestAStartWaitsForTheCgroupsAbove(t *testing.T) {
	n := newNode(t, "")
	pod := n.pod("pod", memoryqos.Guaranteed)
	c := ofPod(pod, "main", gi)
	answer, err := n.CreateContainer(context.Background(), pod, c)
	n.must(err)
	n.want("memory.min of the answer", answer.Unified["memory.min"], "1052266496")
	n.want("the pod's memory.min before Run writes it", n.file(pod.CgroupParent, "memory.min"), "")
	n.must(n.StartContainer(context.Background(), pod, c))
	n.want("the pod's memory.min when the container starts", n.file(pod.CgroupParent, "memory.min"), "1052266496")
	n.want("memory.min of kubepods", n.file("kubepods", "memory.min"), "1052266496")
}

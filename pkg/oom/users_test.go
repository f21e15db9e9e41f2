package oom

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

func (h *host) addPod(p *ledger.PodView, used Held) {
	view := *h.view
	view.Ancestors = []cgroup.Target{{Cgroup: kubepods}}
	view.Pods = append(view.Pods[:len(view.Pods):len(view.Pods)], p)
	h.view = &view
	h.events(p.Cgroup, 0, 0, 0, 0)
	h.held(p.Cgroup, "max", used)
	for _, c := range p.Containers {
		h.events(c.Cgroup, 0, 0, 0, 0)
		h.held(c.Cgroup, "max", used)
	}
}

// The node runs out of memory. "db" asks for 10Gi with pod-level resources (memory.low of its pod is 10Gi) and uses 5Gi; "hog" asks for
// 1Gi and uses 4Gi: it is hog who uses most beyond its share.
func TestAPodWithinItsOwnRequestIsNotBlamed(t *testing.T) {
	h := newHost(t)
	const gib = 1 << 30
	low := uint64(10 * gib)
	h.addPod(&ledger.PodView{Namespace: "bank", Name: "db", UID: "u2", Cgroup: "kubepods/burstable/podu2", Values: memoryqos.Values{Low: &low},
		Containers: []ledger.ContainerView{{Name: "db", ID: "id-db", Cgroup: "kubepods/burstable/podu2/db"}}}, Held{Processes: 5 * gib})
	h.addPod(&ledger.PodView{Namespace: "mob", Name: "hog", UID: "u3", Cgroup: "kubepods/burstable/podu3",
		Containers: []ledger.ContainerView{{Name: "hog", ID: "id-hog", Cgroup: "kubepods/burstable/podu3/hog", Estimate: pods.Estimate{Request: gib}}}},
		Held{Processes: 4 * gib})
	r := h.recorder()
	h.sync(r, noon)
	h.events(appDir, 0, 0, 1, 0)
	h.events(podDir, 0, 0, 1, 0)
	h.write("proc", "meminfo", fmt.Sprintf("MemTotal: %d kB\nAnonPages: %d kB", 10<<20, 9<<20))
	h.held(kubepods, "max", Held{Processes: 9 * gib})
	h.look(r, noon.Add(time.Second))
	h.expect("app 1 node unknown by hog/")
}

// NUMA node 0 runs out. "db" is allocated 8Gi there as a whole (podLevelResourceManagers, scope pod) and uses 5Gi; "hog" is allocated nothing
// there and uses 2Gi.
func TestAPodWithinItsOwnAllocationIsNotBlamed(t *testing.T) {
	h := newHost(t)
	const gib = 1 << 30
	block := memorymanager.Block{Type: memorymanager.Memory, Size: 8 * gib, Nodes: nodeset.Of(0), PerNode: []memorymanager.NodeAmount{{Node: 0, Bytes: 8 * gib}}}
	part := memorymanager.Block{Type: memorymanager.Memory, Size: 8 * gib, Nodes: nodeset.Of(0)}
	h.addPod(&ledger.PodView{Namespace: "bank", Name: "db", UID: "u2", Cgroup: "kubepods/podu2", Blocks: []memorymanager.Block{block},
		Containers: []ledger.ContainerView{{Name: "db", ID: "id-db", Cgroup: "kubepods/podu2/db", Blocks: []memorymanager.Block{part}, Shared: true, Nodes: nodeset.Of(0)}}}, Held{Processes: 5 * gib})
	h.addPod(&ledger.PodView{Namespace: "mob", Name: "hog", UID: "u3", Cgroup: "kubepods/burstable/podu3",
		Containers: []ledger.ContainerView{{Name: "hog", ID: "id-hog", Cgroup: "kubepods/burstable/podu3/hog", Estimate: pods.Estimate{Request: gib}}}},
		Held{Processes: 2 * gib})
	h.write("kubepods/podu2/db", "memory.numa_stat", fmt.Sprintf("anon N0=%d N1=0\nshmem N0=0 N1=0", 5*gib))
	h.write("kubepods/burstable/podu3/hog", "memory.numa_stat", fmt.Sprintf("anon N0=%d N1=0\nshmem N0=0 N1=0", 2*gib))
	h.killOnFullNode()
	h.expect("app 1 numa_node unknown by hog/hog")
}

// The pod's limit is hit. "app" has little; containers that have ended left 50 MiB of files in memory to the pod.
func TestFilesInMemoryOfEndedContainersAreNotBlamedOnOthers(t *testing.T) {
	h := newHost(t)
	r := h.recorder()
	h.sync(r, noon)
	h.held(appDir, "max", Held{Processes: 4 * mib, Tmpfs: 1 * mib})
	h.held(besideID, "max", Held{Processes: 1 * mib})
	h.held(podDir, "67108864", Held{Processes: 5 * mib, Tmpfs: 51 * mib})
	h.events(appDir, 0, 0, 1, 0)
	h.events(podDir, 1, 1, 1, 0)
	r.look(r.pods[podDir], noon.Add(time.Second))
	r.judge(noon.Add(time.Second + settle))
	if len(h.verdicts) != 1 {
		t.Fatalf("%+v", h.verdicts)
	}
	const want = "most beyond its share has files in memory that ended containers of this pod left, 50Mi; what helps: bound what the pod's containers write to memory"
	if text := h.verdicts[0].PodText(); !strings.Contains(text, want) {
		t.Errorf("%s\nwant %s", text, want)
	}
	h.expect("app 1 pod tmpfs by web/")

	// Once the victim's cgroup is gone, its files cannot be told from theirs.
	h.events(podDir, 2, 2, 2, 0)
	h.remove(appDir)
	h.look(r, noon.Add(time.Minute))
	h.expect("app 1 pod tmpfs by web/app")
}

// A container is killed while the daemon is away. One that has no cgroup at the start may have been created after the kill.
func TestAContainerOfAfterAKillIsNotItsVictim(t *testing.T) {
	h := newHost(t)
	pod := *h.view.Pods[0]
	pod.Containers = slices.Clone(pod.Containers)
	pod.Containers[0].Unanswered = true
	h.view = &ledger.View{Conditions: h.view.Conditions, Pods: []*ledger.PodView{&pod}}
	h.remove(appDir)
	h.events(podDir, 0, 1, 1, 0)
	h.sync(h.recorder(), noon)
	if len(h.verdicts) != 1 || h.verdicts[0].Container != "" || h.verdicts[0].ID != "" {
		t.Errorf("%+v", h.verdicts)
	}
}

// TestVerdictsNameTheOrder: the kernel chooses by oom_score_adj among containers, not among the processes of one. The kubelet's order alone is
// not named.
func TestVerdictsNameTheOrder(t *testing.T) {
	const gib = 1 << 30
	kubelets := int64(968)
	annotated, mapped := &ledger.OOMScore{Value: 1000, From: "annotation", Kubelet: &kubelets}, &ledger.OOMScore{Value: -997, From: "PriorityClass db"}
	for name, test := range map[string]struct {
		victim, spared *ledger.OOMScore
		hits           int // of the victim's own limit
		says           string
		podSays        string // to those who see the victim's namespace alone
	}{
		"the kubelet's":    {says: "", podSays: ""},
		"the victim's":     {victim: annotated, says: "(oom_score_adj 968 by the kubelet); chosen by its oom_score_adj 1000 by annotation", podSays: "chosen by its oom_score_adj 1000 by annotation"},
		"who used most":    {spared: mapped, says: "(oom_score_adj -997 by PriorityClass db); chosen by its oom_score_adj 968 by the kubelet", podSays: "chosen by its oom_score_adj 968 by the kubelet"},
		"both":             {victim: annotated, spared: mapped, says: "(oom_score_adj -997 by PriorityClass db); chosen by its oom_score_adj 1000 by annotation", podSays: "chosen by its oom_score_adj 1000"},
		"at its own limit": {victim: annotated, spared: mapped, hits: 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			pod := *h.view.Pods[0]
			pod.Containers = slices.Clone(pod.Containers)
			pod.Containers[0].OOMScore, pod.Containers[0].KubeletScore = test.victim, &kubelets
			h.view = &ledger.View{Conditions: h.view.Conditions, Pods: []*ledger.PodView{&pod}}
			h.addPod(&ledger.PodView{Namespace: "mob", Name: "hog", UID: "u3", Cgroup: "kubepods/burstable/podu3",
				Containers: []ledger.ContainerView{{Name: "hog", ID: "id-hog", Cgroup: "kubepods/burstable/podu3/hog", OOMScore: test.spared, KubeletScore: &kubelets}}},
				Held{Processes: 4 * gib})
			r := h.recorder()
			h.sync(r, noon)
			h.events(appDir, test.hits, test.hits, 1, 0)
			h.events(podDir, 0, test.hits, 1, 0)
			h.look(r, noon.Add(time.Second))
			if len(h.verdicts) != 1 {
				t.Fatalf("%+v", h.verdicts)
			}
			v := h.verdicts[0]
			var lines strings.Builder
			if err := Write(&lines, h.verdicts); err != nil {
				t.Fatal(err)
			}
			if chosen := strings.Contains(lines.String(), "  chosen by:"); chosen != (test.says != "") {
				t.Errorf("want a line about the order: %t\n%s", !chosen, &lines)
			}
			if text := v.Text(); !strings.Contains(text, test.says) || strings.Contains(text, "oom_score_adj") != (test.says != "") {
				t.Errorf("%s\nwant %q", text, test.says)
			}
			if text := v.PodText(); !strings.Contains(text, test.podSays) || strings.Count(text, "oom_score_adj") != min(1, len(test.podSays)) {
				t.Errorf("%s\nwant %q", text, test.podSays)
			}
		})
	}
}

package verify

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

const mi = 1 << 20

func bytes(n uint64) *uint64 { return &n }

// sound is a node with two pods on which nothing is wrong.
func sound() Node {
	return Node{
		Document: status.Document{
			Time:       time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC),
			Runtime:    &status.Runtime{Name: "containerd", Version: "v2.4.2", NRI: "0.12.3"},
			Policy:     status.Policy{StallGuard: true},
			Conditions: []ledger.Condition{{Name: "connected", OK: true}, {Name: "checkpoint", OK: true}},
			Ancestors:  []status.Ancestor{{Cgroup: "kubepods", Level: "kubepods"}},
			Nodes: []status.Node{
				{NodeState: memorymanager.NodeState{ID: 0, Cells: nodeset.Of(0), Memory: []memorymanager.TypeTable{
					{Type: "hugepages-2Mi", Table: memorymanager.Table{Total: 8 * mi, Reserved: 2 * mi, Free: 6 * mi}}, {Type: "memory", Table: memorymanager.Table{Total: 4096 * mi}}}}},
				{NodeState: memorymanager.NodeState{ID: 1, Cells: nodeset.Of(1), Memory: []memorymanager.TypeTable{{Type: "memory", Table: memorymanager.Table{Total: 4096 * mi}}}}},
			},
			Pods: []status.Pod{
				pod(ledger.PodView{Name: "database", Class: "Guaranteed", Cgroup: "kubepods/pod1"},
					status.Container{State: status.Running, CpusetMems: "0", ContainerView: ledger.ContainerView{
						Name: "postgres", Cgroup: "kubepods/pod1/a", Values: memoryqos.Values{Min: bytes(256 * mi)}, Limit: 256 * mi}}),
				pod(ledger.PodView{Name: "web", Class: "Burstable", Cgroup: "kubepods/burstable/pod2"},
					runs(ledger.ContainerView{Name: "nginx", Cgroup: "kubepods/burstable/pod2/b",
						Values: memoryqos.Values{Low: bytes(64 * mi), High: bytes(120 * mi)}, Estimate: pods.Estimate{Source: "kubelet"}}),
					status.Container{State: status.Stopped, ContainerView: ledger.ContainerView{Name: "ended", Values: memoryqos.Values{Low: bytes(512 * mi)}}}),
			},
		},
		Cgroups: map[string]Cgroup{
			"kubepods":                      {Min: 320 * mi, Low: 64 * mi, High: cgroup.Max},
			"kubepods/burstable":            {Low: 64 * mi, High: cgroup.Max},
			"kubepods/besteffort":           {High: cgroup.Max},
			"kubepods/pod1":                 {Min: 256 * mi, High: cgroup.Max},
			"kubepods/pod1/pause":           {High: cgroup.Max},
			"kubepods/pod1/a":               {Min: 256 * mi, High: cgroup.Max, Mems: "0", Pages: pages(map[int]uint64{0: 200 * mi, 1: 4096}, map[int]uint64{0: 20 * mi}, nil)},
			"kubepods/burstable/pod2":       {Low: 64 * mi, High: cgroup.Max},
			"kubepods/burstable/pod2/pause": {High: cgroup.Max},
			"kubepods/burstable/pod2/b":     {Low: 64 * mi, High: 120 * mi},
		},
		Pools:   []sysfs.Pool{{Node: 0, PageSize: 2 * mi, Count: 4, Free: 3}},
		Kubelet: &Kubelet{File: "/var/lib/kubelet/config.yaml", MemoryManagerPolicy: "None", FeatureGates: map[string]bool{"MemoryQoS": false}},
		Kernel:  &Kernel{Release: "6.12.41", Pressure: true, Reclaim: true, RecursiveProtection: true},
	}
}

// pod is one of the namespace default.
func pod(view ledger.PodView, containers ...status.Container) status.Pod {
	view.Namespace = "default"
	return status.Pod{PodView: view, Containers: containers}
}

// app is a pod with one container.
func app(name, state string, view ledger.ContainerView) status.Pod {
	view.Name = "app"
	return pod(ledger.PodView{Name: name}, status.Container{State: state, ContainerView: view})
}

func runs(view ledger.ContainerView) status.Container {
	return status.Container{State: status.Running, ContainerView: view}
}

func memory(bytes uint64) memorymanager.Request {
	return memorymanager.Request{{Type: "memory", Bytes: bytes}}
}

func pages(anon, file, shmem map[int]uint64) map[string]map[int]uint64 {
	return map[string]map[int]uint64{"anon": anon, "file": file, "shmem": shmem}
}

func (n Node) set(cgroup string, change func(*Cgroup)) {
	c := n.Cgroups[cgroup]
	change(&c)
	n.Cgroups[cgroup] = c
}

func TestFindings(t *testing.T) {
	database := func(n *Node) *status.Container { return &n.Document.Pods[0].Containers[0] }
	web := func(n *Node) *status.Container { return &n.Document.Pods[1].Containers[0] }
	for name, change := range map[string]func(*Node){
		"nothing":              func(*Node) {},
		"kubepods-low-is-0":    func(n *Node) { n.set("kubepods", func(c *Cgroup) { c.Low = 0 }) },
		"pod-holds-half":       func(n *Node) { n.set("kubepods/pod1", func(c *Cgroup) { c.Min = 128 * mi }) },
		"siblings-claim-more":  func(n *Node) { n.Cgroups["kubepods/podX"] = Cgroup{Min: 192 * mi} },
		"container-itself":     func(n *Node) { n.set("kubepods/pod1/a", func(c *Cgroup) { c.Min = 0 }) },
		"crun-inner-without":   func(n *Node) { n.Cgroups["kubepods/pod1/a/container"] = Cgroup{}; n.Kernel.RecursiveProtection = false },
		"crun-inner-recursive": func(n *Node) { n.Cgroups["kubepods/pod1/a/container"] = Cgroup{} },
		"placement-off":        func(n *Node) { n.Document.Policy.MemoryManager = "None" },
		"dry-run":              func(n *Node) { n.Document.Policy.DryRun = true; n.set("kubepods", func(c *Cgroup) { c.Low = 0 }) },
		"above-kubepods":       above,
		"two-containers-and-a-cgroup-beside-their-pod": func(n *Node) {
			twin(n)
			n.Cgroups["kubepods/burstable/other"] = Cgroup{Low: 32 * mi, High: cgroup.Max}
		},
		"two-containers-one-hit": func(n *Node) { twin(n); n.set("kubepods/burstable", func(c *Cgroup) { c.Low = 1 * mi }) },
		"private-pages-elsewhere": func(n *Node) {
			n.set("kubepods/pod1/a", func(c *Cgroup) { c.Pages = pages(map[int]uint64{0: 100 * mi, 1: 50 * mi}, nil, nil) })
		},
		"confined": func(n *Node) {
			web(n).Confined, web(n).CpusetMems = nodeset.Of(0), "0"
			n.set("kubepods/burstable/pod2/b", func(c *Cgroup) {
				c.Mems, c.Pages = "0-1", pages(map[int]uint64{0: 30 * mi, 1: 50 * mi}, nil, nil)
			})
		},
		"confined-and-not-written": func(n *Node) { web(n).Confined, web(n).CpusetMems = nodeset.Of(0), "0" },
		"shared-and-files-elsewhere": func(n *Node) {
			n.set("kubepods/pod1/a", func(c *Cgroup) {
				c.Pages = pages(map[int]uint64{0: 100 * mi}, map[int]uint64{1: 50 * mi}, map[int]uint64{1: 30 * mi})
			})
		},
		"rejected": func(n *Node) {
			n.Document.Pods = append(n.Document.Pods, app("large", status.Rejected, ledger.ContainerView{Limit: 512 * mi}))
			large := &n.Document.Pods[len(n.Document.Pods)-1]
			why := ledger.Rejection{UID: large.UID, Container: "app", Text: "policy restricted, scope container: no set of NUMA nodes has room:\nnode 0: 2Gi of 10Gi free, 3Gi needed"}
			n.Document.Rejections = []ledger.Rejection{{UID: large.UID, Container: "sidecar", Text: "another"}, why, {UID: large.UID, Container: "app", Text: "an older one"}}
		},
		"unanswered": func(n *Node) { database(n).Unanswered = true },
		"oom-score-adj": func(n *Node) {
			database(n).NoOOMScore = "no pod API had reported its pod's PriorityClass when it was created"
		},
		"unpinned": func(n *Node) {
			database(n).CpusetMems, database(n).Unplaced = "", "policy restricted, scope container: no set of NUMA nodes has room:\nnode 0: 2Gi of 10Gi free, 3Gi needed\nnode 1: 1Gi of 10Gi free, 3Gi needed"
			n.set("kubepods/pod1/a", func(c *Cgroup) { c.Mems = "" })
			n.Document.Pods = append(n.Document.Pods, app("ended", status.Stopped, ledger.ContainerView{Cgroup: "kubepods/pod1/a"}))
		},
		"pending-resize": func(n *Node) {
			c := database(n)
			c.CpusetMems, c.PendingResize = "0-1", memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 2 * mi}, {Type: "memory", Bytes: 64 * mi}}
			c.Blocks = []memorymanager.Block{{Nodes: nodeset.Of(0), Type: "memory", Size: 192 * mi}}
			n.set("kubepods/pod1/a", func(c *Cgroup) { c.Mems = "0-1" })
		},
		"memory-farther": func(n *Node) {
			database(n).Farther = "node 2 has no memory: nearest is node 1, and its memory is on node 0"
		},
		"above-claim": func(n *Node) {
			database(n).Claims, database(n).Claimed, database(n).Limit = []string{"default/a"}, memory(128*mi), 256*mi
			web(n).Claims, web(n).Claimed, web(n).Limit = []string{"default/b"}, memory(1024*mi), 0
			n.Document.Pods = append(n.Document.Pods,
				app("shared", status.Running, ledger.ContainerView{Limit: 1 << 40, Claims: []string{"default/c"}}),
				app("within", status.Running, ledger.ContainerView{Limit: mi, Claims: []string{"default/d"}, Claimed: memory(mi)}))
		},
		"node-allocatable": func(n *Node) {
			n.Document.Claims = &status.Claims{Unmapped: "the API server drops nodeAllocatableResources"}
		},
		"claims-above-node": func(n *Node) {
			n.Document.Claims = &status.Claims{Claimable: []claims.Capacity{
				{Node: 0, Type: "memory", Capacity: 1024 * mi, Claimed: 1024 * mi}, {Node: 1, Type: "hugepages-2Mi", Capacity: 0, Claimed: 64 * mi},
				{Node: 1, Type: "memory", Capacity: 1024 * mi, Claimed: 1536 * mi},
			}}
		},
		"cpus-on-several-nodes": func(n *Node) {
			n.Document.Policy.TopologyManager = "restricted"
			for i := range n.Document.Nodes {
				memory := n.Document.Nodes[i].Memory
				memory[len(memory)-1].Allocatable = 4096 * mi
			}
			database(n).CPUs, database(n).Nodes = map[int]int{0: 2, 1: 2}, nodeset.Of(0)
			web(n).CPUs = map[int]int{0: 2, 1: 2} // is not pinned
			n.Document.Pods = append(n.Document.Pods,
				app("rejected", status.Rejected, ledger.ContainerView{Limit: mi, CPUs: map[int]int{0: 1, 1: 3}}),
				app("confined", status.Running, ledger.ContainerView{Limit: mi, Confined: nodeset.Of(0, 1), CPUs: map[int]int{0: 1, 1: 3}}),
				app("wide", status.Running, ledger.ContainerView{Limit: 6000 * mi, CPUs: map[int]int{0: 1, 1: 3}}),
				app("ended", status.Stopped, ledger.ContainerView{CPUs: map[int]int{0: 1, 1: 3}}),
				app("aligned", status.Running, ledger.ContainerView{Limit: mi, CPUs: map[int]int{1: 3}}))
		},
		"cpus-under-best-effort": func(n *Node) {
			n.Document.Policy.TopologyManager = "best-effort"
			database(n).CPUs = map[int]int{0: 2, 1: 2}
		},
		"not-moved": func(n *Node) { blocked(n, status.Blocked) },
		"moving":    func(n *Node) { blocked(n, status.Moving) },
		"moved": func(n *Node) {
			blocked(n, status.Moved)
			n.set("kubepods/pod1/a", func(c *Cgroup) { c.Mems, c.Pages = "0", nil })
		},
		"would-move": func(n *Node) {
			blocked(n, status.Planned)
			n.Document.Policy.DryRun = true
			n.Document.Pods[0].Containers[0].Migration.At = time.Time{}
		},
		"would-move-little": func(n *Node) {
			blocked(n, status.Planned)
			n.Document.Policy.DryRun = true
			n.Document.Pods[0].Containers[0].Migration.Bytes = 4 * mi
		},
		"cpuset-changed": func(n *Node) { n.set("kubepods/pod1/a", func(c *Cgroup) { c.Mems = "0-1" }) },
		"cpuset-gone":    func(n *Node) { n.set("kubepods/pod1/a", func(c *Cgroup) { c.Mems = "" }) },
		"oom-group-changed": func(n *Node) {
			database(n).OOMGroup, web(n).OOMGroup = bytes(1), bytes(0)
			n.set("kubepods/burstable/pod2/b", func(c *Cgroup) { c.OOMGroup = 1 })
		},
		"memory-high-gone": func(n *Node) { n.set("kubepods/burstable/pod2/b", func(c *Cgroup) { c.High = cgroup.Max }) },
		"rounded-by-the-kernel": func(n *Node) {
			web(n).Raised = 126*mi + 100
			n.set("kubepods/burstable/pod2/b", func(c *Cgroup) { c.High = 126 * mi })
		},
		"memory-high-a-page-lower": func(n *Node) {
			n.set("kubepods/burstable/pod2/b", func(c *Cgroup) { c.High -= 4096 })
		},
		"protection-rounded-by-the-kernel": func(n *Node) {
			database(n).Min = bytes(10000001)
			for _, level := range []string{"kubepods", "kubepods/pod1", "kubepods/pod1/a"} {
				n.set(level, func(c *Cgroup) { c.Min = 9998336 })
			}
		},
		"protection-a-page-short": func(n *Node) { n.set("kubepods/pod1", func(c *Cgroup) { c.Min -= 4096 }) },
		"raised": func(n *Node) {
			web(n).Raised = 126 * mi
			n.set("kubepods/burstable/pod2/b", func(c *Cgroup) { c.High = 126 * mi })
		},
		"page-cache-risk": func(n *Node) {
			database(n).OOMRisk = &oom.Risk{Unwritten: 20 * mi, Known: true}
			web(n).Limit, web(n).OOMRisk = 128*mi, &oom.Risk{Unwritten: 9 * mi}
		},
		"stopped":            func(n *Node) { web(n).Stopped = true },
		"hugepages-taken":    func(n *Node) { n.Pools[0].Free = 1 },
		"hugepages-resized":  func(n *Node) { n.Pools[0].Count, n.Pools[0].Free = 6, 5 },
		"hugepages-in-group": grouped,
		"overwrites": func(n *Node) {
			n.Document.Overwrites = []status.Overwrite{{Level: "burstable", File: "memory.low", Count: 1}, {Level: "container", File: "cpuset.mems", Count: 2},
				{Level: "kubepods", File: "memory.min", Count: 17}}
		},
		"kubelet-static-alone": func(n *Node) {
			n.Kubelet.MemoryManagerPolicy, n.Document.Policy.MemoryManager = "Static", "None"
		},
		"kubelet-static":                          func(n *Node) { n.Kubelet.MemoryManagerPolicy = "Static" },
		"kubelet-memory-qos":                      func(n *Node) { n.Kubelet.FeatureGates["MemoryQoS"] = true },
		"kubelet-gate-unnamed":                    func(n *Node) { n.Kubelet.FeatureGates = nil },
		"kubelet-factor":                          func(n *Node) { n.Kubelet.FeatureGates = nil; n.Kubelet.MemoryThrottlingFactor = new(float64) },
		"kernel-old":                              func(n *Node) { n.Kernel = &Kernel{Release: "5.15.0-160-generic"} },
		"kernel-numa-balancing":                   func(n *Node) { n.Kernel.NUMABalancing = true },
		"kernel-numa-balancing-without-placement": func(n *Node) { n.Kernel.NUMABalancing, n.Document.Policy.MemoryManager = true, "None" },
		"kernel-local-events":                     func(n *Node) { n.Kernel.LocalEvents = true },
		"kernel-full-broken": func(n *Node) {
			n.Kernel.Release, database(n).FullBroken, web(n).FullBroken = "6.12.9", true, true
		},
		"runtime-1.7-preinstalled": func(n *Node) {
			n.Document.Runtime = &status.Runtime{Name: "containerd", Version: "v1.7.20", NRI: "0.6.1", PreInstalled: true}
		},
		"runtime-crio-1.35": func(n *Node) { n.Document.Runtime = &status.Runtime{Name: "cri-o", Version: "1.35.2", NRI: "0.11.0"} },
		"runtime-unknown":   func(n *Node) { n.Document.Runtime = &status.Runtime{Name: "other", Version: "1"} },
		"no-runtime": func(n *Node) {
			n.Document.Runtime = nil
			n.Document.Conditions[0] = ledger.Condition{Name: "connected", Message: "no runtime has connected yet"}
		},
		"sources-none": func(n *Node) {
			web(n).Estimate = pods.Estimate{Source: "oomscore", Error: 33 * mi}
			n.Document.RequestSources = []status.Source{
				{Source: "kubelet", Problem: "stat /var/lib/kubelet/pods-api/pods-api.sock: no such file or directory"}, {Source: "apiserver", Problem: "pods is forbidden"}}
		},
		"sources-other": func(n *Node) {
			n.Document.RequestSources = []status.Source{
				{Source: "kubelet", Problem: "stat /var/lib/kubelet/pods-api/pods-api.sock: no such file or directory"}, {Source: "apiserver", Connected: true}}
		},
		"device-source": func(n *Node) {
			n.Document.DeviceSources = []status.Source{{Source: "resourceslice", Problem: "resourceslices.resource.k8s.io is forbidden"}}
		},
		"estimates": func(n *Node) { web(n).Estimate = pods.Estimate{Source: "oomscore", Error: 33 * mi} },
		"annotation": func(n *Node) {
			n.Document.Pods[1].Problems = []string{`metadata.annotations[reservation.memory-manager.noderesource.dev/pod]: Unsupported value: "max"`}
		},
		"quarantined": func(n *Node) {
			n.SetAside = []string{"/var/lib/nri-memory-manager/memory_manager_state.corrupt-20260504T120000Z"}
		},
		"not-read":   func(n *Node) { n.Kubelet = nil; n.Skipped = []string{"the kubelet's settings: no such file"} },
		"no-promise": func(n *Node) { database(n).Min = nil; n.set("kubepods/pod1/a", func(c *Cgroup) { c.Min = 0 }) },
	} {
		t.Run(name, func(t *testing.T) {
			n := sound()
			change(&n)
			var text strings.Builder
			if err := Run(n).WriteText(&text); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", text.String())
		})
	}
}

// blocked has the database on the wrong node, with a cpuset.mems that is written, or not.
func blocked(n *Node, state string) {
	n.Document.Pods[0].Containers[0].Migration = &status.Migration{State: state, At: n.Document.Time, Allowed: "64Mi",
		Migration: cgroup.Migration{Bytes: 200 * mi, From: nodeset.Of(1), To: nodeset.Of(0)}}
	n.set("kubepods/pod1/a", func(c *Cgroup) {
		c.Mems, c.Pages = "0-1", pages(map[int]uint64{1: 200 * mi}, nil, nil)
	})
}

// above puts the pods below a slice of the administrator's that protects nothing.
func above(n *Node) {
	moved := map[string]Cgroup{"pods": {High: cgroup.Max}}
	for name, c := range n.Cgroups {
		moved["pods/"+name] = c
	}
	n.Cgroups = moved
	n.Document.Ancestors[0].Cgroup = "pods/kubepods"
	for i := range n.Document.Pods {
		for j := range n.Document.Pods[i].Containers {
			if c := &n.Document.Pods[i].Containers[j]; c.Cgroup != "" {
				c.Cgroup = path.Join("pods", c.Cgroup)
			}
		}
	}
}

// twin adds a smaller container to the pod web.
func twin(n *Node) {
	n.Document.Pods[1].Containers = append(n.Document.Pods[1].Containers,
		runs(ledger.ContainerView{Name: "sidecar", Cgroup: "kubepods/burstable/pod2/c", Values: memoryqos.Values{Low: bytes(16 * mi)}}))
	n.Cgroups["kubepods/burstable/pod2/c"] = Cgroup{Low: 16 * mi}
	for _, level := range []string{"kubepods", "kubepods/burstable", "kubepods/burstable/pod2"} {
		n.set(level, func(c *Cgroup) { c.Low = 80 * mi })
	}
}

// grouped has the two nodes in one group, whose pages the kernel took from the other node than the node map say.
func grouped(n *Node) {
	for i := range n.Document.Nodes {
		n.Document.Nodes[i].Cells = nodeset.Of(0, 1)
	}
	n.Document.Nodes[1].Memory = append(n.Document.Nodes[1].Memory, memorymanager.TypeTable{Type: "hugepages-2Mi", Table: memorymanager.Table{Total: 8 * mi, Free: 8 * mi}})
	n.Pools = []sysfs.Pool{{Node: 0, PageSize: 2 * mi, Count: 4, Free: 4}, {Node: 1, PageSize: 2 * mi, Count: 4, Free: 3}}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(string(want), got); difference != "" {
		t.Errorf("%s (-) and the report (+) differ; UPDATE_GOLDEN=1 rewrites it:\n%s", file, difference)
	}
}

// An audit of one pod leaves out what is wrong with others, and has the node's own findings.
func TestFindingsOfOnePod(t *testing.T) {
	n := sound()
	n.Document.Pods[0].UID, n.Document.Pods[1].UID = "uid-1", "uid-2"
	for i := range n.Document.Pods {
		pod := &n.Document.Pods[i]
		pod.Problems = []string{"numa: maybe"}
		pod.Containers[0].Unplaced = "no room"
		pod.Containers[0].PendingResize = memory(mi)
		pod.Containers[0].Raised = 900 * mi
		pod.Containers[0].Error = mi
		delete(n.Cgroups, pod.Cgroup)
		n.Cgroups[pod.Cgroup] = Cgroup{High: cgroup.Max} // cancels the protection below
	}
	n.Document.Conditions[0].OK = false
	objects := func(pod string) []string {
		one, err := n.Of(pod)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, f := range Run(one).Findings {
			all = append(all, f.ID+" "+f.Object)
		}
		return all
	}
	want := []string{"not-ready connected", "protection kubepods/burstable/pod2", "memory-high default/web/nginx", "unpinned default/web/nginx",
		"pending-resize default/web/nginx", "raised default/web/nginx", "annotation default/web", "estimate default/web/nginx"}
	for _, pod := range []string{"default/web", "web", "uid-2"} {
		if difference := cmp.Diff(want, objects(pod)); difference != "" {
			t.Errorf("%s: %s", pod, difference)
		}
	}
	if _, err := n.Of("default/other"); err == nil || err.Error() != `no pod "default/other" on this node` {
		t.Errorf("error %v", err)
	}
}

// All pods of a name are audited, as status and explain show them.
func TestPodsOfOneName(t *testing.T) {
	n := sound()
	for i, pod := range n.Document.Pods {
		n.Document.Pods[i].UID, n.Document.Pods[i].Name, n.Document.Pods[i].Namespace = fmt.Sprint("uid-", i), "web", fmt.Sprint("team-", i)
		n.Document.Pods[i].Problems = []string{"bad annotation of " + pod.Name}
	}
	for pod, want := range map[string]string{"web": "team-0/web team-1/web", "team-1/web": "team-1/web", "uid-0": "team-0/web"} {
		one, err := n.Of(pod)
		if err != nil {
			t.Fatal(err)
		}
		var objects []string
		for _, f := range Run(one).Findings {
			if f.ID == "annotation" {
				objects = append(objects, f.Object)
			}
		}
		if got := strings.Join(objects, " "); got != want {
			t.Errorf("%s: found %s, want %s", pod, got, want)
		}
	}
}

// A cgroup of a pod that is not audited still holds containers of the daemon.
func TestTheOtherPodsCountAsTheDaemons(t *testing.T) {
	n := sound()
	n.Document.Pods[0].UID, n.Document.Pods[1].UID = "uid-1", "uid-2"
	n.Cgroups["kubepods"] = Cgroup{Min: 300 * mi, Low: 64 * mi, High: cgroup.Max}
	all, err := n.Of("default/database")
	if err != nil {
		t.Fatal(err)
	}
	for i := range n.Document.Pods {
		n.Document.Pods[i].Containers[0].Min = bytes(256 * mi)
	}
	n.Cgroups["kubepods/burstable"], n.Cgroups["kubepods/burstable/pod2"] = Cgroup{Min: 256 * mi}, Cgroup{Min: 256 * mi}
	for _, f := range Run(all).Findings {
		if f.ID == "protection" && strings.Contains(f.What, "holds no container of the daemon's") {
			t.Errorf("%s: %s", f.Object, f.What)
		}
	}
}

func TestReportAsJSON(t *testing.T) {
	n := sound()
	n.set("kubepods", func(c *Cgroup) { c.Low = 0 })
	text, err := json.MarshalIndent(Run(n), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json", string(text)+"\n")
}

// The kernel gives the children of a cgroup together no more than it has itself, and none more than its own claim.
func TestEffectiveProtectionIsNeverMoreThanTheKernelGives(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	value := func(c Cgroup) uint64 { return c.Min }
	for range 2000 {
		n := Node{Cgroups: map[string]Cgroup{"kubepods": {Min: random.Uint64N(1000)}}}
		var leaves []string
		for pod := range 1 + random.IntN(4) {
			p := "kubepods/pod" + string(rune('a'+pod))
			n.Cgroups[p] = Cgroup{Min: random.Uint64N(600)}
			for c := range 1 + random.IntN(3) {
				leaf := p + "/" + string(rune('a'+c))
				n.Cgroups[leaf] = Cgroup{Min: random.Uint64N(400)}
				leaves = append(leaves, leaf)
			}
		}
		sums := map[string]uint64{}
		for _, leaf := range leaves {
			promised := n.Cgroups[leaf].Min
			e := n.effectively(leaf, promised, value)
			if e.bytes > promised || (e.at == "") != (e.bytes == promised) {
				t.Fatalf("%s: promised %d, effective %+v in %v", leaf, promised, e, n.Cgroups)
			}
			for _, level := range levels(leaf) {
				sums[level] += e.bytes
			}
		}
		for level, sum := range sums {
			if sum > n.Cgroups[level].Min {
				t.Fatalf("%s has %d, those below it %d, in %v", level, n.Cgroups[level].Min, sum, n.Cgroups)
			}
		}
	}
}

// Every code of a finding that the source has is shown in a report above, and explained to users.
func TestTroubleshootingNamesEveryFinding(t *testing.T) {
	reports := contents(t, "testdata/*.txt")
	codes := regexp.MustCompile(`r\.find\((?:Error|Warning|Note|severity), "([a-z-]+)"`).FindAllStringSubmatch(contents(t, "*.go"), -1)
	if len(codes) < 20 {
		t.Fatalf("only %d codes were found in the source", len(codes))
	}
	page := contents(t, "../../docs/troubleshooting.md")
	for _, code := range codes {
		if !strings.Contains(reports, "["+code[1]+"]") {
			t.Errorf("no report shows %s", code[1])
		}
		if !strings.Contains(page, "\n- `"+code[1]+"`: ") {
			t.Errorf("docs/troubleshooting.md does not explain %s", code[1])
		}
	}
}

func TestTroubleshootingNamesEveryReasonOfARejection(t *testing.T) {
	page := contents(t, "../../docs/troubleshooting.md")
	for _, reason := range memorymanager.Reasons() { // with the ledger's, which the program has
		if !strings.Contains(page, "\n- `"+reason+"`: ") {
			t.Errorf("docs/troubleshooting.md does not explain %s", reason)
		}
	}
}

// contents are the files' texts in one, without those of tests.
func contents(t *testing.T, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no files, %v", pattern, err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(file, "_test.go") {
			all.Write(text)
		}
	}
	return all.String()
}

// Under the profile NUMA the kubelet's own MemoryQoS is what writes these files.
func TestProfileNUMALeavesMemoryQoSToTheKubelet(t *testing.T) {
	for _, kubelet := range []Kubelet{{FeatureGates: map[string]bool{"MemoryQoS": true}}, {MemoryReservationPolicy: "TieredReservation"}, {}} {
		n := sound()
		n.Document.Policy.Profile, n.Kubelet = "NUMA", &kubelet
		if found := Run(n).Findings; len(found) > 0 {
			t.Errorf("%+v: %+v", kubelet, found)
		}
	}
}

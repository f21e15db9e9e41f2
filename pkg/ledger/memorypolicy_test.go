package ledger

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// annotated is a pod with annotations of the plugin: their names without the domain, each before its value.
func annotated(pod Pod, annotations ...string) Pod {
	all := map[string]string{}
	for i := 0; i < len(annotations); i += 2 {
		all[annotations[i]+".memory-manager.noderesource.dev"] = annotations[i+1]
	}
	pod.Annotated = &ReadAnnotations{Annotations: config.ReadAnnotations(all)}
	return pod
}

// TestTheMemoryPolicyOfAContainer has a Burstable container with a request of about 4Gi, unless a row says otherwise, on a machine with
// two NUMA nodes. Nothing is allocated there, unless a row has a neighbor.
func TestTheMemoryPolicyOfAContainer(t *testing.T) {
	const gi = claimGi
	free := func(unused, free0, free1 uint64) []deficit.NodeMemory { // node 0 has a deficit, node 1 has none
		return []deficit.NodeMemory{{ID: 0, Unused: unused, Free: free0}, {ID: 1, Free: free1}}
	}
	lacking, slack, none := free(4*gi, 2*gi, 12*gi), free(gi, 6*gi, 12*gi), free(4*gi, 2*gi, 0)
	preferred, anywhere := []string{"numa", "preferred"}, []string{"numa", "none"}
	interleaved := []string{"memory-policy", "interleave"}
	device := func(nodes ...int) []topologymanager.Device {
		return []topologymanager.Device{
			topologymanager.NewDevice("vendor.com/gpu", "gpu-1", "kubelet", nodeset.Of(nodes...)),
			topologymanager.NewDevice("vendor.com/fpga", "fpga-1", "kubelet", 0),
		}
	}
	const (
		slackPolicy, interleave = "unpinnedMemoryPolicy: PreferAvailable", "unpinnedMemoryPolicy: Interleave"
		weighted, restricted    = "unpinnedMemoryPolicy: WeightedInterleave", "topologyManagerPolicy: restricted"
		guaranteed, bestEffort  = "guaranteed", "besteffort/"
		near1                   = "MPOL_PREFERRED_MANY 1"
		byConfig, byPolicy      = " (unpinnedMemoryPolicy)", " (annotation memory-policy)"
		byNUMA, byDevice        = " (annotation numa)", " (device vendor.com/gpu gpu-1 on node 1)"
	)
	type row struct {
		machine     string // "" is twoNodes
		yaml        string
		class       string // "" is Burstable
		annotations []string
		devices     []topologymanager.Device
		nodes       []deficit.NodeMemory
		mems        string // the NUMA nodes that the pod may use; "" is both, "unread" none
		kubelet     string // the kubelet's cpuset.mems
		limit       uint64 // 0 is 4Gi
		neighbor    uint64 // a Guaranteed container that was placed on node 0
		ranWith     uint64 // the limit with which the container has run before, without a cpuset.mems of the kubelet's
		old         bool   // a runtime that applies no memory policies
		want        string // the policy and what it follows from, or "none: " and why
	}
	for name, r := range map[string]row{
		"nothing is configured": {nodes: lacking},

		"PreferAvailable, one node in lacking":          {yaml: slackPolicy, nodes: lacking, want: near1 + byConfig},
		"PreferAvailable, BestEffort":                   {yaml: slackPolicy, class: bestEffort, nodes: lacking, want: near1 + byConfig},
		"PreferAvailable, slack for the request":        {yaml: slackPolicy, nodes: free(gi, 4*gi, 12*gi), want: near1 + byConfig},
		"PreferAvailable, too little slack on any node": {yaml: slackPolicy, nodes: free(gi, gi, 2*gi), want: near1 + byConfig},
		"PreferAvailable, slack on all nodes":           {yaml: slackPolicy, nodes: slack, want: "none: PreferAvailable: every NUMA node has memory available beyond its allocations"},
		"PreferAvailable, slack on none":                {yaml: slackPolicy, nodes: none, want: "none: PreferAvailable: no NUMA node has memory available beyond its allocations"},
		"PreferAvailable, slack where the pod may not": {yaml: slackPolicy, nodes: lacking, mems: "0",
			want: "none: PreferAvailable: no NUMA node has memory available beyond its allocations"},
		"PreferAvailable, on all nodes that the pod may": {yaml: slackPolicy, nodes: lacking, mems: "1",
			want: "none: PreferAvailable: every NUMA node has memory available beyond its allocations"},
		"PreferAvailable, what is available is not known": {yaml: slackPolicy, want: "none: PreferAvailable: what the NUMA nodes have available is not known"},
		"PreferAvailable, without a Memory Manager": {yaml: slackPolicy + "\nmemoryManagerPolicy: None", nodes: lacking,
			want: "none: PreferAvailable: what the NUMA nodes have available is not known"},
		"PreferAvailable, allocated since is unused": {yaml: slackPolicy, nodes: free(0, 6*gi, 12*gi), neighbor: 7 * gi, want: near1 + byConfig},

		"Interleave, one node in lacking":            {yaml: interleave, nodes: lacking, want: "MPOL_INTERLEAVE 1" + byConfig},
		"Interleave, slack on all nodes":             {yaml: interleave, nodes: slack, want: "MPOL_INTERLEAVE 0-1" + byConfig},
		"Interleave, slack on none":                  {yaml: interleave, nodes: none, want: "MPOL_INTERLEAVE 0-1" + byConfig},
		"Interleave, slack where the pod may not":    {yaml: interleave, nodes: lacking, mems: "0", want: "MPOL_INTERLEAVE 0" + byConfig},
		"Interleave, what is available is not known": {yaml: interleave, want: "MPOL_INTERLEAVE 0-1" + byConfig},
		"Interleave, without a Memory Manager": {yaml: interleave + "\nmemoryManagerPolicy: None", nodes: lacking,
			want: "MPOL_INTERLEAVE 0-1" + byConfig},
		"Interleave, no node with memory": {yaml: interleave, mems: "5",
			want: "none: Interleave: the pod may use no NUMA node with memory"},
		"WeightedInterleave": {yaml: weighted, nodes: lacking, want: "MPOL_WEIGHTED_INTERLEAVE 1" + byConfig},
		"nodes that cannot be read": {yaml: interleave, mems: "unread",
			want: "none: Interleave: the nodes that the pod may use cannot be read"},
		"a runtime without memory policies":         {yaml: interleave, old: true, want: "none: Interleave: containerd v2.1.4 applies none"},
		"a runtime without, and nothing configured": {old: true},
		"a Guaranteed container with an allocation": {yaml: interleave, class: guaranteed, nodes: lacking},
		"a Guaranteed container without one": {yaml: interleave, class: guaranteed, annotations: anywhere, nodes: lacking,
			want: "MPOL_INTERLEAVE 1" + byConfig},
		"the kubelet has set nodes": {yaml: interleave, kubelet: "0", nodes: lacking},
		"a Guaranteed container that found no nodes": {yaml: interleave + "\nonUnsatisfiable: Unpinned", class: guaranteed, limit: 40 * gi,
			want: "MPOL_INTERLEAVE 0-1" + byConfig},

		"memory-policy none": {yaml: interleave, annotations: []string{"memory-policy", "none"}},
		"memory-policy prefer-available": {annotations: []string{"memory-policy", "prefer-available"}, nodes: lacking,
			want: near1 + byPolicy},
		"memory-policy interleave": {yaml: slackPolicy, annotations: []string{"memory-policy", "interleave"},
			want: "MPOL_INTERLEAVE 0-1" + byPolicy},
		"memory-policy weighted-interleave": {annotations: []string{"memory-policy", "weighted-interleave"},
			want: "MPOL_WEIGHTED_INTERLEAVE 0-1" + byPolicy},
		"memory-policy of another container": {annotations: []string{"side.memory-policy", "interleave"}},
		"memory-policy that is wrong": {yaml: interleave, annotations: []string{"memory-policy", "everywhere"},
			want: "MPOL_INTERLEAVE 0-1" + byConfig},
		"memory-policy that is not allowed": {yaml: "annotationRules: [{namespaces: ['*'], allowedAnnotations: [numa]}]", annotations: []string{"memory-policy", "interleave"}},
		"memory-policy before numa preferred": {annotations: []string{"memory-policy", "interleave", "numa", "preferred"}, nodes: lacking,
			want: "MPOL_INTERLEAVE 1" + byPolicy},
		"memory-policy before a device": {annotations: []string{"memory-policy", "interleave"}, devices: device(1),
			want: "MPOL_INTERLEAVE 0-1" + byPolicy},
		"memory-policy none before a device": {annotations: []string{"memory-policy", "none"}, devices: device(1)},
		"memory-policy with an allocation":   {class: guaranteed, annotations: []string{"memory-policy", "interleave"}},
		"memory-policy before what is expected": {yaml: interleave, annotations: []string{"memory-policy", "prefer-available"},
			want: "none: PreferAvailable: what the NUMA nodes have available is not known"},

		"numa preferred, the node with more available": {annotations: preferred, nodes: lacking, want: near1 + byNUMA},
		"numa preferred, the first of equal nodes":     {annotations: preferred, want: "MPOL_PREFERRED_MANY 0" + byNUMA},
		"numa preferred, the node with more room":      {annotations: preferred, neighbor: gi, want: near1 + byNUMA},
		"numa preferred, room in map and kernel": {annotations: preferred, nodes: free(0, 10*gi, 12*gi), neighbor: gi,
			want: near1 + byNUMA},
		"numa preferred, no room in the kernel": {annotations: preferred, nodes: none,
			want: "none: numa preferred: no NUMA node has room"},
		"numa preferred, a node that the pod may not": {annotations: preferred, nodes: lacking, mems: "0",
			want: "none: numa preferred: no NUMA node has room"},
		"numa preferred before the configuration": {yaml: interleave, annotations: preferred, nodes: lacking, want: near1 + byNUMA},
		"numa preferred, BestEffort":              {class: bestEffort, annotations: preferred, nodes: lacking},
		"numa preferred, Guaranteed":              {class: guaranteed, annotations: preferred, nodes: lacking},
		"numa preferred, without a Memory Manager": {yaml: "memoryManagerPolicy: None", annotations: preferred,
			want: "none: numa preferred: memoryManagerPolicy is None"},
		"numa preferred, a runtime without policies": {annotations: preferred, old: true,
			want: "none: numa preferred: containerd v2.1.4 applies none"},

		"numa spread, which was removed": {annotations: []string{"numa", "spread"}},

		"an allocation on several nodes": {yaml: restricted + "\n" + interleave, class: guaranteed, limit: 20 * gi},
		"memory-policy with an allocation on several nodes": {yaml: restricted, class: guaranteed, annotations: interleaved, nodes: lacking, limit: 20 * gi,
			want: "MPOL_INTERLEAVE 0-1" + byPolicy},
		"weights with an allocation on several nodes": {yaml: restricted, class: guaranteed, annotations: []string{"memory-policy", "weighted-interleave"}, limit: 20 * gi,
			want: "MPOL_WEIGHTED_INTERLEAVE 0-1" + byPolicy},
		"an allocation on several nodes, and the pod may use one": {yaml: restricted, class: guaranteed, annotations: interleaved, mems: "1", limit: 20 * gi,
			want: "MPOL_INTERLEAVE 1" + byPolicy},
		"an allocation on several nodes, and the pod may use none": {yaml: restricted, class: guaranteed, annotations: interleaved, mems: "5", limit: 20 * gi,
			want: "none: Interleave: the pod may use no NUMA node with memory"},
		"an allocation on several nodes, and nothing to spread": {yaml: restricted, class: guaranteed, annotations: []string{"memory-policy", "prefer-available"}, limit: 20 * gi},
		"several nodes of the kubelet's":                        {yaml: restricted, class: guaranteed, annotations: interleaved, kubelet: "0-1"},
		"several nodes of the kubelet's, where it was":          {yaml: restricted, class: guaranteed, annotations: interleaved, kubelet: "0-1", ranWith: 20 * gi, limit: 20 * gi},
		"all nodes, short of memory":                            {yaml: restricted, class: guaranteed, annotations: interleaved, ranWith: 4 * gi, limit: 40 * gi},
		"an allocation on several nodes, old runtime": {yaml: restricted, class: guaranteed, annotations: interleaved, old: true, limit: 20 * gi,
			want: "none: Interleave: containerd v2.1.4 applies none"},

		"a device":                            {devices: device(1), want: near1 + byDevice},
		"a device, BestEffort":                {class: bestEffort, devices: device(1), want: near1 + byDevice},
		"a device, Guaranteed":                {class: guaranteed, devices: device(1)},
		"a device, Guaranteed and not placed": {yaml: "onUnsatisfiable: Unpinned", class: guaranteed, limit: 40 * gi, devices: device(1)},
		"a device, onConflict Devices":        {yaml: "onConflict: Devices", devices: device(1), want: near1 + byDevice},
		"a device, onConflict Kubelet":        {yaml: "onConflict: Kubelet", devices: device(1)},
		"a device that numa preferred asks for": {yaml: "onConflict: Kubelet", annotations: preferred, devices: device(1),
			want: near1 + byDevice},
		"a device, numa none": {yaml: interleave, annotations: anywhere, devices: device(1),
			want: "MPOL_INTERLEAVE 0-1" + byConfig},
		"a device before the configuration": {yaml: interleave, devices: device(1), want: near1 + byDevice},
		"a device on no node":               {yaml: interleave, devices: device(), want: "MPOL_INTERLEAVE 0-1" + byConfig},
		"a device whose node has slack":     {devices: device(1), nodes: lacking, want: near1 + byDevice},
		"a device whose node is in lacking": {devices: device(0), nodes: lacking,
			want: "none: device: node 0 has no memory available beyond its allocations"},
		"and a configured policy": {yaml: interleave, devices: device(0), nodes: lacking, want: "MPOL_INTERLEAVE 1" + byConfig},
		"and a preferred node":    {annotations: preferred, devices: device(0), nodes: lacking, want: near1 + byNUMA},
		"neither can be set: the first is named": {yaml: slackPolicy, devices: device(0, 1), nodes: none,
			want: "none: device: its devices are near every NUMA node that the pod may use"},
		"a device near all nodes": {devices: device(0, 1), nodes: lacking,
			want: "none: device: its devices are near every NUMA node that the pod may use"},
		"a device on the only node of the pod": {devices: device(1), mems: "1",
			want: "none: device: its devices are near every NUMA node that the pod may use"},
		"a device where the pod may not be": {devices: device(1), mems: "0",
			want: "none: device: the pod may not use the memory of node 1"},
		"a device on a node without memory": {devices: device(7), mems: "0-1,7", want: "none: device: the pod may not use the memory of node 7"},
		"a device on a node in lacking and another": {machine: threeNodes, mems: "0-2", devices: device(0, 1), nodes: append(lacking, deficit.NodeMemory{ID: 2, Free: gi}),
			want: near1 + " (device vendor.com/gpu gpu-1 near any of nodes 0-1)"},
		"a device, without a Memory Manager":   {yaml: "memoryManagerPolicy: None", devices: device(1), want: near1 + byDevice},
		"a device, a runtime without policies": {devices: device(1), old: true, want: "none: device: containerd v2.1.4 applies none"},
		"two devices of one resource": {devices: append(device(1), topologymanager.NewDevice("vendor.com/gpu", "gpu-2", "kubelet", nodeset.Of(1))),
			want: near1 + " (device vendor.com/gpu gpu-1, gpu-2 on node 1)"},
		"confined": {machine: thirdWithoutCPUs, yaml: interleave + "\n" + confine, mems: "0-2", want: "MPOL_INTERLEAVE 0-1" + byConfig},
		"confined, and interleaved by annotation": {machine: thirdWithoutCPUs, yaml: confine, annotations: interleaved, mems: "0-2",
			want: "MPOL_INTERLEAVE 0-1" + byPolicy},
		"confined, and the pod may use less": {machine: thirdWithoutCPUs, yaml: interleave + "\n" + confine, mems: "1-2", want: "MPOL_INTERLEAVE 1" + byConfig},
		"confined to nodes that the pod may not use": {machine: thirdWithoutCPUs, yaml: interleave + "\n" + confine, mems: "2",
			want: "MPOL_INTERLEAVE 2" + byConfig},
		"confined, with a device on a node without CPUs": {machine: thirdWithoutCPUs, yaml: confine, mems: "0-2", devices: device(2),
			want: "MPOL_PREFERRED_MANY 2 (device vendor.com/gpu gpu-1 on node 2)"},
		"devices of two resources": {devices: append(device(1), topologymanager.NewDevice("vendor.com/nic", "nic-1", "kubelet", nodeset.Of(1))),
			want: near1 + " (device vendor.com/gpu gpu-1 on node 1, vendor.com/nic nic-1 on node 1)"},
	} {
		t.Run(name, func(t *testing.T) {
			l, now := newLedgerOn(t, cmp.Or(r.machine, twoNodes), r.yaml), time.Unix(1, 0)
			runtime := Runtime{Name: "containerd", Version: "v2.1.4", MemoryPolicies: !r.old}
			l.Step(now, Connected{Runtime: runtime})
			l.Step(now, NodeMemorySampled{Nodes: r.nodes})
			if r.neighbor > 0 {
				if got := l.Step(now, claimed(claimPod("neighbor", ""), "main", r.neighbor)).Answer.CpusetMems; got != "0" {
					t.Fatalf("the neighbor is on node %q", got)
				}
			}
			received := claimPod("web", strings.TrimPrefix(cmp.Or(r.class, "burstable/"), guaranteed))
			pod := annotated(received, r.annotations...)
			if r.ranWith > 0 {
				l.Step(now, claimed(pod, "main", r.ranWith))
				l.Step(now, EndContainer{ID: "web-main"})
			}
			create := claimed(pod, "main", cmp.Or(r.limit, 4*gi))
			score := int64(875) // an eighth of the machine's 32Gi
			create.Container.Resources.OOMScoreAdj = &score
			create.Container.Devices, create.Container.Resources.Mems = r.devices, r.kubelet
			create.Mems, _ = nodeset.Parse(cmp.Or(r.mems, "0-1"))
			reads := l.readsMems(create)
			effects := l.Step(now, create)
			create.Pod = received
			readsAgain := l.readsMems(create)
			if effects.Err != nil {
				t.Fatal(effects.Err)
			}
			view := l.View().Pods[len(l.living)-1].Containers[0]
			policy := view.MemoryPolicy
			got := policy
			switch {
			case view.NoPolicy != "":
				got = "none: " + view.NoPolicy
			case policy != "":
				got += " (" + view.PolicySource + ")"
			}
			if got != r.want {
				t.Errorf("the memory policy is %q, want %q", got, r.want)
			}
			if r.class != guaranteed && len(view.Blocks) > 0 {
				t.Errorf("it is allocated %+v", view.Blocks)
			}
			if answered := effects.Answer.MemoryPolicy.String(); answered != policy {
				t.Errorf("the runtime is answered with %q, shown is %q", answered, policy)
			}
			if logged, _ := effects.Decision.Fields()["memoryPolicy"].(string); logged != policy {
				t.Errorf("the log says %q, shown is %q", logged, policy)
			}
			if reads && r.old || policy != "" && !reads || readsAgain != reads {
				t.Errorf("that the pod's cgroup has to be read is %v", reads)
			}
		})
	}
}

// readsMems reports whether the cgroup of the pod has to be read for a container, once its devices are found.
func (l *Ledger) readsMems(create CreateContainer) bool {
	g := &Gathered{Facts: Facts{Devices: map[string][]topologymanager.Device{create.Container.Name: create.Container.Devices}}}
	g.Ask(l.Needs(create, g))
	return l.Needs(create, g).MemsOf != ""
}

package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

func conditions(n Node, r *Report) {
	do := map[string]string{
		"connected":    "see that the runtime runs and that NRI is enabled in it, and that --nri-socket is its socket",
		"synchronized": "see the daemon's log: the runtime lists its containers once the plugin is registered",
		"checkpoint":   "see that the state folder's file system is writable and not full: until then a decision may be lost by a restart",
		"config":       "the last good configuration is in force: correct the file and check it with nri-memory-manager config check",
		"rollback":     "nothing, while that is wanted",
	}
	for _, c := range n.Document.Conditions {
		if !c.OK {
			r.find(Error, "not-ready", c.Name, c.Message, do[c.Name])
		}
	}
}

// hugepages compares the kernel's free huge pages with the node map, over each group of nodes that is shared: the kernel
// takes a group's pages from whichever of its nodes it likes.
func hugepages(n Node, r *Report) {
	type key struct {
		nodes nodeset.Set
		size  uint64
	}
	type sums struct{ mapFree, free, count, total uint64 }
	all := map[key]sums{}
	for _, pool := range n.Pools {
		for _, node := range n.Document.Nodes {
			if node.ID != pool.Node {
				continue
			}
			for _, memory := range node.Memory {
				if memory.Type != memorymanager.Hugepages(pool.PageSize) {
					continue
				}
				k := key{node.Cells.Union(nodeset.Of(node.ID)), pool.PageSize}
				s := all[k]
				s.mapFree += memory.Free / pool.PageSize
				s.free, s.count, s.total = s.free+pool.Free, s.count+pool.Count, s.total+memory.Total/pool.PageSize
				all[k] = s
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(all), func(a, b key) int {
		return cmp.Or(strings.Compare(a.nodes.String(), b.nodes.String()), cmp.Compare(a.size, b.size))
	}) {
		s, object := all[k], fmt.Sprintf("%s, huge pages of %s", k.nodes.Named(), quantity.Format(k.size))
		if s.count != s.total {
			r.find(Warning, "hugepages-resized", object,
				fmt.Sprintf("there are %d pages, the node map was made with %d", s.count, s.total), "restart the kubelet, which reads its pools at its start; the daemon follows at its next periodic check, unless its configuration does not fit the pool, which the condition config says")
		}
		if s.free < s.mapFree {
			r.find(Warning, "hugepages-taken", object,
				fmt.Sprintf("%s free, %d in the node map: %d used by containers that are not pinned, or by others on the node", several(int(s.free), "page"), s.mapFree, s.mapFree-s.free),
				"a pinned container may find no page (SIGBUS): let only Guaranteed pods use huge pages, or reserve those of others (reservedMemory)")
		}
	}
}

// overwrites finds other writers of files with values of the daemon's.
func overwrites(n Node, r *Report) {
	for _, o := range n.Document.Overwrites {
		likely, restored := "a kubelet with the feature gate MemoryQoS", "restored each time"
		if o.Level == cgroup.LevelContainer {
			likely = "another NRI plugin, an agent on the node, or a change through the runtime's own API"
		}
		if o.File == string(cgroup.CpusetMems) {
			restored = "restored as far as maxMigrationBytes allows"
		}
		severity, what := Warning, fmt.Sprintf("changed externally %d times since the daemon started, and %s", o.Count, restored)
		if o.Count == 1 {
			severity, what = Note, "changed externally once since the daemon started, and "+strings.TrimSuffix(restored, " each time")
		}
		if o.Count > 0 {
			r.find(severity, "overwritten", o.Level+" "+o.File, what,
				"turn that off: most often "+likely+", or systemd's daemon-reload (moby#51446, systemd#40438), after which nothing has to be done; the daemon's log says who is likely; the count starts again with the daemon")
		}
	}
}

// kubelet finds settings that make the kubelet do the same work.
func kubelet(n Node, r *Report) {
	k := n.Kubelet
	if k == nil {
		return
	}
	if k.MemoryManagerPolicy == "Static" && n.Document.Policy.MemoryManager != "None" {
		r.find(Error, "kubelet-memory-manager", k.File, "memoryManagerPolicy is Static: the kubelet pins containers too, by a node map of its own",
			"set memoryManagerPolicy: None there, move its state with nri-memory-manager state import, and restart the kubelet")
	}
	if n.Document.Policy.Profile == string(config.ProfileNUMA) { // which writes none of these files
		return
	}
	gate, set := k.FeatureGates["MemoryQoS"]
	policy, often := cmp.Or(k.MemoryReservationPolicy, "None"), "about once a minute"
	if policy == "None" {
		often = "at its start, until 1.36 about once a minute"
	}
	switch {
	case gate:
		r.find(Error, "kubelet-memory-qos", k.File,
			fmt.Sprintf("the feature gate MemoryQoS is on, with memoryReservationPolicy %s: the kubelet writes memory.min and memory.low of the same cgroups %s", policy, often),
			"set featureGates.MemoryQoS: false there and restart the kubelet")
	case !set && (k.MemoryThrottlingFactor != nil || k.MemoryReservationPolicy != ""):
		r.find(Warning, "kubelet-memory-qos", k.File,
			"settings of MemoryQoS are there and its feature gate is not: a kubelet from 1.37 on has it on by default",
			"set featureGates.MemoryQoS: false there, or take memoryThrottlingFactor and memoryReservationPolicy out")
	case !set:
		r.find(Note, "kubelet-memory-qos", k.File,
			"the feature gate MemoryQoS is not named: a kubelet from 1.37 on has it on by default, and overwrites memory.min of kubepods at its start",
			"set featureGates.MemoryQoS: false there before the kubelet is updated to 1.37")
	}
}

func kernel(n Node, r *Report) {
	if n.Kernel == nil {
		return
	}
	object := "kernel " + n.Kernel.Release
	if !n.Kernel.Pressure && n.Document.Policy.StallGuard {
		r.find(Warning, "kernel-pressure", object,
			"cgroups have no memory.pressure: the stall guard sees stopped containers later, by their memory.events alone", "boot with psi=1, on a kernel with CONFIG_PSI, and see that cgroup.pressure is 1 in the pods' cgroups")
	}
	for _, c := range n.containers() {
		if c.FullBroken { // one says it for all
			r.find(Warning, "kernel-pressure-full", object,
				"full of memory.pressure does not advance in "+c.object()+" although it waits for memory: the stall guard sees such containers later, by their memory.events alone",
				"update to Linux 6.12.13, 6.13.2 or later (kernel commit 7d9da040575b)")
			break
		}
	}
	if n.Kernel.LocalEvents {
		r.find(Warning, "kernel-local-events", object,
			"cgroup2 is mounted with memory_localevents: a pod's memory.events counts nothing of its containers, so that OOM kills get no verdict and the stall guard sees less",
			"mount cgroup2 without memory_localevents")
	}
	if n.Kernel.NUMABalancing && n.Document.Policy.MemoryManager != "None" {
		r.find(Note, "kernel-numa-balancing", object, "kernel.numa_balancing is on: it unmaps pages to see who uses them, also of containers that are bound to their NUMA nodes and gain nothing",
			"set kernel.numa_balancing to 0 where most memory is of pinned containers, as the kernel's documentation says of bound workloads")
	}
	if !n.Kernel.Reclaim && n.Document.Policy.StallGuard {
		r.find(Note, "kernel-reclaim", object, "cgroups have no memory.reclaim: the stall guard raises memory.high without asking for page cache first",
			"update to Linux 5.19 or later")
	}
}

// runtime finds what this runtime is known to do wrong. The plugin works around most of it.
func runtime(n Node, r *Report) {
	shown := n.Document.Runtime
	if shown == nil {
		return
	}
	object := shown.String()
	nri, version := nriplugin.ParseVersion(shown.NRI), nriplugin.ParseVersion(shown.Version)
	if !nri.Known() {
		r.find(Note, "runtime-unknown", object, "the version of NRI inside is not known: the plugin does only what every version can", "use a released containerd or CRI-O")
		return
	}
	inside := "NRI " + nri.String() + ": "
	if shown.PreInstalled && !nri.AtLeast(0, 8, 0) {
		r.find(Warning, "runtime-not-synchronized", object,
			inside+"a plugin that the runtime starts itself does not receive the containers that run already", "run the plugin as a DaemonSet or a systemd unit, or update the runtime")
	}
	if !nri.AtLeast(0, 12, 1) {
		r.find(Note, "runtime-unasked-updates", object, inside+"an update that nobody asked for can lock up this runtime, so that values of running containers are written to their cgroup files, and the runtime's own records show older ones",
			"nothing has to be done; containerd 2.4 has it right")
	}
	if name := strings.ToLower(shown.Name); (name == "cri-o" || name == "crio") && version.Known() && !version.AtLeast(1, 36, 0) {
		r.find(Note, "runtime-drops-unified", object, "memory.high in the answer to a resize is dropped (cri-o#9816), so that the plugin writes the file after it", "nothing has to be done; CRI-O 1.36 has it right")
	}
}

// setAside finds state files that could not be used.
func setAside(n Node, r *Report) {
	for _, file := range n.SetAside {
		r.find(Warning, "state-quarantined", file,
			"a file in the state folder could not be used and was set aside: the plugin went on with what the running containers show",
			"see that the disk is sound, look at the file (a memory_manager_state with nri-memory-manager state verify), and remove it")
	}
}

package verify

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

// Pages elsewhere are worth a finding from this share and this size on: the kernel keeps some per-CPU counts that are
// written back late, and a few pages of the runtime's start are everywhere.
const (
	elsewhereShare = 0.02
	elsewhereBytes = 4 << 20
)

// off finds that nothing is changed, or nothing placed.
func off(n Node, r *Report) {
	if n.Document.Policy.DryRun && !n.Document.Policy.RolledBack { // which is a condition of readiness
		r.find(Warning, "dry-run", "configuration", "profile is Observe: the daemon decides and counts, and changes nothing",
			"set profile to Full when the decisions in the log are what you want")
	}
	if n.Document.Policy.MemoryManager == "None" {
		r.find(Note, "placement-off", "configuration", "memoryManagerPolicy is None, by profile QoS or the key itself: no container is placed on NUMA nodes",
			"nothing, if only memory protection and throttling are wanted; else set profile Full or NUMA, and no memoryManagerPolicy")
	}
}

// files compares a container's cgroup files with the values that the daemon has set.
func files(n Node, c place, r *Report) {
	if n.Document.Policy.DryRun {
		return
	}
	const do = "another plugin or agent has written it after the container's start: the daemon puts its value back within seconds; if this stays, find who writes it (another NRI plugin, another agent on the node, or systemd at a daemon-reload: moby#51446, systemd#40438) and turn it off"
	real, why := n.Cgroups[c.Cgroup], "the container's memory is allocated on "+c.CpusetMems
	if !c.Confined.Empty() {
		why = "the container is confined to " + c.Confined.Named()
	}
	switch {
	case c.CpusetMems == "", c.Migration.Pending(): // see migrations
	case real.Mems == "":
		r.find(Error, "cpuset", c.object(),
			"cpuset.mems is empty, so that the container may use every node, and "+strings.Replace(why, "the container's", "its", 1), do)
	case !sameNodes(real.Mems, c.CpusetMems):
		r.find(Error, "cpuset", c.object(),
			fmt.Sprintf("cpuset.mems is %s, and %s", real.Mems, why), do)
	}
	want := c.High
	if c.Raised > 0 {
		want = &c.Raised
	}
	if want != nil && !memoryqos.Holds(real.High, *want, n.PageSize) {
		sizes := cgroup.Apart(real.High, *want)
		r.find(Warning, "memory-high", c.object(),
			fmt.Sprintf("memory.high is %s, want %s", sizes[0], sizes[1]), do)
	}
	if c.OOMGroup != nil && real.OOMGroup != *c.OOMGroup {
		r.find(Warning, "oom-group", c.object(),
			fmt.Sprintf("memory.oom.group is %d, and the pod's annotation oom-group wants %d", real.OOMGroup, *c.OOMGroup), do)
	}
}

func sameNodes(a, b string) bool {
	x, err := nodeset.Parse(a)
	y, err2 := nodeset.Parse(b)
	return err == nil && err2 == nil && x == y
}

// migrations finds memory of a running container that a write of its cpuset.mems has moved, moves, would move in a dry run, or is not
// allowed to move.
func migrations(n Node, c place, r *Report) {
	m := c.Migration
	switch {
	case m == nil || m.Bytes <= elsewhereBytes && m.State != status.Blocked:
	case m.State == status.Blocked && !n.Document.Policy.DryRun:
		r.find(Warning, "not-moved", c.object(), m.String(),
			"its memory moves to its nodes when the pod is restarted, or by itself once it is less; to have it moved while the container runs, set maxMigrationBytes to more: the container waits meanwhile")
	case m.State == status.Planned || m.State == status.Blocked:
		r.find(Note, "would-move", c.object(), m.String(),
			"nothing, if the container may be slower meanwhile; maxMigrationBytes bounds how much is moved")
	default:
		r.find(Note, "moved", c.object(), m.String(),
			"nothing: the container was slower meanwhile; maxMigrationBytes bounds how much is moved")
	}
}

// placement compares where a container's pages are with where they are allocated. Private pages elsewhere are slow for this
// container alone; files and shared memory can have been read for other processes.
func placement(n Node, c place, r *Report) {
	nodes, err := nodeset.Parse(c.CpusetMems)
	if err != nil || nodes.Empty() || c.Migration.Pending() {
		return
	}
	pages, held := n.Cgroups[c.Cgroup].Pages, "allocated on"
	if !c.Confined.Empty() {
		held = "confined to"
	}
	private, privateAt := elsewhere(pages["anon"], nodes)
	// The kernel counts shared memory among the files.
	shared, sharedAt := elsewhere(pages["shmem"], nodes)
	file, fileAt := elsewhere(pages["file"], nodes)
	all := total(pages["anon"]) + total(pages["file"])
	find := func(severity Severity, id, what string, bytes uint64, at nodeset.Set, do string) {
		if bytes > elsewhereBytes && float64(bytes) > elsewhereShare*float64(all) {
			r.find(severity, id, c.object(), fmt.Sprintf("%s of %s is on %s, the container is %s %s", quantity.Short(bytes), what, at.Named(), held, nodes.Named()), do)
		}
	}
	find(Warning, "pages-elsewhere", "private memory", private, privateAt,
		"it was allocated before the container was pinned, or its node was full: a restart of the pod moves it back; migratepages PID "+privateAt.String()+" "+nodes.String()+" moves it while it runs")
	find(Note, "shared-elsewhere", "shared memory", shared, sharedAt,
		"shared memory lies where it was first touched, which may have been another process: let this container touch it first")
	find(Note, "files-elsewhere", "file cache", file-min(file, shared), fileAt,
		"the files were read before the container was pinned; the cache moves as it is read again")
}

func elsewhere(pages map[int]uint64, nodes nodeset.Set) (bytes uint64, at nodeset.Set) {
	for id, n := range pages {
		if n > 0 && id < nodeset.Max && !nodes.Has(id) {
			bytes += n
			at = at.Union(nodeset.Of(id))
		}
	}
	return bytes, at
}

func total(pages map[int]uint64) (bytes uint64) {
	for _, n := range pages {
		bytes += n
	}
	return bytes
}

// raised finds a container whose memory.high the stall guard has raised, or that is stopped now.
func raised(n Node, c place, r *Report) {
	const do = "the container needs more memory than its request lets it have: raise its request, or allow its pod the annotation throttling-factor or memory-high"
	switch {
	case c.Stopped:
		r.find(Warning, "stopped", c.object(), "the container is stopped by its memory.high and is being given room", do)
	case c.Raised > 0 && c.High != nil:
		sizes := cgroup.Apart(*c.High, c.Raised)
		r.find(Warning, "raised", c.object(),
			fmt.Sprintf("the stall guard has raised memory.high from %s to %s", sizes[0], sizes[1]), do)
	}
}

// atRisk finds a container that may be killed for page cache.
func atRisk(n Node, c place, r *Report) {
	if c.OOMRisk == nil {
		return
	}
	severity, here := Note, "; of this node it is not known"
	if c.OOMRisk.Known {
		severity, here = Warning, ", and this node has both"
	}
	sizes := quantity.Apart(c.Limit, c.OOMRisk.Unwritten)
	r.find(severity, "page-cache-risk", c.object(), fmt.Sprintf("it was at its limit of %s with %s of page cache that the disk had not taken, and no memory.high has it "+
		"wait for the disk: kernel 6.12 was seen to kill such containers on XFS%s", sizes[0], sizes[1], here), oom.RoomForCache)
}

// requests finds estimated requests: one note for the node.
func requests(n Node, r *Report) {
	var names []string
	var largest uint64
	for _, c := range n.containers() {
		if !c.Exact() {
			names = append(names, c.object())
			largest = max(largest, c.Error)
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	shown := strings.Join(names[:min(3, len(names))], ", ")
	if len(names) > 3 {
		shown += fmt.Sprintf(" and %d more", len(names)-3)
	}
	r.find(Note, "estimate", shown,
		fmt.Sprintf("the memory request is known only roughly, to within %s: the true one can be that much larger, and is protected that much less", quantity.Short(largest)),
		"let the daemon see the pods: the kubelet's pod API (KEP-4188, on by default from 1.37) or the API server (requestSources: [apiserver] and the right to list and watch pods)")
}

// sources finds APIs of memory requests that do not answer. The kubelet's is missing on most clusters, and another source
// takes its place: a note.
func sources(n Node, r *Report) {
	do := map[string]string{
		"kubelet":   "nothing has to be done; for exact requests from the kubelet set its feature gate PodsAPI (alpha in Kubernetes 1.36, on by default from 1.37), and name its socket with --kubelet-pods-socket where its root directory is not /var/lib/kubelet; or leave kubelet out of requestSources",
		"apiserver": "see that the API server is reachable from this node and lets the daemon list and watch pods; or leave apiserver out of requestSources",
	}
	for _, s := range n.Document.RequestSources {
		if s.Problem != "" {
			r.find(Note, "request-source", s.Source,
				fmt.Sprintf("this source of memory requests does not answer (%s): %s", s.Problem, n.Document.RequestsFrom()), do[s.Source])
		}
	}
}

// deviceSources finds ResourceSlices that cannot be read, which the configuration wants.
func deviceSources(n Node, r *Report) {
	for _, s := range n.Document.DeviceSources {
		if s.Problem != "" {
			r.find(Warning, "device-source", s.Source,
				fmt.Sprintf("this source of devices' NUMA nodes cannot be read (%s): devices of resource claims that sysfs does not know are on no node", s.Problem),
				"see that the API server is reachable from this node and lets the daemon list and watch resourceslices, and get resourceclaims; or set resourceSlices: false")
		}
	}
}

func annotations(n Node, r *Report) {
	for i := range n.Document.Pods {
		pod := &n.Document.Pods[i]
		if !n.audits(pod) {
			continue
		}
		for _, problem := range pod.Problems {
			r.find(Warning, "annotation", pod.Namespace+"/"+pod.Name, "ignored: "+problem,
				"correct the annotation, or allow it in the configuration (annotationRules[].allowedAnnotations)")
		}
	}
}

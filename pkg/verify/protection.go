package verify

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
)

// inner is the child that crun makes below a container's cgroup, where the processes are.
const inner = "/container"

// effective is the protection that the kernel really gives.
type effective struct {
	bytes uint64
	// at is the cgroup that takes the most away, "" when none does, and lost how much.
	at   string
	lost uint64
	// claimed is what the children of at claim together, where they share what it has; 0 where it just holds too little.
	claimed uint64
}

// effectively walks from the top of the hierarchy down to a cgroup with the kernel's rule
// (https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files): a cgroup has no more protection than its
// parent, and children that claim more together than the parent has share it in proportion. Usage is left out: this is
// what is safe when everybody uses what was promised.
func (n Node) effectively(cgroup string, promised uint64, value func(Cgroup) uint64) effective {
	result := effective{bytes: promised}
	have, file := ^uint64(0), ^uint64(0) // of the parent, and what its file says; the top of the hierarchy has no bounds
	parent, above, claimedAbove := "", "", uint64(0)
	for _, level := range levels(cgroup) {
		claim := value(n.Cgroups[level])
		if strings.HasSuffix(level, inner) && n.Kernel != nil && n.Kernel.RecursiveProtection {
			break // an only child: all that the parent has is its own
		}
		gets, at, claimed := min(claim, have), level, uint64(0)
		if siblings := n.claimed(parent, value); parent != "" && siblings > have && claim > 0 {
			gets, at, claimed = uint64(float64(claim)*(float64(have)/float64(siblings))), parent, siblings
			if above != "" && siblings <= file { // the parent's file is enough: the parent itself has less than that
				at, claimed = above, claimedAbove
			}
		}
		if above = ""; gets < claim {
			above, claimedAbove = at, claimed
		}
		if lost := result.bytes - min(result.bytes, gets); lost > result.lost {
			result.at, result.lost, result.claimed = at, lost, claimed
		}
		result.bytes = min(result.bytes, gets)
		have, file, parent = gets, claim, level
	}
	return result
}

// levels are the cgroups above one, the top first, and itself.
func levels(cgroup string) []string {
	var all []string
	for ; cgroup != "." && cgroup != "/" && cgroup != ""; cgroup = path.Dir(cgroup) {
		all = append(all, cgroup)
	}
	slices.Reverse(all)
	return all
}

// claimed is the sum of what the children of a cgroup claim.
func (n Node) claimed(parent string, value func(Cgroup) uint64) uint64 {
	var sum uint64
	for name, child := range n.Cgroups {
		if path.Dir(name) == parent {
			sum += min(value(child), ^uint64(0)-sum)
		}
	}
	return sum
}

// otherCgroup is the child of a cgroup that claims most, of those that hold no container of the daemon's.
func (n Node) otherCgroup(parent string, value func(Cgroup) uint64) (cgroup string, bytes uint64) {
	ours := map[string]bool{}
	n.Pod = nil // the containers of the other pods are the daemon's, too
	for _, c := range n.containers() {
		for _, level := range levels(c.Cgroup) {
			ours[level] = true
		}
	}
	for name, child := range n.Cgroups {
		claim := value(child)
		if path.Dir(name) == parent && !ours[name] && (claim > bytes || claim == bytes && name < cgroup) {
			cgroup, bytes = name, claim
		}
	}
	return cgroup, bytes
}

// leaf is the cgroup in which a container's processes are.
func (n Node) leaf(container string) string {
	if _, ok := n.Cgroups[container+inner]; ok {
		return container + inner
	}
	return container
}

var protections = []struct {
	file     string
	promised func(*status.Container) *uint64
	value    func(Cgroup) uint64
}{
	{"memory.min", func(c *status.Container) *uint64 { return c.Min }, func(c Cgroup) uint64 { return c.Min }},
	{"memory.low", func(c *status.Container) *uint64 { return c.Low }, func(c Cgroup) uint64 { return c.Low }},
}

// protection finds containers that have less protection than was promised, and the level that takes it away: one finding
// for a level, however many containers are below it.
func protection(n Node, r *Report) {
	if n.Document.Policy.DryRun || len(n.Cgroups) == 0 {
		return
	}
	for _, p := range protections {
		type loss struct {
			container string
			promised  uint64
			effective
		}
		losses := map[string][]loss{}
		for _, c := range n.containers() {
			promised := p.promised(c.Container)
			if promised == nil || *promised == 0 {
				continue
			}
			whole := memoryqos.InFile(*promised, n.PageSize)
			if e := n.effectively(n.leaf(c.Cgroup), whole, p.value); memoryqos.InFile(e.lost, n.PageSize) > 0 {
				losses[e.at] = append(losses[e.at], loss{c.object(), *promised, e})
			}
		}
		for _, at := range slices.Sorted(maps.Keys(losses)) {
			all := losses[at]
			slices.SortFunc(all, func(a, b loss) int {
				return cmp.Or(cmp.Compare(b.promised-b.bytes, a.promised-a.bytes), cmp.Compare(a.container, b.container))
			})
			worst := all[0]
			other, others := n.otherCgroup(at, p.value)
			sizes := cgroup.Apart(p.value(n.Cgroups[at]), worst.bytes, worst.promised, worst.claimed, others)
			cause, do := fmt.Sprintf("its %s is %s", p.file, sizes[0]), n.restore(at)
			if worst.claimed > 0 {
				cause += fmt.Sprintf(", and what is directly below it claims %s together", sizes[3])
				if other != "" {
					cause += fmt.Sprintf(", %s of it %s, which holds no container of the daemon's", sizes[4], other)
					do = "take the " + p.file + " of " + other + " away, or move that cgroup away from the pods: it takes part of their protection"
				}
			}
			what := fmt.Sprintf("%s: %s has %s instead of %s", cause, worst.container, sizes[1], sizes[2])
			if len(all) > 1 {
				what += fmt.Sprintf(", and %s more", several(len(all)-1, "container"))
			}
			r.find(Error, "protection", at, what, do)
		}
	}
}

// restore is what to do about a level without protection.
func (n Node) restore(cgroup string) string {
	kubepods := ""
	if len(n.Document.Ancestors) > 0 {
		kubepods = n.Document.Ancestors[0].Cgroup
	}
	if kubepods != "" && cgroup != kubepods && !strings.HasPrefix(cgroup, kubepods+"/") {
		do := "this cgroup is above the kubelet's and not the plugin's to write: give it the protection of all pods"
		if strings.HasSuffix(cgroup, ".slice") {
			do += ": systemctl set-property " + path.Base(cgroup) + " MemoryMin=… MemoryLow=…"
		}
		return do
	}
	return "the daemon puts its value back within seconds; if this stays, find who writes it (see the finding overwritten, or the daemon's log) and turn it off"
}

// place is a running container with its pod.
type place struct {
	pod *status.Pod
	*status.Container
}

func (p place) object() string { return p.pod.Namespace + "/" + p.pod.Name + "/" + p.Name }

// audits reports whether a pod is audited.
func (n Node) audits(pod *status.Pod) bool { return n.Pod == nil || slices.Contains(n.Pod, pod.UID) }

// containers are the running containers of the audited pods whose cgroups were read.
func (n Node) containers() (all []place) {
	for pod, c := range n.Document.Containers() {
		if _, ok := n.Cgroups[c.Cgroup]; ok && c.State == status.Running && n.audits(pod) {
			all = append(all, place{pod, c})
		}
	}
	return all
}

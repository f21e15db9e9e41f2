package world

import (
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
)

// Kill is an OOM kill.
type Kill struct {
	At     time.Time
	Victim Who
	Cgroup string // of the victim
	// Asked is whose allocation found no memory; nobody's where a limit was lowered.
	Asked Who
	// Level is where memory ran out, Hit the cgroup whose limit of so many bytes that was.
	Level oom.Level
	Hit   string
	Limit uint64
	// Held is what filled that cgroup; where none was hit, what the victim's had.
	Held  oom.Held
	Cause oom.Cause
	// Later is what filled it by what is there once the second has passed, as nobody can look before that: what others took meanwhile is in it.
	Later oom.Cause
	// Doubt is what looks like the victim's or hides it by then, in bytes: what other kills freed of that cgroup, and what others took of it.
	Doubt uint64
	// Users shared what ran out, the culprit among them having the most beyond its share.
	Users   []Use
	Culprit Use
	// Nodes are those that the allocation could use, Elsewhere the free bytes on the others: more than twice their reserve is a kill of NUMA nodes.
	// What others have taken of these once the second has passed is not in it.
	Nodes     nodeset.Set
	Elsewhere uint64
	// Whole is set for all of a cgroup (memory.oom.group), Processes is how many.
	Whole     bool
	Processes int
	Freed     uint64 // bytes of heaps
	// Stalled is for how long nothing ran in the victim's cgroup because of memory.
	Stalled time.Duration
}

// Use is what a container, a pod (without a container's name) or all outside of pods uses, in bytes that cannot be reclaimed.
type Use struct {
	Who
	Outside     bool
	Used, Share uint64 // its share is what it requests; outside of pods, what it uses
}

// Over is what it uses beyond its share.
func (u Use) Over() uint64 { return less(u.Used, u.Share) }

// badness is how gladly the kernel kills a process (mm/oom_kill.c, oom_badness), in pages; false is never.
func badness(pages, totalPages uint64, adjust int) (points int64, may bool) {
	return int64(pages) + int64(adjust)*int64(totalPages/1000), adjust > -1000
}

// outOfMemory kills for an allocation: in a cgroup that is at its limit, or, where that is nil, among all that may use the NUMA nodes of the one
// that asks (mm/oom_kill.c, constrained_alloc). It reports whether there was something to kill.
func (k *Kernel) outOfMemory(asks *process, domain *group) bool {
	nodes, limit := k.nodes, k.installed()+k.machine.Swap
	if domain != nil {
		limit = domain.max
	} else if nodes = asks.group.effective; nodes != k.nodes { // CONSTRAINT_CPUSET
		limit = k.machine.Swap
		for node := range nodes.All() {
			limit += k.machine.Nodes[node].Memory
		}
	}
	var victim *process
	var most int64
	for _, p := range k.processes {
		if domain != nil && !p.group.inside(domain) || domain == nil && p.group.effective.Intersect(nodes).Empty() {
			continue
		}
		if points, may := badness((p.heap+p.slab)/page, limit/page, p.who.OOMScoreAdj); may && (victim == nil || points >= most) {
			victim, most = p, points
		}
	}
	if victim == nil {
		return false
	}
	kill := k.record(victim, domain, nodes)
	if asks != nil {
		kill.Asked = asks.who
	}
	whole := victim.oomGroup(domain)
	for _, p := range slices.Clone(k.processes) {
		if p == victim || whole != nil && p.group.inside(whole) && p.who.OOMScoreAdj > -1000 {
			kill.Processes, kill.Freed = kill.Processes+1, kill.Freed+p.heap
			k.moved(p.group, eventOOMKill, 1)
			if p == victim && whole != nil { // it is met again among its cgroup's (oom_kill_memcg_member)
				k.moved(p.group, eventOOMKill, 1)
			}
			if p.Forks && whole == nil && p.heap > 0 { // without a child, it is itself killed
				k.release(p.group, anon, p.heap)
				p.heap = 0
				continue
			}
			k.finish(p, true)
		}
	}
	if whole != nil {
		kill.Whole = true
		k.moved(whole, eventOOMGroupKill, 1)
	}
	k.kills = append(k.kills, kill)
	return true
}

// oomGroup is the highest cgroup up to where memory ran out that is killed as one (mm/memcontrol.c, mem_cgroup_get_oom_group).
func (p *process) oomGroup(domain *group) (whole *group) {
	for a := range p.group.above {
		if a.oomGroup {
			whole = a
		}
		if a == domain {
			break
		}
	}
	return whole
}

func (k *Kernel) record(victim *process, domain *group, nodes nodeset.Set) Kill {
	g := victim.group
	kill := Kill{At: k.now, Victim: victim.who, Cgroup: g.name, Nodes: nodes, Held: held(g.all), Stalled: g.pressure[full].total}
	pod := g.pod()
	switch {
	case domain == nil:
		var reserve uint64
		for node := range k.nodes.Minus(nodes).All() {
			minimum, _, _ := k.watermarks(node)
			reserve += minimum
		}
		kill.Elsewhere = k.elsewhere(nodes)
		if kill.Level = oom.Node; kill.Elsewhere > 2*reserve {
			kill.Level = oom.NUMANode
		}
	case domain == pod:
		kill.Level = oom.Pod
	case pod != nil && pod.inside(domain):
		kill.Level = oom.Parent
	default:
		kill.Level = oom.Container
	}
	if domain != nil {
		kill.Hit, kill.Limit, kill.Held = domain.name, domain.max, held(domain.all)
	}
	kill.Cause = causeOf(kill.Held)
	kill.Users = k.users(kill.Level, domain, nodes)
	for _, use := range kill.Users {
		if c := kill.Culprit; use.Over() > c.Over() || use.Over() == c.Over() && use.Used > c.Used {
			kill.Culprit = use
		}
	}
	return kill
}

// pod is the pod's cgroup that a cgroup is in, or nil.
func (g *group) pod() *group {
	for a := range g.above {
		if cgroup.LevelOf(a.name) == cgroup.LevelPod {
			return a
		}
	}
	return nil
}

func held(of [][kinds]uint64) oom.Held {
	return oom.Held{Processes: sumOf(of, []kind{anon}), PageCache: sumOf(of, []kind{inactive, active, dirty}), Unwritten: sumOf(of, []kind{dirty}),
		Tmpfs: sumOf(of, []kind{shmem}), Kernel: sumOf(of, []kind{slab})}
}

// causeOf is what filled it: page cache where a sixteenth could not be reclaimed for the disk, else what there is most of.
func causeOf(h oom.Held) oom.Cause {
	cause, most := oom.UnknownCause, uint64(0)
	for _, part := range []struct {
		oom.Cause
		bytes uint64
	}{{oom.Processes, h.Processes}, {oom.PageCache, h.PageCache}, {oom.Tmpfs, h.Tmpfs}, {oom.KernelMemory, h.Kernel}} {
		if part.bytes > most {
			cause, most = part.Cause, part.bytes
		}
	}
	if h.Unwritten > (h.Processes+h.PageCache+h.Tmpfs+h.Kernel)/16 {
		return oom.PageCache
	}
	return cause
}

// later looks at the cgroups again in which processes were killed in this second, or by one write.
func (k *Kernel) later(kills []Kill) {
	for i := range kills {
		kill := &kills[i]
		kill.Elsewhere = min(kill.Elsewhere, k.elsewhere(kill.Nodes))
		if kill.Later = kill.Cause; k.groups[kill.Hit] != nil && kill.Level != oom.Container {
			left := held(k.groups[kill.Hit].all)
			var freed uint64
			for j, other := range kills {
				if j != i && (kill.Hit == "" || strings.HasPrefix(other.Cgroup, kill.Hit+"/")) {
					freed += other.Freed
				}
			}
			taken := less(left.Processes+left.Tmpfs+left.Kernel+kill.Freed+freed, kill.Held.Processes+kill.Held.Tmpfs+kill.Held.Kernel)
			kill.Doubt = less(left.PageCache, kill.Held.PageCache) + freed + taken
			left.Processes += less(kill.Limit, left.Processes+left.PageCache+left.Tmpfs+left.Kernel)
			kill.Later = causeOf(left)
		}
	}
}

// elsewhere is what is free on other NUMA nodes than these, in bytes.
func (k *Kernel) elsewhere(nodes nodeset.Set) (free uint64) {
	for node := range k.nodes.Minus(nodes).All() {
		free += k.free(node)
	}
	return free
}

// users are who shared what ran out: the container alone, the containers of the pod or with memory on the NUMA nodes, or all pods.
func (k *Kernel) users(level oom.Level, domain *group, nodes nodeset.Set) (users []Use) {
	places, counted := map[*group]int{}, map[Who]bool{}
	for _, p := range k.processes {
		g, who := p.group, p.who
		if domain != nil && !g.inside(domain) {
			continue
		}
		if pod := g.pod(); pod != nil && (level == oom.Parent || level == oom.Node) {
			g, who = pod, who.inPod()
		}
		if _, known := places[g]; !known {
			places[g] = len(users)
			users = append(users, Use{Who: who, Used: unreclaimable(g.all, level, nodes)})
		}
		if !counted[p.who] { // a container with several processes has one request
			counted[p.who] = true
			users[places[g]].Share += p.who.Request
		}
		if p.who.PodRequest > 0 && who.Container == "" {
			users[places[g]].Share = p.who.PodRequest
		}
	}
	switch level {
	case oom.Pod: // files in memory that ended containers left; their unwritten page cache is a cause, and has no owner
		users = append(users, Use{Who: users[0].Who.inPod(), Used: sumOf(domain.own, []kind{shmem})})
	case oom.Node:
		var outside uint64
		for _, node := range k.machine.Nodes {
			outside += node.Outside
		}
		users = append(users, Use{Outside: true, Used: outside, Share: outside})
	}
	return users
}

// inPod is the pod without a container.
func (w Who) inPod() Who { return Who{UID: w.UID, Namespace: w.Namespace, Pod: w.Pod} }

func unreclaimable(of [][kinds]uint64, level oom.Level, nodes nodeset.Set) (bytes uint64) {
	for node := range of {
		if level != oom.NUMANode || nodes.Has(node) {
			bytes += sumOf(of[node:node+1], []kind{anon, dirty, shmem, slab})
		}
	}
	return bytes
}

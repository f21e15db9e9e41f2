package world

import (
	"slices"
	"strings"
	"time"
)

const covered Promise = "no write leaves a parent with less than its children have"

// gap is when a cgroup came to have less of memory.min or memory.low than the cgroups in it.
type gap struct {
	at           time.Time
	by           string // the cgroup that was written
	parent, file string
	has, below   uint64 // by then
}

// below is the sum of memory.min or memory.low of the cgroups in one; the root has no such files, and never too little.
func (g *group) below(file string) (has, sum uint64) {
	if g == nil || g.parent == nil || !protects(file) {
		return 0, 0
	}
	of := func(g *group) uint64 {
		if file == "memory.min" {
			return g.min
		}
		return g.low
	}
	for _, child := range g.children {
		sum += of(child)
	}
	return of(g), sum
}

// lacks is how much less a cgroup has than those in it, in bytes.
func (g *group) lacks(file string) uint64 {
	has, below := g.below(file)
	return less(below, has)
}

func protects(file string) bool { return file == "memory.min" || file == "memory.low" }

// gap notes one, unless other writers took part: the daemon repairs what they wrote as it learns of it.
func (k *Kernel) gap(g *group, file, by string) {
	others := func(g *group) bool { return time.Since(g.foreign) < 2*time.Second }
	if others(g) || slices.ContainsFunc(g.children, others) {
		return
	}
	has, below := g.below(file)
	k.gaps = append(k.gaps, gap{time.Now(), by, g.name, file, has, below})
}

// beforeWrite is called before a write of the daemon; compare notes what that has made worse.
func (k *Kernel) beforeWrite(g *group, file string) (compare func()) {
	own, above := g.lacks(file), g.parent.lacks(file)
	return func() {
		if g.lacks(file) > own {
			k.gap(g, file, g.name)
		}
		if g.parent.lacks(file) > above {
			k.gap(g.parent, file, g.name)
		}
	}
}

// takeGaps returns those since the last call.
func (k *Kernel) takeGaps() []gap {
	k.mu.Lock()
	defer k.mu.Unlock()
	gaps := k.gaps
	k.gaps = nil
	return gaps
}

// levels looks at what writes of the daemon took from the children of a cgroup.
func (n *simulation) levels() {
	for _, g := range n.kernel.takeGaps() {
		has, below := g.has, g.below
		if limit := n.kernel.number(g.parent, "memory.max"); limit > 0 { // more would protect nothing
			below = min(below, limit)
		}
		if has < below && n.settings().writes() && !n.othersInside(g.parent) && !n.trouble.calm(covered, g.at).After(g.at) {
			n.broken(covered, "since a write to %s at %s %s of %s is %d, and the cgroups in it have %d", g.by, g.at.Sub(n.began), g.file, g.parent, has, below)
		}
	}
}

// othersInside reports whether others than the daemon write to the containers of a pod: these themselves, or the runtime for a resize, of which
// the daemon may hear from the kubelet first; or whether it knows nothing of what is written in a pod.
func (n *simulation) othersInside(parent string) bool {
	return slices.ContainsFunc(n.kubelet.Pods(), func(p LivePod) bool {
		itself := func(c Container) bool { return n.writesItself(p, c.Name) }
		return strings.HasPrefix(p.Cgroup, parent+"/") && n.forgotten(p) ||
			strings.HasPrefix(parent+"/", p.Cgroup+"/") && (n.hasChange(p, Resize) || slices.ContainsFunc(n.spec(p).Containers, itself))
	})
}

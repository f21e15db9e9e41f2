package world

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// special adds what is not on every node: to a third of the scenarios the daemon's own pod, to a third a pod whose children are killed again and
// again, and to a third a while in which the runtime serves the kubelet without plugins. It has draws of its own, so that the others stay.
func (d drawer) special(s *Scenario) {
	d.Rand = rand.New(rand.NewPCG(s.Seed, 2))
	pod := func(p Pod, c Container) {
		c.Kind = "app"
		p.Containers = []Container{c}
		s.Pods = append(s.Pods, p)
	}
	switch s.Seed % 3 {
	case 0:
		pod(Pod{Name: ownPod, Namespace: "kube-system", Class: "Burstable", At: d.when(time.Second)},
			Container{Name: "daemon", Request: 64 * mi, Limit: 128 * mi, Lives: []Program{{Heap: 40 * mi, Rate: 4 * mi, Daemon: true}}})
	case 1:
		pod(Pod{Name: "loop", Namespace: "data", Class: "Guaranteed", At: d.when(d.between(2*time.Minute, d.length/2))},
			Container{Name: "app", Request: 64 * mi, Limit: 64 * mi, Lives: []Program{{Heap: gi, Rate: 8 * mi, Forks: true}}})
	case 2:
		if !d.calm {
			s.Faults = append(s.Faults, Fault{At: d.when(d.between(time.Minute, d.length)), Kind: NRIAway, Length: Duration(d.between(time.Second, 3*time.Minute))})
		}
	}
	d.others(s)
}

// others adds what others than the daemon do on any node: writes to its files at all levels, and to limits; to a third of the scenarios that
// are not calm some that inotify has no room for; to a quarter of all memory that pods may not use, to a quarter a static pod that is made again, and
// to a quarter of those that are not calm a reload to Observe and back.
func (d drawer) others(s *Scenario) {
	d.Rand = rand.New(rand.NewPCG(s.Seed, 3))
	for range 2 + d.IntN(4) {
		s.Faults = append(s.Faults, Fault{At: d.when(d.between(30*time.Second, d.length)), Kind: Overwritten,
			Target: pick(d, "kubepods", "Burstable", "pod", "container", "container") + pick(d, "", " halved")})
	}
	for range 1 + d.IntN(3) {
		s.Faults = append(s.Faults, Fault{At: d.when(d.between(30*time.Second, d.length)), Kind: Overwritten, Target: "container limit"})
	}
	if at := d.between(time.Minute, d.length); d.oneIn(3) && !d.calm {
		s.Faults = append(s.Faults, Fault{At: d.when(at), Kind: QueueOverflow, Length: Duration(20 * time.Second), Draw: d.Uint64()},
			Fault{At: d.when(at + 5*time.Second), Kind: Overwritten, Target: "container"}, Fault{At: d.when(at + 10*time.Second), Kind: Overwritten, Target: "pod"})
	}
	if d.oneIn(4) {
		s.Machine.Reserved = uint64(1+d.IntN(6)) * gi
	}
	if d.oneIn(4) {
		at, class := d.between(time.Minute, d.length/2), pick(d, "Guaranteed", "Burstable")
		p := Pod{Name: "static", Namespace: "kube-system", Class: class, Static: true, Containers: []Container{d.container("app", "app", class, s.Machine)},
			At: d.when(at), End: d.when(at + d.between(20*time.Second, 2*time.Minute))}
		again := p
		again.At, again.End = d.when(time.Duration(p.End)+d.between(0, 10*time.Second)), 0
		s.Pods = append(s.Pods, p, again)
	}
	if at := d.between(time.Minute, d.length); d.oneIn(4) && !d.calm && !strings.Contains(s.Config, "profile") {
		s.Faults = append(s.Faults,
			Fault{At: d.when(at), Kind: NewConfig, Target: s.Config + "profile: Observe\n"},
			Fault{At: d.when(at + d.between(5*time.Second, time.Minute)), Kind: NewConfig, Target: s.Config})
	}
}

// contested has another writer come back to the same files after more than ten minutes, where one daemon lives for so long.
func (d drawer) contested(s *Scenario) {
	d.Rand = draws(s.Seed, "a writer that comes back")
	ends := []string{DaemonKilled, DaemonEnds, DaemonReplaced}
	if strings.Contains(s.Config, "profile: ") || slices.ContainsFunc(s.Faults, func(f Fault) bool { return slices.Contains(ends, f.Kind) }) {
		return
	}
	level, at := pick(d, "kubepods", "kubepods", "pod", "container"), d.between(40*time.Second, d.length-10*time.Minute-30*time.Second)
	for _, after := range []time.Duration{0, 10*time.Minute + 5*time.Second} {
		s.Faults = append(s.Faults, Fault{At: d.when(at + after), Kind: Overwritten, Target: level})
	}
}

// more adds pods with resources of their own to half of the scenarios, heaps that begin to grow late in a third of what reads or writes files, and
// has the node's own processes leave little of every sixth machine.
func (d drawer) more(s *Scenario) {
	d.Rand = rand.New(rand.NewPCG(s.Seed, 4))
	for i := range s.Pods {
		for j := range s.Pods[i].Containers {
			c := &s.Pods[i].Containers[j]
			for l := range c.Lives {
				if p := &c.Lives[l]; p.Cache > 0 && d.oneIn(3) {
					p.Late = Duration(d.between(30*time.Second, d.length/4))
					p.Heap, p.Rate = pick(d, c.Limit/10*9, 2*c.Limit, 256*mi), pick(d, 0, 4*mi, 64*mi)
				}
			}
		}
	}
	if d.oneIn(2) {
		if d.oneIn(3) {
			s.Config += "podLevelResourceManagers: true\n"
		}
		for i := range 1 + d.IntN(3) {
			s.Pods = append(s.Pods, d.ownResources(fmt.Sprintf("whole%d", i)))
		}
	}
	if d.oneIn(6) {
		for i := range s.Machine.Nodes {
			n := &s.Machine.Nodes[i]
			n.Outside = less(n.Memory, uint64(1000+d.IntN(3000))*mi)
		}
	}
}

// ownResources draws a pod with resources of its own, which some of its containers share and others have a part of.
func (d drawer) ownResources(name string) Pod {
	from := d.between(10*time.Second, d.length/2)
	p := Pod{Name: name, Namespace: pick(d, "shop", "bank"), Class: pick(d, "Guaranteed", "Burstable"), At: d.when(from), Limit: uint64(256+d.IntN(1800)) * mi}
	if p.Request = p.Limit; p.Class == "Burstable" {
		p.Request = p.Limit / pick[uint64](d, 2, 4) &^ (page - 1)
	}
	if d.oneIn(3) {
		p.End = d.when(from + d.between(time.Minute, d.length/2))
	}
	for i := range 1 + d.IntN(3) {
		c := Container{Name: fmt.Sprintf("app%d", i), Kind: "app"}
		if d.oneIn(3) {
			c.Request = p.Request / 8 &^ (page - 1)
			c.Limit = pick(d, 0, c.Request, 2*c.Request)
		}
		for range 1 + d.IntN(2) {
			c.Lives = append(c.Lives, d.program(Container{Limit: max(c.Limit, p.Limit/4)}, "app"))
		}
		p.Containers = append(p.Containers, c)
	}
	if d.oneIn(4) {
		p.Changes = append(p.Changes, Change{At: d.when(from + d.between(time.Second, d.length/2)), Kind: Resize, Limit: p.Limit * 3 / 2 &^ (page - 1)})
	}
	return p
}

// replaced has another daemon wait for the state folder of one that then ends, as where an update brings the new one first.
func (d drawer) replaced(s *Scenario) {
	d.Rand = draws(s.Seed, "two daemons")
	if d.oneIn(5) {
		s.Faults = append(s.Faults, Fault{At: d.when(d.between(time.Minute, d.length)), Kind: DaemonReplaced, Length: Duration(d.between(time.Second, time.Minute))})
	}
}

// hugepages has every third app of a Guaranteed pod ask for huge pages, on machines that have some.
func (d drawer) hugepages(s *Scenario) {
	d.Rand = draws(s.Seed, "who has huge pages")
	if !slices.ContainsFunc(s.Machine.Nodes, func(n NUMANode) bool { return n.Hugepages > 0 }) {
		return
	}
	for _, p := range s.Pods {
		for i := range p.Containers {
			if c := &p.Containers[i]; p.Class == "Guaranteed" && p.Limit == 0 && c.Kind == "app" && d.oneIn(3) {
				c.Hugepages = pick[uint64](d, 1, 16, 100, 300) * hugePage
			}
		}
	}
}

// overflowed has another writer come while events are lost: to the containers of every such time twice, and to the pods and what is above them.
func (d drawer) overflowed(s *Scenario) {
	d.Rand = draws(s.Seed, "writers while events are lost")
	for _, f := range s.Faults {
		if f.Kind != QueueOverflow {
			continue
		}
		for _, level := range []string{"container", "pod", "kubepods", "container"} {
			s.Faults = append(s.Faults, Fault{At: d.when(time.Duration(f.At) + d.between(0, time.Duration(f.Length))), Kind: Overwritten, Target: level})
		}
	}
}

// slowSyncs has the disk take its time to sync on a third of the nodes that are not calm.
func (d drawer) slowSyncs(s *Scenario) {
	d.Rand = draws(s.Seed, "slow syncs")
	if !d.calm && d.oneIn(3) {
		s.Faults = append(s.Faults, Fault{At: d.when(0), Kind: SlowSyncs, Length: Duration(d.length), Draw: d.Uint64()})
	}
}

package world

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

const (
	mi = uint64(1) << 20
	gi = uint64(1) << 30
)

// Size bounds what is drawn.
type Size struct {
	Length time.Duration
	Pods   int // at a time
	Faults int
}

// Draw makes the scenario of a seed.
func Draw(seed uint64, size Size) Scenario {
	d := drawer{Rand: rand.New(rand.NewPCG(seed, 1)), length: size.Length, taken: map[time.Duration]bool{}, calm: size.Faults == 0}
	s := Scenario{Seed: seed, Config: d.config(), Machine: d.machine(), Runtime: d.runtime(), Length: Duration(size.Length)}
	if other := draws(seed, "node without memory"); other.IntN(6) == 0 { // drawn by itself, so that the rest of the seed stays as it is
		near := other.IntN(len(s.Machine.Nodes))
		s.Machine.Nodes = append(s.Machine.Nodes, NUMANode{CPUs: 8, Near: &near})
		s.Machine.Nodes[near].CPUs = 2 // so that those of the other are taken, too
	}
	if other := draws(seed, "memory without CPUs"); other.IntN(8) == 0 {
		near := other.IntN(len(s.Machine.Nodes))
		s.Machine.Nodes = append(s.Machine.Nodes, NUMANode{Memory: 4 * gi, Outside: 100 * mi, Near: &near})
		s.Config += "nodesWithoutCPUs: Confine\n"
	}
	if other := draws(seed, "huge pages"); other.IntN(5) == 0 {
		for i := range s.Machine.Nodes {
			if n := uint64(other.IntN(3)) * 256; s.Machine.Nodes[i].Memory > 0 {
				s.Machine.Nodes[i].Hugepages = n
			}
		}
	}
	if s.Runtime.Name == "cri-o" {
		s.Machine.Systemd = d.oneIn(2)
	}
	// Pods come and go so that about so many live at a time.
	var ends []time.Duration
	for i, at := 0, time.Duration(0); at < size.Length; i++ {
		p := d.pod(i, s.Machine)
		life := d.between(time.Minute, size.Length/2)
		p.At, p.End = d.when(at), d.when(at+life)
		if d.oneIn(6) {
			p.End = 0
		}
		d.changes(&p, at, min(at+life, size.Length))
		s.Pods = append(s.Pods, p)
		ends = append(ends, at+life)
		living := 0
		for _, end := range ends {
			if end > at {
				living++
			}
		}
		at += d.between(100*time.Millisecond, 20*time.Second)
		if living >= size.Pods {
			at += life / 2
		}
	}
	for range size.Faults {
		s.Faults = append(s.Faults, d.fault(s))
	}
	d.special(&s)
	d.refusals(&s)
	d.more(&s)
	d.kernel(&s)
	d.systemd(&s)
	d.apiServer(&s)
	d.rules(&s)
	d.hugepages(&s)
	d.replaced(&s)
	d.guarded(&s)
	d.ending(&s)
	d.grouped(&s)
	d.overflowed(&s)
	d.crowded(&s)
	d.slowUpdates(&s)
	d.resized(&s)
	d.claims(&s)
	d.contested(&s)
	d.claimsOff(&s)
	d.slowSyncs(&s)
	d.unread(&s)
	return s
}

// drawer draws the parts of a scenario.
type drawer struct {
	*rand.Rand
	length time.Duration
	taken  map[time.Duration]bool
	calm   bool // Size.Faults is 0: what some of the scenarios get beside is left out, too
}

func (d drawer) oneIn(n int) bool { return d.IntN(n) == 0 }

func (d drawer) between(from, to time.Duration) time.Duration {
	return from + time.Duration(d.Int64N(int64(max(to-from, 1))))
}

func pick[T any](d drawer, of ...T) T { return of[d.IntN(len(of))] }

// when is about that time, at an instant at which nothing else happens.
func (d drawer) when(about time.Duration) Duration {
	at := about.Truncate(time.Millisecond) + time.Duration(1+d.IntN(999_999))
	for d.taken[at] {
		at++
	}
	d.taken[at] = true
	return Duration(at)
}

func (d drawer) config() string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	add("topologyManagerPolicy: %s", pick(d, "none", "best-effort", "restricted", "single-numa-node"))
	if d.oneIn(3) {
		add("topologyManagerScope: pod")
	}
	if d.oneIn(3) {
		add("memoryReservationPolicy: %s", pick(d, "None", "HardReservation"))
	}
	if d.oneIn(4) {
		add("memoryThrottlingFactor: %s", pick(d, "0.5", "0.7", "1", "null"))
	}
	if d.oneIn(4) {
		add("guaranteedHeadroom: %s", pick(d, "0", "0.1"))
	}
	if d.oneIn(4) {
		add("cacheRoom: 0.1")
	}
	if d.oneIn(3) {
		add("reclaimBeforeEviction: true")
	}
	if d.oneIn(8) {
		add("profile: %s", pick(d, "NUMA", "QoS", "Observe"))
	}
	return strings.Join(lines, "\n") + "\n"
}

func (d drawer) machine() Machine {
	m := Machine{Kernel: pick(d, "5.15.0", "6.1.0", "6.12.0", "6.17.0")}
	for range pick(d, 1, 2, 2, 2, 4) {
		m.Nodes = append(m.Nodes, NUMANode{Memory: pick(d, 8*gi, 16*gi), Outside: uint64(100+d.IntN(900)) * mi, CPUs: 8})
	}
	return m
}

func (d drawer) runtime() Runtime {
	return pick(d,
		Runtime{Name: "containerd", Version: "v2.4.2", NRI: "v0.12.5"},
		Runtime{Name: "containerd", Version: "v2.4.2", NRI: "v0.12.5"},
		Runtime{Name: "containerd", Version: "v1.7.29", NRI: "v0.8.0"},
		Runtime{Name: "cri-o", Version: "1.36.3", NRI: "v0.12.0"},
		Runtime{Name: "cri-o", Version: "1.36.3", NRI: "v0.12.0", Crun: true})
}

func (d drawer) pod(i int, m Machine) Pod {
	p := Pod{Name: fmt.Sprintf("pod%d", i), Namespace: pick(d, "shop", "shop", "data"), Class: pick(d, "Guaranteed", "Guaranteed", "Burstable", "Burstable", "BestEffort"),
		Static: d.oneIn(12), Forced: d.oneIn(10)}
	for j := range pick(d, 0, 0, 1, 2) {
		p.Containers = append(p.Containers, d.container(fmt.Sprintf("init%d", j), "init", p.Class, m))
	}
	if d.oneIn(4) {
		p.Containers = append(p.Containers, d.container("side", "sidecar", p.Class, m))
	}
	for j := range pick(d, 1, 1, 2) {
		p.Containers = append(p.Containers, d.container(fmt.Sprintf("app%d", j), "app", p.Class, m))
	}
	if d.oneIn(5) {
		key, value := "throttling-factor", pick(d, "0.5", "1", "much")
		switch d.IntN(4) {
		case 1:
			key, value = "reservation", pick(d, "none", "low", "min")
		case 2:
			key, value = "numa", pick(d, "none", "preferred", "required")
		case 3:
			key, value = "oom-group", pick(d, "container", "process")
		}
		p.annotate(key, value)
	}
	return p
}

// annotate gives a pod one of the daemon's annotations.
func (p *Pod) annotate(key, value string) {
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[key+".memory-manager.noderesource.dev"] = value
}

func (d drawer) container(name, kind, class string, m Machine) Container {
	c := Container{Name: name, Kind: kind}
	size := uint64(32+d.IntN(480)) * mi
	if d.oneIn(5) {
		size = uint64(1+d.IntN(6)) * gi
	}
	switch class {
	case "Guaranteed":
		c.Request, c.Limit = size, size
		c.CPUs = pick(d, 0, 1, 2)
	case "Burstable":
		c.Request, c.Limit = size/2&^4095, size
		if d.oneIn(6) {
			c.Limit = 0
		}
	}
	for range 1 + d.IntN(3) {
		c.Lives = append(c.Lives, d.program(c, kind))
	}
	return c
}

// program draws what a container does with its memory: most are content with a part of it, some leak, some read or write files.
func (d drawer) program(c Container, kind string) Program {
	limit := c.Limit
	if limit == 0 {
		limit = 256 * mi
	}
	p := Program{Heap: limit / 100 * uint64(20+d.IntN(50)), Rate: max(limit/100, mi)}
	switch d.IntN(16) {
	case 0:
		p.Heap = 2 * limit
	case 1, 2, 3:
		p.Cache, p.CacheRate, p.Dirty = limit, limit/50, d.oneIn(3)
	case 4:
		p.Tmpfs = limit / 4
	case 5:
		p.Writes = pick(d, "memory.high=max", "memory.high=4096", "memory.min=1073741824", "memory.low=0")
	case 6:
		p.Exit = Duration(d.between(time.Second, d.length/2)) // crashes
	}
	if kind == "init" {
		p.Exit = Duration(d.between(time.Second, 40*time.Second))
	}
	return p
}

// changes are done to a pod between two times.
func (d drawer) changes(p *Pod, from, to time.Duration) {
	if to <= from {
		return
	}
	for range pick(d, 0, 0, 0, 1, 2) {
		change := Change{At: d.when(d.between(from, to)), Kind: NewSandbox}
		app := p.Containers[len(p.Containers)-1]
		if app.Limit > 0 && d.IntN(3) > 0 {
			change.Kind, change.Container = Resize, app.Name
			change.Limit = pick(d, app.Limit*2, app.Limit+64*mi, app.Limit-app.Limit/4&^4095)
		}
		p.Changes = append(p.Changes, change)
	}
}

func (d drawer) fault(s Scenario) Fault {
	f := Fault{At: d.when(d.between(10*time.Second, d.length)), Kind: pick(d, FaultKinds...), Length: Duration(d.between(time.Second, time.Minute)), Draw: d.Uint64()}
	switch f.Kind {
	case NewConfig:
		f.Target, f.Length = d.config(), 0
	case Overwritten, Reset:
		f.Target = pick(d, "kubepods", "pod", "container")
	case DiskHangs, HangingWrites:
		f.Length = Duration(d.between(time.Second, 6*time.Minute))
	case DaemonFrozen:
		f.Length = Duration(d.between(time.Second, 20*time.Second))
	}
	return f
}

package world

import (
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Kernel is a model of the memory side of Linux: a cgroup v2 hierarchy, NUMA nodes, and processes that take memory. It does nothing but in
// calls and in Tick. mu is never held while anything waits or somebody else's code runs.
type Kernel struct {
	machine Machine
	version [2]int // 6.12 is {6, 12}
	patch   int
	root    string

	mu               sync.Mutex
	now              time.Time     // of the last Tick
	last             time.Duration // what passed with it
	mount            string        // options of cgroup2, of which two matter:
	recursive, local bool
	top              *group
	groups           map[string]*group
	nodes            nodeset.Set // with memory
	used             []uint64    // bytes by NUMA node: of cgroups
	swapFree         uint64
	hugeFree         []uint64           // pages by NUMA node
	processes        []*process         // in the order of their start
	calm             bool               // Calm
	volumes          map[string]*uint64 // bytes of files in memory, by pod and container
	noticed          []*group           // whose memory.events have to be told of
	ends             []func()
	kills            []Kill
	gaps             []gap
	stats            nodeStats
	triggers         []*trigger
	files            map[string]string // below root, as written last; only NewKernel, Mount and Tick use it
	pid, wd          int
}

// group is a cgroup.
type group struct {
	name     string // "" is the root
	parent   *group
	children []*group // in the order of their making
	// enabled are the controllers of cgroup.subtree_control.
	enabled map[string]bool
	values
	effective nodeset.Set // cpuset.mems.effective
	memory
	pressure  [2]averages // some, full
	cpu       time.Duration
	processes int // in it and below
	watches   []*watch
	toTell    struct{ events, local bool }
	foreign   time.Time // when another writer than the daemon last wrote memory.min or memory.low
}

// values are what can be written.
type values struct {
	max, high, min, low, swapMax uint64 // bytes
	oomGroup                     bool
	mems                         nodeset.Set
	others                       map[string]string // files without a meaning here
}

func defaults() values {
	return values{max: cgroup.Max, high: cgroup.Max, swapMax: cgroup.Max, others: map[string]string{}}
}

// Who is the container that a process belongs to.
type Who struct {
	UID, Namespace, Pod, Container, ID string
	// Request is the container's memory request in bytes, PodRequest its pod's, OOMScoreAdj that of its processes, and Hugepages the bytes in pages of
	// 2 MiB that this one maps.
	Request     uint64
	PodRequest  uint64
	OOMScoreAdj int
	Hugepages   uint64
}

// Requests says what a container that runs, and its pod, request now.
func (k *Kernel) Requests(now Who) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.processes {
		if p.who.ID == now.ID {
			p.who.Request, p.who.PodRequest = now.Request, now.PodRequest
		}
	}
}

// Exit is the end of a process.
type Exit struct {
	At  time.Time
	OOM bool // the kernel killed it for want of memory
}

// NewKernel boots a machine. Below root, an ordinary folder, it keeps the files of proc and sys.
func NewKernel(m Machine, root string) *Kernel {
	k := &Kernel{machine: m, root: root, now: time.Now(),
		groups: map[string]*group{}, used: make([]uint64, len(m.Nodes)), swapFree: m.Swap, volumes: map[string]*uint64{}, files: map[string]string{}}
	k.version, k.patch = versionOf(m.Kernel)
	for id, node := range m.Nodes {
		k.hugeFree = append(k.hugeFree, node.Hugepages)
		if node.Memory > 0 {
			k.nodes = k.nodes.Union(nodeset.Of(id))
		}
	}
	k.top = k.make(nil, "")
	k.Mount("nsdelegate,memory_recursiveprot")
	k.save(k.measured())
	return k
}

// Mount mounts the hierarchy with other options than nsdelegate,memory_recursiveprot.
func (k *Kernel) Mount(options string) {
	k.mu.Lock()
	k.mount = options
	k.recursive = slices.Contains(strings.Split(options, ","), "memory_recursiveprot")
	k.local = slices.Contains(strings.Split(options, ","), "memory_localevents")
	k.mu.Unlock()
	k.save(k.fixed())
}

// Make makes a cgroup and those above it, with all controllers. One that is there is no error.
func (k *Kernel) Make(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := k.top
	for part := range strings.SplitSeq(name, "/") {
		child := k.groups[path.Join(at.name, part)]
		if child == nil {
			if !slices.Equal(all(at.has), all(func(c string) bool { return at.enabled[c] })) { // as runc does; not where at has processes
				_ = k.write(at, "cgroup.subtree_control", "+"+strings.Join(all(at.has), " +"), 0)
			}
			child = k.make(at, path.Join(at.name, part))
			at.notify(part, unix.IN_CREATE|unix.IN_ISDIR)
		}
		at = child
	}
	return nil
}

func (k *Kernel) make(parent *group, name string) *group {
	g := &group{name: name, parent: parent, enabled: map[string]bool{}, values: defaults(), memory: newMemory(len(k.machine.Nodes)), effective: k.nodes}
	for i := range g.pressure {
		g.pressure[i] = newAverages(k.now)
	}
	k.groups[name] = g
	if parent != nil {
		parent.children = append(parent.children, g)
		g.effective = parent.effective
	}
	return g
}

// Remove removes a cgroup and those below; one that is not there is no error. It is EBUSY while there are processes. What is charged to it and
// has not gone is its parent's then (mm/memcontrol.c, memcg_reparent_objcgs, and the counters of an offline cgroup count in its parents).
// The volumes of a pod end with it: the kubelet unmounts them before.
func (k *Kernel) Remove(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.groups[name]
	switch {
	case g == nil:
		return nil
	case g.processes > 0 || g == k.top:
		return unix.EBUSY
	}
	k.remove(g)
	return nil
}

func (k *Kernel) remove(g *group) {
	for len(g.children) > 0 {
		k.remove(g.children[len(g.children)-1])
	}
	if cgroup.LevelOf(g.name) == cgroup.LevelPod {
		for node := range g.own {
			k.change(g, node, shmem, -int64(g.own[node][shmem]))
		}
		for volume := range k.volumes {
			if strings.HasPrefix(volume, g.name+"/") {
				delete(k.volumes, volume)
			}
		}
		k.swap(g, -int64(g.ownSwap))
	}
	k.reparent(g)
	g.parent.children = slices.DeleteFunc(g.parent.children, func(c *group) bool { return c == g })
	delete(k.groups, g.name)
	k.endTriggers(g)
	// Its own watches stay silent, with no IN_IGNORED (seen on Linux 6.1 and 6.12).
	g.parent.notify(path.Base(g.name), unix.IN_DELETE|unix.IN_ISDIR)
}

// reparent gives what is charged to a cgroup itself to its parent.
func (k *Kernel) reparent(g *group) {
	for node := range g.own {
		for kind, bytes := range g.own[node] {
			g.parent.own[node][kind] += bytes
			g.own[node][kind] = 0
		}
	}
	g.parent.ownSwap += g.ownSwap
	g.ownSwap = 0
}

// has reports whether a controller is there for a cgroup: all are for the root.
func (g *group) has(controller string) bool { return g.parent == nil || g.parent.enabled[controller] }

func (g *group) hasProcess() bool {
	below := 0
	for _, child := range g.children {
		below += child.processes
	}
	return g.processes > below
}

// above are the cgroup and those above it without the root, which has no limits and no events.
func (g *group) above(yield func(*group) bool) {
	for ; g.parent != nil; g = g.parent {
		if !yield(g) {
			return
		}
	}
}

func (g *group) inside(of *group) bool {
	for ; g != nil && g != of; g = g.parent {
	}
	return g != nil
}

// Write is a write(2) by anybody but the daemon.
func (k *Kernel) Write(cgroup, file, text string) error { return k.put(cgroup, file, text, 0) }

func (k *Kernel) put(name, file, text string, flags int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.at(name)
	if g == nil {
		return unix.ENOENT
	}
	err := k.write(g, file, text, flags)
	if protects(file) {
		g.foreign = time.Now()
	}
	k.tell()
	return err
}

// Text is what a file shows, without the line break.
func (k *Kernel) Text(name, file string) (string, error) {
	text, err := k.whole(name, file)
	return strings.TrimSpace(text), err
}

func (k *Kernel) whole(name, file string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.at(name)
	if g == nil {
		return "", unix.ENOENT
	}
	return k.show(g, file)
}

// seen is something of a cgroup; nothing where there is none.
func seen[T any](k *Kernel, name string, what func(*group) T) (found T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if g := k.at(name); g != nil {
		found = what(g)
	}
	return found
}

// number is what a file with one number shows, where it is there; max is cgroup.Max.
func (k *Kernel) number(name, file string) uint64 {
	return seen(k, name, func(g *group) uint64 {
		if f, ok := k.lookup(g, file); ok {
			return *f.number(g)
		}
		return 0
	})
}

// charged are the bytes of some kinds that a cgroup has, with those below.
func (k *Kernel) charged(name string, of ...kind) uint64 {
	return seen(k, name, func(g *group) uint64 { return g.total(of...) })
}

// at returns the cgroup at a path, which need not be clean; nil where there is none.
func (k *Kernel) at(name string) *group {
	if g := k.groups[name]; g != nil {
		return g
	}
	return k.groups[rooted(name)]
}

func rooted(name string) string {
	if name = path.Clean(name); name == "." {
		return ""
	}
	return name
}

// Start starts a process in a cgroup. Tick calls exited once, when it was killed for want of memory or has come to its end, not when stop
// ended it; exited must not wait. It ends at once where there is no such cgroup, where that has cgroups with controllers below it
// (cgroup-v2.rst, "No Internal Process Constraint"), and where too few huge pages are free.
func (k *Kernel) Start(name string, p Program, who Who, exited func(Exit)) (stop func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if exited == nil {
		exited = func(Exit) {}
	}
	g := k.at(name)
	var huge []uint64
	if g != nil && (g.parent == nil || !g.enabled["memory"]) {
		huge = k.mapHuge(g, who.Hugepages)
	}
	if huge == nil {
		exit := Exit{At: k.now}
		k.ends = append(k.ends, func() { exited(exit) })
		return func() {}
	}
	k.pid++
	pid := k.pid + 100
	if p.Daemon {
		pid = os.Getpid()
	}
	if k.calm {
		p = p.calmed(4 << 20)
	}
	proc := &process{Program: p, who: who, pid: pid, group: g, huge: huge, started: k.now, exited: exited}
	k.processes = append(k.processes, proc)
	for a := g; a != nil; a = a.parent {
		if a.processes++; a.processes == 1 && a.parent != nil {
			a.counted("cgroup.events")
		}
	}
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.end(proc)
	}
}

// end frees what a process had that does not outlive it.
func (k *Kernel) end(p *process) {
	if p.gone {
		return
	}
	p.gone = true
	g := p.group
	k.release(g, anon, p.heap)
	k.release(g, slab, p.slab)
	for node, pages := range p.huge {
		k.hugeFree[node] += pages
	}
	k.processes = slices.DeleteFunc(k.processes, func(o *process) bool { return o == p })
	for a := g; a != nil; a = a.parent {
		if a.processes--; a.processes == 0 && a.parent != nil {
			a.counted("cgroup.events")
		}
	}
}

// Tick lets the time since the last one pass for all processes, page cache, the disk, kswapd and pressure.
func (k *Kernel) Tick(now time.Time) {
	k.mu.Lock()
	passed := max(0, now.Sub(k.now))
	k.now = k.now.Add(passed)
	kills := len(k.kills)
	if passed > 0 {
		k.stats.kswapdLeft = uint64(passed.Seconds() * kswapdRate)
		k.writeBack(passed)
		for _, p := range slices.Clone(k.processes) {
			if !p.gone {
				k.run(p, passed)
			}
		}
		k.last = passed
		k.kswapd(k.nodes)
		k.save(k.measured()) // before anybody is woken, who would read what was a second ago
		k.press(passed)
		k.fire()
	}
	k.later(k.kills[kills:])
	k.tell()
	ends := k.ends
	k.ends = nil
	k.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// Pace is how soon the next Tick is to be: a second, or the least time between two notices of a file while children are killed faster than that.
func (k *Kernel) Pace() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.processes {
		if p.Forks && p.Rate/4 > p.group.max {
			return 10 * time.Millisecond
		}
	}
	return time.Second
}

// tell notifies of counters that have moved (kernel/cgroup/cgroup.c, cgroup_file_notify: at most once in 10 ms for a file).
func (k *Kernel) tell() {
	for _, g := range k.noticed {
		if g.toTell.local {
			g.counted("memory.events.local")
		}
		if g.toTell.events {
			g.counted("memory.events")
		}
		g.toTell.local, g.toTell.events = false, false
	}
	k.noticed = k.noticed[:0]
}

// Kills are the OOM kills so far.
func (k *Kernel) Kills() []Kill {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.kills)
}

// Calm has no process want more memory than it has, or 4 MiB where it starts later, nor write files of its cgroup.
func (k *Kernel) Calm() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calm = true
	for _, p := range k.processes {
		p.Program = p.calmed(p.heap)
	}
}

func (k *Kernel) isCalm() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calm
}

// calmed is a program with so much heap at most.
func (p Program) calmed(heap uint64) Program {
	return Program{Heap: min(p.Heap, heap), Rate: p.Rate, Falls: p.Falls, Exit: p.Exit}
}

// Stalls says for how long cgroups have been standing at their memory.high, or at one above: more than half of each second was full stall.
func (k *Kernel) Stalls() map[string]time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	stalls := map[string]time.Duration{}
	for _, p := range k.processes {
		if p.standing > 0 {
			stalls[p.group.name] = max(stalls[p.group.name], p.standing)
		}
	}
	return stalls
}

// Cache is the page cache of a cgroup, in bytes.
type Cache struct {
	Active uint64 // that was read twice
	Again  uint64 // that was read again after it had been reclaimed, so far
	Gave   uint64 // that writes of its memory.reclaim have freed, so far
}

// Cached is the page cache of each cgroup.
func (k *Kernel) Cached() map[string]Cache {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[string]Cache{}
	for name, g := range k.groups {
		all[name] = Cache{g.total(active), g.refault, g.gave}
	}
	return all
}

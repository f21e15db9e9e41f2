package cgroup

// Knob is a file that this package writes.
type Knob string

// The files that this package writes, and no others.
const (
	MemoryMin  Knob = "memory.min"
	MemoryLow  Knob = "memory.low"
	MemoryHigh Knob = "memory.high"
	CpusetMems Knob = "cpuset.mems"
)

// Max is what a limit file holds when it says "max".
const Max = 1<<64 - 1

// Write is one write to a knob, as told to the function given by OnWrite.
type Write struct {
	Cgroup string
	Knob   Knob
	Text   string
}

// Tree is a cgroup v2 hierarchy. Paths are relative to its root; what is not below kubepods cannot be reached.
// It is safe for concurrent use.
type Tree struct{}

// Option changes how a Tree works.
type Option func(*Tree)

// Plain is for an ordinary folder tree in place of a cgroup mount (tests, simulation): a missing file reads as the kernel's
// default, and a write makes it.
func Plain() Option { return func(*Tree) {} }

// OnWrite has every write told to f after it succeeded. f must not call the tree.
func OnWrite(f func(Write)) Option { return func(*Tree) {} }

// Open opens the hierarchy mounted at root, usually /sys/fs/cgroup.
func Open(root string, options ...Option) (*Tree, error) { return nil, errNotYet }

// RequireUnified says why root is no pure cgroup v2 hierarchy with the memory and cpuset controllers, or nil.
func RequireUnified(root string) error { return errNotYet }

// Close lets go of the root folder.
func (t *Tree) Close() error { return errNotYet }

// Root is the folder that was opened.
func (t *Tree) Root() string { return "" }

// Exists tells whether there is such a cgroup.
func (t *Tree) Exists(cgroup string) bool { return false }

// Get reads memory.min, memory.low or memory.high in bytes; Max for "max".
func (t *Tree) Get(cgroup string, knob Knob) (uint64, error) { return 0, errNotYet }

// Set writes memory.min, memory.low or memory.high in bytes; Max as "max".
func (t *Tree) Set(cgroup string, knob Knob, bytes uint64) error { return errNotYet }

// Mems reads cpuset.mems, "" when the cgroup takes its parent's nodes.
func (t *Tree) Mems(cgroup string) (string, error) { return "", errNotYet }

// SetMems writes cpuset.mems.
func (t *Tree) SetMems(cgroup, nodes string) error { return errNotYet }

// EffectiveMems reads cpuset.mems.effective: the nodes that the cgroup may really use.
func (t *Tree) EffectiveMems(cgroup string) (string, error) { return "", errNotYet }

// Leaves are the cgroups that hold a container's values: its own, and crun's "container" below it where there is one.
// Outer comes first. A value that is loosened must be written to all.
func (t *Tree) Leaves(container string) []string { return nil }

// Limit reads memory.max in bytes; Max for "max".
func (t *Tree) Limit(cgroup string) (uint64, error) { return 0, errNotYet }

// Current reads memory.current in bytes.
func (t *Tree) Current(cgroup string) (uint64, error) { return 0, errNotYet }

// Procs reads cgroup.procs.
func (t *Tree) Procs(cgroup string) ([]int, error) { return nil, errNotYet }

// Events are the counters of memory.events.
type Events struct{ Low, High, Max, OOM, OOMKill, OOMGroupKill uint64 }

// Events reads memory.events, which counts the whole subtree.
func (t *Tree) Events(cgroup string) (Events, error) { return Events{}, errNotYet }

// LocalEvents reads memory.events.local, which counts this cgroup alone.
func (t *Tree) LocalEvents(cgroup string) (Events, error) { return Events{}, errNotYet }

// Pressure is memory.pressure (PSI): shares of time in which some or all tasks waited for memory.
type Pressure struct{ Some, Full PressureLine }

// PressureLine is one line of memory.pressure. Averages are percentages, Total is in microseconds.
type PressureLine struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}

// Pressure reads memory.pressure; false where the kernel keeps none.
func (t *Tree) Pressure(cgroup string) (Pressure, bool, error) { return Pressure{}, false, errNotYet }

// Stat reads memory.stat: bytes, pages scanned and events by name.
func (t *Tree) Stat(cgroup string) (map[string]uint64, error) { return nil, errNotYet }

// NUMAStat reads memory.numa_stat: bytes by kind ("anon", "file", …) and NUMA node; nil on a kernel without NUMA.
func (t *Tree) NUMAStat(cgroup string) (map[string]map[int]uint64, error) { return nil, errNotYet }

// Reclaim asks the kernel to reclaim so many bytes (memory.reclaim, kernel 5.19). It returns ErrReclaimedLess when the
// kernel found less, and an error that is fs.ErrNotExist where it has no such file.
func (t *Tree) Reclaim(cgroup string, bytes uint64) error { return errNotYet }

// Package oom says of each OOM kill which limit was hit, what filled it, who did, and what to change.
//
// The kernel's counters are the evidence (Documentation/admin-guide/cgroup-v2.rst, "memory.events"): oom of memory.events.local moves at
// the cgroup whose limit was hit, oom_kill at the one that lost a process. Where no limit was hit, the node or the NUMA nodes of a cpuset
// had no memory left (mm/oom_kill.c, constrained_alloc). What a killed process held is gone when the files are read; page cache, files in
// memory and kernel memory are not. So what is missing up to the limit was the processes'.
//
// Judge decides and knows no kernel. Recorder reads the kernel's files when a counter moves, and keeps the verdicts in a file.
package oom

import (
	"cmp"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Level is where memory ran out.
type Level string

// The levels: limits of cgroups from the container up, then what no limit bounds.
const (
	Container    Level = "container"
	Pod          Level = "pod"
	Parent       Level = "parent" // kubepods, or a QoS class below it
	NUMANode     Level = "numa_node"
	Node         Level = "node"
	UnknownLevel Level = "unknown"
)

// Levels are all of them.
func Levels() []Level { return []Level{Container, Pod, Parent, NUMANode, Node, UnknownLevel} }

// Cause is what most of the memory was.
type Cause string

// The causes.
const (
	Processes    Cause = "processes"  // anonymous memory: heaps and stacks
	PageCache    Cause = "page_cache" // that could not be given back in time
	Tmpfs        Cause = "tmpfs"      // files in memory: emptyDir with the medium Memory, /dev/shm, and shared memory
	KernelMemory Cause = "kernel"     // slab, sockets, page tables
	UnknownCause Cause = "unknown"
)

// Causes are all of them.
func Causes() []Cause { return []Cause{Processes, PageCache, Tmpfs, KernelMemory, UnknownCause} }

// Held is what memory is used for, in bytes.
type Held struct {
	Processes uint64 `json:"processes"`
	PageCache uint64 `json:"pageCache"`
	// Unwritten is the part of PageCache that the disk has not taken yet.
	Unwritten uint64 `json:"unwritten"`
	Tmpfs     uint64 `json:"tmpfs"`
	Kernel    uint64 `json:"kernel"`
}

func (h Held) total() uint64 { return h.Processes + h.PageCache + h.Tmpfs + h.Kernel }

// filledTo is what there was when it was so many bytes: what is missing was the killed processes'.
func (h Held) filledTo(bytes uint64) Held {
	h.Processes += less(bytes, h.total())
	return h
}

// reclaimed leaves out page cache that is not there after the kill. It outlives processes: so the kernel had reclaimed it for them before.
func (h Held) reclaimed(after Held) Held {
	h.PageCache = min(h.PageCache, after.PageCache)
	h.Unwritten = min(h.Unwritten, h.PageCache)
	return h
}

// waits reports whether a sixteenth of it waits for the disk: the kernel would have reclaimed the rest of the page cache and killed nobody.
func (h Held) waits() bool { return h.Unwritten > h.total()/16 }

// cause is page cache where a part of it waits for the disk; otherwise it is the largest part.
func (h Held) cause() Cause {
	if h.waits() {
		return PageCache
	}
	type part struct {
		cause Cause
		bytes uint64
	}
	most := slices.MaxFunc([]part{{Processes, h.Processes}, {PageCache, h.PageCache}, {Tmpfs, h.Tmpfs}, {KernelMemory, h.Kernel}},
		func(a, b part) int { return cmp.Compare(a.bytes, b.bytes) })
	if most.bytes == 0 {
		return UnknownCause
	}
	return most.cause
}

// Reading is what was read of the victim's cgroup, or of one above it, after a kill.
type Reading struct {
	Cgroup string
	Level  Level // Container, Pod or Parent
	// Hit is set where its own limit was hit, and Below where its own or one below it was.
	Hit, Below bool
	// Limit is memory.max in bytes, cgroup.Max where there is none.
	Limit uint64
	Held  Held
	// Gone is set where the cgroup was not there any more; only those above it say something then.
	Gone bool
}

// NodeAtKill is a NUMA node after a kill, in bytes.
type NodeAtKill struct {
	ID        int    `json:"id"`
	Free      uint64 `json:"free"`
	Allocated uint64 `json:"allocated"` // to containers
}

// User is a container, a pod or all that is outside of pods, with its memory in bytes.
type User struct {
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	// Outside is set for the node's own processes.
	Outside bool `json:"outsideOfPods,omitempty"`
	// Used is what it had when the kernel killed; on the victim's NUMA nodes alone where they ran out.
	Used uint64 `json:"used"`
	// Share is what it may count on: its request, its allocation on those NUMA nodes, what is reserved for the node.
	Share uint64 `json:"share"`
	// Limit is 0 where there is none.
	Limit uint64 `json:"limit,omitempty"`
	// Order is its oom_score_adj and the source of that, if Verdict.Order is set.
	Order string `json:"order,omitempty"`

	victim bool
}

// atLimit reports whether a container has about as much as it may have alone. The limit of a pod is the sum of its containers', and
// its sandbox needs a little of it: so the pod's is hit first.
func (u User) atLimit() bool { return u.Limit > 0 && u.Used >= u.Limit-u.Limit/16 }

// over is how much more it uses than its share.
func (u User) over() uint64 { return less(u.Used, u.Share) }

// Kill is what is known of a kill.
type Kill struct {
	// At is when it was noticed. After is set if no daemon watched since then, or could read the pod, and Away if none watched.
	At, After time.Time
	Away      bool
	// UID, ID and Nodes are of the victim; it is one of Users, unless it is not known which container of the pod it was.
	Victim User
	UID    string
	ID     string
	Nodes  nodeset.Set
	// Kills are of processes, or of the container as a whole (memory.oom.group) where Whole is set.
	Kills uint64
	Whole bool
	// Chain is the victim's cgroup and those above it, up to kubepods.
	Chain []Reading
	// Users share what ran out: the pod's containers, all pods, or all containers, as Hit says.
	Users []User
	// Memory are the NUMA nodes, and Reserve the free memory, in bytes, that the kernel keeps on all of them (min_free_kbytes).
	Memory  []NodeAtKill
	Reserve uint64
	// Peak is memory.peak of the victim, in bytes, where it was reached in the last half minute, else 0.
	Peak uint64
	// Before is what the victim held when it was last looked at, at most a minute earlier; nil when it was not.
	Before *Sample
	// Unread are the pod's containers that could not be read.
	Unread []string
}

// Verdict is what is said of a kill. Its JSON is a row of the file of verdicts.
type Verdict struct {
	Time time.Time `json:"time"`
	// After is set if no daemon watched, or could read the pod, between it and Time.
	After     time.Time `json:"after,omitzero"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	UID       string    `json:"uid"`
	Container string    `json:"container,omitempty"`
	ID        string    `json:"id,omitempty"`
	// Kills are of processes, or of the whole container (memory.oom.group).
	Kills uint64 `json:"kills"`
	Whole bool   `json:"wholeContainer"`
	Level Level  `json:"level"`
	Cause Cause  `json:"cause"`
	// Cgroup and Limit, in bytes, are whose limit was hit; absent where none was.
	Cgroup string `json:"cgroup,omitempty"`
	Limit  uint64 `json:"limit,omitempty"`
	Held   *Held  `json:"held,omitempty"`
	// Culprit used most beyond its share of what ran out; nil where that is not known.
	Culprit *User `json:"culprit,omitempty"`
	// Itself is set where the culprit is the victim.
	Itself bool `json:"itself,omitempty"`
	// Order is the victim's oom_score_adj and the source of that, if this plugin has set it or the culprit's: the kernel chose by it.
	Order  string       `json:"order,omitempty"`
	Nodes  nodeset.Set  `json:"numaNodes,omitempty"` // that the victim may use, where they ran out
	Memory []NodeAtKill `json:"memory,omitempty"`    // of the NUMA nodes, where they ran out
	// Unread are the pod's containers that could not be read: one of them may have used most.
	Unread []string `json:"unread,omitempty"`
	// Unknown says why the cause, or the level too, is not known.
	Unknown string   `json:"unknown,omitempty"`
	Change  string   `json:"change"`
	Samples []Sample `json:"samples,omitempty"`
}

const nobodyWatched = "nobody watched"

// Hit is where memory ran out, and the place of that cgroup in the chain, -1 where no limit of a cgroup was hit.
func (k Kill) Hit() (Level, int) {
	for i, r := range k.Chain {
		switch {
		case k.Away && r.Level == Parent: // its limit may have been hit for another pod
			return UnknownLevel, -1
		case r.Hit, r.Below && i == 0: // or that of a cgroup that the container made for itself
			return r.Level, i
		}
	}
	switch {
	case k.Away || len(k.Chain) == 0:
		return UnknownLevel, -1
	case k.bound():
		return NUMANode, -1
	}
	return Node, -1
}

// bound reports whether the victim was kept to NUMA nodes while others had memory: the kernel kills for want of memory on the node only
// when none of the nodes has any left.
func (k Kill) bound() bool {
	var elsewhere uint64
	for _, m := range k.Memory {
		if !k.Nodes.Empty() && !k.Nodes.Has(m.ID) {
			elsewhere += m.Free
		}
	}
	return elsewhere > 2*k.Reserve
}

// Judge says what is known of a kill, and no more.
func Judge(k Kill) Verdict {
	level, at := k.Hit()
	v := Verdict{
		Time: k.At, Namespace: k.Victim.Namespace, Pod: k.Victim.Pod, Container: k.Victim.Container, UID: k.UID, ID: k.ID, After: k.After,
		Kills: k.Kills, Whole: k.Whole, Level: level, Cause: UnknownCause, Unread: k.Unread,
	}
	if at >= 0 {
		v.Cgroup, v.Limit = k.Chain[at].Cgroup, k.Chain[at].limit()
	}
	if level == NUMANode {
		v.Nodes, v.Memory = k.Nodes, k.Memory
	}
	v.Held, v.Unknown = k.held(level, at)
	if v.Held != nil {
		v.Cause = v.Held.cause()
	}
	v.Culprit, v.Itself = k.culprit(level, at)
	v.Change = v.change()
	return v
}

// held is what filled a limit, or what the victim held where none was hit; nil, and why, where that is not known.
func (k Kill) held(level Level, at int) (*Held, string) {
	switch {
	case k.Away, level == UnknownLevel:
		return nil, nobodyWatched
	case at >= 0 && !k.Chain[at].Gone && k.Chain[at].limit() > 0:
		held := k.Chain[at].atTheKill(k.Before)
		return &held, ""
	case k.Before != nil:
		held := k.Before.Held
		if !k.Chain[0].Gone {
			held = held.reclaimed(k.Chain[0].Held)
		}
		return &held, ""
	case at < 0 && k.Peak > 0 && !k.Chain[0].Gone:
		held := k.Chain[0].Held.filledTo(k.Peak)
		return &held, ""
	case at < 0:
		return nil, "the victim was not looked at before it was killed"
	}
	return nil, "the cgroup had gone before it could be read"
}

// atTheKill is what filled the limit: what a sample of the victim shows that had reached it, less the page cache that has gone since, or else
// what is there. What the killed processes held is missing, for it has been freed. memory.current was read at another moment, and tells
// nothing of what is in the sample.
func (r Reading) atTheKill(before *Sample) Held {
	full := r.Limit - r.Limit/8
	if r.Level == Container && before != nil && r.Held.total() < full && before.Held.total() >= full {
		return before.Held.reclaimed(r.Held).filledTo(before.Held.total())
	}
	return r.Held.filledTo(r.Limit)
}

// culprit is who used most beyond its share of what ran out.
func (k Kill) culprit(level Level, at int) (*User, bool) {
	switch {
	case level == UnknownLevel:
		return nil, false
	case level == Container:
		self := k.Victim
		self.Used = k.Chain[at].limit()
		return &self, true
	case len(k.Users) == 0:
		return nil, false
	}
	users := slices.Clone(k.Users)
	for i := range users {
		if users[i].victim { // what it had has been freed, or is being freed
			users[i].Used = max(users[i].Used, k.victimUsed(users[i].Used, at))
		}
	}
	most := slices.MaxFunc(users, func(a, b User) int {
		return cmp.Or(cmp.Compare(a.over(), b.over()), cmp.Compare(a.Used, b.Used))
	})
	if most.Used == 0 {
		return nil, false
	}
	return &most, most.victim
}

// limit is 0 where there is none.
func (r Reading) limit() uint64 {
	if r.Limit == cgroup.Max {
		return 0
	}
	return r.Limit
}

// victimUsed is what the victim had when it was killed, in bytes: what it has left and what is missing of the limit that was hit, or else its peak.
func (k Kill) victimUsed(left uint64, at int) uint64 {
	if at < 0 || k.Chain[at].limit() == 0 {
		return less(k.Peak, k.Chain[0].Held.PageCache)
	}
	return left + less(k.Chain[at].Limit, k.Chain[at].Held.total())
}

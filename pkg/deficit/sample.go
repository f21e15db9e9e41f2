// Package deficit computes whether allocations hold. An allocation is a number; the memory behind it lies wherever the kernel has
// put it. What is unused on a NUMA node is what its allocations have there and do not use yet; available is the memory that the
// kernel can give them without an OOM kill. The package is pure: it reads no file.
package deficit

import (
	"math/bits"
	"slices"
	"time"
)

// NodeMemory is what is unused and available on a NUMA node, in bytes.
type NodeMemory struct {
	ID int
	// Unused is what allocations have on the node and do not use yet.
	Unused uint64
	// Free is the kernel's MemFree of the node.
	Free uint64
	// Reclaimable are the node's file pages that neither an allocation nor a protection keeps.
	Reclaimable uint64
	// Allocated is what all allocations had on the node then, used or not.
	Allocated uint64
}

// After is the node once allocations have another sum on it: what was allocated since is unused, what was released is not.
func (n NodeMemory) After(allocated uint64) NodeMemory {
	if allocated >= n.Allocated {
		n.Unused += allocated - n.Allocated
	} else {
		n.Unused -= min(n.Unused, n.Allocated-allocated)
	}
	n.Allocated = allocated
	return n
}

// available is what the kernel has free, or can reclaim, for what is allocated and unused.
func (n NodeMemory) available() uint64 { return n.Free + n.Reclaimable }

// Deficit is what is allocated and unused beyond what is available: 0 while the allocations hold.
func (n NodeMemory) Deficit() uint64 { return n.Unused - min(n.Unused, n.available()) }

// Slack is what is available beyond what is allocated and unused.
func (n NodeMemory) Slack() uint64 { return n.available() - min(n.available(), n.Unused) }

// Sample is what was found on all nodes at a moment. It never changes.
type Sample struct {
	At time.Time
	// Nodes are sorted by id; nil when they are not known.
	Nodes []NodeMemory
	// Unknown says why they are not; "" when they are.
	Unknown string
	// Unused is what single cgroups have allocated and do not use, by path, without those that use all of it.
	Unused map[string][]Amount
	// Unread says why cgroups are not counted, by path: nil where all could be read.
	Unread map[string]string
	// MemInfo is what the kernel said of the nodes, in the order in which it was read.
	MemInfo []MemInfo
}

// Known reports whether there is a sample.
func (s *Sample) Known() bool { return s != nil && s.Unknown == "" && len(s.Nodes) > 0 }

// Deficit is what all nodes together lack.
func (s *Sample) Deficit() (bytes uint64) {
	if s.Known() {
		for _, n := range s.Nodes {
			bytes += n.Deficit()
		}
	}
	return bytes
}

// Overcommitted reports whether a node lacks more than samples of different moments differ by.
func (s *Sample) Overcommitted() bool {
	return s.Known() && slices.ContainsFunc(s.Nodes, NodeMemory.overcommitted)
}

// Stands reports whether what was read of the nodes later changes little: none has lost more than half of its slack since.
func (s *Sample) Stands(later []MemInfo) bool {
	if !s.Known() || len(later) != len(s.MemInfo) {
		return false
	}
	for i, now := range later {
		then := s.MemInfo[i]
		if now.Node != then.Node || now.Free+now.File+s.Node(now.Node).Slack()/2 < then.Free+then.File {
			return false
		}
	}
	return true
}

// leastDeficit, in bytes, is more than samples of different moments differ by.
const leastDeficit = 16 << 20

func (n NodeMemory) overcommitted() bool { return n.Deficit() >= leastDeficit }

// Node returns a node of the sample; nil for one that is not known.
func (s *Sample) Node(id int) *NodeMemory {
	if !s.Known() {
		return nil
	}
	for i := range s.Nodes {
		if s.Nodes[i].ID == id {
			return &s.Nodes[i]
		}
	}
	return nil
}

// Amount is a number of bytes on a NUMA node.
type Amount struct {
	Node  int
	Bytes uint64
}

// MemInfo is what the kernel says of a node: MemFree, and its file pages that are on the LRU lists.
type MemInfo struct {
	Node       int
	Free, File uint64
}

// Pages are a cgroup's memory on a node.
type Pages struct {
	Node int
	// Resident is all of it, File its file pages that are on the LRU lists.
	Resident, File uint64
}

// Cgroup is a cgroup that has an allocation, or is protected.
type Cgroup struct {
	Path string
	// Allocated are sorted by node, each node once; empty without an allocation.
	Allocated []Amount
	// Protected is the larger of memory.min and memory.low.
	Protected uint64
	Pages     []Pages
	// Unread says why Pages are not known; "" where they are. Nothing of its allocation counts as unused.
	Unread string
}

// unused is what a cgroup's allocation has on its nodes and does not use yet, without nodes where that is nothing. An allocation on
// several nodes may use any of them: what it uses of one beyond its part of it does not count on the others.
func (c Cgroup) unused() []Amount {
	var allocated, resident, missing uint64
	var unused []Amount
	for _, a := range c.Allocated {
		used := c.pages(a.Node).Resident
		allocated, resident = allocated+a.Bytes, resident+used
		if used < a.Bytes {
			unused = append(unused, Amount{a.Node, a.Bytes - used})
			missing += a.Bytes - used
		}
	}
	rest := allocated - min(allocated, resident)
	switch rest {
	case 0:
		return nil
	case missing:
		return unused
	}
	for i := range unused { // each node in proportion; rounding leaves at most a byte a node to the last
		unused[i].Bytes = share(unused[i].Bytes, rest, missing)
	}
	return slices.DeleteFunc(unused, func(a Amount) bool { return a.Bytes == 0 })
}

// keeps are a cgroup's file pages that the kernel should not reclaim for others: all of one that has an allocation, for they are
// part of what it uses of it, and else those within its protection.
func (c Cgroup) keeps(p Pages) uint64 {
	if len(c.Allocated) > 0 {
		return p.File
	}
	var resident, file uint64
	for _, p := range c.Pages {
		resident, file = resident+p.Resident, file+p.File
	}
	reclaimable := min(file, resident-min(resident, c.Protected))
	return p.File - share(p.File, reclaimable, file)
}

func (c Cgroup) pages(node int) Pages {
	for _, p := range c.Pages {
		if p.Node == node {
			return p
		}
	}
	return Pages{Node: node}
}

// share is value × part ÷ whole, rounded down; part is at most whole.
func share(value, part, whole uint64) uint64 {
	if whole == 0 || part >= whole {
		return value
	}
	high, low := bits.Mul64(value, part)
	result, _ := bits.Div64(high, low, whole) // high < whole, for part < whole
	return result
}

// NewSample makes a sample of what was read. Nodes that the kernel does not name are left out.
func NewSample(at time.Time, memInfo []MemInfo, cgroups []Cgroup) *Sample {
	s := &Sample{At: at, Nodes: make([]NodeMemory, len(memInfo)), Unused: map[string][]Amount{}, MemInfo: memInfo}
	index := map[int]int{}
	for i, m := range memInfo {
		s.Nodes[i] = NodeMemory{ID: m.Node, Free: m.Free, Reclaimable: m.File}
		index[m.Node] = i
	}
	for _, c := range cgroups {
		for _, a := range c.Allocated {
			if i, ok := index[a.Node]; ok {
				s.Nodes[i].Allocated += a.Bytes
			}
		}
		if c.Unread != "" {
			if s.Unread == nil {
				s.Unread = map[string]string{}
			}
			s.Unread[c.Path] = c.Unread
			continue
		}
		unused := c.unused()
		for _, a := range unused {
			if i, ok := index[a.Node]; ok {
				s.Nodes[i].Unused += a.Bytes
			}
		}
		if len(unused) > 0 {
			s.Unused[c.Path] = unused
		}
		for _, p := range c.Pages {
			if i, ok := index[p.Node]; ok {
				n := &s.Nodes[i]
				n.Reclaimable -= min(n.Reclaimable, c.keeps(p))
			}
		}
	}
	slices.SortFunc(s.Nodes, func(a, b NodeMemory) int { return a.ID - b.ID })
	return s
}

// Package nodeset is a set of NUMA nodes with the text form of the kernel's node lists ("0-1,3").
package nodeset

import (
	"encoding/json"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Max is the number of distinct node ids a Set can hold: ids 0 to Max-1, as in the kubelet's bit mask.
const Max = 64

// MaxID is the largest node id of a kernel (CONFIG_NODES_SHIFT of 10). POWER9 has the memory of GPUs on nodes 250 to 255.
const MaxID = 1023

// Set is a set of NUMA node ids. The zero value is empty; Sets are compared with ==.
// As a number, bit i stands for node i, so a smaller number is the "narrower" mask of the Topology Manager.
type Set uint64

// Of returns the set of the given ids; ids outside 0 to Max-1 are left out.
func Of(ids ...int) Set {
	var s Set
	for _, id := range ids {
		if id >= 0 && id < Max {
			s |= 1 << id
		}
	}
	return s
}

// Parse reads the kernel's list format, for example "0-1,3" (cpuset.mems, /sys/devices/system/node/online). An empty or blank text is the
// empty set; an id that a Set does not hold is an error.
func Parse(text string) (s Set, err error) {
	if err := parse(text, Max-1, func(id int) { s |= 1 << id }); err != nil {
		return 0, err
	}
	return s, nil
}

// ParseIDs is Parse of what the kernel says, for any id up to MaxID. The ids are ascending.
func ParseIDs(text string) (ids []int, err error) {
	err = parse(text, MaxID, func(id int) { ids = append(ids, id) })
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// parse calls add for each id of a list.
func parse(text string, most int, add func(id int)) error {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		low, err := parseID(first, most)
		high := low
		if isRange && err == nil {
			high, err = parseID(last, most)
		}
		if err != nil {
			return fmt.Errorf("node list %q: %w", text, err)
		}
		if high < low {
			return fmt.Errorf("node list %q: range %q runs backwards", text, part)
		}
		for id := low; id <= high; id++ {
			add(id)
		}
	}
	return nil
}

func parseID(text string, most int) (int, error) {
	id, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is not a node id", text)
	}
	if int(id) > most {
		return 0, fmt.Errorf("node id %d is above %d", id, most)
	}
	return int(id), nil
}

// Has reports whether node id is in the set.
func (s Set) Has(id int) bool { return id >= 0 && id < Max && s&(1<<id) != 0 }

// Len returns the number of nodes.
func (s Set) Len() int { return bits.OnesCount64(uint64(s)) }

// Empty reports whether the set has no nodes.
func (s Set) Empty() bool { return s == 0 }

// First returns the lowest id, or -1 for the empty set.
func (s Set) First() int {
	if s == 0 {
		return -1
	}
	return bits.TrailingZeros64(uint64(s))
}

// All yields the ids in ascending order.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for rest := s; rest != 0; rest &= rest - 1 {
			if !yield(bits.TrailingZeros64(uint64(rest))) {
				return
			}
		}
	}
}

// IDs returns the ids in ascending order; never nil, so that it encodes as [] in JSON.
func (s Set) IDs() []int {
	ids := make([]int, 0, s.Len())
	for id := range s.All() {
		ids = append(ids, id)
	}
	return ids
}

// Union returns the nodes in s or t.
func (s Set) Union(t Set) Set { return s | t }

// Intersect returns the nodes in both s and t.
func (s Set) Intersect(t Set) Set { return s & t }

// Minus returns the nodes of s that are not in t.
func (s Set) Minus(t Set) Set { return s &^ t }

// SubsetOf reports whether every node of s is in t.
func (s Set) SubsetOf(t Set) bool { return s&^t == 0 }

// Remap returns where the kernel moves the pages of a node in s when a task may use the nodes of to instead (do_migrate_pages in
// mm/mempolicy.c): to the node at the same place in the new set. It is the node itself where they stay: without a new set, and
// where the sets differ in size, on a node of both.
func (s Set) Remap(id int, to Set) int {
	targets := to.IDs()
	if len(targets) == 0 || s.Len() != to.Len() && to.Has(id) {
		return id
	}
	return targets[(s&(1<<id-1)).Len()%len(targets)]
}

// String returns the kernel's list format, "" for the empty set.
func (s Set) String() string {
	var b []byte
	for rest := s; rest != 0; {
		low := bits.TrailingZeros64(uint64(rest))
		length := bits.TrailingZeros64(^(uint64(rest) >> low))
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(low), 10)
		if length > 1 {
			b = append(b, '-')
			b = strconv.AppendInt(b, int64(low+length-1), 10)
		}
		if low+length >= Max {
			break
		}
		rest &= ^Set(0) << (low + length)
	}
	return string(b)
}

// Named returns the set in a sentence: "node 0", "nodes 0-1".
func (s Set) Named() string {
	if s.Len() == 1 {
		return "node " + s.String()
	}
	return "nodes " + s.String()
}

// MarshalJSON writes the list of the ids.
func (s Set) MarshalJSON() ([]byte, error) { return json.Marshal(s.IDs()) }

// UnmarshalJSON reads a list of ids.
func (s *Set) UnmarshalJSON(data []byte) error {
	var ids []int
	if err := json.Unmarshal(data, &ids); err != nil {
		return fmt.Errorf("node list %s: want a list of ids: %w", data, err)
	}
	for _, id := range ids {
		if id < 0 || id >= Max {
			return fmt.Errorf("node list %s: node id %d is not between 0 and %d", data, id, Max-1)
		}
	}
	*s = Of(ids...)
	return nil
}

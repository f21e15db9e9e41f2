package memorymanager_test

import (
	"math/bits"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// brute follows the rules to the letter: every mask of nodes, every combination of hints. Masks here are over the
// positions of nodes, which have the order of their ids.
type brute struct {
	ids      []int
	types    []memorymanager.MemoryType
	alloc    [][]uint64 // by type and position
	reserved [][]uint64
	count    []int
	cells    []uint
	distance [][]int
	policy   topologymanager.Policy
	closest  bool
	strategy topologymanager.Strategy
	weights  map[memorymanager.MemoryType]uint64
	alignTo  topologymanager.AlignTo
	// drifted is set where the kubelet's own sums go wrong: it has drained another container's bytes.
	drifted bool

	containers []*bruteContainer // in the order of allocation
	podHint    map[string]bruteHint
	reusePod   string
	reuse      map[uint][]uint64
}

type bruteContainer struct {
	pod, name string
	kind      memoryqos.Kind
	mask      uint
	size      []uint64 // by type; absent types are not asked for
	asked     []bool
}

type bruteHint struct {
	mask      uint
	preferred bool
	// sum of the weighted scores, and of the weights: 0 is no score.
	sum, weight uint64
}

func (h bruteHint) score() uint64 {
	if h.weight == 0 {
		return 0
	}
	return h.sum / h.weight
}

// scored are the hints of one type's list.
func (b *brute) scored(hints []bruteHint, t int) []bruteHint {
	hints = slices.Clone(hints)
	weight, named := b.weights[b.types[t]]
	if !named {
		weight = 1
	}
	for i := range hints {
		var assigned, allocatable uint64
		for m := hints[i].mask; m != 0; m &= m - 1 {
			assigned += b.reserved[t][bits.TrailingZeros(m)]
			allocatable += b.alloc[t][bits.TrailingZeros(m)]
		}
		score := uint64(1)
		if allocatable > 0 {
			score = max(1, assigned*100/allocatable)
		}
		hints[i].sum, hints[i].weight = weight*score, weight
	}
	return hints
}

func (b *brute) all() uint { return 1<<len(b.ids) - 1 }

func (b *brute) free(t, i int) uint64 { return b.alloc[t][i] - b.reserved[t][i] }

func (b *brute) set(mask uint) (s nodeset.Set) {
	for i, id := range b.ids {
		if mask>>i&1 == 1 {
			s |= nodeset.Of(id)
		}
	}
	return s
}

func (b *brute) mask(s nodeset.Set) (mask uint) {
	for i, id := range b.ids {
		if s.Has(id) {
			mask |= 1 << i
		}
	}
	return mask
}

// reusable is never more than the pod's init containers still have allocated.
func (b *brute) reusable(pod string, mask uint, t int) (bytes uint64) {
	if b.reusePod != pod || b.reuse[mask] == nil {
		return 0
	}
	for _, c := range b.containers {
		if c.pod == pod && c.kind == memoryqos.Init && c.mask == mask && c.asked[t] {
			bytes += c.size[t]
		}
	}
	return min(bytes, b.reuse[mask][t])
}

// violates the group rules?
func (b *brute) violates(mask uint) bool {
	if bits.OnesCount(mask) == 1 {
		return false
	}
	for i := range b.ids {
		if mask>>i&1 == 1 && b.count[i] > 0 && b.cells[i] != mask {
			return true
		}
	}
	return false
}

// hints in the order of size, then lexicographically; the order decides nothing here, so it is that of numbers.
func (b *brute) hints(pod string, want []uint64, asked []bool) (hints []bruteHint) {
	least := len(b.ids)
	for mask := uint(1); mask <= b.all(); mask++ {
		enough := true
		for t := range b.types {
			if !asked[t] {
				continue
			}
			var has uint64
			for m := mask; m != 0; m &= m - 1 {
				has += b.alloc[t][bits.TrailingZeros(m)]
			}
			if enough = has >= want[t]; !enough {
				break
			}
		}
		if !enough {
			continue
		}
		size := bits.OnesCount(mask)
		least = min(least, size)
		if size == 1 && bits.OnesCount(b.cells[bits.TrailingZeros(mask)]) > 1 || b.violates(mask) {
			continue
		}
		for t := range b.types {
			if !asked[t] {
				continue
			}
			free := b.reusable(pod, mask, t)
			for m := mask; m != 0; m &= m - 1 {
				free += b.free(t, bits.TrailingZeros(m))
			}
			enough = enough && free >= want[t]
		}
		if enough {
			hints = append(hints, bruteHint{mask: mask})
		}
	}
	for i := range hints {
		hints[i].preferred = bits.OnesCount(hints[i].mask) == least
	}
	return hints
}

func narrowerMask(a, b uint) bool {
	if x, y := bits.OnesCount(a), bits.OnesCount(b); x != y {
		return x < y
	}
	return a < b
}

func (b *brute) average(mask uint) float64 {
	var sum, count float64
	for i := range b.ids {
		for j := range b.ids {
			if mask>>i&1 == 1 && mask>>j&1 == 1 {
				sum += float64(b.distance[i][j])
				count++
			}
		}
	}
	return sum / count
}

// better of two hints that are equally preferred.
func (b *brute) better(candidate, current bruteHint) bool {
	if candidate.mask == current.mask {
		return false
	}
	if bits.OnesCount(candidate.mask) == bits.OnesCount(current.mask) {
		if b.closest && b.policy != topologymanager.SingleNUMANode {
			if x, y := b.average(candidate.mask), b.average(current.mask); x != y {
				return x < y
			}
		}
		if x, y := candidate.score(), current.score(); x > 0 && y > 0 && x != y {
			switch b.strategy {
			case topologymanager.MostAllocated:
				return x > y
			case topologymanager.LeastAllocated:
				return x < y
			}
		}
	}
	return narrowerMask(candidate.mask, current.mask)
}

// pick compares a merged hint with the best one so far. Not preferred ones creep up to the wanted size.
func (b *brute) pick(current *bruteHint, candidate bruteHint, size int) *bruteHint {
	switch {
	case candidate.mask == 0:
		return current
	case current == nil:
		return &candidate
	case candidate.preferred != current.preferred:
		if candidate.preferred {
			return &candidate
		}
		return current
	}
	take := b.better(candidate, *current)
	if !candidate.preferred {
		has, is := bits.OnesCount(candidate.mask), bits.OnesCount(current.mask)
		switch {
		case is > size:
		case is == size:
			take = take && has == size
		case has > size:
			take = false
		case has != is:
			take = has > is
		}
	}
	if take {
		return &candidate
	}
	return current
}

// merge is the cross product. A list without members has no combinations; nil is a list without preference.
// A device that is near any of several nodes bounds no intersection: the largest is taken.
func (b *brute) merge(lists [][]bruteHint, near bool) *bruteHint {
	size := 0
	if near {
		size = len(b.ids)
	}
	for _, list := range lists {
		least := 0
		for _, hint := range list {
			if n := bits.OnesCount(hint.mask); least == 0 || n < least {
				least = n
			}
		}
		size = max(size, least)
	}
	var best *bruteHint
	if len(b.ids) <= 3 {
		b.product(lists, bruteHint{mask: b.all(), preferred: true}, 0, func(merged bruteHint) {
			best = b.pick(best, merged, size)
		})
		return best
	}
	b.combinations(lists, func(merged bruteHint) { best = b.pick(best, merged, size) })
	return best
}

func (b *brute) product(lists [][]bruteHint, merged bruteHint, first uint, yield func(bruteHint)) {
	if len(lists) == 0 {
		yield(merged)
		return
	}
	if lists[0] == nil {
		b.product(lists[1:], merged, first, yield)
		return
	}
	for _, hint := range lists[0] {
		f := first
		if f == 0 {
			f = hint.mask
		}
		b.product(lists[1:], bruteHint{
			mask: merged.mask & hint.mask, preferred: merged.preferred && hint.preferred && hint.mask == f,
			sum: merged.sum + hint.sum, weight: merged.weight + hint.weight,
		}, f, yield)
	}
}

// combinations are the distinct results of the cross product: those of equal, preferred hints, and the others.
func (b *brute) combinations(lists [][]bruteHint, yield func(bruteHint)) {
	var equal, other []bruteHint
	started := false
	for _, list := range lists {
		switch {
		case list == nil:
		case !started:
			started = true
			for _, hint := range list {
				if hint.preferred {
					equal = append(equal, hint)
				} else {
					other = append(other, hint)
				}
			}
		default:
			seen := make([][]bruteHint, b.all()+1)
			var stay, next []bruteHint
			join := func(a, hint bruteHint) {
				merged := bruteHint{a.mask & hint.mask, false, a.sum + hint.sum, a.weight + hint.weight}
				if merged.mask != 0 && !slices.Contains(seen[merged.mask], merged) {
					seen[merged.mask] = append(seen[merged.mask], merged)
					next = append(next, merged)
				}
			}
			for _, hint := range list {
				for _, a := range equal {
					if hint.preferred && hint.mask == a.mask {
						stay = append(stay, bruteHint{a.mask, true, a.sum + hint.sum, a.weight + hint.weight})
					} else {
						join(a, hint)
					}
				}
				for _, a := range other {
					join(a, hint)
				}
			}
			equal, other = stay, next
		}
	}
	if !started {
		equal = append(equal, bruteHint{mask: b.all(), preferred: true})
	}
	for _, merged := range equal {
		yield(merged)
	}
	for _, merged := range other {
		merged.preferred = false
		yield(merged)
	}
}

// affinity is the Topology Manager's answer for one request. Mask 0 is no affinity.
func (b *brute) affinity(hints []bruteHint, asked []bool, cpus uint, devices []topologymanager.Device) (bruteHint, bool) {
	if b.policy == topologymanager.None {
		return bruteHint{}, true
	}
	var lists [][]bruteHint
	for t, a := range asked {
		switch {
		case a && len(hints) == 0:
			lists = append(lists, nil)
		case a:
			lists = append(lists, b.scored(hints, t))
		}
	}
	lists = append(lists, b.aligned(cpus, devices)...)
	near := slices.ContainsFunc(devices, func(d topologymanager.Device) bool { return d.Any })
	if b.policy == topologymanager.SingleNUMANode {
		for i, list := range lists {
			if list == nil {
				continue
			}
			lists[i] = []bruteHint{}
			for _, hint := range list {
				if hint.preferred && bits.OnesCount(hint.mask) == 1 {
					lists[i] = append(lists[i], hint)
				}
			}
		}
	}
	best := bruteHint{mask: b.all()}
	if merged := b.merge(lists, near); merged != nil {
		best = *merged
	}
	if b.policy == topologymanager.SingleNUMANode && best.mask == b.all() {
		best.mask = 0
	}
	if b.policy == topologymanager.BestEffort && b.alignTo != topologymanager.AlignToKubelet &&
		best.mask == b.all() && !best.preferred && len(devices) > 0 && b.union(devices) != b.all() && !b.onlyCPUs(cpus, devices) {
		return b.affinity(hints, asked, b.cpusAligned(cpus, devices), nil)
	}
	return best, best.preferred || b.policy == topologymanager.BestEffort
}

func (b *brute) union(devices []topologymanager.Device) (union uint) {
	for _, d := range devices {
		union |= b.mask(d.Nodes)
	}
	return union
}

// onlyCPUs reports whether the devices do not count beside the CPUs.
func (b *brute) onlyCPUs(cpus uint, devices []topologymanager.Device) bool {
	return b.alignTo == topologymanager.AlignToCPUs && cpus != 0 && !b.agree(b.both(cpus, devices))
}

// cpusAligned are the CPUs, unless only the devices count.
func (b *brute) cpusAligned(cpus uint, devices []topologymanager.Device) uint {
	lists := b.aligned(cpus, devices)
	if len(lists) > 0 && len(lists[0]) == 1 && lists[0][0].mask == cpus {
		return cpus
	}
	return 0
}

func (b *brute) both(cpus uint, devices []topologymanager.Device) (lists [][]bruteHint) {
	if cpus != 0 {
		lists = append(lists, []bruteHint{{mask: cpus, preferred: true}})
	}
	for _, d := range devices {
		lists = append(lists, b.ofDevice(d))
	}
	return lists
}

// ofDevice is a device's list: its nodes, or each of the nodes that it is near, and all of them not preferred.
func (b *brute) ofDevice(d topologymanager.Device) (list []bruteHint) {
	mask := b.mask(d.Nodes)
	if !d.Any {
		return []bruteHint{{mask: mask, preferred: true}}
	}
	for m := mask; m != 0; m &= m - 1 {
		list = append(list, bruteHint{mask: m & -m, preferred: true})
	}
	return append(list, bruteHint{mask: mask})
}

// agree looks for a combination of equal, preferred hints.
func (b *brute) agree(lists [][]bruteHint) (found bool) {
	b.product(lists, bruteHint{mask: b.all(), preferred: true}, 0, func(merged bruteHint) {
		found = found || merged.preferred && merged.mask != 0
	})
	return found
}

// aligned are the lists of CPUs and devices that are merged with memory's.
func (b *brute) aligned(cpus uint, devices []topologymanager.Device) (lists [][]bruteHint) {
	var ofCPUs, ofDevices [][]bruteHint
	if cpus != 0 {
		ofCPUs = [][]bruteHint{{{mask: cpus, preferred: true}}}
	}
	for _, d := range devices {
		ofDevices = append(ofDevices, b.ofDevice(d))
	}
	both := slices.Concat(ofCPUs, ofDevices)
	if b.alignTo == topologymanager.AlignToKubelet || b.agree(both) {
		return both
	}
	if cpus != 0 && b.alignTo == topologymanager.AlignToCPUs {
		return ofCPUs
	}
	if !b.agree(ofDevices) {
		ofDevices = [][]bruteHint{{{mask: b.union(devices), preferred: true}}}
	}
	if both = slices.Concat(ofCPUs, ofDevices); b.agree(both) {
		return both
	}
	return ofDevices
}

func findBest(hints []bruteHint, within uint) (best *bruteHint) {
	for i := range hints {
		h := &hints[i]
		if h.mask&within != within {
			continue
		}
		if best == nil || h.preferred && !best.preferred || h.preferred == best.preferred && narrowerMask(h.mask, best.mask) {
			best = h
		}
	}
	return best
}

// allocate is where the hint leads to; 0 is an error.
func (b *brute) allocate(pod string, hints []bruteHint, hint bruteHint, want []uint64, asked []bool) uint {
	mask := hint.mask
	if mask == 0 {
		best := findBest(hints, 0)
		if best == nil || hint.preferred && !best.preferred {
			return 0
		}
		mask = best.mask
	}
	enough := true
	for t := range b.types {
		var free uint64
		for i := range b.ids {
			if mask>>i&1 == 1 {
				free += b.free(t, i)
			}
		}
		enough = enough && (!asked[t] || free >= want[t])
	}
	// One node of a group is not for one container alone: the group, when the pod made it, or another hint.
	if bits.OnesCount(mask) == 1 && b.alignTo != topologymanager.AlignToKubelet {
		if group := b.cells[bits.TrailingZeros(mask)]; group != mask {
			enough = false
			own := slices.ContainsFunc(b.containers, func(c *bruteContainer) bool { return c.pod == pod && c.mask == group })
			if own && slices.ContainsFunc(hints, func(h bruteHint) bool { return h.mask == group }) {
				return group
			}
		}
	}
	if !enough {
		best := findBest(hints, mask)
		if best == nil || hint.preferred && !best.preferred {
			return 0
		}
		mask = best.mask
	}
	if b.violates(mask) {
		return 0
	}
	return mask
}

func (b *brute) admit(c memorymanager.Container) (bruteHint, uint) {
	want, asked := b.request(c.Request)
	hints := b.hints(c.Pod, want, asked)
	hint, ok := b.podHint[c.Pod]
	if !ok {
		if hint, ok = b.affinity(hints, asked, b.mask(c.CPUs), c.Devices); !ok {
			return hint, 0
		}
	}
	mask := b.allocate(c.Pod, hints, hint, want, asked)
	if mask != 0 {
		b.enter(c, mask, want, asked)
	}
	return hint, mask
}

func (b *brute) request(r memorymanager.Request) (want []uint64, asked []bool) {
	want, asked = make([]uint64, len(b.types)), make([]bool, len(b.types))
	for _, amount := range r {
		t := slices.Index(b.types, amount.Type)
		want[t], asked[t] = amount.Bytes, true
	}
	return want, asked
}

func (b *brute) enter(c memorymanager.Container, mask uint, want []uint64, asked []bool) {
	for t := range b.types {
		if !asked[t] {
			continue
		}
		left := want[t] - min(want[t], b.reusable(c.Pod, mask, t))
		for i := range b.ids {
			if mask>>i&1 == 0 {
				continue
			}
			b.count[i]++
			b.cells[i] = mask
			part := min(left, b.free(t, i))
			b.reserved[t][i] += part
			left -= part
		}
	}
	if b.reusePod != c.Pod {
		b.reusePod, b.reuse = c.Pod, map[uint][]uint64{}
	}
	if b.reuse[mask] == nil {
		b.reuse[mask] = make([]uint64, len(b.types))
	}
	for t := range b.types {
		switch {
		case !asked[t]:
		case c.Kind == memoryqos.Init:
			b.reuse[mask][t] = max(b.reuse[mask][t], want[t])
		default:
			b.reuse[mask][t] -= min(b.reuse[mask][t], want[t])
		}
		left := want[t]
		for _, init := range b.containers {
			if init.pod == c.Pod && init.kind == memoryqos.Init && init.mask == mask && init.asked[t] && asked[t] {
				part := min(left, init.size[t])
				init.size[t] -= part
				left -= part
			}
		}
	}
	b.containers = append(b.containers, &bruteContainer{
		pod: c.Pod, name: c.Name, kind: c.Kind, mask: mask, size: slices.Clone(want), asked: asked,
	})
}

func (b *brute) release(pod, name string) bool {
	at := slices.IndexFunc(b.containers, func(c *bruteContainer) bool { return c.pod == pod && c.name == name })
	if at < 0 {
		return false
	}
	c := b.containers[at]
	b.containers = slices.Delete(b.containers, at, at+1)
	for t := range b.types {
		if !c.asked[t] {
			continue
		}
		left := c.size[t]
		for i := range b.ids {
			if c.mask>>i&1 == 0 {
				continue
			}
			if b.count[i]--; b.count[i] == 0 {
				b.cells[i] = 1 << i
			}
			part := min(left, b.reserved[t][i])
			b.reserved[t][i] -= part
			left -= part
		}
		b.drifted = b.drifted || left > 0
	}
	return true
}

// leftOver reports whether the kubelet has bytes allocated on a node that no container is on any more: another one's were freed.
func (b *brute) leftOver() bool {
	for i, count := range b.count {
		for t := range b.types {
			if count == 0 && b.reserved[t][i] > 0 {
				return true
			}
		}
	}
	return false
}

func (b *brute) releasePod(pod string) {
	for _, c := range slices.Clone(b.containers) {
		if c.pod == pod {
			b.release(pod, c.name)
		}
	}
	delete(b.podHint, pod)
}

// admitPod decides for a whole pod by what its containers need at one time; types of app containers only.
func (b *brute) admitPod(pod string, containers []memorymanager.Container) (bruteHint, bool) {
	want, asked := make([]uint64, len(b.types)), make([]bool, len(b.types))
	for t := range b.types {
		var apps, sidecars, peak uint64
		for _, c := range containers {
			w, a := b.request(c.Request)
			switch c.Kind {
			case memoryqos.App:
				apps += w[t]
				asked[t] = asked[t] || a[t]
			case memoryqos.Sidecar:
				sidecars += w[t]
			case memoryqos.Init:
				peak = max(peak, sidecars+w[t])
			}
		}
		want[t] = max(apps+sidecars, peak)
	}
	hint, ok := b.affinity(b.hints(pod, want, asked), asked, b.mask(containers[0].CPUs), containers[0].Devices)
	if ok {
		b.podHint[pod] = hint
	}
	return hint, ok
}

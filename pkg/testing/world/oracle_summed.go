package world

import (
	"bytes"
	"slices"
)

const summed Promise = "the node map is the sum of the allocations"

// allocationsSummed adds up the allocations of each group of NUMA nodes that containers span, each time that the state file is another one.
func (n *simulation) allocationsSummed() {
	f, text := n.stateFile(), n.allocated.text
	if len(text) == 0 || bytes.Equal(text, n.summed) {
		return
	}
	n.summed = text
	blocks := f.blocks()
	for id, node := range f.MachineState {
		assigned := 0
		for _, b := range blocks {
			if slices.Contains(b.NUMAAffinity, id) {
				assigned++
			}
		}
		if len(f.PodEntries) == 0 && node.NumberOfAssignments != assigned {
			n.broken(summed, "NUMA node %d has %d assignments, and %d allocations are on it", id, node.NumberOfAssignments, assigned)
		}
		for kind, m := range node.MemoryMap {
			if m.Free != less(m.Allocatable, m.Reserved) {
				n.broken(summed, "NUMA node %d has %+v of %s: free is not what is left", id, m, kind)
			}
			if node.Cells[0] != id { // the first of a group speaks for it
				continue
			}
			var sum, reserved uint64
			full := false
			for _, cell := range node.Cells {
				other := f.MachineState[cell].MemoryMap[kind]
				reserved, full = reserved+other.Reserved, full || other.Free == 0
			}
			for _, b := range blocks {
				if b.Type == kind && slices.ContainsFunc(b.NUMAAffinity, func(node int) bool { return slices.Contains(f.MachineState[id].Cells, node) }) {
					sum += b.Size
				}
			}
			// One that is allocated where its containers run may find too little there, also where claims have more now, and no table shows more than all.
			if reserved != sum && !(reserved < sum && full && (len(f.PodEntries) > 0 || n.scenario.hasClaims())) {
				n.broken(summed, "NUMA nodes %v have %d of %s allocated, and their containers %d", node.Cells, reserved, kind, sum)
			}
		}
	}
}

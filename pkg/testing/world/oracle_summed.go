package world

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
)

const summed Promise = "the node map is the sum of the allocations"

// wholeFile is a state file with what summed judges: machineState, the containers' allocations, and those of pods that share one. A file with
// such pods has all of it again under "data".
type wholeFile struct {
	MachineState map[string]struct {
		NumberOfAssignments int
		MemoryMap           map[string]struct{ Total, SystemReserved, Allocatable, Reserved, Free uint64 }
		Cells               []int
	} `json:"machineState"`
	Entries    map[string]map[string][]block             `json:"entries"`
	PodEntries map[string]struct{ MemoryBlocks []block } `json:"podEntries"`
	Data       string                                    `json:"data"`
}

// allocationsSummed adds up the allocations of each group of NUMA nodes that containers span, each time that the state file is another one.
func (n *simulation) allocationsSummed() {
	n.stateFile()
	text := n.allocated.text
	if len(text) == 0 || bytes.Equal(text, n.summed) {
		return
	}
	n.summed = text
	var f wholeFile
	if json.Unmarshal(text, &f) != nil || f.Data != "" && json.Unmarshal([]byte(f.Data), &f) != nil {
		return // stateFile says so
	}
	var blocks []block
	for uid, containers := range f.Entries {
		if whole, is := f.PodEntries[uid]; is { // whose containers have parts of it, which overlap
			blocks = append(blocks, whole.MemoryBlocks...)
			continue
		}
		for _, of := range containers {
			blocks = append(blocks, of...)
		}
	}
	for uid, whole := range f.PodEntries {
		if f.Entries[uid] == nil {
			blocks = append(blocks, whole.MemoryBlocks...)
		}
	}
	for id, node := range f.MachineState {
		number, _ := strconv.Atoi(id)
		assigned := 0
		for _, b := range blocks {
			if slices.Contains(b.NUMAAffinity, number) {
				assigned++
			}
		}
		if len(f.PodEntries) == 0 && node.NumberOfAssignments != assigned {
			n.broken(summed, "NUMA node %s has %d assignments, and %d allocations are on it", id, node.NumberOfAssignments, assigned)
		}
		for kind, m := range node.MemoryMap {
			if m.Free != less(m.Allocatable, m.Reserved) {
				n.broken(summed, "NUMA node %s has %+v of %s: free is not what is left", id, m, kind)
			}
			if node.Cells[0] != number { // the first of a group speaks for it
				continue
			}
			var sum, reserved uint64
			full := false
			for _, cell := range node.Cells {
				other := f.MachineState[strconv.Itoa(cell)].MemoryMap[kind]
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

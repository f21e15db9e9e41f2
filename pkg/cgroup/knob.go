package cgroup

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Knob is a file that this program writes.
type Knob string

// The files that this program writes, and no others but memory.reclaim.
const (
	MemoryMin  Knob = "memory.min"
	MemoryLow  Knob = "memory.low"
	MemoryHigh Knob = "memory.high"
	CpusetMems Knob = "cpuset.mems"
	// MemoryOOMGroup is 1 if an OOM kill ends the whole cgroup, else 0 (kernel 4.19).
	MemoryOOMGroup Knob = "memory.oom.group"
)

// Parse parses a knob's file: bytes, with Max for "max"; for cpuset.mems a bit for each NUMA node.
func (k Knob) Parse(text []byte) (uint64, error) {
	if k == CpusetMems {
		nodes, err := nodeset.Parse(string(text))
		return uint64(nodes), err
	}
	return ParseLimit(text)
}

// Format returns the text of a value in a knob's file.
func (k Knob) Format(value uint64) string {
	if k == CpusetMems {
		return nodeset.Set(value).String()
	}
	return FormatLimit(value)
}

// Max stands for "max" in a limit file.
const Max = 1<<64 - 1

// defaults are the files of a new cgroup, as the kernel shows them: no protection and no limit
// (https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files).
var defaults = map[string]string{
	string(MemoryMin):      "0",
	string(MemoryLow):      "0",
	string(MemoryHigh):     "max",
	string(CpusetMems):     "",
	string(MemoryOOMGroup): "0",
	"memory.max":           "max",
	"memory.current":       "0",
}

// Default returns the text of a new cgroup's file; "" for a file that is not in the table.
func Default(file string) string { return defaults[file] }

// Default returns the value of a new cgroup's file in bytes; Max for "max".
func (k Knob) Default() uint64 {
	if defaults[string(k)] == FormatLimit(Max) {
		return Max
	}
	return 0
}

package cgroup

// Knob is a file that this program writes.
type Knob string

// The files that this program writes, and no others but memory.reclaim.
const (
	MemoryMin  Knob = "memory.min"
	MemoryLow  Knob = "memory.low"
	MemoryHigh Knob = "memory.high"
	CpusetMems Knob = "cpuset.mems"
)

// Max is what a limit file holds when it says "max".
const Max = 1<<64 - 1

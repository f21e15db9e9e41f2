package cgroup

import "github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"

// Target is what one cgroup should hold. A value that is not set is put back to the kernel's default if it was ours before,
// and is otherwise left alone.
type Target struct {
	Cgroup string
	Level  string
	Driver Driver
	Values memoryqos.Values
	// Mems is cpuset.mems, of a container; empty leaves it alone.
	Mems string
	// Fresh is set for a pod that began while this process ran: nothing that its files held before is ours.
	Fresh bool
	// ByRuntime says that the runtime is about to write the values: they are desired from now on, and nothing of them is
	// written or compared until a target says otherwise, or the Check of pkg/protect is called.
	ByRuntime bool
	// Seen is what the cgroup has just been read to hold, for one that may be new to the table; nil has it read.
	Seen *Seen
}

// Seen is what a cgroup was read to hold. What could not be read is nil.
type Seen struct {
	Values memoryqos.Values
	Mems   *string
}

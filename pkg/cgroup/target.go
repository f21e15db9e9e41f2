package cgroup

import "github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"

// Target holds the desired values of a cgroup. A value that is not set is restored to the kernel's default if this plugin wrote it before, and
// is otherwise left alone.
type Target struct {
	Cgroup string
	Level  string
	Driver Driver
	Values memoryqos.Values
	// Mems is cpuset.mems, of a container; empty leaves it alone.
	Mems string
	// Fresh is set for a pod that started while this process ran: its files held no values of this plugin before.
	Fresh bool
	// ByRuntime is set if the runtime is about to write the values. They are desired from now on, but not written or compared until a
	// target without ByRuntime, or Check of pkg/protect.
	ByRuntime bool
	// Seen holds values that were just read, for a cgroup that may be new to the table; if nil, the files are read.
	Seen *Seen
}

// Seen holds values that were read. Unreadable values are nil.
type Seen struct {
	Values memoryqos.Values
	Mems   *string
}

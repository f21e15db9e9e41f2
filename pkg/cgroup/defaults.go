package cgroup

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

package cgroup

// defaults are what the files of a new cgroup say, as the kernel shows it: no protection and no limit
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

// Default is what the file of a new cgroup says; "" for a file that is not in the table.
func Default(file string) string { return defaults[file] }

// Default is what a new cgroup has in the file, in bytes; Max for "max".
func (k Knob) Default() uint64 {
	if defaults[string(k)] == FormatLimit(Max) {
		return Max
	}
	return 0
}

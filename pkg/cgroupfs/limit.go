package cgroupfs

// Limit reads memory.max in bytes; Max for "max".
func (t *Tree) Limit(cgroup string) (uint64, error) { return t.Get(cgroup, "memory.max") }

// Current reads memory.current in bytes: the usage of the cgroup and all below it.
func (t *Tree) Current(cgroup string) (uint64, error) { return t.Get(cgroup, "memory.current") }

// Peak reads memory.peak in bytes: the highest usage of the cgroup and all below it (kernel 5.19).
func (t *Tree) Peak(cgroup string) (uint64, error) { return t.Get(cgroup, "memory.peak") }

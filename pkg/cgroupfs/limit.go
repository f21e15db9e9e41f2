package cgroupfs

import (
	"fmt"
	"path"
)

// Limit reads memory.max in bytes; Max for "max".
func (t *Tree) Limit(cgroup string) (uint64, error) { return t.Get(cgroup, "memory.max") }

// Current reads memory.current in bytes: what the cgroup and all below it use.
func (t *Tree) Current(cgroup string) (uint64, error) { return t.Get(cgroup, "memory.current") }

// bad says which file could not be understood.
func (t *Tree) bad(cgroup, file string, err error) error {
	return fmt.Errorf("parse %s: %w", path.Join(t.root, cgroup, file), err)
}

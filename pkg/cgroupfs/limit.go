package cgroupfs

import (
	"fmt"
	"path"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// Limit reads memory.max in bytes; Max for "max".
func (t *Tree) Limit(cgroup string) (uint64, error) { return t.limit(cgroup, "memory.max") }

// Current reads memory.current in bytes: what the cgroup and all below it use.
func (t *Tree) Current(cgroup string) (uint64, error) { return t.limit(cgroup, "memory.current") }

func (t *Tree) limit(dir, file string) (uint64, error) {
	data, err := t.line(dir, file)
	if err != nil {
		return 0, err
	}
	v, err := cgroup.ParseLimit(data)
	if err != nil {
		return 0, t.bad(dir, file, err)
	}
	return v, nil
}

// bad says which file could not be understood.
func (t *Tree) bad(cgroup, file string, err error) error {
	return fmt.Errorf("parse %s: %w", path.Join(t.root, cgroup, file), err)
}

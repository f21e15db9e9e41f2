package cgroup

import (
	"bytes"
	"fmt"
	"path"
	"strconv"
)

// Limit reads memory.max in bytes; Max for "max".
func (t *Tree) Limit(cgroup string) (uint64, error) { return t.limit(cgroup, "memory.max") }

// Current reads memory.current in bytes: what the cgroup and all below it use.
func (t *Tree) Current(cgroup string) (uint64, error) { return t.limit(cgroup, "memory.current") }

func (t *Tree) limit(cgroup, file string) (uint64, error) {
	data, err := t.line(cgroup, file)
	if err != nil {
		return 0, err
	}
	v, err := ParseLimit(data)
	if err != nil {
		return 0, t.bad(cgroup, file, err)
	}
	return v, nil
}

// ParseLimit reads a file with one number of bytes, or "max".
func ParseLimit(data []byte) (uint64, error) {
	text := bytes.TrimSpace(data)
	if string(text) == "max" {
		return Max, nil
	}
	v, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of bytes or max", string(text))
	}
	return v, nil
}

// bad says which file could not be understood.
func (t *Tree) bad(cgroup, file string, err error) error {
	return fmt.Errorf("parse %s: %w", path.Join(t.root, cgroup, file), err)
}

package cgroupfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// Values are the written files of a cgroup and its limit. A file that is missing or cannot be read is nil.
type Values struct {
	Min, Low, High, Limit *uint64 // bytes; Max for "max"
	Mems                  *string // the kernel's node list; "" if the cgroup uses its parent's nodes
}

var limits = [...]cgroup.Knob{cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh, "memory.max"}

// Values reads all values of a cgroup. A missing file is no error, but a missing cgroup is. With other errors it returns the values that it
// could read.
func (t *Tree) Values(dir string) (v Values, err error) {
	var errs []error
	missing, removed := false, false
	read := func(err error) bool {
		switch {
		case errors.Is(err, unix.ENOENT):
			missing = true
		case errors.Is(err, fs.ErrNotExist): // removed while the file was open
			removed = true
		default:
			errs = append(errs, err)
		}
		return err == nil
	}
	for i, into := range []**uint64{&v.Min, &v.Low, &v.High, &v.Limit} {
		if value, err := t.Get(dir, limits[i]); read(err) {
			*into = &value
		}
	}
	if mems, err := t.Mems(dir); read(err) {
		v.Mems = &mems
	}
	if removed || missing && t.Ended(dir) {
		return Values{}, fmt.Errorf("read cgroup %s: %w", path.Join(t.root, dir), fs.ErrNotExist)
	}
	return v, errors.Join(errs...)
}

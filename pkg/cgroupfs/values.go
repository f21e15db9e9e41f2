package cgroupfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// Values are what the files of a cgroup hold that this package writes, and its limit. A file that is not there, or cannot be
// read, is nil.
type Values struct {
	Min, Low, High, Limit *uint64 // bytes; Max for "max"
	Mems                  *string // as the kernel lists the nodes; "" when the cgroup takes its parent's
}

// Values reads all values of a cgroup. A file that is not there is no error, a cgroup that is not there is one. Beside other errors
// stands what could be read.
func (t *Tree) Values(dir string) (v Values, err error) {
	var (
		errs             []error
		missing, removed bool
		line             [128]byte // has room for nearly every file
	)
	read := func(file string) (data []byte, ok bool) {
		data, err := t.read(dir, file, '\n', line[:0])
		switch {
		case errors.Is(err, unix.ENOENT):
			missing = true
		case errors.Is(err, fs.ErrNotExist): // removed while the file was open
			removed = true
		case err != nil:
			errs = append(errs, err)
		}
		return data, err == nil
	}
	limit := func(file string) *uint64 {
		data, ok := read(file)
		if !ok {
			return nil
		}
		value, err := cgroup.ParseLimit(data)
		if err != nil {
			errs = append(errs, t.bad(dir, file, err))
			return nil
		}
		return &value
	}
	v.Min, v.Low, v.High = limit(string(cgroup.MemoryMin)), limit(string(cgroup.MemoryLow)), limit(string(cgroup.MemoryHigh))
	v.Limit = limit("memory.max")
	if data, ok := read(string(cgroup.CpusetMems)); ok {
		text := strings.TrimSpace(string(data))
		v.Mems = &text
	}
	if removed || missing && t.Ended(dir) {
		return Values{}, fmt.Errorf("read cgroup %s: %w", path.Join(t.root, dir), fs.ErrNotExist)
	}
	return v, errors.Join(errs...)
}

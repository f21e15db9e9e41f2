package cgroupfs

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrReclaimedLess means that the kernel reclaimed less than asked, or that a signal ended the call.
var ErrReclaimedLess = errors.New("reclaimed less than asked")

// Reclaim reclaims memory of a cgroup (memory.reclaim, kernel 5.19), which may take long. The error is ErrReclaimedLess if the kernel found
// less, and fs.ErrNotExist if it has no such file.
func (t *Tree) Reclaim(cgroup string, bytes uint64) error {
	return t.reclaim(cgroup, strconv.FormatUint(bytes, 10))
}

// ReclaimCache is Reclaim without swapping. The error is unix.EINVAL before kernel 6.9.
func (t *Tree) ReclaimCache(cgroup string, bytes uint64) error {
	return t.reclaim(cgroup, strconv.FormatUint(bytes, 10)+" swappiness=0")
}

func (t *Tree) reclaim(cgroup, text string) error {
	err := t.write(cgroup, "memory.reclaim", text, unix.O_WRONLY)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) { // not repeated after a signal, which would start again
		return ErrReclaimedLess
	}
	return err
}

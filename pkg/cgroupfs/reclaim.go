package cgroupfs

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrReclaimedLess is Reclaim's answer when the kernel found less to reclaim than it was asked for, or a signal ended it.
var ErrReclaimedLess = errors.New("reclaimed less than asked")

// Reclaim asks the kernel to reclaim so many bytes (memory.reclaim, kernel 5.19), which may take long. It returns
// ErrReclaimedLess when the kernel found less, and an error that is fs.ErrNotExist where it has no such file.
func (t *Tree) Reclaim(cgroup string, bytes uint64) error {
	return t.reclaim(cgroup, strconv.FormatUint(bytes, 10))
}

// ReclaimCache is Reclaim for page cache alone: nothing is swapped out. Its error is unix.EINVAL where the kernel cannot be told so (before
// 6.9).
func (t *Tree) ReclaimCache(cgroup string, bytes uint64) error {
	return t.reclaim(cgroup, strconv.FormatUint(bytes, 10)+" swappiness=0")
}

func (t *Tree) reclaim(cgroup, text string) error {
	err := t.write(cgroup, "memory.reclaim", text, unix.O_WRONLY)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) { // not repeated on a signal: that would start again
		return ErrReclaimedLess
	}
	return err
}

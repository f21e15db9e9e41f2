package cgroupfs

import (
	"errors"
	"fmt"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrReclaimedLess is Reclaim's answer when the kernel found less to reclaim than it was asked for, or a signal ended it.
var ErrReclaimedLess = errors.New("reclaimed less than asked")

// Reclaim asks the kernel to reclaim so many bytes (memory.reclaim, kernel 5.19), which may take long. It returns
// ErrReclaimedLess when the kernel found less, and an error that is fs.ErrNotExist where it has no such file.
func (t *Tree) Reclaim(cgroup string, bytes uint64) error {
	const file = "memory.reclaim"
	text := strconv.FormatUint(bytes, 10)
	fd, err := t.open(cgroup, file, unix.O_WRONLY)
	if err == nil {
		_, err = unix.Write(fd, []byte(text)) // not repeated on a signal: that would start again
		unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("write %q to %s: %w", text, path.Join(t.root, cgroup, file), reclaimed(err))
	}
	return nil
}

// reclaimed makes an error of what the kernel answers.
func reclaimed(err error) error {
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return ErrReclaimedLess
	}
	return gone(err)
}

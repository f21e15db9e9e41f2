package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNoPressure says that the kernel gives no pressure triggers for a cgroup: built without CONFIG_PSI, booted with
// psi=0, switched off in cgroup.pressure, or not for this process.
var ErrNoPressure = errors.New("the kernel gives no memory.pressure trigger for this cgroup")

// triggers waits on the pressure triggers of many cgroups with one descriptor and no timer
// (Documentation/accounting/psi.rst, "Monitoring for pressure thresholds").
type triggers struct {
	epoll int
	files map[int32]string
	byID  map[string]int32

	mu   sync.Mutex
	wake int // eventfd: ends wait; -1 when closed
}

func newTriggers() (*triggers, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create an epoll descriptor: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &event); err != nil {
		unix.Close(wake)
		unix.Close(epoll)
		return nil, fmt.Errorf("watch an eventfd: %w", err)
	}
	return &triggers{epoll: epoll, wake: wake, files: map[int32]string{}, byID: map[string]int32{}}, nil
}

// unprivilegedWindow is what windows must be a multiple of for a process without CAP_SYS_RESOURCE (kernel 6.5;
// psi_trigger_create in kernel/sched/psi.c): the period of the averages.
const unprivilegedWindow = 2 * time.Second

// add sets a trigger on a memory.pressure file: full stall of at least stall within window, 500 ms to 10 s. Where the
// kernel wants a longer window from this process, it gets one.
func (t *triggers) add(id, pressureFile string, stall, window time.Duration) error {
	fd, err := unix.Open(pressureFile, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s: %w", pressureFile, ErrNoPressure)
	case err != nil:
		return &fs.PathError{Op: "open", Path: pressureFile, Err: err}
	}
	if err = writeTrigger(fd, stall, window); errors.Is(err, unix.EINVAL) && window%unprivilegedWindow != 0 {
		err = writeTrigger(fd, stall, window-window%unprivilegedWindow+unprivilegedWindow)
	}
	if err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("%s: %w", pressureFile, ErrNoPressure)
		}
		return fmt.Errorf("%s: %w", pressureFile, err)
	}
	// Edge-triggered, because the file of a cgroup that is gone is ready for ever.
	event := unix.EpollEvent{Events: unix.EPOLLPRI | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(t.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		unix.Close(fd)
		return fmt.Errorf("wait for %s: %w", pressureFile, err)
	}
	t.files[event.Fd], t.byID[id] = id, event.Fd
	return nil
}

func writeTrigger(fd int, stall, window time.Duration) error {
	trigger := fmt.Sprintf("full %d %d", stall.Microseconds(), window.Microseconds())
	if _, err := unix.Write(fd, append([]byte(trigger), 0)); err != nil {
		return fmt.Errorf("write trigger %q: %w", trigger, err)
	}
	return nil
}

// remove takes the trigger of a container back. Removing one that is not there does nothing.
func (t *triggers) remove(id string) {
	fd, ok := t.byID[id]
	if !ok {
		return
	}
	unix.Close(int(fd)) // leaves the epoll set by itself
	delete(t.byID, id)
	delete(t.files, fd)
}

// wait blocks until a trigger fires, interrupt is called or the timeout passes (0 waits for ever), and returns the
// descriptors that fired; id translates them under the caller's lock.
func (t *triggers) wait(timeout time.Duration) ([]int32, error) {
	milliseconds := -1
	if timeout > 0 {
		milliseconds = int(timeout.Milliseconds()) + 1
	}
	var events [64]unix.EpollEvent
	n, err := unix.EpollWait(t.epoll, events[:], milliseconds)
	if errors.Is(err, unix.EINTR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("wait for pressure: %w", err)
	}
	var fired []int32
	for _, event := range events[:n] {
		if event.Fd == int32(t.wake) {
			var counter [8]byte
			_, _ = unix.Read(t.wake, counter[:])
			continue
		}
		fired = append(fired, event.Fd)
	}
	return fired, nil
}

// interrupt ends a wait, at any time and from any goroutine.
func (t *triggers) interrupt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wake >= 0 {
		_, _ = unix.Write(t.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// close frees all descriptors: nothing can be added any more.
func (t *triggers) close() {
	for id := range t.byID {
		t.remove(id)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	unix.Close(t.wake)
	unix.Close(t.epoll)
	t.wake, t.epoll = -1, -1
}

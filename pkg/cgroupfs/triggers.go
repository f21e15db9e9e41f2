package cgroupfs

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// epoll waits for the pressure triggers of many cgroups with one descriptor and no timer.
type epoll struct {
	tree *mounted
	fd   int

	mu   sync.Mutex     // also held while descriptors are closed, which does not wait
	set  map[int32]bool // descriptors of the triggers
	wake int            // eventfd: ends Wait; -1 when closed
}

func (m *mounted) Triggers() (Triggers, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create an epoll descriptor: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)}
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, wake, &event); err != nil {
		unix.Close(wake)
		unix.Close(fd)
		return nil, fmt.Errorf("watch an eventfd: %w", err)
	}
	return &epoll{tree: m, fd: fd, wake: wake, set: map[int32]bool{}}, nil
}

func (e *epoll) Add(cgroup string, stall, window time.Duration) (int32, error) {
	fd, err := e.tree.open(cgroup, "memory.pressure", unix.O_RDWR|unix.O_NONBLOCK)
	if err != nil {
		return 0, err
	}
	if err = e.add(fd, stall, window); err != nil {
		unix.Close(fd)
	}
	return int32(fd), err
}

// add sets a trigger on an open file.
func (e *epoll) add(fd int, stall, window time.Duration) error {
	trigger := fmt.Sprintf("full %d %d", stall.Microseconds(), window.Microseconds())
	if _, err := unix.Write(fd, append([]byte(trigger), 0)); err != nil {
		return fmt.Errorf("write trigger %q: %w", trigger, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	// Edge-triggered, because the file of a cgroup that is gone is ready forever.
	event := unix.EpollEvent{Events: unix.EPOLLPRI | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(e.fd, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("wait for the trigger: %v", err) // not %w: this EPERM means that an ordinary file has no triggers
	}
	e.set[event.Fd] = true
	return nil
}

func (e *epoll) Remove(id int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.set[id] {
		unix.Close(int(id)) // closing removes it from the epoll set
		delete(e.set, id)
	}
}

func (e *epoll) Wait(timeout time.Duration) ([]int32, error) {
	milliseconds := -1
	if timeout > 0 {
		milliseconds = int(timeout.Milliseconds()) + 1
	}
	var events [64]unix.EpollEvent
	n, err := unix.EpollWait(e.fd, events[:], milliseconds)
	if err == unix.EINTR {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var fired []int32
	for _, event := range events[:n] {
		if event.Fd == int32(e.wake) {
			var counter [8]byte
			_, _ = unix.Read(e.wake, counter[:])
			continue
		}
		fired = append(fired, event.Fd)
	}
	return fired, nil
}

func (e *epoll) Interrupt() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.wake >= 0 {
		_, _ = unix.Write(e.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// Close frees all descriptors.
func (e *epoll) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range e.set {
		unix.Close(int(id))
	}
	unix.Close(e.wake)
	unix.Close(e.fd)
	e.wake, e.fd, e.set = -1, -1, nil
	return nil
}

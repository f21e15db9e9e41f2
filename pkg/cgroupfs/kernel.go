package cgroupfs

import "time"

// Kernel is the cgroup file system below a Tree: the mounted one, an ordinary folder tree, or a model. Cgroups are relative to its root.
// Errors are the kernel's (unix.Errno): ENOENT for a cgroup or a file that is not there, ENODEV for one that was removed meanwhile. It is
// safe for concurrent use.
type Kernel interface {
	// Look returns nil if the cgroup exists.
	Look(cgroup string) error
	// List returns the names of the cgroups and files in a cgroup.
	List(cgroup string) ([]string, error)
	// Read appends the content of a file to buffer, up to a read that ends in the byte last, or to the end with endless.
	Read(cgroup, file string, last int, buffer []byte) ([]byte, error)
	// Write makes one write(2) to a file opened with these flags, which include O_TRUNC and O_NONBLOCK for a value. An empty text empties
	// cpuset.mems.
	Write(cgroup, file, text string, flags int) error
	// Inotify makes an inotify instance.
	Inotify() (Inotify, error)
	// Triggers makes a set of pressure triggers to wait for.
	Triggers() (Triggers, error)
}

// Inotify is an inotify(7) instance.
type Inotify interface {
	// Add watches a cgroup, or a file of it, for the events in mask (inotify_add_watch(2)).
	Add(cgroup, file string, mask uint32) (wd int, err error)
	// Remove ends a watch (inotify_rm_watch(2)).
	Remove(wd int)
	// Read waits for events and reads whole ones into buffer, as inotify(7) lays them out. It fails once the instance is closed.
	Read(buffer []byte) (int, error)
	Close() error
}

// Triggers are pressure triggers (Documentation/accounting/psi.rst, "Monitoring for pressure thresholds") that are waited for together.
type Triggers interface {
	// Add sets a trigger on a cgroup's memory.pressure: full stall of at least stall within window.
	Add(cgroup string, stall, window time.Duration) (id int32, err error)
	// Remove takes a trigger back.
	Remove(id int32)
	// Wait blocks until a trigger fires, Interrupt is called or the timeout passes (0 waits for ever), and returns what fired.
	Wait(timeout time.Duration) ([]int32, error)
	// Interrupt ends a Wait, at any time and from any goroutine; also after Close.
	Interrupt()
	Close() error
}

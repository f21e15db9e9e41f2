package cgroupfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// mounted is a mounted cgroup hierarchy.
type mounted struct {
	root   string
	folder *os.Root
	fd     *os.File // of the root folder, for openat2; nil without openat2
	at     int
}

func mount(root string) (*mounted, error) {
	folder, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	m := &mounted{root: filepath.Clean(root), folder: folder}
	if m.fd, err = folder.Open("."); err != nil {
		folder.Close()
		return nil, err
	}
	m.at = int(m.fd.Fd())
	// Kernels before 5.6 lack openat2, and a container's seccomp filter may refuse it.
	if fd, err := m.openat2(".", unix.O_PATH|unix.O_DIRECTORY); err == nil {
		unix.Close(fd)
	} else {
		m.fd.Close()
		m.fd = nil
	}
	return m, nil
}

func (m *mounted) Close() error {
	if m.fd != nil {
		m.fd.Close()
	}
	return m.folder.Close()
}

// open opens a file of a cgroup. The path cannot leave the tree.
func (m *mounted) open(dir, file string, flags int) (int, error) {
	name := dir + "/" + file
	if m.fd != nil {
		return m.openat2(name, flags)
	}
	f, err := m.folder.OpenFile(name, flags, 0o644)
	if err != nil {
		if path, ok := errors.AsType[*fs.PathError](err); ok {
			err = path.Err // the caller names the file
		}
		return -1, err
	}
	defer f.Close()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// openat2 resolves a path in one system call; os.Root needs one for each component.
func (m *mounted) openat2(name string, flags int) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o644
	}
	err = again(func() (err error) {
		fd, err = unix.Openat2(m.at, name, &how)
		return err
	})
	return fd, err
}

// again repeats a system call that a signal interrupted.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (m *mounted) Look(cgroup string) error {
	fd, err := m.open(cgroup, ".", unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func (m *mounted) List(cgroup string) ([]string, error) {
	fd, err := m.open(cgroup, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	folder := os.NewFile(uintptr(fd), cgroup)
	defer folder.Close()
	return folder.Readdirnames(-1)
}

// endless makes Read read to the end of the file.
const endless = -1

// Read reads to the file's end or until a read ends in the byte last: the kernel returns a value and its line break in one piece, so a further
// system call is not needed.
func (m *mounted) Read(cgroup, file string, last int, buffer []byte) ([]byte, error) {
	fd, err := m.open(cgroup, file, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	data := buffer
	for {
		n := 0
		err := again(func() (err error) {
			n, err = unix.Read(fd, data[len(data):cap(data)])
			return err
		})
		if err != nil || n == 0 {
			return data, err
		}
		if data = data[:len(data)+n]; int(data[len(data)-1]) == last {
			return data, nil
		}
		if len(data) == cap(data) {
			data = append(data, make([]byte, len(data))...)[:len(data)]
		}
	}
}

// Write does not use os.File, which would wait forever on EAGAIN, an answer of memory.reclaim.
func (m *mounted) Write(cgroup, file, text string, flags int) error {
	fd, err := m.open(cgroup, file, flags)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if text == "" {
		text = "\n" // a write of no bytes never reaches the kernel's file
	}
	_, err = unix.Write(fd, []byte(text))
	return err
}

// plain is an ordinary folder tree.
type plain struct{ *mounted }

// Read returns the kernel's default for a missing file, and for an empty one, which another process is writing.
func (p plain) Read(dir, file string, last int, buffer []byte) ([]byte, error) {
	data, err := p.mounted.Read(dir, file, last, buffer)
	if errors.Is(err, fs.ErrNotExist) && p.Look(dir) == nil || err == nil && len(data) == 0 {
		return []byte(cgroup.Default(file)), nil
	}
	return data, err
}

// Write creates the file of a value. It never truncates, so that a killed writer leaves a value.
func (p plain) Write(dir, file, text string, flags int) error {
	if flags&unix.O_TRUNC == 0 {
		return p.mounted.Write(dir, file, text, flags)
	}
	fd, err := p.open(dir, file, unix.O_WRONLY|unix.O_CREAT)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var info unix.Stat_t
	_ = unix.Fstat(fd, &info) // without the size, the end of a longer old text may remain
	_, err = unix.Write(fd, cgroup.Overwriting(text, info.Size))
	return err
}

// inotify is a kernel's inotify instance. conn ensures that its descriptor is not used after Close.
type inotify struct {
	*os.File
	root string
	conn syscall.RawConn
}

func (m *mounted) Inotify() (Inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "inotify")
	conn, err := file.SyscallConn()
	return &inotify{file, m.root, conn}, err
}

func (i *inotify) Add(cgroup, file string, mask uint32) (wd int, err error) {
	path := filepath.Join(i.root, cgroup, file)
	if closed := i.conn.Control(func(fd uintptr) { wd, err = unix.InotifyAddWatch(int(fd), path, mask) }); closed != nil {
		return 0, os.ErrClosed
	}
	return wd, err
}

func (i *inotify) Remove(wd int) {
	_ = i.conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
}

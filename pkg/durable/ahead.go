package durable

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Ahead is a file of a folder whose newest content is durable after one fsync: it is written over the older of two files beside it, which
// takes neither a rename nor, once these have their blocks, a change of the file system's own records. Settle has it in the file itself,
// Newest reads it wherever it is. A crash at any moment leaves what the last call that returned nil has written, or something newer.
//
// Each of the two files says which content of the file itself it continues. One that was put in its place by somebody else is therefore
// what Newest reads. The methods are not for concurrent use, nor is the file for two processes: the caller has locked the folder.
type Ahead struct {
	folder *Folder
	name   string
	mode   fs.FileMode

	there  stamp  // the file itself, as it was written
	base   uint32 // checksum of its content
	count  uint64 // writes beside it
	behind bool   // the newest content is beside it
	buffer []byte
}

// stamp tells a file from others that take its place; the zero stamp is no file's.
type stamp struct {
	inode    uint64
	size     int64
	modified unix.Timespec
}

func stampOf(folder int, name string) stamp {
	var there unix.Stat_t
	if err := unix.Fstatat(folder, name, &there, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return stamp{}
	}
	return stamp{there.Ino, there.Size, there.Mtim}
}

// besides are appended to a file's name for the two that are ahead of it.
var besides = [2]string{".ahead0", ".ahead1"}

// NewAhead returns the file of that name in a folder, which the caller closes after the last call. Nothing is written.
func NewAhead(folder *Folder, name string, mode fs.FileMode) *Ahead {
	return &Ahead{folder: folder, name: name, mode: mode}
}

// Write makes content durable beside the file. Where the file is not the one that was written last, or nothing can be written beside it,
// it replaces the file.
func (a *Ahead) Write(content []byte) error {
	if a.there == (stamp{}) || a.there != stampOf(a.folder.fd, a.name) {
		return a.Replace(content)
	}
	a.buffer = appendAhead(a.buffer[:0], a.base, a.count+1, content)
	beside := a.name + besides[a.count%2]
	if err := a.folder.overwrite(beside, a.buffer, a.mode); err != nil {
		_ = unix.Unlinkat(a.folder.fd, beside, 0) // gives a full disk its room back
		return a.Replace(content)
	}
	a.count++
	a.behind = true
	return nil
}

// Replace replaces the file by content that is newer than what is beside it, which therefore goes.
func (a *Ahead) Replace(content []byte) error {
	if err := a.folder.WriteFile(a.name, content, a.mode); err != nil {
		return err
	}
	a.behind = false
	if a.remove() == nil && a.folder.sync() == nil { // else the next write replaces it, too
		a.follow(content)
	}
	return nil
}

// follow has the next writes continue the file's content.
func (a *Ahead) follow(content []byte) {
	a.there, a.base, a.behind = stampOf(a.folder.fd, a.name), crc32.Checksum(content, castagnoli), false
}

// Settle has the file itself follow what was written beside it.
func (a *Ahead) Settle() error {
	if !a.behind {
		return nil
	}
	_, _, content, _ := parseAhead(a.buffer)
	if err := a.folder.WriteFile(a.name, content, a.mode); err != nil {
		return err // where it is in its place all the same, Write sees another stamp
	}
	a.follow(content)
	return nil
}

// Close removes the files beside the file, unless they are ahead of it, as those of an earlier process may be where nothing was written.
func (a *Ahead) Close() {
	if !a.behind && a.there != (stamp{}) {
		_ = a.remove()
	}
}

func (a *Ahead) remove() error {
	for _, beside := range besides {
		if err := unix.Unlinkat(a.folder.fd, a.name+beside, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return a.folder.failed("remove", a.name+beside, err)
		}
	}
	return nil
}

// overwrite writes data over the begin of a file, in place, and has it on disk. An error may leave a part of it.
func (f *Folder) overwrite(name string, data []byte, mode fs.FileMode) error {
	const flags = unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := retried(func() (int, error) { return unix.Openat(f.fd, name, flags, 0) })
	made := errors.Is(err, unix.ENOENT)
	if made {
		fd, err = retried(func() (int, error) {
			return unix.Openat(f.fd, name, flags|unix.O_CREAT, uint32(mode.Perm()))
		})
	}
	if err != nil {
		return f.failed("open", name, err)
	}
	defer unix.Close(fd)
	if err := writeAll(fd, data); err != nil {
		return f.failed("write", name, err)
	}
	if _, err := retried(func() (int, error) { return 0, fdatasync(fd) }); err != nil {
		return f.failed("sync", name, err)
	}
	if made {
		return f.sync()
	}
	return nil
}

// What is written beside a file: a checksum of all that follows but the padding, the checksum of the file's content, the number of the
// write, the length of the content, the content. Numbers are in little endian. Zeros fill the last block, so that the files seldom grow; an
// older and longer content may follow.
const (
	atBase    = 4
	atCount   = 8
	atLength  = 16
	atContent = 24
	block     = 4096
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendAhead(b []byte, base uint32, count uint64, content []byte) []byte {
	b = append(b, make([]byte, atContent)...)
	binary.LittleEndian.PutUint32(b[atBase:], base)
	binary.LittleEndian.PutUint64(b[atCount:], count)
	binary.LittleEndian.PutUint64(b[atLength:], uint64(len(content)))
	b = append(b, content...)
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[atBase:], castagnoli))
	return append(b, make([]byte, -len(b)&(block-1))...)
}

// parseAhead is false for what a crash has torn.
func parseAhead(b []byte) (base uint32, count uint64, content []byte, ok bool) {
	if len(b) < atContent {
		return 0, 0, nil, false
	}
	length := binary.LittleEndian.Uint64(b[atLength:])
	if length > uint64(len(b)-atContent) {
		return 0, 0, nil, false
	}
	b = b[:atContent+length]
	if crc32.Checksum(b[atBase:], castagnoli) != binary.LittleEndian.Uint32(b) {
		return 0, 0, nil, false
	}
	return binary.LittleEndian.Uint32(b[atBase:]), binary.LittleEndian.Uint64(b[atCount:]), b[atContent:], true
}

// readTries is how often Newest reads again what was written while it read.
const readTries = 10

// Newest reads a file as ReadFile does, or what is ahead of it. A process that writes it meanwhile is not held up.
func Newest(path string) ([]byte, error) {
	for try := 1; ; try++ {
		data, whole, err := readNewest(path)
		if err != nil || whole || try == readTries {
			return data, err
		}
	}
}

// readNewest reports whether nothing was written meanwhile, nor torn by a crash.
func readNewest(path string) (data []byte, whole bool, err error) {
	before := stampOf(unix.AT_FDCWD, path)
	data, err = ReadFile(path)
	if err != nil {
		return nil, false, err
	}
	whole = true
	sum, newest := crc32.Checksum(data, castagnoli), uint64(0)
	for _, beside := range besides {
		text, err := ReadFile(path + beside)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		base, count, content, ok := parseAhead(text)
		whole = whole && ok
		if ok && base == sum && count > newest {
			data, newest = content, count
		}
	}
	return data, whole && stampOf(unix.AT_FDCWD, path) == before, nil
}

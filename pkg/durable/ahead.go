package durable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Ahead is a file of a folder whose newest content is durable after one fsync: it is written over the older of two files beside it, which
// takes neither a rename nor, once these have their blocks, a change of the file system's own records. Settle has it in the file itself,
// Newest reads it wherever it is. A crash at any moment leaves what the last call that returned nil has written, or something newer.
//
// Each of the two files records the checksum of the file that it continues, so Newest ignores them beside a file that another program has
// put in its place. The methods are not for concurrent use, nor is the file for two processes: the caller has locked the folder.
type Ahead struct {
	folder *Folder
	name   string
	mode   fs.FileMode

	there  stamp  // the file itself, when base was its content's
	base   uint32 // checksum of its content
	count  uint64 // writes beside it
	behind bool   // it lacks what is beside it, or what is there was not looked at
	buffer []byte // of the last Write
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
	return &Ahead{folder: folder, name: name, mode: mode, behind: true}
}

// Write makes content durable beside the file; where there is no file, or nothing can be written beside it, in the file.
func (a *Ahead) Write(content []byte) error {
	if err := a.adopt(); err != nil {
		return err
	}
	if a.there == (stamp{}) {
		return a.Replace(content)
	}
	a.buffer = appendAhead(a.buffer[:0], a.base, a.count+1, content)
	older := a.name + besides[a.count%2]
	if err := a.folder.overwrite(older, a.buffer, a.mode); err != nil {
		_ = unix.Unlinkat(a.folder.fd, older, 0) // gives a full disk its room back
		return a.Replace(content)
	}
	a.count++
	a.behind = true
	return nil
}

// adopt looks at a file that is not the one that was written last, and at what is beside it: the next write continues them. The file may
// be our own, of which it is not known that its name is on disk.
func (a *Ahead) adopt() error {
	there := stampOf(a.folder.fd, a.name)
	if there == a.there {
		return nil
	}
	if err := a.folder.sync(); err != nil {
		return err
	}
	path := filepath.Join(a.folder.path, a.name)
	data, err := ReadFile(path)
	if err != nil {
		there = stamp{} // it is replaced
	}
	newest, _ := readAhead(path)
	a.there, a.base, a.count = there, crc32.Checksum(data, castagnoli), max(a.count, newest.count)
	return nil
}

// Replace makes content durable in the file, and removes what is beside it: at no moment does that continue the new content.
func (a *Ahead) Replace(content []byte) error {
	if err := a.adopt(); err != nil {
		return err
	}
	data, err := ReadFile(filepath.Join(a.folder.path, a.name))
	same, missing := err == nil && bytes.Equal(data, content), a.there == (stamp{})
	if !same && !missing {
		if err := a.folder.WriteFile(a.name, content, a.mode); err != nil {
			return err
		}
	}
	if err := a.remove(); err != nil {
		return err
	}
	if !same && missing { // what was beside it was another file's
		if err := a.folder.WriteFile(a.name, content, a.mode); err != nil {
			return err
		}
	}
	a.follow(content)
	return nil
}

// follow has the next writes continue the file's content.
func (a *Ahead) follow(content []byte) {
	a.there, a.base, a.behind = stampOf(a.folder.fd, a.name), crc32.Checksum(content, castagnoli), false
}

// Settle has the file itself follow the last Write.
func (a *Ahead) Settle() error {
	if !a.behind || len(a.buffer) == 0 {
		return nil
	}
	last, _ := parseAhead(a.buffer)
	if err := a.folder.WriteFile(a.name, last.content, a.mode); err != nil {
		return err // where it is in its place all the same, Write sees another stamp
	}
	a.follow(last.content)
	return nil
}

// Close removes the files beside the file, unless it lacks what they have.
func (a *Ahead) Close() {
	if !a.behind {
		_ = a.remove()
	}
}

// remove has no file beside the file, also after a crash: the older one goes first, for alone it might continue the file's content.
func (a *Ahead) remove() error {
	removed := false
	for i := range uint64(len(besides)) {
		name := a.name + besides[(a.count+i)%2]
		if stampOf(a.folder.fd, name) == (stamp{}) {
			continue
		}
		if err := unix.Unlinkat(a.folder.fd, name, 0); err != nil && !errors.Is(err, unix.EISDIR) {
			return a.folder.failed("remove", name, err)
		}
		removed = true
	}
	if !removed {
		return nil
	}
	return a.folder.sync()
}

// overwrite writes data over the start of a file, in place, and has it on disk. An error may leave a part of it.
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

// beside is what one of the files beside a file has. The zero value is none.
type beside struct {
	base    uint32
	count   uint64
	content []byte
}

// parseAhead is false for what a crash has torn.
func parseAhead(b []byte) (beside, bool) {
	if len(b) < atContent {
		return beside{}, false
	}
	length := binary.LittleEndian.Uint64(b[atLength:])
	if length > uint64(len(b)-atContent) {
		return beside{}, false
	}
	b = b[:atContent+length]
	if crc32.Checksum(b[atBase:], castagnoli) != binary.LittleEndian.Uint32(b) {
		return beside{}, false
	}
	return beside{binary.LittleEndian.Uint32(b[atBase:]), binary.LittleEndian.Uint64(b[atCount:]), b[atContent:]}, true
}

// readAhead returns the newest of what is beside a file, and whether nothing is torn.
func readAhead(path string) (newest beside, whole bool) {
	whole = true
	for _, suffix := range besides {
		text, err := ReadFile(path + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		found, ok := parseAhead(text)
		whole = whole && ok
		if found.count > newest.count {
			newest = found
		}
	}
	return newest, whole
}

// readTries is how often Newest reads again what was written while it read.
const readTries = 10

// Newest reads a file as ReadFile does, or what is ahead of it. A process that writes it meanwhile is not held up.
func Newest(path string) ([]byte, error) {
	for try := 1; ; try++ {
		before := stampOf(unix.AT_FDCWD, path)
		data, err := ReadFile(path)
		if err != nil {
			return nil, err
		}
		newest, whole := readAhead(path)
		if whole = whole && stampOf(unix.AT_FDCWD, path) == before; !whole && try < readTries {
			continue
		}
		// Where the newest does not continue the file, this has followed it, or is another's. The older one may all the same continue an
		// earlier file with this content.
		if newest.count > 0 && newest.base == crc32.Checksum(data, castagnoli) {
			return newest.content, nil
		}
		return data, nil
	}
}

package vm

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
)

// Tree is the content of a guest's root file system. Paths have no leading
// slash; bin, sbin, lib and lib64 are links into usr, as in today's distributions.
type Tree struct {
	entries map[string]entry
}

type entry struct {
	mode   uint32 // as in stat(2)
	source string // file on the host
	data   []byte // content, or the target of a link
	major  uint32
	minor  uint32
}

const (
	modeDir  = 0o040755
	modeFile = 0o100644
	modeExec = 0o100755
	modeLink = 0o120777
	modeChar = 0o020600
)

// NewTree returns a tree with the folders and links that every root has.
func NewTree() *Tree {
	t := &Tree{entries: map[string]entry{}}
	for _, dir := range []string{"dev", "proc", "sys", "run", "tmp", "var/lib", "var/log", "etc", "root", "newroot", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64"} {
		t.dir(dir)
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		t.entries[name] = entry{mode: modeLink, data: []byte("usr/" + name)}
	}
	t.entries["var/run"] = entry{mode: modeLink, data: []byte("../run")}
	t.entries["dev/console"] = entry{mode: modeChar, major: 5, minor: 1}
	t.entries["dev/null"] = entry{mode: modeChar | 0o666, major: 1, minor: 3}
	return t
}

// place is the path under which a name is stored: bin, sbin and lib are links.
func place(name string) string {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	first, rest, found := strings.Cut(name, "/")
	switch first {
	case "bin", "sbin", "lib", "lib64":
		if found {
			return "usr/" + first + "/" + rest
		}
	}
	return name
}

func (t *Tree) dir(name string) {
	for ; name != "." && name != ""; name = path.Dir(name) {
		if _, known := t.entries[name]; known {
			return
		}
		t.entries[name] = entry{mode: modeDir}
	}
}

func (t *Tree) add(name string, e entry) {
	name = place(name)
	t.dir(path.Dir(name))
	t.entries[name] = e
}

// Bytes adds a file with this content.
func (t *Tree) Bytes(name string, data []byte) { t.add(name, entry{mode: modeFile, data: data}) }

// Link adds a symbolic link.
func (t *Tree) Link(name, target string) { t.add(name, entry{mode: modeLink, data: []byte(target)}) }

// File adds a file of the host, executable.
func (t *Tree) File(name, source string) { t.add(name, entry{mode: modeExec, source: source}) }

// Folder adds everything below a folder of the host for which keep says yes.
func (t *Tree) Folder(root string, keep func(name string) bool) error {
	return filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, file)
		if name == "." || d.IsDir() || !keep(name) {
			return nil
		}
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(file)
			if err != nil {
				return err
			}
			t.Link(name, target)
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			t.add(name, entry{mode: 0o100000 | uint32(info.Mode().Perm()), source: file})
		}
		return nil
	})
}

// WriteTo writes the tree as an archive that the kernel takes as initramfs
// (Documentation/driver-api/early-userspace/buffer-format.rst, "newc").
func (t *Tree) WriteTo(file string) error {
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("write the root file system: %w", err)
	}
	defer out.Close()
	w := &cpioWriter{out: bufio.NewWriterSize(out, 1<<20)}
	names := make([]string, 0, len(t.entries))
	for name := range t.entries {
		names = append(names, name)
	}
	sort.Strings(names) // folders come before what is in them
	for _, name := range names {
		if err := w.entry(name, t.entries[name]); err != nil {
			return fmt.Errorf("write %s into %s: %w", name, file, err)
		}
	}
	if err := w.header("TRAILER!!!", entry{}, 0); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	if err := w.out.Flush(); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return out.Close()
}

type cpioWriter struct {
	out   *bufio.Writer
	inode int
}

func (w *cpioWriter) entry(name string, e entry) error {
	if e.source == "" {
		if err := w.header(name, e, int64(len(e.data))); err != nil {
			return err
		}
		_, err := w.out.Write(e.data)
		return w.pad(int64(len(e.data)), err)
	}
	in, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := w.header(name, e, info.Size()); err != nil {
		return err
	}
	n, err := io.Copy(w.out, in)
	if err == nil && n != info.Size() {
		err = fmt.Errorf("%s changed while it was read", e.source)
	}
	return w.pad(n, err)
}

func (w *cpioWriter) header(name string, e entry, size int64) error {
	w.inode++
	_, err := fmt.Fprintf(w.out, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		w.inode, e.mode, 0, 0, 1, 0, size, 0, 0, e.major, e.minor, len(name)+1, 0, name)
	return w.pad(int64(110+len(name)+1), err)
}

// pad fills up to the next multiple of four.
func (w *cpioWriter) pad(written int64, err error) error {
	if err != nil {
		return err
	}
	_, err = w.out.Write(make([]byte, (4-written%4)%4))
	return err
}

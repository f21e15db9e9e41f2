package durable

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func openAhead(t testing.TB, dir string) *Ahead {
	t.Helper()
	folder, err := OpenFolder(dir)
	must(t, err)
	t.Cleanup(func() { folder.Close() })
	must(t, folder.Lock())
	return NewAhead(folder, "file", 0o600)
}

// files are what a folder has, by name.
func files(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, name := range names(t, dir) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		all[name] = data
	}
	return all
}

// newest is what is read where a folder has these files.
func newest(t testing.TB, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		must(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	data, err := Newest(filepath.Join(dir, "file"))
	must(t, err)
	return string(data)
}

// numbered is a content that differs from all others, in length, too.
func numbered(n int) []byte { return bytes.Repeat(fmt.Appendln(nil, n), 1+n*7919%4000) }

// Whatever reaches the disk of a step that a crash cuts short, the content before it or its own is read.
func TestACrashAtAnyMomentLosesNothing(t *testing.T) {
	dir := t.TempDir()
	a := openAhead(t, dir)
	random := rand.New(rand.NewPCG(1, 2))
	steps := map[string]func(content []byte) error{
		"write":   a.Write,
		"settle":  func([]byte) error { return a.Settle() },
		"replace": a.Replace,
	}
	must(t, a.Write(numbered(0)))
	last := string(numbered(0))
	for n := 1; n <= 150; n++ {
		before := files(t, dir)
		step := []string{"write", "write", "write", "settle", "replace"}[random.IntN(5)]
		content := string(numbered(random.IntN(4))) // what was there before may come again
		must(t, steps[step]([]byte(content)))
		if step == "settle" {
			content = last
		}
		after := files(t, dir)
		if got := newest(t, after); got != content {
			t.Fatalf("step %d, %s: %d bytes are read, want %d", n, step, len(got), len(content))
		}
		for range 5 {
			if got := newest(t, crashed(random, a.count, before, after)); got != content && got != last {
				t.Fatalf("step %d, %s: after a crash %d bytes are read, want the %d before or %d", n, step, len(got), len(last), len(content))
			}
		}
		last = content
	}
}

// crashed are files of which a step has reached the disk in part: blocks of what it overwrote in any order.
func crashed(random *rand.Rand, count uint64, before, after map[string][]byte) map[string][]byte {
	torn := maps.Clone(before)
	if !bytes.Equal(before["file"], after["file"]) && random.IntN(2) == 0 {
		torn["file"] = after["file"]
	}
	for i := range uint64(2) { // the older one is removed first, and both after the file was written
		name := "file" + besides[(count+i)%2]
		if _, ok := after[name]; ok || random.IntN(2) == 0 || !bytes.Equal(torn["file"], after["file"]) {
			break
		}
		delete(torn, name)
	}
	for _, beside := range besides {
		name := "file" + beside
		written, ok := after[name]
		if !ok || bytes.Equal(before[name], written) {
			continue
		}
		mixed := make([]byte, max(len(before[name]), len(written)))
		for at := 0; at < len(mixed); at += 512 {
			from := before[name]
			if random.IntN(2) == 0 {
				from = written
			}
			if at < len(from) {
				copy(mixed[at:], from[at:min(at+512, len(from))])
			}
		}
		torn[name] = mixed[:len(mixed)-random.IntN(len(mixed)/512)*512]
	}
	return torn
}

func TestWhatIsRead(t *testing.T) {
	for name, test := range map[string]struct {
		do   func(t *testing.T, a *Ahead, path string)
		want string
		left []string // beside the file
	}{
		"the first write is the file's": {func(t *testing.T, a *Ahead, path string) {
			must(t, a.Write([]byte("0")))
		}, "0", nil},
		"what is ahead of it": {func(t *testing.T, a *Ahead, path string) {
			for n := range 6 {
				must(t, a.Write([]byte(strconv.Itoa(n))))
			}
			if data, err := os.ReadFile(path); string(data) != "0" {
				t.Errorf("the file has %q, %v", data, err)
			}
		}, "5", []string{".ahead0", ".ahead1"}},
		"settled": {func(t *testing.T, a *Ahead, path string) {
			for n := range 3 {
				must(t, a.Write([]byte(strconv.Itoa(n))))
			}
			must(t, a.Settle())
			must(t, os.Remove(path+".ahead0"))
			must(t, os.Remove(path+".ahead1"))
		}, "2", nil},
		"written after it was settled": {func(t *testing.T, a *Ahead, path string) {
			for n := range 3 {
				must(t, a.Write([]byte(strconv.Itoa(n))))
			}
			must(t, a.Settle())
			must(t, a.Write([]byte("3")))
		}, "3", []string{".ahead0", ".ahead1"}},
		"another's file, without what was ahead of ours": {func(t *testing.T, a *Ahead, path string) {
			must(t, a.Write([]byte("0")))
			must(t, a.Write([]byte("1")))
			must(t, os.WriteFile(path, []byte("theirs"), 0o600))
		}, "theirs", []string{".ahead0"}},
		"written over another's": {func(t *testing.T, a *Ahead, path string) {
			must(t, a.Write([]byte("0")))
			must(t, a.Write([]byte("1")))
			must(t, os.WriteFile(path, []byte("theirs"), 0o600))
			must(t, a.Write([]byte("2")))
		}, "2", []string{".ahead0", ".ahead1"}},
		"replaced, and again by what was there before": {func(t *testing.T, a *Ahead, path string) {
			must(t, a.Write([]byte("0")))
			must(t, a.Write([]byte("1")))
			must(t, a.Replace([]byte("2")))
			must(t, a.Replace([]byte("0")))
		}, "0", nil},
		"written where it was removed": {func(t *testing.T, a *Ahead, path string) {
			must(t, a.Write([]byte("0")))
			must(t, a.Write([]byte("1")))
			must(t, os.Remove(path))
			must(t, a.Write([]byte("2")))
		}, "2", nil},
		"settled to what was there before": {func(t *testing.T, a *Ahead, path string) {
			must(t, a.Write([]byte("0")))
			must(t, a.Write([]byte("1")))
			must(t, a.Settle())
			must(t, a.Write([]byte("0")))
			must(t, a.Settle())
		}, "0", []string{".ahead0", ".ahead1"}},
		"the one before a torn one": {func(t *testing.T, a *Ahead, path string) {
			for n := range 3 {
				must(t, a.Write([]byte(strconv.Itoa(n))))
			}
			must(t, os.Truncate(path+".ahead1", atContent))
		}, "1", []string{".ahead0", ".ahead1"}},
		"a folder in the way": {func(t *testing.T, a *Ahead, path string) {
			must(t, a.Write([]byte("0")))
			must(t, os.Mkdir(path+".ahead0", 0o700))
			must(t, a.Write([]byte("1")))
			must(t, a.Write([]byte("2")))
		}, "2", []string{".ahead0"}},
		"closed": {func(t *testing.T, a *Ahead, path string) {
			must(t, a.Write([]byte("0")))
			must(t, a.Write([]byte("1")))
			must(t, a.Settle())
			a.Close()
		}, "1", nil},
		"closed with the file behind": {func(t *testing.T, a *Ahead, path string) {
			must(t, a.Write([]byte("0")))
			must(t, a.Write([]byte("1")))
			a.Close()
		}, "1", []string{".ahead0"}},
		"left by an earlier process, and nothing written": {func(t *testing.T, a *Ahead, path string) {
			must(t, a.Write([]byte("0")))
			must(t, a.Write([]byte("1")))
			NewAhead(a.folder, "file", 0o600).Close()
		}, "1", []string{".ahead0"}},
		"left by an earlier process": {func(t *testing.T, a *Ahead, path string) {
			for n := range 9 {
				must(t, a.Write([]byte(strconv.Itoa(n))))
			}
			next := NewAhead(a.folder, "file", 0o600)
			must(t, next.Write([]byte("0")))
			must(t, next.Write([]byte("next")))
		}, "next", []string{".ahead0", ".ahead1"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			test.do(t, openAhead(t, dir), path)
			if data, err := Newest(path); err != nil || string(data) != test.want {
				t.Errorf("%q is read, want %q: %v", data, test.want, err)
			}
			want := []string{"file"}
			for _, beside := range test.left {
				want = append(want, "file"+beside)
			}
			if diff := cmp.Diff(want, names(t, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestADiskThatFailsAheadOfTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	a := openAhead(t, dir)
	for n := range 3 {
		must(t, a.Write([]byte(strconv.Itoa(n))))
	}
	t.Cleanup(func() { fdatasync = unix.Fdatasync })
	fdatasync = func(int) error { return unix.EIO }
	must(t, a.Write([]byte("3")))
	if data, err := os.ReadFile(path); string(data) != "3" {
		t.Errorf("the file has %q, %v", data, err)
	}
	failSync(t, ".tmp")
	if err := a.Write([]byte("4")); err == nil || strings.ReplaceAll(err.Error(), dir, "DIR") != "sync DIR/file.tmp: input/output error" {
		t.Errorf("got %v", err)
	}
	if data, err := Newest(path); string(data) != "3" {
		t.Errorf("%q is read, %v", data, err)
	}
	fsync, fdatasync = unix.Fsync, unix.Fdatasync
	must(t, a.Write([]byte("5")))
	if data, err := Newest(path); string(data) != "5" {
		t.Errorf("%q is read, %v", data, err)
	}
}

// Nothing continues a file of which it is not known that it is on disk: after a crash another one may be there.
func TestAFileWhoseNameIsNotOnDisk(t *testing.T) {
	dir := t.TempDir()
	a := openAhead(t, dir)
	for n := range 3 {
		must(t, a.Write([]byte(strconv.Itoa(n))))
	}
	failSync(t, filepath.Base(dir))
	want := "sync " + dir + ": input/output error"
	for _, err := range []error{a.Settle(), a.Write([]byte("3"))} {
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	fsync = unix.Fsync
	must(t, a.Write([]byte("4")))
	if data, err := Newest(filepath.Join(dir, "file")); string(data) != "4" {
		t.Errorf("%q is read, %v", data, err)
	}
}

// What was durable before a read began is in what it reads, or something newer is.
func TestNewestBesideAWriter(t *testing.T) {
	dir := t.TempDir()
	a := openAhead(t, dir)
	must(t, a.Write(numbered(0)))
	var durable atomic.Int64
	var group sync.WaitGroup
	ended := make(chan struct{})
	for range 2 {
		group.Go(func() {
			for {
				least := durable.Load()
				data, err := Newest(filepath.Join(dir, "file"))
				first, _, _ := bytes.Cut(data, []byte("\n"))
				n, _ := strconv.ParseInt(string(first), 10, 64)
				if err != nil || n < least || !bytes.Equal(data, numbered(int(n))) {
					t.Errorf("%d bytes of %d are read, want %d or later: %v", len(data), n, least, err)
				}
				select {
				case <-ended:
					return
				default:
				}
			}
		})
	}
	for n := 1; n <= 300; n++ {
		must(t, a.Write(numbered(n)))
		durable.Store(int64(n))
		if n%50 == 0 {
			must(t, a.Settle())
		}
	}
	close(ended)
	group.Wait()
}

func FuzzAhead(f *testing.F) {
	f.Add(appendAhead(nil, 1, 2, []byte("content")))
	f.Add(make([]byte, atContent))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, text []byte) {
		found, ok := parseAhead(text)
		if !ok {
			return
		}
		again := appendAhead(nil, found.base, found.count, found.content)
		if whole := text[:atContent+len(found.content)]; !bytes.Equal(again[:len(whole)], whole) {
			t.Errorf("%x is read, and %x is written", whole, again)
		}
		if len(again)%block != 0 || slices.ContainsFunc(again[atContent+len(found.content):], func(b byte) bool { return b != 0 }) {
			t.Errorf("%d bytes are written", len(again))
		}
	})
}

package protect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// folder is a folder tree as a kernel that reports no event.
type folder struct {
	root     string
	watching func(cgroup string)       // called before a watch is added
	begin    func(cgroup, file string) // before a write, if set
	done     func(cgroup, file string) // after a read or write, if set
	watches  map[string]int            // by cgroup; one that is deleted is of a removed cgroup
	last     int
	closed   chan struct{}
}

func (f *folder) at(dir, file string) string { return filepath.Join(f.root, dir, file) }

func (f *folder) Look(dir string) error {
	_, err := os.Stat(f.at(dir, ""))
	return err
}

func (f *folder) List(string) ([]string, error) { return nil, nil }

func (f *folder) Read(dir, file string, _ int, buffer []byte) ([]byte, error) {
	data, err := os.ReadFile(f.at(dir, file))
	if f.done != nil {
		f.done(dir, file)
	}
	if errors.Is(err, fs.ErrNotExist) && f.Look(dir) == nil {
		return append(buffer, cgroup.Default(file)...), nil
	}
	return append(buffer, data...), err
}

func (f *folder) Write(dir, file, text string, _ int) error {
	if f.begin != nil {
		f.begin(dir, file)
	}
	err := os.WriteFile(f.at(dir, file), []byte(text), 0o644)
	if f.done != nil {
		f.done(dir, file)
	}
	return err
}

func (f *folder) Inotify() (cgroupfs.Inotify, error)   { return silent{f}, nil }
func (f *folder) Triggers() (cgroupfs.Triggers, error) { return nil, errors.ErrUnsupported }

// silent is its inotify instance.
type silent struct{ *folder }

func (f silent) Add(dir, _ string, _ uint32) (int, error) {
	f.watching(dir)
	if f.watches[dir] == 0 {
		f.last++
		f.watches[dir] = f.last
	}
	return f.watches[dir], nil
}

func (f silent) Remove(int) {}

func (f silent) Read([]byte) (int, error) {
	<-f.closed
	return 0, os.ErrClosed
}

func (f silent) Close() error {
	close(f.closed)
	return nil
}

// unreported are a pod and a container with values that are not watched yet.
func unreported(t *testing.T) (*node, *folder, cgroup.Target) {
	n := newNode(t, nil, runcA)
	f := &folder{root: n.Root(), watches: map[string]int{}, closed: make(chan struct{}), watching: func(string) {}}
	tree := cgroupfs.New(n.Root(), f)
	n.Protector = New(Options{Tree: tree, Journal: n.journal, PageSize: 1})
	container := cgroup.Target{Cgroup: runcA, Level: cgroup.LevelContainer, Values: minimum(100)}
	targets := []cgroup.Target{{Cgroup: podG, Level: cgroup.LevelPod, Values: minimum(100)}, container}
	if err := n.applyAll(t.Context(), targets); err != nil {
		t.Fatal(err)
	}
	n.Protector.watcher = newWatcher(t, tree)
	return n, f, container
}

// While a pass adds a watch, another one finds the cgroup's files as they should be, and then one is overwritten: no event reports that.
func TestAWriteWhileAWatchIsAdded(t *testing.T) {
	for _, dir := range []string{podG, runcA} {
		t.Run(dir, func(t *testing.T) {
			n, f, _ := unreported(t)
			met := 0
			f.watching = func(watched string) {
				if watched != dir {
					return
				}
				if met++; met == 1 {
					if err := n.Check(t.Context(), dir); err != nil {
						t.Error(err)
					}
					n.overwrite(t, dir+"/memory.min", "0")
				}
			}
			if err := n.CheckHigh(t.Context(), runcA); err != nil || met == 0 { // it reads no other file
				t.Fatalf("%d watches were added, %v", met, err)
			}
			f.watching = func(string) {}
			n.reconcile(t)
			if got := content(t, n.Tree, dir+"/memory.min"); got != "100" {
				t.Errorf("memory.min is %s after the next check", got)
			}
		})
	}
}

// A pod's cgroup is removed and made again while the one above is not watched. The next container's watch finds out.
func TestAPodMadeAgainIsFoundByAContainer(t *testing.T) {
	n, f, next := unreported(t)
	n.reconcile(t)
	delete(f.watches, podG)
	put(t, n.Root(), map[string]string{podG + "/memory.min": "0", podG + "/next/": ""})
	next.Cgroup = podG + "/next"
	if err := n.applyPart(t.Context(), []cgroup.Target{next}, nil); err != nil {
		t.Fatal(err)
	}
	n.reconcile(t)
	if got := content(t, n.Tree, podG+"/memory.min"); got != "100" {
		t.Errorf("memory.min is %s after the next check", got)
	}
	if got := n.Overwrites(); len(got) > 0 {
		t.Errorf("%v overwrites counted", got)
	}
}

// Of two passes that read a file, the one that read it first may end last. It must not overrule what the other one found.
func TestAReadThatIsOvertaken(t *testing.T) {
	n, f, _ := unreported(t)
	n.reconcile(t)
	var later *pass
	f.done = func(dir, file string) {
		if later != nil || dir != podG || file != "memory.min" {
			return
		}
		n.overwrite(t, podG+"/memory.min", "0")
		later = &pass{}
		later = n.compare(repairing, func() []*row {
			n.markChanged(cgroupfs.Change{Cgroup: podG, File: "memory.min"})
			return []*row{n.rows[podG]}
		})
	}
	if err := n.Check(t.Context(), podG); err != nil {
		t.Fatal(err)
	}
	n.writeAll(t.Context(), later)
	if got := content(t, n.Tree, podG+"/memory.min"); got != "100" {
		t.Errorf("memory.min is %s", got)
	}
}

// A cgroup may be removed and made again before the write of a file of the old one is recorded: the new one does not hold its value.
func TestAWriteThatIsOvertakenByTheEndOfItsCgroup(t *testing.T) {
	for _, file := range []string{"memory.min", "memory.high"} {
		t.Run(file, func(t *testing.T) {
			n, f, container := unreported(t)
			n.reconcile(t)
			value := uint64(4096)
			container.Values = memoryqos.Values{Min: &value, High: &value}
			if err := n.Desire([]cgroup.Target{container}, nil); err != nil {
				t.Fatal(err)
			}
			met := false
			f.done = func(dir, written string) {
				if data, _ := os.ReadFile(f.at(runcA, file)); met || dir != runcA || written != file || string(data) != "4096" {
					return
				}
				met = true
				n.overwrite(t, runcA+"/"+file, cgroup.Default(file))
				n.compare(repairing, func() []*row {
					n.markChanged(cgroupfs.Change{Cgroup: runcA})
					return []*row{n.rows[runcA]}
				})
			}
			err := errors.Join(n.Apply(t.Context()), n.WriteLate(t.Context()))
			n.reconcile(t)
			if err = errors.Join(err, n.WriteLate(t.Context())); err != nil || !met {
				t.Fatalf("written: %v, %v", met, err)
			}
			if got := content(t, n.Tree, runcA+"/"+file); got != "4096" {
				t.Errorf("%s is %s after the next check", file, got)
			}
			if got := n.Overwrites(); len(got) > 0 {
				t.Errorf("%v overwrites counted", got)
			}
		})
	}
}

// Passes write one after the other. However many files hang, the others wait for little more than a second, and few threads are occupied.
func TestAPassWhoseWritesAllHang(t *testing.T) {
	const pods = 500
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := &folder{root: root}
		p := New(Options{Tree: cgroupfs.New(root, f), PageSize: 1})
		stuck := make(chan struct{})
		var begun atomic.Int32
		f.begin = func(dir, _ string) {
			if strings.Contains(dir, "/podstuck") {
				begun.Add(1)
				<-stuck
			}
		}
		var targets []cgroup.Target
		for i := range pods {
			dir := fmt.Sprintf("kubepods/podstuck%d", i)
			put(t, root, map[string]string{dir + "/": ""})
			targets = append(targets, cgroup.Target{Cgroup: dir, Level: cgroup.LevelPod, Values: minimum(100)})
		}
		began := time.Now()
		if err := p.applyAll(t.Context(), targets); err == nil || !strings.Contains(err.Error(), "the kernel has not taken a value yet") {
			t.Error(err)
		}
		if took, count := time.Since(began), begun.Load(); took > 2*WriteLimit+mostLate*time.Millisecond || count != mostLate {
			t.Errorf("a pass took %v, %d writes hang", took, count)
		}
		close(stuck)
		synctest.Wait()
		if _, err := p.Reconcile(t.Context()); err != nil {
			t.Error(err)
		}
		for _, target := range targets {
			if data, err := os.ReadFile(f.at(target.Cgroup, "memory.min")); string(data) != "100" {
				t.Fatalf("%s has memory.min %q, %v", target.Cgroup, data, err)
			}
		}
	})
}

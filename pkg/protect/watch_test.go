package protect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
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

// A cgroup that a pass misses is watched again when it is back, though no event reports that it was removed and made again.
func TestACgroupThatWasMissedIsWatchedAgain(t *testing.T) {
	n, f, _ := unreported(t)
	n.reconcile(t)
	if err := os.RemoveAll(f.at(podG, "")); err != nil {
		t.Fatal(err)
	}
	clear(f.watches)
	if err := n.Check(t.Context(), podG, runcA); err != nil {
		t.Fatal(err)
	}
	put(t, n.Root(), map[string]string{runcA + "/": ""})
	n.reconcile(t)
	for _, dir := range []string{podG, runcA} {
		if got := content(t, n.Tree, dir+"/memory.min"); got != "100" || f.watches[dir] == 0 {
			t.Errorf("%s has memory.min %s, and its watches are %v", dir, got, f.watches)
		}
	}
}

// A value that is taken back while the kernel still takes it in is taken back once more afterwards.
func TestAValueThatIsTakenBackBeforeItIsWritten(t *testing.T) {
	n, f, container := unreported(t)
	n.reconcile(t)
	begun, stuck := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.begin = func(dir, file string) {
		if dir == runcA && file == "memory.high" {
			once.Do(func() { close(begun); <-stuck })
		}
	}
	container.Values.High = new(uint64(4096))
	ctx, cancel := context.WithCancel(t.Context())
	checked := make(chan error)
	go func() {
		checked <- errors.Join(n.applyPart(ctx, []cgroup.Target{container}, nil), n.CheckHigh(ctx, runcA))
	}()
	<-begun
	cancel()
	if err := <-checked; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	container.Values.High = nil
	if err := errors.Join(n.applyPart(t.Context(), []cgroup.Target{container}, nil), n.CheckHigh(t.Context(), runcA)); err != nil {
		t.Error(err)
	}
	close(stuck)
	if err := errors.Join(n.awaitSlow(t.Context()), n.WriteLate(t.Context())); err != nil {
		t.Error(err)
	}
	_, written := n.journal.before(runcA, cgroup.MemoryHigh)
	if got := content(t, n.Tree, runcA+"/memory.high"); got != "max" || written {
		t.Errorf("memory.high is %s, and in the journal: %t", got, written)
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

// Passes write one after the other. However many files hang, the others wait for little more than a second, and few threads are occupied. A
// later pass does not write those files beside the write that hangs.
func TestAPassWhoseWritesAllHang(t *testing.T) {
	for _, pods := range []int{1, 500} {
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
			targets := make([]cgroup.Target, pods)
			apply := func(value uint64, limit time.Duration) {
				t.Helper()
				for i := range targets {
					targets[i] = cgroup.Target{Cgroup: fmt.Sprintf("kubepods/podstuck%d", i), Level: cgroup.LevelPod, Values: minimum(value)}
					put(t, root, map[string]string{targets[i].Cgroup + "/": ""})
				}
				began := time.Now()
				if err := p.applyAll(t.Context(), targets); err == nil || !strings.Contains(err.Error(), "the kernel has not taken a value yet") {
					t.Error(err)
				}
				if took, count := time.Since(began), begun.Load(); took > limit || int(count) != min(pods, mostLate) {
					t.Errorf("a pass with %d pods took %v, %d writes hang", pods, took, count)
				}
			}
			apply(100, 2*WriteLimit+mostLate*time.Millisecond)
			apply(200, 0)
			close(stuck)
			synctest.Wait()
			if _, err := p.Reconcile(t.Context()); err != nil {
				t.Error(err)
			}
			for _, target := range targets {
				if data, err := os.ReadFile(f.at(target.Cgroup, "memory.min")); string(data) != "200" {
					t.Fatalf("%s has memory.min %q, %v", target.Cgroup, data, err)
				}
			}
		})
	}
}

package cases

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/world"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// TestScriptsOnThisKernel plays the scripts of pkg/testing/world on this kernel and on the model of it that TestNode stands on, and logs what
// both answer side by side. No plugin runs.
func TestScriptsOnThisKernel(t *testing.T) {
	plan := planOf(t)
	swap(t, 256*MiB)
	files, release := disk(t, 1024*MiB), file("/proc/sys/kernel/osrelease")
	machine := world.Machine{Kernel: release, Swap: 256 * MiB}
	for _, n := range plan.Nodes {
		machine.Nodes = append(machine.Nodes, world.NUMANode{Memory: uint64(n.MiB) * MiB, Outside: 200 * MiB, CPUs: n.CPUs})
	}
	// A program with huge pages has more memory than it asks for, and is stopped at memory.high with 2 MiB more at a time. Processes inherit it.
	if err := unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_THP_DISABLE, 0, 0, 0, 0) }()
	scripts, kernel := world.Scripts(), map[string]chan []world.Line{}
	for name, script := range scripts { // at once: they mostly wait
		s, played := newStage(t, filepath.Join(kubelet.Root, "scripts", name), files), make(chan []world.Line, 1)
		kernel[name] = played
		go func() { played <- world.Play(s, release, script) }()
	}
	compared := 0
	t.Logf("| script, line | | model | kernel %s | |", release)
	for _, name := range slices.Sorted(maps.Keys(scripts)) {
		model, real := world.Play(world.NewKernel(machine, t.TempDir()), release, scripts[name]), <-kernel[name]
		for i, line := range real {
			verdict := "equal"
			switch {
			case line.Err != nil:
				verdict = "NOT AS EXPECTED"
				t.Errorf("%s.txt, line %d: %s: %v; the model: %q", name, line.Number, line.Text, line.Err, model[i].Got)
			case model[i].Err != nil:
				verdict = "THE MODEL IS NOT"
				t.Errorf("%s.txt, line %d: %s: the model: %v; the kernel: %q", name, line.Number, line.Text, model[i].Err, line.Got)
			case line.Got == "" && model[i].Got == "":
				continue
			case line.Got != model[i].Got:
				verdict = "within bounds"
			}
			compared++
			t.Logf("| %s %d | %s | %s | %s | %s |", name, line.Number, line.Text, model[i].Got, line.Got, verdict)
		}
	}
	if t.Logf("%d scripts, %d values", len(scripts), compared); compared == 0 {
		t.Error("nothing was compared")
	}
}

// stage plays scripts in a cgroup of this kernel, with processes of the workload.
type stage struct {
	t          *testing.T
	dir, files string // its cgroup, and a folder on a disk
	processes  []*worker
}

func newStage(t *testing.T, dir, files string) *stage {
	t.Helper()
	s := &stage{t: t, dir: dir, files: files}
	for _, at := range []string{filepath.Dir(dir), dir} {
		if err := makeCgroup(at); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := s.Remove("."); err != nil {
			t.Error(err)
		}
		_ = os.Remove(filepath.Dir(dir)) // as the last of them
	})
	return s
}

// makeCgroup makes a cgroup with all controllers of the one above.
func makeCgroup(dir string) error {
	above := filepath.Dir(dir)
	if has := file(above, "cgroup.controllers"); has != file(above, "cgroup.subtree_control") {
		_ = rawWrite(above+"/cgroup.subtree_control", "+"+strings.ReplaceAll(has, " ", " +")) // not where it has processes
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func (s *stage) Make(cgroup string) error {
	at := s.dir
	for part := range strings.SplitSeq(cgroup, "/") {
		at += "/" + part
		if err := makeCgroup(at); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) Remove(cgroup string) error {
	return removeCgroup(filepath.Join(s.dir, cgroup))
}

func removeCgroup(dir string) error {
	below, _ := filepath.Glob(dir + "/*/cgroup.procs")
	for _, one := range below {
		if err := removeCgroup(filepath.Dir(one)); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}

// Write keeps other goroutines from forking, for a child would have the file open a little longer, and signals of Go's runtime away, which
// end a reclaim.
func (s *stage) Write(cgroup, file, text string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	var before unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &unix.Sigset_t{Val: [16]uint64{^uint64(0)}}, &before); err != nil {
		return err
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }()
	return rawWrite(filepath.Join(s.dir, cgroup, file), cmp.Or(text, "\n")) // a write of no bytes does not reach the kernel's file
}

func (s *stage) Text(cgroup, file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(s.dir, cgroup, file))
	return strings.TrimSpace(string(text)), err
}

// Wait first has the processes get what they want, or be stopped at a memory.high: a slow machine needs longer than the model's.
func (s *stage) Wait(d time.Duration) {
	for _, p := range s.processes {
		before := s.stopped(p.cgroup)
		for deadline := time.Now().Add(waitLimit); !p.ready() && s.stopped(p.cgroup) == before; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				s.t.Errorf("%s: %s: not within %v", p.cgroup, p.step, waitLimit)
				return
			}
		}
	}
	time.Sleep(d)
}

// stopped counts how often processes of a cgroup were stopped at its memory.high or one above.
func (s *stage) stopped(cgroup string) (times uint64) {
	for ; cgroup != "."; cgroup = filepath.Dir(cgroup) {
		times += event(filepath.Join(s.dir, cgroup), "memory.events.local", "high")
	}
	return times
}

// worker is a process of the workload.
type worker struct {
	*exec.Cmd
	cgroup, step string
	done         chan struct{} // closed when it has what it wants, or has ended
}

func (w *worker) ready() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func (s *stage) Start(cgroup string, p world.Program, who world.Who, _ func(world.Exit)) (stop func()) {
	name := fmt.Sprintf("%s-%d", filepath.Base(s.dir), len(s.processes))
	step, made := fmt.Sprint("touch=", p.Heap), ""
	switch {
	case p.Tmpfs > 0:
		made = "/dev/shm/" + name
		step = fmt.Sprintf("write=%s:%d", made, p.Tmpfs)
	case p.Dirty:
		made = filepath.Join(s.files, name)
		step = fmt.Sprintf("write=%s:%d", made, p.Cache)
	case p.Cache > 0: // holes become page cache, too
		made = filepath.Join(s.files, name)
		step = "read=" + made
		err := os.WriteFile(made, nil, 0o600)
		if err == nil {
			err = os.Truncate(made, int64(p.Cache))
		}
		if err != nil {
			s.t.Error(err)
		}
	}
	steps, begin := []string{step}, filepath.Join(s.files, name+"-begin")
	if who.OOMScoreAdj != 0 { // before it takes memory
		steps = []string{"wait=" + begin, step}
	}
	in, err := os.Open(filepath.Join(s.dir, cgroup))
	if err != nil {
		s.t.Error(err)
		return func() {}
	}
	defer in.Close()
	w := &worker{exec.Command(setup.Workload, steps...), cgroup, step, make(chan struct{})}
	w.Env = []string{"GOMAXPROCS=1", "GOGC=off"} // it has less memory of its own then
	w.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(in.Fd())}
	out, err := w.StdoutPipe()
	if err == nil {
		err = w.Cmd.Start()
	}
	if err != nil {
		s.t.Errorf("a process in %s: %v", cgroup, err)
		return func() {}
	}
	s.processes = append(s.processes, w)
	go func() {
		defer close(w.done)
		for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "done "+step; {
		}
	}()
	stop = func() {
		_ = w.Process.Kill()
		_ = w.Cmd.Wait()
	}
	s.t.Cleanup(func() {
		stop()
		_, _ = os.Remove(begin), os.Remove(made)
	})
	if err = rawWrite(fmt.Sprintf("/proc/%d/oom_score_adj", w.Process.Pid), fmt.Sprint(who.OOMScoreAdj)); err == nil {
		err = os.WriteFile(begin, nil, 0o600)
	}
	if err != nil {
		s.t.Error(err)
	}
	return stop
}

func (s *stage) Inotify() (cgroupfs.Inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	return &watches{os.NewFile(uintptr(fd), "inotify"), fd, s.dir}, err
}

// watches is an inotify instance.
type watches struct {
	*os.File
	fd  int
	dir string
}

func (w *watches) Add(cgroup, file string, mask uint32) (int, error) {
	return unix.InotifyAddWatch(w.fd, filepath.Join(w.dir, cgroup, file), mask)
}

func (w *watches) Remove(wd int) { _, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) }

package guard

import (
	"context"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
)

// asked is a kernel that looks at the guard's lock whenever it is called.
type asked struct {
	cgroupfs.Kernel
	called func(call string)
	files  map[string]string
	add    error
	// removed are the triggers that were.
	removed []int32
}

func (a *asked) Triggers() (cgroupfs.Triggers, error) { return a, nil }
func (a *asked) Wait(time.Duration) ([]int32, error)  { return nil, nil }
func (a *asked) Close() error                         { return nil }
func (a *asked) Look(string) error                    { a.called("look"); return nil }
func (a *asked) Interrupt()                           {}
func (a *asked) Remove(id int32)                      { a.removed = append(a.removed, id) }

func (a *asked) Add(string, time.Duration, time.Duration) (int32, error) {
	a.called("trigger")
	return 7, a.add
}

func (a *asked) Read(_, file string, _ int, buffer []byte) ([]byte, error) {
	a.called(file)
	text, ok := a.files[file]
	if !ok {
		return nil, unix.ENOENT
	}
	return append(buffer, text...), nil
}

// The daemon, its status and its metrics ask the guard, and must not wait behind it for the kernel.
func TestTheLockIsNotHeldOverACallIntoTheKernel(t *testing.T) {
	f := newFixtureOn(t, "6.12.1", defaults)
	log, _ := test.NewNullLogger()
	var g *Guard
	calls := map[string]int{}
	kernel := &asked{files: map[string]string{"memory.current": "33554432", "memory.events": "high 5\n", "memory.stat": "file 0\n", "memory.swap.max": "0",
		"memory.pressure": "full avg10=0.00 avg60=0.00 avg300=0.00 total=9000000\n", "cpu.stat": "user_usec 1\n"}}
	kernel.called = func(call string) {
		calls[call]++
		if !g.mu.TryLock() {
			t.Errorf("%s: the lock is held", call)
			return
		}
		g.mu.Unlock()
	}
	tree := cgroupfs.New("/sys/fs/cgroup", kernel)
	node := f.guard.node
	node.Tree = tree
	g, err := New(Options{Tree: tree, Node: node, Host: f.host, Log: log, Settings: defaults})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	room := containerC1(32 * mib)
	room.Bounds.CacheRoom = true
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g.Set(ctx, []Container{containerC1(32 * mib)})
	g.handle(ctx, []int32{7}, at)
	g.Set(ctx, []Container{room})
	g.notice("kubepods/burstable/pod1", at)
	kernel.add = unix.EOPNOTSUPP
	g.Set(ctx, []Container{containerC1(cgroup.Max)})
	delete(kernel.files, "memory.stat")
	g.handle(ctx, nil, at.Add(time.Hour))
	for _, call := range []string{"trigger", "look", "memory.pressure", "cpu.stat"} {
		if calls[call] == 0 {
			t.Errorf("%s was not called: %v", call, calls)
		}
	}
}

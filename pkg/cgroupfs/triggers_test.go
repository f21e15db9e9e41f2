package cgroupfs

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What the kernel says to a trigger; that it fires is shown in virtual machines.
func TestKernelTakesTheTrigger(t *testing.T) {
	triggers, err := makeTree(t, nil).Triggers()
	if err != nil {
		t.Fatal(err)
	}
	defer triggers.Close()
	e := triggers.(*epoll)
	open := func() int {
		fd, err := unix.Open("/proc/pressure/memory", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Skipf("this machine has no pressure triggers: %v", err)
		}
		return fd
	}
	fd := open()
	if err := e.add(fd, 250*time.Millisecond, 500*time.Millisecond); err != nil {
		t.Skipf("this machine has no pressure triggers: %v", err)
	}
	if fired, err := e.Wait(time.Millisecond); err != nil || len(fired) > 1 {
		t.Errorf("fired %v, error %v", fired, err)
	}
	e.Interrupt()
	if _, err := e.Wait(0); err != nil {
		t.Error(err)
	}
	e.Remove(int32(fd))
	e.Remove(int32(fd))
	if len(e.set) > 0 {
		t.Error("the trigger is still there")
	}
	other := open()
	defer unix.Close(other)
	if err := e.add(other, time.Second, time.Hour); err == nil || !strings.Contains(err.Error(), `write trigger "full 1000000 3600000000"`) {
		t.Errorf("error %v, want one that names the trigger", err)
	}
}

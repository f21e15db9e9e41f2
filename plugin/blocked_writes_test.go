package main

import (
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/systemd"
)

// fullPipe returns a pipe that takes no byte more until it is read.
func fullPipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	var ends [2]int
	must(t, unix.Pipe2(ends[:], unix.O_CLOEXEC))
	reader, writer = os.NewFile(uintptr(ends[0]), "reader"), os.NewFile(uintptr(ends[1]), "writer")
	t.Cleanup(func() { reader.Close(); writer.Close() })
	size, err := unix.FcntlInt(writer.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
	must(t, err)
	_, err = writer.Write(make([]byte, size))
	must(t, err)
	return reader, writer
}

// waiting is how many bytes are in a pipe.
func waiting(t *testing.T, reader *os.File) int {
	t.Helper()
	bytes, err := unix.IoctlGetInt(int(reader.Fd()), unix.TIOCINQ)
	must(t, err)
	return bytes
}

// A container runtime or a journal whose disk is full does not read what the plugin logs.
func TestALogPipeThatIsFullHoldsNoContainer(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	reader, writer := fullPipe(t)
	before := waiting(t, reader)
	h.stderr = writer
	plugin := h.start()
	for i := range 200 {
		pod := guaranteed(fmt.Sprintf("pod-%d", i), 4*mi)
		h.deploy(pod)
		if got := h.mems(pod); got != "0" {
			t.Fatalf("cpuset.mems of pod %d is %q, want 0", i, got)
		}
	}
	if after := waiting(t, reader); after != before {
		t.Fatalf("%d bytes wait in the pipe, want the %d that fill it", after, before)
	}
	go io.Copy(plugin.log, reader)
	said(plugin, "container created")
}

func TestAFullLogPipeDoesNotHoldTheEnd(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	reader, writer := fullPipe(t)
	before := waiting(t, reader)
	h.stderr = writer
	plugin := h.start()
	if code := plugin.stop(); code != exitOK {
		t.Errorf("SIGTERM ended the plugin with %d", code)
	}
	if after := waiting(t, reader); after != before {
		t.Errorf("%d bytes wait in the pipe, want the %d that fill it", after, before)
	}
}

// reservations has kubelet-made slices hold values that systemd must hold too.
const reservations = testConfig + "memoryReservationPolicy: HardReservation\n"

// inSlice is a Guaranteed pod under the systemd cgroup driver.
func inSlice(name string) *testPod {
	pod := guaranteed(name, 4*mi)
	pod.slice = true
	return pod
}

// busySystemd returns a systemd that answers nothing until release.
func (h *host) busySystemd() (busy *systemd.Socket, release func()) {
	h.t.Helper()
	busy, err := systemd.Listen(h.path("systemd"), systemd.Options{})
	must(h.t, err)
	h.t.Cleanup(busy.Close)
	h.flags = append(h.flags, "--systemd-socket", h.path("systemd"))
	return busy, busy.Hold()
}

// A systemd that is busy, as in a daemon-reload, holds up no synchronization, however many pods there are; it receives their
// values once it answers.
func TestSynchronizeDoesNotWaitForSystemd(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, reservations)
	const pods = 1000
	slices := map[string]bool{"kubepods.slice": true}
	for i := range pods {
		pod := inSlice(fmt.Sprintf("pod-%d", i))
		h.deploy(pod)
		slices[path.Base(pod.cgroup())] = true
	}
	busy, release := h.busySystemd()
	h.start()
	eventually(t, "systemd is asked", func() bool { return busy.Waiting() > 0 })
	created := inSlice("created")
	h.deploy(created)
	slices[path.Base(created.cgroup())] = true
	if answered := busy.Answered(); answered > 0 {
		t.Fatalf("systemd has answered %d calls, want it to be busy", answered)
	}
	if got, want := h.knob("kubepods.slice", "memory.min"), fmt.Sprint((pods+1)*4*mi); got != want {
		t.Errorf("the file memory.min of kubepods has %s, want %s", got, want)
	}
	release()
	eventually(t, "systemd receives the values of all slices", func() bool {
		for _, call := range busy.Calls() {
			unit, _, _ := strings.Cut(call, " ")
			delete(slices, unit)
		}
		return len(slices) == 0
	})
}

func TestASystemdThatHangsDoesNotHoldTheEnd(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, reservations)
	h.deploy(inSlice("pod"))
	busy, _ := h.busySystemd()
	plugin := h.start()
	eventually(t, "systemd is asked", func() bool { return busy.Waiting() > 0 })
	if code := plugin.stop(); code != exitOK {
		t.Errorf("SIGTERM ended the plugin with %d", code)
	}
	said(plugin, "have properties that systemd has not confirmed")
}

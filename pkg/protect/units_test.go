package protect

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
)

// systemdSocket speaks D-Bus on a socket as systemd's private one does: EXTERNAL authentication, no Hello, no bus.
type systemdSocket struct {
	path     string
	listener net.Listener

	mu    sync.Mutex
	calls []string
	conns []net.Conn
	mute  bool // takes connections and says nothing
	dies  bool // ends in the middle of its first message
}

func listenAsSystemd(t *testing.T) *systemdSocket {
	t.Helper()
	s := &systemdSocket{path: filepath.Join(t.TempDir(), "private")}
	s.listen(t)
	t.Cleanup(s.stop)
	return s
}

func (s *systemdSocket) listen(t *testing.T) {
	t.Helper()
	var err error
	if s.listener, err = net.Listen("unix", s.path); err != nil {
		t.Fatal(err)
	}
	go func(l net.Listener) {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			mute := s.mute
			s.mu.Unlock()
			if !mute {
				go s.serve(conn)
			}
		}
	}(s.listener)
}

func (s *systemdSocket) stop() {
	s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		conn.Close()
	}
	s.conns = nil
}

func (s *systemdSocket) serve(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for begun := false; !begun; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		switch command := strings.Trim(line, "\x00\r\n"); {
		case command == "AUTH":
			fmt.Fprint(conn, "REJECTED EXTERNAL\r\n")
		case strings.HasPrefix(command, "AUTH EXTERNAL"):
			fmt.Fprint(conn, "OK 1234567890abcdef1234567890abcdef\r\n")
		case command == "BEGIN":
			begun = true
		default:
			fmt.Fprint(conn, "ERROR\r\n")
		}
	}
	for {
		call, err := dbus.DecodeMessage(r)
		if err != nil {
			return
		}
		answer := s.answer(call)
		if s.dies {
			var message bytes.Buffer
			_ = answer.EncodeTo(&message, binary.LittleEndian)
			header := 16 + int(binary.LittleEndian.Uint32(message.Bytes()[12:])) // its padding and the body follow
			_, _ = conn.Write(message.Bytes()[:min(header, message.Len()-1)])
			conn.Close()
			return
		}
		if err := answer.EncodeTo(conn, binary.LittleEndian); err != nil {
			return
		}
	}
}

func (s *systemdSocket) answer(call *dbus.Message) *dbus.Message {
	answer := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()),
	}}
	fail := func(name string) *dbus.Message {
		answer.Type = dbus.TypeError
		answer.Headers[dbus.FieldErrorName] = dbus.MakeVariant(name)
		return answer
	}
	if call.Headers[dbus.FieldMember].Value() != "SetUnitProperties" {
		return fail("org.freedesktop.DBus.Error.UnknownMethod")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf("%v runtime=%v %v", call.Body...))
	switch call.Body[0] {
	case "absent.slice":
		return fail("org.freedesktop.systemd1.NoSuchUnit")
	case "refused.slice":
		return fail("org.freedesktop.DBus.Error.AccessDenied")
	}
	return answer
}

func TestMemoryIsSetAsRuntimeUnitProperties(t *testing.T) {
	s := listenAsSystemd(t)
	u := NewUnits(s.path)
	defer u.Close()
	if err := u.SetMemory(t.Context(), "kubepods.slice", map[cgroup.Knob]uint64{cgroup.MemoryMin: 4096, cgroup.MemoryLow: 0}); err != nil {
		t.Fatal(err)
	}
	if err := u.SetMemory(t.Context(), "crio-a.scope", map[cgroup.Knob]uint64{cgroup.MemoryHigh: cgroup.Max, cgroup.CpusetMems: 1<<9 | 1}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"kubepods.slice runtime=true [[MemoryLow @t 0] [MemoryMin @t 4096]]",
		"crio-a.scope runtime=true [[AllowedMemoryNodes @ay [0x1, 0x2]] [MemoryHigh @t 18446744073709551615]]",
	}
	if diff := cmp.Diff(want, s.calls); diff != "" {
		t.Error(diff)
	}
	if err := u.SetMemory(t.Context(), "absent.slice", map[cgroup.Knob]uint64{cgroup.MemoryMin: 1}); !errors.Is(err, ErrNoUnit) {
		t.Errorf("got %v", err)
	}
	err := u.SetMemory(t.Context(), "refused.slice", map[cgroup.Knob]uint64{cgroup.MemoryMin: 1})
	if want := "set the memory properties of unit refused.slice over " + s.path + ": "; err == nil || !strings.HasPrefix(err.Error(), want) || errors.Is(err, ErrNoUnit) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestUnitsSurviveARestartOfSystemd(t *testing.T) {
	s := listenAsSystemd(t)
	u := NewUnits(s.path)
	defer u.Close()
	set := func() error {
		return u.SetMemory(t.Context(), "kubepods.slice", map[cgroup.Knob]uint64{cgroup.MemoryMin: 1})
	}
	if err := set(); err != nil {
		t.Fatal(err)
	}
	s.stop()
	waitFor(t, func() bool { return errors.Is(set(), ErrNoSystemd) })
	s.listen(t)
	if err := set(); err != nil {
		t.Error(err)
	}
}

func TestNobodyOnTheSocketIsNoSystemd(t *testing.T) {
	u := NewUnits(filepath.Join(t.TempDir(), "absent"))
	defer u.Close()
	if err := u.SetMemory(t.Context(), "kubepods.slice", nil); !errors.Is(err, ErrNoSystemd) {
		t.Errorf("got %v", err)
	}
}

func TestASystemdThatSaysNothingIsNotWaitedFor(t *testing.T) {
	s := listenAsSystemd(t)
	s.mu.Lock()
	s.mute = true
	s.mu.Unlock()
	u := NewUnits(s.path)
	defer u.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := u.SetMemory(ctx, "kubepods.slice", map[cgroup.Knob]uint64{cgroup.MemoryMin: 1}); err == nil || errors.Is(err, ErrNoSystemd) {
		t.Errorf("got %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if err := u.SetMemory(ctx, "kubepods.slice", map[cgroup.Knob]uint64{cgroup.MemoryMin: 1}); err == nil {
		t.Error("no error")
	}
}

// TestASystemdThatEndsInTheMiddleOfAMessage is one that is upgraded while it answers.
func TestASystemdThatEndsInTheMiddleOfAMessage(t *testing.T) {
	s := listenAsSystemd(t)
	s.dies = true
	u := NewUnits(s.path)
	defer u.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := u.SetMemory(ctx, "kubepods.slice", map[cgroup.Knob]uint64{cgroup.MemoryMin: 1}); err == nil || errors.Is(err, ErrNoSystemd) {
		t.Errorf("got %v", err)
	}
}

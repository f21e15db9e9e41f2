package protect

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/systemd"
)

// Close ends the connection.
func (u *SystemdUnits) Close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil {
		u.conn.Close()
		u.conn = nil
	}
}

// listenAsSystemd returns the socket of a systemd that is not there, and its path.
func listenAsSystemd(t *testing.T, path string, options systemd.Options) *systemd.Socket {
	t.Helper()
	s, err := systemd.Listen(path, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func privateSocket(t *testing.T) string { return filepath.Join(t.TempDir(), "private") }

func TestMemoryIsSetAsRuntimeUnitProperties(t *testing.T) {
	path := privateSocket(t)
	s := listenAsSystemd(t, path, systemd.Options{Refuse: map[string]string{
		"absent.slice": "org.freedesktop.systemd1.NoSuchUnit", "refused.slice": "org.freedesktop.DBus.Error.AccessDenied",
	}})
	u := NewUnits(path)
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
	if diff := cmp.Diff(want, s.Calls()); diff != "" {
		t.Error(diff)
	}
	if err := u.SetMemory(t.Context(), "absent.slice", map[cgroup.Knob]uint64{cgroup.MemoryMin: 1}); !errors.Is(err, ErrNoUnit) {
		t.Errorf("got %v", err)
	}
	err := u.SetMemory(t.Context(), "refused.slice", map[cgroup.Knob]uint64{cgroup.MemoryMin: 1})
	if want := "set the memory properties of unit refused.slice over " + path + ": "; err == nil || !strings.HasPrefix(err.Error(), want) || errors.Is(err, ErrNoUnit) {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestUnitsSurviveARestartOfSystemd(t *testing.T) {
	path := privateSocket(t)
	s := listenAsSystemd(t, path, systemd.Options{})
	u := NewUnits(path)
	defer u.Close()
	set := func() error {
		return u.SetMemory(t.Context(), "kubepods.slice", map[cgroup.Knob]uint64{cgroup.MemoryMin: 1})
	}
	if err := set(); err != nil {
		t.Fatal(err)
	}
	s.Close()
	waitFor(t, func() bool { return errors.Is(set(), ErrNoSystemd) })
	listenAsSystemd(t, path, systemd.Options{})
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
	for name, options := range map[string]systemd.Options{"from the start": {Mute: true}, "once it has let us in": {}} {
		t.Run(name, func(t *testing.T) {
			path := privateSocket(t)
			listenAsSystemd(t, path, options).Hold()
			u := NewUnits(path)
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
		})
	}
}

// TestASystemdThatEndsInTheMiddleOfAMessage is one that is upgraded while it answers.
func TestASystemdThatEndsInTheMiddleOfAMessage(t *testing.T) {
	path := privateSocket(t)
	listenAsSystemd(t, path, systemd.Options{Dies: true})
	u := NewUnits(path)
	defer u.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := u.SetMemory(ctx, "kubepods.slice", map[cgroup.Knob]uint64{cgroup.MemoryMin: 1}); err == nil || errors.Is(err, ErrNoSystemd) {
		t.Errorf("got %v", err)
	}
}

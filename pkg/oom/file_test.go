package oom

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
)

// What is written is of the time at which it was known, however long the disk takes, and whether or not it has new verdicts.
func TestTheFilesTimeIsWhenTheDaemonWasLastAlive(t *testing.T) {
	var hangs atomic.Bool
	before := durable.Before
	t.Cleanup(func() { durable.Before = before })
	durable.Before = func(call, _ string, _ []byte) error {
		if call == "rename" && hangs.Load() {
			time.Sleep(10 * time.Second)
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		s := newStore(filepath.Join(t.TempDir(), FileName))
		writes := func(what string, write func()) {
			t.Helper()
			time.Sleep(time.Minute)
			write()
			alive := time.Now()
			time.Sleep(time.Minute)
			if info, err := os.Stat(s.path); err != nil || !info.ModTime().Equal(alive) {
				t.Errorf("%s: %v, %v, want %v", what, info.ModTime(), err, alive)
			}
		}
		writes("verdicts", func() { s.put([]byte("{}"), time.Now()) })
		writes("a sign", func() { s.put(nil, time.Now()) })
		hangs.Store(true)
		writes("verdicts, and newer ones while the disk hangs", func() {
			known := time.Now()
			s.put([]byte("{ }"), known)
			time.Sleep(5 * time.Second)
			s.put([]byte("{  }"), time.Now())
			time.Sleep(6 * time.Second)
			if info, err := os.Stat(s.path); err != nil || info.Size() != 3 || !info.ModTime().Equal(known) {
				t.Errorf("after the first write: %d bytes, %v, %v, want 3 and %v", info.Size(), info.ModTime(), err, known)
			}
			time.Sleep(time.Minute)
			s.put(nil, time.Now())
		})
		if err := s.writer.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

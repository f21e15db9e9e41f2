package oom

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// What is written is of the time at which it was known, however long the disk takes, and whether or not it has new verdicts.
func TestTheFilesTimeIsWhenTheDaemonWasLastAlive(t *testing.T) {
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
		if err := s.writer.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
)

// run writes the file after each change, at most once in a while.
func (j *Journal) run() {
	defer close(j.ended)
	for {
		select {
		case <-j.stop:
			return
		case <-j.wake:
		}
		j.write()
		rest := time.NewTimer(pace)
		select {
		case <-j.stop:
			rest.Stop()
			return
		case <-j.urgent:
			rest.Stop()
		case <-rest.C:
		}
	}
}

// write writes the present state, unless that has been done.
func (j *Journal) write() {
	j.mu.Lock()
	version := j.version
	if j.saved == version {
		j.mu.Unlock()
		return
	}
	data := encodeJournal(j.cgroups)
	j.mu.Unlock()
	err := j.save(data)
	if err != nil {
		err = fmt.Errorf("write the journal of written knobs: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.saved, j.err = version, err
	close(j.tried)
	j.tried = make(chan struct{})
}

// saveFile replaces the file so that a crash leaves the old or the new one.
func (j *Journal) saveFile(data []byte) error {
	if err := renameio.WriteFile(j.path, data, 0o600); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(j.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

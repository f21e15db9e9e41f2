package oom

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
)

const (
	// mostVerdicts and mostBytes bound the file.
	mostVerdicts = 100
	mostBytes    = 1 << 20
)

// FileName is the file of verdicts in the state folder.
const FileName = "oom-kills.json"

// file is what outlives the daemon. The time of its last change is when the daemon was last alive.
type file struct {
	// Boot is the kernel's id of the boot that Known is of.
	Boot string `json:"boot"`
	// Known are the counters, by cgroup, of the kills that were judged.
	Known map[string]counters `json:"known"`
	// Verdicts are the oldest first.
	Verdicts []Verdict `json:"verdicts"`

	alive time.Time
}

// load reads the file, and forgets the counters of another boot.
func (f *file) load(path, proc string) error {
	boot, _ := os.ReadFile(filepath.Join(proc, "sys/kernel/random/boot_id"))
	id := string(bytes.TrimSpace(boot))
	err := durable.Load(path, func(data []byte) error { return json.Unmarshal(data, f) })
	if err != nil {
		*f = file{}
	} else if info, err := os.Stat(path); err == nil {
		f.alive = info.ModTime()
	}
	if f.Known == nil || f.Boot != id {
		f.Known = map[string]counters{}
	}
	f.Boot = id
	return err
}

func (f *file) add(v Verdict) {
	f.Verdicts = append(f.Verdicts, v)
	f.Verdicts = f.Verdicts[max(0, len(f.Verdicts)-mostVerdicts):]
}

// save replaces the file, with these counters as known. The oldest verdicts go where it would be too large.
func (f *file) save(path string, known map[string]counters) error {
	for {
		data, err := json.Marshal(file{Boot: f.Boot, Known: known, Verdicts: f.Verdicts})
		if err != nil {
			return fmt.Errorf("encode the verdicts on OOM kills: %w", err)
		}
		if len(data) <= mostBytes || len(f.Verdicts) == 0 {
			return durable.WriteFile(path, data, 0o600)
		}
		f.Verdicts = f.Verdicts[(len(f.Verdicts)+1)/2:]
	}
}

// Read returns the verdicts in a state folder, the newest first.
func Read(stateDir string) ([]Verdict, error) {
	path := filepath.Join(stateDir, FileName)
	data, err := durable.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	slices.Reverse(f.Verdicts)
	return f.Verdicts, nil
}

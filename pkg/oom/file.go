package oom

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
)

const (
	// mostVerdicts and mostBytes bound the file. Of the namespace with most verdicts, the pod with most loses its oldest first: neither a
	// container whose processes are killed again and again nor a Job with many pods drives out what others had.
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

	// alive is when the pods were last watched, before this daemon or by it.
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
	f.Verdicts = append(slices.Clip(f.Verdicts), v) // others read what was shown
	f.shorten(mostVerdicts)
}

// shorten leaves so many verdicts.
func (f *file) shorten(most int) {
	byNamespace, byPod := map[string]int{}, map[string]int{}
	for _, v := range f.Verdicts {
		byNamespace[v.Namespace]++
		byPod[v.UID]++
	}
	for len(f.Verdicts) > most {
		i := 0 // the oldest of the pod and namespace with the most
		for j, v := range f.Verdicts {
			loses := f.Verdicts[i]
			if cmp.Or(byNamespace[v.Namespace]-byNamespace[loses.Namespace], byPod[v.UID]-byPod[loses.UID]) > 0 {
				i = j
			}
		}
		byNamespace[f.Verdicts[i].Namespace]--
		byPod[f.Verdicts[i].UID]--
		f.Verdicts = slices.Concat(f.Verdicts[:i], f.Verdicts[i+1:])
	}
}

// encode is the file's content, with these counters as known. Half of the verdicts go where it would be too large.
func (f *file) encode(known map[string]counters) ([]byte, error) {
	for {
		data, err := json.Marshal(file{Boot: f.Boot, Known: known, Verdicts: f.Verdicts})
		if err != nil {
			return nil, fmt.Errorf("encode the verdicts on OOM kills: %w", err)
		}
		if len(data) <= mostBytes || len(f.Verdicts) == 0 {
			return data, nil
		}
		f.shorten(len(f.Verdicts) / 2)
	}
}

// store writes the file in a goroutine of its own: a disk that hangs keeps nobody from watching.
type store struct {
	path   string
	writer *durable.Writer

	mu    sync.Mutex
	data  []byte    // what the file lacks; nil where it has all
	alive time.Time // when the daemon was last alive
	until time.Time // alive of what is being written
}

// writeEvery is the least time between two writes, however often a container is killed.
const writeEvery = time.Second

func newStore(path string) *store {
	s := &store{path: path}
	s.writer = durable.NewWriter(durable.Options{Path: path, Interval: writeEvery, Write: s.write})
	return s
}

// put sets the time at which the daemon was last alive, and replaces the data unless it is nil.
func (s *store) put(data []byte, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alive = now; data != nil {
		s.data = data
	}
	s.writer.Submit(s.content)
}

// content is what is to be written; nothing where a new time is enough.
func (s *store) content([]byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = s.alive
	return s.data, nil
}

func (s *store) write(data []byte) error {
	if len(data) > 0 {
		if err := durable.WriteFile(s.path, data, 0o600); err != nil {
			return err
		}
	}
	s.mu.Lock()
	if len(data) > 0 && len(s.data) > 0 && &data[0] == &s.data[0] { // nothing newer was put meanwhile
		s.data = nil
	}
	until := s.until
	s.mu.Unlock()
	return durable.Touch(s.path, until)
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

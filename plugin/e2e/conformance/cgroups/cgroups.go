// Package cgroups is what a run of Kubernetes' suites records of the cgroup files, in the guest and for the host.
package cgroups

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// File is the name of the recording in the guest's logs: one Container in JSON a line.
const File = "cgroups.jsonl"

// Container is what the files of a container, its pod and their ancestors held from a moment on. It is recorded at the container's
// start, again whenever one of them holds something else, and at its end, where Ended is set.
type Container struct {
	Namespace, Pod, Name string
	Since, At            time.Time // of the container's start and of this record
	Ended                bool
	Values               Files
}

// Files are contents of cgroup files by level and name: "pod memory.min".
type Files map[string]string

// names are the files that the managers write.
var names = []string{"memory.min", "memory.low", "memory.high", "cpuset.mems"}

// Read adds the files of one cgroup; one that is gone is left out.
func (f Files) Read(dir, level string) {
	for _, name := range names {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
			f[strings.TrimSuffix(level, "/")+" "+name] = strings.TrimSpace(string(text))
		}
	}
}

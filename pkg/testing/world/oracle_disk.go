package world

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
)

const (
	onDisk       Promise = "what survives the machine is on its disk within seconds"
	beforeAnswer Promise = "a decision is in the state file before the runtime has the answer"
	beforeWrite  Promise = "a value is in the journal before it is written"
)

// unsynced are the files of state folders that a power failure may take, since when, by path: their content, and their names. renamed is when each got
// its name last.
type unsynced struct{ contents, names, renamed map[string]time.Time }

// changes notes a system call that changes a file. A sync has what was done before it began. The journal and CDI specifications, in /var/run, need not
// survive the machine: cgroups and what the kubelet has prepared do not, either.
func (u unsynced) changes(call, path string, began time.Time) {
	since := func(of map[string]time.Time) {
		if of[path].IsZero() {
			of[path] = time.Now()
		}
	}
	switch written := path + ".tmp"; call {
	case "write":
		since(u.contents)
	case "rename":
		u.renamed[path] = time.Now()
		since(u.names)
		if delete(u.contents, path); !u.contents[written].IsZero() {
			since(u.contents)
		}
		delete(u.contents, written)
	case "sync":
		if !u.contents[path].After(began) {
			delete(u.contents, path)
		}
		for name := range u.names {
			if filepath.Dir(name) != path {
				continue
			}
			if delete(u.names, name); u.renamed[name].After(began) {
				u.names[name] = u.renamed[name]
			}
		}
	}
}

// synced looks for files that have not been written to the disk for long.
func (n *simulation) synced() {
	const within = 5 * time.Second
	now, state := time.Now(), n.current().state
	calm := n.trouble.calm(onDisk, now)
	n.mu.Lock()
	var late []string
	for what, files := range map[string]map[string]time.Time{"content": n.unsynced.contents, "name": n.unsynced.names} {
		for path, since := range files {
			name, mine := strings.CutPrefix(path, state+"/")
			if !mine || name == "knobs.json" || strings.HasPrefix(name, "cdi/") || strings.HasSuffix(name, ".tmp") || now.Sub(latest(since, calm)) <= within {
				continue
			}
			if _, err := os.Lstat(path); err == nil { // else it was removed
				late = append(late, what+" of "+name)
			}
		}
	}
	n.mu.Unlock()
	for _, what := range late {
		n.broken(onDisk, "the %s is not", what)
	}
}

// created looks in the state file for what a container is created with.
func (n *simulation) created(pod *api.PodSandbox, c *api.Container) {
	now, s := time.Now(), n.settings()
	mems := bits(c.GetLinux().GetResources().GetCpu().GetMems())
	if mems == 0 || mems == n.withMemory() || mems == n.confinedTo() || !s.places() || n.trouble.calm(beforeAnswer, now).After(now) {
		return
	}
	file := n.stateFile()
	for _, p := range n.kubelet.Pods() {
		claims := false
		for _, spec := range n.spec(p).Containers {
			claims = claims || spec.Name == c.Name && len(spec.Claims) > 0
		}
		if p.UID == pod.Uid && !p.PodLevel() && !claims && file.nodes(p.UID, c.Name) != mems {
			n.broken(beforeAnswer, "%s/%s is created with cpuset.mems %b, and the state file has %v", p.Name, c.Name, mems, file.Entries[p.UID][c.Name])
		}
	}
}

// journaled looks in the journal for what is about to be written, if the kernel takes it.
func (n *simulation) journaled(by *life, cgroup, file, text string) bool {
	now := time.Now()
	switch {
	case file != "memory.min" && file != "memory.low" && file != "memory.high" && file != "cpuset.mems", text == "0", text == "max", by.killed.Load(), n.trouble.calm(beforeWrite, now).After(now):
		return true
	}
	journal, _ := os.ReadFile(filepath.Join(by.state, "knobs.json"))
	journal = journal[:bytes.LastIndexByte(journal, '\n')+1] // another line may be being added
	line := []byte(`"cgroup":"` + strings.TrimSuffix(cgroup, "/container") + `"`)
	newest := journal[max(bytes.LastIndex(journal, line), 0):]
	knobs, _, _ := bytes.Cut(newest, []byte("]"))
	return bytes.HasPrefix(newest, line) && bytes.Contains(knobs, []byte(`"`+file+`"`))
}

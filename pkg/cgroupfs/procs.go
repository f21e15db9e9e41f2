package cgroupfs

import (
	"fmt"
	"strconv"
	"strings"
)

// Procs reads cgroup.procs: the processes in this cgroup itself.
func (t *Tree) Procs(cgroup string) ([]int, error) {
	data, err := t.read(cgroup, "cgroup.procs")
	if err != nil {
		return nil, err
	}
	pids, err := parseProcs(string(data))
	if err != nil {
		return nil, t.bad(cgroup, "cgroup.procs", err)
	}
	return pids, nil
}

// Populated reports whether there are processes in this cgroup or below it, as cgroup.events says.
func (t *Tree) Populated(cgroup string) (bool, error) {
	data, err := t.read(cgroup, "cgroup.events")
	if err != nil {
		return false, err
	}
	events, err := parseFlat(string(data))
	if err != nil {
		return false, t.bad(cgroup, "cgroup.events", err)
	}
	return events["populated"] > 0, nil
}

func parseProcs(text string) ([]int, error) {
	var pids []int
	for line := range strings.FieldsSeq(text) {
		pid, err := strconv.Atoi(line)
		if err != nil || pid < 0 { // 0 is a process of another PID namespace
			return nil, fmt.Errorf("%q is not a process id", line)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

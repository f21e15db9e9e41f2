package cgroupfs

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// Events are the counters of memory.events.
type Events struct{ Low, High, Max, OOM, OOMKill, OOMGroupKill uint64 }

// Events reads memory.events, which counts the whole subtree.
func (t *Tree) Events(cgroup string) (Events, error) {
	return parse(t, cgroup, "memory.events", parseEvents)
}

// LocalEvents reads memory.events.local, which counts only the cgroup itself: its oom is about its own limit (kernel 5.2).
func (t *Tree) LocalEvents(cgroup string) (Events, error) {
	return parse(t, cgroup, "memory.events.local", parseEvents)
}

func parseEvents(text string) (Events, error) {
	counters, err := parseFlat(text)
	return Events{
		Low: counters["low"], High: counters["high"], Max: counters["max"],
		OOM: counters["oom"], OOMKill: counters["oom_kill"], OOMGroupKill: counters["oom_group_kill"],
	}, err
}

// Holds reports whether a process is in a container's cgroup or crun's inner cgroup. The kernel shows PIDs of the reader's PID namespace, and 0
// for processes outside of it.
func (t *Tree) Holds(container string, pid int) (bool, error) {
	leaves, err := t.Leaves(container)
	for _, dir := range leaves {
		pids, err2 := parse(t, dir, "cgroup.procs", func(text string) ([]string, error) { return strings.Fields(text), nil })
		if slices.Contains(pids, strconv.Itoa(pid)) {
			return true, nil
		}
		err = errors.Join(err, err2)
	}
	return false, err
}

// Populated reports whether the cgroup or one below it has processes (cgroup.events).
func (t *Tree) Populated(cgroup string) (bool, error) {
	events, err := parse(t, cgroup, "cgroup.events", parseFlat)
	if _, told := events["populated"]; err == nil && !told { // a folder that plays a cgroup
		err = t.bad(cgroup, "cgroup.events", errors.New("no line populated"))
	}
	return events["populated"] > 0, err
}

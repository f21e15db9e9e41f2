package cgroupfs

// Events are the counters of memory.events.
type Events struct{ Low, High, Max, OOM, OOMKill, OOMGroupKill uint64 }

// Events reads memory.events, which counts the whole subtree.
func (t *Tree) Events(cgroup string) (Events, error) { return t.events(cgroup, "memory.events") }

// LocalEvents reads memory.events.local, which counts this cgroup alone (kernel 5.2; zeros where there is none).
func (t *Tree) LocalEvents(cgroup string) (Events, error) {
	e, err := t.events(cgroup, "memory.events.local")
	if t.Lacks(cgroup, err) {
		return Events{}, nil
	}
	return e, err
}

func (t *Tree) events(cgroup, file string) (Events, error) {
	data, err := t.read(cgroup, file)
	if err != nil {
		return Events{}, err
	}
	e, err := parseEvents(string(data))
	if err != nil {
		return Events{}, t.bad(cgroup, file, err)
	}
	return e, nil
}

func parseEvents(text string) (Events, error) {
	counters, err := parseFlat(text)
	return Events{
		Low: counters["low"], High: counters["high"], Max: counters["max"],
		OOM: counters["oom"], OOMKill: counters["oom_kill"], OOMGroupKill: counters["oom_group_kill"],
	}, err
}

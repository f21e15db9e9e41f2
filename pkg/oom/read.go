package oom

import (
	"cmp"
	"path"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// counters are those of a cgroup, from its beginning.
type counters struct {
	// OOM is how often its own limit was hit, Below its own or one below it, Kills how many processes were killed in it, by whatever, and
	// Groups how often that was a whole cgroup (memory.oom.group).
	OOM, Below, Kills, Groups uint64
}

func readCounters(t *cgroupfs.Tree, dir string) (c counters, events cgroupfs.Events, err error) {
	if events, err = t.Events(dir); err != nil {
		return c, events, err
	}
	c = counters{Below: events.OOM, Kills: events.OOMKill, Groups: events.OOMGroupKill}
	if events.OOM == 0 { // nor of its own
		return c, events, nil
	}
	local, err := t.LocalEvents(dir)
	c.OOM = local.OOM
	return c, events, err
}

// after is what was counted after before. Counters that are lower have begun again: a static pod that is made again has the same cgroup.
func (c counters) after(before counters) counters {
	if c.OOM < before.OOM || c.Below < before.Below || c.Kills < before.Kills || c.Groups < before.Groups {
		return c
	}
	return c.since(before)
}

// since is what was counted after before, each at least 0.
func (c counters) since(before counters) counters {
	return counters{less(c.OOM, before.OOM), less(c.Below, before.Below), less(c.Kills, before.Kills), less(c.Groups, before.Groups)}
}

func (c counters) plus(o counters) counters {
	return counters{c.OOM + o.OOM, c.Below + o.Below, c.Kills + o.Kills, c.Groups + o.Groups}
}

// less is a without b, at least 0.
func less(a, b uint64) uint64 { return a - min(a, b) }

// readHeld reads what a cgroup's memory is used for (memory.stat).
func readHeld(t *cgroupfs.Tree, dir string) (Held, error) {
	stat, err := t.Stat(dir)
	if err != nil {
		return Held{}, err
	}
	kernel, all := stat["kernel"] // 5.18
	if !all {
		kernel = stat["slab"] + stat["kernel_stack"] + stat["pagetables"] + stat["percpu"]
	}
	return Held{
		Processes: stat["anon"],
		PageCache: less(stat["file"], stat["shmem"]),
		Unwritten: stat["file_dirty"] + stat["file_writeback"],
		Tmpfs:     stat["shmem"],
		Kernel:    kernel + stat["sock"],
	}, nil
}

// unreclaimable is what an OOM kill is for: clean page cache would have been given back.
func (h Held) unreclaimable() uint64 { return h.Processes + h.Tmpfs + h.Kernel + h.Unwritten }

// less is what is left without another, each part at least 0.
func (h Held) less(o Held) Held {
	return Held{less(h.Processes, o.Processes), less(h.PageCache, o.PageCache), less(h.Unwritten, o.Unwritten), less(h.Tmpfs, o.Tmpfs),
		less(h.Kernel, o.Kernel)}
}

func (h Held) plus(o Held) Held {
	return Held{h.Processes + o.Processes, h.PageCache + o.PageCache, h.Unwritten + o.Unwritten, h.Tmpfs + o.Tmpfs, h.Kernel + o.Kernel}
}

// readLevel reads a cgroup after a kill.
func readLevel(t *cgroupfs.Tree, dir string, level Level) Reading {
	r := Reading{Cgroup: dir, Level: level}
	var err, err2 error
	r.Held, err = readHeld(t, dir)
	r.Limit, err2 = t.Limit(dir)
	r.Gone = err != nil || err2 != nil
	return r
}

// readSample looks at a container near its limit.
func readSample(t *cgroupfs.Tree, dir string, events cgroupfs.Events, pinned nodeset.Set, now time.Time) (s Sample, err error) {
	s = Sample{At: now, Max: events.Max, High: events.High}
	var err2, err3 error
	s.Held, err = readHeld(t, dir)
	s.Current, err2 = t.Current(dir)
	if !pinned.Empty() {
		s.Nodes, err3 = readNodes(t, dir, pinned)
	}
	pressure, _, err4 := t.Pressure(dir)
	s.Stalled = time.Duration(pressure.Full.Total) * time.Microsecond
	return s, cmp.Or(err, err2, err3, err4)
}

// readNodes reads what a cgroup holds on NUMA nodes that could not be given back (memory.numa_stat).
func readNodes(t *cgroupfs.Tree, dir string, nodes nodeset.Set) (map[int]uint64, error) {
	stat, err := t.NUMAStat(dir)
	if stat == nil { // the machine has one
		return nil, err
	}
	held := map[int]uint64{}
	for id := range nodes.All() {
		held[id] = stat["anon"][id] + stat["shmem"][id]
	}
	return held, err
}

// parents are the cgroups above a pod, up to kubepods.
func parents(pod string) (dirs []string) {
	for dir := path.Dir(pod); cgroup.Inside(dir); dir = path.Dir(dir) {
		dirs = append(dirs, dir)
		if cgroup.LevelOf(dir) == cgroup.LevelKubepods {
			break
		}
	}
	return dirs
}

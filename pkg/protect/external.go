package protect

import (
	"maps"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Overwrite names a file that another writer changed.
type Overwrite struct{ Level, File string }

// Overwritable are the files that Overwrites can count: those with values of ours. The cgroups above the pods hold sums.
func Overwritable() (all []Overwrite) {
	for _, level := range cgroup.Levels {
		files := knobs[oomGroup+1 : high]
		switch level {
		case cgroup.LevelPod:
			files = knobs[oomGroup+1 : mems]
		case cgroup.LevelContainer:
			files = knobs[:]
		}
		for _, knob := range files {
			all = append(all, Overwrite{level, string(knob)})
		}
	}
	return all
}

// Overwrites returns how often another writer changed a file, by level.
func (p *Protector) Overwrites() map[Overwrite]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.overwrites)
}

// File is a file of a cgroup.
type File struct {
	Cgroup string
	Knob   cgroup.Knob
}

// OverwritesByFile returns how often another writer changed a file, for the cgroups above the containers that are in the table.
func (p *Protector) OverwritesByFile() map[File]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[File]uint64{}
	for dir, r := range p.rows {
		if r.level == cgroup.LevelContainer {
			continue
		}
		for i, f := range r.all() {
			if f.externalChanges > 0 {
				all[File{dir, knobs[i]}] = f.externalChanges
			}
		}
	}
	return all
}

// backoff delays repairs in a series of changes of one file by another writer. The first change is repaired at once and each further one a
// little later, so that a busy writer cannot keep this one busy. In a long series the file is left to the periodic check. A writer that
// comes once a minute, like the kubelet, is always repaired at once.
type backoff struct {
	due   time.Time // of the next repair; zero if none is due
	began time.Time
	last  time.Time
	count int
}

const (
	// seriesEnd is the time without changes that ends a series.
	seriesEnd = 10 * time.Second
	// firstDelay doubles with each change up to shortDelay. In a series that is longer than longSeries it is longDelay.
	firstDelay = 25 * time.Millisecond
	shortDelay = 100 * time.Millisecond
	longSeries = 10 * time.Minute
	longDelay  = 10 * time.Second
)

func (b *backoff) add(now time.Time) {
	if b.count == 0 || now.Sub(b.last) > seriesEnd+b.delay(now) {
		*b = backoff{began: now}
	}
	b.last, b.due = now, now.Add(b.delay(now))
	b.count++
}

func (b *backoff) delay(now time.Time) time.Duration {
	switch {
	case b.count == 0:
		return 0
	case now.Sub(b.began) > longSeries:
		return longDelay
	case b.count > 4:
		return shortDelay
	}
	return min(firstDelay<<(b.count-1), shortDelay)
}

const lineEvery = 10 * time.Minute

// countExternalChange counts a change by another writer and logs it when it repeats, at most every ten minutes for a file of a level.
func (p *Protector) countExternalChange(c change) {
	r, f, knob := c.row, c.file(), c.knob()
	o := Overwrite{Level: r.level, File: string(knob)}
	p.overwrites[o]++
	f.externalChanges++
	now := p.now()
	if last, logged := p.lastLogged[o]; p.overwrites[o] < 2 || logged && now.Sub(last) < lineEvery {
		return
	}
	p.lastLogged[o] = now
	found, restored := logValues(c.index, f.have, f.want)
	p.log.WithFields(logrus.Fields{
		"cgroup": r.cgroup, "file": o.File, "found": found, "restored": restored, "times": p.overwrites[o],
	}).Warnf("another writer changes this file repeatedly: %s", likelyWriter(r, knob, f.have))
}

// logValues formats two values of one file for the log.
func logValues(index int, a, b uint64) (x, y any) {
	if index == mems {
		return nodeset.Set(a).String(), nodeset.Set(b).String()
	}
	both := cgroup.LogApart(a, b)
	return both[0], both[1]
}

// likelyWriter names who may have written a value, from what kubelets and systemd were seen to do.
func likelyWriter(r *row, knob cgroup.Knob, found uint64) string {
	kubelets := r.level == cgroup.LevelKubepods && knob == cgroup.MemoryMin || r.level == cgroup.LevelBurstable && knob == cgroup.MemoryLow
	switch {
	case kubelets && found == 0 && r.driver == cgroup.Systemd:
		return "likely systemd at a reload, or a kubelet with the feature gate MemoryQoS and memoryReservationPolicy None"
	case kubelets && found == 0:
		return "likely a kubelet with the feature gate MemoryQoS and memoryReservationPolicy None: turn the gate off"
	case kubelets:
		return "likely a kubelet with memoryReservationPolicy TieredReservation and sums of its own: turn the gate MemoryQoS off"
	case knob == cgroup.MemoryOOMGroup && r.driver == cgroup.Systemd:
		return "likely systemd at a change of the scope"
	case r.level == cgroup.LevelContainer:
		return "likely the runtime at an update that no NRI plugin saw, or another NRI plugin"
	case r.driver == cgroup.Systemd:
		return "likely systemd at a reload or a change of the slice"
	case r.level == cgroup.LevelPod:
		return "likely the kubelet at a resize of the pod, or another NRI plugin"
	}
	return "likely another agent on this node that manages memory"
}

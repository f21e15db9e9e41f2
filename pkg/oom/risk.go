package oom

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// RoomForCache says how to keep page cache from getting a container killed.
const RoomForCache = "leave room for page cache below its limit (annotation cache-room: 0.1, or the key cacheRoom), or raise its limit"

// riskAge is how long a risk is shown after it was seen last, so that a scrape or a person sees it.
const riskAge = 10 * time.Minute

// Risk is the risk that a container is killed for page cache.
type Risk struct {
	// Seen is when it was seen last.
	Seen time.Time `json:"seen"`
	// Unwritten is the page cache, in bytes, that the disk had not taken then.
	Unwritten uint64 `json:"unwritten"`
	// Known is set where the node's kernel and one of its filesystems were seen to have such containers killed.
	Known bool `json:"knownToKill"`
}

// atRisk reports whether a container whose limit, or that of its pod, is being hit may be killed for page cache: it is at its limit, a
// part of that waits for the disk, and no memory.high has it wait, too.
func (s Sample) atRisk(c *ledger.ContainerView) bool {
	return User{Used: s.Current, Limit: c.Limit}.atLimit() && s.Held.waits() && (c.High == nil || cmp.Or(c.Raised, *c.High) >= c.Limit)
}

// risk notes what a sample of a container shows.
func (r *Recorder) risk(dir string, s Sample) {
	risk := &Risk{Seen: s.At, Unwritten: s.Held.Unwritten, Known: r.known()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.risks[dir] = risk
}

// known reads the kernel's release and, of sysfs, the folder that each mounted XFS has one in (fs/xfs/xfs_super.c).
func (r *Recorder) known() bool {
	release, err := os.ReadFile(filepath.Join(r.options.Proc, "sys/kernel/osrelease"))
	mounted, err2 := os.ReadDir(filepath.Join(r.options.Sys, "fs/xfs"))
	return r.options.Sys != "" && err == nil && err2 == nil && knownToKill(string(release), mounted)
}

// knownToKill holds what was measured (docs/measurements.md): containers were killed on Linux 6.12 with XFS.
func knownToKill(release string, xfs []os.DirEntry) bool {
	return strings.HasPrefix(release, "6.12.") &&
		slices.ContainsFunc(xfs, func(e os.DirEntry) bool { return e.Name() != "stats" && e.Name() != "debug" })
}

// Risks are those of the last ten minutes, by the container's cgroup.
func (r *Recorder) Risks() map[string]*Risk {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.risks)
}

// forgetRisks removes risks that were not seen for long.
func (r *Recorder) forgetRisks(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.risks, func(_ string, risk *Risk) bool { return now.Sub(risk.Seen) > riskAge })
}

// Sample is one look at a container that came near its limit.
type Sample struct {
	At time.Time `json:"time"`
	// Until is when memory.current was last read and had hardly changed; zero if At was the last time.
	Until   time.Time `json:"until,omitzero"`
	Current uint64    `json:"current"` // memory.current, bytes
	Held    Held      `json:"held"`
	// Nodes is what it holds on each of the NUMA nodes that it is kept to, in bytes.
	Nodes map[int]uint64 `json:"numaNodes,omitempty"`
	// Max and High count how often memory.max and memory.high were reached (memory.events).
	Max  uint64 `json:"max"`
	High uint64 `json:"high"`
	// Stalled is how long all its tasks waited for memory since its start (full of memory.pressure).
	Stalled time.Duration `json:"stalledNanoseconds"`
}

const (
	// mostSamples and sampleAge bound what is kept of a container.
	mostSamples = 60
	sampleAge   = time.Minute
	// stillAge bounds how long a sample stands for a container that hardly changes.
	stillAge = 5 * time.Minute
	// sampleEvery is the least time between two samples of a pod's containers.
	sampleEvery = time.Second
)

// samples are those of the last minute, the oldest first.
type samples []Sample

func (s samples) add(one Sample) samples {
	s = append(s.since(one.At), one)
	return s[max(0, len(s)-mostSamples):]
}

// since leaves out what is older than a minute.
func (s samples) since(now time.Time) samples {
	for len(s) > 0 && now.Sub(s[0].until()) > sampleAge {
		s = s[1:]
	}
	return s
}

// still adds to the last sample that it holds now, too, if memory.current has changed by less than a sixteenth of what is left up to the limit.
func (s samples) still(current, limit uint64, now time.Time) (samples, bool) {
	if s = s.since(now); len(s) == 0 {
		return s, false
	}
	last := s[len(s)-1]
	changed := less(current, last.Current) + less(last.Current, current)
	if now.Sub(last.At) >= stillAge || changed >= less(limit, current)/16 {
		return s, false
	}
	last.Until = now
	return append(slices.Clone(s[:len(s)-1]), last), true // a verdict may share what was there
}

func (s Sample) until() time.Time {
	if s.Until.IsZero() {
		return s.At
	}
	return s.Until
}

// again is how long until a container is looked at again, of which this is the next sample: a quarter of the time in which it will have
// reached its limit if it grows on as it did, and period where it does not grow.
func (s samples) again(next Sample, limit uint64) time.Duration {
	if len(s) == 0 {
		return sampleAge / 12 // to see whether it grows
	}
	last := s[len(s)-1]
	grown := less(next.Held.unreclaimable(), last.Held.unreclaimable())
	if grown == 0 {
		return period
	}
	left := float64(less(limit, next.Held.unreclaimable())) / float64(grown) * float64(next.At.Sub(last.until())) / 4
	return time.Duration(min(max(left, float64(sampleEvery)), float64(period)))
}

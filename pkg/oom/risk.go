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

// RoomForCache is what keeps page cache from having a container killed.
const RoomForCache = "leave room for page cache below its limit (annotation cache-room: 0.1, or the key cacheRoom), or raise its limit"

// riskAge is how long a risk is shown after it was seen last, so that a scrape or a person sees it.
const riskAge = 10 * time.Minute

// Risk is that of a container to be killed for page cache.
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

// forgetRisks leaves out what was not seen for long.
func (r *Recorder) forgetRisks(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.risks, func(_ string, risk *Risk) bool { return now.Sub(risk.Seen) > riskAge })
}

package protect

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Migration is the memory of a running container that the last write of its cpuset.mems has moved, or is moving.
type Migration struct {
	cgroup.Migration
	Blocked bool      // the write is not made: it would move more than the bound
	Done    bool      // the file has held the desired nodes since
	At      time.Time // of the decision
}

// BoundMigration sets how many bytes of a running container one write of cpuset.mems may move. A write that was blocked is
// decided again at the next Reconcile.
func (p *Protector) BoundMigration(bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.migration = bytes
}

// Migrations returns the migrations of containers in the table, by cgroup.
func (p *Protector) Migrations() map[string]Migration {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]Migration{}
	for dir, r := range p.rows {
		m, settled := &r.migration, r.parts[0].files[mems].done()
		m.Done = m.Done || settled && !m.Blocked // the memory has moved even if the file is overwritten later
		if m.Bytes > 0 && !(m.Blocked && settled) {
			all[dir] = *m
		}
	}
	return all
}

// Start is Check for a container that is about to run, if it has late writes or its cpuset.mems may not hold the desired nodes. The write may
// move any amount of memory.
func (p *Protector) Start(ctx context.Context, dir string) error {
	if !p.isLate(dir) {
		return nil
	}
	return p.inspect(ctx, starting, dir)
}

func (p *Protector) isLate(dir string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rows[dir]
	return r != nil && (p.lanes[raises].late[r] || p.lanes[others].late[r] || !r.parts[0].files[mems].done())
}

// NoteMigration records for Migrations what the runtime's write of a container's cpuset.mems moves.
func (p *Protector) NoteMigration(dir string, pages cgroup.Mapped, mems string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if to, err := nodeset.Parse(mems); err == nil && p.rows[dir] != nil {
		p.noteMigration(p.rows[dir], pages.Migration(to), false, p.migration)
	}
}

// countPages counts the pages of a cgroup, which takes a while. If a write may move any amount, one read is enough.
func (p *Protector) countPages(ctx context.Context, dir string, unbounded bool) cgroupfs.Counted {
	if unbounded {
		mapped, err := p.tree.Mapped(dir)
		return cgroupfs.Counted{Mapped: mapped, Err: err}
	}
	return p.tree.Count(ctx, dir)[dir]
}

// mayMigrate decides whether cpuset.mems of a container may change. Without a bound an error of the count is ignored.
func (p *Protector) mayMigrate(r *row, pages cgroupfs.Counted, to nodeset.Set, unbounded bool) (bool, error) {
	bound := p.migration
	if unbounded {
		bound = math.MaxUint64
	}
	switch {
	case errors.Is(pages.Err, fs.ErrNotExist): // no cgroup, no pages
		return true, nil
	case pages.Err != nil && bound == math.MaxUint64:
		return true, nil
	case pages.Err != nil:
		return false, pages.Err
	}
	moves := pages.Migration(to)
	blocked := moves.Bytes > bound
	p.noteMigration(r, moves, blocked, bound)
	return !blocked, nil
}

// noteMigration records what a write moves and logs news. A write that moves nothing replaces only a blocked migration: the memory has moved
// with an earlier write, or is gone.
func (p *Protector) noteMigration(r *row, moves cgroup.Migration, blocked bool, bound uint64) {
	before := r.migration
	if moves.Bytes == 0 && !before.Blocked {
		return
	}
	again := before.Migration == moves && before.Blocked == blocked && !before.Done // the runtime makes the same write
	r.migration = Migration{Migration: moves, Blocked: blocked, At: p.now()}
	if blocked && before.Blocked {
		r.migration.At = before.At
	}
	log := p.log.WithFields(logrus.Fields{"cgroup": r.cgroup, "bytes": moves.Bytes, "from": moves.From, "to": moves.To})
	switch {
	case blocked && !before.Blocked:
		log.WithField("upTo", bound).Warn("cpuset.mems of a running container is not written: the write would move more memory than maxMigrationBytes")
	case !blocked && moves.Bytes > 0 && !again:
		log.Info("writing cpuset.mems of a running container, which moves memory")
	}
}

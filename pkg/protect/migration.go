package protect

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Migration is the memory of a running container that the last write of its cpuset.mems has moved, or is moving.
type Migration struct {
	cgroup.Migration
	// Withheld is set where the write is not made, because it would move more than the bound.
	Withheld bool
	// Done is set once the file has held what is desired.
	Done bool
	// At is when the write was decided.
	At time.Time
}

// BoundMigration sets how many bytes of a running container one write of cpuset.mems may move. A write that was withheld is
// decided again at the next Reconcile.
func (p *Protector) BoundMigration(bytes uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.migration = bytes
}

// Migrations are those of the containers in the table, by cgroup.
func (p *Protector) Migrations() map[string]Migration {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]Migration{}
	for dir, r := range p.rows {
		m, settled := &r.migration, r.parts[0].files[mems].state.settled()
		m.Done = m.Done || settled && !m.Withheld // what is overwritten later has moved all the same
		if m.Bytes > 0 && !(m.Withheld && settled) {
			all[dir] = *m
		}
	}
	return all
}

// Start is Check for a container that is about to run, where it has late writes or its cpuset.mems is not known to hold what is
// desired. What its runtime has in memory until then is always moved.
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
	return r != nil && (p.lanes[raises].late[r] || p.lanes[others].late[r] || !r.parts[0].files[mems].state.settled())
}

// Withholds reports whether a running container must not be given these nodes now, not even by its runtime, because that would
// move more than the bound; present is the cpuset.mems that it has.
func (p *Protector) Withholds(dir, nodes string) (present string, withheld bool) {
	to, err := nodeset.Parse(nodes)
	if err != nil || p.mayGive(dir, p.count(dir), to) {
		return "", false
	}
	present, _ = p.tree.Mems(dir)
	return present, true
}

func (p *Protector) mayGive(dir string, pages pages, to nodeset.Set) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	may, _ := p.mayMigrate(p.rows[dir], pages, to, false) // what cannot be told is withheld
	return may
}

// pages are those of a cgroup, as the kernel has counted them.
type pages struct {
	cgroup.Mapped
	err error
}

// count has the kernel count the pages of a cgroup, which takes a while.
func (p *Protector) count(dir string) pages {
	mapped, err := p.tree.Mapped(dir)
	return pages{mapped, err}
}

// mayMigrate decides whether a cgroup of a container may be given other nodes; r is nil for one that is not in the table. Without a
// bound an error of the count is none.
func (p *Protector) mayMigrate(r *row, pages pages, to nodeset.Set, unbounded bool) (bool, error) {
	bound := p.migration
	if unbounded {
		bound = math.MaxUint64
	}
	switch {
	case errors.Is(pages.err, fs.ErrNotExist): // what has no cgroup has no pages
		return true, nil
	case pages.err != nil && bound == math.MaxUint64:
		return true, nil
	case pages.err != nil:
		return false, pages.err
	}
	moves := pages.Migration(to)
	withheld := moves.Bytes > bound
	if r != nil {
		p.noteMigration(r, moves, withheld, bound)
	}
	return !withheld, nil
}

// noteMigration keeps what a write moves, and logs what is new. What moves nothing ends only what was withheld: the memory has
// moved with an earlier write, or is gone.
func (p *Protector) noteMigration(r *row, moves cgroup.Migration, withheld bool, bound uint64) {
	before := r.migration
	if moves.Bytes == 0 && !before.Withheld {
		return
	}
	again := before.Migration == moves && before.Withheld == withheld && !before.Done // the runtime writes it, too
	r.migration = Migration{Migration: moves, Withheld: withheld, At: p.now()}
	if withheld && before.Withheld {
		r.migration.At = before.At
	}
	log := p.log.WithFields(logrus.Fields{"cgroup": r.cgroup, "bytes": moves.Bytes, "from": moves.From, "to": moves.To})
	switch {
	case withheld && !before.Withheld:
		log.WithField("upTo", bound).Warn("cpuset.mems of a running container is not written: it would move more memory than migration allows")
	case !withheld && moves.Bytes > 0 && !again:
		log.Info("writing cpuset.mems of a running container, which moves memory")
	}
}

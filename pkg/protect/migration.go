package protect

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"path"
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
// decided again at the next Apply or Reconcile.
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
	for _, r := range p.containers {
		m, settled := &r.migration, r.files[mems].settled()
		m.Done = m.Done || settled && !m.Withheld // what is overwritten later has moved all the same
		if m.Bytes > 0 && !(m.Withheld && settled) {
			all[r.cgroup] = *m
		}
	}
	return all
}

// Settled reports whether a cgroup's files hold what is desired, or nothing is written because that would move more than the bound.
func (p *Protector) Settled(dir string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rows[dir]
	return r == nil || r.settled() || r.migration.Withheld
}

// Start is Finish for a container that is about to run: what its runtime has in memory until then is always moved.
func (p *Protector) Start(ctx context.Context, dir string) error {
	p.mu.Lock()
	r := p.rows[dir]
	due := r != nil && (p.takeLate(dir) || !r.files[mems].settled())
	if due {
		r.starting = true
	}
	p.mu.Unlock()
	if !due {
		return nil
	}
	err := p.Check(ctx, dir)
	p.mu.Lock()
	r.starting = false
	p.mu.Unlock()
	return err
}

// Withholds reports whether a running container must not be given these nodes now, not even by its runtime, because that would
// move more than the bound; present is the cpuset.mems that it has.
func (p *Protector) Withholds(dir, nodes string) (present string, withheld bool) {
	to, err := nodeset.Parse(nodes)
	if err != nil {
		return "", false
	}
	p.mu.Lock()
	may, _ := p.mayMigrate(dir, dir, to) // what cannot be told is withheld
	p.mu.Unlock()
	if may {
		return "", false
	}
	present, _ = p.tree.Mems(dir)
	return present, true
}

// mayMigrate decides whether a cgroup of a container may be given other nodes. The lock is released while the kernel counts the
// container's pages. Without a bound an error of that is none.
func (p *Protector) mayMigrate(container, dir string, to nodeset.Set) (bool, error) {
	p.mu.Unlock()
	mapped, err := p.tree.Mapped(dir)
	p.mu.Lock()
	r, bound := p.rows[container], p.migration
	if r != nil && r.starting {
		bound = math.MaxUint64
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // what has no cgroup has no pages
		return true, nil
	case err != nil && bound == math.MaxUint64:
		return true, nil
	case err != nil:
		return false, err
	}
	moves := mapped.Migration(to)
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

// container is the cgroup of the container that a row belongs to.
func (r *row) container() string {
	if r.isInner {
		return path.Dir(r.cgroup)
	}
	return r.cgroup
}

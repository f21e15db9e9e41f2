package status

import (
	"fmt"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// The states of a migration.
const (
	// Planned would be made if this were no dry run.
	Planned = "planned"
	// Blocked is not made: the configuration does not allow so much.
	Blocked = "blocked"
	Moving  = "moving"
	Moved   = "moved"
)

// Migration is memory of a running container that a write of its cpuset.mems moves between NUMA nodes.
type Migration struct {
	State string `json:"state"`
	cgroup.Migration
	// At is when the write was decided; absent in a dry run.
	At time.Time `json:"at,omitzero"`
	// Allowed is the configuration's maxMigrationBytes, a quantity.
	Allowed string `json:"allowed"`
}

// Blocked reports whether memory is not where it is allocated, because it is too much to be moved.
func (m *Migration) Blocked() bool { return m != nil && m.State == Blocked }

// Pending reports whether cpuset.mems is not what is allocated, because of the memory that it would move.
func (m *Migration) Pending() bool { return m != nil && m.State != Moved }

// String is a sentence about the container.
func (m *Migration) String() string {
	what := m.Migration.String()
	at := m.At.UTC().Format(time.DateTime) + " UTC"
	switch {
	case m.State == Blocked && m.At.IsZero():
		return fmt.Sprintf("a write of its cpuset.mems would move %s, more than maxMigrationBytes (%s)", what, m.Allowed)
	case m.State == Blocked:
		return fmt.Sprintf("its cpuset.mems is not written: that would move %s, more than maxMigrationBytes (%s)", what, m.Allowed)
	case m.State == Planned:
		return fmt.Sprintf("a write of its cpuset.mems would move %s", what)
	case m.State == Moving:
		return fmt.Sprintf("its cpuset.mems is being written since %s, which moves %s", at, what)
	}
	return fmt.Sprintf("its cpuset.mems was written at %s, which moved %s", at, what)
}

// migrations are the migrations of the view's containers by cgroup; in a dry run those that would be made.
func (s Sources) migrations(view *ledger.View) map[string]*Migration {
	config := view.Config.Config
	all := map[string]*Migration{}
	put := func(cgroup, state string, m cgroup.Migration, at time.Time) {
		all[cgroup] = &Migration{state, m, at, config.MaxMigrationBytes.String()}
	}
	switch {
	case config.DryRun() && s.Usages != nil:
		for cgroup, m := range s.Usages.planned(view) {
			state := Planned
			if m.Bytes > view.Config.MostMoved() {
				state = Blocked
			}
			put(cgroup, state, m, time.Time{})
		}
	case !config.DryRun() && s.Migrations != nil:
		for cgroup, m := range s.Migrations() {
			state := Moving
			switch {
			case m.Blocked:
				state = Blocked
			case m.Done:
				state = Moved
			}
			put(cgroup, state, m.Migration, m.At)
		}
	}
	return all
}

// planned returns, by cgroup, the memory that writes of the view's running containers' cpuset.mems would move.
func (u *Usages) planned(view *ledger.View) map[string]cgroup.Migration {
	var cgroups []string
	var nodes []nodeset.Set
	for _, c := range view.Containers() {
		if c.State == ledger.Running && c.Cgroup != "" && !c.Mems().Empty() {
			cgroups, nodes = append(cgroups, c.Cgroup), append(nodes, c.Mems())
		}
	}
	all := map[string]cgroup.Migration{}
	for i, sample := range inTime(u.mapped, cgroups) {
		if m := sample.Value.Migration(nodes[i]); m.Bytes > 0 && sample.Err == nil {
			all[cgroups[i]] = m
		}
	}
	return all
}

// elsewhere describes a migration that is not done; "" without one.
func (c *Container) elsewhere() string {
	if !c.Migration.Pending() {
		return ""
	}
	return c.Migration.String()
}

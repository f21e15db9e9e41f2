package agent

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// withholdAll is withhold for each update.
func (a *Agent) withholdAll(updates []ledger.Update) []ledger.Update {
	var all []ledger.Update
	for _, update := range updates {
		update.Adjustment = a.withhold(update.ContainerID, update.Adjustment)
		if !update.Empty() {
			all = append(all, update)
		}
	}
	return all
}

// withhold has the runtime write the cpuset.mems that a running container has already, where the desired one would move more
// memory than the configuration allows. Its own record may be another one, which it would write where none is named.
func (a *Agent) withhold(id string, adjustment ledger.Adjustment) ledger.Adjustment {
	if adjustment.CpusetMems == "" {
		return adjustment
	}
	at, lives := a.place(id)
	if !lives || !at.Files {
		return adjustment
	}
	if present, withheld := a.protector.Withholds(at.Cgroup, adjustment.CpusetMems); withheld {
		adjustment.CpusetMems = present
		a.step(ledger.Withheld{ID: id, Mems: present})
	}
	return adjustment
}

// Migrations are those of running containers whose cpuset.mems was written, or was not because it would move too much, by cgroup.
func (a *Agent) Migrations() map[string]protect.Migration { return a.protector.Migrations() }

package agent

import (
	"context"
	"errors"
	"io/fs"
	"maps"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// measure reads the usage of cgroups and adds it to a copy of known.
func (a *Agent) measure(ctx context.Context, known map[string]ledger.Usage, cgroups []string) map[string]ledger.Usage {
	all := make(map[string]ledger.Usage, len(known)+len(cgroups))
	maps.Copy(all, known)
	for dir, counted := range a.tree.Count(ctx, cgroups...) {
		u := ledger.Usage{Mapped: counted.Mapped}
		if err := counted.Err; err != nil {
			u.Unread, u.Gone = err.Error(), errors.Is(err, fs.ErrNotExist)
		}
		u.Mems, _ = a.tree.Mems(dir) // empty if it cannot be read
		all[dir] = u
	}
	return all
}

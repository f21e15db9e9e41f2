package agent

import (
	"context"
	"errors"
	"io/fs"
	"maps"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// measure reads what cgroups use, and returns it with what is known of others.
func (a *Agent) measure(ctx context.Context, known map[string]ledger.Usage, cgroups []string) map[string]ledger.Usage {
	all := make(map[string]ledger.Usage, len(known)+len(cgroups))
	maps.Copy(all, known)
	for dir, counted := range a.tree.Count(ctx, cgroups...) {
		all[dir] = a.usage(dir, counted)
	}
	return all
}

func (a *Agent) usage(dir string, counted cgroupfs.Counted) ledger.Usage {
	u := ledger.Usage{Mapped: counted.Mapped}
	if err := counted.Err; err != nil {
		u.Unread, u.Gone = err.Error(), errors.Is(err, fs.ErrNotExist)
	}
	u.Mems, _ = a.tree.Mems(dir) // what cannot be read is none
	return u
}

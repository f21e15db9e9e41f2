package ledger

import (
	"math"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Usage is the memory of a cgroup, as the kernel shows it.
type Usage struct {
	// Mapped is the memory that a write of cpuset.mems can move, by node. Unread says why it is unknown.
	cgroup.Mapped
	Unread string
	// Mems is its cpuset.mems; "" if it has none of its own.
	Mems string
	// Gone is set if the cgroup does not exist, and so has no memory.
	Gone bool
}

// allows reports whether a write of cpuset.mems moves at most most bytes.
func (u *Usage) allows(to nodeset.Set, most uint64) bool {
	return u.Gone || most == math.MaxUint64 && u.Unread != "" || u.Unread == "" && u.Migration(to).Bytes <= most
}

// containerAt returns the living container with a cgroup; nil if there is none.
func (l *Ledger) containerAt(cgroup string) *container {
	for _, c := range l.containers {
		if c.Cgroup == cgroup {
			return c
		}
	}
	return nil
}

package ledger

import (
	"math"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Usage is what the kernel shows of a cgroup.
type Usage struct {
	// Mapped is where it has memory that a write of cpuset.mems can move, and Unread why that is not known.
	cgroup.Mapped
	Unread string
	// Mems is its cpuset.mems; "" where it has none of its own.
	Mems string
	// Gone is set where the cgroup is not there: what has none has no pages.
	Gone bool
}

// allows reports whether a write of cpuset.mems moves no more than so many bytes.
func (u *Usage) allows(to nodeset.Set, most uint64) bool {
	return u.Gone || most == math.MaxUint64 && u.Unread != "" || u.Unread == "" && u.Migration(to).Bytes <= most
}

// NodeMemorySampled is what the kernel has shown of the NUMA nodes: what is allocated and unused on them, and available; none when that is
// not known.
type NodeMemorySampled struct{ Nodes []deficit.Node }

func (e NodeMemorySampled) apply(l *Ledger) {
	if l.state.NodeMemory = e.Nodes; l.manager != nil {
		l.manager.Observe(e.Nodes)
	}
}

// at is the living container with a cgroup; nil where there is none.
func (l *Ledger) at(cgroup string) *container {
	for _, c := range l.containers {
		if c.Cgroup == cgroup {
			return c
		}
	}
	return nil
}

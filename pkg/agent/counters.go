package agent

import (
	"sync"
	"sync/atomic"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
)

// Counters count since the agent was made.
type Counters struct {
	// PinningRequests and PinningErrors are the kubelet's memory_manager_pinning_requests_total and …_errors_total.
	PinningRequests, PinningErrors uint64
	// Rejections are refused containers and resizes, Unpinned those that run without nodes of their own instead; both by
	// reason, a bounded set.
	Rejections, Unpinned map[string]uint64
	// Bounded counts placements whose search was cut short.
	Bounded uint64
	// Late counts decisions that were not on disk before the event's deadline.
	Late uint64
	// Quarantined counts state files that were set aside.
	Quarantined uint64
	// Forgotten counts pods that ended without an event.
	Forgotten uint64
	// Corrections counts memory requests that a better source corrected on a running container.
	Corrections uint64
	// Updates counts unasked updates that the runtime took; ContainerRepairs the containers whose files were written
	// directly, ContainerWriteErrors those where that failed.
	Updates, ContainerRepairs, ContainerWriteErrors uint64
	// ProtectErrors counts failed writes to the cgroups above the containers.
	ProtectErrors uint64
	// Reloads and BadReloads count configurations taken and refused.
	Reloads, BadReloads uint64
	// Overwrites counts foreign writes to the cgroups above the containers, those of pods that have ended too.
	Overwrites map[cgroup.Overwrite]uint64
	// Checkpoint are the state file's.
	Checkpoint checkpoint.Stats
	// Requests are the sources'.
	Requests podinfo.Stats
}

type counters struct {
	pinningRequests, pinningErrors                  atomic.Uint64
	late, quarantined, forgotten, corrections       atomic.Uint64
	updates, containerRepairs, containerWriteErrors atomic.Uint64
	protectErrors, reloads, badReloads              atomic.Uint64

	mu                   sync.Mutex
	rejections, unpinned map[string]uint64
}

// rejected counts a container that could not be placed.
func (c *counters) rejected(reason string, refused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rejections == nil {
		c.rejections, c.unpinned = map[string]uint64{}, map[string]uint64{}
	}
	if refused {
		c.rejections[reason]++
	} else {
		c.unpinned[reason]++
	}
}

// Counters returns what has been counted so far. It does not wait for decisions under way.
func (a *Agent) Counters() Counters {
	c := &a.counters
	counted := Counters{
		PinningRequests: c.pinningRequests.Load(), PinningErrors: c.pinningErrors.Load(),
		Late: c.late.Load(), Quarantined: c.quarantined.Load(), Forgotten: c.forgotten.Load(),
		Corrections: c.corrections.Load(), Updates: c.updates.Load(),
		ContainerRepairs: c.containerRepairs.Load(), ContainerWriteErrors: c.containerWriteErrors.Load(),
		ProtectErrors: c.protectErrors.Load(), Reloads: c.reloads.Load(), BadReloads: c.badReloads.Load(),
		Rejections: map[string]uint64{}, Unpinned: map[string]uint64{},
		Overwrites: a.protector.Overwrites(),
		Requests:   a.requests.Stats(),
	}
	c.mu.Lock()
	for reason, n := range c.rejections {
		counted.Rejections[reason] = n
	}
	for reason, n := range c.unpinned {
		counted.Unpinned[reason] = n
	}
	c.mu.Unlock()
	if a.writer != nil {
		counted.Checkpoint = a.writer.Stats()
	}
	a.mu.Lock()
	if a.manager != nil {
		counted.Bounded = a.manager.Bounded()
	}
	a.mu.Unlock()
	return counted
}

// Overwritten counts the foreign writes among Overwrites to the cgroups that are there now, by file.
func (a *Agent) Overwritten() map[cgroup.File]uint64 { return a.protector.Overwritten() }

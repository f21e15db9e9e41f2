package world

import (
	"time"
)

const neverThrottles Promise = "the daemon does not throttle itself"

// ownPod is the name of the pod that the daemon runs in.
const ownPod = "nri-memory-manager"

func (p LivePod) isDaemon() bool { return p.Name == ownPod }

// neverThrottlesItself looks at the daemon's own container: at its memory.high the daemon cannot raise it. A daemon knows its container from
// when it has connected to the runtime with it, which is a while after its start.
func (n *simulation) neverThrottlesItself() {
	if now := time.Now(); n.trouble.calm(neverThrottles, now).After(now) || !n.settings().writes() {
		return
	}
	for p, c := range n.containers() {
		if high := n.values(c.Cgroup).high; p.isDaemon() && n.runs(c) && c.Since.Before(n.current().since) && high != noLimit {
			n.broken(neverThrottles, "its container in %s has memory.high %d", c.Cgroup, high)
		}
	}
}

package evict

import (
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
)

// A node that refuses nothing any more evicts nothing: after a rollback or under Observe the kubelet's next try has the pod run here.
func TestADryRunEvictsNothing(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*config.Config){
		"rollback": func(c *config.Config) { c.RolledBack = true },
		"Observe":  func(c *config.Config) { c.Profile = config.ProfileObserve },
	} {
		n := newNode(5 * time.Minute)
		n.create("web-1", "web", "ReplicaSet")
		n.refused(5*time.Minute - 10*time.Second)
		change(&n.view.Config.Config)
		for range 30 { // a minute, until the kubelet tries again
			n.look(t.Context(), n.now)
			n.now = n.now.Add(2 * time.Second)
		}
		if len(n.done)+n.reads > 0 {
			t.Errorf("%s: evicted %q, read %d times", name, n.done, n.reads)
		}
	}
}

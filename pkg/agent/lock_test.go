package agent

import (
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/progress"
)

// A lock that is not given back is named by what /healthz asks, and nothing else is.
func TestALockThatIsNotGivenBackIsNamed(t *testing.T) {
	n := newNode(t, "")
	stop := n.background()
	defer stop()
	stands := func() bool {
		err := progress.Check()
		return err != nil && strings.Contains(err.Error(), "the agent's lock has not moved for ")
	}
	n.mu.Lock()
	eventually(t, "the lock is named", stands)
	n.mu.Unlock()
	eventually(t, "the lock is given back", func() bool { return !stands() })
}

package agent

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// observeSample passes the last sample to the ledger before a decision that depends on it, with the memory that is free now: much may have
// been allocated since the sample. Other samples are not passed, so that recordings do not contain them.
func (a *Agent) observeSample() {
	nodes := a.deficits.FreeNow()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(nodes, a.lastSample) {
		a.lastSample = nodes
		a.stepLocked(ledger.NodeMemorySampled{Nodes: nodes})
	}
}

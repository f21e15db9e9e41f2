package agent

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// observeSample has the ledger know the last sample before it decides by it about a new container, with what is free at this moment:
// much may have been taken since the sample. Samples that nothing is decided by are no events, so that a recording holds none of them.
func (a *Agent) observeSample() {
	nodes := a.deficits.FreeNow()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(nodes, a.lastSample) {
		a.lastSample = nodes
		a.stepLocked(ledger.NodeMemorySampled{Nodes: nodes})
	}
}

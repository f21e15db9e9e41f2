package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
)

// currentMachine is the machine as it was read last.
func (a *Agent) currentMachine() machine.Machine {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.machine
}

// followMachine looks whether memory was plugged in or out, or a pool of huge pages was resized, and rebuilds the node map of what is
// there now. Where the configuration does not fit that, the old map stays, as with a configuration that does not fit.
func (a *Agent) followMachine(ctx context.Context) {
	if a.sysfs == "" {
		return
	}
	a.mu.Lock()
	was, tolerance := a.machine, a.ledger.Config().StateTolerance
	a.mu.Unlock()
	now, err := sysfs.Refresh(a.sysfs, was)
	if err != nil {
		a.log.WithError(err).Debug("the node map stays")
		return
	}
	if now.SameMemory(was, tolerance) {
		return
	}
	for i, node := range now.Nodes {
		if before, after := amounts(was.Nodes[i]), amounts(node); before != after {
			a.log.WithFields(logrus.Fields{"node": node.ID, "was": before, "now": after}).Info("the memory of a NUMA node has changed")
		}
	}
	defer a.configuring()()
	a.mu.Lock()
	a.machine = now
	a.mu.Unlock()
	_ = a.reconfigure(ctx, a.config()) // it logs and shows why not
}

// amounts are a node's memory and huge page pools for the log.
func amounts(node machine.Node) string {
	texts := []string{fmt.Sprintf("memory=%d", node.Memory)}
	for _, pool := range node.Hugepages {
		texts = append(texts, fmt.Sprintf("hugepages-%s=%d", quantity.Format(pool.PageSize), pool.Count*pool.PageSize))
	}
	return strings.Join(texts, ",")
}

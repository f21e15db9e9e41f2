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

// followMachine rebuilds the node map if memory was plugged in or out, or a pool of huge pages was resized. If the configuration does not
// fit the new machine, the old map stays in force.
func (a *Agent) followMachine(ctx context.Context) {
	if a.sysfs == "" {
		return
	}
	a.mu.Lock()
	was, tolerance := a.machine, a.ledger.Config().StateTolerance
	a.mu.Unlock()
	now, err := sysfs.Refresh(a.sysfs, was)
	if err != nil {
		a.log.WithError(err).Debug("the memory of NUMA nodes cannot be read: the node map is unchanged")
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
	_ = a.reconfigure(ctx, a.config()) // errors are logged and shown
}

// amounts formats a node's memory and huge page pools for the log.
func amounts(node machine.Node) string {
	texts := []string{fmt.Sprintf("memory=%d", node.Memory)}
	for _, pool := range node.Hugepages {
		texts = append(texts, fmt.Sprintf("hugepages-%s=%d", quantity.Format(pool.PageSize), pool.Count*pool.PageSize))
	}
	return strings.Join(texts, ",")
}

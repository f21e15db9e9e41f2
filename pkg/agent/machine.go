package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
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

// updateNodeMemory passes the last sample to the ledger before a decision that depends on it, with the memory that is free now: much may have
// been allocated since the sample. Other samples are not passed, so that recordings do not contain them.
func (a *Agent) updateNodeMemory() {
	nodes := a.sampler.NodeMemoryNow()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(nodes, a.lastNodeMemory) {
		a.lastNodeMemory = nodes
		a.stepLocked(ledger.NodeMemorySampled{Nodes: nodes})
	}
}

// measure reads the usage of cgroups and adds it to a copy of known.
func (a *Agent) measure(ctx context.Context, known map[string]ledger.Usage, cgroups []string) map[string]ledger.Usage {
	all := make(map[string]ledger.Usage, len(known)+len(cgroups))
	maps.Copy(all, known)
	for dir, counted := range a.tree.Count(ctx, cgroups...) {
		u := ledger.Usage{Mapped: counted.Mapped}
		if err := counted.Err; err != nil {
			u.Unread, u.Gone = err.Error(), errors.Is(err, fs.ErrNotExist)
		}
		u.Mems, _ = a.tree.Mems(dir) // empty if it cannot be read
		all[dir] = u
	}
	return all
}

package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

func (c Config) validateDRA() error {
	d := c.DRA
	errs := []error{
		c.check("dra.enabled", !d.Enabled || c.MemoryManagerPolicy != MemoryManagerNone, "needs memoryManagerPolicy: Static"),
	}
	for i, share := range d.Shares {
		field := fmt.Sprintf("dra.shares[%d]", i)
		if len(share.Limits) == 0 {
			errs = append(errs, c.Errorf(field, "limits is missing: want shares of memory or hugepages-<size>"))
		}
		for _, memoryType := range slices.Sorted(maps.Keys(share.Limits)) {
			if !isMemoryType(memoryType) {
				errs = append(errs, c.Errorf(field+".limits", "%s is neither memory nor hugepages-<size>", strictyaml.Quote(memoryType)))
				continue
			}
			_, err := share.Limits[memoryType].Of(0)
			errs = append(errs, c.check(field+".limits."+memoryType, err == nil,
				"want a percentage from 0%% to 100%% or a quantity such as 16Gi, got %s", strictyaml.Quote(string(share.Limits[memoryType]))))
		}
	}
	return strictyaml.Join(errs...)
}

// claimable fills in what claims may have.
func (r *Resolved) claimable(m machine.Machine) error {
	d := r.Config.DRA
	if !d.Enabled {
		return nil
	}
	for i, share := range d.Shares {
		if n := share.NUMANode; n != nil && !slices.ContainsFunc(m.Nodes, func(node machine.Node) bool { return node.ID == *n }) {
			return r.Config.Errorf(fmt.Sprintf("dra.shares[%d].numaNode", i), "this machine has no NUMA node %d, only %s", *n, m.NodeIDs())
		}
	}
	r.Claimable = append(d.Claimable(r.Nodes, "50%"), d.Claimable(r.ClaimNodes, "100%")...)
	return nil
}

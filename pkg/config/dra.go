package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
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
	for i, share := range d.Shares {
		for _, memoryType := range slices.Sorted(maps.Keys(share.Limits)) {
			r.warnOfShare(share, memoryType, fmt.Sprintf("dra.shares[%d].limits.%s", i, memoryType))
		}
	}
	return nil
}

// warnOfShare warns of the first NUMA node that has less than its share: claims get all of its memory.
func (r *Resolved) warnOfShare(share claims.NodeShare, memoryType, path string) {
	want, err := quantity.Parse(string(share.Limits[memoryType]))
	if err != nil { // a percentage
		return
	}
	for _, node := range slices.Concat(r.Nodes, r.ClaimNodes) {
		has := node.Allocatable(memorymanager.MemoryType(memoryType))
		if want > has && (share.NUMANode == nil || *share.NUMANode == node.ID) {
			sizes := quantity.Apart(want, has)
			r.Warnings = append(r.Warnings, r.Config.Errorf(path, "NUMA node %d has less than %s: claims get all of its %s", node.ID, sizes[0], sizes[1]).Error())
			return
		}
	}
}

package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// DRA publishes a share of each NUMA node's memory as a device for resource claims.
// https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
type DRA struct {
	Enabled bool `yaml:"enabled"`
	// Driver is the name that DeviceClasses select, a DNS subdomain.
	Driver string `yaml:"driver"`
	// Share is what claims may have of each memory type on each NUMA node, as a percentage of what is allocatable there.
	Share Share `yaml:"share"`
	// Shares replace Share for some NUMA nodes and memory types; the last entry that names both counts.
	Shares []NodeShare `yaml:"shares"`
}

// NodeShare is the share of some memory types on one NUMA node, or on all of them.
type NodeShare struct {
	// NUMANode is the node's number; nil is every node.
	NUMANode *int `yaml:"numaNode"`
	// Limits are shares by memory type: memory or hugepages-<size>.
	Limits map[string]Share `yaml:"limits"`
}

// Share is a part of a NUMA node's memory: a percentage of what is allocatable, or a quantity.
type Share string

// of is the share in bytes of what is allocatable, at most all of that.
func (s Share) of(allocatable uint64) (uint64, error) {
	percent, isPercent := strings.CutSuffix(string(s), "%")
	if !isPercent {
		bytes, err := quantity.Parse(string(s))
		return min(bytes, allocatable), err
	}
	value, err := strconv.ParseFloat(percent, 64)
	if err != nil || !(value >= 0 && value <= 100) {
		return 0, errors.New("is no percentage")
	}
	return min(uint64(float64(allocatable)*value/100), allocatable), nil
}

// longestDriver is the API's bound of a driver's name.
const longestDriver = 63

func (c Config) validateDRA() error {
	d := c.DRA
	problems := content.IsDNS1123Subdomain(d.Driver)
	if len(d.Driver) > longestDriver {
		problems = append(problems, fmt.Sprintf("must be no more than %d characters", longestDriver))
	}
	_, wrong := d.Share.of(0)
	errs := []error{
		c.check("dra.enabled", !d.Enabled || c.MemoryManagerPolicy != MemoryManagerNone, "needs memoryManagerPolicy: Static"),
		c.check("dra.driver", len(problems) == 0, "%s is not the name of a driver: %s", strictyaml.Quote(d.Driver), strings.Join(problems, ", ")),
		c.check("dra.share", wrong == nil && strings.HasSuffix(string(d.Share), "%"), "want a percentage from 0%% to 100%%, got %s", strictyaml.Quote(string(d.Share))),
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
			_, err := share.Limits[memoryType].of(0)
			errs = append(errs, c.check(field+".limits."+memoryType, err == nil,
				"want a percentage from 0%% to 100%% or a quantity such as 16Gi, got %s", strictyaml.Quote(string(share.Limits[memoryType]))))
		}
	}
	return strictyaml.Join(errs...)
}

// claimable fills in what claims may have, in whole steps.
func (r *Resolved) claimable(m machine.Machine) error {
	d := r.Config.DRA
	if !d.Enabled {
		return nil
	}
	for i, share := range d.Shares {
		if n := share.NUMANode; n != nil && !slices.ContainsFunc(m.Nodes, func(node machine.Node) bool { return node.ID == *n }) {
			return r.Config.Errorf(fmt.Sprintf("dra.shares[%d].numaNode", i), "this machine has no NUMA node %d, only %s", *n, nodeIDs(m))
		}
	}
	manager, err := memorymanager.New(r.Nodes, r.Manager)
	if err != nil {
		return fmt.Errorf("memory manager: %w", err)
	}
	for _, node := range manager.Nodes() {
		claimable := claims.Claimable{Node: node.ID}
		for _, table := range node.Memory {
			bytes, _ := d.shareOf(node.ID, string(table.Type)).of(table.Allocatable) // valid by now
			if bytes -= bytes % claims.Step(table.Type); bytes > 0 {
				claimable.Amounts = append(claimable.Amounts, memorymanager.Amount{Type: table.Type, Bytes: bytes})
			}
		}
		r.Claimable = append(r.Claimable, claimable)
	}
	return nil
}

func (d DRA) shareOf(node int, memoryType string) Share {
	for _, share := range slices.Backward(d.Shares) {
		if limit, named := share.Limits[memoryType]; named && (share.NUMANode == nil || *share.NUMANode == node) {
			return limit
		}
	}
	return d.Share
}

package claims

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Config publishes a share of each NUMA node's memory as a device for resource claims.
type Config struct {
	Enabled bool `yaml:"enabled"`
	// Shares are what claims may have of NUMA nodes and memory types. The last entry that names both applies; without one, half of the
	// allocatable memory, or all of it on a node that only claims may use.
	Shares []NodeShare `yaml:"shares"`
	// PublishNodeAllocatable says in the devices that what a claim has of them counts as its pod's request, as of Kubernetes 1.37 with
	// the feature gate DRANodeAllocatableResources (KEP-5517).
	PublishNodeAllocatable bool `yaml:"publishNodeAllocatable"`
	// Ending is no key: a reload has set enabled to false, and the next start ends the driver. Until then nothing is published.
	Ending bool `yaml:"-" json:",omitzero"`
}

// NodeShare is the share of some memory types on one NUMA node, or on all of them.
type NodeShare struct {
	// NUMANode is the node's number; nil is every node.
	NUMANode *int `yaml:"numaNode"`
	// Limits are shares by memory type: memory or hugepages-<size>.
	Limits map[string]Share `yaml:"limits"`
}

// Driver is the name that DeviceClasses select.
const Driver = "memory.noderesource.dev"

// Share is a part of a NUMA node's memory: a percentage of the allocatable memory, or a quantity.
type Share string

// Of returns the share of allocatable in bytes, at most all of it.
func (s Share) Of(allocatable uint64) (uint64, error) {
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

// Claimable returns what claims may have of NUMA nodes, in whole steps: of a memory type that Shares do not name, the share otherwise. The
// shares must be valid.
func (c Config) Claimable(nodes []memorymanager.NodeCapacity, otherwise Share) (all []Claimable) {
	for _, node := range nodes {
		claimable := Claimable{Node: node.ID}
		for _, memoryType := range node.Types() {
			bytes, _ := c.share(node.ID, string(memoryType), otherwise).Of(node.Allocatable(memoryType))
			if bytes -= bytes % Step(memoryType); bytes > 0 {
				claimable.Amounts = claimable.Amounts.AtLeast(memorymanager.Amount{Type: memoryType, Bytes: bytes})
			}
		}
		all = append(all, claimable)
	}
	return all
}

func (c Config) share(node int, memoryType string, otherwise Share) Share {
	for _, share := range slices.Backward(c.Shares) {
		if limit, named := share.Limits[memoryType]; named && (share.NUMANode == nil || *share.NUMANode == node) {
			return limit
		}
	}
	return otherwise
}

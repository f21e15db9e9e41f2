package config

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

const mostWeight = 100

// strategy is the option's value, else none; and the weights of memory types that the other option names.
func (c Config) strategy() (topologymanager.Strategy, map[memorymanager.MemoryType]uint64) {
	strategy := cmp.Or(topologymanager.Strategy(c.TopologyManagerPolicyOptions[allocationStrategy]), topologymanager.NoStrategy)
	if !strategy.Scores() {
		return strategy, nil
	}
	named, _ := parseWeights(c.TopologyManagerPolicyOptions[scoreWeights]) // valid by now
	var weights map[memorymanager.MemoryType]uint64
	for resource, weight := range named {
		if !isMemoryType(resource) {
			continue // the CPUs are assigned already, and devices are none of ours
		}
		if weights == nil {
			weights = map[memorymanager.MemoryType]uint64{}
		}
		weights[memorymanager.MemoryType(resource)] = weight
	}
	return strategy, weights
}

// parseWeights reads numa-score-weights, "cpu=3,memory=1": whole numbers from 0 to 100 by resource. As in the kubelet, an empty
// entry says nothing.
func parseWeights(text string) (map[string]uint64, error) {
	weights := map[string]uint64{}
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		name, number, _ := strings.Cut(entry, "=")
		resource := strings.TrimSpace(name)
		weight, err := strconv.ParseUint(strings.TrimSpace(number), 10, 8)
		if resource == "" || err != nil || weight > mostWeight {
			return nil, fmt.Errorf("want RESOURCE=WEIGHT, comma-separated, with whole weights from 0 to %d, got %s", mostWeight, strictyaml.Quote(entry))
		}
		if _, twice := weights[resource]; twice {
			return nil, fmt.Errorf("%s is there twice", strictyaml.Quote(resource))
		}
		weights[resource] = weight
	}
	return weights, nil
}

// warnAboutStrategy warns where the strategy chooses from nothing.
func (c Config) warnAboutStrategy() (warnings []string) {
	if strategy, _ := c.strategy(); strategy.Scores() && !c.TopologyManagerPolicy.Rules().Aligns {
		return []string{fmt.Sprintf("topologyManagerPolicyOptions: numa-allocation-strategy %s has no effect under topologyManagerPolicy %s: set best-effort, restricted or single-numa-node",
			strategy, c.TopologyManagerPolicy)}
	}
	return nil
}

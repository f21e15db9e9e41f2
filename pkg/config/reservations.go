package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// memoryAvailable is the eviction signal that concerns memory.
const memoryAvailable = "memory.available"

// Names that the kubelet knows in kubeReserved and systemReserved, and in evictionHard.
var (
	reservable  = []string{"cpu", "memory", "ephemeral-storage", "pid", anyHugepages}
	memoryTypes = []string{"memory", anyHugepages}
	signals     = []string{memoryAvailable, "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree",
		"containerfs.available", "containerfs.inodesFree", "pid.available", "allocatableMemory.available"}
)

// validateReservations checks everything about reservations that needs no machine.
func (c Config) validateReservations() error {
	errs := []error{
		c.validateReservedMemory(),
		c.validateReserved("kubeReserved", c.KubeReserved),
		c.validateReserved("systemReserved", c.SystemReserved),
	}
	for _, signal := range slices.Sorted(maps.Keys(c.EvictionHard)) {
		if _, err := threshold(c.EvictionHard[signal], math.MaxInt64); !slices.Contains(signals, signal) {
			errs = append(errs, c.Errorf("evictionHard", "unknown signal %s%s", strictyaml.Quote(signal), spelling.HintOr(signal, signals)))
		} else if err != nil && signal == memoryAvailable {
			errs = append(errs, c.Errorf("evictionHard."+signal, "%v", err))
		}
	}
	return strictyaml.Join(errs...)
}

func (c Config) validateReserved(key string, reserved map[string]string) error {
	var errs []error
	for _, resource := range slices.Sorted(maps.Keys(reserved)) {
		if isMemoryType(resource) {
			if _, err := quantity.Parse(reserved[resource]); err != nil {
				errs = append(errs, c.Errorf(key+"."+resource, "%v", err))
			}
		} else if !slices.Contains(reservable, resource) {
			errs = append(errs, c.Errorf(key, "unknown resource %s%s", strictyaml.Quote(resource), spelling.HintOr(resource, reservable)))
		} else if _, err := quantity.ParseRoundedUp(reserved[resource]); err != nil && c.places != nil && c.places.taken[key] { // of ours a warning
			errs = append(errs, c.Errorf(key+"."+resource, "%v", err))
		}
	}
	return strictyaml.Join(errs...)
}

// validateReservedMemory refuses what the kubelet's configuration check refuses: zeros and doubles.
func (c Config) validateReservedMemory() error {
	type key struct {
		node       int
		memoryType string
	}
	var errs []error
	seen := map[key]bool{}
	for i, r := range c.ReservedMemory {
		field := fmt.Sprintf("reservedMemory[%d]", i)
		if len(r.Limits) == 0 {
			errs = append(errs, c.Errorf(field, "limits is missing: want an amount of memory or hugepages-<size>"))
		}
		for _, memoryType := range slices.Sorted(maps.Keys(r.Limits)) {
			limit := field + ".limits." + memoryType
			k := key{r.NUMANode, memoryType}
			switch {
			case !isMemoryType(memoryType):
				errs = append(errs, c.Errorf(field+".limits", "%s is neither memory nor hugepages-<size>", strictyaml.Quote(memoryType)))
			case r.Limits[memoryType] == 0:
				errs = append(errs, c.Errorf(limit, "reserved memory may not be zero for NUMA node %d", r.NUMANode))
			case seen[k]:
				errs = append(errs, c.Errorf(limit, "%s is reserved twice for NUMA node %d", memoryType, r.NUMANode))
			}
			seen[k] = true
		}
	}
	return strictyaml.Join(errs...)
}

// reserved returns the bytes that a resource has in kubeReserved or systemReserved; they are valid.
func reserved(list map[string]string, resource string) uint64 {
	bytes, _ := quantity.Parse(list[resource])
	return bytes
}

// threshold is an eviction signal's in bytes; "0%" and "100%" are none, as for the kubelet.
func threshold(text string, capacity uint64) (uint64, error) {
	percent, isPercent := strings.CutSuffix(text, "%")
	if !isPercent {
		bytes, err := quantity.Parse(text)
		if err == nil && bytes == 0 {
			err = errors.New(`want more than 0, or "0%" for no threshold`)
		}
		return bytes, err
	}
	value, err := strconv.ParseFloat(percent, 32)
	if err != nil || !(value >= 0 && value <= 100) {
		return 0, fmt.Errorf("want a quantity such as 100Mi or a percentage from 0%% to 100%%, got %s", strictyaml.Quote(text))
	}
	if value == 100 {
		return 0, nil
	}
	// The kubelet computes with a 32-bit fraction of a 64-bit number of bytes.
	return uint64(float64(capacity) * float64(float32(value)/100)), nil
}

package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// Tolerance is how far the memory of a NUMA node may move, in bytes, or AutoTolerance.
type Tolerance uint64

// AutoTolerance takes the bound from the size of the running kernel's image (KEP-6232). No quantity is as large.
const AutoTolerance Tolerance = math.MaxUint64

const autoTolerance = "auto"

// MarshalText writes auto, or the shortest exact quantity.
func (t Tolerance) MarshalText() ([]byte, error) {
	if t == AutoTolerance {
		return []byte(autoTolerance), nil
	}
	return quantity.Bytes(t).MarshalText()
}

// UnmarshalText reads auto or a quantity.
func (t *Tolerance) UnmarshalText(text []byte) error {
	if string(text) == autoTolerance {
		*t = AutoTolerance
		return nil
	}
	var err error
	*t, err = parseTolerance(string(text), autoTolerance)
	return err
}

// parseTolerance reads a quantity; words are what else the key may hold.
func parseTolerance(text, words string) (Tolerance, error) {
	bytes, err := quantity.Parse(text)
	if errors.Is(err, quantity.ErrFormat) {
		err = fmt.Errorf("want %s or a quantity such as 128Mi, got %s", words, strictyaml.Quote(text))
	}
	return Tolerance(bytes), err
}

// tolerate fills in the tolerance. Where auto finds no bound it does not guess one.
func (r *Resolved) tolerate(m machine.Machine) {
	r.StateTolerance = uint64(r.Config.StateTolerance)
	if r.Config.StateTolerance != AutoTolerance {
		return
	}
	if r.StateTolerance = m.Drift(); r.StateTolerance == 0 {
		r.Warnings = append(r.Warnings, "stateTolerance auto: /proc/iomem does not show the size of the kernel's image, which takes CAP_SYS_ADMIN: every change of a NUMA node's memory is reported; set a quantity such as 128Mi instead")
	}
}

// The kubelet's memoryManagerPolicyOptions has one option (Kubernetes 1.38). Unset or off, it compares exactly.
const (
	driftTolerance    = "memory-drift-tolerance"
	driftToleranceOff = "off"
)

// stateTolerance reads memoryManagerPolicyOptions; false where nothing is set. What a kubelet refuses is an error here.
func (k kubeletConfiguration) stateTolerance() (tolerance Tolerance, set bool, err error) {
	const field = "memoryManagerPolicyOptions"
	for _, option := range slices.Sorted(maps.Keys(k.MemoryManagerPolicyOptions)) {
		if option != driftTolerance {
			return 0, false, fmt.Errorf("%s: unknown option %s%s", field, strictyaml.Quote(option),
				spelling.HintOr(option, []string{driftTolerance}))
		}
	}
	text, set := k.MemoryManagerPolicyOptions[driftTolerance]
	if !set {
		return 0, false, nil
	}
	if k.MemoryManagerPolicy != string(MemoryManagerStatic) {
		return 0, false, fmt.Errorf("%s.%s: only memoryManagerPolicy Static has options, got %s", field, driftTolerance,
			strictyaml.Quote(k.MemoryManagerPolicy))
	}
	switch text {
	case driftToleranceOff:
	case autoTolerance:
		tolerance = AutoTolerance
	default:
		if tolerance, err = parseTolerance(text, autoTolerance+", "+driftToleranceOff); err != nil {
			err = fmt.Errorf("%s.%s: %w", field, driftTolerance, err)
		}
	}
	return tolerance, true, err
}

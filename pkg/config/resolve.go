package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Resolved is a configuration applied to a machine: what the deciding packages need.
type Resolved struct {
	Config  Config
	Machine machine.Machine
	// Static is set when containers are placed (memoryManagerPolicy Static).
	Static bool
	// Nodes are for memorymanager.New; empty unless Static.
	Nodes []memorymanager.NodeCapacity
	// ClaimNodes are nodes without CPUs that only resource claims may use (Confine); empty unless dra.enabled.
	ClaimNodes []memorymanager.NodeCapacity
	// Claimable is what resource claims may have of Nodes and ClaimNodes, and pods without claims may not; empty unless dra.enabled.
	Claimable []claims.Claimable
	// Manager are for memorymanager.New.
	Manager memorymanager.Options
	// LeftOut are the machine's nodes that are not in Nodes, for want of memory or CPUs.
	LeftOut nodeset.Set
	// OnUnsatisfiable is never empty.
	OnUnsatisfiable OnUnsatisfiable
	// QoS are the rules for pods without annotations; see SettingsFor.
	QoS memoryqos.Settings
	// Reserved is what is kept from containers: reservedMemory, or what was spread over the nodes; empty unless Static.
	Reserved ReservedMemory
	// Eviction is the available memory, in bytes, below which the kubelet evicts pods (evictionHard).
	Eviction uint64
	// SoftEviction is the same of evictionSoft, by which it evicts after a grace period; 0 where that is not known.
	SoftEviction uint64
	// WorkloadSwap is set where the KubeletConfiguration has the swapBehavior WorkloadControlledSwap.
	WorkloadSwap bool
	// StateTolerance is the configuration's in bytes, on this machine.
	StateTolerance uint64
	// Warnings are one line each, for the log.
	Warnings []string
}

// resolvedJSON is what a Resolved follows from.
type resolvedJSON struct {
	Config  Config
	Machine machine.Machine
}

// MarshalJSON writes Config and Machine, which all else follows from.
func (r Resolved) MarshalJSON() ([]byte, error) {
	return json.Marshal(resolvedJSON{r.Config, r.Machine})
}

// UnmarshalJSON reads Config and Machine and resolves them again.
func (r *Resolved) UnmarshalJSON(data []byte) error {
	var from resolvedJSON
	in := json.NewDecoder(bytes.NewReader(data))
	in.DisallowUnknownFields() // a key that is passed over would have decided something
	if err := in.Decode(&from); err != nil {
		return err
	}
	resolved, err := from.Config.Resolve(from.Machine)
	if err == nil {
		*r = resolved
	}
	return err
}

// Resolve checks the configuration against a machine and applies it. The error names file, line and key.
func (c Config) Resolve(m machine.Machine) (Resolved, error) {
	if err := c.validate(); err != nil {
		return Resolved{}, err
	}
	r := Resolved{
		Config: c, Machine: m, OnUnsatisfiable: c.onUnsatisfiable(), WorkloadSwap: c.Origin.WorkloadSwap,
		Warnings: slices.Clone(c.Origin.Warnings),
	}
	keep, err := c.sums(m)
	if err == nil {
		err = c.checkReserved(m)
	}
	if err != nil {
		return Resolved{}, err
	}
	r.QoS = memoryqos.Settings{
		Off:                c.Profile == ProfileNUMA,
		Factor:             c.MemoryThrottlingFactor,
		Reservation:        c.MemoryReservationPolicy,
		GuaranteedHeadroom: c.GuaranteedHeadroom,
		CacheRoom:          c.CacheRoom,
		NodeAllocatable:    m.MemTotal - keep.kube - keep.system,
		PageSize:           uint64(m.PageSize),
	}
	r.Eviction = keep.eviction
	r.SoftEviction, _ = threshold(c.Origin.EvictionSoft[memoryAvailable], m.MemTotal) // the kubelet does not start with a wrong one
	r.Static = c.MemoryManagerPolicy == MemoryManagerStatic
	if r.Static {
		r.Warnings = append(r.Warnings, c.warnAboutCPUs()...)
		r.Warnings = append(r.Warnings, c.warnAboutStrategy()...)
		r.tolerate(m)
		if err = r.placement(m, keep); err == nil {
			err = r.claimable(m)
		}
	}
	return r, err
}

// onUnsatisfiable is the key's value, or what suits the policy.
func (c Config) onUnsatisfiable() OnUnsatisfiable {
	switch {
	case c.OnUnsatisfiable != "":
		return c.OnUnsatisfiable
	case c.TopologyManagerPolicy.Rules().Insists:
		return Reject
	}
	return Unpinned
}

// RefusesCreate reports whether a container that cannot be placed is refused instead of running on all nodes. What its pod
// asks for by annotation comes first.
func (r Resolved) RefusesCreate(wish NUMAPreference) bool {
	return wish == NUMARequired || wish != NUMAPreferred && r.OnUnsatisfiable == Reject
}

// RefusesResize is the same for a resize that finds no room. The container runs here already, the kubelet has admitted the
// resize, and would try it again every second: it is refused only where more memory elsewhere is no choice, by the pod's
// annotation or by a policy that allows one node.
func (r Resolved) RefusesResize(wish NUMAPreference) bool {
	return wish == NUMARequired || r.Config.TopologyManagerPolicy.Rules().OneNode && r.RefusesCreate(wish)
}

// MostMoved is how many bytes of a running container one write of its cpuset.mems may move. As much as the machine has is no bound.
func (r Resolved) MostMoved() uint64 {
	if most := uint64(r.Config.MaxMigrationBytes); most < r.Machine.MemTotal {
		return most
	}
	return math.MaxUint64
}

// sums are the reservations of Node Allocatable in bytes.
// https://kubernetes.io/docs/tasks/administer-cluster/reserve-compute-resources/
type sums struct {
	kube, system, eviction uint64
}

func (c Config) sums(m machine.Machine) (sums, error) {
	eviction, _ := threshold(c.EvictionHard[memoryAvailable], m.MemTotal) // valid by now, or not there
	s := sums{reserved(c.KubeReserved, "memory"), reserved(c.SystemReserved, "memory"), eviction}
	if s.total() >= m.MemTotal {
		return sums{}, c.Errorf(s.largest(), "%s leave nothing of the machine's memory of %s", s, amount(m.MemTotal))
	}
	return s, nil
}

func (s sums) largest() string {
	switch max(s.kube, s.system, s.eviction) {
	case s.kube:
		return "kubeReserved"
	case s.system:
		return "systemReserved"
	}
	return "evictionHard"
}

// total is what all nodes together must reserve. The first two are below 2^63; three of that size end at the largest number.
func (s sums) total() uint64 {
	both := s.kube + s.system
	return both + min(s.eviction, math.MaxUint64-both)
}

// String shows the sum as the kubelet's documentation does.
func (s sums) String() string {
	return fmt.Sprintf("kubeReserved %s + systemReserved %s + evictionHard %s = %s",
		quantity.Format(s.kube), quantity.Format(s.system), quantity.Format(s.eviction), amount(s.total()))
}

// amount shows bytes as a quantity and to the byte.
func amount(bytes uint64) string {
	short := quantity.Format(bytes)
	if exact := strconv.FormatUint(bytes, 10); exact != short {
		return short + " (" + exact + " bytes)"
	}
	return short + " bytes"
}

// SettingsFor returns the Memory QoS rules for pods with these rules for annotations.
func (r Resolved) SettingsFor(rules AnnotationRules) memoryqos.Settings {
	settings := r.QoS
	settings.MinimumFactor = rules.MinimumFactor
	return settings
}

package config

import "github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"

// APIVersion and Kind of the configuration file.
const (
	APIVersion = "memory-manager.noderesource.dev/v1alpha1"
	Kind       = "MemoryManagerConfiguration"
	// kubeletKind is what kubeletConfig names.
	kubeletKind = "KubeletConfiguration"
)

// Profile is what the plugin is installed for.
type Profile string

// The profiles.
const (
	// ProfileFull places containers and protects and throttles their memory.
	ProfileFull Profile = "Full"
	// ProfileNUMA places containers only: it sets cpuset.mems, and no memory.min, memory.low or memory.high, whatever keys and
	// annotations say. A kubelet's own MemoryQoS may write these.
	ProfileNUMA Profile = "NUMA"
	// ProfileQoS protects and throttles memory only: it sets no cpuset.mems.
	ProfileQoS Profile = "QoS"
	// ProfileObserve decides, logs and counts as ProfileFull, and writes nothing.
	ProfileObserve Profile = "Observe"
)

// set sets the profile's keys. Its values override a KubeletConfiguration; keys that the configuration file sets override both.
func (p Profile) set(c *Config) {
	switch p {
	case ProfileNUMA:
		c.MemoryThrottlingFactor, c.MemoryReservationPolicy, c.StallGuard = nil, memoryqos.None, false
	case ProfileQoS:
		c.MemoryManagerPolicy = MemoryManagerNone
	}
}

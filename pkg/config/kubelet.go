package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// kubeletConfiguration is the part of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1) that is taken over. The
// published type itself is used by the tests only: it would bring the kubelet's tracing and logging into this binary, and
// a field that a newer kubelet has is no error here.
type kubeletConfiguration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	MemoryManagerPolicy          string            `json:"memoryManagerPolicy"`
	MemoryManagerPolicyOptions   map[string]string `json:"memoryManagerPolicyOptions"`
	TopologyManagerPolicy        string            `json:"topologyManagerPolicy"`
	TopologyManagerScope         string            `json:"topologyManagerScope"`
	TopologyManagerPolicyOptions map[string]string `json:"topologyManagerPolicyOptions"`
	ReservedMemory               []kubeletReserved `json:"reservedMemory"`
	KubeReserved                 map[string]string `json:"kubeReserved"`
	SystemReserved               map[string]string `json:"systemReserved"`
	EvictionHard                 map[string]string `json:"evictionHard"`
	EvictionSoft                 map[string]string `json:"evictionSoft"`
	MergeDefaultEvictionSettings bool              `json:"mergeDefaultEvictionSettings"`
	MemoryThrottlingFactor       *float64          `json:"memoryThrottlingFactor"`
	MemoryReservationPolicy      string            `json:"memoryReservationPolicy"`
	FeatureGates                 map[string]bool   `json:"featureGates"`
	MemorySwap                   kubeletSwap       `json:"memorySwap"`

	// CPUManagerPolicy is not taken over: the kubelet assigns exclusive CPUs itself.
	CPUManagerPolicy string `json:"cpuManagerPolicy"`
}

type kubeletSwap struct {
	SwapBehavior string `json:"swapBehavior"`
}

// workloadControlledSwap is the swapBehavior of KEP-5359.
const workloadControlledSwap = "WorkloadControlledSwap"

type kubeletReserved struct {
	NUMANode int               `json:"numaNode"`
	Limits   map[string]string `json:"limits"`
}

// adopt returns the defaults with what a KubeletConfiguration sets, and what the profile sets over that. A relative path starts at
// the folder of our file.
func (f Files) adopt(profile Profile, path, ours string, doc *strictyaml.Document) (Config, error) {
	if f == nil {
		return Config{}, errors.New("no file is read for this text")
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(ours), path)
	}
	data, err := f(path)
	if err != nil {
		return Config{}, err
	}
	var k kubeletConfiguration
	if err := yaml.Unmarshal(data, &k); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	if k.Kind != kubeletKind || !strings.HasPrefix(k.APIVersion, "kubelet.config.k8s.io/") {
		return Config{}, fmt.Errorf("%s: want a KubeletConfiguration of kubelet.config.k8s.io, got kind %s of %s",
			path, strictyaml.Quote(k.Kind), strictyaml.Quote(k.APIVersion))
	}
	c := Default()
	c.places = &places{doc: doc, taken: map[string]bool{}}
	c.Origin.KubeletConfig = path
	if err := c.take(k); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	profile.set(&c)
	c.warnAboutKubelet(k, profile)
	if k.CPUManagerPolicy == "static" {
		c.Origin.AssignsCPUs = cmp.Or(topologymanager.Policy(k.TopologyManagerPolicy), topologymanager.None)
	}
	c.Origin.EvictionSoft = only(k.EvictionSoft, memoryAvailable)
	c.Origin.WorkloadSwap = k.MemorySwap.SwapBehavior == workloadControlledSwap
	// Messages name our file for what it sets itself.
	maps.DeleteFunc(c.places.taken, func(key string, _ bool) bool { return doc.Has(key) })
	return c, nil
}

func (c *Config) take(k kubeletConfiguration) error {
	// None is what a kubelet beside us should have (docs/migration.md), and switches nothing off here.
	set := k.MemoryManagerPolicy != "" && k.MemoryManagerPolicy != string(MemoryManagerNone)
	take(c, "memoryManagerPolicy", set, &c.MemoryManagerPolicy, MemoryManagerPolicy(k.MemoryManagerPolicy))
	tolerance, set, err := k.stateTolerance()
	if err != nil {
		return err
	}
	take(c, "stateTolerance", set, &c.StateTolerance, tolerance)
	take(c, "topologyManagerPolicy", k.TopologyManagerPolicy != "", &c.TopologyManagerPolicy, topologymanager.Policy(k.TopologyManagerPolicy))
	take(c, "topologyManagerScope", k.TopologyManagerScope != "", &c.TopologyManagerScope, topologymanager.Scope(k.TopologyManagerScope))
	options := only(k.TopologyManagerPolicyOptions, policyOptions...)
	take(c, "topologyManagerPolicyOptions", k.TopologyManagerPolicyOptions != nil, &c.TopologyManagerPolicyOptions, options)
	gate, set := k.FeatureGates["PodLevelResourceManagers"]
	take(c, "podLevelResourceManagers", set, &c.PodLevelResourceManagers, gate)
	reserved, err := k.reservedMemory()
	if err != nil {
		return err
	}
	take(c, "reservedMemory", len(reserved) > 0, &c.ReservedMemory, reserved)
	take(c, "kubeReserved", k.KubeReserved != nil, &c.KubeReserved, only(k.KubeReserved, reservable...))
	take(c, "systemReserved", k.SystemReserved != nil, &c.SystemReserved, only(k.SystemReserved, reservable...))
	hard := only(k.EvictionHard, memoryAvailable)
	if len(hard) == 0 && k.MergeDefaultEvictionSettings {
		hard[memoryAvailable] = c.EvictionHard[memoryAvailable]
	}
	take(c, "evictionHard", k.EvictionHard != nil, &c.EvictionHard, hard)
	take(c, "memoryThrottlingFactor", k.MemoryThrottlingFactor != nil, &c.MemoryThrottlingFactor, k.MemoryThrottlingFactor)
	policy := memoryqos.ReservationPolicy(k.MemoryReservationPolicy)
	take(c, "memoryReservationPolicy", policy != "", &c.MemoryReservationPolicy, policy)
	return nil
}

func take[T any](c *Config, key string, set bool, into *T, value T) {
	if set {
		c.places.taken[key], *into = true, value
	}
}

// only returns the entries that concern us, so that what a newer kubelet has besides is no error.
func only(entries map[string]string, keys ...string) map[string]string {
	kept := map[string]string{}
	for _, key := range keys {
		if text, ok := entries[key]; ok {
			kept[key] = text
		}
	}
	return kept
}

func (k kubeletConfiguration) reservedMemory() (ReservedMemory, error) {
	reserved := make(ReservedMemory, len(k.ReservedMemory))
	for i, from := range k.ReservedMemory {
		reserved[i] = Reservation{NUMANode: from.NUMANode, Limits: map[string]ReservedBytes{}}
		for memoryType, text := range from.Limits {
			var bytes ReservedBytes
			if err := bytes.UnmarshalText([]byte(text)); err != nil {
				return nil, fmt.Errorf("reservedMemory[%d].limits.%s: %w", i, memoryType, err)
			}
			reserved[i].Limits[memoryType] = bytes
		}
	}
	return reserved, nil
}

// warnAboutCPUs warns where the kubelet may assign exclusive CPUs on more NUMA nodes than our policy admits.
func (c Config) warnAboutCPUs() (warnings []string) {
	ours := c.TopologyManagerPolicy
	if c.Origin.AssignsCPUs == "" || c.Origin.AssignsCPUs == ours || !ours.Rules().Insists {
		return nil
	}
	answer := "is rejected"
	if !ours.Rules().OneNode && c.OnConflict != FollowKubelet {
		answer = fmt.Sprintf("has its memory on the nodes of its CPUs (onConflict %s)", c.OnConflict)
	}
	return []string{fmt.Sprintf("%s: cpuManagerPolicy is static and topologyManagerPolicy %s, ours is %s: a container whose exclusive CPUs are on more NUMA nodes than ours admits %s; set topologyManagerPolicy %s there",
		c.Origin.KubeletConfig, c.Origin.AssignsCPUs, ours, answer, ours)}
}

// warnAboutKubelet names what a kubelet with this configuration would do beside us.
func (c *Config) warnAboutKubelet(k kubeletConfiguration, profile Profile) {
	warn := func(format string, args ...any) {
		c.Origin.Warnings = append(c.Origin.Warnings, c.Origin.KubeletConfig+": "+fmt.Sprintf(format, args...))
	}
	if k.MemoryManagerPolicy == string(MemoryManagerStatic) {
		warn("the kubelet's own Memory Manager is Static, so that two would pin containers: set memoryManagerPolicy None there")
	}
	if k.MemoryThrottlingFactor == nil && profile != ProfileNUMA && !c.places.doc.Has("memoryThrottlingFactor") {
		warn("memoryThrottlingFactor is not set, with which a kubelet from 1.37 sets no memory.high; ours is %g: set memoryThrottlingFactor in our file, null for no memory.high",
			*c.MemoryThrottlingFactor)
	}
	if k.FeatureGates["MemoryQoS"] && profile != ProfileNUMA {
		warn("the kubelet's own MemoryQoS is on and writes the same cgroup files: turn the feature gate off there")
	}
}

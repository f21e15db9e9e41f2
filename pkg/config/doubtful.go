package config

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// placementKeys do nothing where nothing is placed.
var placementKeys = map[string]bool{
	"topologyManagerPolicy": true, "topologyManagerScope": true, "topologyManagerPolicyOptions": true, "podLevelResourceManagers": true,
	"onUnsatisfiable": true, "onConflict": true, "resourceSlices": true, "verifyHugepages": true, "exposeAssignedMemset": true, "unpinnedMemoryPolicy": true,
	"maxMigrationBytes": true, "evictRejectedAfter": true, "nodesWithoutCPUs": true, "reservedMemory": true, "stateTolerance": true,
}

// qosKeys do nothing where the profile leaves Memory QoS to the kubelet.
var qosKeys = []string{"memoryThrottlingFactor", "memoryReservationPolicy", "guaranteedHeadroom", "cacheRoom", "stallGuard"}

// noCacheRoom says why cacheRoom needs stallGuard.
const noCacheRoom = "without stallGuard it would stop a heap that needs its whole limit"

// ineffective says in explain's words why no pod can have what an annotation's value asks for; "" where one can, or asks for nothing.
func (c Config) ineffective(name Annotation, value string) string {
	qos := []Annotation{AnnotationThrottlingFactor, AnnotationMemoryHigh, AnnotationCacheRoom, AnnotationReservation, AnnotationStallGuard}
	share, _ := strconv.ParseFloat(value, 64)
	switch {
	case c.Profile == ProfileNUMA && slices.Contains(qos, name):
		return memoryqos.LeftToKubelet
	case name == AnnotationNUMA && value != string(NUMANone) && c.MemoryManagerPolicy == MemoryManagerNone:
		return "memoryManagerPolicy is None"
	case name == AnnotationCacheRoom && share > 0 && !c.StallGuard:
		return noCacheRoom
	}
	return ""
}

// doubtful are warnings about keys of our file that contradict each other, or that have no effect beside the others. The
// configuration is valid.
func (c Config) doubtful() (warnings []string) {
	warn := func(key string, doubtful bool, format string, args ...any) {
		if doubtful && c.places.doc.Has(key) {
			warnings = append(warnings, c.Errorf(key, format, args...).Error())
		}
	}
	ours, defaults := reflect.ValueOf(c), reflect.ValueOf(Default())
	for i := range ours.NumField() {
		key := ours.Type().Field(i).Tag.Get("yaml")
		if c.MemoryManagerPolicy == MemoryManagerNone && placementKeys[key] {
			changed := !reflect.DeepEqual(ours.Field(i).Interface(), defaults.Field(i).Interface())
			warn(key, changed, "has no effect: memoryManagerPolicy is None, which places nothing")
		}
	}
	if rules := c.TopologyManagerPolicy.Rules(); c.MemoryManagerPolicy != MemoryManagerNone {
		closest, _ := strconv.ParseBool(c.TopologyManagerPolicyOptions[preferClosest])
		strategy, _ := c.strategy()
		const options = "topologyManagerPolicyOptions."
		warn(options+preferClosest, closest && (!rules.Aligns || rules.OneNode), "has no effect under topologyManagerPolicy %s", c.TopologyManagerPolicy)
		warn(options+maxAllowableNodes, true, "has no effect: any number may be")
		warn(options+scoreWeights, !strategy.Scores(), "has no effect without %s", allocationStrategy)
	}
	for _, key := range c.places.doc.Scalars() {
		if strings.HasSuffix(key, "memory") || strings.HasSuffix(key, "memory.available") || key == "maxMigrationBytes" {
			text := c.places.doc.Text(key)
			bytes, err := strconv.Atoi(text)
			warn(key, err == nil && bytes > 0 && bytes < 1<<20, "%s is in bytes, did you mean %[1]sMi?", text)
		} else if slices.Contains([]string{"kubeReserved", "systemReserved", "evictionHard"}, firstKey(key)) {
			_, err := quantity.ParseRoundedUp(strings.TrimSuffix(c.places.doc.Text(key), "%"))
			warn(key, err != nil, "%v, and no kubelet starts with it", err)
		}
	}
	for _, key := range qosKeys {
		warn(key, c.Profile == ProfileNUMA, "has no effect: profile NUMA writes no memory.min, memory.low and memory.high")
	}
	last := slices.IndexFunc(c.AnnotationRules, AnnotationRule.all)
	for i, rule := range c.AnnotationRules {
		warn(fmt.Sprintf("annotationRules[%d]", i), last >= 0 && i > last, "has no effect: annotationRules[%d] matches all pods", last)
		same := slices.IndexFunc(c.AnnotationRules[:i], func(earlier AnnotationRule) bool {
			return slices.Equal(earlier.Namespaces, rule.Namespaces) && maps.Equal(earlier.Labels, rule.Labels)
		})
		warn(fmt.Sprintf("annotationRules[%d]", i), same >= 0 && !(last >= 0 && i > last), "has no effect: annotationRules[%d] matches the same pods", same)
		warn(fmt.Sprintf("annotationRules[%d].priorityClasses", i), len(rule.PriorityClasses) > 0 && !c.AsksPodAPI(),
			"has no effect: requestSources has neither kubelet nor apiserver, which know a pod's PriorityClass; nor has the rule's default of oom-score-adj")
		for _, name := range slices.Sorted(maps.Keys(rule.Defaults)) {
			why := c.ineffective(name, rule.Defaults[name])
			warn(fmt.Sprintf("annotationRules[%d].defaults.%s", i, name), why != "", "has no effect: %s", why)
		}
		if least, factor := rule.MinimumThrottlingFactor, c.MemoryThrottlingFactor; factor != nil {
			warn(fmt.Sprintf("annotationRules[%d].minimumThrottlingFactor", i), least > *factor,
				"%g is above memoryThrottlingFactor %g: pods without the annotation have a smaller factor than any that they may choose", least, *factor)
		}
	}
	warn("guaranteedHeadroom", c.Profile != ProfileNUMA && c.MemoryReservationPolicy == memoryqos.None && c.GuaranteedHeadroom != Default().GuaranteedHeadroom,
		"has no effect on pods without annotation: memoryReservationPolicy is None")
	warn("cacheRoom", c.Profile != ProfileNUMA && c.CacheRoom > 0 && !c.StallGuard, "has no effect: "+noCacheRoom)
	hard, _ := threshold(c.EvictionHard[memoryAvailable], math.MaxInt64)
	warn("reclaimBeforeEviction", c.ReclaimBeforeEviction && hard == 0 && len(c.Origin.EvictionSoft) == 0, "has no effect: evictionHard has no memory.available")
	warn("evictRejectedAfter", c.EvictRejectedAfter > 0 && c.DryRun(), "has no effect: under profile Observe nothing is refused")
	warn("evictRejectedAfter", c.EvictRejectedAfter > 0 && c.onUnsatisfiable() == Unpinned && !c.DryRun() && c.MemoryManagerPolicy != MemoryManagerNone, "has no effect on pods without the annotation numa: required: what cannot be placed runs unpinned")
	warn("evictRejectedAfter", c.EvictRejectedAfter > 0 && !c.Events, "without events: true only this daemon's log says why a pod was evicted")
	warn("nodeResourceTopology", c.NodeResourceTopology && c.Profile == ProfileObserve, "has no effect: under profile Observe nothing is published")
	warn("dra.enabled", c.DRA.Enabled && c.Profile == ProfileObserve, "under profile Observe nothing is published for claims")
	warn("dra.shares", !c.DRA.Enabled && len(c.DRA.Shares) > 0, "has no effect: dra.enabled is false")
	warn("dra.publishNodeAllocatable", !c.DRA.Enabled && c.DRA.PublishNodeAllocatable, "has no effect: dra.enabled is false")
	return warnings
}

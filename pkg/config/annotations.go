package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// AnnotationRules say which annotations a pod may use. They are of one rule of the configuration, or of none.
type AnnotationRules struct {
	Allowed []Annotation
	// MinimumFactor is the smallest throttling factor that may be chosen.
	MinimumFactor float64
	// Rule names the rule; empty without one.
	Rule string
	// Defaults are values of annotations, by the configuration.
	Defaults map[Annotation]string
	// PriorityClasses are values of oom-score-adj by PriorityClass, by the configuration.
	PriorityClasses map[string]string
}

// NUMAPreference is a pod's wish for its placement; empty leaves it to the configuration.
type NUMAPreference string

// The wishes for placement.
const (
	// NUMANone: do not pin.
	NUMANone NUMAPreference = "none"
	// NUMAPreferred: pin where it can be, else run unpinned. A Burstable pod, which is not pinned, prefers one node's memory.
	NUMAPreferred NUMAPreference = "preferred"
	// NUMARequired: pin or reject.
	NUMARequired NUMAPreference = "required"
)

// noSpread is what replaces numa: spread.
const noSpread = "was removed: memory-policy: interleave spreads the pages of a container that may use several NUMA nodes"

// Wishes are what a pod asks for one container by annotation. The zero value asks for nothing.
type Wishes struct {
	QoS           memoryqos.Overrides
	NUMA          NUMAPreference
	StallGuardOff bool
	// MemoryPolicy replaces unpinnedMemoryPolicy; empty leaves it.
	MemoryPolicy MemoryPolicy
	// OOMScoreAdj replaces the kubelet's oom_score_adj; nil leaves it.
	OOMScoreAdj *int64
	// Defaults are the annotations that the pod does not have and the configuration gives it, sorted.
	Defaults []Annotation
}

// Problem is an annotation that is wrong or not allowed.
type Problem struct {
	// Annotation is the full key.
	Annotation string
	// Message is in the form of a Kubernetes field error, escaped and bounded.
	Message string
}

// AnnotationRulesFor returns what a pod may wish for, and what it has without. Who is OOM-killed in place of others is not for tenants to say:
// only a rule allows it.
func (c Config) AnnotationRulesFor(s Subject) AnnotationRules {
	for i, rule := range c.AnnotationRules {
		if rule.matches(s) {
			name := fmt.Sprintf("annotationRules[%d]", i)
			if rule.Name != "" {
				name += " (" + rule.Name + ")"
			}
			return AnnotationRules{rule.AllowedAnnotations, rule.MinimumThrottlingFactor, name, rule.Defaults, rule.PriorityClasses}
		}
	}
	return AnnotationRules{Allowed: slices.DeleteFunc(annotations(), func(a Annotation) bool { return a == AnnotationOOMScoreAdj })}
}

// wish puts one annotation's value into the wishes. After an error they are to be thrown away.
func (rules AnnotationRules) wish(w *Wishes, at *field.Path, name Annotation, value string) *field.Error {
	if !slices.Contains(rules.Allowed, name) {
		if rules.Rule == "" {
			return field.Forbidden(at, "no rule of annotationRules allows "+string(name))
		}
		return field.Forbidden(at, rules.Rule+" does not allow "+string(name))
	}
	if name == AnnotationNUMA && value == "spread" {
		return field.Invalid(at, value, noSpread)
	}
	if valid := choices[defaultsOf+string(name)]; valid != nil && !slices.Contains(valid, value) {
		return field.NotSupported(at, short(value), valid)
	}
	switch name {
	case AnnotationThrottlingFactor:
		factor, err := strconv.ParseFloat(value, 64)
		if err != nil || !(factor > 0 && factor <= 1) {
			return field.Invalid(at, short(value), "must be a number greater than 0 and at most 1")
		}
		if factor < rules.MinimumFactor {
			return field.Invalid(at, short(value), fmt.Sprintf("must be at least %g, the minimumThrottlingFactor of %s", rules.MinimumFactor, rules.Rule))
		}
		w.QoS.Factor = &factor
	case AnnotationMemoryHigh:
		w.QoS.NoHigh, w.QoS.High = value == "off", nil
		if w.QoS.NoHigh {
			return nil
		}
		bytes, err := quantity.Parse(value)
		if err != nil {
			return field.Invalid(at, short(value), `must be "off" or a quantity: `+err.Error())
		}
		if bytes == 0 {
			return field.Invalid(at, short(value), `must be "off" or more than 0`)
		}
		w.QoS.High = &bytes
	case AnnotationCacheRoom:
		share, err := strconv.ParseFloat(value, 64)
		if err != nil || !memoryqos.ValidCacheRoom(share) {
			return field.Invalid(at, short(value), "must be a number from 0 to 0.5: the share of the limit between memory.high and memory.max")
		}
		w.QoS.CacheRoom = &share
	case AnnotationReservation:
		w.QoS.Reservation = memoryqos.Reservation(value)
	case AnnotationNUMA:
		w.NUMA = NUMAPreference(value)
	case AnnotationStallGuard:
		w.StallGuardOff = true
	case AnnotationMemoryPolicy:
		w.MemoryPolicy = annotatedPolicies[value]
	case AnnotationOOMGroup:
		var group uint64
		if value == "container" {
			group = 1
		}
		w.QoS.OOMGroup = &group
	case AnnotationOOMScoreAdj:
		score, ok := oomScoreAdj(value)
		if !ok {
			return field.Invalid(at, short(value), wantOOMScoreAdj)
		}
		w.OOMScoreAdj = &score
	}
	return nil
}

// longestValue bounds what is kept and shown of a value; no right one is longer.
const longestValue = 80

// short cuts a value; the field error escapes it.
func short(value string) string {
	if len(value) > longestValue {
		return strings.ToValidUTF8(value[:longestValue], "") + "…" // a character is not cut
	}
	return value
}

// plain is a key that is safe in a message. Kubernetes allows no other keys, but a runtime's client can send any.
func plain(key string) string {
	if quoted := strconv.Quote(short(key)); quoted != `"`+key+`"` {
		return quoted
	}
	return key
}

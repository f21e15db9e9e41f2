package config

import (
	"maps"
	"path"
	"slices"
	"strings"
)

// Subject is what rules match of a pod.
type Subject struct {
	Namespace string
	Labels    map[string]string
}

// matches reports whether the rule is for a pod.
func (r AnnotationRule) matches(s Subject) bool {
	for key, pattern := range r.Labels {
		if value, has := s.Labels[key]; !has || !matchesAny([]string{pattern}, value) {
			return false
		}
	}
	return len(r.Namespaces) == 0 || matchesAny(r.Namespaces, s.Namespace)
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return ok && err == nil
	})
}

// complete adds the rule's defaults to what the pod asks for itself. They are valid by now.
func (rules AnnotationRules) complete(w *Wishes) {
	own, all := *w, AnnotationRules{Allowed: annotations()}
	for _, name := range slices.Sorted(maps.Keys(rules.Defaults)) {
		if !own.has(name) && all.wish(w, nil, name, rules.Defaults[name]) == nil {
			w.Defaults = append(w.Defaults, name)
		}
	}
}

// has reports whether the wishes decide what an annotation sets. A factor stands for memory-high, too.
func (w Wishes) has(name Annotation) bool {
	switch name {
	case AnnotationThrottlingFactor:
		return w.QoS.Factor != nil
	case AnnotationMemoryHigh:
		return w.QoS.NoHigh || w.QoS.High != nil || w.QoS.Factor != nil
	case AnnotationCacheRoom:
		return w.QoS.CacheRoom != nil
	case AnnotationReservation:
		return w.QoS.Reservation != ""
	case AnnotationNUMA:
		return w.NUMA != ""
	case AnnotationStallGuard:
		return w.StallGuardOff
	case AnnotationMemoryPolicy:
		return w.MemoryPolicy != ""
	case AnnotationOOMGroup:
		return w.QoS.OOMGroup != nil
	case AnnotationOOMScoreAdj:
		return w.OOMScoreAdj != nil
	}
	return false
}

// Sets says which rule has set what of a pod's wishes; empty where none has.
func (rules AnnotationRules) Sets(w Wishes) string {
	var set []string
	for _, name := range w.Defaults {
		set = append(set, string(name)+": "+rules.Defaults[name])
	}
	if set == nil {
		return ""
	}
	return rules.Rule + " stands for the annotations " + strings.Join(set, ", ")
}

// all reports whether the rule matches every pod.
func (r AnnotationRule) all() bool { return len(r.Labels) == 0 && slices.Contains(r.Namespaces, "*") }

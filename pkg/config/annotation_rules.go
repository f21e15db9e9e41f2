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

// complete adds the rule's defaults to what the pod asks for itself with the annotations in own. They are valid by now. A factor stands for
// memory-high, too.
func (rules AnnotationRules) complete(w *Wishes, own map[Annotation]bool) {
	all := AnnotationRules{Allowed: annotations()}
	for _, name := range slices.Sorted(maps.Keys(rules.Defaults)) {
		has := own[name] || name == AnnotationMemoryHigh && own[AnnotationThrottlingFactor]
		if !has && all.wish(w, nil, name, rules.Defaults[name]) == nil {
			w.Defaults = append(w.Defaults, name)
		}
	}
}

// Sets says which rule has set what of the wishes of a pod with a PriorityClass; empty where none has.
func (rules AnnotationRules) Sets(w Wishes, priorityClass string) string {
	var set []string
	_, byClass := rules.PriorityClasses[priorityClass] // counts before the default
	for _, name := range w.Defaults {
		if name != AnnotationOOMScoreAdj || !byClass {
			set = append(set, string(name)+": "+rules.Defaults[name])
		}
	}
	if set == nil {
		return ""
	}
	return rules.Rule + " stands for the annotations " + strings.Join(set, ", ")
}

func (r AnnotationRule) all() bool { return len(r.Labels) == 0 && slices.Contains(r.Namespaces, "*") }

package config

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// The domains of our annotations, the newer first: it wins.
var domains = [...]string{".memory-manager.noderesource.dev", ".memory-manager.nri.io"}

const (
	forPod       = "pod"
	forContainer = "container."
	// mostProblems bounds what one pod can write into a log.
	mostProblems = 20
)

// AnnotationRules say which annotations a pod may use.
type AnnotationRules struct {
	Allowed []Annotation
	// MinimumFactor is the smallest throttling factor that may be chosen.
	MinimumFactor float64
}

// NUMAPreference is a pod's wish for its placement; empty leaves it to the configuration.
type NUMAPreference string

// The wishes for placement.
const (
	// NUMANone: do not pin.
	NUMANone NUMAPreference = "none"
	// NUMAPreferred: pin where it can be, else run unpinned.
	NUMAPreferred NUMAPreference = "preferred"
	// NUMARequired: pin or reject.
	NUMARequired NUMAPreference = "required"
)

// Wishes are what a pod asks for one container by annotation. The zero value asks for nothing.
type Wishes struct {
	QoS           memoryqos.Overrides
	NUMA          NUMAPreference
	StallGuardOff bool
}

// Problem is an annotation that is wrong or not allowed.
type Problem struct {
	// Annotation is the full key.
	Annotation string
	// Message is in the form of a Kubernetes field error, escaped and bounded.
	Message string
}

// AnnotationRulesFor returns what pods of a namespace may wish for.
func (c Config) AnnotationRulesFor(namespace string) AnnotationRules {
	rules := AnnotationRules{Allowed: c.AllowedAnnotations, MinimumFactor: c.MinimumThrottlingFactor}
	for _, rule := range c.AnnotationRules {
		matches := func(pattern string) bool {
			ok, err := path.Match(pattern, namespace)
			return ok && err == nil
		}
		if !slices.ContainsFunc(rule.Namespaces, matches) {
			continue
		}
		rules.Allowed = rule.AllowedAnnotations
		if rule.MinimumThrottlingFactor != nil {
			rules.MinimumFactor = *rule.MinimumThrottlingFactor
		}
		return rules
	}
	return rules
}

// ParseAnnotations reads a pod's wishes for one of its containers ("" for the pod itself): KEY.memory-manager.noderesource.dev
// or KEY.memory-manager.nri.io, for all containers, with /pod for all too, or with /container.NAME for one; the most specific
// wins. What is wrong or not allowed counts as not there and is named in the problems, sorted by annotation.
func ParseAnnotations(annotations map[string]string, container string, rules AnnotationRules) (Wishes, []Problem) {
	ours := 0
	for key := range annotations {
		if _, _, _, ok := splitAnnotation(key); ok {
			ours++
		}
	}
	if ours == 0 {
		return Wishes{}, nil
	}
	r := annotationReader{rules: rules, best: map[Annotation]int{}}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if name, scope, domain, ok := splitAnnotation(key); ok {
			r.read(key, Annotation(name), annotations[key], rank(scope, container, domain))
		}
	}
	return r.wishes, r.problems[:min(len(r.problems), mostProblems)]
}

// splitAnnotation takes a key of ours apart: name, scope ("" without one) and the index of its domain.
func splitAnnotation(key string) (name, scope string, domain int, ok bool) {
	head, scope, scoped := strings.Cut(key, "/")
	for domain, suffix := range domains {
		if name, ok := strings.CutSuffix(head, suffix); ok {
			if scoped && scope == "" {
				scope = "/" // wrong, and not the same as none
			}
			return name, scope, domain, true
		}
	}
	return "", "", 0, false
}

// Ranks of an annotation for a container.
const (
	wrongScope     = -1
	otherContainer = 0
)

// rank orders the annotations that concern a container by how specific they are, then by domain.
func rank(scope, container string, domain int) int {
	newer := len(domains) - domain
	name, isContainer := strings.CutPrefix(scope, forContainer)
	switch {
	case scope == "":
		return newer
	case scope == forPod:
		return 10 + newer
	case !isContainer || name == "":
		return wrongScope
	case name == container:
		return 20 + newer
	}
	return otherContainer
}

// annotationReader collects wishes; best is the rank of the annotation that each came from.
type annotationReader struct {
	rules    AnnotationRules
	best     map[Annotation]int
	wishes   Wishes
	problems []Problem
}

func (r *annotationReader) read(key string, name Annotation, value string, rank int) {
	if rank == otherContainer {
		return
	}
	at := field.NewPath("metadata", "annotations").Key(plain(key))
	fail := func(err *field.Error) {
		r.problems = append(r.problems, Problem{Annotation: key, Message: err.Error()})
	}
	next := r.wishes
	switch {
	case rank == wrongScope:
		fail(field.Invalid(at, short(value), "want the key to end in /pod or /container.NAME, or without either"))
		return
	case !slices.Contains(annotations(), name):
		fail(field.Invalid(at, short(value), "unknown annotation, did you mean "+
			strictyaml.Nearest(string(name), annotationNames())+domains[0]+"?"))
		return
	case !slices.Contains(r.rules.Allowed, name):
		fail(field.Forbidden(at, "the administrator does not allow "+string(name)+" in this namespace"))
		return
	}
	if err := r.set(&next, at, name, value); err != nil {
		fail(err)
		return
	}
	if rank > r.best[name] {
		r.best[name], r.wishes = rank, next
	}
}

// set puts one annotation's value into the wishes.
func (r *annotationReader) set(w *Wishes, at *field.Path, name Annotation, value string) *field.Error {
	switch name {
	case AnnotationThrottlingFactor:
		factor, err := strconv.ParseFloat(value, 64)
		if err != nil || !(factor > 0 && factor <= 1) {
			return field.Invalid(at, short(value), "must be a number greater than 0 and at most 1")
		}
		if factor < r.rules.MinimumFactor {
			return field.Invalid(at, short(value), "must be at least the administrator's minimumThrottlingFactor "+strconv.FormatFloat(r.rules.MinimumFactor, 'g', -1, 64))
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
	case AnnotationReservation:
		w.QoS.Reservation = memoryqos.Reservation(value)
		return supported(at, w.QoS.Reservation, memoryqos.ReserveNone, memoryqos.ReserveLow, memoryqos.ReserveMin)
	case AnnotationNUMA:
		w.NUMA = NUMAPreference(value)
		return supported(at, w.NUMA, NUMANone, NUMAPreferred, NUMARequired)
	case AnnotationStallGuard:
		w.StallGuardOff = true
		return supported(at, value, "off")
	}
	return nil
}

func supported[T ~string](at *field.Path, value T, valid ...T) *field.Error {
	if slices.Contains(valid, value) {
		return nil
	}
	return field.NotSupported(at, T(short(string(value))), valid)
}

func annotationNames() []string {
	names := []string{}
	for _, name := range annotations() {
		names = append(names, string(name))
	}
	return names
}

// short cuts a value; the field error escapes it.
func short(value string) string {
	const longest = 80
	if len(value) > longest {
		return value[:longest] + "…"
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

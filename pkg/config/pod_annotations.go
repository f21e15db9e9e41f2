package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
)

// The domains of our annotations, the newer first: it wins.
var domains = [...]string{".memory-manager.noderesource.dev", ".memory-manager.nri.io"}

// annotationNames are those that exist.
var annotationNames = names(annotations()...)

const (
	forPod       = "pod"
	forContainer = "container."
	// mostProblems bounds what one pod can write into a log.
	mostProblems = 20
)

// What is read of one pod's annotations: the API server admits 256 KiB of them, and others may send more.
const (
	mostAnnotations     = 500
	mostAnnotationBytes = 64 << 10 // keys, and values as far as they are kept
	// longestKey is the length of the longest key that the API server admits: prefix, slash and name.
	longestKey = 253 + 1 + 63
)

// PodAnnotations are a pod's annotations that are ours, by the containers that they concern. They are bounded in number and
// bytes and never change: they are read once for each pod sandbox. The zero value has none.
type PodAnnotations struct {
	every    annotationScope
	one      map[string]*annotationScope
	problems []Problem // of every; at most mostProblems
	beyond   []Problem // at most one: the limits were exceeded
}

// annotationScope are the annotations of the whole pod or of one of its containers.
type annotationScope struct {
	// known are in the order of their ranks. A name has at most one annotation of each rank, so that they are few.
	known []podAnnotation
	// wrong have an unknown name or scope. They are the first by key; more than mostProblems are not kept.
	wrong []podAnnotation
}

// podAnnotation is an annotation of ours.
type podAnnotation struct {
	key, value string
	name       Annotation
	// container is empty where it concerns all.
	container string
	// rank is higher the more specific the key is within its annotationScope; 0 when its scope is wrong.
	rank int
}

// ReadAnnotations reads the annotations KEY.memory-manager.noderesource.dev or KEY.memory-manager.nri.io, for all
// containers, with /pod for all too, or with /container.NAME for one. Beyond the limits the first by key count, and Wishes
// names the others in a problem.
func ReadAnnotations(annotations map[string]string) PodAnnotations {
	keys, bytes := ourKeys(annotations)
	if len(keys) == 0 {
		return PodAnnotations{}
	}
	p := PodAnnotations{one: map[string]*annotationScope{}}
	left := mostAnnotationBytes
	for i, key := range keys {
		a, _ := parseAnnotation(key, annotations[key])
		if left -= a.size(); i == mostAnnotations || left < 0 {
			p.beyond = []Problem{a.beyond(len(keys), bytes)}
			break
		}
		scope := &p.every
		if a.container != "" {
			scope = p.one[a.container]
			if scope == nil {
				scope = &annotationScope{}
				p.one[a.container] = scope
			}
		}
		scope.add(a)
	}
	p.problems = p.every.problems()
	return p
}

// podAnnotationsJSON is what PodAnnotations follow from.
type podAnnotationsJSON struct {
	Annotations map[string]string
	Beyond      []Problem
}

// MarshalJSON writes the annotations that were kept, as they are in a pod, and which were not.
func (p PodAnnotations) MarshalJSON() ([]byte, error) {
	out := podAnnotationsJSON{Annotations: map[string]string{}, Beyond: p.beyond}
	keep := func(scope *annotationScope) {
		for _, a := range slices.Concat(scope.known, scope.wrong) {
			out.Annotations[a.key] = a.value
		}
	}
	keep(&p.every)
	for _, scope := range p.one {
		keep(scope)
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads the annotations again.
func (p *PodAnnotations) UnmarshalJSON(data []byte) error {
	var from podAnnotationsJSON
	if err := json.Unmarshal(data, &from); err != nil {
		return err
	}
	*p = ReadAnnotations(from.Annotations)
	if p.beyond == nil {
		p.beyond = from.Beyond
	}
	return nil
}

// Empty reports whether the pod has no annotation of ours.
func (p PodAnnotations) Empty() bool { return p.one == nil && p.beyond == nil }

// Wishes are what the pod asks for one of its containers ("" for the pod itself). The most specific annotation wins. What is
// wrong or not allowed counts as not there and is named in the problems, sorted by annotation. What is not there has the rules' default.
func (p PodAnnotations) Wishes(container string, rules AnnotationRules) (Wishes, []Problem) {
	var own annotationScope
	if scope := p.one[container]; scope != nil {
		own = *scope
	}
	var wishes Wishes
	var asked map[Annotation]bool
	if len(rules.Defaults) > 0 {
		asked = map[Annotation]bool{}
	}
	problems := slices.Concat(p.problems, rules.judge(&wishes, asked, p.every.known), own.problems(), rules.judge(&wishes, asked, own.known))
	if asked != nil {
		rules.complete(&wishes, asked)
	}
	return wishes, append(first(problems, mostProblems-len(p.beyond)), p.beyond...)
}

// Problems are what is wrong with all annotations of the pod, or not allowed, sorted by annotation. containers are the names of its
// containers: an annotation for another one is a problem; nil where they are not known.
func (p PodAnnotations) Problems(rules AnnotationRules, containers []string) []Problem {
	problems := slices.Concat(p.problems, rules.judge(&Wishes{}, nil, p.every.known), p.Astray(containers))
	for name, own := range p.one {
		if containers == nil || slices.Contains(containers, name) {
			problems = slices.Concat(problems, own.problems(), rules.judge(&Wishes{}, nil, own.known))
		}
	}
	return append(first(problems, mostProblems-len(p.beyond)), p.beyond...)
}

// Astray are the problems of annotations for other containers than the pod's; there are none while these are not known (nil).
func (p PodAnnotations) Astray(containers []string) []Problem {
	var problems []Problem
	for name, own := range p.one {
		if containers == nil || slices.Contains(containers, name) {
			continue
		}
		for _, a := range slices.Concat(own.known, own.wrong) {
			err := field.NotFound(a.path(), short(name))
			err.Detail = "the pod has no such container" + spelling.Hint(name, containers)
			problems = append(problems, Problem{Annotation: a.key, Message: err.Error()})
		}
	}
	return first(problems, mostProblems)
}

// first are the first problems by annotation.
func first(problems []Problem, most int) []Problem {
	slices.SortFunc(problems, func(a, b Problem) int { return cmp.Compare(a.Annotation, b.Annotation) })
	return problems[:min(len(problems), most)]
}

// judge puts annotations into the wishes, and their names into asked unless that is nil. It returns what is wrong with the others.
func (rules AnnotationRules) judge(w *Wishes, asked map[Annotation]bool, known []podAnnotation) (problems []Problem) {
	for _, a := range known {
		next := *w
		if err := rules.wish(&next, a.path(), a.name, a.value); err != nil {
			problems = append(problems, Problem{Annotation: a.key, Message: err.Error()})
			continue
		}
		*w = next
		if asked != nil {
			asked[a.name] = true
		}
	}
	return problems
}

// ourKeys are the keys of our annotations, sorted, and their size in all.
func ourKeys(annotations map[string]string) (keys []string, bytes int) {
	for key, value := range annotations {
		a, ok := parseAnnotation(key, value)
		if !ok {
			continue
		}
		if keys == nil {
			keys = make([]string, 0, len(annotations))
		}
		keys = append(keys, key)
		bytes += a.size()
	}
	slices.Sort(keys)
	return keys, bytes
}

// parseAnnotation reads a key of ours, and keeps as much of its value as is shown.
func parseAnnotation(key, value string) (podAnnotation, bool) {
	head, scope, scoped := strings.Cut(key, "/")
	for domain, suffix := range domains {
		name, ok := strings.CutSuffix(head, suffix)
		if !ok {
			continue
		}
		a := podAnnotation{key: key, value: short(value), name: Annotation(name)}
		container, isContainer := strings.CutPrefix(scope, forContainer)
		newer := len(domains) - domain
		switch {
		case !scoped:
			a.rank = newer
		case scope == forPod:
			a.rank = len(domains) + newer
		case isContainer && container != "":
			a.container, a.rank = container, newer
		}
		return a, true
	}
	return podAnnotation{}, false
}

// add keeps an annotation. They come in the order of their keys.
func (s *annotationScope) add(a podAnnotation) {
	switch {
	case a.rank > 0 && slices.Contains(annotationNames, string(a.name)):
		after := func(b podAnnotation) bool { return b.rank > a.rank }
		at := slices.IndexFunc(s.known, after)
		if at < 0 {
			at = len(s.known)
		}
		s.known = slices.Insert(s.known, at, a)
	case len(s.wrong) < mostProblems:
		s.wrong = append(s.wrong, a)
	}
}

// problems returns what is wrong with annotations whatever the rules allow.
func (s *annotationScope) problems() []Problem {
	var problems []Problem
	for _, a := range s.wrong {
		problems = append(problems, Problem{Annotation: a.key, Message: a.problem().Error()})
	}
	return problems
}

// problem is what is wrong with the key of an annotation.
func (a podAnnotation) problem() *field.Error {
	if a.rank == 0 {
		return field.Invalid(a.path(), a.value, "want the key to end in /pod or /container.NAME, or without either")
	}
	if nearest := spelling.Nearest(string(a.name), annotationNames); nearest != "" {
		return field.Invalid(a.path(), a.value, "unknown annotation, did you mean "+nearest+domains[0]+"?")
	}
	return field.Invalid(a.path(), a.value, "unknown annotation; want "+spelling.List(annotationNames)+" before "+domains[0])
}

// beyond is the problem of the first annotation beyond the limits.
func (a podAnnotation) beyond(number, bytes int) Problem {
	err := field.Forbidden(a.path(), fmt.Sprintf("this and all later keys are ignored: the pod has %d annotations of this plugin with "+
		"%s in all, want at most %d with %s", number, quantity.Short(uint64(bytes)), mostAnnotations, quantity.Short(mostAnnotationBytes)))
	// A clone, so that a longer key is not kept whole.
	return Problem{Annotation: strings.Clone(a.key[:min(len(a.key), longestKey)]), Message: err.Error()}
}

func (a podAnnotation) size() int { return len(a.key) + len(a.value) }

func (a podAnnotation) path() *field.Path {
	return field.NewPath("metadata", "annotations").Key(plain(a.key))
}

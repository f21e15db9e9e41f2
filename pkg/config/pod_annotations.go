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

// PodAnnotations are a pod's annotations that are ours. They are bounded in number and bytes and never change: they are read once for each
// pod sandbox. The zero value has none.
type PodAnnotations struct {
	all    []podAnnotation // in ascending order of rank
	beyond []Problem       // at most one: the limits were exceeded
}

// podAnnotation is an annotation of ours.
type podAnnotation struct {
	key, value string
	name       Annotation
	// container is empty where it concerns all.
	container string
	// rank is higher the more specific the key is; 0 when its scope is wrong.
	rank int
	// misspelt is set if the domain has a mistake, or stands before the slash.
	misspelt bool
	// wrong is what is wrong with the key, whatever the rules allow; empty when nothing is.
	wrong string
}

// ReadAnnotations reads the annotations KEY.memory-manager.noderesource.dev or KEY.memory-manager.nri.io, for all
// containers, with /pod for all too, or with /container.NAME for one. Beyond the limits the first by key count, and Wishes
// names the others in a problem.
func ReadAnnotations(annotations map[string]string) PodAnnotations {
	var p PodAnnotations
	keys, bytes := ourKeys(annotations)
	left, wrong := mostAnnotationBytes, map[string]int{} // by container
	for i, key := range keys {
		a, _ := parseAnnotation(key, annotations[key])
		if left -= a.size(); i == mostAnnotations || left < 0 {
			p.beyond = []Problem{a.beyond(len(keys), bytes)}
			break
		}
		if a.rank == 0 || !slices.Contains(annotationNames, string(a.name)) {
			if wrong[a.container]++; wrong[a.container] > mostProblems {
				continue
			}
			a.wrong = a.problem().Error()
		}
		p.all = append(p.all, a)
	}
	slices.SortStableFunc(p.all, func(a, b podAnnotation) int { return cmp.Compare(a.rank, b.rank) })
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
	for _, a := range p.all {
		out.Annotations[a.key] = a.value
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
func (p PodAnnotations) Empty() bool { return len(p.all) == 0 && p.beyond == nil }

// Wishes are what the pod asks for one of its containers ("" for the pod itself). The most specific annotation wins. What is
// wrong or not allowed counts as not there and is named in the problems, sorted by annotation. What is not there has the rules' default.
func (p PodAnnotations) Wishes(container string, rules AnnotationRules) (Wishes, []Problem) {
	var wishes Wishes
	var problems []Problem
	asked := map[Annotation]bool{}
	for _, a := range p.all {
		if a.container != "" && a.container != container {
			continue
		}
		if wrong := rules.judge(&wishes, a); wrong != "" {
			problems = append(problems, Problem{a.key, wrong})
		} else {
			asked[a.name] = true
		}
	}
	if len(rules.Defaults) > 0 {
		rules.complete(&wishes, asked)
	}
	return wishes, append(first(problems, mostProblems-len(p.beyond)), p.beyond...)
}

// Problems are what is wrong with all annotations of the pod, or not allowed, sorted by annotation. containers are the names of its
// containers: an annotation for another one is a problem; nil where they are not known.
func (p PodAnnotations) Problems(rules AnnotationRules, containers []string) []Problem {
	problems := p.wrong(func(a podAnnotation) string { return cmp.Or(a.astray(containers), rules.judge(&Wishes{}, a)) })
	return append(first(problems, mostProblems-len(p.beyond)), p.beyond...)
}

// Astray are the problems of annotations for other containers than the pod's; there are none while these are not known (nil).
func (p PodAnnotations) Astray(containers []string) []Problem {
	return first(p.wrong(func(a podAnnotation) string { return a.astray(containers) }), mostProblems)
}

// wrong are the annotations that judge says something about.
func (p PodAnnotations) wrong(judge func(podAnnotation) string) (problems []Problem) {
	for _, a := range p.all {
		if wrong := judge(a); wrong != "" {
			problems = append(problems, Problem{a.key, wrong})
		}
	}
	return problems
}

// first are the first problems by annotation.
func first(problems []Problem, most int) []Problem {
	slices.SortFunc(problems, func(a, b Problem) int { return cmp.Compare(a.Annotation, b.Annotation) })
	return problems[:min(len(problems), most)]
}

// judge puts an annotation into the wishes. If it is wrong, it says why and leaves them as they are.
func (rules AnnotationRules) judge(w *Wishes, a podAnnotation) (wrong string) {
	next := *w
	if a.wrong != "" {
		return a.wrong
	}
	if err := rules.wish(&next, a.path(), a.name, a.value); err != nil {
		return err.Error()
	}
	*w = next
	return ""
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
			a.container, a.rank = container, 2*len(domains)+newer
		}
		return a, true
	}
	name, domain, _ := strings.Cut(head, ".")
	if slices.Contains(domains[:], "."+head) {
		name, domain = scope, head
	}
	ours := slices.Contains(annotationNames, name) && spelling.Nearest("."+domain, domains[:]) != ""
	return podAnnotation{key: key, value: short(value), name: Annotation(name), misspelt: true}, ours
}

// astray says that the annotation is for another container than these; empty while they are not known (nil).
func (a podAnnotation) astray(containers []string) string {
	if a.container == "" || containers == nil || slices.Contains(containers, a.container) {
		return ""
	}
	err := field.NotFound(a.path(), short(a.container))
	err.Detail = "the pod has no such container" + spelling.Hint(a.container, containers)
	return err.Error()
}

// problem is what is wrong with the key of an annotation.
func (a podAnnotation) problem() *field.Error {
	if a.rank == 0 && !a.misspelt {
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

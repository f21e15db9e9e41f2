package simulator

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/tables"
)

// IgnoredAnnotation is an annotation that is wrong, or not allowed in its namespace.
type IgnoredAnnotation struct {
	Namespace  string `json:"namespace"`
	Pod        string `json:"pod"`
	Annotation string `json:"annotation"`
	// Message is in the form of a Kubernetes field error, and names the annotation.
	Message string `json:"message"`
}

// ignoredAnnotations are those of the pods. Where a wrong annotation rejects its pod, the containers' reasons have it.
func (n *Node) ignoredAnnotations() []IgnoredAnnotation {
	var all []IgnoredAnnotation
	if n.config.OnBadAnnotation == config.RejectPod {
		return nil
	}
	for _, pod := range n.pods {
		for _, problem := range problems(pod, n.rulesFor(pod)) {
			all = append(all, IgnoredAnnotation{pod.Namespace, pod.Name, problem.Annotation, problem.Message})
		}
	}
	return all
}

func (n *Node) rulesFor(pod *corev1.Pod) config.AnnotationRules {
	return n.config.AnnotationRulesFor(config.Subject{Namespace: pod.Namespace, Labels: pod.Labels})
}

func problems(pod *corev1.Pod, rules config.AnnotationRules) []config.Problem {
	var names []string
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		names = append(names, container.Name)
	}
	return config.ReadAnnotations(pod.Annotations).Problems(rules, names)
}

func (r *Result) writeIgnoredAnnotations(b *strings.Builder) {
	var lines strings.Builder
	for _, ignored := range r.IgnoredAnnotations {
		fmt.Fprintf(&lines, "%s/%s: %s\n", ignored.Namespace, ignored.Pod, ignored.Message)
	}
	tables.Section(b, "IGNORED ANNOTATIONS", lines.String())
}

func (r *Result) writeNotes(b *strings.Builder, title string, note func(*Container) string) {
	var lines strings.Builder
	for _, c := range r.Containers {
		if text := note(c); text != "" {
			fmt.Fprintf(&lines, "%s/%s %s: %s\n", c.Namespace, c.Pod, c.Container, text)
		}
	}
	tables.Section(b, title, lines.String())
}

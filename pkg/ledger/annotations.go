package ledger

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
)

// annotations has a pod's annotations judged at the end of the Step: its rules or its containers have changed.
func (l *Ledger) annotations(p *pod) {
	if p.Annotated.Annotations.Empty() && p.problems == nil {
		return
	}
	if last := len(l.step.annotated) - 1; last < 0 || l.step.annotated[last] != p {
		l.step.annotated = append(l.step.annotated, p)
	}
}

// judgeAnnotations finds the problems of annotations. Each is in the log once, at the moment when it is found.
func (l *Ledger) judgeAnnotations() {
	text := "annotations are ignored"
	if l.state.Resolved.Config.OnBadAnnotation == config.RejectPod {
		text = "annotations are wrong or not allowed"
	}
	for _, p := range l.step.annotated {
		before := p.problems
		p.problems = p.findProblems()
		if slices.Equal(before, p.problems) {
			continue
		}
		news := slices.DeleteFunc(slices.Clone(p.problems), func(problem config.Problem) bool { return slices.Contains(before, problem) })
		if len(news) > 0 {
			l.note(Warn, text, with(p.fields(), "problems", messages(news)), nil)
		}
	}
}

func (p *pod) findProblems() []config.Problem {
	return p.Annotated.Annotations.Problems(p.rules, p.containerNames())
}

// containerNames are the names of the containers of a pod: those of its spec, and others that the runtime has. They are nil while no
// pod API knows the pod: NRI names containers one by one.
func (p *pod) containerNames() []string {
	if p.Info == nil || len(p.Info.Containers) == 0 {
		return nil
	}
	var names []string
	for i := range p.Info.Containers {
		names = append(names, p.Info.Containers[i].Name)
	}
	for _, c := range p.containers {
		names = append(names, c.Name)
	}
	return names
}

// checkAnnotations refuses a container with wrong annotations where the administrator wants that. One for a container that is not
// there concerns all of them.
func (l *Ledger) checkAnnotations(c *container) error {
	if c.pod.Annotated.Annotations.Empty() || l.state.Resolved.Config.OnBadAnnotation != config.RejectPod {
		return nil
	}
	_, problems := c.pod.Annotated.Annotations.Wishes(c.Name, c.pod.rules)
	problems = append(problems, c.pod.Annotated.Annotations.Astray(c.pod.containerNames())...)
	if len(problems) == 0 {
		return nil
	}
	err := fmt.Errorf("bad annotations: %s", messages(problems))
	l.reject(c, cause{reason: BadAnnotation, text: err.Error()}, true)
	return err
}

func messages(problems []config.Problem) string {
	texts := make([]string, len(problems))
	for i, problem := range problems {
		texts[i] = problem.Message
	}
	return strings.Join(texts, "; ")
}

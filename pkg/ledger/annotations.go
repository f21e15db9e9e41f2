package ledger

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
)

// recheckAnnotations checks a pod's annotations again at the end of the Step, because its rules or its containers have changed.
func (l *Ledger) recheckAnnotations(p *pod) {
	if p.Annotated.Annotations.Empty() && p.problems == nil {
		return
	}
	if last := len(l.step.recheck) - 1; last < 0 || l.step.recheck[last] != p {
		l.step.recheck = append(l.step.recheck, p)
	}
}

// reportAnnotations checks the queued pods. It logs each problem once, when it appears.
func (l *Ledger) reportAnnotations() {
	text := "annotations are ignored"
	if l.state.Resolved.Config.OnBadAnnotation == config.RejectPod {
		text = "annotations are wrong or not allowed"
	}
	for _, p := range l.step.recheck {
		before := p.problems
		p.problems = p.findProblems()
		if slices.Equal(before, p.problems) {
			continue
		}
		news := slices.DeleteFunc(slices.Clone(p.problems), func(problem config.Problem) bool { return slices.Contains(before, problem) })
		if len(news) > 0 {
			l.note(Warn, text, withField(p.fields(), "problems", messages(news)), nil)
		}
	}
}

func (p *pod) findProblems() []config.Problem {
	return p.Annotated.Annotations.Problems(p.rules, p.containerNames())
}

// containerNames returns the containers of the pod's spec and the others that the runtime has reported. It returns nil until a pod API
// knows the pod, because NRI reports containers one at a time.
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

// checkAnnotations refuses a container with wrong annotations if onBadAnnotation is Reject. An annotation that names no container of the
// pod refuses all of them.
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

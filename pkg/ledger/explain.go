package ledger

import (
	"fmt"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Explanation says why a container has what it has.
type Explanation struct {
	Pod       *PodView
	Container ContainerView
	// Placement is how the memory manager would place it now, with the candidates that it considers; nil for a container
	// that is never pinned, Container.Pinning then says why.
	Placement *memorymanager.Explanation
	// Rejection is the container's last one as long as it matters: its last resize was refused, or it has no place now.
	Rejection *Rejection
	// Memory are the steps to memory.min, low and high, a line each.
	Memory []string
}

// Explain explains the containers of a pod, given as namespace/name, name or UID; container "" is all of them.
// The error names what was not found.
func (l *Ledger) Explain(pod, container string) ([]Explanation, error) {
	l.refreshPodViews()
	var found []Explanation
	pods := 0
	for _, p := range l.living {
		if !p.answersTo(pod) {
			continue
		}
		pods++
		for i, c := range p.containers {
			if container == "" || c.name == container {
				found = append(found, l.explain(c, p.view.Containers[i]))
			}
		}
	}
	switch {
	case pods == 0:
		return nil, fmt.Errorf("no pod %q on this node", pod)
	case len(found) == 0 && container != "":
		return nil, fmt.Errorf("pod %q has no container %q", pod, container)
	}
	return found, nil
}

func (p *pod) answersTo(name string) bool {
	return name == p.UID || name == p.Name || name == p.Namespace+"/"+p.Name
}

// explain is Explain for one container.
func (l *Ledger) explain(c *container, view ContainerView) Explanation {
	explanation := Explanation{Pod: c.pod.view, Container: view, Memory: c.arithmetic()}
	if l.unpinnable(c) == "" {
		wanted := l.wanted(c)
		if l.asWhole(c.pod) {
			wanted.Request = c.pod.info.Budget()
		}
		if len(wanted.Request) > 0 {
			placement := l.manager.Explain(wanted)
			if placement.Placement.Existing {
				placement.Placement.Blocks = view.Blocks
			}
			explanation.Placement = &placement
		}
	}
	explanation.Rejection = l.rejected(c)
	return explanation
}

// rejected is a container's last rejection as long as it matters: a resize that is refused, or no place now.
func (l *Ledger) rejected(c *container) *Rejection {
	switch {
	case c.refusal != nil:
		return &c.refusal.Rejection
	case c.unplaced != nil:
		return c.unplaced
	case !c.nodes.Empty(), c.alive() && l.unpinnable(c) != "":
		return nil
	}
	for i := range l.rejections {
		if r := &l.rejections[i]; r.UID == c.pod.UID && r.Container == c.name {
			return r
		}
	}
	return nil
}

// arithmetic shows how the container's values come about.
func (c *container) arithmetic() []string {
	request := fmt.Sprintf("request = %s, from source %s", quantity.Short(c.request.Request), c.request.Source)
	if c.request.Error > 0 {
		request += fmt.Sprintf(", at most %s more", quantity.Short(c.request.Error))
	}
	_, steps := c.pod.settings.Explain(c.forQoS(), c.wishes.QoS)
	lines := []string{request, steps.High}
	if c.raised > 0 && c.wanted.High != nil {
		lines = append(lines, fmt.Sprintf("memory.high stands at %s: the stall guard has raised it", cgroup.Readable(*c.high())))
	}
	return append(lines, steps.Protection)
}

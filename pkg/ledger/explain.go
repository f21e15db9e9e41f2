package ledger

import (
	"fmt"
	"iter"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Explanation says why a container has its nodes and values.
type Explanation struct {
	Pod       *PodView
	Container ContainerView
	// Placement is how the Memory Manager would place it now, with the candidates that it considers. It is nil for a container that is
	// never pinned; Container.Pinning says why.
	Placement *memorymanager.Explanation
	// Rejection is the container's last one if it still matters: a refused resize, or no place now.
	Rejection *Rejection
	// Defaults names the rule of the configuration that stands for annotations, and which; "" if none does.
	Defaults string
	// Memory has a line for each step to memory.min, low and high. High is the formula for memory.high, if that decides.
	Memory []string
	High   memoryqos.Formula
}

// Explain returns explanations of a pod's containers. pod is namespace/name, name or UID; an empty container selects all. The error names
// what was not found. Each explanation is computed when it is iterated, from copies of the current state: that takes longer than a
// decision, but needs neither the ledger nor its driver's lock.
func (l *Ledger) Explain(pod, container string) (iter.Seq[Explanation], error) {
	l.refreshPodViews()
	var asked []inquiry
	pods := 0
	for _, p := range l.living {
		if !p.view.Is(pod) {
			continue
		}
		pods++
		asked = slices.Grow(asked, len(p.containers))
		for i, c := range p.containers {
			if container == "" || c.Name == container {
				asked = append(asked, l.inquire(c, &p.view.Containers[i]))
			}
		}
	}
	switch {
	case pods == 0:
		return nil, fmt.Errorf("no pod %q on this node", pod)
	case len(asked) == 0 && container != "":
		return nil, fmt.Errorf("pod %q has no container %q", pod, container)
	}
	var manager *memorymanager.Manager
	if slices.ContainsFunc(asked, inquiry.placed) {
		manager = l.manager.Clone()
	}
	return func(yield func(Explanation) bool) {
		for i := range asked {
			if !yield(asked[i].explain(manager)) {
				return
			}
		}
	}, nil
}

// inquiry is a copy of the inputs of a container's explanation.
type inquiry struct {
	Explanation                         // without Placement and Memory
	wanted      memorymanager.Container // without a Request for a container that is never placed
	settings    memoryqos.Settings
	qos         memoryqos.Container
	overrides   memoryqos.Overrides
}

func (l *Ledger) inquire(c *container, view *ContainerView) inquiry {
	q := inquiry{
		Explanation: Explanation{Pod: c.pod.view, Container: *view, Rejection: l.rejected(c), Defaults: c.pod.rules.Sets(c.wishes(), c.pod.priorityClass())},
		settings:    c.pod.settings,
	}
	q.qos, q.overrides = l.qosContainer(c, view.Estimate)
	if l.unpinnable(c) == "" {
		q.wanted = l.managerContainer(c)
		if l.asWhole(c.pod) {
			q.wanted.Request = c.pod.Info.Budget()
		}
	}
	return q
}

func (q inquiry) placed() bool { return len(q.wanted.Request) > 0 }

// explain does not modify manager.
func (q inquiry) explain(manager *memorymanager.Manager) Explanation {
	q.Memory, q.High = q.arithmetic()
	if q.placed() {
		placement := manager.Explain(q.wanted)
		if placement.Existing {
			placement.Blocks = q.Container.Blocks
		}
		q.Placement = &placement
	}
	return q.Explanation
}

// rejected returns a container's last rejection if it still matters: a refused resize, or no place now.
func (l *Ledger) rejected(c *container) *Rejection {
	switch {
	case c.Refusal != nil:
		return &c.Refusal.Rejection
	case c.Unplaced != nil:
		return c.Unplaced
	case !c.Nodes.Empty(), c.alive() && l.unpinnable(c) != "":
		return nil
	}
	for i := range l.state.Rejections {
		if r := &l.state.Rejections[i]; r.UID == c.pod.UID && r.Container == c.Name {
			return r
		}
	}
	return nil
}

// arithmetic shows how the container's values are computed.
func (q inquiry) arithmetic() (lines []string, high memoryqos.Formula) {
	estimate := q.Container.Estimate
	request := fmt.Sprintf("request = %s, from source %s", quantity.Short(estimate.Request), estimate.Source)
	if estimate.Error > 0 {
		request += fmt.Sprintf(", at most %s more", quantity.Short(estimate.Error))
	}
	_, steps := q.settings.Explain(q.qos, q.overrides)
	lines = []string{request, steps.High}
	if raised := q.Container.Raised; raised > 0 && q.Container.Values.High != nil {
		stands := cgroup.Readable(max(raised, *q.Container.Values.High))
		lines = append(lines, fmt.Sprintf("memory.high stands at %s: the stall guard has raised it", stands))
	}
	lines = append(lines, steps.Protection)
	if steps.OOMGroup != "" {
		lines = append(lines, steps.OOMGroup)
	}
	return lines, steps.Formula
}

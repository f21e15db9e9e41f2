package ledger

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// Explanation says why a container has what it has.
type Explanation struct {
	Pod       *PodView
	Container ContainerView
	// Placement is how the memory manager would place it now, with the candidates that it considers; nil for a container
	// that is never pinned, Container.Pinning then says why.
	Placement *memorymanager.Explanation
	// Rejection is the last one of this container, if any.
	Rejection *Rejection
	// Memory are the steps to memory.min, low and high, a line each.
	Memory []string
}

// Explain explains the containers of a pod, given as namespace/name, name or UID; container "" is all of them.
// The error names what was not found.
func (l *Ledger) Explain(pod, container string) ([]Explanation, error) {
	var found []Explanation
	pods := 0
	for _, p := range l.living {
		if !p.answersTo(pod) {
			continue
		}
		pods++
		if p.view == nil {
			p.view = l.podView(p)
		}
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
		if wanted := l.wanted(c); len(wanted.Request) > 0 {
			placement := l.manager.Explain(wanted)
			explanation.Placement = &placement
		}
	}
	for i := range l.rejections {
		if r := &l.rejections[i]; r.UID == c.pod.UID && r.Container == c.name {
			explanation.Rejection = r
			break
		}
	}
	return explanation
}

// arithmetic shows how the container's values come about.
func (c *container) arithmetic() []string {
	settings := c.pod.settings
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	more := ""
	if c.request.Error > 0 {
		more = fmt.Sprintf(", at most %s more", exact(c.request.Error))
	}
	say("request = %s, from source %s%s", exact(c.request.Request), c.request.Source, more)
	ceiling, what := c.limit, "limit"
	if ceiling == 0 {
		ceiling, what = settings.NodeAllocatable, "node allocatable, for want of a limit"
	}
	factor := settings.Factor
	if wish := c.wishes.QoS.Factor; wish != nil {
		bounded := max(*wish, settings.MinimumFactor)
		factor = &bounded
	}
	switch high := c.wanted.High; {
	case high != nil && c.wishes.QoS.High != nil:
		say("memory.high = %s, from the pod's annotation, within its request and %s", exact(*high), what)
	case high != nil && factor != nil:
		say("memory.high = floor((request + (%d - request) * %g) / %d) * %d = %s; %d is the %s",
			ceiling, *factor, settings.PageSize, settings.PageSize, exact(*high), ceiling, what)
	default:
		say("memory.high is not set: %s", c.whyNoHigh(ceiling))
	}
	if c.raised > 0 && c.wanted.High != nil {
		say("memory.high stands at %s: the stall guard has raised it", number(*c.high()))
	}
	policy := settings.Reservation
	if wish := c.wishes.QoS.Reservation; wish != "" {
		policy = memoryqos.ReservationPolicy("annotation " + string(wish))
	}
	switch {
	case c.wanted.Min != nil && *c.wanted.Min < c.request.Request:
		say("memory.min = %s, %s: the limit less a share of %g that stays reclaimable", exact(*c.wanted.Min), policy, settings.GuaranteedHeadroom)
	case c.wanted.Min != nil:
		say("memory.min = request = %s, %s", exact(*c.wanted.Min), policy)
	case c.wanted.Low != nil:
		say("memory.low = request = %s, %s", exact(*c.wanted.Low), policy)
	case c.request.Request == 0:
		say("no memory.min and no memory.low: the container has no request, or none that is known")
	default:
		say("no memory.min and no memory.low (%s, %s)", c.pod.class(), policy)
	}
	return lines
}

// exact is a size in bytes, and for people.
func exact(bytes uint64) string {
	if short := quantity.Short(bytes); short != strconv.FormatUint(bytes, 10) {
		return fmt.Sprintf("%d (%s)", bytes, short)
	}
	return strconv.FormatUint(bytes, 10)
}

func (c *container) whyNoHigh(ceiling uint64) string {
	var reasons []string
	switch {
	case c.pod.class() == memoryqos.Guaranteed:
		reasons = append(reasons, "the pod is Guaranteed")
	case c.wishes.QoS.NoHigh:
		reasons = append(reasons, "the pod's annotation memory-high is off")
	case c.pod.settings.Factor == nil && c.wishes.QoS.Factor == nil:
		reasons = append(reasons, "memoryThrottlingFactor is not set")
	case c.limit > 0 && c.request.Error > 0 && c.request.Request+c.request.Error >= c.limit:
		reasons = append(reasons, "the request is an estimate and may equal the limit, and a container that asks for its limit is not throttled")
	case ceiling <= c.request.Request:
		reasons = append(reasons, fmt.Sprintf("nothing lies between the request and %d", ceiling))
	default:
		reasons = append(reasons, "rounded down to a page it would not exceed the request")
	}
	return strings.Join(reasons, ", ")
}

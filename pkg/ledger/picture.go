package ledger

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// View returns the current state, with pods and conditions in no order and without a Generation. Unchanged parts are shared with the last
// view.
func (l *Ledger) View() View {
	view := View{
		Runtime:    l.state.Runtime,
		Config:     l.state.Resolved,
		Rejections: l.state.Rejections,
		Pods:       make([]*PodView, 0, len(l.living)),
		Conditions: []Condition{
			l.state.Connected.condition(ConditionConnected), l.state.Synchronized.condition(ConditionSynchronized), l.state.Configured.condition(ConditionConfig),
		},
		Ancestors: l.ancestors(nil),
	}
	if l.manager != nil {
		view.Nodes = l.manager.Nodes()
	}
	if l.state.Resolved.Config.DRA.Enabled {
		view.Claimable, view.Claims = l.state.Claims.Capacities(l.claimSupply()), l.Claims()
	}
	l.refreshPodViews()
	for _, p := range l.living {
		view.Pods = append(view.Pods, p.view)
	}
	return view
}

// Outcome is the decision about a container.
type Outcome struct {
	// Request is its memory request, with the source.
	Request pods.Estimate
	// Unplaced is why it was rejected or runs without NUMA nodes; nil if the container has its place, or needs none.
	Unplaced *Rejection
	// Pinning and OOMScore are those of its View.
	Pinning  string
	OOMScore *OOMScore
	// Confined is set if its cpuset.mems has no memory allocated for it.
	Confined bool
	// WithoutEffect are annotations of the pod about memory.high, memory.min and memory.low that do nothing for it, each with the reason
	// that Explain gives.
	WithoutEffect []string
}

// Outcome returns the decision about a container of a living pod; zero if it is unknown. It costs less than a View.
func (l *Ledger) Outcome(pod, name string) (o Outcome) {
	if p := l.pods[pod]; p != nil {
		if i := slices.IndexFunc(p.containers, func(c *container) bool { return c.Name == name }); i >= 0 {
			c := p.containers[i]
			o.Request, o.Pinning, o.OOMScore, o.Confined = p.derived.runs[i].request, c.Pinning, c.OOMScore, !c.Confined.Empty()
			o.WithoutEffect = l.withoutEffect(c, o.Request)
		}
	}
	newest := slices.IndexFunc(l.state.Rejections, func(r Rejection) bool { return r.UID == pod && r.Container == name })
	if newest >= 0 {
		o.Unplaced = &l.state.Rejections[newest]
	}
	return o
}

func (l *Ledger) withoutEffect(c *container, request pods.Estimate) (lines []string) {
	qos, asks := l.qosContainer(c, request)
	values, steps := c.pod.settings.Explain(qos, asks)
	note := func(name config.Annotation, asked bool, why string) {
		if asked && !slices.Contains(c.wishes().Defaults, name) {
			lines = append(lines, string(name)+": "+why)
		}
	}
	note(config.AnnotationMemoryHigh, asks.High != nil && values.High == nil, steps.High)
	note(config.AnnotationThrottlingFactor, asks.Factor != nil && values.High == nil, steps.High)
	protects := asks.Reservation != "" && asks.Reservation != memoryqos.ReserveNone
	note(config.AnnotationReservation, protects && values.Min == nil && values.Low == nil, steps.Protection)
	return lines
}

// Config returns the current configuration.
func (l *Ledger) Config() config.Resolved { return l.state.Resolved }

// refreshPodViews makes new views of pods that have changed. It also updates views of pods whose memory has moved between the nodes of its
// group, because another container was added or removed.
func (l *Ledger) refreshPodViews() {
	for _, p := range l.living {
		if p.view == nil {
			p.view = l.podView(p)
		}
	}
	if l.manager == nil {
		return
	}
	allocated := l.manager.State()
	for _, entry := range allocated.Entries {
		if p := l.pods[entry.Pod]; p != nil {
			p.view = p.view.with(entry)
		}
	}
	for _, entry := range allocated.Pods {
		if p := l.pods[entry.Pod]; p != nil && !slices.EqualFunc(p.view.Blocks, entry.Blocks, sameBlock) {
			changed := *p.view
			changed.Blocks = entry.Blocks
			p.view = &changed
		}
	}
}

// with returns the view with these blocks of a container; the same view if nothing changes.
func (v *PodView) with(entry memorymanager.Entry) *PodView {
	i := slices.IndexFunc(v.Containers, func(c ContainerView) bool { return c.Name == entry.Container })
	if i < 0 || slices.EqualFunc(v.Containers[i].Blocks, entry.Blocks, sameBlock) {
		return v
	}
	changed := *v
	changed.Containers = slices.Clone(v.Containers)
	changed.Containers[i].Blocks = entry.Blocks
	return &changed
}

func sameBlock(a, b memorymanager.Block) bool {
	return a.Nodes == b.Nodes && a.Type == b.Type && a.Size == b.Size && slices.Equal(a.PerNode, b.PerNode)
}

func (l *Ledger) podView(p *pod) *PodView {
	view := &PodView{
		UID: p.Key(), Namespace: p.Namespace, Name: p.Name, Class: p.class(), Cgroup: p.path.Pod,
		Values: p.derived.values, Containers: make([]ContainerView, 0, len(p.containers)),
		Fresh: p.Fresh, Request: l.qosPod(p, p.derived.runs).Requested(),
	}
	for _, problem := range p.problems {
		view.Problems = append(view.Problems, problem.Message)
	}
	if l.manager != nil {
		view.Blocks = l.manager.PodBlocks(view.UID)
	}
	for i, c := range p.containers {
		r := &p.derived.runs[i]
		shown := ContainerView{
			ID: c.ID, Name: c.Name, Kind: r.kind, State: c.Phase, Cgroup: c.Cgroup, Limit: c.Limit, Estimate: r.request,
			Values: r.qos, Raised: c.Raised, Nodes: c.Nodes, Confined: c.Confined, Devices: c.Devices, Pinning: c.Pinning,
			MemoryPolicy: c.Policy.MemoryPolicy.String(), PolicySource: c.Policy.From,
			NoPolicy: c.Policy.Without, OOMScore: c.OOMScore, KubeletScore: c.Resources.OOMScoreAdj, NoOOMScore: c.NoOOMScore,
		}
		if c.alive() {
			shown.PendingResize, shown.Unplaced = c.PendingResize, c.Unplaced
			shown.Unanswered = c.Unanswered && (!shown.Mems().Empty() || r.qos.Min != nil || r.qos.Low != nil || r.qos.High != nil)
		}
		if !c.CPUNodes.Empty() {
			shown.CPUs, _ = l.state.Resolved.Machine.CPUsByNode(c.Resources.CPUs) // cpus is made from the same list
		}
		if l.manager != nil {
			shown.Blocks = l.manager.Blocks(view.UID, c.Name)
			shown.Farther = l.manager.Farther(memorymanager.Container{CPUs: c.CPUNodes, Devices: c.Devices}, nodesOf(shown.Blocks))
			shown.Shared = view.Blocks != nil && len(request(c)) == 0
		}
		if len(c.Claims) > 0 {
			shown.Claims, shown.Claimed, shown.Blocks = c.grant.names, nil, nil
			if !c.ByKubelet {
				shown.Claimed, shown.Blocks = l.ownAmounts(c), c.grant.blocks
			}
		}
		view.Containers = append(view.Containers, shown)
	}
	return view
}

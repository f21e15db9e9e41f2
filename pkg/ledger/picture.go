package ledger

import (
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// View returns the present state, with the pods and conditions in no order. What has not changed since the last view is
// shared with it.
func (l *Ledger) View() View {
	view := View{
		Generation: l.generation,
		Runtime:    l.runtime,
		Config:     l.resolved,
		Rejections: l.rejections,
		Pods:       make([]*PodView, 0, len(l.living)),
		Conditions: []Condition{
			l.connected.named(ConditionConnected), l.synchronized.named(ConditionSynchronized), l.configured.named(ConditionConfig),
		},
		Ancestors: memoryqos.Ancestors(l.values),
	}
	if l.manager != nil {
		view.Nodes = l.manager.Nodes()
	}
	for _, p := range l.living {
		if p.view == nil {
			p.view = l.podView(p)
		}
		view.Pods = append(view.Pods, p.view)
		if p.managed {
			view.Kubepods = p.path.Kubepods
		}
	}
	return view
}

// Generation moves with every change that a View shows.
func (l *Ledger) Generation() uint64 { return l.generation }

// Config is the configuration in force.
func (l *Ledger) Config() config.Resolved { return l.resolved }

// Knows reports whether a container lives.
func (l *Ledger) Knows(id string) bool { return l.containers[id] != nil }

// Describes reports whether a pod API has described this container of a pod. A pod gets ephemeral containers later.
func (l *Ledger) Describes(pod, container string) bool {
	p := l.pods[pod]
	return p != nil && p.knows(container)
}

func (l *Ledger) podView(p *pod) *PodView {
	view := &PodView{
		UID: p.key(), ID: p.ID, Namespace: p.Namespace, Name: p.Name, Class: p.class(), Cgroup: p.path.Pod,
		Values: p.values, Problems: p.problems, Since: p.born, Containers: make([]ContainerView, 0, len(p.containers)),
	}
	for _, c := range p.containers {
		shown := ContainerView{
			ID: c.id, Name: c.name, Kind: c.kind, State: c.state, Cgroup: c.cgroup, Limit: c.limit, Request: c.request,
			Values: c.wanted, Raised: c.raised, Nodes: c.nodes, CPUNodes: c.cpus, Pinning: c.pinning,
		}
		if c.alive() {
			shown.Short, shown.Unplaced = c.short, c.unplaced
		}
		if !c.cpus.Empty() {
			shown.CPUs, _ = l.machine.CPUsByNode(c.resources.CPUs) // cpus is made from the same list
		}
		if l.manager != nil {
			shown.Blocks = l.manager.Blocks(view.UID, c.name)
		}
		view.Containers = append(view.Containers, shown)
	}
	return view
}

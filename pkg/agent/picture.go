package agent

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// slowDisk is how long a decision may be on its way to the disk before the checkpoint counts as failing.
const slowDisk = 10 * time.Second

// picture is the shared part of the views of one generation.
type picture struct {
	View
	order sync.Once // sorts the pods: a thousand take longer than a decision
}

// View returns the present state. The lock is held only to collect what has changed since the last View.
func (a *Agent) View() *View {
	storage := a.storage()
	a.mu.Lock()
	shared := a.picture()
	a.mu.Unlock()
	shared.order.Do(func() {
		slices.SortFunc(shared.Pods, func(x, y *PodView) int {
			return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name), strings.Compare(x.UID, y.UID))
		})
	})
	// What follows is this caller's own copy.
	own := shared.View
	own.Taken = a.now()
	own.Conditions = append(slices.Clone(shared.Conditions), storage)
	slices.SortFunc(own.Conditions, func(x, y Condition) int { return cmp.Compare(x.Name, y.Name) })
	return &own
}

// picture collects the shared part of a view, or returns the one that still holds. The lock is held.
func (a *Agent) picture() *picture {
	if a.view != nil && a.view.Generation == a.generation {
		return a.view
	}
	view := &picture{View: View{
		Generation: a.generation,
		Runtime:    a.runtime,
		Config:     a.resolved,
		Rejections: a.rejections,
		Pods:       make([]*PodView, 0, len(a.living)),
		Conditions: []Condition{
			a.connected.named(Connected), a.synchronized.named(Synchronized), a.configured.named(ConfigValid),
		},
	}}
	if a.manager != nil {
		view.Nodes = a.manager.Nodes()
	}
	for _, p := range a.living {
		if p.view == nil {
			p.view = a.pictureOf(p)
		}
		view.Pods = append(view.Pods, p.view)
		if p.managed {
			view.Kubepods = p.path.Kubepods
		}
	}
	view.Ancestors = memoryqos.Ancestors(a.values)
	a.view = view
	return view
}

func (a *Agent) pictureOf(p *pod) *PodView {
	view := &PodView{
		UID: keyOf(p.Pod), ID: p.ID, Namespace: p.Namespace, Name: p.Name, Class: p.class(), Cgroup: p.path.Pod,
		Values: p.values, Problems: p.problems, Since: p.born, Containers: make([]ContainerView, 0, len(p.containers)),
	}
	for _, c := range p.containers {
		shown := ContainerView{
			ID: c.id, Name: c.name, Kind: c.kind, State: c.state, Cgroup: c.cgroup, Limit: c.limit, Request: c.request,
			Values: c.wanted, Raised: c.raised, Nodes: c.nodes, CPUNodes: c.cpus, Pinning: c.pinning,
		}
		if c.alive() {
			shown.Short = c.short
		}
		if !c.cpus.Empty() {
			shown.CPUs, _ = a.machine.CPUsByNode(c.resources.CPUs) // cpus is made from the same list
		}
		if a.manager != nil {
			shown.Blocks = a.manager.Blocks(view.UID, c.name)
		}
		view.Containers = append(view.Containers, shown)
	}
	return view
}

// storage is the condition of the checkpoint.
func (a *Agent) storage() Condition {
	a.mu.Lock()
	broken, static, dryRun := a.storeError, a.manager != nil, a.resolved.Config.DryRun
	a.mu.Unlock()
	condition := Condition{Name: Checkpoint, OK: true}
	if !static || dryRun {
		return condition
	}
	if a.writer == nil {
		return Condition{Name: Checkpoint, Message: broken}
	}
	stats := a.writer.Stats()
	switch {
	case stats.LastError != "":
		return Condition{Name: Checkpoint, Message: stats.LastError, Since: stats.PendingSince}
	case stats.Pending && a.now().Sub(stats.PendingSince) > slowDisk:
		return Condition{Name: Checkpoint, Message: "the state file has not been written for more than " + slowDisk.String(), Since: stats.PendingSince}
	}
	return condition
}

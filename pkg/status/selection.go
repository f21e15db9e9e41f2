package status

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/reclaim"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/spelling"
)

// Selection selects a part of a document.
type Selection struct {
	// Namespace is the only one whose pods are wanted; empty wants all.
	Namespace string
	// Pod is the only pod that is wanted, as NAMESPACE/NAME, name or UID; empty wants all.
	Pod string
	// Problems leaves out everything but problems.
	Problems bool
}

// Select returns the document without the pods, and what it says of pods, that are not wanted. What it says of the node stays, unless
// only problems are wanted. A pod that is not there is an error, and a namespace without pods.
func (d *Document) Select(s Selection) (*Document, error) {
	selected := *d
	if s.Namespace != "" || s.Pod != "" {
		selected.selectPods(func(p *Pod) bool {
			return (s.Namespace == "" || p.Namespace == s.Namespace) && (s.Pod == "" || p.Is(s.Pod))
		})
		if s.Pod != "" && len(selected.Pods)+len(selected.Rejections) == 0 {
			return nil, fmt.Errorf("no pod %q on this node", s.Pod)
		}
		if len(selected.Pods)+len(selected.Rejections) == 0 {
			return nil, fmt.Errorf("no pod on this node is in the namespace %q%s", s.Namespace, spelling.HintOr(s.Namespace, d.namespaces()))
		}
	}
	if s.Problems {
		selected.selectProblems()
	}
	return &selected, nil
}

func (d *Document) namespaces() []string {
	names := map[string]bool{}
	for _, p := range d.Pods {
		names[p.Namespace] = true
	}
	for _, r := range d.Rejections {
		names[r.Namespace] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// selectPods removes everything about pods that are not wanted.
func (d *Document) selectPods(wanted func(*Pod) bool) {
	d.Pods = keep(d.Pods, func(p Pod) bool { return wanted(&p) })
	about := func(namespace, name string) bool {
		return wanted(&Pod{PodView: ledger.PodView{Namespace: namespace, Name: name}}) ||
			slices.ContainsFunc(d.Pods, func(p Pod) bool { return p.Namespace == namespace && p.Name == name }) // by its UID
	}
	d.Rejections = keep(d.Rejections, func(r ledger.Rejection) bool { return about(r.Namespace, r.Pod) })
	d.NotCounted = keep(d.NotCounted, func(n NotCounted) bool { return about(n.Namespace, n.Pod) })
	if d.Reclaim != nil {
		reclaimed := *d.Reclaim
		reclaimed.Containers = keep(reclaimed.Containers, func(f reclaim.Freed) bool { return about(f.Namespace, f.Pod) })
		d.Reclaim = &reclaimed
	}
	if d.Claims != nil {
		claims := *d.Claims
		claims.Prepared = keep(claims.Prepared, func(c Claim) bool {
			return slices.ContainsFunc(d.Pods, func(p Pod) bool { return slices.Contains(c.Pods, p.UID) })
		})
		d.Claims = &claims
	}
}

func (d *Document) selectProblems() {
	d.Problems = true
	d.Conditions = keep(d.Conditions, func(c ledger.Condition) bool { return !c.OK })
	d.RequestSources = []Source{} // most clusters do without the kubelet's: verify has a note
	d.DeviceSources = keep(d.DeviceSources, func(s Source) bool { return s.Problem != "" })
	d.Nodes = keep(d.Nodes, func(n Node) bool { return n.Available != nil && n.Available.Deficit > 0 })
	d.Claims = nil
	if d.Reclaim != nil && d.Reclaim.Unknown == "" {
		d.Reclaim = nil
	}
	d.Ancestors = keep(d.Ancestors, func(a Ancestor) bool { return a.overwritten() })
	pods := []Pod{}
	for _, p := range d.Pods {
		p.Containers = keep(p.Containers, func(c Container) bool { return c.problem() })
		if len(p.Containers) > 0 || len(p.Problems) > 0 {
			pods = append(pods, p)
		}
	}
	d.Pods = pods
}

// keep returns the wanted items in a list of its own. A list that is empty, not absent, stays so in JSON.
func keep[T any](all []T, wanted func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(all), func(one T) bool { return !wanted(one) })
}

// problem reports whether a container has not got what it asked for, or is held up by its memory.high.
func (c *Container) problem() bool {
	return c.State == Rejected || c.Unplaced != "" || len(c.PendingResize) > 0 || c.Migration.Blocked() || c.Stopped || c.Raised > 0 ||
		c.NoPolicy != "" || c.AboveClaim() != ""
}

// healthy reports whether a document of problems has none. Overwrites are of the past: they were repaired.
func (d *Document) healthy() bool {
	return len(d.Conditions)+len(d.DeviceSources)+len(d.Nodes)+len(d.Ancestors)+len(d.Pods)+len(d.Rejections) == 0 && d.Reclaim == nil
}

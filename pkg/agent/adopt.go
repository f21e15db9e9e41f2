package agent

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// takeOver makes a container known that the runtime already has. One that the agent knows keeps its resources, which hold
// the updates since its creation; the runtime may not show them. The lock is held.
func (a *Agent) takeOver(p *pod, told Container, ours map[string]map[cgroup.Knob]bool, found observation) *container {
	if c := a.containers[told.ID]; c != nil && c.pod == p {
		c.state = told.State
		c.seen = c.seen || found.seen[c.cgroup]
		c.given, c.givenMems = shown(told.Resources)
		c.before = nil
		a.compute(c)
		return c
	}
	c := p.named(told.Name)
	switch {
	case c == nil:
		c = &container{pod: p, name: told.Name}
		p.containers = append(p.containers, c)
	case c.alive() && a.containers[c.id] == c: // two of one name: the one that runs is it
		if c.state == Running && told.State != Running {
			return c
		}
		a.end(c)
	}
	given, mems := shown(told.Resources)
	dir, _ := p.path.Container(told.CgroupsPath, told.ID)
	told.Resources = withoutOurs(told.Resources, ours[dir])
	if limit, known := found.limits[told.ID]; known {
		value := int64(min(limit, 1<<62))
		told.Resources.MemoryLimit = &value
	}
	a.attach(c, told, told.State)
	c.seen = found.seen[c.cgroup]
	c.given, c.givenMems, c.check = given, mems, true
	return c
}

// takeIn makes a container known whose creation was missed, by an event of its own.
func (a *Agent) takeIn(p *pod, told Container) *container {
	c := a.takeOver(p, told, a.knobs(), observation{})
	a.settleBookings([]*container{c})
	a.sumUp(p)
	if !a.resolved.Config.DryRun {
		a.noteFound(c)
	}
	return c
}

// shown reads what a container has from the resources that the runtime shows: our adjustments are among them.
func shown(r Resources) (values memoryqos.Values, mems string) {
	read := func(knob cgroup.Knob) *uint64 {
		text, set := r.Unified[string(knob)]
		if !set {
			return nil
		}
		bytes, err := strconv.ParseUint(text, 10, 64)
		if err != nil { // "max", or nothing that the kernel would have taken
			return nil
		}
		return &bytes
	}
	values = memoryqos.Values{Min: read(cgroup.MemoryMin), Low: read(cgroup.MemoryLow), High: read(cgroup.MemoryHigh)}
	if values.Min != nil && *values.Min == 0 {
		values.Min = nil
	}
	if values.Low != nil && *values.Low == 0 {
		values.Low = nil
	}
	return values, r.Mems
}

// withoutOurs leaves out what this plugin has set: the runtime shows it in the same place as the kubelet's wishes, and
// an estimate from our own memory.low would be taken for the kubelet's word.
func withoutOurs(r Resources, ours map[cgroup.Knob]bool) Resources {
	if len(ours) == 0 {
		return r
	}
	unified := maps.Clone(r.Unified)
	for knob := range ours {
		delete(unified, string(knob))
	}
	r.Unified = unified
	if ours[cgroup.CpusetMems] {
		r.Mems = ""
	}
	return r
}

// settleBookings gives running containers their allocations: those with an entry keep it, those with a cpuset.mems are
// taken over as they are, then those that were resized meanwhile are fitted, and last the others are placed. The order
// does not depend on the runtime's. It returns how many were placed. The lock is held.
func (a *Agent) settleBookings(taken []*container) (placed int) {
	var resized, spread, free []*container
	for _, c := range inOrder(taken) {
		if a.keepBooking(c) {
			if a.misfits(c) {
				resized = append(resized, c)
			}
			continue
		}
		nodes, err := nodeset.Parse(c.givenMems)
		switch {
		case err != nil, nodes.Empty(), c.released, len(request(c)) == 0:
			free = append(free, c)
		case a.manager.Spread(nodes):
			spread = append(spread, c)
		default:
			a.found(c, nodes)
		}
	}
	for _, c := range spread { // others may have made all nodes one group
		if nodes, _ := nodeset.Parse(c.givenMems); a.manager.Spread(nodes) {
			free = append(free, c) // it was short, and the state file is lost
		} else {
			a.found(c, nodes)
		}
	}
	for _, c := range resized {
		a.refit(c)
	}
	for _, c := range free {
		_ = a.book(c) // refuses nothing that runs
		if !c.nodes.Empty() {
			placed++
		}
	}
	return placed
}

// inOrder sorts containers by pod and name.
func inOrder(containers []*container) []*container {
	return slices.SortedFunc(slices.Values(containers), func(x, y *container) int {
		return cmp.Or(cmp.Compare(keyOf(x.pod.Pod), keyOf(y.pod.Pod)), cmp.Compare(x.name, y.name))
	})
}

// found takes over a container without an entry on the nodes that it has.
func (a *Agent) found(c *container, nodes nodeset.Set) {
	c.nodes, c.short, c.byKubelet = nodes, nil, false
	_ = a.adopt(c, request(c), "found pinned") // its problems are logged, a running container is never refused
}

// keepBooking reports whether nothing has to be done for a container's booking: it has one, or may not have one.
func (a *Agent) keepBooking(c *container) bool {
	if reason := a.unpinnable(c); reason != "" {
		c.nodes, c.short, c.byKubelet, c.pinning = 0, nil, false, reason
		a.unbook(c)
		if !a.respect(c) {
			c.released = c.givenMems != ""
		}
		return true
	}
	blocks := a.manager.Blocks(keyOf(c.pod.Pod), c.name)
	if blocks == nil {
		return false
	}
	if c.pinning == "" {
		c.pinning = "pinned before this start of the plugin"
	}
	// The checkpoint wins over what the runtime shows: CRI-O shows the values of the creation after its own restart.
	c.nodes, c.short = nodesOf(blocks), nil
	return true
}

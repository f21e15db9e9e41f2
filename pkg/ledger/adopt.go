package ledger

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// takeOver makes a container known that the runtime already has, by what its files show and else by what the runtime
// shows.
func (l *Ledger) takeOver(p *pod, received Container, found Found) *container {
	files := found.Files[received.ID]
	values, mems := shown(received.Resources)
	if len(received.Resources.Unified) == 0 { // some runtimes do not show it
		values = files.over(values)
	}
	foundMems := mems
	if files.Mems != nil {
		foundMems = *files.Mems
	}
	if c := l.containers[received.ID]; c != nil && c.pod == p {
		c.Phase = received.State
		c.Seen = c.Seen || found.Seen[c.Cgroup]
		c.Record.Values, c.Record.Mems, c.FoundMems, c.Pending = values, mems, foundMems, nil
		if len(received.Resources.Unified) > 0 {
			c.Record.Unsure = FileSet{}
		}
		l.takeLimit(c, files.Limit)
		l.runtimeLimit(c, received, files)
		return c
	}
	c := p.named(received.Name)
	switch {
	case c == nil:
		c = p.addSlot(received.Name)
	case c.alive() && l.containers[c.ID] == c: // two of one name: the one that runs is it
		if c.Phase == Running && received.State != Running {
			return c
		}
		l.end(c)
	}
	received.Resources = withoutOurs(received.Resources, files.Ours)
	l.attach(c, received, received.State)
	c.Seen = found.Seen[c.Cgroup]
	l.takeLimit(c, files.Limit)
	c.Record.Values, c.Record.Mems, c.FoundMems = values, mems, foundMems
	c.Record.Ours, c.Record.OursMems = len(files.Ours) > 0, files.Ours[cgroup.CpusetMems]
	l.keepOffAgain(c, files)
	return c
}

// takeIn makes a container known whose creation was missed, by an event of its own.
func (l *Ledger) takeIn(p *pod, received Container, files *Files) *container {
	found := Found{}
	if files != nil {
		found.Files = map[string]Files{received.ID: *files}
	}
	c := l.takeOver(p, received, found)
	c.There, c.LimitIsPods = files != nil && files.Limit != nil, c.hasPodLimit()
	l.findShared(p)
	l.settleAllocations([]*container{c})
	if !l.state.Resolved.Config.DryRun {
		l.journalFound(c)
	}
	return c
}

// runtimeLimit takes the limit that the runtime shows for a container that is known: the exact bytes of what the file shows
// rounded to a page, and any where the file could not be read. CRI-O shows that of the creation after its own restart, and is
// believed where the file agrees only.
func (l *Ledger) runtimeLimit(c *container, received Container, files Files) {
	limit := limitOf(received.Resources.MemoryLimit)
	switch {
	case limit == 0 || limit == c.Limit:
		return
	case files.Limit == nil && strings.Contains(strings.ToLower(l.state.Runtime.Name), "cri-o"):
		return
	case files.Limit != nil && !memoryqos.Holds(*files.Limit, limit, l.page()):
		return
	}
	c.setLimit(limit)
	c.Resources.MemoryLimit = received.Resources.MemoryLimit
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

// settleAllocations gives running containers their allocations: those with an entry keep it, those with a cpuset.mems are
// taken over as they are, then those that were resized meanwhile are fitted, and last the others are placed. The order
// does not depend on the runtime's. It returns how many were placed.
func (l *Ledger) settleAllocations(taken []*container) (placed int) {
	var resized, spread, free []*container
	for _, c := range inOrder(taken) {
		if l.keepAllocation(c) {
			if l.misfits(c) {
				resized = append(resized, c)
			}
			continue
		}
		nodes, err := nodeset.Parse(c.FoundMems)
		switch {
		case err != nil, nodes.Empty(), c.Released, len(request(c)) == 0 && !l.asWhole(c.pod):
			free = append(free, c)
		case l.manager.Spread(nodes):
			spread = append(spread, c)
		default:
			l.found(c, nodes)
		}
	}
	for _, c := range spread { // others may have made all nodes one group
		if nodes, _ := nodeset.Parse(c.FoundMems); l.manager.Spread(nodes) {
			free = append(free, c) // it was short, and the state file is lost
		} else {
			l.found(c, nodes)
		}
	}
	for _, c := range resized {
		l.refit(c)
	}
	for _, c := range free {
		_ = l.allocate(c) // refuses nothing that runs
		if !c.Nodes.Empty() {
			placed++
		}
	}
	return placed
}

// inOrder sorts containers by pod and name.
func inOrder(containers []*container) []*container {
	return slices.SortedFunc(slices.Values(containers), func(x, y *container) int {
		return cmp.Or(cmp.Compare(x.pod.key(), y.pod.key()), cmp.Compare(x.Name, y.Name))
	})
}

// found takes over a container without an entry on the nodes that it has.
func (l *Ledger) found(c *container, nodes nodeset.Set) {
	c.Placement = Placement{Nodes: nodes, Pinning: c.Pinning}
	_ = l.adopt(c, request(c), "found pinned") // its problems are logged, a running container is never refused
}

// keepAllocation reports whether nothing has to be done for a container's allocation: it has one, or may not have one.
func (l *Ledger) keepAllocation(c *container) bool {
	if c.byClaims() {
		_ = l.allocateByClaims(c) // refuses nothing that runs
		return true
	}
	if reason := l.unpinnable(c); reason != "" {
		c.Placement = Placement{Pinning: reason}
		l.release(c)
		if !l.respect(c) {
			c.Released = c.Released || c.FoundMems != "" && c.Record.OursMems
		}
		return true
	}
	blocks := l.manager.Blocks(c.pod.key(), c.Name)
	if blocks == nil {
		return false
	}
	if !c.ByKubelet {
		l.manager.MakeEven(l.wanted(c))
	}
	if c.Pinning == "" {
		c.Pinning = "pinned before this start of the plugin"
	}
	// The checkpoint wins over what the runtime shows: CRI-O shows the values of the creation after its own restart.
	c.Nodes, c.Short = l.storedNodes(c, nodesOf(blocks)), nil
	return true
}

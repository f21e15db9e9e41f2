package ledger

import (
	"maps"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// observeFound adds or updates a container that the runtime already has. Its files say what it holds; if they were not read, the runtime's
// record does.
func (l *Ledger) observeFound(p *pod, received Container, found Found) *container {
	files := found.Files[received.ID]
	values, mems := runtimeValues(received.Resources), received.Resources.Mems
	if len(received.Resources.Unified) == 0 { // some runtimes do not show it
		values = files.applyTo(values)
	}
	foundMems := mems
	if files.Mems != nil && (mems == "" || files.Journaled[cgroup.CpusetMems] || !l.mayUseAllNodes(received, &files)) {
		foundMems = *files.Mems
	}
	if c := l.containers[received.ID]; c != nil && c.pod == p {
		c.Unanswered = c.Unanswered || c.Phase == Creating && mems != c.Record.Mems // the answer came too late
		values.OOMGroup = c.Record.Values.OOMGroup                                  // this file is not read
		c.remembered = len(received.Resources.Unified) == 0 && c.Phase != Creating  // else the runtime may not have read the answer
		if c.remembered {
			values = c.Record.Values
		}
		c.Phase = received.State
		c.Seen = c.Seen || found.Seen[c.Cgroup]
		c.Record.Values, c.Record.Mems, c.FoundMems, c.Pending = values, mems, foundMems, nil
		c.Record.Unsure = c.Record.unsure(received.Resources)
		c.Own = c.Own || files.Own
		l.observeLimit(c, files.Limit)
		l.runtimeLimit(c, received, files)
		return c
	}
	c := p.container(received.Name)
	switch {
	case c == nil:
		c = p.addSlot(received.Name)
	case c.alive() && l.containers[c.ID] == c: // two with one name: the running one counts
		if c.Phase == Running && received.State != Running {
			return c
		}
		l.end(c)
	}
	shown := received.Resources
	received.Resources = l.withoutOurs(received, &files)
	writtenMems := files.Journaled[cgroup.CpusetMems] || shown.Mems != received.Resources.Mems
	written := writtenMems || len(files.Journaled) > 0 || !maps.Equal(shown.Unified, received.Resources.Unified)
	received.Resources.OOMGroup = "" // it may be this plugin's value from before a rollback
	l.attach(c, received, received.State)
	c.NoOOMScore = l.withoutScore(c)
	c.Seen, c.Own = found.Seen[c.Cgroup], files.Own
	l.observeLimit(c, files.Limit)
	c.Record.Values, c.Record.Mems, c.FoundMems = values, mems, foundMems
	c.Unanswered = len(files.Journaled) == 0 && foundMems == "" && values.Min == nil && values.Low == nil && values.High == nil
	c.Record.Written, c.Record.WrittenMems = written, writtenMems
	c.Record.Unsure = c.Record.unsure(received.Resources)
	return c
}

// unsure are the files of which the runtime may have an old value of this plugin, which it would write with the next update.
func (r Record) unsure(shown Resources) FileSet {
	if len(shown.Unified) > 0 {
		return FileSet{}
	}
	u := r.Unsure
	if r.Written {
		u.Min, u.Low, u.High = true, true, true
	}
	return u
}

// addMissed adds a container whose creation was missed, from a later event about it.
func (l *Ledger) addMissed(p *pod, received Container, files *Files) *container {
	found := Found{}
	if files != nil {
		found.Files = map[string]Files{received.ID: *files}
	}
	c := l.observeFound(p, received, found)
	c.Present, c.LimitIsPods = files != nil && files.Limit != nil, c.hasPodLimit()
	l.findShared(p)
	l.placeAll([]*container{c})
	if !l.state.Resolved.Config.DryRun() {
		l.journalFound(c)
	}
	return c
}

// runtimeLimit takes over the limit that the runtime shows for a known container, if its file shows the same rounded to a page, could not be
// read, or has lost it with its controller. After its own restart CRI-O shows the limit of the creation, so its limit counts only if the file agrees.
func (l *Ledger) runtimeLimit(c *container, received Container, files Files) {
	limit, unread := limitOf(received.Resources.MemoryLimit), files.Limit == nil || *files.Limit == cgroup.Max
	switch {
	case limit == 0 || limit == c.Limit:
		return
	case unread && strings.Contains(strings.ToLower(l.state.Runtime.Name), "cri-o"):
		return
	case !unread && !memoryqos.Holds(*files.Limit, limit, l.page()):
		return
	}
	c.setLimit(limit)
	c.Resources.MemoryLimit = received.Resources.MemoryLimit
}

// runtimeValues returns the values in the runtime's record of a container, including those that this plugin has set.
func runtimeValues(r Resources) memoryqos.Values {
	return memoryqos.Values{Min: recorded(r, cgroup.MemoryMin), Low: recorded(r, cgroup.MemoryLow), High: recorded(r, cgroup.MemoryHigh)}
}

// recorded returns the value in bytes that the runtime's record has for a file; nil if that is the kernel's default, or not a value that the
// kernel accepts.
func recorded(r Resources, knob cgroup.Knob) *uint64 {
	bytes, err := strconv.ParseUint(r.Unified[string(knob)], 10, 64)
	if err != nil || bytes == knob.Default() { // err: "max", or no number
		return nil
	}
	return &bytes
}

// withoutOurs removes the values that this plugin has set, which the runtime shows in the same place as the kubelet's: an estimate from our own
// memory.low would be mistaken for the kubelet's. These are all journaled values. The runtime's record also keeps values over a rollback: if the
// file of a running container holds the kernel's default, the recorded value is an old one, and so are nodes if the file has all. Another
// memory.high in the file is the kubelet's, which a rollback has given back. A cgroup without processes tells nothing.
func (l *Ledger) withoutOurs(shown Container, files *Files) Resources {
	r, runs := shown.Resources, shown.State == Running && !files.Empty
	r.Unified = maps.Clone(r.Unified)
	for knob, held := range map[cgroup.Knob]*uint64{cgroup.MemoryMin: files.Min, cgroup.MemoryLow: files.Low, cgroup.MemoryHigh: files.High} {
		if runs && held != nil && *held == knob.Default() && recorded(r, knob) != nil {
			delete(r.Unified, string(knob))
		}
	}
	if high := recorded(r, cgroup.MemoryHigh); runs && high != nil && files.High != nil && !memoryqos.Holds(*files.High, *high, l.page()) {
		r.Unified[string(cgroup.MemoryHigh)] = cgroup.FormatLimit(*files.High)
	}
	for knob := range files.Journaled {
		delete(r.Unified, string(knob))
	}
	if files.Journaled[cgroup.CpusetMems] || l.mayUseAllNodes(shown, files) {
		r.Mems = ""
	}
	return r
}

// mayUseAllNodes reports whether the cpuset.mems of a running container has all nodes: a rollback leaves it so.
func (l *Ledger) mayUseAllNodes(shown Container, files *Files) bool {
	return shown.State == Running && !files.Empty && files.Mems != nil && l.hasAllNodes(*files.Mems)
}

// hasAllNodes reports whether a cpuset.mems lists all NUMA nodes with memory.
func (l *Ledger) hasAllNodes(mems string) bool {
	nodes, err := nodeset.Parse(mems)
	return err == nil && !l.allNodes.Empty() && l.allNodes.SubsetOf(nodes)
}

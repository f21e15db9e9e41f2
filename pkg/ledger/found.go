package ledger

import (
	"maps"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// observeFound makes a container known that the runtime already has, by what its files show and else by what the runtime
// shows.
func (l *Ledger) observeFound(p *pod, received Container, found Found) *container {
	files := found.Files[received.ID]
	values, mems := shown(received.Resources), received.Resources.Mems
	if len(received.Resources.Unified) == 0 { // some runtimes do not show it
		values = files.over(values)
	}
	foundMems := mems
	if files.Mems != nil {
		foundMems = *files.Mems
	}
	if c := l.containers[received.ID]; c != nil && c.pod == p {
		c.Unanswered = c.Unanswered || c.Phase == Creating && mems != c.Record.Mems // it was decided, and too late
		c.Phase = received.State
		c.Seen = c.Seen || found.Seen[c.Cgroup]
		values.OOMGroup = c.Record.Values.OOMGroup // is not read
		c.Record.Values, c.Record.Mems, c.FoundMems, c.Pending = values, mems, foundMems, nil
		if len(received.Resources.Unified) > 0 {
			c.Record.Unsure = FileSet{}
		}
		c.Own = c.Own || files.Own
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
	received.Resources.OOMGroup = "" // it may be ours of before a rollback: the file says what was there before
	l.attach(c, received, received.State)
	c.Seen, c.Own = found.Seen[c.Cgroup], files.Own
	l.takeLimit(c, files.Limit)
	c.Record.Values, c.Record.Mems, c.FoundMems = values, mems, foundMems
	c.Unanswered = len(files.Ours) == 0 && foundMems == "" && values.Min == nil && values.Low == nil && values.High == nil
	c.Record.Ours, c.Record.OursMems = len(files.Ours) > 0, files.Ours[cgroup.CpusetMems]
	return c
}

// takeIn makes a container known whose creation was missed, by an event of its own.
func (l *Ledger) takeIn(p *pod, received Container, files *Files) *container {
	found := Found{}
	if files != nil {
		found.Files = map[string]Files{received.ID: *files}
	}
	c := l.observeFound(p, received, found)
	c.There, c.LimitIsPods = files != nil && files.Limit != nil, c.hasPodLimit()
	l.findShared(p)
	l.placeAll([]*container{c})
	if !l.state.Resolved.Config.DryRun() {
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
func shown(r Resources) memoryqos.Values {
	read := func(knob cgroup.Knob) *uint64 {
		bytes, err := strconv.ParseUint(r.Unified[string(knob)], 10, 64)
		if err != nil || bytes == knob.Default() { // "max", or nothing that the kernel would have taken
			return nil
		}
		return &bytes
	}
	return memoryqos.Values{Min: read(cgroup.MemoryMin), Low: read(cgroup.MemoryLow), High: read(cgroup.MemoryHigh)}
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

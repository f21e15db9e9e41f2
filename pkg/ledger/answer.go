package ledger

import (
	"maps"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// adjustment is what a new container gets, of which the runtime's record has nothing yet.
func (r *derivedRun) adjustment() Adjustment { return (&Record{}).answer(r, Resources{}) }

// answer is what the runtime's record lacks, or may lack, of what the container should have, and what the kubelet asks for otherwise.
func (r *Record) answer(now *derivedRun, asked Resources) Adjustment {
	a := Adjustment{Unified: changes(r.Values, now.values, asked.Unified, r.Unsure)}
	if text := r.oomGroup(now, asked.OOMGroup); text != "" {
		a.Unified = withOOMGroup(a.Unified, text)
	}
	if now.mems != r.Mems || r.Unsure.Mems || asked.Mems != "" && asked.Mems != now.mems {
		a.CpusetMems = now.mems
	}
	return a
}

// oomGroup is the memory.oom.group to be written, as with changes; "" is none. A container that must not have ours any more gets the
// kubelet's back. Where that is not known, the runtime is not asked: pkg/protect writes the file, and finds there what was before.
func (r *Record) oomGroup(now *derivedRun, asked string) string {
	text := now.oomGroup
	if wanted := now.values.OOMGroup; wanted != nil {
		text = cgroup.FormatLimit(*wanted)
	}
	foreign := asked != "" && asked != text
	if now.oomGroup == "" || equal(r.Values.OOMGroup, now.values.OOMGroup) && !foreign && !r.Unsure.OOMGroup {
		return ""
	}
	return text
}

// withOOMGroup adds memory.oom.group to files, which may be shared.
func withOOMGroup(files map[string]string, text string) map[string]string {
	all := make(map[string]string, len(files)+1)
	maps.Copy(all, files)
	all[string(cgroup.MemoryOOMGroup)] = text
	return all
}

// FileSet are some of the files of a container.
type FileSet struct{ Min, Low, High, Mems, OOMGroup bool }

// also adds the files of an adjustment.
func (f FileSet) also(a Adjustment) FileSet {
	has := func(knob cgroup.Knob) bool { _, there := a.Unified[string(knob)]; return there }
	return FileSet{
		f.Min || has(cgroup.MemoryMin), f.Low || has(cgroup.MemoryLow), f.High || has(cgroup.MemoryHigh), f.Mems || a.CpusetMems != "",
		f.OOMGroup || has(cgroup.MemoryOOMGroup),
	}
}

// changes are the files to be written so that a container that has given holds wanted. What shown (the unified map of a
// request) sets otherwise is set again, and so is what is unsure. nil when there are none.
func changes(given, wanted memoryqos.Values, shown map[string]string, unsure FileSet) map[string]string {
	var files map[string]string
	put := func(knob cgroup.Knob, given, wanted *uint64, unsure bool) {
		text := cgroup.Default(string(knob))
		if wanted != nil {
			text = cgroup.FormatLimit(*wanted)
		}
		other, set := shown[string(knob)]
		foreign := set && wanted != nil && other != text
		if equal(given, wanted) && !foreign && !unsure {
			return
		}
		if files == nil {
			files = make(map[string]string, 3)
		}
		files[string(knob)] = text
	}
	put(cgroup.MemoryMin, given.Min, wanted.Min, unsure.Min)
	put(cgroup.MemoryLow, given.Low, wanted.Low, unsure.Low)
	put(cgroup.MemoryHigh, given.High, wanted.High, unsure.High)
	return files
}

// journalFound has the journal know the values of a container that was found, also those that it has already: the journal
// may have been lost. For the same reason only what is not ours counts as the kubelet's.
func (l *Ledger) journalFound(c *container) {
	others := maps.Clone(c.Resources.Unified)
	now := l.deriveRun(c)
	for _, values := range []memoryqos.Values{now.qos, now.values} {
		for file, text := range changes(memoryqos.Values{}, values, nil, FileSet{}) {
			if others[file] == text {
				delete(others, file)
			}
		}
	}
	l.journal(c, now.adjustment(), others, nil)
}

// journalRecord has the journal know, in a dry run, what the runtime may just have written of its record: what was ours before.
func (l *Ledger) journalRecord(c *container) {
	if !c.Record.Ours || !l.state.Resolved.Config.DryRun() {
		return
	}
	had := Adjustment{Unified: changes(memoryqos.Values{}, c.Record.Values, nil, FileSet{})}
	if group := c.Record.Values.OOMGroup; group != nil {
		had.Unified = withOOMGroup(had.Unified, cgroup.FormatLimit(*group))
	}
	if c.Record.OursMems {
		had.CpusetMems = c.Record.Mems
	}
	maps.DeleteFunc(had.Unified, func(file, text string) bool { return c.Resources.Unified[file] == text })
	l.journal(c, had, c.Resources.Unified, nil)
}

// journal has the journal know what an answer or an update writes in a container's cgroup, so that rollback restores it.
// asked are the values that the kubelet wants there, where they are new to the journal; wanted replaces those.
func (l *Ledger) journal(c *container, adjustment Adjustment, asked, wanted map[string]string) {
	if c.Cgroup == "" || adjustment.Empty() && len(wanted) == 0 {
		return
	}
	if _, has := adjustment.Unified[string(cgroup.MemoryOOMGroup)]; has {
		asked, wanted = withOOMGroup(asked, c.Resources.OOMGroup), withOOMGroup(wanted, c.Resources.OOMGroup)
	}
	l.step.effects.Journal = append(l.step.effects.Journal, Journaled{
		Cgroup: c.Cgroup, Adjustment: adjustment, Asked: asked, Wanted: wanted,
	})
}

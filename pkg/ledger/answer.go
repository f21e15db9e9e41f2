package ledger

import (
	"maps"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// adjustment returns what to set for a new container: the runtime's record has nothing of it yet.
func (r *derivedRun) adjustment() Adjustment { return (&Record{}).answer(r, Resources{}) }

// answer returns what the runtime has to write so that its record holds the desired values. Where the kubelet's request sets another value,
// or the record is not known, the value is written again.
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

// oomGroup returns the memory.oom.group to write; "" writes nothing. When this plugin no longer sets it, the kubelet's value is restored.
// If that is not known, the runtime is not asked: pkg/protect restores the file from its journal.
func (r *Record) oomGroup(now *derivedRun, asked string) string {
	text := now.oomGroup
	if wanted := now.values.OOMGroup; wanted != nil {
		text = cgroup.FormatLimit(*wanted)
	}
	foreign := asked != "" && asked != text
	if now.oomGroup == "" || sameValue(r.Values.OOMGroup, now.values.OOMGroup) && !foreign && !r.Unsure.OOMGroup {
		return ""
	}
	return text
}

// withOOMGroup adds memory.oom.group to a copy of files.
func withOOMGroup(files map[string]string, text string) map[string]string {
	all := make(map[string]string, len(files)+1)
	maps.Copy(all, files)
	all[string(cgroup.MemoryOOMGroup)] = text
	return all
}

// FileSet is a subset of a container's files.
type FileSet struct{ Min, Low, High, Mems, OOMGroup bool }

// plus adds the files of an adjustment.
func (f FileSet) plus(a Adjustment) FileSet {
	has := func(knob cgroup.Knob) bool { _, ok := a.Unified[string(knob)]; return ok }
	return FileSet{
		f.Min || has(cgroup.MemoryMin), f.Low || has(cgroup.MemoryLow), f.High || has(cgroup.MemoryHigh), f.Mems || a.CpusetMems != "",
		f.OOMGroup || has(cgroup.MemoryOOMGroup),
	}
}

// changes returns the files to write so that a container that holds given will hold wanted. A file is also written if shown (the unified
// map of a request) sets another value, or if it is unsure. It returns nil if there is nothing to write.
func changes(given, wanted memoryqos.Values, shown map[string]string, unsure FileSet) map[string]string {
	var files map[string]string
	put := func(knob cgroup.Knob, given, wanted *uint64, unsure bool) {
		text := cgroup.Default(string(knob))
		if wanted != nil {
			text = cgroup.FormatLimit(*wanted)
		}
		other, set := shown[string(knob)]
		foreign := set && wanted != nil && other != text
		if sameValue(given, wanted) && !foreign && !unsure {
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

// journalFound journals the values of a container that was found, including the values that it holds already, because the journal may have
// been lost. A value that this plugin would set does not count as the kubelet's.
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

// journalRecord journals, in a dry run, the values of this plugin that the runtime may just have written from its record.
func (l *Ledger) journalRecord(c *container) {
	if !c.Record.Written || !l.state.Resolved.Config.DryRun() {
		return
	}
	had := Adjustment{Unified: changes(memoryqos.Values{}, c.Record.Values, nil, FileSet{})}
	if group := c.Record.Values.OOMGroup; group != nil {
		had.Unified = withOOMGroup(had.Unified, cgroup.FormatLimit(*group))
	}
	if c.Record.WrittenMems {
		had.CpusetMems = c.Record.Mems
	}
	maps.DeleteFunc(had.Unified, func(file, text string) bool { return c.Resources.Unified[file] == text })
	l.journal(c, had, c.Resources.Unified, nil)
}

// journal adds what an answer or an update writes in a container's cgroup to the journal, so that a rollback can restore it. asked are the
// kubelet's values for files that the journal does not have yet; wanted replaces those that it has.
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

package protect

import (
	"slices"
	"testing"
)

// A file keeps what must never be lost, in every state that events lead to.
func TestAFileForgetsNothingOfOurs(t *testing.T) {
	type state struct {
		aim        goal
		knows      status
		ours       bool
		want, have uint64
	}
	events := map[string]func(*file){
		"desire": func(f *file) { f.desire(1, false) }, "desire another": func(f *file) { f.desire(2, true) },
		"release": func(f *file) { f.release(0) }, "leave": (*file).ignore,
		"await the runtime": (*file).awaitRuntime, "compare": (*file).runtimeWrote,
		"read": func(f *file) { f.observe(1, false) }, "read the default": func(f *file) { f.observe(0, true) }, "unreadable": (*file).readFailed,
		"begin": (*file).beginWrite, "wrote": func(f *file) { f.wrote(1) }, "wrote the default": func(f *file) { f.wrote(0) }, "failed": (*file).writeFailed,
		"restored": (*file).restored, "end": func(f *file) { f.setGoal(dropped, unread) },
	}
	seen := map[state]bool{}
	var visit func(f file)
	visit = func(f file) {
		before := state{f.goal, f.status, f.owned, f.want, f.have}
		if seen[before] {
			return
		}
		seen[before] = true
		ours := f.goal == restoring || f.goal == managed && (f.owned || f.status == firstWrite || f.status == runtimeWrites)
		for event, happen := range events {
			after := f
			switch event { // what cannot happen
			case "read", "read the default":
				if !f.compared() {
					continue
				}
			case "begin":
				if f.done() || !f.compared() {
					continue
				}
			case "restored":
				if f.goal != restoring || f.status != confirmed {
					continue
				}
			case "desire", "desire another", "release", "await the runtime":
				if f.goal == dropped {
					continue
				}
			}
			happen(&after)
			is := func(names ...string) bool { return slices.Contains(names, event) }
			switch {
			case f.goal == dropped && after.goal != dropped:
				t.Errorf("%s on %+v: the row has ended", event, before)
			case ours && (after.goal == unmanaged || after.goal == managed && !after.owned && after.status < firstWrite && after.status != runtimeWrites) &&
				!is("leave", "restored", "end") && !(f.status == firstWrite && event == "failed"):
				t.Errorf("%s on %+v leads to %+v, though a value of ours may be in the file", event, before, after)
			case after.goal == unmanaged && after.owned:
				t.Errorf("%s on %+v leads to %+v, though nothing of ours is desired there", event, before, after)
			case f.goal == managed && !f.owned && f.known() && event == "release" && after.goal != unmanaged:
				t.Errorf("%s on %+v leads to %+v, though only others have written", event, before, after)
			case f.goal == restoring && after.goal != restoring && !is("desire", "desire another", "restored", "end"):
				t.Errorf("%s on %+v leads to %+v, though the file has to go back", event, before, after)
			case f.status == runtimeWrites && after.status != runtimeWrites && !is("compare", "leave", "end"):
				t.Errorf("%s on %+v leads to %+v, though the runtime is about to write", event, before, after)
			case is("failed", "unreadable") && after.known():
				t.Errorf("%s on %+v leads to %+v, though nobody knows what it holds", event, before, after)
			case after.known() && after.status != differs && after.have != after.want:
				t.Errorf("%s on %+v leads to %+v, though the file holds another value", event, before, after)
			}
			visit(after)
		}
	}
	visit(file{})
	if len(seen) < 14 {
		t.Errorf("there are %d states", len(seen))
	}
}

package protect

import (
	"slices"
	"testing"
)

// A file keeps what must never be lost, in every state that events lead to.
func TestAFileForgetsNothingOfOurs(t *testing.T) {
	type state struct {
		aim        aim
		knows      knowledge
		ours       bool
		want, have uint64
	}
	events := map[string]func(*file){
		"desire": func(f *file) { f.desire(1, false) }, "desire another": func(f *file) { f.desire(2, true) },
		"undesire": func(f *file) { f.undesire(0) }, "leave": (*file).leave,
		"announce": (*file).announce, "compare": (*file).compare,
		"read": func(f *file) { f.is(1, false) }, "read the default": func(f *file) { f.is(0, true) }, "unreadable": (*file).unreadable,
		"begin": (*file).begin, "wrote": func(f *file) { f.returned(1) }, "wrote the default": func(f *file) { f.returned(0) }, "failed": (*file).failed,
		"confirm": (*file).confirm, "end": func(f *file) { f.toward(over, unread) },
	}
	seen := map[state]bool{}
	var visit func(f file)
	visit = func(f file) {
		before := state{f.aim, f.knows, f.ours, f.want, f.have}
		if seen[before] {
			return
		}
		seen[before] = true
		ours := f.aim == back || f.aim == wanted && (f.ours || f.knows == begun || f.knows == announced)
		for event, happen := range events {
			after := f
			switch event { // what cannot happen
			case "read", "read the default":
				if !f.compared() {
					continue
				}
			case "begin":
				if f.settled() || !f.compared() {
					continue
				}
			case "confirm":
				if f.aim != back || f.knows != held {
					continue
				}
			case "desire", "desire another", "undesire", "announce":
				if f.aim == over {
					continue
				}
			}
			happen(&after)
			is := func(names ...string) bool { return slices.Contains(names, event) }
			switch {
			case f.aim == over && after.aim != over:
				t.Errorf("%s on %+v: the row has ended", event, before)
			case ours && (after.aim == alone || after.aim == wanted && !after.ours && after.knows < begun && after.knows != announced) &&
				!is("leave", "confirm", "end") && !(f.knows == begun && event == "failed"):
				t.Errorf("%s on %+v leads to %+v, though a value of ours may be in the file", event, before, after)
			case after.aim == alone && after.ours:
				t.Errorf("%s on %+v leads to %+v, though nothing of ours is desired there", event, before, after)
			case f.aim == wanted && !f.ours && f.known() && event == "undesire" && after.aim != alone:
				t.Errorf("%s on %+v leads to %+v, though only others have written", event, before, after)
			case f.aim == back && after.aim != back && !is("desire", "desire another", "confirm", "end"):
				t.Errorf("%s on %+v leads to %+v, though the file has to go back", event, before, after)
			case f.knows == announced && after.knows != announced && !is("compare", "leave", "end"):
				t.Errorf("%s on %+v leads to %+v, though the runtime is about to write", event, before, after)
			case is("failed", "unreadable") && after.known():
				t.Errorf("%s on %+v leads to %+v, though nobody knows what it holds", event, before, after)
			case after.known() && after.knows != differs && after.have != after.want:
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

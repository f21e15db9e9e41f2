package protect

import (
	"fmt"
	"strings"
	"testing"
)

func init() {
	impossible = func(s state, e event) { panic(fmt.Sprintf("event %s in state %s", eventNames[e], stateNames[s])) }
}

var stateNames = [states]string{
	never: "-", ended: "ended", alone: "alone", unread: "unread", differs: "differs", found: "found", begun: "begun",
	unsure: "unsure", changed: "changed", held: "held", announced: "announced",
	backUnsure: "bUnsure", backDiffers: "bDiffers", backHeld: "bHeld", backAnnounced: "bAnnounced",
}

var eventNames = [events]string{
	desire: "desire", undesire: "undesire", leave: "leave", orphan: "orphan", announce: "announce", compare: "compare",
	readOther: "readOther", readHeld: "readHeld", readUntold: "readUntold", unknown: "unknown",
	begin: "begin", wrote: "wrote", wroteOld: "wroteOld", fail: "fail", confirm: "confirm", end: "end",
}

// every is the whole table: a line for each state, a column for each event, - for what cannot happen. A mark says what else the
// transition means: ! another writer changed the file, ? somebody should have written it, > systemd is to hold the value.
const every = `
state      desire    undesire   leave orphan  announce   compare  readOther  readHeld readUntold unknown    begin    wrote      wroteOld   fail       confirm end
ended      -         -          -     -       -          -        -          -        -          -          -        ended      ended      ended      -       -
alone      unread    alone      alone bUnsure alone      alone    -          -        -          alone      -        alone      alone      alone      -       ended
unread     unread    alone      alone -       announced  unread   differs?   held     found      unread     begun    held>      unsure     unread     -       ended
differs    differs   alone      alone -       announced  differs  differs    held     found      unread     begun    held>      unsure     unread     -       ended
found      differs   alone      alone -       announced  found    differs    held     found      unread     begun    held>      unsure     unread     -       ended
begun      begun     bUnsure    alone -       announced  begun    begun      held     begun      begun      begun    held>      unsure     unread     -       ended
unsure     unsure    bUnsure    alone -       announced  unsure   changed?   held     held       unsure     unsure   held>      unsure     unsure     -       ended
changed    changed   bDiffers   alone -       announced  changed  changed    held     held       unsure     changed  held>      unsure     unsure     -       ended
held       changed   bDiffers   alone -       announced  held     changed!   held     held       unsure     -        held>      unsure     unsure     -       ended
announced  announced bAnnounced alone -       announced  unsure   -          -        -          announced  -        announced  announced  announced  -       ended
bUnsure    unsure    bUnsure    -     -       bAnnounced bUnsure  bDiffers   bDiffers bDiffers   bUnsure    bUnsure  bHeld>     bUnsure    bUnsure    -       ended
bDiffers   changed   bDiffers   -     -       bAnnounced bDiffers bDiffers   bDiffers bDiffers   bUnsure    bDiffers bHeld>     bUnsure    bUnsure    -       ended
bHeld      changed   bHeld      -     -       bAnnounced bHeld    bDiffers!  bHeld    bHeld      bUnsure    -        bHeld>     bUnsure    bUnsure    alone   ended
bAnnounced announced bAnnounced -     -       bAnnounced bUnsure  -          -        -          bAnnounced -        bAnnounced bAnnounced bAnnounced -       ended
`

func TestEveryEventInEveryState(t *testing.T) {
	marks := map[effect]string{externalChange: "!", missing: "?", tell: ">"}
	lines := strings.Split(strings.TrimSpace(every), "\n")
	if len(lines) != int(states) || len(strings.Fields(lines[0])) != int(events)+1 {
		t.Fatalf("%d states and %d events have to be in the table", states-1, events)
	}
	for s := ended; s < states; s++ {
		want := strings.Fields(lines[s])
		if want[0] != stateNames[s] || len(want) != int(events)+1 {
			t.Fatalf("the line of %s is %q", stateNames[s], lines[s])
		}
		for e := range events {
			got := stateNames[transitions[s][e]] + marks[effectOf(s, e)]
			if got != want[e+1] {
				t.Errorf("%s in state %s: %s, want %s", eventNames[e], want[0], got, want[e+1])
			}
		}
	}
}

// The table keeps what must never be lost.
func TestTheTableForgetsNothingOfOurs(t *testing.T) {
	ours := func(s state) bool { return s >= begun }
	for s := ended; s < states; s++ {
		for e := range events {
			next := transitions[s][e]
			what := fmt.Sprintf("%s in state %s: %s", eventNames[e], stateNames[s], stateNames[next])
			if next == never {
				continue
			}
			if s == ended && next != ended {
				t.Errorf("%s, though the row has ended", what)
			}
			gives := e == confirm || e == leave || e == end || s == begun && e == fail
			if ours(s) && !ours(next) && !gives {
				t.Errorf("%s, though a value of ours may be in the file", what)
			}
			if s.back() && !next.back() && e != desire && e != confirm && e != end {
				t.Errorf("%s, though the file has to go back", what)
			}
			if works[s] == wait && works[next] != wait && e != compare && e != leave && e != end {
				t.Errorf("%s, though the runtime is about to write", what)
			}
			if e == wrote && s.compared() && works[next] != rest {
				t.Errorf("%s, though the file holds what is desired", what)
			}
			if (e == fail || e == unknown) && next.known() {
				t.Errorf("%s, though nobody knows what it holds", what)
			}
		}
	}
}

func TestARowThatHasEndedStaysSo(t *testing.T) {
	for e := range rowEvents {
		if next := rowTransitions[finished][e]; next != finished {
			t.Errorf("event %d leads to %d", e, next)
		}
		for s := range rowStates {
			if next := rowTransitions[s][e]; s != finished && (next == finished) != (e == dropped) {
				t.Errorf("event %d in state %d leads to %d", e, s, next)
			}
		}
	}
}

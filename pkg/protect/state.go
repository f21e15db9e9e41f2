package protect

import "time"

// A state is what is known of one file of a cgroup, beside what is desired of it.
type state uint8

const (
	never state = iota // no state: in the table of transitions, what cannot happen

	ended // the cgroup's row has ended: what is still heard of the file is dropped
	alone // no value is desired

	// A value is desired, and none of ours was in the file.
	unread  // what it holds is not known
	differs // it holds another value
	found   // it holds the value, which we have not written: systemd may not hold it
	begun   // our first value is being written

	// A value is desired, and one of ours is or was in the file.
	unsure
	changed // it holds another value
	held
	announced // the runtime is about to write it

	// The file goes back to the kernel's default.
	backUnsure
	backDiffers // or systemd does
	backHeld    // until systemd has confirmed it, and crun's cgroup inside holds it too
	backAnnounced

	states
)

// An event is what happens to one file.
type event uint8

const (
	desire     event = iota // a value
	undesire                // the kernel's default is to return
	leave                   // no value is desired, and there is no default to return to
	orphan                  // the journal has the file: an earlier run wrote it
	announce                // the runtime is about to write what is desired
	compare                 // it should have written
	readOther               // the file was read, and holds another value than the desired
	readHeld                // it holds the desired value, and systemd does as well
	readUntold              // it holds the desired value, which systemd may not hold
	unknown                 // it could not be read
	begin                   // a write begins
	wrote                   // it has returned, and its value is the desired one
	wroteOld                // it has returned, and another value is desired by now
	fail                    // it has failed
	confirm                 // nothing can overwrite the default any more
	end                     // the row ends
	events
)

// transitions is the next state of a file.
var transitions = [states][events]state{
	ended: {wrote: ended, wroteOld: ended, fail: ended},
	alone: {
		desire: unread, undesire: alone, leave: alone, orphan: backUnsure, announce: alone, compare: alone,
		unknown: alone, wrote: alone, wroteOld: alone, fail: alone, end: ended,
	},
	unread: {
		desire: unread, undesire: alone, leave: alone, announce: announced, compare: unread,
		readOther: differs, readHeld: held, readUntold: found, unknown: unread,
		begin: begun, wrote: held, wroteOld: unsure, fail: unread, end: ended,
	},
	differs: {
		desire: differs, undesire: alone, leave: alone, announce: announced, compare: differs,
		readOther: differs, readHeld: held, readUntold: found, unknown: unread,
		begin: begun, wrote: held, wroteOld: unsure, fail: unread, end: ended,
	},
	found: {
		desire: differs, undesire: alone, leave: alone, announce: announced, compare: found,
		readOther: differs, readHeld: held, readUntold: found, unknown: unread,
		begin: begun, wrote: held, wroteOld: unsure, fail: unread, end: ended,
	},
	begun: {
		desire: begun, undesire: backUnsure, leave: alone, announce: announced, compare: begun,
		readOther: begun, readHeld: held, readUntold: begun, unknown: begun,
		begin: begun, wrote: held, wroteOld: unsure, fail: unread, end: ended,
	},
	unsure: {
		desire: unsure, undesire: backUnsure, leave: alone, announce: announced, compare: unsure,
		readOther: changed, readHeld: held, readUntold: held, unknown: unsure,
		begin: unsure, wrote: held, wroteOld: unsure, fail: unsure, end: ended,
	},
	changed: {
		desire: changed, undesire: backDiffers, leave: alone, announce: announced, compare: changed,
		readOther: changed, readHeld: held, readUntold: held, unknown: unsure,
		begin: changed, wrote: held, wroteOld: unsure, fail: unsure, end: ended,
	},
	held: {
		desire: changed, undesire: backDiffers, leave: alone, announce: announced, compare: held,
		readOther: changed, readHeld: held, readUntold: held, unknown: unsure,
		wrote: held, wroteOld: unsure, fail: unsure, end: ended,
	},
	announced: {
		desire: announced, undesire: backAnnounced, leave: alone, announce: announced, compare: unsure,
		unknown: announced, wrote: announced, wroteOld: announced, fail: announced, end: ended,
	},
	backUnsure: {
		desire: unsure, undesire: backUnsure, announce: backAnnounced, compare: backUnsure,
		readOther: backDiffers, readHeld: backDiffers, readUntold: backDiffers, unknown: backUnsure,
		begin: backUnsure, wrote: backHeld, wroteOld: backUnsure, fail: backUnsure, end: ended,
	},
	backDiffers: {
		desire: changed, undesire: backDiffers, announce: backAnnounced, compare: backDiffers,
		readOther: backDiffers, readHeld: backDiffers, readUntold: backDiffers, unknown: backUnsure,
		begin: backDiffers, wrote: backHeld, wroteOld: backUnsure, fail: backUnsure, end: ended,
	},
	backHeld: {
		desire: changed, undesire: backHeld, announce: backAnnounced, compare: backHeld,
		readOther: backDiffers, readHeld: backHeld, readUntold: backHeld, unknown: backUnsure,
		wrote: backHeld, wroteOld: backUnsure, fail: backUnsure, confirm: alone, end: ended,
	},
	backAnnounced: {
		desire: announced, undesire: backAnnounced, announce: backAnnounced, compare: backUnsure,
		unknown: backAnnounced, wrote: backAnnounced, wroteOld: backAnnounced, fail: backAnnounced, end: ended,
	},
}

// work is what a state has left to do.
type work uint8

const (
	rest   work = iota
	ignore      // nothing, and no pass compares it
	wait        // for the runtime, and no pass compares it
	read
	write // the value, or where the file holds it, to systemd alone
)

var works = [states]work{
	ended: ignore, alone: ignore, held: rest, backHeld: rest, announced: wait, backAnnounced: wait,
	unread: read, unsure: read, backUnsure: read,
	differs: write, found: write, begun: write, changed: write, backDiffers: write,
}

// known reports whether file.have is what the file was last seen to hold.
func (s state) known() bool { return s != begun && (works[s] == rest || works[s] == write) }

// compared reports whether a pass over the cgroup reads the file.
func (s state) compared() bool { return works[s] != ignore && works[s] != wait }

// settled reports whether there is nothing to do, now or later.
func (s state) settled() bool { return works[s] == rest || works[s] == ignore }

// back reports whether the file goes back to the kernel's default.
func (s state) back() bool { return s >= backUnsure && s <= backAnnounced }

// An effect is what a transition means beyond its file.
type effect uint8

const (
	none           effect = iota
	missing               // the file does not hold what somebody should have written
	externalChange        // another writer changed it
	tell                  // systemd is to hold the value as well
)

// effectOf is the effect of an event in a state.
func effectOf(s state, e event) effect {
	switch {
	case e == readOther && (s == held || s == backHeld):
		return externalChange
	case e == readOther && (s == unread || s == unsure):
		return missing
	case e == wrote && s.compared():
		return tell
	}
	return none
}

// impossible is told of an event that cannot happen in a state. The state stays; tests fail.
var impossible = func(state, event) {}

// file is one file of a row: bytes, or a set of NUMA nodes as a bit for each.
type file struct {
	state   state
	want    uint64
	have    uint64 // where the state is known
	backoff backoff

	changes uint64 // events beside reads: what was read before one says nothing
	writes  int    // slow ones that have not returned
	writing uint64 // what the newest of them writes
	raising bool   // it is a raise

	externalChanges uint64 // so often did another writer change it
}

// on makes a transition.
func (f *file) on(e event) effect {
	next, then := transitions[f.state][e], effectOf(f.state, e)
	if next == never {
		impossible(f.state, e)
		return none
	}
	if e < readOther || e > unknown {
		f.changes++
	}
	if f.state = next; works[next] == rest {
		f.backoff.due = time.Time{}
	}
	return then
}

// is enters what a file holds. same is readHeld or readUntold.
func (f *file) is(value uint64, same event) effect {
	if f.have = value; value == f.want {
		return f.on(same)
	}
	return f.on(readOther)
}

// desire makes a value the desired one.
func (f *file) desire(value uint64, same event) {
	f.want = value
	if f.on(desire); f.state.known() && f.have == value {
		f.on(same)
	}
}

// undesire has the file go back to a default, if a value of ours may be in it.
func (f *file) undesire(initial uint64) {
	there := works[f.state] == rest && f.have == initial
	f.want = initial
	if f.on(undesire); there {
		f.on(wrote)
	}
}

// returned enters that a value was written.
func (f *file) returned(value uint64) effect {
	if value != f.want {
		return f.on(wroteOld)
	}
	f.have = value
	return f.on(wrote)
}

// A rowState is what a cgroup is to us.
type rowState uint8

const (
	desired  rowState = iota // a target names it
	refused                  // one does, and the kernel lets the runtime alone write: see cgroupfs.ErrOwn
	leaving                  // no target names it any more, and something of ours may be left
	finished                 // it is not in the table any more
	rowStates
)

// A rowEvent is what happens to a cgroup.
type rowEvent uint8

const (
	named    rowEvent = iota // by a target
	unnamed                  // by none any more
	refusing                 // the kernel has refused a write
	dropped                  // nothing of ours is left, or the cgroup is gone
	rowEvents
)

var rowTransitions = [rowStates][rowEvents]rowState{
	desired:  {named: desired, unnamed: leaving, refusing: refused, dropped: finished},
	refused:  {named: refused, unnamed: leaving, refusing: refused, dropped: finished},
	leaving:  {named: desired, unnamed: leaving, refusing: leaving, dropped: finished},
	finished: {named: finished, unnamed: finished, refusing: finished, dropped: finished},
}

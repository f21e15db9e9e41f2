package protect

import "time"

// file is one file of a row: bytes, or a set of NUMA nodes as a bit for each.
type file struct {
	aim     aim
	knows   knowledge
	ours    bool // a value of ours is or was in it
	want    uint64
	have    uint64 // where it is known
	backoff backoff

	changes uint64 // events beside reads: what was read before one says nothing
	writes  int    // slow ones that have not returned
	writing uint64 // what the newest of them writes
	raising bool   // it is a raise

	externalChanges uint64 // so often did another writer change it
}

// An aim is what is to become of a file.
type aim uint8

const (
	alone  aim = iota // no value is desired
	wanted            // a value is
	back              // the kernel's default is to return, or what was there before
	over              // its row has ended: what is still heard of the file changes nothing
)

// knowledge is what is known of a file with an aim.
type knowledge uint8

const (
	unread    knowledge = iota // what it holds is not known
	announced                  // the runtime is about to write it
	begun                      // our first value is being written
	differs                    // it holds another value than the desired, or systemd may
	found                      // it holds the desired value, which we have not written: systemd may not hold it
	held                       // it holds the desired value, and systemd does as well
)

// compared reports whether a pass over the cgroup reads the file.
func (f *file) compared() bool { return (f.aim == wanted || f.aim == back) && f.knows != announced }

// settled reports whether there is nothing to do, now or later.
func (f *file) settled() bool { return f.aim == alone || f.aim == over || f.knows == held }

// known reports whether have is what the file was last seen to hold.
func (f *file) known() bool { return f.knows >= differs }

// toRead and toWrite report what is left to do: to read it, or to write the value, where the file holds it to systemd alone.
func (f *file) toRead() bool  { return f.compared() && f.knows == unread }
func (f *file) toWrite() bool { return f.compared() && f.knows >= begun && f.knows != held }

// toward gives the file an aim.
func (f *file) toward(aim aim, knows knowledge) {
	f.aim, f.knows, f.ours = aim, knows, f.ours && aim != alone
}

// hold enters that the file and systemd hold what is desired.
func (f *file) hold() { f.knows, f.ours, f.backoff.due = held, true, time.Time{} }

// desire makes a value the desired one. told reports whether systemd holds what the file does.
func (f *file) desire(value uint64, told bool) {
	f.changes++
	f.want = value
	f.ours = f.ours || f.aim == back
	if f.aim = wanted; !f.known() {
		return
	}
	if f.knows = differs; f.have == value {
		f.is(value, told)
	}
}

// undesire has the file go back to a default, if a value of ours may be in it.
func (f *file) undesire(initial uint64) {
	f.changes++
	f.want = initial
	there := f.knows == held && f.have == initial
	switch {
	case f.aim != wanted:
		return
	case f.knows == announced:
		f.aim = back
	case !f.ours && f.knows != begun:
		f.toward(alone, unread)
	case f.known():
		f.toward(back, differs)
	default:
		f.toward(back, unread)
	}
	if there {
		f.hold()
	}
}

// leave has no value desired, and no default return.
func (f *file) leave() {
	if f.changes++; f.aim == wanted {
		f.toward(alone, unread)
	}
}

// announce says that the runtime is about to write what is desired.
func (f *file) announce() {
	if f.changes++; f.aim != alone {
		f.knows = announced
	}
}

// compare says that the runtime should have written it.
func (f *file) compare() {
	if f.changes++; f.knows == announced {
		f.knows, f.ours = unread, true
	}
}

// A surprise is what a read may show.
type surprise uint8

const (
	none           surprise = iota
	missing                 // the file does not hold what somebody should have written
	externalChange          // another writer changed it
)

// is enters what a file that is compared was read to hold. told reports whether systemd holds the same.
func (f *file) is(value uint64, told bool) (s surprise) {
	f.have = value
	switch {
	case value != f.want:
		if f.knows == held {
			s = externalChange
		} else if f.knows == unread && f.aim == wanted {
			s = missing
		}
		if f.knows != begun {
			f.knows = differs
		}
	case f.aim == back: // systemd may hold another value until it has confirmed this one
		if f.knows != held {
			f.knows = differs
		}
	case told || f.ours:
		f.hold()
	case f.knows != begun:
		f.knows = found
	}
	return s
}

// unreadable enters that a file could not be read.
func (f *file) unreadable() {
	if f.known() {
		f.knows = unread
	}
}

// begin enters that a write begins.
func (f *file) begin() {
	if f.changes++; f.aim == wanted && !f.ours {
		f.knows = begun
	}
}

// returned enters that a value was written, and reports whether it is the desired one.
func (f *file) returned(value uint64) bool {
	f.changes++
	switch {
	case !f.compared():
	case value == f.want:
		f.have = value
		f.hold()
		return true
	default:
		f.knows, f.ours = unread, true
	}
	return false
}

// failed enters that a write has failed.
func (f *file) failed() {
	if f.changes++; f.compared() {
		f.knows = unread
	}
}

// confirm says that nothing can overwrite the default any more to which the file went back.
func (f *file) confirm() {
	f.changes++
	f.toward(alone, unread)
}

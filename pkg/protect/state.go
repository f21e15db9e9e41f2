package protect

import "time"

// file is one file of a row: bytes, or a set of NUMA nodes as a bit for each.
type file struct {
	goal    goal
	status  status
	owned   bool // a value of ours is or was in it
	want    uint64
	have    uint64 // where it is known
	backoff backoff

	changes       uint64 // events beside reads: what was read before one says nothing
	pendingWrites int    // slow ones that have not returned
	newestWrite   uint64 // what the newest of them writes
	newestRaises  bool   // it is a raise

	externalChanges uint64 // so often did another writer change it
}

// An aim is what is to become of a file.
type goal uint8

const (
	unmanaged goal = iota // no value is desired
	managed               // a value is
	restoring             // the kernel's default is to return, or what was there before
	dropped               // its row has ended: what is still heard of the file changes nothing
)

// knowledge is what is known of a file with an aim.
type status uint8

const (
	unread        status = iota // what it holds is not known
	runtimeWrites               // the runtime is about to write it
	firstWrite                  // our first value is being written
	differs                     // it holds another value than the desired, or systemd may
	matches                     // it holds the desired value, which we have not written: systemd may not hold it
	confirmed                   // it holds the desired value, and systemd does as well
)

// compared reports whether a pass over the cgroup reads the file.
func (f *file) compared() bool {
	return (f.goal == managed || f.goal == restoring) && f.status != runtimeWrites
}

// settled reports whether there is nothing to do, now or later.
func (f *file) done() bool { return f.goal == unmanaged || f.goal == dropped || f.status == confirmed }

// known reports whether have is what the file was last seen to hold.
func (f *file) known() bool { return f.status >= differs }

// toRead and toWrite report what is left to do: to read it, or to write the value, where the file holds it to systemd alone.
func (f *file) toRead() bool  { return f.compared() && f.status == unread }
func (f *file) toWrite() bool { return f.compared() && f.status >= firstWrite && f.status != confirmed }

// toward gives the file an aim.
func (f *file) setGoal(aim goal, knows status) {
	f.goal, f.status, f.owned = aim, knows, f.owned && aim != unmanaged
}

// hold enters that the file and systemd hold what is desired.
func (f *file) setConfirmed() { f.status, f.owned, f.backoff.due = confirmed, true, time.Time{} }

// desire makes a value the desired one. told reports whether systemd holds what the file does.
func (f *file) desire(value uint64, inSystemd bool) {
	f.changes++
	f.want = value
	f.owned = f.owned || f.goal == restoring
	if f.goal = managed; !f.known() {
		return
	}
	if f.status = differs; f.have == value {
		f.observe(value, inSystemd)
	}
}

// undesire has the file go back to a default, if a value of ours may be in it.
func (f *file) release(initial uint64) {
	f.changes++
	f.want = initial
	there := f.status == confirmed && f.have == initial
	switch {
	case f.goal != managed:
		return
	case f.status == runtimeWrites:
		f.goal = restoring
	case !f.owned && f.status != firstWrite:
		f.setGoal(unmanaged, unread)
	case f.known():
		f.setGoal(restoring, differs)
	default:
		f.setGoal(restoring, unread)
	}
	if there {
		f.setConfirmed()
	}
}

// leave has no value desired, and no default return.
func (f *file) ignore() {
	if f.changes++; f.goal == managed {
		f.setGoal(unmanaged, unread)
	}
}

// announce says that the runtime is about to write what is desired.
func (f *file) awaitRuntime() {
	if f.changes++; f.goal != unmanaged {
		f.status = runtimeWrites
	}
}

// compare says that the runtime should have written it.
func (f *file) runtimeWrote() {
	if f.changes++; f.status == runtimeWrites {
		f.status, f.owned = unread, true
	}
}

// A surprise is what a read may show.
type deviation uint8

const (
	none           deviation = iota
	missing                  // the file does not hold what somebody should have written
	externalChange           // another writer changed it
)

// is enters what a file that is compared was read to hold. told reports whether systemd holds the same.
func (f *file) observe(value uint64, inSystemd bool) (s deviation) {
	f.have = value
	switch {
	case value != f.want:
		if f.status == confirmed {
			s = externalChange
		} else if f.status == unread && f.goal == managed {
			s = missing
		}
		if f.status != firstWrite {
			f.status = differs
		}
	case f.goal == restoring: // systemd may hold another value until it has confirmed this one
		if f.status != confirmed {
			f.status = differs
		}
	case inSystemd || f.owned:
		f.setConfirmed()
	case f.status != firstWrite:
		f.status = matches
	}
	return s
}

// unreadable enters that a file could not be read.
func (f *file) readFailed() {
	if f.known() {
		f.status = unread
	}
}

// begin enters that a write begins.
func (f *file) beginWrite() {
	if f.changes++; f.goal == managed && !f.owned {
		f.status = firstWrite
	}
}

// returned enters that a value was written, and reports whether it is the desired one.
func (f *file) wrote(value uint64) bool {
	f.changes++
	switch {
	case !f.compared():
	case value == f.want:
		f.have = value
		f.setConfirmed()
		return true
	default:
		f.status, f.owned = unread, true
	}
	return false
}

// failed enters that a write has failed.
func (f *file) writeFailed() {
	if f.changes++; f.compared() {
		f.status = unread
	}
}

// confirm says that nothing can overwrite the default any more to which the file went back.
func (f *file) restored() {
	f.changes++
	f.setGoal(unmanaged, unread)
}

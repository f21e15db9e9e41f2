package protect

import "time"

// file is one file of a row. Values are bytes, or a bit for each NUMA node.
type file struct {
	goal    goal
	status  status
	owned   bool // it holds or held a value of this plugin
	want    uint64
	have    uint64 // valid if known
	backoff backoff

	changes       uint64 // events, among them reads that have ended; a read that overlaps one is repeated
	pendingWrites int    // writes that have not returned
	newestWrite   uint64 // value of the newest slow write
	newestRaises  bool   // that write raises memory.high

	externalChanges uint64 // by other writers
}

// goal says what this plugin does with a file.
type goal uint8

const (
	unmanaged goal = iota // nothing
	managed               // write the desired value
	restoring             // write the kernel's default, or the value before this plugin's
	dropped               // nothing: its row was removed, and later events change nothing
)

// status says what is known of a file's content. The order matters: see known.
type status uint8

const (
	unread        status = iota // unknown
	runtimeWrites               // unknown: the runtime is about to write the file
	firstWrite                  // the plugin's first value is being written
	differs                     // the file holds another value than the desired one, or systemd may
	matches                     // the file holds the desired value, not written by this plugin; systemd may hold another
	confirmed                   // the file and systemd hold the desired value
)

// compared reports whether a pass reads the file.
func (f *file) compared() bool {
	return (f.goal == managed || f.goal == restoring) && f.status != runtimeWrites
}

// done reports whether nothing is left to do, now or later.
func (f *file) done() bool { return f.goal == unmanaged || f.goal == dropped || f.status == confirmed }

// known reports whether have is valid.
func (f *file) known() bool { return f.status >= differs }

func (f *file) toRead() bool { return f.compared() && f.status == unread }

// toWrite reports whether the value must be written. If the file holds it already, only systemd must receive it.
func (f *file) toWrite() bool { return f.compared() && f.status >= firstWrite && f.status != confirmed }

func (f *file) setGoal(goal goal, status status) {
	f.goal, f.status, f.owned = goal, status, f.owned && goal != unmanaged
}

func (f *file) setConfirmed() { f.status, f.owned, f.backoff.due = confirmed, true, time.Time{} }

// desire sets the desired value. inSystemd reports whether systemd holds the file's value.
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

// release restores the given value if the file may hold a value of this plugin.
func (f *file) release(initial uint64) {
	f.changes++
	f.want = initial
	restored := f.status == confirmed && f.have == initial
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
	if restored {
		f.setConfirmed()
	}
}

// ignore ends the management of a file without restoring it.
func (f *file) ignore() {
	if f.changes++; f.goal == managed {
		f.setGoal(unmanaged, unread)
	}
}

// awaitRuntime leaves the file alone until runtimeWrote.
func (f *file) awaitRuntime() {
	if f.changes++; f.goal != unmanaged {
		f.status = runtimeWrites
	}
}

// runtimeWrote lets passes compare a file that the runtime should have written.
func (f *file) runtimeWrote() {
	if f.changes++; f.status == runtimeWrites {
		f.status, f.owned = unread, true
	}
}

// deviation is an unexpected value that a read found.
type deviation uint8

const (
	none           deviation = iota
	missing                  // a desired value that should have been written is not there
	externalChange           // another writer changed the file
)

// observe records a read of a file that is compared. inSystemd reports whether systemd holds the same value.
func (f *file) observe(value uint64, inSystemd bool) (found deviation) {
	f.changes++
	f.have = value
	switch {
	case value != f.want:
		if f.status == confirmed {
			found = externalChange
		} else if f.status == unread && f.goal == managed {
			found = missing
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
	return found
}

// readFailed records a failed read, or that the file may be another one.
func (f *file) readFailed() {
	if f.changes++; f.known() {
		f.status = unread
	}
}

// beginWrite records that a write begins.
func (f *file) beginWrite() {
	if f.changes++; f.goal == managed && !f.owned {
		f.status = firstWrite
	}
}

// wrote records a finished write, and reports whether its value is still the desired one.
func (f *file) wrote(value uint64) bool {
	f.changes++
	if !f.compared() {
		return false
	}
	if value != f.want {
		f.status, f.owned = unread, true
		return false
	}
	f.have = value
	f.setConfirmed()
	return true
}

// writeFailed records a failed write.
func (f *file) writeFailed() {
	if f.changes++; f.compared() {
		f.status = unread
	}
}

// restored records that the file holds the value to restore and nothing can overwrite it any more.
func (f *file) restored() {
	f.changes++
	f.setGoal(unmanaged, unread)
}

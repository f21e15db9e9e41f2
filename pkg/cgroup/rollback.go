package cgroup

import "context"

// Action is one thing that Rollback did, or would do.
type Action struct {
	Cgroup string
	Knob   Knob
	// Unit is the systemd unit whose property is reset too, if any.
	Unit string
	// From is what the file held, To what it holds afterwards.
	From, To string
	// Gone says that the cgroup does not exist any more: nothing is left to do.
	Gone bool
	// Err is why it could not be done; such a knob stays in the journal.
	Err error
}

// Rollback restores every knob in the journal: memory.high to max, memory.min and memory.low to 0, cpuset.mems to what the
// parent may use; children before parents. It can be repeated, and is safe while pods run. With dryRun it only tells.
// The error joins those of the actions. Flush the journal afterwards.
func Rollback(ctx context.Context, j *Journal, t *Tree, u Units, dryRun bool) ([]Action, error) {
	return nil, errNotYet
}

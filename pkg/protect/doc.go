// Package protect owns the values in the cgroup files of Memory QoS: it compares what they should hold with what they hold,
// writes and repairs them, sets the same values as properties of systemd's units, and keeps the journal from which rollback
// restores what was there before.
package protect

// Package protect owns the files of Memory QoS and cpuset.mems in the cgroups from kubepods down to the containers. It compares their
// values with the desired ones, writes and repairs them, sets the same values in systemd's units, and keeps the journal for rollback.
//
// A driver has one Protector. It only passes desired values:
//
//   - DesireAll takes all targets: at the start, after a change of the configuration, and after an error. Desire takes changed targets.
//   - Apply writes the desired values, except memory.high and cpuset.mems of containers. The kernel may take long to write these, so
//     that Run writes them later. systemd also receives its values later; Close waits for it.
//   - A target with ByRuntime is a container whose values the runtime is about to write. Apply writes the cgroups above it at once, and
//     leaves the container's files alone until a later target without ByRuntime: then it compares them. While a container shrinks, the
//     sums above it must still include its larger value.
//   - Check and CheckHigh write late files too, before they return. Start does so for a container that is about to run.
//   - Run reconciles periodically and after each write by another writer.
//
// state.go has the states of one file. A pass (pass.go) reads files and plans writes under the lock, waits for the journal, writes
// without the lock, and records the results. Slow writes (slow.go) and calls to systemd (queue.go) follow the same pattern.
//
// To see what the runtime did, read a file that is not written here, such as memory.max. The others are kept at their desired values.
package protect

// Package protect owns the values in the cgroup files of Memory QoS and cpuset.mems, from kubepods down to the containers: it
// compares what they should hold with what they hold, writes and repairs them, has systemd's units hold the same values, and
// keeps the journal from which rollback restores what was there before.
//
// A driver has one Protector and gives it desired values only:
//
//   - DesireAll with all targets at the start, after a change of the rules, and after an error;
//   - Desire with the targets that an event changed: the sums above, the pod, its containers;
//   - Settle returns when the files hold the values, except for memory.high and cpuset.mems of containers, which may take long and are
//     left to Run. systemd receives them later, and Close waits for it;
//   - a container whose values the runtime is about to write, because they are in the answer to it, has cgroup.Target.ByRuntime. The
//     parent cgroups are written at once. Nothing of the container's is, until a target says that the runtime should have
//     written: then its files are compared. Where a container shrinks, the sums above are to count its larger value until
//     then;
//   - Check for a container whose files must hold what is desired when it returns, and CheckHigh for a raised memory.high;
//   - Start for a container that is about to run. The cpuset.mems of one that runs is written only where that moves no more
//     memory than BoundMigration allows, and NoteMigration takes what the runtime moves when it is asked to write them;
//   - Run reconciles every period and at each write of another writer, and makes the late writes. It needs no help.
//
// What is known of each file, and what becomes of it, is in state.go. A pass (pass.go) compares and plans under the
// lock, stores the journal's lines, writes without the lock, and enters what came of it. memory.high and cpuset.mems have a way of
// their own (slow.go), and so has what systemd is to hold (queue.go): both plan under the lock, write without it, and enter what came
// of it.
//
// What the runtime did is to be observed in files that no target names, such as memory.max: the others hold what is desired,
// whoever wrote it.
package protect

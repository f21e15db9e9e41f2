// Package protect owns the values in the cgroup files of Memory QoS: it compares what they should hold with what they hold,
// writes and repairs them, has systemd's units hold the same values, and keeps the journal from which rollback restores what
// was there before.
//
// A driver has one Protector and gives it desired values only:
//
//   - Apply with the targets of all living pods (Targets) at the start, after a change of the rules, and after an error;
//   - Update with the targets that an event changed: the sums above, the pod, its containers. Both return when the files hold
//     the values. systemd receives them later, and Close waits for it;
//   - a container whose values the runtime is about to write, because they are in the answer to it, has Target.ByRuntime. The
//     levels above are written at once. Nothing of the container's is; when the runtime should have written, Check compares
//     and repairs, and so does Reconcile in its turn. Where a container shrinks, the sums above are to count its larger value
//     until Observed shows the smaller one;
//   - an unasked change of a running container, such as a raised memory.high, is an Update without ByRuntime;
//   - Run reconciles every period and at each write of another writer. It needs no help.
//
// What the runtime did is to be observed in files that no target names, such as memory.max: the others hold what is desired,
// by whatever hand.
package protect

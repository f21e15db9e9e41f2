// Package cgroupfs reads, writes and watches files of cgroups v2, and waits for memory pressure. It decides nothing.
//
// It writes memory.min, memory.low, memory.high, memory.oom.group, memory.reclaim and cpuset.mems below kubepods, and nothing else.
// A cgroup is gone if the kernel answers ENOENT or ENODEV. Any other error means that its state is unknown.
// Kernel documentation: https://docs.kernel.org/admin-guide/cgroup-v2.html
package cgroupfs

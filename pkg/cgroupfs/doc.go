// Package cgroupfs is the cgroup v2 file system as this program needs it: safe reads and writes of the files of cgroups, watches
// for writes and for pressure, and readers of the kernel's statistics. It decides nothing.
//
// It writes memory.min, memory.low, memory.high, memory.reclaim and cpuset.mems below kubepods, and nothing else.
// A cgroup is gone where the kernel answers ENOENT or ENODEV. Any other error means that nothing is known about it.
// Kernel documentation: https://docs.kernel.org/admin-guide/cgroup-v2.html
package cgroupfs

// Package cgroup is the effect side of Memory QoS: it finds the cgroup v2 directories of pods and containers, reads what
// the kernel tells about their memory, keeps the protection of the levels above the containers in place against other
// writers, and knows the way back.
//
// It writes memory.min, memory.low, memory.high, memory.reclaim and cpuset.mems below kubepods, and nothing else.
// Kernel documentation: https://docs.kernel.org/admin-guide/cgroup-v2.html
package cgroup

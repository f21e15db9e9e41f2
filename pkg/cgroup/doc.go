// Package cgroup has the paths of the cgroups of pods and containers under both drivers and all runtimes, and the names, desired values and
// formats of their files. It does no I/O: pkg/cgroupfs reads and writes the files.
// Kernel documentation: https://docs.kernel.org/admin-guide/cgroup-v2.html
package cgroup

// Package cgroup says where the cgroups of pods and containers are under both drivers and all runtimes, what their files are
// called, what the files should hold, and how their values are written. It does no I/O: pkg/cgroupfs reads and writes the files.
// Kernel documentation: https://docs.kernel.org/admin-guide/cgroup-v2.html
package cgroup

// Package memoryqos is the arithmetic of Memory QoS on cgroup v2: which memory.min, memory.low and memory.high a
// container, its pod and the parent cgroups should have. It is pure: numbers in, numbers out, no file and no log.
//
// The rules are those of KEP-2570 (https://kep.k8s.io/2570); where a byte depends on the order of floating point
// operations, the order is the kubelet's. All sizes are bytes.
package memoryqos

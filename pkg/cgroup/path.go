package cgroup

import (
	"errors"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

var errNotYet = errors.New("not implemented yet")

// Driver is the cgroup driver of kubelet and runtime.
type Driver string

// The two cgroup drivers.
const (
	Cgroupfs Driver = "cgroupfs"
	Systemd  Driver = "systemd"
)

// PodPath holds the cgroups of a pod and of the kubelet-made levels above it, relative to the cgroup mount, without a
// leading slash.
type PodPath struct {
	Kubepods string
	// QoS is empty for a Guaranteed pod: it hangs directly below kubepods.
	QoS    string
	Pod    string
	Class  memoryqos.QOSClass
	Driver Driver
}

// ParsePod finds a pod's cgroups from the CgroupParent that a runtime tells: both drivers, CRI-O's base names
// ("kubepods-pod1.slice") and the prefixes of the kubelet's --cgroup-root. What leads out of kubepods is an error.
func ParsePod(cgroupParent string) (PodPath, error) { return PodPath{}, errNotYet }

// Container gives the cgroup of the container with this id from the CgroupsPath of its OCI spec: a path
// ("/kubepods/pod1/<id>", ".../crio-<id>") or systemd's "<slice>:<runtime>:<id>".
func (p PodPath) Container(cgroupsPath, id string) (string, error) { return "", errNotYet }

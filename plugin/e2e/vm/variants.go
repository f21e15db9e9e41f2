package vm

import "github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"

// Variant is one kind of guest that the tests run in.
type Variant struct {
	Name    string
	Summary string
	Kernel  string // "6.12", "6.1", "trixie" or "testing"
	Runtime setup.Runtime
	Driver  setup.Driver
	Nodes   []setup.Node
	// Sockets makes each NUMA node a socket, where all have as many CPUs.
	Sockets bool
	// Cluster makes the guest the node of a cluster of its own: a control plane on the host; kubelet, kubectl, Helm and the
	// packed chart in the guest.
	Cluster bool
	// OlderKubelet has the guest's kubelet be one of the release before the control plane's, as in a cluster that is being upgraded.
	OlderKubelet bool
	// Devices gives the guest a disk and a network interface that are behind a PCI root of NUMA node 1.
	Devices bool
	// SlowDisks gives the guest the disks of slowDisks, and what makes XFS on them.
	SlowDisks bool
	// RootCPU is the CPU whose NUMA node has the root file system, 200 MiB in memory.
	RootCPU int
}

var (
	twoNodes = []setup.Node{
		{ID: 0, MiB: 1024, CPUs: 1, Distances: []int{10, 21}},
		{ID: 1, MiB: 512, CPUs: 1, Distances: []int{21, 10}},
	}
	fourNodes = []setup.Node{
		{ID: 0, MiB: 1024, CPUs: 1, Distances: []int{10, 15, 20, 25}},
		{ID: 1, MiB: 768, CPUs: 1, Hugepages: 32, Distances: []int{15, 10, 18, 22}},
		{ID: 2, MiB: 640, CPUs: 1, Hugepages: 16, Distances: []int{20, 18, 10, 17}},
		{ID: 3, MiB: 256, CPUs: 0, Distances: []int{25, 22, 17, 10}},
	}
)

// largeNodes have room for the shims of 500 pods.
var largeNodes = []setup.Node{
	{ID: 0, MiB: 6144, CPUs: 1, Distances: []int{10, 21}},
	{ID: 1, MiB: 4096, CPUs: 1, Distances: []int{21, 10}},
}

// kubeletNodes have room for pods of every kind at once, for the kubelet's tools and for the daemon's pod.
var kubeletNodes = []setup.Node{
	{ID: 0, MiB: 1536, CPUs: 2, Hugepages: 4, Distances: []int{10, 21}},
	{ID: 1, MiB: 1024, CPUs: 1, Hugepages: 16, Distances: []int{21, 10}},
}

// Variants are all guests, the longest first.
func Variants() []Variant {
	return []Variant{
		{
			Name: kubeletCgroupfs, Summary: "a cluster's node: kubelet 1.37, containerd 2.4, cgroupfs, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd24, Driver: setup.Cgroupfs, Nodes: kubeletNodes, Cluster: true, Devices: true,
		},
		{
			Name: cgroupfs24, Summary: "containerd 2.4, cgroupfs, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd24, Driver: setup.Cgroupfs, Nodes: twoNodes, Devices: true, SlowDisks: true,
		},
		{
			Name: systemd24, Summary: "containerd 2.4, systemd as PID 1, 4 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd24, Driver: setup.Systemd, Nodes: fourNodes, RootCPU: 2,
		},
		{
			Name: large24, Summary: "containerd 2.4, cgroupfs, 2 NUMA nodes with 10 GiB, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd24, Driver: setup.Cgroupfs, Nodes: largeNodes,
		},
		{
			Name: kubeletSystemd, Summary: "a cluster's node: kubelet 1.36, containerd 2.4, systemd as PID 1, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd24, Driver: setup.Systemd, Nodes: kubeletNodes, Cluster: true, OlderKubelet: true,
		},
		{
			Name: cgroupfs17, Summary: "containerd 1.7 of Debian trixie, cgroupfs, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd17, Driver: setup.Cgroupfs, Nodes: twoNodes,
		},
		{
			Name: kernel61, Summary: "containerd 2.4, cgroupfs, 2 NUMA nodes, kernel 6.1",
			Kernel: "6.1", Runtime: setup.Containerd24, Driver: setup.Cgroupfs, Nodes: twoNodes, SlowDisks: true,
		},
		{
			Name: kernelTrixie, Summary: "containerd 2.4, cgroupfs, 2 NUMA nodes, the kernel of Debian 13",
			Kernel: "trixie", Runtime: setup.Containerd24, Driver: setup.Cgroupfs, Nodes: twoNodes, SlowDisks: true,
		},
		{
			Name: kernelTesting, Summary: "containerd 2.4, cgroupfs, 2 NUMA nodes, the kernel of Debian testing",
			Kernel: "testing", Runtime: setup.Containerd24, Driver: setup.Cgroupfs, Nodes: twoNodes, SlowDisks: true,
		},
		{
			Name: crioCgroupfs, Summary: "CRI-O as given by CRIO, cgroupfs, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.CRIO, Driver: setup.Cgroupfs, Nodes: twoNodes,
		},
		{
			Name: crioSystemd, Summary: "CRI-O as given by CRIO, systemd as PID 1, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.CRIO, Driver: setup.Systemd, Nodes: twoNodes,
		},
	}
}

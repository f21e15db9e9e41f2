package vm

import (
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// Variant is one kind of guest that the tests run in.
type Variant struct {
	Name    string
	Summary string
	Kernel  string // "6.12" or "6.1"
	Runtime setup.Runtime
	Driver  setup.Driver
	Nodes   []setup.Node
	// Cluster makes the guest the node of a cluster of its own: a control plane on the host; kubelet, kubectl, Helm and the
	// packed chart in the guest.
	Cluster bool
	// Only names the tests that run in this variant; empty means all but Skip.
	Only []string
	// Skip names tests that this variant cannot run, with the reason.
	Skip map[string]string
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

// kubeletNodes have room for pods of every kind at once, for the kubelet's tools and for the daemon's pod.
var kubeletNodes = []setup.Node{
	{ID: 0, MiB: 1536, CPUs: 2, Hugepages: 4, Distances: []int{10, 21}},
	{ID: 1, MiB: 1024, CPUs: 1, Hugepages: 16, Distances: []int{21, 10}},
}

// The cases that ask a kubelet for pods; the others ask the runtime.
var (
	// anyDriver are those whose answer does not depend on the cgroup driver.
	anyDriver = []string{"TestResizeInPlace", "TestResizeWithoutRoom", "TestRejectedPodIsOneBlock", "TestCPUsOverTwoNodes", "TestKubeletGoesAway",
		"TestMemoryManagerDecidesAsTheKubelets", "TestStaticPodIsExact", "TestSimulatorAgreesWithTheKubelet"}
	// eachDriver are those that each driver must show.
	eachDriver = []string{"TestEveryFileBesideTheKubelet", "TestChartInACluster", "TestHourBesideTheKubelet"}

	besideKubelet = slices.Concat(anyDriver, eachDriver)
)

// elsewhere is the reason to leave out a long case whose answer does not depend on the variant.
const elsewhere = "runs in other variants"

// leaveOut names tests that other variants run, those of besideKubelet among them.
func leaveOut(tests ...string) map[string]string {
	skip := map[string]string{}
	for _, name := range append(tests, besideKubelet...) {
		skip[name] = elsewhere
	}
	return skip
}

// Variants are all guests, the longest first.
func Variants() []Variant {
	return []Variant{
		{
			Name: "kubelet-cgroupfs", Summary: "a cluster's node: kubelet 1.36, containerd 2.4, cgroupfs, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd24, Driver: setup.Cgroupfs, Nodes: kubeletNodes, Cluster: true, Only: slices.Concat(eachDriver, anyDriver),
		},
		{
			Name: "kubelet-systemd", Summary: "a cluster's node: kubelet 1.36, containerd 2.4, systemd as PID 1, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd24, Driver: setup.Systemd, Nodes: kubeletNodes, Cluster: true, Only: eachDriver,
		},
		{
			Name: "containerd24-systemd", Summary: "containerd 2.4, systemd as PID 1, 4 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd24, Driver: setup.Systemd, Nodes: fourNodes,
			Only: []string{ // what asks systemd, and what needs more nodes than two
				"TestAncestorsThatOthersWriteAreRepaired", "TestRollbackLeavesKernelDefaults", "TestPodsMadeWhileThePluginIsAwayAreAdopted",
				"TestGuaranteedContainersLandOnTheirNodes", "TestContainerLargerThanANodeGetsAGroup", "TestHugepagesComeFromTheRightNode",
				"TestNodeWithoutCPUsIsUsedOnlyWhenAllowed", "TestProtectionHoldsWhenKubepodsIsReclaimed", "TestResizeByRequest",
				"TestRuntimeRestartsUnderRunningPods", "TestStormOfPodsLeavesNothing", "TestTarballRunsAsASystemdUnit", "TestValuesAtEveryLevel",
			},
		},
		{
			Name: "containerd24-cgroupfs", Summary: "containerd 2.4, cgroupfs, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd24, Driver: setup.Cgroupfs, Nodes: twoNodes,
			Skip: leaveOut(
				"TestStormOfPodsLeavesNothing", "TestRejectionsSayWhyAndLeakNothing", "TestReleasedImageRunsAsAPod", "TestTarballRunsAsASystemdUnit",
				"TestHugepagesComeFromTheRightNode", "TestNodeWithoutCPUsIsUsedOnlyWhenAllowed",
				"TestAncestorsThatOthersWriteAreRepaired", "TestRollbackLeavesKernelDefaults", "TestValuesAtEveryLevel",
			),
		},
		{
			Name: "containerd17-cgroupfs", Summary: "containerd 1.7 of Debian trixie, cgroupfs, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd17, Driver: setup.Cgroupfs, Nodes: twoNodes,
			Only: []string{
				"TestNodeRunsPods", "TestGuaranteedContainersLandOnTheirNodes", "TestValuesAtEveryLevel", "TestResizeByRequest",
				"TestRuntimeRestartsUnderRunningPods", "TestPodsMadeWhileThePluginIsAwayAreAdopted", "TestTwoPluginsThatSetTheSameKey",
				"TestRejectionsSayWhyAndLeakNothing", "TestReleasedImageRunsAsAPod", "TestVerifyKnowsTheRuntime",
			},
		},
		{
			Name: "kernel61", Summary: "containerd 2.4, cgroupfs, 2 NUMA nodes, kernel 6.1",
			Kernel: "6.1", Runtime: setup.Containerd24, Driver: setup.Cgroupfs, Nodes: twoNodes,
			Only: []string{
				"TestNodeRunsPods", "TestValuesAtEveryLevel", "TestThrottlingIsReal", "TestProtectionHoldsWhenKubepodsIsReclaimed",
				"TestStallGuardLetsContainersThrough",
			},
		},
		{
			Name: "crio-cgroupfs", Summary: "CRI-O as given by CRIO, cgroupfs, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.CRIO, Driver: setup.Cgroupfs, Nodes: twoNodes, Skip: leaveOut(),
		},
		{
			Name: "crio-systemd", Summary: "CRI-O as given by CRIO, systemd as PID 1, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.CRIO, Driver: setup.Systemd, Nodes: twoNodes,
			Only: []string{
				"TestNodeRunsPods", "TestGuaranteedContainersLandOnTheirNodes", "TestValuesAtEveryLevel", "TestResizeByRequest",
				"TestRuntimeRestartsUnderRunningPods", "TestPodsMadeWhileThePluginIsAwayAreAdopted", "TestRejectionsSayWhyAndLeakNothing",
				"TestAncestorsThatOthersWriteAreRepaired", "TestRollbackLeavesKernelDefaults", "TestProtectionHoldsWhenKubepodsIsReclaimed",
			},
		},
	}
}

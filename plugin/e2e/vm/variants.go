package vm

import "github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"

// Variant is one kind of guest that the tests run in.
type Variant struct {
	Name    string
	Summary string
	Kernel  string // "6.12" or "6.1"
	Runtime setup.Runtime
	Driver  setup.Driver
	Nodes   []setup.Node
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
		{ID: 0, MiB: 896, CPUs: 1, Distances: []int{10, 15, 20, 25}},
		{ID: 1, MiB: 512, CPUs: 1, Hugepages: 32, Distances: []int{15, 10, 18, 22}},
		{ID: 2, MiB: 384, CPUs: 1, Hugepages: 16, Distances: []int{20, 18, 10, 17}},
		{ID: 3, MiB: 256, CPUs: 0, Distances: []int{25, 22, 17, 10}},
	}
)

// elsewhere is the reason to leave out a long case whose answer does not depend on the variant.
const elsewhere = "runs in other variants"

// leaveOut names tests that other variants run.
func leaveOut(tests ...string) map[string]string {
	skip := map[string]string{}
	for _, name := range tests {
		skip[name] = elsewhere
	}
	return skip
}

// Variants are all guests, the longest first.
func Variants() []Variant {
	return []Variant{
		{
			Name: "containerd24-systemd", Summary: "containerd 2.4, systemd as PID 1, 4 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd24, Driver: setup.Systemd, Nodes: fourNodes,
			Skip: leaveOut(
				"TestPluginIsKilledAtAnyMoment", "TestPageCacheOfAGuaranteedContainer", "TestProtectionHoldsAgainstANeighbour", "TestThrottlingIsReal",
				"TestPreInstalledPluginIsLaunchedByTheRuntime", "TestTwoPluginsThatSetTheSameKey", "TestPluginBesideAnotherThatDoesNothing",
				"TestRequiredPluginKeepsPodsOutWithoutIt", "TestStateFileIsLostOrForeign",
				"TestStallGuardLetsContainersThrough", "TestStallGuardTakesRaisesBack", "TestStallGuardRaisesNobodyWithoutNeed",
				"TestStallGuardLeavesSwappingContainersAlone",
			),
		},
		{
			Name: "containerd24-cgroupfs", Summary: "containerd 2.4, cgroupfs, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd24, Driver: setup.Cgroupfs, Nodes: twoNodes,
			Skip: leaveOut("TestStormOfPodsLeavesNothing", "TestRejectionsSayWhyAndLeakNothing"),
		},
		{
			Name: "containerd17-cgroupfs", Summary: "containerd 1.7 of Debian trixie, cgroupfs, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.Containerd17, Driver: setup.Cgroupfs, Nodes: twoNodes,
			Only: []string{
				"TestNodeRunsPods", "TestGuaranteedContainersLandOnTheirNodes", "TestValuesAtEveryLevel", "TestResizeInPlace",
				"TestRuntimeRestartsUnderRunningPods", "TestPodsMadeWhileThePluginIsAwayAreAdopted", "TestTwoPluginsThatSetTheSameKey",
				"TestRejectionsSayWhyAndLeakNothing", "TestReleasedImageRunsAsAPod", "TestVerifyKnowsTheRuntime",
			},
		},
		{
			Name: "kernel61", Summary: "containerd 2.4, cgroupfs, 2 NUMA nodes, kernel 6.1",
			Kernel: "6.1", Runtime: setup.Containerd24, Driver: setup.Cgroupfs, Nodes: twoNodes,
			Only: []string{
				"TestNodeRunsPods", "TestGuaranteedContainersLandOnTheirNodes", "TestValuesAtEveryLevel", "TestThrottlingIsReal",
				"TestProtectionHoldsWhenKubepodsIsReclaimed", "TestStallGuardLetsContainersThrough", "TestStallGuardTakesRaisesBack",
			},
		},
		{
			Name: "crio-cgroupfs", Summary: "CRI-O as given by CRIO, cgroupfs, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.CRIO, Driver: setup.Cgroupfs, Nodes: twoNodes,
		},
		{
			Name: "crio-systemd", Summary: "CRI-O as given by CRIO, systemd as PID 1, 2 NUMA nodes, kernel 6.12",
			Kernel: "6.12", Runtime: setup.CRIO, Driver: setup.Systemd, Nodes: twoNodes,
			Only: []string{
				"TestNodeRunsPods", "TestGuaranteedContainersLandOnTheirNodes", "TestValuesAtEveryLevel", "TestResizeInPlace",
				"TestRuntimeRestartsUnderRunningPods", "TestPodsMadeWhileThePluginIsAwayAreAdopted", "TestRejectionsSayWhyAndLeakNothing",
				"TestAncestorsThatOthersWriteAreRepaired", "TestRollbackLeavesKernelDefaults", "TestProtectionHoldsWhenKubepodsIsReclaimed",
			},
		},
	}
}

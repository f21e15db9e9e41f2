package vm

import (
	"fmt"
	"slices"
)

// The variants' names.
const (
	kubeletCgroupfs = "kubelet-cgroupfs"
	kubeletSystemd  = "kubelet-systemd"
	cgroupfs24      = "containerd24-cgroupfs"
	systemd24       = "containerd24-systemd"
	large24         = "containerd24-large"
	cgroupfs17      = "containerd17-cgroupfs"
	kernel61        = "kernel61"
	kernelTrixie    = "kernel-trixie"
	kernelTesting   = "kernel-testing"
	crioCgroupfs    = "crio-cgroupfs"
	crioSystemd     = "crio-systemd"
)

// choice is where a case runs: on the variants that can change its outcome, and where another variant already shows the same,
// only with FULL=1.
type choice struct {
	always, full []string
}

func on(variants ...string) []string { return variants }

// choices has every case with the reason for its choice. Without FULL=1 an older runtime or kernel runs what only it can answer: what it
// shows of containers, what it refuses, how it counts and throttles.
var choices = map[string]choice{
	// Beside the kubelet: the others ask the runtime.
	"TestEveryFileBesideTheKubelet":         {on(kubeletCgroupfs, kubeletSystemd), nil}, // each driver's files and writers; each has its half of the shapes
	"TestKubeletChangesItsMemoryQoS":        {on(kubeletCgroupfs), on(kubeletSystemd)},  // what the kubelet writes, which knows no driver; the hour has systemd, with FULL=1
	"TestChartInACluster":                   {on(kubeletSystemd), on(kubeletCgroupfs)},  // systemd is what most clusters have, and the daemon's pod mounts its socket
	"TestMigrationInACluster":               {nil, on(kubeletSystemd)},                  // a walk as TestChartInACluster's, and the checkpoints of TestMemoryManagerDecidesAsTheKubelets
	"TestHourBesideTheKubelet":              {nil, on(kubeletCgroupfs, kubeletSystemd)}, // systemd is one writer more
	"TestResizeInPlace":                     {on(kubeletCgroupfs), on(kubeletSystemd)},  // the kubelet's resize; TestResizeByRequest has the other driver
	"TestResizeWithoutRoom":                 {on(kubeletCgroupfs), on(kubeletSystemd)},  // allocation and the kubelet's retries, which know no driver
	"TestRejectedPodIsOneBlock":             {on(kubeletCgroupfs), on(kubeletSystemd)},  // the kubelet's retries, which know no driver
	"TestCPUsOverTwoNodes":                  {on(kubeletCgroupfs), on(kubeletSystemd)},  // the kubelet's CPU manager, which knows no driver
	"TestKubeletGoesAway":                   {on(kubeletCgroupfs), on(kubeletSystemd)},  // the pod API, which knows no driver
	"TestMemoryManagerDecidesAsTheKubelets": {on(kubeletCgroupfs), nil},                 // two checkpoints, which know no driver
	"TestStaticPodIsExact":                  {on(kubeletCgroupfs), on(kubeletSystemd)},  // where a request comes from, whatever the driver
	"TestEvictedPodLeavesNothing":           {on(kubeletCgroupfs), on(kubeletSystemd)},  // the kubelet's eviction, which knows no driver
	"TestSimulatorAgreesWithTheKubelet":     {on(kubeletCgroupfs), nil},                 // what the kubelet computes, whatever the driver; many pods with FULL=1
	"TestResourceClaims":                    {on(kubeletCgroupfs), on(kubeletSystemd)},  // the scheduler, the kubelet's DRA manager and CDI, which know no driver
	"TestClaimsReachANodeWithoutCPUs":       {on(kubeletSystemd), on(kubeletCgroupfs)},  // the scheduler and CDI, which know no driver
	"TestMemoryFollowsDevices":              {on(kubeletCgroupfs), nil},                 // device plugins and claims, which know no driver; needs devices

	// The cgroup driver.
	"TestAncestorsThatOthersWriteAreRepaired": {on(systemd24, crioSystemd), on(cgroupfs24)},  // systemd writes the parents of pods itself; TestVerifyNamesWhatIsWrong has cgroupfs
	"TestRollbackLeavesKernelDefaults":        {on(systemd24, crioSystemd), on(cgroupfs24)},  // systemd keeps what it was asked for; TestEveryFileBesideTheKubelet has cgroupfs
	"TestStormOfPodsLeavesNothing":            {on(systemd24, crioCgroupfs), on(cgroupfs24)}, // slices come and go with their pods, in no order
	"TestTarballRunsAsASystemdUnit":           {on(systemd24), nil},                          // needs systemd

	// The NUMA nodes.
	"TestContainerLargerThanANodeGetsAGroup":   {on(systemd24, crioCgroupfs), on(cgroupfs24)},                          // of two nodes there is one group; four have distances
	"TestAllocationsHold":                      {on(systemd24), nil},                                                   // the kernel's OOM killer and memory policies; needs room on a second node
	"TestNothingIsDoneOnAnIdleNode":            {on(systemd24), nil},                                                   // what the plugin does by itself; systemd writes the parents of pods, too
	"TestInterleavedContainerTouchesAllNodes":  {on(systemd24), nil},                                                   // the kernel's memory policies; which runtime wrote the cgroup is no matter
	"TestMigration":                            {on(systemd24), on(kernel61)},                                          // the kernel's migration of pages; which runtime wrote the cgroup is no matter; needs room on a second node
	"TestHugepagesComeFromTheRightNode":        {on(systemd24), nil},                                                   // needs nodes with huge pages
	"TestNodeWithoutCPUsIsUsedOnlyWhenAllowed": {on(systemd24), nil},                                                   // needs a node without CPUs
	"TestOrdinaryPodsKeepOffNodeWithoutCPUs":   {on(systemd24), nil},                                                   // needs a node without CPUs
	"TestGuaranteedContainersLandOnTheirNodes": {on(systemd24, cgroupfs17, crioCgroupfs, crioSystemd), on(cgroupfs24)}, // each driver and each runtime sets cpuset.mems its own way

	// The runtime and its NRI.
	"TestPodsMadeWhileThePluginIsAwayAreAdopted":   {on(systemd24, cgroupfs17, crioCgroupfs, crioSystemd), on(cgroupfs24)},           // what a runtime and a driver show of containers that run already
	"TestAStoppedPluginStopsNoPod":                 {on(cgroupfs24, crioCgroupfs, crioSystemd), on(cgroupfs17, systemd24)},           // what each runtime does with a plugin that does not answer
	"TestAStarvedPluginIsNotRestarted":             {nil, on(cgroupfs24)},                                                            // what the plugin says of itself, whatever runs beside
	"TestResizeByRequest":                          {on(systemd24, crioCgroupfs, crioSystemd), on(cgroupfs24, cgroupfs17)},           // each runtime's and each driver's update; TestResizeInPlace has containerd 2.4 with cgroupfs
	"TestRuntimeRestartsUnderRunningPods":          {on(cgroupfs24, crioCgroupfs, crioSystemd), on(systemd24, cgroupfs17)},           // what each runtime still knows; drivers keep the cgroups
	"TestRejectionsSayWhyAndLeakNothing":           {on(cgroupfs17, crioCgroupfs, crioSystemd), on(cgroupfs24)},                      // how a runtime passes the error on; TestRejectedPodIsOneBlock has containerd 2.4
	"TestReleasedImageRunsAsAPod":                  {nil, on(cgroupfs17, cgroupfs24, systemd24)},                                     // TestChartInACluster has the image in a cluster; unpacking it takes containerd 1.7 minutes
	"TestTwoPluginsThatSetTheSameKey":              {on(cgroupfs24, crioCgroupfs), on(cgroupfs17)},                                   // each runtime's own words
	"TestPluginBesideAnotherThatDoesNothing":       {on(cgroupfs24, crioCgroupfs), on(cgroupfs17)},                                   // one runtime that calls two plugins
	"TestPreInstalledPluginIsLaunchedByTheRuntime": {on(cgroupfs24, crioCgroupfs), on(cgroupfs17)},                                   // one runtime that starts plugins
	"TestRequiredPluginKeepsPodsOutWithoutIt":      {on(cgroupfs24, crioCgroupfs), nil},                                              // containerd 1.7 has no validator
	"TestCDIDeviceOfARequest":                      {on(cgroupfs24), nil},                                                            // the runtime's CDI; needs devices
	"TestPluginIsKilledAtAnyMoment":                {on(cgroupfs24, crioCgroupfs), on(cgroupfs17, systemd24)},                        // the state file; the runtime loses its plugin at some moment in TestPodsMadeWhileThePluginIsAwayAreAdopted
	"TestNodeRunsPods":                             {on(cgroupfs24, crioCgroupfs, crioSystemd), on(systemd24, cgroupfs17, kernel61)}, // the guest without the plugin, and a CRI-O that is not ours; every other case shows it, too
	"TestVerifyKnowsTheRuntime":                    {on(cgroupfs24, cgroupfs17), nil},                                                // what is known of each containerd
	"TestTheKubeletsOOMGroupStays":                 {on(systemd24), nil},                                                             // systemd's own memory.oom.group
	"TestOOMKillEndsWhatThePodChooses":             {on(systemd24, crioCgroupfs), on(cgroupfs24, crioSystemd, cgroupfs17)},           // which runtime shows what the kubelet asks for; systemd writes the file, too
	"TestValuesAtEveryLevel":                       {on(systemd24, kernel61, crioCgroupfs, crioSystemd), on(cgroupfs24, cgroupfs17)}, // each driver, runtime and kernel; TestEveryFileBesideTheKubelet has containerd 2.4 with cgroupfs

	// The kernel.
	"TestScriptsOnThisKernel":                     {on(cgroupfs24), on(kernel61)},                         // each kernel's memory control, and the model of it
	"TestThrottlingIsReal":                        {on(cgroupfs24, kernel61), nil},                        // each kernel's memory.high
	"TestStallGuardLetsContainersThrough":         {on(cgroupfs24), on(kernel61)},                         // each kernel's memory.pressure and its triggers
	"TestProtectionHoldsWhenKubepodsIsReclaimed":  {on(cgroupfs24), on(systemd24, crioSystemd, kernel61)}, // each kernel's memory.min
	"TestProtectionHoldsAgainstANeighbour":        {on(cgroupfs24), on(kernel61)},                         // the same memory.min, with reclaim from another side
	"TestStallGuardTakesRaisesBack":               {on(cgroupfs24), on(kernel61)},                         // the guard's rules, once the kernel shows stalls
	"TestStallGuardRaisesNobodyWithoutNeed":       {on(cgroupfs24), on(kernel61)},                         // the guard's rules, once the kernel shows stalls
	"TestStallGuardLeavesSwappingContainersAlone": {on(cgroupfs24), on(kernel61)},                         // the guard's rules, once the kernel shows stalls
	"TestCacheRoomHoldsWritersAndNoHeap":          {on(cgroupfs24), on(kernel61)},                         // each kernel's memory.high and its triggers
	"TestOOMVerdicts":                             {on(cgroupfs24, crioSystemd), on(systemd24, kernel61)}, // each kernel's counters, and how soon a runtime removes a cgroup
	"TestOOMKillTakesWhomPodsChoose":              {on(cgroupfs24, crioSystemd), on(cgroupfs17)},          // each runtime sets oom_score_adj its own way
	"TestPluginIsKilledWhileTheKernelKills":       {on(cgroupfs24), on(systemd24)},                        // the file of verdicts; which kernel counts is no matter
	"TestPageCacheOfAGuaranteedContainer":         {on(cgroupfs24), on(kernel61)},                         // the kernel's reclaim of page cache below memory.min
	"TestPageCacheIsReclaimedBeforeEviction":      {on(cgroupfs24), on(kernel61)},                         // what each kernel's memory.reclaim takes
	"TestPageCacheEvicts":                         {nil, on(kubeletCgroupfs)},                             // a race of the kubelet with the kernel, which an emulated CPU decides; TestPageCacheIsReclaimedBeforeEviction has the reclaim

	// The plugin's own files and answers, which need some kernel.
	"TestStateFileIsLostOrForeign":     {on(cgroupfs24), nil},          // the plugin's own file
	"TestVerifyNamesWhatIsWrong":       {on(cgroupfs24), on(kernel61)}, // what verify reads, which is the same everywhere
	"TestVerifyNamesPagesOnOtherNodes": {on(cgroupfs24), on(kernel61)}, // what verify reads, which is the same everywhere

	// The tables of docs/measurements.md, and no tests.
	"TestMeasureStallGuard":                  {nil, on(cgroupfs24)},                                        // one machine is measured
	"TestMeasureIdleStallGuard":              {nil, on(cgroupfs24)},                                        // one machine is measured
	"TestMeasureManyStalling":                {nil, on(cgroupfs24)},                                        // one machine is measured
	"TestMeasureStorm":                       {nil, on(large24)},                                           // 500 shims take 7 GiB
	"TestMeasureOOMVerdicts":                 {nil, on(cgroupfs24, kernel61)},                              // each kernel's counters, and the machine's time
	"TestMeasureOOMVerdictsBesideTheKubelet": {nil, on(kubeletCgroupfs)},                                   // what a kubelet shows, which knows no driver
	"TestPageCacheKills":                     {nil, on(cgroupfs24, kernel61, kernelTrixie, kernelTesting)}, // each kernel's reclaim of pages that are not written yet
}

// Runs reports whether a case runs in this variant.
func (v Variant) Runs(name string, full bool) bool {
	c := choices[name]
	return slices.Contains(c.always, v.Name) || full && slices.Contains(c.full, v.Name)
}

// Empty reports whether no case runs in this variant.
func (v Variant) Empty(full bool) bool {
	for name := range choices {
		if v.Runs(name, full) {
			return false
		}
	}
	return true
}

// CheckChoices fails unless each of these cases has a choice, and each choice a case.
func CheckChoices(names []string) error {
	for _, name := range names {
		if _, found := choices[name]; !found {
			return fmt.Errorf("vm/cases.go: no variant is named for %s", name)
		}
	}
	for name := range choices {
		if !slices.Contains(names, name) {
			return fmt.Errorf("vm/cases.go: there is no case %s", name)
		}
	}
	return nil
}

package main

import "regexp"

// introduction is the page's head.
const introduction = `# Kubernetes' own tests

SIG Node tests the kubelet's Memory Manager and Memory QoS with ` + "`test/e2e_node`" + `. The same cases run here unmodified, with the kubelet's own
managers and with the plugin in their place, in an emulated machine of two NUMA nodes with containerd 2.4 and systemd
([what it needs](testing.md)):

    make conformance                                                         # the four suites, twice; two to three hours
    make conformance SUITES=memory_qos RUNS=reference=FOLDER,plugin=FOLDER   # its pages again, from results that are there

The plugin has the kubelet's configuration (` + "`kubeletConfig`" + `) as the suites rewrite it, and its defaults but for
` + "`guaranteedHeadroom: 0`, `onUnsatisfiable: Reject`, `onConflict: Kubelet`, `stallGuard: false`" + `.

Compared are memory.min, memory.low, memory.high and cpuset.mems of containers, pods, kubepods and its QoS classes at the end of each case. A
case that fails is tried a second time, because the emulated machine is slow.
`

// reasons are why cases cannot pass with the plugin, and what it does in their place.
var reasons = []struct {
	of  *regexp.Regexp
	why string
}{
	{regexp.MustCompile(`bigger than free memory on each NUMA node`), "The kubelet admits the pod and the plugin refuses its container: `CreateContainerError` with the reason, where the " +
		"kubelet's Memory Manager fails the pod with `UnexpectedAdmissionError`."},
	{regexp.MustCompile(`should reject a pod that would result in an empty pod shared pool`), "The container is refused with the kubelet's words; the pod's phase stays Pending."},
	{regexp.MustCompile(`should persist container-level memory.low after rollback`), "The kubelet cannot take memory.low back from a running container. The plugin does."},
	{regexp.MustCompile(`should clear stale memory.high when MemoryQoS is disabled and container is resized|memoryThrottlingFactor from nil to 0.9 and resizing`),
		"The plugin writes memory.high at once, not at the resize."},
}

// fileReason is why files of some levels hold something else with the plugin.
type fileReason struct {
	of    *regexp.Regexp // the cases; nil for all
	files []string       // "level name"
	why   string
}

var fileReasons = []fileReason{
	{nil, []string{"kubepods memory.low"}, "The kubelet leaves it at 0, with which memory.low below it has no effect. The plugin writes the sum of the pods' memory.low."},
	{regexp.MustCompile(`switching from TieredReservation to None|persist container-level memory.low after rollback|feature rollback should`),
		[]string{"container memory.low", "container memory.high", "pod memory.low", "kubepods memory.min", "kubepods/kubepods-burstable.slice memory.low"},
		"The kubelet writes a container's and a pod's files when they start, and leaves what is there when the policy changes. The plugin writes what the new configuration says."},
	{regexp.MustCompile(`after Burstable pod resize`), []string{"kubepods memory.min", "kubepods/kubepods-burstable.slice memory.low"},
		"The kubelet adds the pods up once a minute. The plugin writes the sums at the resize."},
	{regexp.MustCompile(`bigger than free memory on each NUMA node|for sequential guaranteed pods|when no containers used it`), []string{"container cpuset.mems"},
		"The case asks for nearly all memory of a NUMA node that it takes from a Go map, whose order is random."},
}

// besideOthers is why sums are not compared where pods of another case ran at the same time.
const besideOthers = "pods of another case, which still ended, ran beside these in one of the runs"

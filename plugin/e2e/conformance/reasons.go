package main

import "regexp"

// introduction is the page's head.
const introduction = `# Kubernetes' own tests

SIG Node tests the kubelet's Memory Manager and Memory QoS with ` + "`test/e2e_node`" + `. Here the same cases run unmodified, twice: with the
kubelet's own managers, and with them off and the plugin in their place.

The suites start the kubelet and rewrite its configuration. A program stands in front of the kubelet's: it hands the configuration to the
plugin (` + "`kubeletConfig`" + `), and takes out the Memory Manager's policy and MemoryQoS with its fields for the kubelet. Where the
policy is Static, a link leads from the kubelet's state file to the plugin's, and, unless the kubelet assigns CPUs, one from the kubelet's PodResources
socket to the plugin's. The plugin has its defaults but for what is different from the kubelet on purpose: ` + "`guaranteedHeadroom: 0`, `onUnsatisfiable: Reject`,\n`alignTo: kubelet`, `coverDeficits: Off`, no stall guard" + `.

The column of cgroup files compares memory.min, memory.low, memory.high and cpuset.mems of the case's containers, their pods, and
kubepods with its QoS classes, as they were last while the container ran.

`

// reasons are why cases have another outcome with the plugin, or with both.
var reasons = []struct {
	of   *regexp.Regexp
	both bool // the outcome is the same with the kubelet's managers
	why  string
}{}

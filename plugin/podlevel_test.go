package main

import (
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// A pod with a limit of its own has no memory.high, as under a kubelet: it would stop the pod where the stall guard raises
// that of its container. An older release set one, which the next start takes back from pods that still run.
func TestAPodWithALimitOfItsOwnIsNotThrottledAsAWhole(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	pod := burstable("shared", 2*gi, 968)
	api := h.podAPI()
	api.put(pod, `{spec: {resources: {requests: {memory: 1Gi}, limits: {memory: 2Gi}}, containers: [{name: app, resources: {requests: {memory: 1Gi}, limits: {memory: 2Gi}}}]}}`)
	api.start()
	plugin := h.start()
	h.deploy(pod)
	container := pod.cgroup() + "/" + pod.id()
	eventually(t, "the container has its memory.high", func() bool { return h.knob(container, "memory.high") == "2040107008" })
	eventually(t, "the pod has its request", func() bool { return h.knob(pod.cgroup(), "memory.low") == "1073741824" })
	if high := h.knob(pod.cgroup(), "memory.high"); high != "max" {
		t.Errorf("memory.high of the pod is %q, want max", high)
	}

	plugin.stop()
	must(t, h.tree.Write(pod.cgroup(), "memory.high", "2040107008"))
	journal, damage, err := protect.OpenJournal(h.path("state"))
	must(t, err)
	must(t, damage)
	journal.Note(protect.Entry{Cgroup: pod.cgroup(), Knob: cgroup.MemoryHigh})
	must(t, journal.Close(t.Context()))
	plugin = h.start()
	eventually(t, "the older release's memory.high of the pod is taken back", func() bool { return h.knob(pod.cgroup(), "memory.high") == "max" })
	plugin.stop()
	journal, _, err = protect.OpenJournal(h.path("state"))
	must(t, err)
	for _, entry := range journal.Entries() {
		if entry.Cgroup == pod.cgroup() && entry.Knob == cgroup.MemoryHigh {
			t.Error("the journal still has it")
		}
	}
	must(t, journal.Close(t.Context()))
}

// A resource claim adds 5Gi of the node's memory to the limit of a container of 1Gi and 2Gi, as a kubelet 1.37 with
// DRANodeAllocatableResources does: memory.high lies below the limit with the claim, the container is protected with its own request and
// the pod with its claims.
func TestAPodWithClaimedMemory(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	pod := burstable("claims", 7*gi, 968)
	api := h.podAPI()
	api.put(pod, `{spec: {containers: [{name: app, resources: {requests: {memory: 1Gi}, limits: {memory: 2Gi}}}]},
status: {nodeAllocatableResourceClaimStatuses: [{resourceClaimName: c, containers: [app], mapping: [{name: memory, quantity: 5Gi}]}]}}`)
	api.start()
	h.start()
	h.deploy(pod)
	container := pod.cgroup() + "/" + pod.id()
	eventually(t, "the container has its memory.high", func() bool { return h.knob(container, "memory.high") == "6871945216" })
	eventually(t, "the container has its own request", func() bool { return h.knob(container, "memory.low") == "1073741824" })
	eventually(t, "the pod has its request and its claim", func() bool { return h.knob(pod.cgroup(), "memory.low") == "6442450944" })
}

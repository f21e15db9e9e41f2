package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

const managed = "podLevelResourceManagers: true\ntopologyManagerPolicy: restricted\n"

// levelPod is a Guaranteed pod of 3Gi with pod-level resources: "own" has 1Gi of its own, "b" and "c" share the rest.
func levelPod(n *node, name string) (Pod, *pods.Pod) {
	pod := n.pod(name, memoryqos.Guaranteed)
	pod.MemoryLimit = 3 * gi
	budget := 3 * gi
	p := spec(pod, memoryqos.Guaranteed,
		pods.Container{Name: "own", Request: gi, Limit: gi, Guaranteed: true}, pods.Container{Name: "b"}, pods.Container{Name: "c"})
	p.PodRequest, p.PodLimit = &budget, &budget
	return pod, p
}

// launchAll creates the containers as the kubelet does: the limit of one without its own is the pod's.
func launchAll(n *node, pod Pod) (containers []Container) {
	for name, limit := range map[string]uint64{"own": gi, "b": 3 * gi, "c": 3 * gi} {
		containers = append(containers, n.launch(pod, ofPod(pod, name, limit)))
	}
	return containers
}

// pinned are the nodes of the three containers.
func pinned(n *node, pod Pod) string {
	var all []string
	for _, name := range []string{"own", "b", "c"} {
		all = append(all, n.containerView(pod, name).Nodes.String())
	}
	return strings.Join(all, "/")
}

func TestPodLevelResourceManagers(t *testing.T) {
	tests := map[string]struct {
		yaml              string
		pinned, allocated string
		blocks            string // of the pod
		pinning           string // of b
	}{
		"scope pod":       {managed + "topologyManagerScope: pod", "0/0/0", "3072 0", "3Gi of memory", "pinned under restricted, with its pod (pod-level resources)"},
		"scope container": {managed, "0//", "1024 0", "nothing", "not pinned: the container shares its pod's resources, and only scope pod allocates these"},
		"policy none": {"podLevelResourceManagers: true\ntopologyManagerPolicy: none\ntopologyManagerScope: pod", "0//", "1024 0", "nothing",
			"not pinned: the container shares its pod's resources, and only scope pod allocates these"},
		"off": {"topologyManagerScope: pod", "//", "0 0", "nothing", "not pinned: the pod's resources are its own, not its containers' (pod-level resources)"},
	}
	for name, test := range tests {
		for when, early := range map[string]bool{"known at the creation": true, "known later": false} {
			t.Run(name+", "+when, func(t *testing.T) {
				api := &podAPI{}
				n := newNode(t, test.yaml, func(n *node) { n.providers = []podinfo.Provider{api} })
				n.background()
				api.listening(t)
				pod, p := levelPod(n, "pod")
				if early {
					api.say(p)
				}
				launchAll(n, pod)
				if !early {
					n.want("allocated before the spec is known", n.allocated(), "0 0")
					api.say(p)
				}
				eventually(t, "the containers have their nodes: "+test.pinned, func() bool { return pinned(n, pod) == test.pinned })
				n.want("allocated", n.allocated(), test.allocated)
				n.want("the pod's blocks", blocksText(n.podView(pod).Blocks), test.blocks)
				if pinning := n.containerView(pod, "b").Pinning; early || test.blocks == "nothing" {
					n.want("pinning of b", pinning, test.pinning)
				}
				if err := n.endPod(context.Background(), pod); err != nil {
					t.Fatal(err)
				}
				n.want("allocated at the end", n.allocated(), "0 0")
			})
		}
	}
}

// An allocation of a pod outlives the plugin by its state file, and without one it is found by the containers' cpuset.mems.
func TestAPodsOwnAllocationIsRestored(t *testing.T) {
	for name, lost := range map[string]bool{"from the state file": false, "from cpuset.mems": true} {
		t.Run(name, func(t *testing.T) {
			api := &podAPI{}
			n := newNode(t, managed+"topologyManagerScope: pod", func(n *node) { n.providers = []podinfo.Provider{api} })
			pod, p := levelPod(n, "pod")
			api.say(p)
			containers := launchAll(n, pod)
			n.want("allocated", n.allocated(), "3072 0")
			n.stop()
			path := filepath.Join(n.state, checkpoint.FileName)
			file, err := checkpoint.ReadFile(path)
			if err != nil || file.Format != checkpoint.V3 {
				t.Fatalf("layout %s, %v", file.Format, err)
			}
			if lost {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			n.start()
			n.sync([]Pod{pod}, containers)
			n.want("nodes", pinned(n, pod), "0/0/0")
			n.want("allocated", n.allocated(), "3072 0")
			n.want("the pod's blocks", blocksText(n.podView(pod).Blocks), "3Gi of memory")
			if err := n.endPod(context.Background(), pod); err != nil {
				t.Fatal(err)
			}
			n.want("allocated at the end", n.allocated(), "0 0")
		})
	}
}

// A pod whose containers' own requests are its budget leaves the others no memory.
func TestAnEmptySharedPoolIsRejected(t *testing.T) {
	const cause = "the containers' own requests are all of the pod's memory, which leaves nothing to the containers without one"
	for policy, reason := range map[string]string{"restricted": "TopologyAffinityError", "best-effort": "EmptyPodSharedPoolError"} {
		t.Run(policy, func(t *testing.T) {
			api := &podAPI{}
			n := newNode(t, "podLevelResourceManagers: true\ntopologyManagerScope: pod\nonUnsatisfiable: Reject\ntopologyManagerPolicy: "+policy,
				func(n *node) { n.providers = []podinfo.Provider{api} })
			pod, p := levelPod(n, "pod")
			budget := gi
			p.PodRequest, p.PodLimit = &budget, &budget
			api.say(p)
			_, err := n.CreateContainer(context.Background(), pod, ofPod(pod, "own", gi))
			if err == nil || !strings.Contains(err.Error(), cause) {
				t.Errorf("got %v, want %s", err, cause)
			}
			n.want("the reason", n.View().Rejections[0].Reason, reason)
			n.want("allocated", n.allocated(), "0 0")
		})
	}
}

// The option can be switched while such pods run.
func TestPodLevelResourceManagersIsSwitched(t *testing.T) {
	api := &podAPI{}
	n := newNode(t, "topologyManagerScope: pod", func(n *node) { n.providers = []podinfo.Provider{api} })
	pod, p := levelPod(n, "pod")
	api.say(p)
	launchAll(n, pod)
	n.want("off", n.allocated()+" "+pinned(n, pod), "0 0 //")
	n.reconfigure(managed + "topologyManagerScope: pod")
	n.want("on", n.allocated()+" "+pinned(n, pod), "3072 0 0/0/0")
	n.reconfigure("topologyManagerScope: pod")
	n.want("off again", n.allocated()+" "+pinned(n, pod), "0 0 //")
}

// blocksText is what blocks are of, for example "3Gi of memory".
func blocksText(blocks []memorymanager.Block) string {
	var request memorymanager.Request
	for _, b := range blocks {
		request = append(request, memorymanager.Amount{Type: b.Type, Bytes: b.Size})
	}
	return request.String()
}

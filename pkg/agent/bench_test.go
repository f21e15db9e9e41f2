package agent

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// eightNodes has room for a thousand pods.
const eightNodes = `
nodes:
  - {id: 0, memory: 256Gi, cpus: 0-7}
  - {id: 1, memory: 256Gi, cpus: 8-15}
  - {id: 2, memory: 256Gi, cpus: 16-23}
  - {id: 3, memory: 256Gi, cpus: 24-31}
  - {id: 4, memory: 256Gi, cpus: 32-39}
  - {id: 5, memory: 256Gi, cpus: 40-47}
  - {id: 6, memory: 256Gi, cpus: 48-55}
  - {id: 7, memory: 256Gi, cpus: 56-63}
`

// loaded is a node with so many pods of one running container each, every second one pinned.
func loaded(b *testing.B, pods int) (n *node, all []Pod, containers []Container) {
	n = newNode(b, "kubeReserved: {memory: 8Gi}\nreservedMemory: []", func(n *node) {
		n.machine = parseMachine(b, eightNodes)
	})
	n.log.discard()
	n.Agent.log.(*logrus.Logger).SetOutput(io.Discard)
	n.Agent.log.(*logrus.Logger).SetLevel(logrus.WarnLevel)
	for i := range pods {
		class := memoryqos.Guaranteed
		if i%2 == 1 {
			class = memoryqos.Burstable
		}
		pod := n.pod(fmt.Sprintf("pod%d", i), class)
		c := ofPod(pod, "main", 64*mi)
		if class == memoryqos.Burstable {
			adj := int64(990)
			c.Resources.OOMScoreAdj = &adj
		}
		c.State = Running
		all, containers = append(all, pod), append(containers, c)
	}
	updates := map[string]Adjustment{}
	for _, update := range n.sync(all, containers) {
		updates[update.ContainerID] = update.Adjustment
	}
	for i := range containers {
		n.files(containers[i].CgroupsPath, updates[containers[i].ID])
		containers[i].Resources = with(containers[i].Resources, updates[containers[i].ID])
	}
	return n, all, containers
}

// files makes a container's cgroup with all files that are read of it, as a kernel does.
func (n *node) files(dir string, adjustment Adjustment) {
	n.mkdir(dir)
	for _, file := range []string{"memory.min", "memory.low", "memory.high", "cpuset.mems"} {
		n.writeFile(dir, file, cgroup.Default(file))
	}
	n.writeFile(dir, "memory.max", bytesOf(64*mi))
	n.write(dir, adjustment)
}

// BenchmarkSynchronize is a whole Synchronize, the checkpoint's write included, by an agent that has just read it.
func BenchmarkSynchronize(b *testing.B) {
	for _, pods := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("containers=%d", pods), func(b *testing.B) {
			n, all, containers := loaded(b, pods)
			for b.Loop() {
				b.StopTimer()
				n.stop()
				n.start()
				n.Agent.log.(*logrus.Logger).SetOutput(io.Discard)
				b.StartTimer()
				n.sync(all, containers)
			}
		})
	}
}

// BenchmarkSynchronizeAnnotations is a Synchronize of 150 pods that carry as many bytes of annotations as the API server
// admits, half of them in keys of ours, by an agent that has not read them yet.
func BenchmarkSynchronizeAnnotations(b *testing.B) {
	const size = 250 << 10
	n, pods, containers := loaded(b, 150)
	annotations := map[string]string{"other": strings.Repeat("x", size/2)}
	for i, left := 0, size/2; left > 0; i++ {
		key := fmt.Sprintf("a%d.memory-manager.noderesource.dev/a", i)
		annotations[key] = ""
		left -= len(key)
	}
	for i := range pods {
		pods[i].Annotations = annotations
	}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		n.stop()
		n.start()
		n.Agent.log.(*logrus.Logger).SetOutput(io.Discard)
		b.StartTimer()
		n.sync(pods, containers)
	}
}

// BenchmarkCreate is a create and the end of its pod beside so many other pods; the state folder decides about the disk.
func BenchmarkCreate(b *testing.B) {
	for _, class := range []memoryqos.QOSClass{memoryqos.Guaranteed, memoryqos.Burstable} {
		for _, pods := range []int{0, 100, 1000} {
			b.Run(fmt.Sprintf("%s/existing=%d", class, pods), func(b *testing.B) {
				n, _, _ := loaded(b, pods)
				pod := n.pod("measured", class)
				c := ofPod(pod, "main", 64*mi)
				if class == memoryqos.Burstable {
					adj := int64(990)
					c.Resources.OOMScoreAdj = &adj
				}
				ctx := context.Background()
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					pod.ID = fmt.Sprint(i)
					if _, err := n.CreateContainer(ctx, pod, c); err != nil {
						b.Fatal(err)
					}
					if err := n.endPod(ctx, pod); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkDecide is the part of a create under the lock: nothing else can happen meanwhile.
func BenchmarkDecide(b *testing.B) {
	n, _, _ := loaded(b, 1000)
	pod := n.pod("measured", memoryqos.Guaranteed)
	c := ofPod(pod, "main", 64*mi)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		pod.ID = strconv.Itoa(i)
		if effects := n.step(ledger.CreateContainer{Pod: pod, Container: c}); effects.Err != nil {
			b.Fatal(effects.Err)
		}
		n.step(ledger.EndPod{Pod: pod, Gone: true})
	}
}

// BenchmarkAncestors is the derivation of all parent cgroups from 1,000 pods, without and with the writes.
func BenchmarkAncestors(b *testing.B) {
	n, _, _ := loaded(b, 1000)
	b.Run("derive", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			n.ledger.Targets()
		}
	})
	b.Run("apply", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			n.outbox.all = true
			n.protect(context.Background())
		}
	})
}

// BenchmarkView is a View after one pod has changed.
func BenchmarkView(b *testing.B) {
	n, pods, _ := loaded(b, 1000)
	for _, i := range rand.Perm(len(pods)) { // the order of no name, as the comings and goings of days leave it
		n.step(ledger.EndPod{Pod: pods[i], Gone: true})
		pods[i].ID += "-again"
		n.step(ledger.RunPod{Pod: pods[i]})
	}
	for b.Loop() {
		n.step(ledger.UpdatePod{Pod: pods[0]})
		n.View()
	}
}

package cases

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// touchFile lets workloads go on that wait for it.
func touchFile(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

const (
	protectedRequest = 64 * MiB
	protectedUse     = 80 * MiB
)

// protectedPair runs a Burstable pod with a request and a twin without one, both
// using the same. Neither has a limit: runtimes keep limited containers from swapping.
func protectedPair(t *testing.T, k machine) (protected, twin *kubelet.Pod) {
	t.Helper()
	protected = &kubelet.Pod{Name: "protected", Containers: []kubelet.Container{{Name: "app", Request: protectedRequest, Args: touching(protectedUse)}}}
	twin = &kubelet.Pod{Name: "twin", Containers: []kubelet.Container{{Name: "app", Args: touching(protectedUse)}}}
	for _, pod := range []*kubelet.Pod{protected, twin} {
		run(t, k, pod)
		said(t, k, pod, "app", fmt.Sprint("done touch=", protectedUse))
	}
	return protected, twin
}

// kept says how many bytes of a container are still in memory.
func kept(t *testing.T, k machine, pod *kubelet.Pod) uint64 {
	t.Helper()
	return number(t, dirOf(t, k, pod, "app"), "memory.current")
}

// atLeast and atMost check what is left of the protected container and its twin.
func atLeast(t *testing.T, k machine, pod *kubelet.Pod) {
	t.Helper()
	if now := kept(t, k, pod); now*100 < protectedRequest*95 {
		t.Errorf("%s keeps %d bytes, less than 95 %% of its request %d", pod.Name, now, protectedRequest)
	} else {
		t.Logf("%s keeps %d bytes of a request of %d", pod.Name, now, protectedRequest)
	}
}

func atMost(t *testing.T, k machine, pod *kubelet.Pod) {
	t.Helper()
	if now := kept(t, k, pod); now*100 >= protectedRequest*95 {
		t.Errorf("%s keeps %d bytes although nothing protects it", pod.Name, now)
	} else {
		t.Logf("%s, unprotected, keeps %d bytes", pod.Name, now)
	}
}

// TestProtectionHoldsWhenKubepodsIsReclaimed forces reclaim from above the pods.
func TestProtectionHoldsWhenKubepodsIsReclaimed(t *testing.T) {
	k := criOf(t)
	swap(t, 512*MiB)
	p := startPlugin(t, "memoryReservationPolicy: HardReservation", "memoryThrottlingFactor: 1.0")
	protected, twin := protectedPair(t, k)
	eventually(t, "the request is protected", func() string {
		if n := number(t, k.Kubepods(), "memory.min"); n != protectedRequest {
			return fmt.Sprintf("kubepods has memory.min %d", n)
		}
		return ""
	})
	reclaim(k.Kubepods(), 512*MiB)
	atLeast(t, k, protected)
	atMost(t, k, twin)

	// The reason for the ancestors: with the container's own value alone, the
	// very same reclaim takes the memory.
	p.kill()
	for _, dir := range []string{k.Kubepods(), k.QoS(protected), k.Dir(protected)} {
		write(t, "0", dir, "memory.min")
	}
	if n := number(t, dirOf(t, k, protected, "app"), "memory.min"); n != protectedRequest {
		t.Fatalf("the container's memory.min is %d", n)
	}
	reclaim(k.Kubepods(), 512*MiB)
	if now := kept(t, k, protected); now*100 >= protectedRequest*95 {
		t.Errorf("with protection on the container alone it keeps %d bytes: then ancestors would not be needed", now)
	} else {
		t.Logf("with protection on the container alone it keeps %d bytes", now)
	}
}

// TestProtectionHoldsAgainstANeighbour lets another pod eat the node's memory.
func TestProtectionHoldsAgainstANeighbour(t *testing.T) {
	k := criOf(t)
	swap(t, 768*MiB)
	startPlugin(t, "memoryReservationPolicy: HardReservation", "memoryThrottlingFactor: 1.0")
	protected, twin := protectedPair(t, k)
	shrinkNode(t, k)
	appetite := memAvailable(t) + 200*MiB
	neighbour := &kubelet.Pod{Name: "neighbour", Containers: []kubelet.Container{{
		Name: "app", Args: []string{"wait=/ctl/go", fmt.Sprint("grow=", appetite/MiB*MiB)},
	}}}
	run(t, k, neighbour)
	// memory.high of a BestEffort container is as large as the node: it does not stop this one.
	touchFile(t, k.Control(neighbour), "go")
	eventually(t, "the neighbour squeezes the twin", func() string {
		if now := kept(t, k, twin); now*100 >= protectedRequest*95 {
			return fmt.Sprintf("the twin still has %d bytes; the neighbour says %q", now, k.Output(neighbour, "app"))
		}
		return ""
	})
	atLeast(t, k, protected)
	atMost(t, k, twin)
	if err := k.Remove(t.Context(), neighbour); err != nil {
		t.Fatal(err)
	}
}

// shrinkNode takes most of the free memory away as huge pages, which costs no
// time, so that the neighbour has less to eat.
func shrinkNode(t *testing.T, k machine) {
	t.Helper()
	const left = 64 * MiB // on each node
	for _, n := range planOf(t).Nodes {
		dir := fmt.Sprintf("/sys/devices/system/node/node%d", n.ID)
		pages := dir + "/hugepages/hugepages-2048kB/nr_hugepages"
		before := file(pages)
		t.Cleanup(func() { _ = rawWrite(pages, before) })
		var id int
		var kib uint64
		for line := range strings.Lines(file(dir, "meminfo")) {
			if _, err := fmt.Sscanf(line, "Node %d MemFree: %d kB", &id, &kib); err == nil && kib<<10 > left {
				write(t, fmt.Sprint(uint64(n.Hugepages)+(kib<<10-left)/(2*MiB)), pages)
			}
		}
	}
	t.Logf("%d MiB are left to pods", memAvailable(t)/MiB)
}

package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// freeOn has the kernel show so many free pages of 2Mi on nodes 0 and 1.
func (n *node) freeOn(pages ...int) {
	n.Helper()
	for id, free := range pages {
		folder := filepath.Join(n.sysfs, "devices/system/node", fmt.Sprint("node", id), "hugepages/hugepages-2048kB")
		if err := os.MkdirAll(folder, 0o755); err != nil {
			n.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "free_hugepages"), fmt.Appendln(nil, free), 0o644); err != nil {
			n.Fatal(err)
		}
	}
}

func TestHugepagesThatTheKernelDoesNotHave(t *testing.T) {
	const (
		verified = "verifyHugepages: true\n"
		text     = "insufficient hugepages-2Mi on NUMA node(s) [0]: requested 800Mi, available 400Mi"
	)
	tests := map[string]struct {
		config string
		free   []int
		mems   string
		err    string // of the creation
		reason string // of a container that runs unpinned
		logged string
	}{
		"not verified by default":   {config: "topologyManagerPolicy: restricted\n", free: []int{0, 0}, mems: "0"},
		"enough":                    {config: verified, free: []int{400, 0}, mems: "0"},
		"restricted":                {config: verified + "topologyManagerPolicy: restricted\n", free: []int{200, 512}, err: text},
		"single-numa-node":          {config: verified + "topologyManagerPolicy: single-numa-node\n", free: []int{200, 512}, err: text},
		"best-effort runs unpinned": {config: verified, free: []int{200, 512}, mems: "", reason: "InsufficientHugepages"},
		"best-effort that rejects":  {config: verified + "onUnsatisfiable: Reject\n", free: []int{200, 512}, err: text},
		"it cannot be read":         {config: verified, mems: "0", logged: "the kernel's free huge pages cannot be read: the container is placed without them"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, test.config, func(n *node) { n.sysfs = t.TempDir() })
			n.freeOn(test.free...)
			pod := n.pod("huge", memoryqos.Guaranteed)
			c := ofPod(pod, "main", gi)
			c.Resources.Hugepages = []HugepageLimit{{PageSize: "2MB", Limit: 400 * 2 * mi}, {PageSize: "1GB"}}
			got, err := n.CreateContainer(context.Background(), pod, c)
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("the creation ended with %v, want %s", err, test.err)
			}
			n.want("cpuset.mems", got.CpusetMems, test.mems)
			if !strings.Contains(n.log.String(), test.logged) {
				t.Errorf("the log has no %q:\n%s", test.logged, n.log)
			}
			if test.reason != "" {
				n.want("pinning", n.containerView(pod, "main").Pinning, "not pinned: "+test.reason)
			}
			if test.mems == "" {
				n.want("the allocations", n.allocated(), "0 0")
				n.freeOn(512, 512) // the next try finds them
				n.want("cpuset.mems", n.create(pod, c).CpusetMems, "0")
			}
			n.freeOn(0, 0) // the container uses them now, and keeps its nodes when it starts again
			c.ID += "-again"
			n.want("cpuset.mems", n.create(pod, c).CpusetMems, "0")
		})
	}
}

// TestOnlyWhatIsNeededIsRead: huge pages are none of a pod's that is not placed, and of a container's that asks for none.
func TestOnlyWhatIsNeededIsRead(t *testing.T) {
	n := newNode(t, "verifyHugepages: true\n", func(n *node) { n.sysfs = filepath.Join(t.TempDir(), "absent") })
	burstable, plain := n.pod("burstable", memoryqos.Burstable), n.pod("plain", memoryqos.Guaranteed)
	c := ofPod(burstable, "main", gi)
	c.Resources.Hugepages = []HugepageLimit{{PageSize: "2MB", Limit: 2 * mi}}
	n.create(burstable, c)
	n.want("cpuset.mems", n.create(plain, ofPod(plain, "main", gi)).CpusetMems, "0")
	if strings.Contains(n.log.String(), "cannot be read") {
		t.Error(n.log)
	}
}

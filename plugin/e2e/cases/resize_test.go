package cases

import (
	"fmt"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestResizeInPlace has the kubelet resize running containers.
func TestResizeInPlace(t *testing.T) { resizeInPlace(t, kubeletOf(t)) }

// TestResizeByRequest resizes them by the requests of a kubelet, for every runtime.
func TestResizeByRequest(t *testing.T) { resizeInPlace(t, criOf(t)) }

// resizeInPlace changes requests and limits of running containers, up and
// down, pinned and unpinned; all values and the allocation follow.
func resizeInPlace(t *testing.T, k machine) {
	t.Helper()
	p := startPlugin(t)
	pinned := guaranteed("pinned", 64*MiB, 16*MiB)
	unpinned := &kubelet.Pod{Name: "unpinned", Containers: []kubelet.Container{{Name: "app", Request: 32 * MiB, Limit: 64 * MiB}}}
	run(t, k, pinned)
	run(t, k, unpinned)
	nodes := file(dirOf(t, k, pinned, "app"), "cpuset.mems")
	if nodes == "" {
		t.Fatal("the Guaranteed container is not pinned")
	}
	for _, step := range []struct{ pinned, request, limit uint64 }{
		{96 * MiB, 48 * MiB, 128 * MiB}, {40 * MiB, 24 * MiB, 48 * MiB}, {64 * MiB, 32 * MiB, 64 * MiB},
	} {
		if err := k.Resize(t.Context(), pinned, "app", step.pinned, step.pinned); err != nil {
			t.Fatal(err)
		}
		if err := k.Resize(t.Context(), unpinned, "app", step.request, step.limit); err != nil {
			t.Fatal(err)
		}
		p.agrees(k, p.simulate(pinned, unpinned), pinned, unpinned)
		if now := file(dirOf(t, k, pinned, "app"), "cpuset.mems"); now != nodes {
			t.Errorf("resized to %d, the container moved from node %s to %s", step.pinned, nodes, now)
		}
		eventually(t, "the allocation follows", func() string {
			if blocks := p.allocated(pinned, "app"); len(blocks) != 1 || blocks[0].Size != step.pinned {
				return fmt.Sprintf("%+v, want %d bytes", blocks, step.pinned)
			}
			return ""
		})
	}
	said(t, k, pinned, "app", fmt.Sprint("done touch=", 16*MiB))
	onNodes(t, "pinned", anonPages(t, k, pinned, "app"), ids(t, nodes), 16*MiB)
}

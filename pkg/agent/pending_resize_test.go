package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const numaAnnotation = "numa.memory-manager.noderesource.dev"

// crowd fills node 0: 8Gi for the pod "small", 6Gi for "other", and 512Mi are left. It returns their containers too.
func (n *node) crowd(annotation string) (small, other Pod, c, neighbor Container) {
	n.Helper()
	small, other = n.pod("small", memoryqos.Guaranteed), n.pod("other", memoryqos.Guaranteed)
	if annotation != "" {
		small.Annotations = map[string]string{numaAnnotation: annotation}
	}
	neighbor = n.launch(other, ofPod(other, "main", 6*gi))
	c = n.launch(small, ofPod(small, "main", 8*gi))
	n.want("allocated on the nodes", n.allocated(), "14336 0")
	return small, other, c, neighbor
}

func to(bytes uint64) Resources { return Resources{MemoryLimit: limit(int64(bytes))} }

func TestAResizeThatFindsNoRoom(t *testing.T) {
	const refused = "node 0 has no room for more"
	tests := map[string]struct{ yaml, annotation, err string }{
		"none":                              {"topologyManagerPolicy: none", "", ""},
		"best-effort":                       {"", "", ""},
		"best-effort, Reject":               {"onUnsatisfiable: Reject", "", ""},
		"best-effort, preferred":            {"", "preferred", ""},
		"best-effort, required":             {"", "required", refused},
		"restricted":                        {"topologyManagerPolicy: restricted", "", ""},
		"restricted, required":              {"topologyManagerPolicy: restricted", "required", refused},
		"restricted, Unpinned":              {"topologyManagerPolicy: restricted\nonUnsatisfiable: Unpinned", "", ""},
		"single-numa-node":                  {"topologyManagerPolicy: single-numa-node", "", refused},
		"single-numa-node, preferred":       {"topologyManagerPolicy: single-numa-node", "preferred", ""},
		"single-numa-node, Unpinned":        {"topologyManagerPolicy: single-numa-node\nonUnsatisfiable: Unpinned", "", ""},
		"single-numa-node, both, but it is": {"topologyManagerPolicy: single-numa-node\nonUnsatisfiable: Unpinned", "required", refused},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, test.yaml)
			small, _, c, _ := n.crowd(test.annotation)
			got, err := n.UpdateContainer(context.Background(), small, c, to(10*gi))
			view := n.containerView(small, "main")
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("got %v, want %s", err, test.err)
				}
				n.want("allocated on the nodes", n.allocated(), "14336 0")
				n.want("pending resize", view.PendingResize.String(), "nothing")
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			n.want("cpuset.mems", got.CpusetMems, "0-1")
			n.want("the nodes shown", view.Nodes.String(), "0-1")
			n.want("allocated on the nodes", n.allocated(), "14848 0")
			n.want("pending resize", view.PendingResize.String(), "1.5Gi of memory")
			if view.Limit != 10*gi || len(n.View().Rejections) > 0 {
				t.Errorf("limit %d, rejections %+v", view.Limit, n.View().Rejections)
			}
		})
	}
}

func TestAPendingResizeIsAllocatedOnceThereIsRoom(t *testing.T) {
	for name, test := range map[string]struct {
		free        func(n *node, other Pod, c Container)
		allocated   string
		short, mems string
	}{
		"its neighbor ends": {func(n *node, other Pod, _ Container) {
			if err := n.endPod(context.Background(), other); err != nil {
				n.Fatal(err)
			}
		}, "10240 0", "nothing", "0"},
		"its neighbor shrinks": {func(n *node, other Pod, c Container) { n.update(other, c, to(4*gi)) }, "14336 0", "nothing", "0"},
		"its neighbor shrinks a little": {func(n *node, other Pod, c Container) { n.update(other, c, to(5*gi)) },
			"14848 0", "512Mi of memory", "0-1"},
		"nothing is released": {func(*node, Pod, Container) {}, "14848 0", "1.5Gi of memory", "0-1"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "topologyManagerPolicy: restricted")
			small, other, c, neighbor := n.crowd("")
			n.write(c.CgroupsPath, *n.update(small, c, to(10*gi)))
			if err := n.PostUpdateContainer(context.Background(), small, c); err != nil {
				t.Fatal(err)
			}
			for len(n.wake) > 0 {
				<-n.wake
			}
			test.free(n, other, neighbor)
			if test.mems == "0" && len(n.wake) == 0 { // other nodes are to be brought
				t.Error("Run is not told")
			}
			n.work(context.Background())
			n.want("allocated on the nodes", n.allocated(), test.allocated)
			n.want("pending resize", n.containerView(small, "main").PendingResize.String(), test.short)
			n.want("cpuset.mems", n.file(c.CgroupsPath, "cpuset.mems"), test.mems)
			generation := n.View().Generation
			n.work(context.Background())
			if n.View().Generation != generation {
				t.Error("the same again has changed something")
			}
		})
	}
}

func TestAResizeDownEndsThePendingOne(t *testing.T) {
	n := newNode(t, "")
	small, _, c, _ := n.crowd("")
	n.update(small, c, to(10*gi))
	if got := n.update(small, c, to(8*gi+512*mi)); got == nil || got.CpusetMems != "0" { // exactly what is allocated
		t.Errorf("answered with %+v", got)
	}
	n.want("pending resize", n.containerView(small, "main").PendingResize.String(), "nothing")
	n.update(small, c, to(10*gi))
	if got := n.update(small, c, to(gi)); got == nil || got.CpusetMems != "0" {
		t.Errorf("answered with %+v", got)
	}
	n.want("allocated on the nodes", n.allocated(), "7168 0")
}

func TestARestartFindsAPendingResize(t *testing.T) {
	n := newNode(t, "")
	small, other, c, neighbor := n.crowd("")
	got := n.update(small, c, to(10*gi))
	c.Resources = with(c.Resources.Updated(to(10*gi)), *got)
	n.write(c.CgroupsPath, *got)
	n.restart()
	file, err := n.store.Load()
	if err != nil {
		t.Fatal(err)
	}
	if findings := checkpoint.Check(file.State); len(findings) > 0 || len(file.State.Entries) != 2 || file.State.Entries[1].Blocks[0].Size != 8*gi+512*mi {
		t.Errorf("the state file has %+v: %v", file.State.Entries, findings)
	}
	if updates := n.sync([]Pod{small, other}, []Container{c, neighbor}); len(updates) > 0 {
		t.Errorf("updates: %+v", updates)
	}
	n.want("pending resize", n.containerView(small, "main").PendingResize.String(), "1.5Gi of memory")
	if !strings.Contains(n.log.String(), "found no room: it is allocated less than its limit") {
		t.Errorf("the log does not say so:\n%s", n.log)
	}
	// Its neighbor has ended when the plugin starts for the next time.
	n.restart()
	updates := n.sync([]Pod{small}, []Container{c})
	if len(updates) != 1 || updates[0].CpusetMems != "0" {
		t.Errorf("updates: %+v", updates)
	}
	n.want("allocated on the nodes", n.allocated(), "10240 0")
}

// TestAResizeWhileThePluginWasAway is never refused: it has happened.
func TestAResizeWhileThePluginWasAway(t *testing.T) {
	n := newNode(t, "topologyManagerPolicy: single-numa-node")
	small, other, c, neighbor := n.crowd("required")
	c.Resources = c.Resources.Updated(to(10 * gi))
	n.restart()
	n.sync([]Pod{small, other}, []Container{neighbor, c})
	n.want("pending resize", n.containerView(small, "main").PendingResize.String(), "1.5Gi of memory")
}

func TestAPendingResizeIsNotTakenForAllNodes(t *testing.T) {
	n := newNode(t, "topologyManagerPolicy: restricted")
	small, other, c, neighbor := n.crowd("")
	got := n.update(small, c, to(10*gi))
	c.Resources = with(c.Resources.Updated(to(10*gi)), *got)
	n.write(c.CgroupsPath, *got)
	n.stop()
	if err := os.Remove(filepath.Join(n.state, checkpoint.FileName)); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.sync([]Pod{small, other}, []Container{c, neighbor})
	n.want("allocated on the nodes", n.allocated(), "6144 10240")
	for _, node := range n.View().Nodes {
		if node.Cells.Len() > 1 {
			t.Errorf("node %d is in the group %s", node.ID, node.Cells)
		}
	}
}

func TestARestartOfAResizedContainer(t *testing.T) {
	for name, test := range map[string]struct {
		yaml            string
		full            bool // node 1
		mems, allocated string
		short           string
	}{
		"goes elsewhere":           {"topologyManagerPolicy: restricted", false, "1", "6144 10240", "nothing"},
		"stays short":              {"topologyManagerPolicy: restricted", true, "0-1", "14848 13312", "1.5Gi of memory"},
		"stays short, best-effort": {"", true, "0-1", "14848 13312", "1.5Gi of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, test.yaml)
			small, _, c, _ := n.crowd("")
			n.update(small, c, to(10*gi))
			if test.full {
				big := n.pod("big", memoryqos.Guaranteed)
				n.launch(big, ofPod(big, "main", 13*gi))
			}
			if err := n.StopContainer(context.Background(), small, c); err != nil {
				t.Fatal(err)
			}
			again := ofPod(small, "main", 10*gi)
			again.ID += "-2"
			again.CgroupsPath += "-2"
			n.want("cpuset.mems", n.create(small, again).CpusetMems, test.mems)
			n.want("allocated on the nodes", n.allocated(), test.allocated)
			n.want("pending resize", n.containerView(small, "main").PendingResize.String(), test.short)
		})
	}
}

// TestARefusedResizeThatIsTriedAgain is what the kubelet does every second.
func TestARefusedResizeThatIsTriedAgain(t *testing.T) {
	n := newNode(t, "topologyManagerPolicy: single-numa-node")
	small, other, c, _ := n.crowd("")
	try := func(bytes uint64) error {
		n.clock.add(time.Second)
		_, err := n.UpdateContainer(context.Background(), small, c, to(bytes))
		return err
	}
	lines := func() int { return strings.Count(n.log.String(), "container updated: refused") }
	first := try(10 * gi)
	shown := n.View()
	for range 33 {
		if err := try(10 * gi); err == nil || err.Error() != first.Error() {
			t.Fatalf("got %v, want %v as the first time", err, first)
		}
	}
	// Another pod has come meanwhile: the answer is not the first one's, and the resize is the same.
	pod := n.pod("new", memoryqos.Guaranteed)
	n.launch(pod, ofPod(pod, "main", gi))
	if err := try(10 * gi); err == nil || err.Error() == first.Error() {
		t.Errorf("got %v, which is what it was before node 1 was used", err)
	}
	view := n.View()
	if len(view.Rejections) != 1 || n.Counters().Rejections["ResizeInfeasible"] != 1 || lines() != 1 {
		t.Errorf("%d rejections, counted %v, %d lines in the log", len(view.Rejections), n.Counters().Rejections, lines())
	}
	r := view.Rejections[0]
	if r.Count != 35 || !r.Same(shown.Rejections[0]) || r.Last.Sub(r.At) < 34*time.Second {
		t.Errorf("%d times from %s to %s", r.Count, r.At, r.Last)
	}
	if shown.Rejections[0].Count != 1 {
		t.Error("an old view has changed")
	}
	if !strings.Contains(r.Text, "node 1: 13.5Gi of 14.5Gi free") { // node 1's, with the new pod
		t.Errorf("the text is that of the first time: %s", r.Text)
	}

	if err := try(11 * gi); err == nil {
		t.Error("a larger one is accepted")
	}
	if view := n.View(); len(view.Rejections) != 2 || n.Counters().Rejections["ResizeInfeasible"] != 2 || lines() != 2 {
		t.Errorf("another one: %d rejections, counted %v, %d lines in the log", len(view.Rejections), n.Counters().Rejections, lines())
	}
	n.reconfigure("topologyManagerPolicy: restricted")
	if err := try(11 * gi); err != nil {
		t.Errorf("under restricted: %v", err)
	}
	n.reconfigure("topologyManagerPolicy: single-numa-node")
	if err := n.endPod(context.Background(), other); err != nil {
		t.Fatal(err)
	}
	if err := try(12 * gi); err != nil {
		t.Errorf("with room: %v", err)
	}
}

func TestARefusedResizeOutlivesNewerRejections(t *testing.T) {
	n := newNode(t, "topologyManagerPolicy: single-numa-node")
	small, _, c, _ := n.crowd("")
	try := func() { _, _ = n.UpdateContainer(context.Background(), small, c, to(10*gi)) }
	try()
	large := n.pod("large", memoryqos.Guaranteed)
	for range ledger.RejectionsKept {
		_, _ = n.CreateContainer(context.Background(), large, ofPod(large, "main", 20*gi))
	}
	try()
	view := n.View()
	if len(view.Rejections) != ledger.RejectionsKept || view.Rejections[0].Count != 2 || view.Rejections[0].Pod != "small" {
		t.Errorf("%d are shown, the first is %+v", len(view.Rejections), view.Rejections[0])
	}
}

func TestADryRunShortensNothing(t *testing.T) {
	n := newNode(t, "")
	small, other, c, _ := n.crowd("")
	n.reconfigure("profile: Observe")
	if got := n.update(small, c, to(10*gi)); got != nil {
		t.Errorf("answered with %+v", got)
	}
	if err := n.endPod(context.Background(), other); err != nil {
		t.Fatal(err)
	}
	n.work(context.Background())
	n.want("cpuset.mems", n.file(c.CgroupsPath, "cpuset.mems"), "0")
}

func TestACPUSetOverTwoNodes(t *testing.T) {
	shares := uint64(4096)
	for name, test := range map[string]struct {
		yaml, mems, pinning, err string
		used                     bool
	}{
		"follows":           {mems: "0-1", pinning: "pinned under restricted, on nodes of its CPUs"},
		"follows in part":   {used: true, mems: "0", pinning: "pinned under restricted, on nodes of its CPUs"},
		"rejected":          {yaml: "onConflict: Kubelet", err: "onConflict: CPUs in the plugin's configuration lets its memory follow them"},
		"rejected, may run": {yaml: "onConflict: Kubelet\nonUnsatisfiable: Unpinned", pinning: "not pinned: TopologyAffinityError"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "topologyManagerPolicy: restricted\n"+test.yaml)
			if test.used {
				pod := n.pod("other", memoryqos.Guaranteed)
				n.launch(pod, ofPod(pod, "main", gi))
			}
			pod := n.pod("pod", memoryqos.Guaranteed)
			c := ofPod(pod, "main", gi)
			c.Resources.CPUs, c.Resources.CPUShares = "6-9", &shares
			got, err := n.CreateContainer(context.Background(), pod, c)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want %s", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			n.want("cpuset.mems", got.CpusetMems, test.mems)
			view := n.containerView(pod, "main")
			n.want("pinning", view.Pinning, test.pinning)
			if len(view.CPUs) != 2 || view.CPUs[0] != 2 || view.CPUs[1] != 2 {
				t.Errorf("its CPUs are %v", view.CPUs)
			}
		})
	}
}

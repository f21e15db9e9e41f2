package agent

import (
	"cmp"
	"context"
	"slices"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

const oomGroupFile = "memory.oom.group"

// oomNode is a node whose kubelet wants a memory.oom.group, in a runtime that shows that or does not.
type oomNode struct {
	*node
	pod      Pod
	c        Container
	kubelets string // "" asks for nothing
	shows    bool
}

func newOOMNode(t *testing.T, annotation, kubelets string, shows bool) *oomNode {
	n := &oomNode{node: newNode(t, ""), kubelets: kubelets, shows: shows}
	n.pod = n.node.pod("pod", memoryqos.Burstable)
	if annotation != "" {
		n.pod.Annotations = map[string]string{"oom-group.memory-manager.noderesource.dev": annotation}
	}
	n.c = ofPod(n.pod, "main", 1000*mi)
	n.show(kubelets)
	return n
}

// show has the runtime's record hold a value.
func (n *oomNode) show(value string) {
	if n.shows {
		n.c.Resources.OOMGroup = value
	}
}

// written is what a runtime writes: the answer's value, or else the kubelet's.
func (n *oomNode) written(answer *Adjustment) {
	n.Helper()
	value := n.kubelets
	if answer != nil {
		value = cmp.Or(answer.Unified[oomGroupFile], value)
	}
	n.mkdir(n.c.CgroupsPath)
	if value != "" {
		n.writeFile(n.c.CgroupsPath, oomGroupFile, value)
	}
	n.show(value)
}

func (n *oomNode) create() {
	n.Helper()
	answer := n.node.create(n.pod, n.c)
	n.written(&answer)
	n.c = n.run(n.pod, n.c, answer)
}

func (n *oomNode) resize() {
	n.Helper()
	to := Resources{MemoryLimit: limit(int64(2000 * mi))}
	if n.shows {
		to.OOMGroup = n.kubelets
	}
	n.written(n.update(n.pod, n.c, to))
	if err := n.PostUpdateContainer(context.Background(), n.pod, n.c); err != nil {
		n.Fatal(err)
	}
}

func (n *oomNode) rollback() {
	n.Helper()
	if _, err := protect.Rollback(context.Background(), n.journal, n.tree, nil, false); err != nil {
		n.Fatal(err)
	}
}

func (n *oomNode) wantFile(when, want string) {
	n.Helper()
	n.want(oomGroupFile+" "+when, cmp.Or(n.file(n.c.CgroupsPath, oomGroupFile), "0"), want)
}

// TestWhatAnOOMKillEndsIsThePodsChoice, and the kubelet's where the pod has none, has none any more, or the plugin is taken away.
func TestWhatAnOOMKillEndsIsThePodsChoice(t *testing.T) {
	for name, test := range map[string]struct{ annotation, kubelets, before, want string }{
		"a process":                      {"process", "1", "1", "0"},
		"a process, as the kubelet's":    {"process", "", "0", "0"},
		"the container":                  {"container", "", "0", "1"},
		"the container, as the kubelets": {"container", "1", "1", "1"},
	} {
		for runtime, shows := range map[string]bool{"shown": true, "hidden": false} {
			t.Run(name+" "+runtime, func(t *testing.T) {
				for way, end := range map[string]func(*oomNode){
					"after a rollback": func(n *oomNode) {
						n.rollback()
						n.wantFile("after the first rollback", test.before)
						n.restart()
						n.sync([]Pod{n.pod}, []Container{n.c}) // the runtime's record is as it was
						n.wantFile("after another start", test.want)
						n.rollback()
					},
					"when the annotation is not allowed": func(n *oomNode) {
						n.reconfigure(`annotationRules: [{namespaces: ["*"], allowedAnnotations: []}]`)
						n.work(t.Context())
					},
				} {
					n := newOOMNode(t, test.annotation, test.kubelets, shows)
					n.create()
					n.wantFile("at the start", test.want)
					n.resize()
					n.wantFile("after a resize", test.want)
					n.restart()
					if updates := n.sync([]Pod{n.pod}, []Container{n.c}); len(updates) > 0 {
						t.Errorf("a restart asks for %v", updates)
					}
					n.resize()
					n.wantFile("after a restart", test.want)
					n.writeFile(n.c.CgroupsPath, oomGroupFile, map[string]string{"0": "1", "1": "0"}[test.want])
					n.reconcile(t.Context())
					n.wantFile("after another writer", test.want)
					if test.before == test.want { // what another writer has written is as good as the kubelet's
						continue
					}
					end(n)
					n.wantFile(way, test.before)
				}
				n := newOOMNode(t, test.annotation, test.kubelets, shows)
				n.written(nil)
				n.c.State = Running
				n.sync([]Pod{n.pod}, []Container{n.c})
				n.wantFile("of one that was there before", test.want)
				n.rollback()
				n.wantFile("of one that was there before, rolled back", test.before)
			})
		}
	}
}

// TestWithoutTheAnnotationMemoryOOMGroupIsLeftAlone: it is neither read nor written, asked for or noted.
func TestWithoutTheAnnotationMemoryOOMGroupIsLeftAlone(t *testing.T) {
	n := newOOMNode(t, "", "1", true)
	n.onWrite = func(w cgroupfs.Write) {
		if w.Knob == cgroup.MemoryOOMGroup {
			t.Errorf("%+v", w)
		}
	}
	n.onOpen = func(dir, file string) error {
		if file == oomGroupFile {
			t.Errorf("%s of %s is opened", file, dir)
		}
		return nil
	}
	n.restart()
	n.create()
	n.resize()
	n.restart()
	n.sync([]Pod{n.pod}, []Container{n.c})
	n.reconcile(t.Context())
	n.wantFile("", "1")
	if slices.ContainsFunc(n.journal.Entries(), func(e protect.Entry) bool { return e.Knob == cgroup.MemoryOOMGroup }) {
		t.Error("it is in the journal")
	}
}

package protect

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const (
	runcA = podG + "/a"
	crunB = podB + "/b" // with a cgroup inside
)

// containers are the targets of two pods with one container each.
func containers(t testing.TB, a, b Container) []cgroup.Target {
	a.Cgroup, b.Cgroup = runcA, crunB
	return Targets([]Pod{
		{Path: mustPod(t, podG), Values: a.Values, Containers: []Container{a}},
		{Path: mustPod(t, podB), Values: b.Values, Containers: []Container{b}},
	})
}

// do runs a method of a Protector and returns the writes.
func (n *node) do(t testing.TB, f func() error) []string {
	t.Helper()
	n.clearWrites()
	if err := f(); err != nil {
		t.Fatal(err)
	}
	return n.allWrites()
}

// A process without descriptors cannot see crun's cgroup inside a container's: what an earlier run set there is restored once it can.
func TestAnInnerCgroupThatCannotBeSeenIsRestoredLater(t *testing.T) {
	n := newNode(t, nil, crunB+"/container")
	apply := func(b Container) {
		t.Helper()
		n.do(t, func() error { return n.applyAll(t.Context(), containers(t, Container{}, b)) })
	}
	apply(Container{Values: low(20)})
	n.Protector = New(Options{Tree: n.Tree, Journal: n.journal})
	n.unopened = "."
	apply(Container{Values: low(20)})
	apply(Container{})
	n.unopened = ""
	n.reconcile(t)
	for _, dir := range []string{crunB, crunB + "/container"} {
		if got := content(t, n.Tree, dir+"/memory.low"); got != "0" {
			t.Errorf("%s has memory.low %s", dir, got)
		}
	}
	if left := n.journal.Entries(); len(left) > 0 {
		t.Errorf("the journal has %v", left)
	}
}

func TestContainersAreOneMoreLevel(t *testing.T) {
	n := newNode(t, nil, runcA, crunB+"/container")
	apply := func(a, b Container) []string {
		t.Helper()
		return n.do(t, func() error {
			return errors.Join(n.applyAll(t.Context(), containers(t, a, b)), n.WriteLate(t.Context()))
		})
	}
	wantWrites(t, apply(Container{Values: minimum(100), Mems: "0-1"}, Container{Values: low(20)}),
		"kubepods/min=120", "kubepods/low=20", "kubepods/burstable/low=20", podG+"/min=100", podB+"/low=20", runcA+"/min=100", crunB+"/low=20",
		crunB+"/container/low=20", runcA+"/cpuset.mems=0-1")
	wantWrites(t, apply(Container{Values: minimum(100), Mems: "0,1"}, Container{Values: low(20)}))
	wantWrites(t, apply(Container{Values: minimum(100), Mems: "1"}, Container{Values: low(5)}),
		crunB+"/container/low=5", crunB+"/low=5", podB+"/low=5", "kubepods/burstable/low=5", "kubepods/min=105", "kubepods/low=5", runcA+"/cpuset.mems=1")
	high := uint64(4096)
	wantWrites(t, apply(Container{Values: minimum(100)}, Container{Values: memoryqos.Values{High: &high}}),
		crunB+"/container/low=0", crunB+"/low=0", podB+"/low=0", "kubepods/burstable/low=0", "kubepods/min=100", "kubepods/low=0",
		podB+"/high=4096", crunB+"/container/high=4096", crunB+"/high=4096")

	// What is no longer set goes back to the default and is left alone then; cpuset.mems, which has none, at once.
	wantWrites(t, apply(Container{Values: minimum(100)}, Container{}), podB+"/high=max", crunB+"/high=max", crunB+"/container/high=max")
	n.overwrite(t, crunB+"/memory.high", "8192")
	n.overwrite(t, runcA+"/cpuset.mems", "0")
	wantWrites(t, first(n.reconcile(t)))
	if len(n.Overwrites()) > 0 {
		t.Errorf("%v", n.Overwrites())
	}
	want := []Entry{{"kubepods", cgroup.MemoryMin, "", ""}, {podG, cgroup.MemoryMin, "", ""}, {runcA, cgroup.CpusetMems, "", ""}, {runcA, cgroup.MemoryMin, "", ""}}
	if diff := cmp.Diff(want, n.journal.Entries()); diff != "" {
		t.Error(diff)
	}
	n.do(t, func() error { return n.applyAll(t.Context(), nil) })
	if len(n.rows) > 0 {
		t.Errorf("%d rows are left", len(n.rows))
	}
}

func TestWhatTheRuntimeWritesIsComparedAfterwards(t *testing.T) {
	n := newNode(t, nil)
	announced := Container{Cgroup: runcA, Values: minimum(100), Mems: "1", ByRuntime: true}
	targets := Targets([]Pod{{Path: mustPod(t, podG), Values: minimum(100), Containers: []Container{announced}}})
	update := func() error { return n.applyPart(t.Context(), targets, nil) }
	check := func() error { return n.Check(t.Context(), runcA, "kubepods/podunknown/c") }
	wantWrites(t, n.do(t, update), "kubepods/min=100", podG+"/min=100")
	wantWrites(t, n.do(t, check)) // it is not there yet
	wantWrites(t, n.do(t, update))
	want := []Entry{{"kubepods", cgroup.MemoryMin, "", ""}, {podG, cgroup.MemoryMin, "", ""}, {runcA, cgroup.CpusetMems, "", ""}, {runcA, cgroup.MemoryMin, "", ""}}
	if diff := cmp.Diff(want, n.journal.Entries()); diff != "" {
		t.Error(diff)
	}
	n.overwriteAll(t, map[string]string{runcA + "/memory.min": "100", runcA + "/cpuset.mems": "1"})
	wantWrites(t, n.do(t, check))
	wantRepairs(t, n, 0)

	// An update that the runtime does in part. Nobody else wrote.
	announced.Values, announced.Mems = minimum(50), "0"
	targets = Targets([]Pod{{Path: mustPod(t, podG), Values: minimum(100), Containers: []Container{announced}}})
	wantWrites(t, n.do(t, update))
	wantWrites(t, n.do(t, func() error { return n.applyAll(t.Context(), targets) }))
	wantWrites(t, first(n.reconcile(t))) // which leaves it to the runtime as well
	n.overwrite(t, runcA+"/cpuset.mems", "0")
	wantWrites(t, n.do(t, check), runcA+"/min=50")
	wantRepairs(t, n, 1)
	if len(n.Overwrites()) > 0 {
		t.Errorf("%v", n.Overwrites())
	}

	// A runtime that takes a value back writes the default.
	announced.Values = memoryqos.Values{}
	targets = Targets([]Pod{{Path: mustPod(t, podG), Containers: []Container{announced}}})
	wantWrites(t, n.do(t, update), podG+"/min=0", "kubepods/min=0")
	n.overwrite(t, runcA+"/memory.min", "0")
	wantWrites(t, n.do(t, check))
	wantRepairs(t, n, 1)
	want = []Entry{{runcA, cgroup.CpusetMems, "", ""}}
	if diff := cmp.Diff(want, n.journal.Entries()); diff != "" {
		t.Error(diff)
	}
}

func wantRepairs(t *testing.T, n *node, want uint64) {
	t.Helper()
	if got := n.Repairs(); got != (Repairs{Containers: want}) {
		t.Errorf("repairs %+v, want %d", got, want)
	}
}

// A container that was read a moment ago is not read again: what differs is written, in the order of the levels.
func TestWhatWasSeenIsNotReadAgain(t *testing.T) {
	n := newNode(t, nil)
	targets := containers(t, Container{Values: minimum(100), Mems: "1"}, Container{Values: low(20)})
	nodes, none := "1", uint64(0)
	targets[3].Seen = &cgroup.Seen{Values: minimum(100), Mems: &nodes} // there is no such folder: reading it would find nothing
	targets[5].Seen = &cgroup.Seen{Values: memoryqos.Values{Low: &none}}
	n.overwriteAll(t, map[string]string{crunB + "/memory.low": "20"})
	wantWrites(t, n.do(t, func() error { return n.applyAll(t.Context(), targets) }),
		"kubepods/min=120", "kubepods/low=20", "kubepods/burstable/low=20", podG+"/min=100", podB+"/low=20", crunB+"/low=20")
	for _, dir := range []string{runcA, crunB} {
		if !n.rows[dir].done() {
			t.Errorf("%s is not settled", dir)
		}
	}
	wantRepairs(t, n, 0)
}

// A runtime that was killed may leave the cgroup of a container that has ended.
func TestWhatIsLeftOfAContainerClaimsNothing(t *testing.T) {
	for name, end := range map[string]func(*node, []cgroup.Target) error{
		"one has ended":         func(n *node, _ []cgroup.Target) error { return n.applyPart(t.Context(), nil, []string{runcA, crunB}) },
		"the others are as now": func(n *node, targets []cgroup.Target) error { return n.applyAll(t.Context(), targets) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			n.overwriteAll(t, map[string]string{runcA + "/memory.min": "0", crunB + "/memory.low": "0", crunB + "/container/memory.low": "0"})
			targets := containers(t, Container{Values: minimum(100)}, Container{Values: low(20)})
			n.do(t, func() error { return n.applyAll(t.Context(), targets) })
			kept := slices.DeleteFunc(targets, func(t cgroup.Target) bool { return t.Cgroup == runcA || t.Cgroup == crunB })
			n.do(t, func() error { return end(n, kept) })
			for _, file := range []string{runcA + "/memory.min", crunB + "/memory.low", crunB + "/container/memory.low"} {
				text, err := os.ReadFile(filepath.Join(n.Root(), file))
				if err != nil || strings.TrimSpace(string(text)) != "0" {
					t.Errorf("%s has %q, %v", file, text, err)
				}
			}
			if left := n.containerRows(); left != 0 {
				t.Errorf("%d containers are left", left)
			}
		})
	}
}

// systemd writes what its unit holds again at the next reload: it must hold nothing either.
func TestTheUnitOfWhatIsLeftOfAContainerClaimsNothing(t *testing.T) {
	const scope = sliceG + "/cri-containerd-a.scope"
	pod := []Pod{{Path: mustPod(t, sliceG), Values: minimum(100), Containers: []Container{{Cgroup: scope, Values: minimum(100)}}}}
	without := []Pod{{Path: pod[0].Path, Values: minimum(100)}}
	for name, end := range map[string]func(*node, *units) error{
		"it was known": func(n *node, _ *units) error { return n.applyAll(t.Context(), Targets(without)) },
		"the journal knows it": func(n *node, u *units) error {
			n.Protector = New(Options{Tree: n.Tree, Units: u, Journal: n.journal, Log: n.Protector.log})
			err := n.applyAll(t.Context(), Targets(without))
			n.RestoreEnded(t.Context())
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := &units{}
			n := newNode(t, u, scope)
			n.do(t, func() error { return n.applyAll(t.Context(), Targets(pod)) })
			n.flush(t)
			u.taken()
			if err := end(n, u); err != nil {
				t.Fatal(err)
			}
			n.flush(t)
			if calls := u.taken(); !slices.Contains(calls, "cri-containerd-a.scope memory.min=0") {
				t.Errorf("systemd receives %q", calls)
			}
		})
	}
}

func (n *node) overwriteAll(t testing.TB, files map[string]string) {
	t.Helper()
	for file, text := range files {
		if err := os.MkdirAll(filepath.Join(n.Root(), filepath.Dir(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		n.overwrite(t, file, text)
	}
}

func TestOtherWritersOfContainersMeetTheSamePolicy(t *testing.T) {
	n := newNode(t, nil, runcA, crunB+"/container")
	n.do(t, func() error {
		return errors.Join(
			n.applyAll(t.Context(), containers(t, Container{Values: minimum(100), Mems: "1"}, Container{Values: low(20)})), n.WriteLate(t.Context()))
	})
	n.overwrite(t, runcA+"/cpuset.mems", "0-1")
	n.overwrite(t, crunB+"/container/memory.low", "0")
	wantWrites(t, first(n.reconcile(t)), crunB+"/container/low=20")
	wantWrites(t, n.do(t, func() error { return n.WriteLate(t.Context()) }), runcA+"/cpuset.mems=1")
	n.overwrite(t, runcA+"/cpuset.mems", "0-1")
	writes, wait := n.reconcile(t)
	if wantWrites(t, writes); wait != firstDelay {
		t.Errorf("waits %s", wait)
	}
	wantWrites(t, n.do(t, func() error { return n.Check(t.Context(), runcA) }), runcA+"/cpuset.mems=1") // at once
	wantRepairs(t, n, 5)                                                                                // two of them were new
	want := map[Overwrite]uint64{{cgroup.LevelContainer, "cpuset.mems"}: 2, {cgroup.LevelContainer, "memory.low"}: 1}
	if diff := cmp.Diff(want, n.Overwrites()); diff != "" {
		t.Error(diff)
	}
	if len(n.OverwritesByFile()) > 0 {
		t.Errorf("above the containers: %v", n.OverwritesByFile())
	}
}

func TestReconcileComparesAllRowsWithoutAWatch(t *testing.T) {
	n := newNode(t, nil)
	pod := Pod{Path: mustPod(t, podG)}
	for i := range 310 {
		c := Container{Cgroup: fmt.Sprintf("%s/c%d", podG, i), Values: minimum(1)}
		put(t, n.Root(), map[string]string{c.Cgroup + "/": ""})
		pod.Containers = append(pod.Containers, c)
	}
	n.do(t, func() error { return n.applyAll(t.Context(), Targets([]Pod{pod})) })
	for _, c := range pod.Containers {
		n.overwrite(t, c.Cgroup+"/memory.min", "0")
	}
	if repaired := len(first(n.reconcile(t))); repaired != len(pod.Containers) {
		t.Errorf("repaired %d, want %d", repaired, len(pod.Containers))
	}
}

// While an older memory.high is being written, which may take as long as the kernel reclaims, a newer one is written at once,
// and stands in the end whichever of the two the kernel took last.
func TestANewerHighDoesNotWaitForAnOlder(t *testing.T) {
	for name, olderIsLast := range map[string]bool{"newer last": false, "older last": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil, runcA)
			target := func(high uint64) []cgroup.Target {
				return []cgroup.Target{{Cgroup: runcA, Level: cgroup.LevelContainer, Driver: cgroup.Cgroupfs, Values: memoryqos.Values{High: &high}}}
			}
			begun := false
			tree, err := cgroupfs.Open(n.Root(), cgroupfs.Plain(), cgroupfs.OnWrite(func(w cgroupfs.Write) {
				if begun {
					return
				}
				begun = true // this write has not returned yet
				if err := errors.Join(n.applyPart(t.Context(), target(8192), nil), n.Check(t.Context(), runcA)); err != nil {
					t.Error(err)
				}
				if olderIsLast {
					n.overwrite(t, runcA+"/memory.high", w.Text)
				}
			}))
			if err != nil {
				t.Fatal(err)
			}
			defer tree.Close()
			n.Protector = New(Options{Tree: tree})
			if err := errors.Join(n.applyPart(t.Context(), target(4096), nil), n.WriteLate(t.Context())); err != nil {
				t.Fatal(err)
			}
			if got := content(t, n.Tree, runcA+"/memory.high"); got != "8192" || !begun {
				t.Errorf("memory.high is %s", got)
			}
		})
	}
}

func TestContainersOfSystemdAreSetWhereWeWrite(t *testing.T) {
	u := &units{}
	const scope = sliceG + "/crio-a.scope"
	n := newNode(t, u, scope)
	target := cgroup.Target{Cgroup: scope, Level: cgroup.LevelContainer, Driver: cgroup.Systemd, Values: minimum(10), Mems: "0-1", ByRuntime: true}
	n.overwriteAll(t, map[string]string{scope + "/memory.min": "10", scope + "/cpuset.mems": "0-1"})
	n.do(t, func() error {
		return errors.Join(n.applyPart(t.Context(), []cgroup.Target{target}, nil), n.Check(t.Context(), scope))
	})
	target.ByRuntime = false
	n.do(t, func() error { return n.applyPart(t.Context(), []cgroup.Target{target}, nil) })
	n.flush(t)
	wantWrites(t, u.taken()) // the runtime's doing
	n.overwrite(t, scope+"/cpuset.mems", "0")
	n.reconcile(t)
	n.do(t, func() error { return n.WriteLate(t.Context()) })
	n.flush(t)
	wantWrites(t, u.taken(), "crio-a.scope cpuset.mems=3")
}

// The plugin ended before systemd took a value away: the file holds the default, and systemd's next reload would write the value.
func TestSystemdIsToldWhatAnEarlierRunTookAway(t *testing.T) {
	const scope = sliceG + "/crio-a.scope"
	target := cgroup.Target{Cgroup: scope, Level: cgroup.LevelContainer, Driver: cgroup.Systemd}
	for name, test := range map[string]struct {
		knob cgroup.Knob
		want string
	}{
		"a file of protection":         {cgroup.MemoryLow, "crio-a.scope memory.low=0"},
		"one that takes long to write": {cgroup.MemoryHigh, "crio-a.scope memory.high=max"},
	} {
		for whether, targets := range map[string][]cgroup.Target{"it runs": {target}, "it has ended": nil} {
			t.Run(name+", "+whether, func(t *testing.T) {
				u := &units{}
				n := newNode(t, u, scope)
				n.overwriteAll(t, map[string]string{scope + "/" + string(test.knob): cgroup.Default(string(test.knob))})
				n.journal.Note(Entry{Cgroup: scope, Knob: test.knob})
				n.do(t, func() error { return n.applyAll(t.Context(), targets) })
				n.RestoreEnded(t.Context())
				wantWrites(t, n.do(t, func() error { return n.WriteLate(t.Context()) }))
				n.flush(t)
				wantWrites(t, u.taken(), test.want)
				waitFor(t, func() bool { return len(n.journal.Entries()) == 0 })
			})
		}
	}
}

func TestABadTargetIsNamed(t *testing.T) {
	n := newNode(t, nil, runcA)
	err := n.applyPart(t.Context(), []cgroup.Target{{Cgroup: runcA, Level: cgroup.LevelContainer, Mems: "x"}}, nil)
	if want := `cgroup kubepods/podg/a: cpuset.mems: node list "x": `; err == nil || len(err.Error()) < len(want) || err.Error()[:len(want)] != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// What could not be restored in crun's inner cgroup is tried again, although the outer one is as it should be.
func TestAnInnerCgroupIsRestoredLaterThanTheOuter(t *testing.T) {
	n := newNode(t, nil, crunB+"/container")
	target := cgroup.Target{Cgroup: crunB, Level: cgroup.LevelContainer, Values: low(20)}
	update := func() error { return n.applyPart(t.Context(), []cgroup.Target{target}, nil) }
	n.do(t, update)
	file := filepath.Join(n.Root(), crunB, "container", "memory.low")
	if err := errors.Join(os.Remove(file), os.Mkdir(file, 0o755)); err != nil { // it can be neither read nor written
		t.Fatal(err)
	}
	target.Values = memoryqos.Values{}
	n.do(t, update)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	n.overwrite(t, crunB+"/container/memory.low", "20")
	wantWrites(t, first(n.reconcile(t)), crunB+"/container/low=0")
	wantWrites(t, first(n.reconcile(t)))
}

// A runtime whose record still had a value of ours wrote it again after it was taken away; then it is asked for the default, which
// the journal knows.
func TestWhatTheRuntimeWroteAgainIsTakenAwayAgain(t *testing.T) {
	n := newNode(t, nil, crunB+"/container")
	target := cgroup.Target{Cgroup: crunB, Level: cgroup.LevelContainer, Values: low(20)}
	update := func() error { return n.applyPart(t.Context(), []cgroup.Target{target}, nil) }
	n.do(t, update)
	target.Values = memoryqos.Values{}
	n.do(t, update)
	n.overwrite(t, crunB+"/memory.low", "20")
	n.overwrite(t, crunB+"/container/memory.low", "20")
	wantWrites(t, n.do(t, update)) // it may be the kubelet's
	n.journal.Note(Entry{Cgroup: crunB, Knob: cgroup.MemoryLow})
	wantWrites(t, n.do(t, update), crunB+"/container/low=0", crunB+"/low=0")
	if left := n.journal.Entries(); len(left) > 0 {
		t.Errorf("the journal has %v", left)
	}
}

// systemd writes its own memory.oom.group, 0, with each property of a container's scope: ours returns, it is asked for none, and rollback
// gives back what was there before.
func TestMemoryOOMGroupIsNoPropertyOfSystemds(t *testing.T) {
	u := &units{}
	const scope = sliceG + "/crio-a.scope"
	n := newNode(t, u, scope)
	n.overwrite(t, scope+"/memory.oom.group", "0")
	values := minimum(10)
	values.OOMGroup = new(uint64)
	*values.OOMGroup = 1
	target := cgroup.Target{Cgroup: scope, Level: cgroup.LevelContainer, Driver: cgroup.Systemd, Values: values}
	wantWrites(t, n.do(t, func() error { return n.applyPart(t.Context(), []cgroup.Target{target}, nil) }),
		scope+"/oom.group=1", scope+"/min=10")
	n.flush(t)
	wantWrites(t, u.taken(), "crio-a.scope memory.min=10")
	n.overwrite(t, scope+"/memory.oom.group", "0")
	writes, _ := n.reconcile(t)
	wantWrites(t, writes, scope+"/oom.group=1")
	n.flush(t)
	wantWrites(t, u.taken())
	if _, err := Rollback(t.Context(), n.journal, n.Tree, u, false); err != nil {
		t.Fatal(err)
	}
	wantWrites(t, u.taken(), "crio-a.scope memory.min=0")
	if got := content(t, n.Tree, scope+"/memory.oom.group"); got != "0" {
		t.Errorf("memory.oom.group is %s after rollback", got)
	}
}

// Of crun's inner cgroup that is found later nothing is known, whatever is known of the outer one.
func TestAnInnerCgroupThatIsFoundLater(t *testing.T) {
	inner, pressure := crunB+"/container", uint64(8192)
	for name, find := range map[string]func(n *node) error{
		"by the next change": func(n *node) error {
			return n.applyPart(t.Context(), containers(t, Container{}, Container{Values: memoryqos.Values{Low: low(20).Low, High: &pressure}}), nil)
		},
		"by the kernel's event": func(n *node) error {
			_, err := n.repair(t.Context(), map[cgroupfs.Change]bool{{Cgroup: inner}: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil, crunB)
			n.do(t, func() error { return n.applyAll(t.Context(), containers(t, Container{}, Container{Values: low(20)})) })
			put(t, n.Root(), map[string]string{inner + "/memory.low": "0"})
			n.do(t, func() error { return find(n) })
			if got := content(t, n.Tree, inner+"/memory.low"); got != "20" {
				t.Errorf("memory.low is %s", got)
			}
			if got := n.Overwrites(); len(got) > 0 {
				t.Errorf("%v overwrites counted", got)
			}
		})
	}
}

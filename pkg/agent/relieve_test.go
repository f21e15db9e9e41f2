package agent

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// lacking is a node that has 4Gi allocated and unused on node 0, 3Gi available there and 8Gi on node 1, and other pods: one of BestEffort with 512Mi on node 0
// and one of Burstable with 3Gi.
type lacking struct {
	*node
	pods       map[string]Pod
	containers map[string]Container
	asked      []string // of the runtime
}

func newLacking(t *testing.T, yaml string, annotations map[string]string) *lacking {
	t.Helper()
	s := &lacking{pods: map[string]Pod{}, containers: map[string]Container{}}
	s.node = newNode(t, yaml, withSysfs(t), func(n *node) {
		n.apply = func(_ context.Context, updates []Update) error {
			for _, update := range updates {
				s.asked = append(s.asked, update.ContainerID+" "+update.CpusetMems)
			}
			return nil
		}
	})
	for name, class := range map[string]memoryqos.QOSClass{"database": memoryqos.Guaranteed, "batch": memoryqos.BestEffort, "web": memoryqos.Burstable} {
		pod := s.pod(name, class)
		limit := uint64(0)
		if class == memoryqos.Guaranteed {
			limit = 4 * gi
		} else {
			pod.Annotations = annotations
		}
		c := s.launch(pod, ofPod(pod, "app", limit))
		s.writeFile(c.CgroupsPath, "cpuset.mems.effective", "0-1")
		s.pods[name], s.containers[name] = pod, c
	}
	s.kernelHas(1, 8*gi, 0)
	s.uses(s.containers["database"], [2]uint64{}, [2]uint64{})
	s.uses(s.containers["batch"], [2]uint64{gi / 2, 0}, [2]uint64{})
	s.uses(s.containers["web"], [2]uint64{3 * gi, 0}, [2]uint64{})
	return s
}

// look samples, and has done what follows.
func (s *lacking) look() *deficit.Sample {
	sample := s.sample()
	s.work(s.Context())
	return sample
}

// moved has the kernel move a container's memory to node 1, and node 0 have so much free.
func (s *lacking) moved(name string, bytes, free uint64) {
	s.uses(s.containers[name], [2]uint64{0, bytes}, [2]uint64{})
	s.kernelHas(0, free, gi)
}

func (s *lacking) mems() string {
	return s.file(s.containers["batch"].CgroupsPath, "cpuset.mems") + " " + s.file(s.containers["web"].CgroupsPath, "cpuset.mems")
}

// One container after the other is moved, each only once the memory of the last one has arrived and a newer sample still shows the
// deficit, and both may use the node again after it was quiet.
// relieves moves containers of up to 4Gi off overcommitted nodes.
const relieves = "rebalance: {deficits: On, maxBytes: 4Gi}\n"

func TestDeficitsAreRelievedOneContainerAtATime(t *testing.T) {
	s := newLacking(t, relieves, nil)
	s.look() // finds the deficit
	s.sample()
	if sample := s.sample(); sample.Moves != nil || s.containerView(s.pods["web"], "app").KeptOff != nil { // the write is yet to come
		t.Fatalf("a second step before the first is made: %+v", sample)
	}
	s.work(s.Context())
	s.want("cpuset.mems", s.mems(), "1 ")
	s.moved("batch", gi/2, 2*gi+gi/2)
	s.look()
	s.want("cpuset.mems", s.mems(), "1 1")
	s.moved("web", 3*gi, 5*gi+gi/2)
	if sample := s.look(); sample.Deficit() > 0 || s.View().NotMoved != nil {
		t.Errorf("after both: %+v", sample)
	}
	if diff := cmp.Diff([]string{"batch-app 1", "web-app 1"}, s.asked); diff != "" {
		t.Errorf("the runtime was asked for:\n%s", diff)
	}
	if c := s.Counters(); c.DeficitMoves != 2 || c.DeficitBytes != 3*gi+gi/2 {
		t.Errorf("%d moves of %d bytes are counted", c.DeficitMoves, c.DeficitBytes)
	}
	s.clock.add(2 * deficit.QuietTime)
	s.look() // no room for what was moved
	s.want("cpuset.mems", s.mems(), "1 1")
	s.kernelHas(0, 9*gi, gi)
	s.look()
	s.clock.add(deficit.QuietTime)
	s.look()
	s.want("cpuset.mems", s.mems(), "0-1 0-1")
	if kept := s.containerView(s.pods["web"], "app").KeptOff; kept != nil {
		t.Errorf("the view has %+v", kept)
	}
	for text, times := range map[string]int{"memory is moved off NUMA nodes that lack memory": 2, "may use NUMA nodes again that it was kept off": 2, "have enough memory available again": 1} {
		if got := strings.Count(s.log.String(), text); got != times {
			t.Errorf("%q is logged %d times, want %d", text, got, times)
		}
	}
}

func TestMemoryThatIsNotMoved(t *testing.T) {
	const numa = "numa.memory-manager.noderesource.dev"
	pressure := func(file string) func(*lacking) {
		return func(s *lacking) {
			for _, dir := range map[string][]string{"kubepods": {"kubepods"}, "": {s.containers["batch"].CgroupsPath, s.containers["web"].CgroupsPath}}[file] {
				s.writeFile(dir, "memory.pressure", "some avg10=90.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=12.50 avg60=0.00 avg300=0.00 total=0")
			}
		}
	}
	for name, test := range map[string]struct {
		yaml        string
		annotations map[string]string
		change      func(*lacking)
		want        []string // of the reasons, as many as there are
	}{
		"by default": {"", nil, nil, nil},
		"off":        {"rebalance: {deficits: Off}\n", nil, nil, nil},
		"a dry run":  {relieves + "profile: Observe\n", nil, nil, nil},
		"beyond migration": {"rebalance: {deficits: On, maxBytes: 0}\n", nil, nil,
			[]string{"it has 512Mi there, more than rebalance.maxBytes (0)", "it has 3Gi there, more than rebalance.maxBytes (0)"}},
		"the annotation none":      {relieves, map[string]string{numa: "none"}, nil, []string{"node 0 lacks 1Gi for its allocations, and no other container has memory there"}},
		"the annotation preferred": {relieves, map[string]string{numa: "preferred"}, nil, []string{"node 0 lacks 1Gi for its allocations"}},
		"the containers wait for memory": {relieves, nil, pressure(""),
			[]string{"full avg10 of its memory.pressure is 12.5, more than 10", "full avg10 of its memory.pressure is 12.5"}},
		"all pods wait for memory": {relieves, nil, pressure("kubepods"), []string{"no memory is moved while all pods wait for it: full avg10"}},
		"the other node has no room": {relieves, nil, func(s *lacking) { s.kernelHas(1, gi/4, 8*gi) },
			[]string{"its 512Mi would go to node 1, which has no room for them", "its 3Gi would go to node 1"}},
		"nodes by another writer": {relieves, nil, func(s *lacking) {
			for _, name := range []string{"batch", "web"} {
				s.writeFile(s.containers[name].CgroupsPath, "cpuset.mems.effective", "0")
			}
		}, []string{`its cpuset.mems.effective is "0"`, `its cpuset.mems.effective is "0"`}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLacking(t, test.yaml, test.annotations)
			if test.change != nil {
				test.change(s)
			}
			s.look()
			s.look()
			s.want("cpuset.mems", s.mems(), " ")
			notMoved := s.View().NotMoved
			if len(notMoved) != len(test.want) {
				t.Fatalf("not moved is %+v", notMoved)
			}
			for i, m := range notMoved {
				if !strings.Contains(m.Why, test.want[i]) {
					t.Errorf("the reason is %q, want %q", m.Why, test.want[i])
				}
			}
			if got := strings.Count(s.log.String(), "memory is not moved off a NUMA node"); got != len(test.want) {
				t.Errorf("that is logged %d times", got)
			}
		})
	}
}

func TestStepsAreTakenBackAtOnce(t *testing.T) {
	for name, yaml := range map[string]string{
		"DryRun": "", "Off": "rebalance: {deficits: Off}\n", "a dry run": relieves + "profile: Observe\n", "policy None": relieves + "memoryManagerPolicy: None\nreservedMemory: []\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := newLacking(t, relieves, nil)
			s.look()
			s.look()
			s.want("cpuset.mems", s.mems(), "1 ")
			if err := s.Reconfigure(s.Context(), parseConfig(t, yaml)); err != nil {
				t.Fatal(err)
			}
			s.work(s.Context())
			s.want("cpuset.mems", s.mems(), "0-1 ")
			s.look()
			s.want("cpuset.mems later", s.mems(), "0-1 ")
		})
	}
}

// A kill at any moment of a step leaves a journal that knows of the file before it is written, and the next run goes on where the file
// is, whatever the runtime has.
func TestAKillAtEveryMomentOfAStep(t *testing.T) {
	for name, test := range map[string]struct {
		until func(*lacking)
		mems  string // in the runtime's record
		yaml  string
		want  string // cpuset.mems of batch after the restart
	}{
		"noted":                 {func(s *lacking) { _ = s.noteBefore(s.Context(), s.path("batch")) }, "", relieves, ""},
		"decided":               {func(s *lacking) { s.sample() }, "", relieves, ""},
		"written":               {func(s *lacking) { s.sample(); _ = s.protector.FinishAll(s.Context()) }, "", relieves, "1"},
		"the runtime has it":    {func(s *lacking) { s.look() }, "1", relieves, "1"},
		"it is forbidden since": {func(s *lacking) { s.look() }, "1", "", "0-1"},
		"taken back and not wrote": {func(s *lacking) {
			s.look()
			s.kernelHas(0, 9*gi, gi)
			s.look()
			s.clock.add(deficit.QuietTime)
			s.sample()
		}, "1", relieves, "1"},
		"taken back": {func(s *lacking) {
			s.look()
			s.kernelHas(0, 9*gi, gi)
			s.look()
			s.clock.add(deficit.QuietTime)
			s.look()
		}, "0-1", relieves, "0-1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLacking(t, relieves, nil)
			s.look()
			test.until(s)
			copied := copyOf(t, s.state)
			s.stop()
			s.state, s.config = copied, parseConfig(t, test.yaml)
			s.start()
			batch := s.containers["batch"]
			batch.Resources.Mems = test.mems
			s.sync([]Pod{s.pods["batch"], s.pods["web"], s.pods["database"]}, []Container{batch, s.containers["web"], s.containers["database"]})
			s.work(s.Context())
			s.want("cpuset.mems", s.file(batch.CgroupsPath, "cpuset.mems"), test.want)
			shown := ""
			if kept := s.containerView(s.pods["batch"], "app").KeptOff; kept != nil {
				shown = kept.Mems.String()
			}
			if off := test.want == "1"; (shown == "1") != off {
				t.Errorf("cpuset.mems is %q, the view has %q", test.want, shown)
			}
			s.stop()
			s.writeFile(filepath.Dir(batch.CgroupsPath), "cpuset.mems.effective", "0-1")
			journal, damage, err := protect.OpenJournal(copied)
			if err != nil || damage != nil {
				t.Fatal(err, damage)
			}
			if _, err := protect.Rollback(s.Context(), journal, s.tree, nil, false); err != nil {
				t.Error(err)
			}
			if got, _ := nodeset.Parse(s.file(batch.CgroupsPath, "cpuset.mems")); !got.Empty() && got != nodeset.Of(0, 1) {
				t.Errorf("after the rollback cpuset.mems is %q", got)
			}
			s.start() // for its end
		})
	}
}

func (s *lacking) path(name string) string {
	return strings.TrimPrefix(s.containers[name].CgroupsPath, "/")
}

// Memory that has grown beyond the bound since the sample is not moved, whoever would write; the next container is.
func TestAStepThatHasBecomeTooLargeIsBlocked(t *testing.T) {
	s := newLacking(t, relieves, nil)
	s.look()
	s.sample()
	s.uses(s.containers["batch"], [2]uint64{5 * gi, 0}, [2]uint64{})
	s.work(s.Context())
	s.want("cpuset.mems", s.mems(), " ")
	s.look()
	s.want("cpuset.mems", s.mems(), " 1")
	if m := s.Migrations()[s.path("batch")]; !m.Blocked {
		t.Errorf("the migration is %+v", m)
	}
	if diff := cmp.Diff([]string{"web-app 1"}, s.asked); diff != "" {
		t.Errorf("the runtime was asked for:\n%s", diff)
	}

	s.uses(s.containers["batch"], [2]uint64{gi, 0}, [2]uint64{}) // it moves after all
	s.reconcile(s.Context())
	s.want("cpuset.mems", s.mems(), "1 1")
	if err := s.Reconfigure(s.Context(), parseConfig(t, "")); err != nil {
		t.Fatal(err)
	}
	s.work(s.Context())
	s.want("cpuset.mems after the reload", s.mems(), "0-1 0-1")
}

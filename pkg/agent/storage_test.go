package agent

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// rollback does what the command does after the agent was killed: it has what is on the disk.
func (n *node) rollback() {
	n.Helper()
	journal, damage, err := protect.OpenJournal(n.state)
	if err != nil || damage != nil {
		n.Fatal(err, damage)
	}
	defer journal.Close(context.Background())
	if _, err := protect.Rollback(context.Background(), journal, n.tree, nil, false); err != nil {
		n.Fatal(err)
	}
}

// Rollback takes back every value that was written, and that the runtime was given, however soon after that the agent was killed.
func TestRollbackAfterAKillTakesEverythingBack(t *testing.T) {
	for name, do := range map[string]func(n *node) []Container{
		"created one after the other": func(n *node) (all []Container) {
			for _, name := range []string{"a", "b", "c"} {
				guaranteed, burstable := n.pod("g"+name, memoryqos.Guaranteed), n.pod("b"+name, memoryqos.Burstable)
				all = append(all, n.launch(guaranteed, ofPod(guaranteed, "app", 2*gi)), n.launch(burstable, ofPod(burstable, "app", gi)))
			}
			return all
		},
		"resized": func(n *node) []Container {
			n.reconfigure("memoryReservationPolicy: None\nmemoryThrottlingFactor: null")
			pod := n.pod("pod", memoryqos.Burstable)
			c := n.launch(pod, ofPod(pod, "app", gi))
			n.config = parseConfig(t, "")
			n.reconfigure("memoryThrottlingFactor: 0.5")
			if got := n.update(pod, c, Resources{MemoryLimit: limit(int64(2 * gi))}); got != nil {
				n.write(c.CgroupsPath, *got)
			}
			return []Container{c}
		},
		"found running": func(n *node) []Container {
			pod := n.pod("pod", memoryqos.Guaranteed)
			c := ofPod(pod, "app", 2*gi)
			c.State = Running
			n.mkdir(c.CgroupsPath)
			n.sync([]Pod{pod}, []Container{c})
			n.work(context.Background())
			return []Container{c}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "")
			first := n.pod("first", memoryqos.Guaranteed)
			all := append(do(n), n.launch(first, ofPod(first, "app", gi)))
			n.rollback()
			defaults := map[string]string{"memory.min": "0", "memory.low": "0", "memory.high": "max"}
			for _, c := range all {
				for _, dir := range []string{c.CgroupsPath, filepath.Dir(c.CgroupsPath), "/kubepods", "/kubepods/burstable"} {
					for file, want := range defaults {
						if got := n.file(dir, file); got != want && got != "" {
							t.Errorf("after the rollback %s/%s is %s, want %s", dir, file, got, want)
						}
					}
				}
			}
		})
	}
}

// After a rollback the runtime's record still has the old values: an agent that comes later does not take them for the kubelet's.
func TestAnAgentAfterARollback(t *testing.T) {
	n := newNode(t, "memoryThrottlingFactor: 0.5\nmemoryReservationPolicy: TieredReservation")
	n.sync(nil, nil)
	guaranteed, burstable := n.pod("guaranteed", memoryqos.Guaranteed), n.pod("burstable", memoryqos.Burstable)
	half, score := ofPod(burstable, "app", gi), int64(984)
	half.Resources.OOMScoreAdj = &score
	containers := []Container{n.launch(guaranteed, ofPod(guaranteed, "app", 2*gi)), n.launch(burstable, half)}
	n.stop()
	n.rollback()
	n.config = parseConfig(t, "profile: QoS\nmemoryThrottlingFactor: null\nmemoryReservationPolicy: None")
	n.start()
	n.sync([]Pod{guaranteed, burstable}, containers)
	n.work(context.Background())
	defaults := map[string]string{"memory.min": "0", "memory.low": "0", "memory.high": "max", "cpuset.mems": ""}
	for _, when := range []string{"with the agent", "after its rollback"} {
		for _, c := range containers {
			for file, want := range defaults {
				if got := n.file(c.CgroupsPath, file); got != want && got != "" {
					t.Errorf("%s %s of %s is %s, want %q", when, file, c.ID, got, want)
				}
			}
		}
		n.stop()
		n.rollback()
	}
	n.config = parseConfig(t, "")
	n.start()
	n.sync([]Pod{guaranteed, burstable}, containers)
	n.want("the source of the request", string(n.containerView(burstable, "app").Source), "oomscore")
	view := n.containerView(guaranteed, "app")
	n.want("the nodes", view.Nodes.String(), "0")
	n.work(context.Background())
	n.want("its cpuset.mems", n.file(containers[0].CgroupsPath, "cpuset.mems"), "0")
}

// The kubelet's memory.low counts while its file holds something else: nothing yet, or what another wrote.
func TestTheKubeletsRequestWhereTheFileDiffers(t *testing.T) {
	for name, test := range map[string]struct {
		state     State
		held      string
		processes string // of cgroup.events; none in a folder that plays a cgroup
		want      string
	}{
		"a cgroup that the runtime has not filled yet": {Created, "0", "", "unified"},
		"another has written it":                       {Running, "1610612736", "", "unified"},
		"what stands after a rollback of ours":         {Running, "0", "", "oomscore"},
		"that in a cgroup with processes":              {Running, "0", "populated 1", "oomscore"},
		"a cgroup without processes, as gVisor's":      {Running, "0", "populated 0", "unified"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "")
			pod := n.pod("pod", memoryqos.Burstable)
			c := ofPod(pod, "main", 2*gi)
			c.State, c.Resources.Unified = test.state, map[string]string{"memory.low": "1073741824"}
			n.mkdir(c.CgroupsPath)
			n.writeFile(c.CgroupsPath, "memory.low", test.held)
			if test.processes != "" {
				n.writeFile(c.CgroupsPath, "cgroup.events", test.processes)
			}
			n.sync([]Pod{pod}, []Container{c})
			n.want("the source of its request", string(n.containerView(pod, "main").Source), test.want)
		})
	}
}

// The kubelet's memory.high is given back by each rollback, although the runtime's record has ours since the first.
func TestASecondRollbackGivesBackTheKubeletsMemoryHigh(t *testing.T) {
	const kubelets = "1610612736"
	n := newNode(t, "memoryThrottlingFactor: 0.5")
	n.sync(nil, nil)
	pod := n.pod("pod", memoryqos.Burstable)
	asked := ofPod(pod, "main", 2*gi)
	asked.Resources.Unified = map[string]string{"memory.high": kubelets}
	c := n.launch(pod, asked)
	ours := n.file(c.CgroupsPath, "memory.high")
	if ours == kubelets || ours == "max" {
		t.Fatalf("memory.high is %s, want ours", ours)
	}
	c.Resources.Unified = map[string]string{"memory.high": ours}
	for _, which := range []string{"first", "second", "third"} {
		n.stop()
		n.rollback()
		n.want("memory.high after the "+which+" rollback", n.file(c.CgroupsPath, "memory.high"), kubelets)
		n.start()
		n.sync([]Pod{pod}, []Container{c})
		n.work(context.Background())
		n.want("memory.high with the agent", n.file(c.CgroupsPath, "memory.high"), ours)
	}
}

// copyOf is a state folder as it is on the disk at this moment.
func copyOf(t testing.TB, dir string) string {
	t.Helper()
	for {
		copied := filepath.Join(t.TempDir(), "state")
		err := os.CopyFS(copied, os.DirFS(dir))
		switch {
		case err == nil:
			return copied
		case !errors.Is(err, fs.ErrNotExist): // a file that is renamed meanwhile is there under its new name
			t.Fatal(err)
		}
	}
}

// What a pod had is free after a kill, whether its end was on disk or not; and the state file never has it beside what took its place.
func TestAKillAfterTheEndOfAPod(t *testing.T) {
	for name, test := range map[string]struct {
		until func(n *node) []Container
		want  string // bytes on each NUMA node after the restart, in MiB
	}{
		"ended": {func(*node) []Container { return nil }, "0 0"},
		"another took its place": {func(n *node) []Container {
			next := n.pod("next", memoryqos.Guaranteed)
			c := n.launch(next, ofPod(next, "app", 2*gi))
			file, err := checkpoint.ReadFile(filepath.Join(n.state, checkpoint.FileName))
			if err != nil || len(file.State.Entries) != 1 || file.State.Entries[0].Pod != next.UID {
				t.Errorf("the state file has %+v, want %s alone: %v", file.State.Entries, next.UID, err)
			}
			return []Container{c}
		}, "2048 0"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "")
			n.sync(nil, nil)
			first := n.pod("first", memoryqos.Guaranteed)
			n.launch(first, ofPod(first, "app", 3*gi))
			n.must(n.endPod(t.Context(), first))
			living := test.until(n)
			copied := copyOf(t, n.state)
			n.stop()
			n.state = copied
			n.start()
			var pods []Pod
			for range living {
				pods = append(pods, n.pod("next", memoryqos.Guaranteed))
			}
			n.sync(pods, living)
			n.want("allocated", n.allocated(), test.want)
		})
	}
}

// What the runtime is answered is in the journal's file before it has the answer: it writes the files itself.
func TestAnAnswerIsInTheJournalBefore(t *testing.T) {
	n := newNode(t, "")
	for _, name := range []string{"a", "b", "c"} {
		pod := n.pod(name, memoryqos.Guaranteed)
		c := ofPod(pod, "app", gi)
		if answer := n.create(pod, c); answer.Unified["memory.min"] == "" || answer.CpusetMems == "" {
			t.Fatalf("the answer is %+v", answer)
		}
		data, err := os.ReadFile(filepath.Join(n.state, protect.JournalFile))
		if err != nil || !strings.Contains(string(data), `{"cgroup":"`+c.CgroupsPath[1:]+`","knobs":["cpuset.mems","memory.min"]`) {
			t.Errorf("%s was answered, and is not in the journal on disk: %s, %v", c.ID, data, err)
		}
	}
}

// Each file of the state folder that cannot be written is named by the condition, and in one line of the log; and so is the end of that.
func TestAFileThatCannotBeWrittenIsReported(t *testing.T) {
	ctx := context.Background()
	launch := func(n *node, name string) Container {
		pod := n.pod(name, memoryqos.Burstable)
		return n.launch(pod, ofPod(pod, "app", gi))
	}
	for file, change := range map[string]func(n *node, name string){
		checkpoint.FileName: func(n *node, name string) {
			pod := n.pod(name, memoryqos.Guaranteed)
			_, _ = n.CreateContainer(ctx, pod, ofPod(pod, "app", gi))
		},
		protect.JournalFile: func(n *node, name string) { launch(n, name) },
		raisesFile: func(n *node, name string) {
			c := launch(n, name)
			if err := n.SetHigh(ctx, c.ID, 1000*mi); err != nil {
				n.Fatal(err)
			}
		},
		requestsFile: func(n *node, name string) {
			pod := n.pod(name, memoryqos.Burstable)
			n.providers[0].(*podAPI).say(spec(pod, memoryqos.Burstable, pods.Container{Name: "app", Request: 100 * mi, Limit: gi}))
			n.launch(pod, ofPod(pod, "app", gi))
		},
	} {
		for how, hang := range map[string]bool{"fails": false, "hangs": true} {
			if hang && file == checkpoint.FileName {
				continue // until it counts as hanging, a create waits for it
			}
			t.Run(file+" "+how, func(t *testing.T) {
				n := newNode(t, "memoryThrottlingFactor: 0.5", func(n *node) { n.providers = []podinfo.Provider{&podAPI{}} })
				n.sync(nil, nil)
				n.mkdir("kubepods/burstable")
				way := filepath.Join(n.state, file+".tmp")
				if err := os.MkdirAll(n.state, 0o700); err != nil {
					t.Fatal(err)
				}
				if hang { // until it is read from
					if err := unix.Mkfifo(way, 0o600); err != nil {
						t.Fatal(err)
					}
				} else if err := os.Mkdir(way, 0o700); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(ctx)
				t.Cleanup(cancel)
				go n.requests.Run(ctx)
				change(n, "one")
				condition := func() ledger.Condition {
					for _, c := range n.View().Conditions {
						if c.Name == ledger.ConditionCheckpoint {
							return c
						}
					}
					t.Fatal("no condition")
					return ledger.Condition{}
				}
				eventually(t, "the condition does not hold", func() bool {
					if hang {
						n.clock.add(slowDisk)
					}
					return !condition().OK
				})
				if c := condition(); !strings.Contains(c.Message, file) && file != checkpoint.FileName {
					t.Errorf("the condition is %q, which does not name %s", c.Message, file)
				}
				for range 3 {
					n.reconcile(ctx)
				}
				if lines := n.logged("cannot be written: ", "file="+file); lines != 1 {
					t.Errorf("%d lines in the log:\n%s", lines, n.log)
				}
				if hang {
					reader, err := os.OpenFile(way, os.O_RDWR, 0) // as a writer, too, so that it finds no end
					if err != nil {
						t.Fatal(err)
					}
					defer reader.Close()
					go func() { _, _ = io.Copy(io.Discard, reader) }()
				} else if err := os.Remove(way); err != nil {
					t.Fatal(err)
				}
				change(n, "two")
				eventually(t, "the write that hung ends", func() bool { // it may fail; before that, the clock would undo what was reported
					return !strings.Contains(condition().Message, "has not been written")
				})
				n.clock.add(-n.clock.ahead)
				eventually(t, "the condition holds again", func() bool {
					n.reconcile(ctx)
					return condition().OK && n.logged("can be written again", "file="+file) > 0
				})
				for range 3 {
					n.reconcile(ctx)
				}
				if lines := n.logged("can be written again", "file="+file); lines != 1 {
					t.Errorf("its end is told %d times:\n%s", lines, n.log)
				}
			})
		}
	}
}

// logged is how many lines of the log have both texts.
func (n *node) logged(text, field string) (lines int) {
	for line := range strings.Lines(n.log.String()) {
		if strings.Contains(line, text) && strings.Contains(line, field) {
			lines++
		}
	}
	return lines
}

// A raise of memory.high waits neither for the state folder's disk nor for another container's file.
func TestARaiseWaitsForNoDisk(t *testing.T) {
	n := newNode(t, "memoryThrottlingFactor: 0.5")
	pod, other := n.pod("pod", memoryqos.Burstable), n.pod("other", memoryqos.Burstable)
	c, d := n.launch(pod, ofPod(pod, "app", gi)), n.launch(other, ofPod(other, "app", gi))
	fifos := []string{}
	for _, file := range []string{checkpoint.FileName, protect.JournalFile, raisesFile} {
		fifo := filepath.Join(n.state, file+".tmp")
		fifos = append(fifos, fifo)
		eventually(t, "no write is under way", func() bool { return unix.Mkfifo(fifo, 0o600) == nil })
	}
	defer func() {
		for _, fifo := range fifos {
			if reader, err := os.OpenFile(fifo, os.O_RDWR, 0); err == nil {
				defer reader.Close()
				go func() { _, _ = io.Copy(io.Discard, reader) }()
			}
		}
		n.stop()
	}()
	for i, container := range []Container{c, d, c, d} {
		high := 700*mi + uint64(i)*mi
		if err := n.SetHigh(context.Background(), container.ID, high); err != nil {
			t.Fatal(err)
		}
		n.want("memory.high", n.file(container.CgroupsPath, "memory.high"), bytesOf(high))
	}
	n.ancestors.slot <- struct{}{} // the parent cgroups are being written
	if err := n.SetHigh(context.Background(), c.ID, 800*mi); err != nil {
		t.Fatal(err)
	}
	<-n.ancestors.slot
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), bytesOf(800*mi))
}

// One container's write that does not return holds up no other container's, and not the end.
func TestASlowWriteHoldsNoOtherContainer(t *testing.T) {
	for name, test := range map[string]struct{ before, after string }{
		"raised":  {"0.5", "0.9"},
		"lowered": {"0.9", "0.5"},
	} {
		t.Run(name, func(t *testing.T) {
			gate, begun := make(chan struct{}), make(chan struct{}, 100)
			const rest = "\nstallGuard: false"
			n := newNode(t, "memoryThrottlingFactor: "+test.before+rest, func(n *node) {
				n.check = time.Second
				n.onWrite = func(w cgroupfs.Write) {
					if strings.Contains(w.Cgroup, "poda-uid/") && w.Knob == cgroup.MemoryHigh {
						begun <- struct{}{}
						<-gate
					}
				}
			})
			defer close(gate)
			n.sync(nil, nil)
			a, b := n.pod("a", memoryqos.Burstable), n.pod("b", memoryqos.Burstable)
			n.launch(a, ofPod(a, "app", gi))
			c := n.launch(b, ofPod(b, "app", gi))
			before := n.file(c.CgroupsPath, "memory.high")
			stop := n.background()
			if err := n.Reconfigure(context.Background(), parseConfig(t, "memoryThrottlingFactor: "+test.after+rest)); err != nil {
				t.Fatal(err)
			}
			<-begun
			eventually(t, "the other's memory.high is written", func() bool { return n.file(c.CgroupsPath, "memory.high") != before })
			stop()
		})
	}
}

// onceArmed has an open of a file hang in the cgroup that is set before.
func (n *node) onceArmed(armed chan struct{}, hang func(), name string) (cgroup *string) {
	cgroup = new(string)
	n.onOpen = func(dir, file string) error {
		select {
		case <-armed:
			if "/"+dir == *cgroup && file == name {
				hang()
			}
		default:
		}
		return nil
	}
	return cgroup
}

// A cgroup that does not answer, when it is looked for or written, holds up no event of another pod.
func TestACgroupThatHangsHoldsNoEvent(t *testing.T) {
	const gone = "kubepods/burstable/podgone/app"
	for name, hangs := range map[string]func(n *node, hang func()) (begin func()){
		"looked for by the journal": func(n *node, hang func()) func() {
			n.onOpen = func(dir, _ string) error {
				if dir == gone {
					hang()
				}
				return nil
			}
			return func() {
				n.journal.Note(protect.Entry{Cgroup: gone, Knob: cgroup.MemoryHigh})
				n.protector.Prune()
			}
		},
		"looked for at its end": func(n *node, hang func()) func() {
			armed := make(chan struct{})
			first := n.onceArmed(armed, hang, ".")
			return func() {
				pod := n.pod("first", memoryqos.Guaranteed)
				c := n.launch(pod, ofPod(pod, "app", gi))
				*first = c.CgroupsPath
				close(armed)
				_ = n.StopContainer(context.Background(), pod, c)
			}
		},
		"read": func(n *node, hang func()) func() {
			armed := make(chan struct{})
			first := n.onceArmed(armed, hang, "memory.min")
			return func() {
				pod := n.pod("first", memoryqos.Guaranteed)
				*first = n.launch(pod, ofPod(pod, "app", gi)).CgroupsPath
				close(armed)
				_, _ = n.protector.Reconcile(context.Background())
			}
		},
		"written": func(n *node, hang func()) func() {
			n.onWrite = func(w cgroupfs.Write) {
				if w.Cgroup == "kubepods" && w.Knob == cgroup.MemoryMin {
					hang()
				}
			}
			return func() {
				first := n.pod("first", memoryqos.Guaranteed)
				n.launch(first, ofPod(first, "app", gi))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			gate, begun := make(chan struct{}), make(chan struct{}, 100)
			var begin func()
			n := newNode(t, "memoryReservationPolicy: HardReservation", func(n *node) {
				n.check = time.Second
				begin = hangs(n, func() { begun <- struct{}{}; <-gate })
			})
			n.sync(nil, nil)
			hung, done := make(chan struct{}), make(chan struct{})
			go func() { defer close(hung); begin() }()
			<-begun
			pod := n.pod("pod", memoryqos.Guaranteed)
			go func() { defer close(done); n.launch(pod, ofPod(pod, "app", gi)) }()
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				t.Error("a container of another pod has not started within half a minute")
			}
			close(gate)
			<-hung
			<-done
			defer n.background()()
			eventually(t, "kubepods protects all pods", func() bool {
				return n.file("/kubepods", "memory.min") == bytesOf(*above(n.View(), cgroup.LevelKubepods).Min)
			})
			eventually(t, "every write has returned", func() bool { return n.ancestors.hanging.Load() == 0 }) // before the folder goes
		})
	}
}

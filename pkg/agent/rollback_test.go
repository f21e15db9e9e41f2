package agent

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// rollBack rolls a node back without an error.
func (n *node) rollBack() {
	n.Helper()
	if _, err := n.Rollback(context.Background()); err != nil {
		n.Fatal(err)
	}
}

// TestWhatTheRuntimeWritesAfterARollbackIsTakenBack has the runtime write what it was told before, by each way on which that comes late.
func TestWhatTheRuntimeWritesAfterARollbackIsTakenBack(t *testing.T) {
	ctx := context.Background()
	ranBefore := func(n *node) (ledger.Pod, ledger.Container, ledger.Adjustment) { // the rollback
		p := n.pod("db", memoryqos.Burstable)
		adjustment := n.create(p, ofPod(p, "app", 4*gi))
		c := n.run(p, ofPod(p, "app", 4*gi), adjustment)
		n.work(ctx)
		n.rollBack()
		return p, c, adjustment
	}
	var apply func([]Update)
	for name, late := range map[string]func(n *node) ledger.Container{
		"a container in creation": func(n *node) ledger.Container {
			p := n.pod("db", memoryqos.Burstable)
			c := ofPod(p, "app", 4*gi)
			adjustment := n.create(p, c)
			n.rollBack()
			n.reconcile(ctx) // the cgroup is yet to come
			return n.run(p, c, adjustment)
		},
		"a resize whose end is not reported": func(n *node) ledger.Container {
			p, c, adjustment := ranBefore(n)
			if _, err := n.UpdateContainer(ctx, p, c, ledger.Resources{MemoryLimit: limit(int64(5 * gi))}); err != nil {
				n.Fatal(err)
			}
			n.write(c.CgroupsPath, adjustment)
			n.writeFile(c.CgroupsPath, "memory.max", bytesOf(5*gi))
			return c
		},
		"a resize that fails": func(n *node) ledger.Container {
			_, c, adjustment := ranBefore(n)
			n.write(c.CgroupsPath, adjustment)
			n.finish(ctx, n.step(ledger.FailUpdate{ID: c.ID, Header: n.header()}))
			return c
		},
		"an update that we asked for": func(n *node) ledger.Container {
			asked, wrote := make(chan bool, 1), make(chan bool)
			apply = func(updates []Update) {
				asked <- true
				<-wrote
				for _, u := range updates {
					n.write("/kubepods/burstable/poddb-uid/"+u.ContainerID, u.Adjustment)
				}
			}
			p := n.pod("db", memoryqos.Burstable)
			c := n.launch(p, ofPod(p, "app", 4*gi))
			n.work(ctx)
			if err := n.Reconfigure(ctx, parseConfig(n, "memoryThrottlingFactor: 0.5")); err != nil {
				n.Fatal(err)
			}
			<-asked
			n.rollBack()
			close(wrote)
			eventually(n, "the updates are sent", func() bool {
				n.mu.Lock()
				defer n.mu.Unlock()
				return !n.sending
			})
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			apply = nil
			n := newNode(t, "", func(n *node) {
				n.apply = func(_ context.Context, updates []Update) error {
					if apply != nil {
						apply(updates)
					}
					return nil
				}
			})
			c := late(n)
			for range 3 { // nothing else tells of it
				n.clock.add(time.Minute)
				n.reconcile(ctx)
			}
			n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), "max")
		})
	}
}

// TestRollbackOfAMachineThatHasChanged: the configuration does not fit it any more, and the file's error stays.
func TestRollbackOfAMachineThatHasChanged(t *testing.T) {
	n := newNode(t, "", func(n *node) {
		n.sysfs = t.TempDir()
		n.plug(0, 16*gi, 512)
		n.plug(1, 16*gi, 512)
	})
	ctx := context.Background()
	p := n.pod("db", memoryqos.Burstable)
	c := n.launch(p, ofPod(p, "app", 4*gi))
	n.plug(1, gi/4, 0)
	n.reconcile(ctx)
	refused := func() string {
		for _, condition := range n.View().Conditions {
			if condition.Name == ledger.ConditionConfig && !condition.OK {
				return condition.Message
			}
		}
		return ""
	}
	before := refused()
	if before == "" {
		t.Fatal("the configuration fits the machine")
	}
	n.rollBack()
	n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), "max")
	n.want("the condition after the rollback", refused(), before)
	if err := n.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	n.want("the condition after resume", refused(), before)
}

// TestAnUpdateDoesNotWaitForAConfiguration has the lock of reloads kept, which wait for the runtime.
func TestAnUpdateDoesNotWaitForAConfiguration(t *testing.T) {
	n := newNode(t, "profile: Observe")
	p := n.pod("db", memoryqos.Burstable)
	c := n.launch(p, ofPod(p, "app", 4*gi))
	defer n.configuring()()
	if err := n.PostUpdateContainer(context.Background(), p, c); err != nil {
		t.Error(err)
	}
}

// hanging returns a node with a container whose files do not answer until the channel is closed.
func hanging(t testing.TB) (*node, Container, chan bool) {
	n := newNode(t, "")
	p := n.pod("db", memoryqos.Burstable)
	c := n.launch(p, ofPod(p, "app", 4*gi))
	n.work(context.Background())
	answers := make(chan bool)
	n.onOpen = func(cgroup, _ string) error {
		if strings.TrimPrefix(c.CgroupsPath, "/") == strings.TrimPrefix(cgroup, "/") {
			<-answers
		}
		return nil
	}
	return n, c, answers
}

// TestRollbackBesideAFileThatHangs ends in time, names the files that hang, and has nothing written any more.
func TestRollbackBesideAFileThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, c, answers := hanging(t)
		began := time.Now()
		actions, err := n.Rollback(t.Context())
		if err != nil || time.Since(began) > 10*time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		hang := 0
		for _, a := range actions {
			if a.Err != nil && strings.HasSuffix(a.Err.Error(), " of cgroup "+a.Cgroup+" hangs: its read has not returned") {
				hang++
				n.want("the cgroup that hangs", "/"+a.Cgroup, c.CgroupsPath)
			}
		}
		if hang == 0 {
			t.Errorf("no file hangs: %+v", actions)
		}
		if !n.View().Config.Config.RolledBack {
			t.Error("the daemon is not rolled back")
		}
		close(answers)
	})
}

// TestRollbackBesideAFileThatHangsForAWhile names what it restored although the plan came late.
func TestRollbackBesideAFileThatHangsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, c, answers := hanging(t)
		time.AfterFunc(planWait+time.Second, func() { close(answers) })
		actions, err := n.Rollback(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		n.want("memory.high", n.file(c.CgroupsPath, "memory.high"), "max")
		for _, a := range actions {
			if "/"+a.Cgroup == c.CgroupsPath && a.Knob == cgroup.MemoryHigh && a.Err == nil {
				return
			}
		}
		t.Errorf("nothing of the container's memory.high in %+v", actions)
	})
}

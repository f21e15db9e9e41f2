package agent

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/devices"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// slowDevices holds the first look at a container's devices up until the gate is closed: what an event waits for before its Step.
type slowDevices struct {
	used          atomic.Bool
	entered, gate chan struct{}
}

func newSlowDevices() *slowDevices {
	return &slowDevices{entered: make(chan struct{}), gate: make(chan struct{})}
}

func (*slowDevices) Wants(devices.Container) bool                              { return false }
func (*slowDevices) CPUs(context.Context, devices.Container) map[string]string { return nil }
func (*slowDevices) Find(context.Context, devices.Container) devices.Pod       { return nil }
func (s *slowDevices) Lookup(devices.Container) []topologymanager.Device {
	if s.used.CompareAndSwap(false, true) {
		close(s.entered)
		<-s.gate
	}
	return nil
}

// A list of the runtime's pods that was slow to be looked at says nothing about those that came since: not when the runtime has given
// it up, and not when its connection has ended.
func TestALateListOfPodsEndsNothing(t *testing.T) {
	for name, ends := range map[string]func(n *node, giveUp func()){
		"given up":       func(_ *node, giveUp func()) { giveUp() },
		"disconnected":   func(n *node, _ func()) { n.Disconnected(nil) },
		"new connection": func(n *node, _ func()) { n.Connected(n.runtime, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			slow := newSlowDevices()
			n := newNode(t, "topologyManagerPolicy: single-numa-node", func(n *node) { n.devices = slow })
			old := n.pod("old", memoryqos.Guaranteed)
			c := n.launchLater(old, ofPod(old, "app", gi))
			ctx, giveUp := context.WithCancel(context.Background())
			defer giveUp()
			first, done := n.Session, make(chan error)
			go func() {
				_, err := first.Synchronize(ctx, []Pod{old}, []Container{c})
				done <- err
			}()
			<-slow.entered
			ends(n, giveUp)

			n.Connected(n.runtime, nil)
			n.sync([]Pod{old}, []Container{c})
			db := n.pod("db", memoryqos.Guaranteed)
			running := n.launch(db, ofPod(db, "app", 12*gi))
			allocated, protection := n.allocated(), n.file(running.CgroupsPath, "memory.min")

			close(slow.gate)
			if err := <-done; err == nil {
				t.Error("the late list has no error")
			}
			n.work(context.Background())
			n.want("allocated", n.allocated(), allocated)
			n.want("memory.min of a container that runs", n.file(running.CgroupsPath, "memory.min"), protection)
			second, third := n.pod("second", memoryqos.Guaranteed), n.pod("third", memoryqos.Guaranteed)
			n.create(second, ofPod(second, "app", 12*gi))
			if _, err := n.CreateContainer(context.Background(), third, ofPod(third, "app", 12*gi)); err == nil {
				t.Error("three containers of 12Gi are placed on two nodes of 16Gi")
			}
		})
	}
}

// launchLater makes the cgroup of a container that runs already, without an event.
func (n *node) launchLater(p Pod, c Container) Container {
	n.Helper()
	n.mkdir(c.CgroupsPath)
	c.State, c.DeviceNodes = Running, []ledger.DeviceNode{{Path: "/dev/x", Major: 1, Minor: 3}}
	return c
}

// lateCreate begins to create a container that waits for its claim to be read, until the gate is closed.
func lateCreate(n *node) (web Pod, try func(id string) Container, prepare func(pods ...string), first <-chan error, giveUp, open func()) {
	n.Helper()
	n.sync(nil, nil)
	web = n.pod("web", memoryqos.Guaranteed)
	prepare = func(pods ...string) {
		n.Helper()
		claim := claims.Claim{UID: "uid-a", Namespace: "default", Name: "a", Pods: pods, Parts: []claims.Part{
			{Request: "mem", Node: 1, Amounts: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 2 * gi}}}}}
		if err := n.PrepareClaim(context.Background(), claim); err != nil {
			n.Fatal(err)
		}
	}
	prepare()
	entered, gate := make(chan struct{}), make(chan struct{})
	n.OnUnreserved(func(context.Context, claims.Claim) { close(entered); <-gate })
	try = func(id string) Container {
		c := ofPod(web, "app", 2*gi)
		c.ID, c.CgroupsPath = id, web.CgroupParent+"/"+id
		c.Claims = []claims.Ref{{UID: "uid-a", Part: 0}}
		return c
	}
	ctx, giveUp := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { _, err := n.CreateContainer(ctx, web, try("try-1")); done <- err }()
	<-entered
	return web, try, prepare, done, giveUp, func() { close(gate) }
}

// A container that is created while the plugin is away is placed by its claim, although that was another pod's when it was prepared.
func TestAClaimThatPassedOnWhileThePluginWasAway(t *testing.T) {
	n := newNode(t, "dra: {enabled: true}")
	n.sync(nil, nil)
	web, claim := n.pod("web", memoryqos.Guaranteed), claimOn(1, 2*gi)
	if err := n.PrepareClaim(context.Background(), claim); err != nil {
		t.Fatal(err)
	}
	n.OnUnreserved(func(ctx context.Context, unreserved claims.Claim) {
		unreserved.Pods = []string{web.UID}
		if err := n.PrepareClaim(ctx, unreserved); err != nil {
			t.Error(err)
		}
	})
	c := ofPod(web, "app", 2*gi)
	c.State, c.Claims = Running, []claims.Ref{{UID: claim.UID}}
	n.mkdir(c.CgroupsPath)
	n.sync([]Pod{web}, []Container{c})
	n.reconcile(context.Background())
	n.want("cpuset.mems", n.file(c.CgroupsPath, "cpuset.mems"), "1")
}

// A create that goes on after the runtime has given it up, or after the kubelet's next try, changes nothing of that.
func TestALateCreateDecidesNothing(t *testing.T) {
	for name, gone := range map[string]struct{ givenUp, removed, restarted bool }{
		"given up":                  {givenUp: true},
		"given up and removed":      {givenUp: true, removed: true},
		"removed":                   {removed: true},
		"overtaken":                 {},
		"the runtime was restarted": {restarted: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "topologyManagerPolicy: single-numa-node\ndra: {enabled: true}")
			web, try, prepare, first, giveUp, open := lateCreate(n)
			defer giveUp()
			if gone.givenUp {
				giveUp()
			}
			if gone.removed {
				if err := n.RemoveContainer(context.Background(), web, try("try-1")); err != nil {
					t.Fatal(err)
				}
			}
			if gone.restarted {
				n.Connected(n.runtime, nil)
				n.sync([]Pod{web}, nil)
			}
			prepare(web.UID)
			running := n.launch(web, try("try-2"))
			protection := n.file(running.CgroupsPath, "memory.min")
			open()
			if err := <-first; err == nil {
				t.Error("the late create has an answer")
			}
			n.work(context.Background())
			n.reconcile(context.Background())
			n.want("memory.min of the container that runs", n.file(running.CgroupsPath, "memory.min"), protection)
			if _, lives := n.cgroupOf("try-2"); !lives {
				t.Error("the container that runs is not known")
			}
		})
	}
}

// A container that was removed before its create went on does not come to life.
func TestACreateAfterItsOwnRemovalDecidesNothing(t *testing.T) {
	n := newNode(t, "topologyManagerPolicy: single-numa-node\ndra: {enabled: true}")
	web, try, prepare, first, giveUp, open := lateCreate(n)
	defer giveUp()
	prepare(web.UID)
	if err := n.RemoveContainer(context.Background(), web, try("try-1")); err != nil {
		t.Fatal(err)
	}
	open()
	if err := <-first; err == nil {
		t.Error("it has an answer")
	}
	if _, lives := n.cgroupOf("try-1"); lives {
		t.Error("it lives")
	}
}

// A resize that the runtime has given up is not decided: nobody would apply the answer.
func TestAResizeThatWasGivenUpDecidesNothing(t *testing.T) {
	n := newNode(t, "topologyManagerPolicy: single-numa-node")
	n.sync(nil, nil)
	web := n.pod("web", memoryqos.Guaranteed)
	c := n.launch(web, ofPod(web, "app", gi))
	ctx, giveUp := context.WithCancel(context.Background())
	giveUp()
	if _, err := n.UpdateContainer(ctx, web, c, Resources{MemoryLimit: limit(4 << 30)}); err == nil {
		t.Error("it has an answer")
	}
	n.want("allocated", n.allocated(), "1024 0")
	if got := n.containerView(web, "app").Limit; got != gi {
		t.Errorf("the limit is %d", got)
	}
}

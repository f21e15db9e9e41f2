package agent

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// behaviour is one thing that the agent does, seen from outside: the runtime's events go in, and answers, allocations and files come out.
type behaviour struct {
	name  string
	right string // what is right, in a sentence
	run   func(t testing.TB)
}

var behaviours = slices.Concat(refusals, sandboxes, initContainers, pendingResizes, listedContainers, otherWriters, podLimits, dryRuns)

func TestBehaviours(t *testing.T) {
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			defer func() { // also where the behaviour has ended early
				if t.Failed() {
					t.Log("right is: " + b.right)
				}
			}()
			b.run(t)
		})
	}
}

// oneNode has each container on one NUMA node, which has 14.5Gi for them.
const oneNode = "topologyManagerPolicy: single-numa-node\nguaranteedHeadroom: 0\n"

// accepted fails the behaviour where a request of the runtime is refused. The text of the error is logged and not compared.
func (n *node) accepted(what string, err error) {
	n.Helper()
	if err != nil {
		n.Log(err)
		n.Errorf("%s is refused", what)
	}
}

// mustRefuse ends the behaviour where what should come first has not: without it nothing is shown.
func (n *node) mustRefuse(what string, err error) {
	n.Helper()
	if err == nil {
		n.Fatalf("%s is not refused: nothing is shown", what)
	}
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// tryCreate creates a container and does not have it run.
func (n *node) tryCreate(p Pod, c Container) error {
	n.Helper()
	_, err := n.CreateContainer(context.Background(), p, c)
	return err
}

func (n *node) tryUpdate(p Pod, c Container, to Resources) error {
	n.Helper()
	_, err := n.UpdateContainer(context.Background(), p, c, to)
	return err
}

// claimOn is a claim of another pod.
func claimOn(numaNode int, bytes uint64) claims.Claim {
	return claims.Claim{UID: "uid", Namespace: "default", Name: "big", Pods: []string{"other"}, Parts: []claims.Part{
		{Request: "mem", Node: numaNode, Amounts: memorymanager.Request{{Type: memorymanager.Memory, Bytes: bytes}}},
	}}
}

// A resize that was refused is decided again when memory has come.
var refusals = []behaviour{
	besideAClaim("a resize refused while a claim had the memory",
		"it is accepted once the claim has ended: the kubelet tries it every second", func(*node, Pod, Container) {}),
	besideAClaim("a resize refused after a restart, while a claim had the memory",
		"it is accepted once the claim has ended, however short the plugin has run", func(n *node, db Pod, c Container) {
			n.restart()
			n.sync([]Pod{db}, []Container{c})
		}),
	{
		name:  "a resize refused while a pod had the memory",
		right: "it is accepted once the pod has ended",
		run: func(t testing.TB) {
			n := newNode(t, oneNode)
			n.sync(nil, nil)
			db, other := n.pod("db", memoryqos.Guaranteed), n.pod("other", memoryqos.Guaranteed)
			c := n.launch(db, ofPod(db, "app", 4*gi))
			neighbor := n.launch(other, ofPod(other, "app", 8*gi))
			n.mustRefuse("the resize beside the pod", n.tryUpdate(db, c, to(10*gi)))
			n.must(n.StopContainer(context.Background(), other, neighbor))
			n.rmdir(other.CgroupParent)
			n.must(n.StopPodSandbox(context.Background(), other))
			n.passes(time.Hour)
			n.accepted("the resize", n.tryUpdate(db, c, to(10*gi)))
		},
	},
}

// besideAClaim is a resize for which there is no room beside a claim.
func besideAClaim(name, right string, before func(n *node, db Pod, c Container)) behaviour {
	return behaviour{name: name, right: right, run: func(t testing.TB) {
		n := newNode(t, oneNode+"dra: {enabled: true, shares: [{limits: {memory: 10%}}]}")
		n.sync(nil, nil)
		db := n.pod("db", memoryqos.Guaranteed)
		c := n.launch(db, ofPod(db, "app", 4*gi))
		n.must(n.PrepareClaim(context.Background(), claimOn(0, 8*gi)))
		before(n, db, c)
		n.mustRefuse("the resize beside the claim", n.tryUpdate(db, c, to(10*gi)))
		n.UnprepareClaim(context.Background(), "uid")
		n.accepted("the resize", n.tryUpdate(db, c, to(10*gi)))
	}}
}

// A pod's sandbox is restarted, and the old one is removed later.
var sandboxes = []behaviour{
	oldSandbox("an old sandbox with a lower id than the new one's", "a-sandbox"),
	oldSandbox("an old sandbox with a higher id than the new one's", "z-sandbox"),
	{
		name:  "a sandbox that is restarted",
		right: "the pod keeps its memory: its cgroup is there all the time, and so is the pod",
		run: func(t testing.TB) {
			n := newNode(t, oneNode)
			n.sync(nil, nil)
			db, other, waiting := n.pod("db", memoryqos.Guaranteed), n.pod("other", memoryqos.Guaranteed), n.pod("waiting", memoryqos.Guaranteed)
			c := n.launch(db, ofPod(db, "app", 12*gi))
			n.launch(other, ofPod(other, "app", 12*gi))
			n.mustRefuse("a third container of 12Gi", n.tryCreate(waiting, ofPod(waiting, "app", 12*gi)))
			n.must(n.StopContainer(context.Background(), db, c))
			n.must(n.StopPodSandbox(context.Background(), db))
			if n.tryCreate(waiting, ofPod(waiting, "app", 12*gi)) == nil {
				n.Error("a pod that waited has the memory of one that lives")
			}
			db.ID = "db-sandbox-2"
			n.must(n.RunPodSandbox(context.Background(), db))
			n.accepted("the container of the living pod", n.tryCreate(db, again(db, c)))
		},
	},
}

// again is the next container of the same name.
func again(p Pod, c Container) Container {
	next := ofPod(p, c.Name, uint64(*c.Resources.MemoryLimit))
	next.ID, next.CgroupsPath = next.ID+"-2", next.CgroupsPath+"-2"
	return next
}

// oldSandbox is a pod whose containers have all crashed when the runtime connects again. It lists the pod's newest sandbox and one that has
// ended, and then the kubelet removes the latter.
func oldSandbox(name, id string) behaviour {
	return behaviour{
		name:  name,
		right: "its removal changes nothing of the pod, which lives in the newer one",
		run: func(t testing.TB) {
			n := newNode(t, oneNode)
			n.sync(nil, nil)
			db := n.pod("db", memoryqos.Guaranteed)
			db.ID = "m-sandbox"
			old := db
			old.ID = id
			c := n.launch(db, ofPod(db, "app", 12*gi))
			n.must(n.StopContainer(context.Background(), db, c))
			n.Disconnected(nil)
			n.Connected(n.runtime, n.apply)
			n.sync([]Pod{db, old}, nil)
			n.want("allocated before the removal", n.allocated(), "12288 0")
			n.must(n.RemovePodSandbox(context.Background(), old))
			n.want("allocated", n.allocated(), "12288 0")
			for _, other := range []string{"x", "y"} { // one of them has room
				pod := n.pod(other, memoryqos.Guaranteed)
				_ = n.tryCreate(pod, ofPod(pod, "app", 12*gi))
			}
			n.accepted("the next start of the container", n.tryCreate(db, again(db, c)))
		},
	}
}

// An init container leaves its memory to the pod's other containers, as soon as its role is known and it has ended.
var initContainers = []behaviour{
	reuse("an init container that ends", (*begun).end),
	reuse("an init container that ends before a restart", func(r *begun) { r.end(); r.restart() }),
	reuse("an init container that ends after a restart", func(r *begun) { r.restart(r.first); r.end() }),
	reuse("an init container that ends before a claim", func(r *begun) { r.end(); r.claim() }),
	reuse("an init container that ends after a claim", func(r *begun) { r.claim(); r.end() }),
	reuse("an init container that ends before a reload", func(r *begun) { r.end(); r.reload() }),
	reuse("an init container that ends after a reload", func(r *begun) { r.reload(); r.end() }),
	{
		name:  "an init container whose role is learnt after its app container was created",
		right: "what it has beyond the app container is free then: nothing of the pod needs it",
		run: func(t testing.TB) {
			api := &podAPI{}
			n := newNode(t, oneNode, func(n *node) { n.providers = []podinfo.Provider{api} })
			n.sync(nil, nil)
			n.background()
			api.listening(t)
			db := n.pod("db", memoryqos.Guaranteed)
			n.launch(db, ofPod(db, "proxy", gi))
			init := n.launch(db, ofPod(db, "init", 10*gi))
			n.must(n.StopContainer(context.Background(), db, init))
			n.launch(db, ofPod(db, "app", 10*gi))
			n.want("allocated before the role is known", n.allocated(), "11264 10240")
			api.say(guaranteedSpec(db, of("proxy", memoryqos.Sidecar, gi), of("init", memoryqos.Init, 10*gi), of("app", memoryqos.App, 10*gi)))
			eventually(t, "the pod is known", func() bool { return n.containerView(db, "proxy").Kind == memoryqos.Sidecar })
			n.want("allocated", n.allocated(), "1024 10240")
			next := n.pod("next", memoryqos.Guaranteed)
			n.accepted("the next pod", n.tryCreate(next, ofPod(next, "app", 10*gi)))
		},
	},
	besideSidecar("an init container beside a sidecar", func(*begun) {}),
	besideSidecar("an init container beside a sidecar that was there before a restart", func(r *begun) { r.restart(r.first) }),
	besideSidecar("an init container beside a sidecar that was there before a claim", (*begun).claim),
	besideSidecar("an init container beside a sidecar that was there before a reload", (*begun).reload),
}

func of(name string, kind memoryqos.Kind, bytes uint64) pods.Container {
	return pods.Container{Name: name, Kind: kind, Request: bytes, Limit: bytes, Guaranteed: true}
}

func guaranteedSpec(p Pod, containers ...pods.Container) *pods.Pod {
	return spec(p, memoryqos.Guaranteed, containers...)
}

// begun is a pod whose first container runs, and what may happen before the next one is created.
type begun struct {
	*node
	pod   Pod
	first Container
}

func begin(t testing.TB, first string, containers ...pods.Container) *begun {
	api := &podAPI{}
	n := newNode(t, oneNode+"dra: {enabled: true, shares: [{limits: {memory: 10%}}]}", func(n *node) { n.providers = []podinfo.Provider{api} })
	n.sync(nil, nil)
	db := n.pod("db", memoryqos.Guaranteed)
	api.say(guaranteedSpec(db, containers...))
	return &begun{node: n, pod: db, first: n.launch(db, ofPod(db, first, containers[0].Limit))}
}

func (r *begun) end()   { r.must(r.StopContainer(context.Background(), r.pod, r.first)) }
func (r *begun) claim() { r.must(r.PrepareClaim(context.Background(), claimOn(1, 2*gi))) }

// reload changes what the nodes have for pods.
func (r *begun) reload() {
	r.reconfigure(oneNode + "dra: {enabled: true, shares: [{limits: {memory: 15%}}]}")
}

func (r *begun) restart(running ...Container) {
	r.node.restart()
	r.sync([]Pod{r.pod}, running)
}

// reuse has an init container of 10Gi, and an app container of 10Gi later.
func reuse(name string, between func(*begun)) behaviour {
	return behaviour{
		name:  name,
		right: "its app container has its memory, and no more is allocated for the pod",
		run: func(t testing.TB) {
			r := begin(t, "init", of("init", memoryqos.Init, 10*gi), of("app", memoryqos.App, 10*gi))
			between(r)
			r.launch(r.pod, ofPod(r.pod, "app", 10*gi))
			r.want("the node of the app container", r.blocks("db", "app").String(), "0")
			r.want("allocated", r.allocated(), "10240 0")
		},
	}
}

// besideSidecar has a sidecar of 4Gi that runs, and an init container of 6Gi later.
func besideSidecar(name string, between func(*begun)) behaviour {
	return behaviour{
		name:  name,
		right: "it has memory of its own: a sidecar runs on and uses its own",
		run: func(t testing.TB) {
			r := begin(t, "proxy", of("proxy", memoryqos.Sidecar, 4*gi), of("init", memoryqos.Init, 6*gi), of("app", memoryqos.App, gi))
			between(r)
			r.launch(r.pod, ofPod(r.pod, "init", 6*gi))
			r.want("allocated for both", r.allocated(), "10240 0")
		},
	}
}

// A container was resized while the plugin was away, and the node of its memory has no room for all of it.
var pendingResizes = []behaviour{
	whilePending("a change of the CPUs of a container that is short of memory",
		"it asks for no memory, and is not refused", Resources{CPUs: "0-3"}),
	whilePending("a lower limit for a container that is short of memory",
		"it asks for less, and is not refused", to(11*gi)),
	whilePending("the limit that a container has that is short of memory",
		"it asks for nothing more, and is not refused", to(12*gi)),
}

func whilePending(name, right string, update Resources) behaviour {
	return behaviour{name: name, right: right, run: func(t testing.TB) {
		n := newNode(t, oneNode)
		n.sync(nil, nil)
		db, other := n.pod("db", memoryqos.Guaranteed), n.pod("other", memoryqos.Guaranteed)
		c, neighbor := n.launch(db, ofPod(db, "app", 4*gi)), n.launch(other, ofPod(other, "app", 8*gi))
		n.Disconnected(nil)
		c.Resources = c.Resources.Updated(to(12 * gi))
		n.writeFile(c.CgroupsPath, "memory.max", bytesOf(12*gi))
		n.Connected(n.runtime, n.apply)
		n.sync([]Pod{db, other}, []Container{c, neighbor})
		if len(n.containerView(db, "app").PendingResize) == 0 {
			n.Fatal("it is not short of memory: nothing is shown")
		}
		n.accepted("the update", n.tryUpdate(db, c, update))
	}}
}

// A container lives as long as it has processes, whatever the runtime's list says of it.
var listedContainers = []behaviour{
	listed("a container that the runtime lists as running", "it is protected", Running),
	listed("a container that the runtime lists in no state that it knows", "it is protected: it has a cgroup with processes", Unknown),
	{
		name:  "a running container that the runtime does not list",
		right: "it stays protected: it has a cgroup with processes",
		run: func(t testing.TB) {
			n := newNode(t, oneNode)
			n.sync(nil, nil)
			db := n.pod("db", memoryqos.Guaranteed)
			c := n.launch(db, ofPod(db, "app", 4*gi))
			n.writeFile(c.CgroupsPath, "cgroup.events", "populated 1\nfrozen 0")
			n.reconcile(context.Background())
			n.want("memory.min", n.file(c.CgroupsPath, "memory.min"), bytesOf(4*gi))
			n.Disconnected(nil)
			n.Connected(n.runtime, n.apply)
			n.sync([]Pod{db}, nil)
			n.passes(6 * time.Minute)
			n.want("memory.min while it is not listed", n.file(c.CgroupsPath, "memory.min"), bytesOf(4*gi))
		},
	},
}

// passes moves the clock on and has everything done that is done every minute.
func (n *node) passes(d time.Duration) {
	n.Helper()
	for ; d > 0; d -= time.Minute {
		n.clock.add(time.Minute)
		n.work(context.Background())
		n.reconcile(context.Background())
	}
}

// listed is a container that was there before the plugin. The runtime cannot apply updates of it.
func listed(name, right string, state State) behaviour {
	return behaviour{name: name, right: right, run: func(t testing.TB) {
		n := newNode(t, oneNode)
		db := n.pod("db", memoryqos.Guaranteed)
		c := ofPod(db, "app", 4*gi)
		n.mkdir(c.CgroupsPath)
		n.writeFile(c.CgroupsPath, "memory.max", bytesOf(4*gi))
		n.writeFile(c.CgroupsPath, "cgroup.events", "populated 1\nfrozen 0")
		c.State = state
		n.sync([]Pod{db}, []Container{c})
		n.passes(6 * time.Minute)
		n.want("memory.min", n.file(c.CgroupsPath, "memory.min"), bytesOf(4*gi))
		n.want("cpuset.mems", n.file(c.CgroupsPath, "cpuset.mems"), "0")
	}}
}

// What another writer has written stays, unless it is a value of ours that was overwritten.
var otherWriters = []behaviour{
	{
		name:  "cpuset.mems of a Burstable container, set by another writer before the plugin came",
		right: "it is left alone: the plugin has never written it, and allocates nothing for the container",
		run: func(t testing.TB) {
			n := newNode(t, "topologyManagerPolicy: restricted")
			web := n.pod("web", memoryqos.Burstable)
			c := ofPod(web, "app", 4*gi)
			n.mkdir(c.CgroupsPath)
			n.writeFile(c.CgroupsPath, "memory.max", bytesOf(4*gi))
			n.writeFile(c.CgroupsPath, "cpuset.mems", "1")
			c.State = Running
			for _, update := range n.sync([]Pod{web}, []Container{c}) {
				n.want("cpuset.mems in the update for the runtime", update.CpusetMems, "")
			}
			n.work(context.Background())
			n.reconcile(context.Background())
			n.want("cpuset.mems", n.file(c.CgroupsPath, "cpuset.mems"), "1")
		},
	},
}

// Without a pod API the limits alone say whether a Guaranteed pod's containers share its limit (pod-level resources). They do not, here.
var podLimits = []behaviour{
	lateEnd("the end of an init container with the pod's limit, reported before its app container is created", "create"),
	lateEnd("the end of an init container with the pod's limit, reported before its app container starts", "start"),
	lateEnd("the end of an init container with the pod's limit, reported after its app container has started", "later"),
	lateEnd("the end of an init container with the pod's limit, never reported", "never"),
	{
		name:  "a resize to what was the pod's limit before",
		right: "both containers keep their memory: the limits of container and pod are of two moments",
		run: func(t testing.TB) {
			n := newNode(t, oneNode)
			n.sync(nil, nil)
			db := n.pod("db", memoryqos.Guaranteed)
			n.writeFile(db.CgroupParent, "memory.max", bytesOf(8*gi))
			a, b := n.launch(db, ofPod(db, "a", 4*gi)), n.launch(db, ofPod(db, "b", 4*gi))
			n.want("allocated before the resize", n.allocated(), "8192 0")
			n.must(os.Remove(filepath.Join(n.root, db.CgroupParent, "memory.max"))) // it cannot be read for a moment
			n.write(a.CgroupsPath, *n.update(db, a, to(8*gi)))
			n.writeFile(a.CgroupsPath, "memory.max", bytesOf(8*gi))
			n.must(n.PostUpdateContainer(context.Background(), db, a))
			n.work(context.Background())
			n.want("allocated", n.allocated(), "12288 0")
			n.want("memory.min of the resized container", n.file(a.CgroupsPath, "memory.min"), bytesOf(8*gi))
			n.want("memory.min of the other", n.file(b.CgroupsPath, "memory.min"), bytesOf(4*gi))
		},
	},
}

// lateEnd is a Guaranteed pod of 4Gi with an init container of 4Gi and an app container of 1Gi.
func lateEnd(name, end string) behaviour {
	return behaviour{
		name:  name,
		right: "the app container is pinned and protected: it shares nothing",
		run: func(t testing.TB) {
			n := newNode(t, oneNode)
			n.sync(nil, nil)
			db := n.pod("db", memoryqos.Guaranteed)
			n.writeFile(db.CgroupParent, "memory.max", bytesOf(4*gi))
			init, app := n.launch(db, ofPod(db, "init", 4*gi)), ofPod(db, "app", gi)
			ends := func(when string) {
				if end == when {
					n.must(n.StopContainer(context.Background(), db, init))
				}
			}
			n.rmdir(init.CgroupsPath) // it has ended, whether or not the runtime has said so
			ends("create")
			answer := n.create(db, app)
			ends("start")
			app = n.run(db, app, answer)
			n.writeFile(app.CgroupsPath, "memory.max", bytesOf(gi))
			ends("later")
			n.passes(time.Hour)
			if got := n.containerView(db, "app").Nodes.String(); got != "0" {
				n.Errorf("the nodes of the app container are %q, want %q", got, "0")
			}
			n.want("its memory.min", n.file(app.CgroupsPath, "memory.min"), bytesOf(gi))
		},
	}
}

// dryRuns are of a change to Observe, after which the runtime's record of a container still has values of this plugin. It writes all of its
// record when the container is resized.
var dryRuns = []behaviour{
	resizeInADryRun("a resize in a dry run", func(*node, Pod, Container) {}),
	resizeInADryRun("a resize in a dry run, after a restart", func(n *node, pod Pod, c Container) {
		n.config = parseConfig(n, "profile: Observe")
		n.restart()
		n.sync([]Pod{pod}, []Container{c})
	}),
}

func resizeInADryRun(name string, before func(*node, Pod, Container)) behaviour {
	return behaviour{
		name:  name,
		right: "what the runtime writes of before the dry run is taken back: a memory.high stands without the stall guard, and nodes are full",
		run: func(t testing.TB) {
			for _, test := range []struct {
				class          memoryqos.QOSClass
				knob, restored string
			}{{memoryqos.Burstable, "memory.high", "max"}, {memoryqos.Guaranteed, "cpuset.mems", "0-1"}} {
				knob := test.knob
				n := newNode(t, oneNode)
				n.sync(nil, nil)
				pod := n.pod("pod", test.class)
				c := n.launch(pod, ofPod(pod, "main", 1000*mi))
				n.work(context.Background())
				recorded := n.file(c.CgroupsPath, knob)
				n.writeFile(pod.CgroupParent, "cpuset.mems.effective", "0-1")
				n.reconfigure("profile: Observe")
				n.reconcile(context.Background())
				n.want(knob+" in the dry run", n.file(c.CgroupsPath, knob), test.restored)
				if c.State = Running; knob == "cpuset.mems" {
					c.Resources.Mems = recorded
				} else {
					c.Resources.Unified = map[string]string{knob: recorded}
				}
				before(n, pod, c)
				n.update(pod, c, to(2000*mi))
				n.writeFile(c.CgroupsPath, "memory.max", bytesOf(2000*mi))
				n.writeFile(c.CgroupsPath, knob, recorded)
				for range 2 { // the first sees that the update has ended
					n.work(context.Background())
					n.reconcile(context.Background())
				}
				n.want(knob, n.file(c.CgroupsPath, knob), test.restored)
			}
		},
	}
}

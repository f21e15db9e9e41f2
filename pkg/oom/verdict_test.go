package oom

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

const mib = 1 << 20

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// victimOf is the user whose container lost a process.
func victimOf(pod, container string, used, share uint64) User {
	return User{Namespace: "shop", Pod: pod, Container: container, Used: used, Share: share, victim: true}
}

// chain is a container of 64 MiB in a pod of 128, below burstable and kubepods.
func chain(change func(c, p, q, k *Reading)) []Reading {
	all := []Reading{
		{Cgroup: "kubepods/burstable/podweb/app", Level: Container, Limit: 64 * mib,
			Held: Held{Processes: 1 * mib, PageCache: 6 * mib, Kernel: 3 * mib}},
		{Cgroup: "kubepods/burstable/podweb", Level: Pod, Limit: 128 * mib, Held: Held{Processes: 30 * mib, PageCache: 6 * mib, Kernel: 4 * mib}},
		{Cgroup: "kubepods/burstable", Level: Parent, Limit: cgroup.Max},
		{Cgroup: "kubepods", Level: Parent, Limit: 1000 * mib, Held: Held{Processes: 500 * mib, PageCache: 100 * mib}},
	}
	change(&all[0], &all[1], &all[2], &all[3])
	return all
}

func TestJudge(t *testing.T) {
	self := victimOf("web", "app", 4*mib, 32*mib)
	beside := User{Namespace: "shop", Pod: "web", Container: "cache", Used: 30 * mib, Share: 8 * mib}
	nodes := []NodeAtKill{{ID: 0, Free: 5 * mib, Allocated: 900 * mib}, {ID: 1, Free: 700 * mib}}
	for name, test := range map[string]struct {
		kill Kill
		want string
	}{
		"its own limit, a heap": {
			Kill{Chain: chain(func(c, _, _, _ *Reading) { c.Hit = true })},
			`what ran out: its own limit of 64Mi; used for: processes 55Mi, page cache 6Mi (0 not on the disk yet), files in memory 0, kernel 3Mi; ` +
				`what helps: raise its limit, or have its processes use less (heap size, caches)`,
		},
		"the whole container": {
			Kill{Whole: true, Chain: chain(func(c, _, _, _ *Reading) { c.Hit = true })},
			`container app: the kernel killed the whole container for want of memory; what ran out: its own limit`,
		},
		"page cache that the disk has not taken": {
			Kill{Chain: chain(func(c, _, _, _ *Reading) {
				c.Hit, c.Held = true, Held{Processes: 1 * mib, PageCache: 60 * mib, Unwritten: 55 * mib, Kernel: 2 * mib}
			})},
			`used for: page cache 60Mi (55Mi not on the disk yet), processes 2Mi, files in memory 0, kernel 2Mi; ` +
				`what helps: leave room for page cache below its limit (annotation cache-room: 0.1, or the key cacheRoom), or raise its limit`,
		},
		"a heap, and page cache that the disk has not taken": {
			Kill{Chain: chain(func(c, _, _, _ *Reading) {
				c.Hit, c.Held = true, Held{PageCache: 16 * mib, Unwritten: 15 * mib, Kernel: 2 * mib}
			})},
			`used for: page cache 16Mi (15Mi not on the disk yet), processes 46Mi, files in memory 0, kernel 2Mi; what helps: leave room for page cache`,
		},
		"page cache that is protected": {
			Kill{Chain: chain(func(c, _, _, _ *Reading) { c.Hit, c.Held = true, Held{PageCache: 60 * mib, Kernel: 2 * mib} })},
			`what helps: protect less of its limit (annotation reservation: low, or a larger guaranteedHeadroom), so that its page cache can be reclaimed`,
		},
		"files in memory": {
			Kill{Chain: chain(func(c, _, _, _ *Reading) { c.Hit, c.Held = true, Held{Tmpfs: 50 * mib, Kernel: 2 * mib} })},
			`used for: files in memory 50Mi, page cache 0 (0 not on the disk yet), processes 12Mi, kernel 2Mi; what helps: bound what it writes to memory`,
		},
		"the kernel's memory": {
			Kill{Chain: chain(func(c, _, _, _ *Reading) { c.Hit, c.Held = true, Held{Kernel: 50 * mib} })},
			`used for: kernel 50Mi, page cache 0 (0 not on the disk yet), files in memory 0, processes 14Mi; what helps: raise its limit, or have it use fewer files`,
		},
		"files in memory, and a sample from when they began to grow": {
			Kill{Chain: chain(func(c, _, _, _ *Reading) { c.Hit, c.Held = true, Held{Tmpfs: 50 * mib, Kernel: 2 * mib} }),
				Before: &Sample{Current: 64 * mib, Held: Held{Processes: 2 * mib}}},
			`used for: files in memory 50Mi, page cache 0 (0 not on the disk yet), processes 12Mi, kernel 2Mi; what helps: bound what it writes to memory`,
		},
		"a sample at the limit": {
			Kill{Chain: chain(func(c, _, _, _ *Reading) { c.Hit, c.Held = true, Held{Kernel: 2 * mib} }),
				Before: &Sample{Current: 64 * mib, Held: Held{Tmpfs: 60 * mib, Processes: 2 * mib}}},
			`used for: files in memory 60Mi, page cache 0 (0 not on the disk yet), processes 2Mi, kernel 0; what helps: bound what it writes to memory`,
		},
		"a cgroup that the container made": {
			Kill{Chain: chain(func(c, _, _, _ *Reading) { c.Below = true })}, `what ran out: its own limit of 64Mi`,
		},
		"the pod's limit, by another container": {
			Kill{Chain: chain(func(_, p, _, _ *Reading) { p.Hit, p.Below, p.Limit = true, true, 48*mib }), Users: []User{self, beside}},
			`what ran out: the pod's limit of 48Mi; used for: processes 38Mi, page cache 6Mi (0 not on the disk yet), files in memory 0, kernel 4Mi; ` +
				`most beyond its share has container cache of this pod, with 30Mi where it may count on 8Mi; ` +
				`what helps: raise the pod's limit, or give the container that uses most a limit of its own`,
		},
		"the pod's limit, filled with another's page cache that is protected": {
			Kill{Chain: chain(func(_, p, _, _ *Reading) { p.Hit, p.Held = true, Held{PageCache: 90 * mib, Tmpfs: 30 * mib} }),
				Users: []User{self, {Namespace: "shop", Pod: "web", Used: 30 * mib}}},
			`most beyond its share has files in memory that ended containers of this pod left, 30Mi`,
		},
		"the pod's limit, by the victim": {
			Kill{Chain: chain(func(_, p, _, _ *Reading) { p.Hit, p.Limit = true, 128*mib }), Users: []User{self, beside}},
			`used for: processes 118Mi, page cache 6Mi (0 not on the disk yet), files in memory 0, kernel 4Mi; what helps: raise the pod's limit`,
		},
		"the pod's limit, which is that of its only container": {
			Kill{Chain: chain(func(_, p, _, _ *Reading) { p.Hit, p.Limit = true, 64*mib }),
				Users: []User{{Namespace: "shop", Pod: "web", Container: "app", Used: 38 * mib, Limit: 64 * mib, victim: true}}},
			`what ran out: the pod's limit of 64Mi; used for: processes 54Mi, page cache 6Mi (0 not on the disk yet), files in memory 0, kernel 4Mi; ` +
				`what helps: raise its limit, or have its processes use less (heap size, caches)`,
		},
		"kubepods, by another namespace": {
			Kill{Chain: chain(func(_, _, _, k *Reading) { k.Hit = true }), Users: []User{self, {Namespace: "team", Pod: "batch", Used: 900 * mib, Share: 64 * mib}}},
			`what ran out: the limit of 1000Mi of the cgroup kubepods; used for: processes 900Mi, page cache 100Mi (0 not on the disk yet), files in memory 0, kernel 0; ` +
				`most beyond its share has a pod of another namespace; what helps: give pods that use more than their requests a limit or a larger request, or keep less from pods (kubeReserved, systemReserved)`,
		},
		"kubepods, of which the victim had little": {
			Kill{Chain: chain(func(_, _, _, k *Reading) { k.Hit, k.Held = true, Held{Processes: 440 * mib, Tmpfs: 480 * mib} })},
			`used for: processes 520Mi, page cache 0 (0 not on the disk yet), files in memory 480Mi, kernel 0; what helps: give pods`,
		},
		"the node": {
			Kill{Chain: chain(func(_, _, _, _ *Reading) {}), Users: []User{self, {Outside: true, Used: 900 * mib, Share: 100 * mib}}, Memory: nodes, Nodes: nodeset.Of(0, 1)},
			`what ran out: the node's memory; used for: not known: the victim was not looked at before it was killed; ` +
				`most beyond its share has processes outside of pods, with 900Mi of which 100Mi are reserved; what helps: reserve more for the node's own processes (systemReserved, kubeReserved)`,
		},
		"the node, and the victim was looked at": {
			Kill{Chain: chain(func(_, _, _, _ *Reading) {}), Before: &Sample{Held: Held{Processes: 90 * mib}}},
			`what ran out: the node's memory; used for: processes 90Mi, page cache 0 (0 not on the disk yet), files in memory 0, kernel 0; what helps: give pods`,
		},
		"a NUMA node": {
			Kill{Chain: chain(func(_, _, _, _ *Reading) {}), Memory: nodes, Nodes: nodeset.Of(0), Reserve: 16 * mib,
				Users: []User{self, {Namespace: "team", Pod: "batch", Container: "job", Used: 300 * mib}}},
			`what ran out: node 0, all that it may use; used for: not known: the victim was not looked at before it was killed; ` +
				`most beyond its share has a pod of another namespace; what helps: let the container use more NUMA nodes`,
		},
		"all NUMA nodes": {
			Kill{Chain: chain(func(_, _, _, _ *Reading) {}), Memory: []NodeAtKill{{ID: 0, Free: 5 * mib}, {ID: 1, Free: 20 * mib}}, Nodes: nodeset.Of(0), Reserve: 16 * mib},
			`what ran out: the node's memory`,
		},
		"the cgroup has gone": {
			Kill{Chain: chain(func(c, p, _, _ *Reading) { *c, p.Gone = Reading{Level: Container, Gone: true, Hit: true}, true })},
			`what ran out: its own limit; used for: not known: the cgroup had gone before it could be read`,
		},
		"nobody watched": {
			Kill{Away: true, After: noon.Add(-time.Hour), Chain: chain(func(c, _, _, _ *Reading) { c.Hit = true })},
			`what ran out: its own limit of 64Mi; used for: not known: nobody watched; what helps: raise its limit`,
		},
		"nobody watched, and kubepods may have been full for another": {
			Kill{Away: true, Chain: chain(func(_, _, _, k *Reading) { k.Hit = true })},
			`what ran out: not known: nobody watched; used for: not known: nobody watched`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := test.kill
			k.At, k.Victim, k.Kills = noon, self, max(k.Kills, 1)
			v := Judge(k)
			if got := v.PodText(); !strings.Contains(got, test.want) {
				t.Errorf("%s\nwant %s", got, test.want)
			}
		})
	}
}

// What an administrator reads names pods of all namespaces; what a pod's owner reads does not.
func TestWhoSeesOtherNamespaces(t *testing.T) {
	v := Judge(Kill{At: noon, Victim: victimOf("web", "app", 0, 0), Kills: 1, Chain: chain(func(_, _, _, k *Reading) { k.Hit = true }),
		Users: []User{{Namespace: "team", Pod: "batch", Used: 900 * mib, Share: 64 * mib}}})
	if text := v.PodText(); strings.Contains(text, "batch") || strings.Contains(text, "team") {
		t.Errorf("the pod's event names another namespace's pod: %s", text)
	}
	if text := v.Text(); !strings.Contains(text, "pod team/batch, with 900Mi where it may count on 64Mi") {
		t.Errorf("the administrator reads %s", text)
	}
}

func TestWrite(t *testing.T) {
	numa := Judge(Kill{At: noon, Victim: victimOf("web", "app", 0, 0), Kills: 3, Chain: chain(func(_, _, _, _ *Reading) {}), Nodes: nodeset.Of(0),
		Memory: []NodeAtKill{{ID: 0, Free: 5 * mib, Allocated: 900 * mib}, {ID: 1, Free: 700 * mib}}, Users: []User{{Namespace: "team", Pod: "batch", Container: "job", Used: 300 * mib}}})
	numa.Samples = []Sample{
		{At: noon.Add(-time.Minute), Current: 10 * mib, Nodes: map[int]uint64{0: 8 * mib}},
		{At: noon, Current: 60 * mib, Nodes: map[int]uint64{0: 58 * mib}, Stalled: 2300 * time.Millisecond},
	}
	away := Judge(Kill{At: noon, Away: true, After: noon.Add(-time.Hour), Victim: User{Namespace: "shop", Pod: "db"}, Kills: 1})
	for name, test := range map[string]struct {
		verdicts []Verdict
		want     string
	}{
		"none": {nil, "No OOM kill is known.\n"},
		"two": {[]Verdict{numa, away}, `shop/web, container app: the kernel killed 3 processes 2026-05-04 12:00:00
  what ran out:  node 0, all that it may use
  used for:      not known: the victim was not looked at before it was killed
  most used by:  pod team/batch, container job, with 300Mi where it may count on 0
  NUMA node 0:   5Mi free, 900Mi allocated; this container's from 8Mi to 58Mi
  NUMA node 1:   700Mi free, 0 allocated
  before:        from 10Mi to 60Mi within 1m0s, 2.3s of it waiting for memory
  what helps:    let the container use more NUMA nodes (annotation numa: none), or keep others off these (unpinnedMemoryPolicy: PreferAvailable, reservedMemory)

shop/db, container not known: the kernel killed one process between 2026-05-04 11:00:00 and 2026-05-04 12:00:00
  what ran out:  not known: nobody watched
  used for:      not known: nobody watched
  most used by:  not known
  what helps:    keep the daemon running: of the next one more is known
`},
	} {
		var out bytes.Buffer
		if err := Write(&out, test.verdicts); err != nil || out.String() != test.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, out.String(), test.want)
		}
	}
}

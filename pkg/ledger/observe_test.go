package ledger

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// TestWhatChangesWhileAContainerRuns looks at default/web main, which has started with 4Gi beside a container on node 1, after events
// that resize it or show another limit.
func TestWhatChangesWhileAContainerRuns(t *testing.T) {
	const gi = claimGi
	const refused = "ResizeInfeasible: policy single-numa-node, scope container: "
	web := claimPod("web", "")
	main := claimed(web, "main", 4*gi)
	neighbor := claimed(claimPod("neighbor", ""), "main", 14*gi)
	byKubelet := main
	byKubelet.Container.Resources.Mems = "0"
	unlimited := byKubelet
	unlimited.Container.Resources.MemoryLimit = nil
	resize := func(bytes uint64) func(*Ledger) Event {
		to := int64(bytes)
		return func(*Ledger) Event {
			return UpdateContainer{Pod: web, Container: main.Container, To: Resources{MemoryLimit: &to}}
		}
	}
	update := func(to Resources) func(*Ledger) Event {
		return func(*Ledger) Event { return UpdateContainer{Pod: web, Container: main.Container, To: to} }
	}
	shows := func(bytes uint64) func(*Ledger) Event {
		return func(l *Ledger) Event {
			place, _ := l.CgroupOf("web-main")
			return Observed{ID: "web-main", Revision: place.Revision, Limit: bytes}
		}
	}
	atStart := func(name string, runtime *int64, file *uint64) func(*Ledger) Event {
		return func(l *Ledger) Event {
			l.Step(time.Unix(1, 0), Connected{Runtime: Runtime{Name: name}})
			c := main.Container
			c.Resources.MemoryLimit, c.State = runtime, Running
			return Synchronize{Pods: []Pod{web}, Containers: []Container{c}, Found: Found{Files: map[string]Files{c.ID: {Limit: file}}}}
		}
	}
	three := int64(3 * gi)
	for name, test := range map[string]struct {
		yaml   string
		main   CreateContainer
		events []func(*Ledger) Event
		want   string // where it is, and its allocation
	}{
		"a smaller limit": {"", main, []func(*Ledger) Event{resize(2 * gi)}, "0: pinned under best-effort; 2Gi of memory"},
		"a larger limit":  {"", main, []func(*Ledger) Event{resize(8 * gi)}, "0: pinned under best-effort; 8Gi of memory"},
		"no room": {"", main, []func(*Ledger) Event{resize(20 * gi)},
			"0-1: pinned under best-effort, short of 4.5Gi of memory; 15.5Gi of memory"},
		"no room, and the resize failed in part": {"", main, []func(*Ledger) Event{resize(20 * gi), shows(31 * gi / 2)},
			"0: pinned under best-effort; 15.5Gi of memory"},
		"no room, and a smaller limit": {"", main, []func(*Ledger) Event{resize(20 * gi), resize(31 * gi / 2)},
			"0: pinned under best-effort; 15.5Gi of memory"},
		"no room on the one node": {"topologyManagerPolicy: single-numa-node", main, []func(*Ledger) Event{resize(20 * gi)}, refused},
		"refused, and a smaller limit": {"topologyManagerPolicy: single-numa-node", main, []func(*Ledger) Event{resize(20 * gi), resize(2 * gi)},
			"0: pinned under single-numa-node; 2Gi of memory"},
		"an unseen resize": {"", main, []func(*Ledger) Event{shows(8 * gi)}, "0: pinned under best-effort; 8Gi of memory"},
		"an unseen resize beyond its node": {"", main, []func(*Ledger) Event{shows(20 * gi)},
			"0-1: pinned under best-effort, short of 4.5Gi of memory; 15.5Gi of memory"},
		"an unseen resize on the kubelet's nodes": {"", byKubelet, []func(*Ledger) Event{shows(8 * gi)},
			"0: pinned by the kubelet; 8Gi of memory"},
		"beyond the kubelet's node": {"", byKubelet, []func(*Ledger) Event{shows(20 * gi)}, "0: pinned by the kubelet; 20Gi of memory"},
		"other nodes of the kubelet's": {"", byKubelet, []func(*Ledger) Event{update(Resources{Mems: "1"})},
			"1: pinned by the kubelet; 4Gi of memory"},
		"no limit on the kubelet's nodes": {"", unlimited, []func(*Ledger) Event{update(Resources{})},
			"0: not pinned: the container asks for no memory; nothing"},
		"another runtime's limit, the file is unread": {"", main, []func(*Ledger) Event{atStart("containerd", &three, nil)},
			"0: pinned under best-effort; 3Gi of memory"},
		"CRI-O's, which may be that of the creation": {"", main, []func(*Ledger) Event{atStart("cri-o", &three, nil)},
			"0: pinned under best-effort; 4Gi of memory"},
		"a limit that the file does not show": {"", main, []func(*Ledger) Event{atStart("containerd", &three, of(4*gi))},
			"0: pinned under best-effort; 4Gi of memory"},
		"a limit that the file has lost with its controller": {"", main, []func(*Ledger) Event{atStart("containerd", &three, of(uint64(cgroup.Max)))},
			"0: pinned under best-effort; 3Gi of memory"},
		"CRI-O's, and the file has lost it": {"", main, []func(*Ledger) Event{atStart("cri-o", &three, of(uint64(cgroup.Max)))},
			"0: pinned under best-effort; 4Gi of memory"},
		"the runtime shows no limit": {"", main, []func(*Ledger) Event{atStart("containerd", nil, nil)},
			"0: pinned under best-effort; 4Gi of memory"},
		"the runtime's exact bytes of what a file has": {"", main, []func(*Ledger) Event{atStart("containerd", &three, of(3*gi))},
			"0: pinned under best-effort; 3Gi of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, test.yaml)
			now := time.Unix(0, 0)
			l.Step(now, test.main)
			l.Step(now, neighbor)
			l.Step(now, StartContainer{Pod: web, Container: main.Container})
			var effects Effects
			for _, event := range test.events {
				now = now.Add(time.Minute)
				effects = l.Step(now, event(l))
			}
			got := placed(l, effects, "web", "main")
			if effects.Err == nil {
				var request memorymanager.Request
				for _, b := range l.manager.Blocks("web", "main") {
					request = append(request, memorymanager.Amount{Type: b.Type, Bytes: b.Size})
				}
				got += fmt.Sprint("; ", request)
			}
			if test.want == refused && effects.Err != nil {
				got = got[:len(refused)]
			}
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func of[T any](value T) *T { return &value }

// What the spec of a pod with claimed memory says of its containers' own limits, it does not say of one that it does not have.
func TestAContainerBesideASpecWithClaimedMemory(t *testing.T) {
	l, now := newLedger(t, ""), time.Unix(1, 0)
	pod := claimPod("web", "")
	for name, want := range map[string]uint64{"main": claimGi, "debug": 4 * claimGi} {
		create := claimed(pod, name, 4*claimGi)
		create.PodInfo = pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{
			Ref: pod.Ref(), Class: memoryqos.Guaranteed, Claimed: claimGi, Containers: []pods.Container{{Name: "main", Request: claimGi, Limit: claimGi}},
		}}
		l.Step(now, create)
		if blocks := l.manager.Blocks("web", name); len(blocks) != 1 || blocks[0].Size != want {
			t.Errorf("%s is allocated %v, want %d", name, blocks, want)
		}
	}
}

// A container gets its cgroup at its start, for which a busy runtime may take minutes; one that is not started is not kept for ever.
func TestAContainerThatHasNoCgroupYet(t *testing.T) {
	for after, want := range map[time.Duration]string{
		2 * time.Minute:              "",
		containerGrace + time.Second: "a container starts that was created without an answer of ours",
	} {
		t.Run(after.String(), func(t *testing.T) {
			l, now := newLedger(t, ""), time.Unix(1, 0)
			web := claimPod("web", "")
			main := claimed(web, "main", claimGi)
			l.Step(now, main)
			l.Step(now.Add(after), l.asOfNow(Presence{Gone: []CgroupRef{{ID: main.Container.ID}}}))
			got := ""
			for _, note := range l.Step(now.Add(after), StartContainer{Pod: web, Container: main.Container}).Notes {
				got += note.Text
			}
			if got != want {
				t.Errorf("it says %q, want %q", got, want)
			}
		})
	}
}

// A periodic look is at what the kernel does not tell of, or was not seen yet, and seldom at the rest.
func TestWhatAPeriodicLookIsAt(t *testing.T) {
	const pod, container = "kubepods/podweb", "kubepods/podweb/web-main"
	all := pod + " " + container
	for name, test := range map[string]struct {
		unseen bool
		told   string
		want   string // at all looks but one of sixty
	}{
		"nothing is told":              {want: all},
		"all is told":                  {told: "kubepods " + all},
		"nothing was seen":             {unseen: true, told: "kubepods " + all, want: all},
		"the pod's end is not told":    {told: all, want: pod},
		"the limits are not told":      {told: "kubepods", want: all},
		"the container's limit is not": {told: "kubepods " + pod, want: container},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "")
			web := claimPod("web", "")
			create := claimed(web, "main", claimGi)
			l.after(Connected{Epoch: 1}, RunPod{Pod: web}, create, StartContainer{Pod: web, Container: create.Container})
			if !test.unseen {
				l.after(Presence{Present: l.CgroupsOf(map[string]bool{container: true})})
			}
			told := map[string]bool{}
			for _, dir := range strings.Fields(test.told) {
				told[dir] = true
			}
			counts := map[string]int{}
			for look := range watchedLooks {
				var at []string
				for _, place := range l.CgroupsDue(look, told) {
					at = append(at, place.Cgroup)
				}
				slices.Sort(at)
				counts[strings.Join(at, " ")]++
			}
			want := map[string]int{test.want: watchedLooks - 1}
			want[all]++
			if !maps.Equal(counts, want) {
				t.Errorf("looks at %v, want %v", counts, want)
			}
		})
	}
}

// Whether the cgroup of a pod without a sandbox is there may not have been known when the kernel told of it.
func TestAPodThatEndsIsLookedAtEachTime(t *testing.T) {
	l := newLedger(t, "")
	web := claimPod("web", "")
	l.after(Connected{Epoch: 1}, RunPod{Pod: web}, Presence{Present: []CgroupRef{{UID: web.UID, ID: web.ID}}})
	told := map[string]bool{"kubepods": true, "kubepods/podweb": true}
	if places := l.CgroupsDue(1, told); len(places) > 0 {
		t.Errorf("looks at %v", places)
	}
	l.after(EndPod{Pod: web})
	if places := l.CgroupsDue(1, told); len(places) != 1 {
		t.Errorf("looks at %v, want the pod", places)
	}
}

// Every pod that the kernel does not tell of is looked for in each periodic look, and its containers have their turns, also where pods come and go
// as fast as turns go on.
func TestEveryPodHasItsTurn(t *testing.T) {
	l := &Ledger{}
	add := func() {
		dir := fmt.Sprintf("kubepods/pod%d", l.added)
		p := &pod{PodState: &PodState{Seen: true, Sandboxes: []string{"s"}}, number: l.added, managed: true}
		p.path.Pod = dir
		p.addContainer(&Slot{Run: Run{ID: dir, Cgroup: dir + "/c", Seen: true, Phase: Running}})
		l.living = append(l.living, p)
		l.added++
	}
	const living, turns = 200, 1 + 200/podsPerLook
	for range living {
		add()
	}
	last := map[string]int{}
	for look := range 2 * living {
		for _, at := range l.CgroupsDue(look, nil) {
			last[at.Cgroup] = look
		}
		for _, p := range l.living {
			if last[p.path.Pod] != look {
				t.Fatalf("look %d is not for %s", look, p.path.Pod)
			}
			if since := look - last[p.containers[0].Cgroup]; p.number+turns < l.living[0].number+living && look > turns && since > turns+1 {
				t.Fatalf("in look %d the container of %s was looked at %d looks ago", look, p.path.Pod, since)
			}
		}
		l.living = l.living[1:]
		add()
	}
}

package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// thirdWithoutCPUs is threeNodes with a node 2 that has no CPUs.
var thirdWithoutCPUs = strings.Replace(threeNodes, "cpus: 16-23, ", "", 1)

const confine = "nodesWithoutCPUs: Confine"

// TestContainersWithoutAllocationAreConfined creates a container on a machine whose node 2 has no CPUs. It is Burstable unless a row says
// otherwise.
func TestContainersWithoutAllocationAreConfined(t *testing.T) {
	const gi, rest = claimGi, ", confined to nodes 0-1"
	const burstable = ": not pinned: only Guaranteed pods are"
	onNode := func(nodes ...int) []topologymanager.Device {
		return []topologymanager.Device{topologymanager.NewDevice("vendor.com/gpu", "gpu-1", "kubelet", nodeset.Of(nodes...))}
	}
	for name, test := range map[string]struct {
		machine, yaml, class, numa, kubelet string
		limit                               uint64
		devices                             []topologymanager.Device
		claim                               []claims.Part
		mems                                string
		want                                string // its nodes, and why
	}{
		"Burstable":                         {yaml: confine, mems: "0-1", want: burstable + rest},
		"BestEffort":                        {yaml: confine, class: "besteffort/", mems: "0-1", want: burstable + rest},
		"Guaranteed":                        {yaml: confine, class: "guaranteed", mems: "0", want: "0: pinned under best-effort"},
		"numa none":                         {yaml: confine, class: "guaranteed", numa: "none", mems: "0-1", want: ": not pinned: the pod's annotation numa is none" + rest},
		"numa none by default":              {yaml: confine + "\nannotationRules: [{name: all, namespaces: ['*'], defaults: {numa: none}}]", class: "guaranteed", mems: "0-1", want: ": not pinned: numa is none by default of annotationRules[0] (all)" + rest},
		"Guaranteed without room":           {yaml: confine + "\nonUnsatisfiable: Unpinned", class: "guaranteed", limit: 60 * gi, mems: "0-1", want: ": not pinned: UnexpectedAdmissionError" + rest},
		"the kubelet's nodes":               {yaml: confine, kubelet: "2", want: "2" + burstable},
		"a claim":                           {yaml: confine + "\ndra: {enabled: true}", claim: []claims.Part{on(1, gi)}, mems: "1", want: "1: pinned by resource claim default/a"},
		"a claim on the node":               {yaml: confine + "\ndra: {enabled: true}", claim: []claims.Part{on(2, 12*gi)}, mems: "2", want: "2: pinned by resource claim default/a"},
		"Guaranteed beside claims":          {yaml: confine + "\ndra: {enabled: true}\nonUnsatisfiable: Unpinned", class: "guaranteed", limit: 60 * gi, mems: "0-1", want: ": not pinned: UnexpectedAdmissionError" + rest},
		"a device on the node":              {yaml: confine, devices: onNode(2), mems: "0-2", want: burstable + ", confined to nodes 0-2"},
		"a device elsewhere":                {yaml: confine, devices: onNode(0), mems: "0-1", want: burstable + rest},
		"a device on a node that is absent": {yaml: confine, devices: onNode(7), mems: "0-1", want: burstable + rest},
		"Exclude":                           {want: burstable},
		"Include":                           {yaml: "nodesWithoutCPUs: Include", want: burstable},
		"every node has CPUs":               {machine: threeNodes, yaml: confine, want: burstable},
		"no node has":                       {machine: strings.ReplaceAll(strings.ReplaceAll(thirdWithoutCPUs, "cpus: 0-7, ", ""), "cpus: 8-15, ", ""), yaml: confine, want: burstable},
		"without placement":                 {yaml: confine + "\nmemoryManagerPolicy: None", want: ": not pinned: memoryManagerPolicy is None"},
		"Observe":                           {yaml: confine + "\nprofile: Observe", want: burstable + rest},
	} {
		t.Run(name, func(t *testing.T) {
			if test.machine == "" {
				test.machine = thirdWithoutCPUs
			}
			l := newLedgerOn(t, test.machine, test.yaml)
			class := map[string]string{"": "burstable/", "guaranteed": "", "besteffort/": "besteffort/"}[test.class]
			create := claimed(annotated(claimPod("web", class), "numa", test.numa), "main", max(test.limit, gi))
			create.Container.Devices, create.Container.Resources.Mems = test.devices, test.kubelet
			if test.claim != nil {
				if err := l.after(PrepareClaim{claimOf("a", []string{"web"}, test.claim...)}).Err; err != nil {
					t.Fatal(err)
				}
				create.Container.Claims = []claims.Ref{{UID: "uid-a"}}
			}
			effects := l.after(create)
			if got := effects.Answer.CpusetMems; got != test.mems {
				t.Errorf("cpuset.mems %q, want %q", got, test.mems)
			}
			if got := placed(l, effects, "web", "main"); got != test.want {
				t.Errorf("it says %q, want %q", got, test.want)
			}
			journaled := ""
			for _, j := range effects.Journal {
				journaled += j.Adjustment.CpusetMems
			}
			if journaled != test.mems {
				t.Errorf("the journal has cpuset.mems %q, want %q", journaled, test.mems)
			}
			view := l.View().Pods[0].Containers[0]
			if shown := view.Mems().String(); test.kubelet == "" && !strings.Contains(test.yaml, "Observe") && shown != test.mems {
				t.Errorf("shown is %q, want %q", shown, test.mems)
			}
			if effects := l.after(StartContainer{Pod: create.Pod, Container: create.Container}); test.mems == "" && (len(effects.Sync) > 0 || written(effects) != "") {
				t.Errorf("at its start %v is updated and %q written", effects.Sync, written(effects))
			}
		})
	}
}

// written are the cpuset.mems of the containers in the effects' targets.
func written(effects Effects) (mems string) {
	for _, target := range effects.Files {
		mems += target.Mems
	}
	return mems
}

// TestReloadConfinesRunningContainers sets the key while a container runs that may use all nodes, and removes it again.
func TestReloadConfinesRunningContainers(t *testing.T) {
	const gi = claimGi
	for name, test := range map[string]struct {
		class, yaml string
		limit       uint64
		usage       Usage
		mems        string // in the update; "" for none
	}{
		"nothing there":           {class: "burstable/", limit: gi, mems: "0-1"},
		"a little there":          {class: "burstable/", limit: gi, usage: usage(256 << 20), mems: "0-1"},
		"more than may move":      {class: "burstable/", limit: gi, usage: usage(257 << 20)},
		"nobody knows how much":   {class: "burstable/", limit: gi, usage: Usage{Unread: "EIO"}},
		"a Guaranteed one":        {class: "", yaml: "onUnsatisfiable: Unpinned\n", limit: 60 * gi, mems: "0-1"},
		"a Guaranteed one's more": {class: "", yaml: "onUnsatisfiable: Unpinned\n", limit: 60 * gi, usage: usage(257 << 20)},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedgerOn(t, thirdWithoutCPUs, test.yaml)
			create := claimed(claimPod("web", test.class), "main", test.limit)
			if mems := l.after(create, StartContainer{Pod: create.Pod, Container: create.Container}).Answer.CpusetMems; mems != "" {
				t.Fatalf("without the key: %q", mems)
			}
			if sync := l.after(Reconfigure{Config: resolve(t, l, test.yaml+confine)}).Sync; len(sync) != 1 {
				t.Fatalf("updates of %v, want of the container", sync)
			}
			sync := SyncContainers{IDs: []string{"web-main"}, Usage: map[string]Usage{l.containers["web-main"].Cgroup: test.usage}}
			if needs := l.Needs(sync, &Gathered{}); len(needs.Usage) != 1 {
				t.Errorf("what would move is not asked for: %v", needs.Usage)
			}
			updates := func() (mems string) {
				for _, u := range l.after(sync).Updates {
					mems += u.CpusetMems
				}
				return mems
			}
			if got := updates(); got != test.mems {
				t.Errorf("cpuset.mems %q, want %q", got, test.mems)
			}
			if test.mems == "" {
				return
			}
			update := UpdateContainer{Pod: create.Pod, Container: create.Container}
			if needs := l.Needs(update, &Gathered{}); len(needs.Usage) != 1 {
				t.Errorf("what a resize would move is not asked for: %v", needs.Usage)
			}
			for _, key := range []string{"nodesWithoutCPUs: Exclude", "nodesWithoutCPUs: Include"} {
				l.after(Reconfigure{Config: resolve(t, l, test.yaml+confine)})
				updates()
				l.after(Reconfigure{Config: resolve(t, l, test.yaml+key)})
				if got := updates(); got != "0-2" {
					t.Errorf("%s: cpuset.mems %q, want 0-2", key, got)
				}
				if blocks := l.manager.Blocks("web", "main"); blocks != nil {
					t.Errorf("%s: it was allocated %+v", key, blocks)
				}
			}
		})
	}
}

// usage is memory on node 2, of a container that may use all nodes.
func usage(bytes uint64) Usage {
	return Usage{Mapped: cgroup.Mapped{Nodes: nodeset.Of(0, 1, 2), Bytes: map[int]uint64{2: bytes}}}
}

// The nodes that the kubelet sets for a container that is confined win. A Guaranteed one is allocated there.
func TestKubeletMovesAConfinedContainer(t *testing.T) {
	for class, mems := range map[string]string{"burstable/": "2", "": "1"} {
		l := newLedgerOn(t, thirdWithoutCPUs, "onUnsatisfiable: Unpinned\n"+confine)
		create := claimed(claimPod("web", class), "main", 60*claimGi)
		effects := l.after(create, StartContainer{Pod: create.Pod, Container: create.Container},
			UpdateContainer{Pod: create.Pod, Container: create.Container, To: Resources{Mems: mems}})
		if got, want := placed(l, effects, "web", "main"), mems+": pinned by the kubelet"; got != want || effects.Answer.CpusetMems != "" {
			t.Errorf("%q and cpuset.mems %q, want %q and none", got, effects.Answer.CpusetMems, want)
		}
		if blocks := l.manager.Blocks("web", "main"); (blocks != nil) != (class == "") {
			t.Errorf("%s: it is allocated %v", class, blocks)
		}
	}
}

// TestConfinedContainersAreFoundAgain starts the plugin beside a container that an earlier one had confined.
func TestConfinedContainersAreFoundAgain(t *testing.T) {
	const gi = claimGi
	const unpinned, large = "onUnsatisfiable: Unpinned\n", 60 * gi
	const burstable, without = ": not pinned: only Guaranteed pods are", ": not pinned: UnexpectedAdmissionError"
	for name, test := range map[string]struct {
		yaml, class string
		limit       uint64
		mems        string
		lost        bool // the state file
		foreign     bool // the journal has nothing of the container
		want        string
		update      string // of cpuset.mems
	}{
		"still confined":                      {yaml: confine, class: "burstable/", mems: "0-1", want: burstable + ", confined to nodes 0-1"},
		"and with a device's node":            {yaml: confine, class: "burstable/", mems: "0-2", want: burstable + ", confined to nodes 0-2"},
		"not confined before":                 {yaml: confine, class: "burstable/", foreign: true, want: burstable + ", confined to nodes 0-1", update: "0-1"},
		"Guaranteed, still confined":          {yaml: unpinned + confine, limit: large, mems: "0-1", want: without + ", confined to nodes 0-1"},
		"Guaranteed, with a device's node":    {yaml: unpinned + confine, limit: large, mems: "0-2", want: without + ", confined to nodes 0-2"},
		"the key was removed":                 {class: "burstable/", mems: "0-1", want: burstable, update: "0-2"},
		"Guaranteed, the key was removed":     {yaml: unpinned, limit: large, mems: "0-1", want: without, update: "0-2"},
		"Guaranteed, it is Include":           {yaml: unpinned + "nodesWithoutCPUs: Include", limit: large, mems: "0-1", want: without, update: "0-2"},
		"Guaranteed, and there is room now":   {yaml: "nodesWithoutCPUs: Include", limit: gi, mems: "0-1", want: "0: pinned under best-effort", update: "0"},
		"Guaranteed, the state file was lost": {yaml: confine, limit: 20 * gi, lost: true, mems: "0-1", want: "0-1: found pinned"},
		"Guaranteed, somebody else's nodes":   {yaml: confine, limit: 20 * gi, foreign: true, mems: "0-1", want: "0-1: found pinned"},
		"Guaranteed, on one node":             {yaml: confine, limit: gi, mems: "1", want: "1: found pinned"},
		"Guaranteed, after a rollback":        {limit: gi, lost: true, foreign: true, mems: "0-2", want: "0: pinned under best-effort", update: "0"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedgerOn(t, thirdWithoutCPUs, test.yaml)
			if !test.lost {
				if _, err := l.Restore(memorymanager.State{}); err != nil {
					t.Fatal(err)
				}
			}
			c := claimed(claimPod("web", test.class), "main", max(test.limit, gi)).Container
			c.State = Running
			event := Synchronize{Pods: []Pod{claimPod("web", test.class)}, Containers: []Container{c}}
			event.Found.Files = map[string]Files{c.ID: {Mems: &test.mems, Journaled: map[cgroup.Knob]bool{cgroup.CpusetMems: !test.foreign}}}
			got := placed(l, l.Step(time.Unix(1, 0), event), "web", "main")
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			usage := map[string]Usage{l.containers[c.ID].Cgroup: {Mapped: cgroup.Mapped{Nodes: nodeset.Of(0, 1), Bytes: map[int]uint64{0: gi / 8}}}}
			update := ""
			for _, u := range l.after(SyncContainers{IDs: []string{c.ID}, Usage: usage}).Updates {
				update = u.CpusetMems
			}
			if want := test.update; update != want && (want != "" || update != test.mems) {
				t.Errorf("the update has cpuset.mems %q, want %q", update, want)
			}
		})
	}
}

// TestConfinedAgainAfterARestart confines a running container, lets it on all nodes, restarts the plugin, and confines it again. The files tell
// a container that was let on all nodes from one whose devices are on them only by the plugin that did it: a start with the key keeps both.
func TestConfinedAgainAfterARestart(t *testing.T) {
	for name, test := range map[string]struct {
		before, start string // the configuration that the first plugin ends with, and that of the second
		usage         Usage  // while the first has the key
		want          string // where the container is confined to once the second has the key
	}{
		"a start without the key":         {before: "", start: "", want: "0-1"},
		"a start with the key":            {before: "", start: confine, want: "0-2"},
		"a start with the key, still set": {before: confine, start: confine, want: "0-1"},
		"more than may move, at first":    {before: confine, start: confine, usage: usage(1 << 30), want: "0-1"},
	} {
		t.Run(name, func(t *testing.T) {
			mems := ""
			sync := func(l *Ledger, used Usage) {
				for _, u := range l.after(SyncContainers{IDs: []string{"web-main"}, Usage: map[string]Usage{l.containers["web-main"].Cgroup: used}}).Updates {
					mems = u.CpusetMems
				}
			}
			used := usage(0)
			if test.usage.Bytes != nil {
				used = test.usage
			}
			first := newLedgerOn(t, thirdWithoutCPUs, "")
			create := claimed(claimPod("web", "burstable/"), "main", 2*claimGi)
			first.after(create, StartContainer{Pod: create.Pod, Container: create.Container})
			for _, yaml := range []string{confine, test.before} {
				first.after(Reconfigure{Config: resolve(t, first, yaml)})
				sync(first, used)
			}

			second := newLedgerOn(t, thirdWithoutCPUs, test.start)
			c := create.Container
			c.State, c.Resources.Mems = Running, mems
			found := Synchronize{Pods: []Pod{create.Pod}, Containers: []Container{c}}
			found.Found.Files = map[string]Files{c.ID: {Mems: &mems, Journaled: map[cgroup.Knob]bool{cgroup.CpusetMems: true}}}
			second.after(found)
			sync(second, usage(0))
			second.after(Reconfigure{Config: resolve(t, second, confine)})
			sync(second, usage(0))
			if got := second.containers["web-main"].Confined.String(); got != test.want || mems != test.want {
				t.Errorf("confined to %s and cpuset.mems %s, want %s", got, mems, test.want)
			}
		})
	}
}

// TestNodesOfAContainerThatTheStateFileLacks starts the plugin beside a container with an allocation that could not be written to the state
// file, and one that was created while the plugin was away.
func TestNodesOfAContainerThatTheStateFileLacks(t *testing.T) {
	const gi = claimGi
	for _, yaml := range []string{"", "onUnsatisfiable: Unpinned", confine} {
		l := newLedgerOn(t, thirdWithoutCPUs, yaml)
		if _, err := l.Restore(memorymanager.State{}); err != nil {
			t.Fatal(err)
		}
		later, earlier := claimed(claimPod("a", ""), "main", 4*gi).Container, claimed(claimPod("web", ""), "main", 20*gi).Container
		later.State, earlier.State = Running, Running
		none, mems := "", "0-1"
		event := Synchronize{Pods: []Pod{claimPod("a", ""), claimPod("web", "")}, Containers: []Container{later, earlier}}
		event.Found.Files = map[string]Files{
			later.ID:   {Mems: &none},
			earlier.ID: {Mems: &mems, Journaled: map[cgroup.Knob]bool{cgroup.CpusetMems: true}},
		}
		if got, want := placed(l, l.Step(time.Unix(1, 0), event), "web", "main"), "0-1: pinned under best-effort"; got != want {
			t.Errorf("%q: got %q, want %q", yaml, got, want)
		}
	}
}

// A reload no longer has a node for claims. The log says so once, and status and verify see what the claim keeps until its pod ends.
func TestClaimsOnANodeThatTheConfigurationNoLongerHas(t *testing.T) {
	const gi = claimGi
	const leftOut = "the configuration no longer has this NUMA node for resource claims: the claims prepared before keep its memory until their pods end"
	for name, test := range map[string]struct {
		machine, yaml, text string
		has                 uint64
	}{
		"it is left out":           {yaml: "dra: {enabled: true}", text: leftOut},
		"still for claims":         {yaml: confine + "\ndra: {enabled: true}", has: 16 * gi},
		"for pods, too":            {yaml: "nodesWithoutCPUs: Include\ndra: {enabled: true}", has: 12 * gi},
		"without a share":          {yaml: confine + "\ndra: {enabled: true, shares: [{numaNode: 2, limits: {memory: 0%}}]}", has: 12 * gi},
		"its memory was unplugged": {machine: strings.Replace(thirdWithoutCPUs, "id: 2, memory: 16Gi", "id: 2, memory: 0", 1), yaml: confine + "\ndra: {enabled: true}", text: "resource claims have more allocated on a node than it has for them"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedgerOn(t, thirdWithoutCPUs, confine+"\ndra: {enabled: true}")
			create := claimed(claimPod("web", ""), "main", 12*gi, claims.Ref{UID: "uid-a"})
			l.after(PrepareClaim{claimOf("a", []string{"web"}, on(2, 12*gi))}, PrepareClaim{claimOf("b", nil, on(0, gi))}, create)
			if test.machine == "" {
				test.machine = thirdWithoutCPUs
			}
			_, resolved := resolvedOn(t, test.machine, test.yaml)
			var got []string
			for _, note := range l.after(Reconfigure{Config: resolved}).Notes {
				if note.Fields["claims"] != nil {
					got = append(got, fmt.Sprintf("%s %v", note.Text, note.Fields))
				}
			}
			var want []string
			if test.text != "" {
				want = []string{test.text + " map[claimed:12Gi claims:default/a has:0 node:2 type:memory]"}
			}
			if !slices.Equal(got, want) {
				t.Errorf("the log has %q, want %q", got, want)
			}
			shown := func() (of []claims.Capacity) {
				for _, c := range l.View().Claimable {
					if c.Node == 2 && c.Claimed > 0 {
						of = append(of, c)
					}
				}
				return of
			}
			if diff := cmp.Diff([]claims.Capacity{{Node: 2, Type: memorymanager.Memory, Capacity: test.has, Claimed: 12 * gi}}, shown()); diff != "" {
				t.Error(diff)
			}
			l.after(EndContainer{ID: create.Container.ID}, UnprepareClaim{"uid-a"})
			if left := shown(); left != nil {
				t.Errorf("after its end: %+v", left)
			}
		})
	}
}

// TestClaimsBesideOtherContainersOnANodeWithoutCPUs: claims do not get the memory of a container that the kubelet has put there.
func TestClaimsBesideOtherContainersOnANodeWithoutCPUs(t *testing.T) {
	const gi = claimGi
	l := newLedgerOn(t, thirdWithoutCPUs, confine+"\ndra: {enabled: true}")
	create := claimed(claimPod("web", "burstable/"), "main", 7*gi)
	create.Container.Resources.Mems = "2"
	l.after(create, StartContainer{Pod: create.Pod, Container: create.Container})
	prepare := PrepareClaim{claimOf("a", nil, on(2, 10*gi))}
	if err := l.after(prepare).Err; err == nil || err.Error() != "claim default/a: takes 10Gi of memory on NUMA node 2, where claims have 9Gi left" {
		t.Errorf("beside 7Gi of 16Gi: %v", err)
	}
	if all := l.View().Claimable; all[2].Node != 2 || all[2].Capacity != 9*gi {
		t.Errorf("published are %+v", all)
	}
	if err := l.after(EndContainer{ID: create.Container.ID}, prepare).Err; err != nil {
		t.Errorf("after its end: %v", err)
	}
}

// TestClaimsBesideHugePagesOnANodeWithoutCPUs: claims do not get the huge pages of a container that the kubelet has put on the node.
func TestClaimsBesideHugePagesOnANodeWithoutCPUs(t *testing.T) {
	const gi = claimGi
	l := newLedgerOn(t, `
nodes:
- {id: 0, memory: 16Gi, cpus: 0-7, distances: [10, 20]}
- {id: 1, memory: 16Gi, hugepages: {2Mi: 2048}, distances: [20, 10]}
`, confine+"\ndra: {enabled: true, shares: [{numaNode: 1, limits: {memory: 100%, hugepages-2Mi: 100%}}]}")
	create := claimed(claimPod("web", "burstable/"), "main", gi)
	create.Container.Resources.Mems = "1"
	create.Container.Resources.Hugepages = []HugepageLimit{{PageSize: "2MB", Limit: 3 * gi}}
	l.after(create, StartContainer{Pod: create.Pod, Container: create.Container})
	part := claims.Part{Node: 1, Amounts: memorymanager.Request{{Type: "hugepages-2Mi", Bytes: 4 * gi}}}
	if err := l.after(PrepareClaim{claimOf("a", nil, part)}).Err; err == nil {
		t.Errorf("a claim has all 4Gi of huge pages beside a container that has 3Gi of them")
	}
}

// foundOn starts a plugin beside a running container that an earlier one had put on a node for its claim.
func foundOn(t *testing.T, yaml, mems, class string, limit uint64) (*Ledger, Container) {
	l := newLedgerOn(t, thirdWithoutCPUs, yaml)
	if _, err := l.Restore(memorymanager.State{}); err != nil {
		t.Fatal(err)
	}
	c := claimed(claimPod("web", class), "main", limit, claims.Ref{UID: "uid-a"}).Container
	c.State = Running
	event := Synchronize{Pods: []Pod{claimPod("web", class)}, Containers: []Container{c}}
	event.Found.Files = map[string]Files{c.ID: {Mems: &mems, Journaled: map[cgroup.Knob]bool{cgroup.CpusetMems: true}}}
	l.Step(time.Unix(1, 0), event)
	return l, c
}

// TestAClaimIsPreparedBesideItsOwnContainer: a container that was found before its claim is known does not stand in the claim's way.
func TestAClaimIsPreparedBesideItsOwnContainer(t *testing.T) {
	const gi = claimGi
	for mems, node := range map[string]int{"1": 1, "2": 2} {
		l, _ := foundOn(t, confine+"\ndra: {enabled: true, shares: [{limits: {memory: 100%}}]}", mems, "burstable/", 9*gi)
		if err := l.after(PrepareClaim{claimOf("a", []string{"web"}, on(node, 9*gi))}).Err; err != nil {
			t.Errorf("node %d: %v", node, err)
		}
	}
}

// TestTurningClaimsOffMovesNothing starts the plugin with claims off beside a container that still runs on a node for its claim.
func TestTurningClaimsOffMovesNothing(t *testing.T) {
	for _, yaml := range []string{"", confine, "nodesWithoutCPUs: Include"} {
		for _, class := range []string{"", "burstable/", "besteffort/"} {
			for mems, node := range map[string]int{"1": 1, "2": 2} {
				l, c := foundOn(t, yaml, mems, class, claimGi)
				at := cgroup.Mapped{Nodes: nodeset.Of(node), Bytes: map[int]uint64{node: claimGi / 8}}
				for _, u := range l.after(SyncContainers{IDs: []string{c.ID}, Usage: map[string]Usage{l.containers[c.ID].Cgroup: {Mapped: at}}}).Updates {
					if nodes, _ := nodeset.Parse(u.CpusetMems); u.CpusetMems != "" && !nodes.Has(node) {
						t.Errorf("%q, class %q: its memory leaves node %s: cpuset.mems=%s", yaml, class, mems, u.CpusetMems)
					}
				}
				if yaml == confine && class == "burstable/" && node == 2 {
					if got, want := l.View().Pods[0].Containers[0].Pinning, "not pinned: only Guaranteed pods are, confined to node 2"; got != want {
						t.Errorf("it says %q, want %q", got, want)
					}
				}
			}
		}
	}
}

// Package status answers "where is my pod's memory, and is it protected": a document made from the agent's view and the
// kernel's files, and its table for people.
package status

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// Document is the contract of `status -o json` and of /status. Sizes are in bytes; a value that is not set is absent.
type Document struct {
	Time    time.Time `json:"time"`
	Version string    `json:"version"`
	// Node is the node's name in the API; absent when it is not known.
	Node       string      `json:"node,omitempty"`
	Runtime    *Runtime    `json:"runtime,omitempty"`
	Policy     Policy      `json:"policy"`
	Conditions []Condition `json:"conditions"`
	// RequestSources are the APIs that memory requests are taken from, in their order.
	RequestSources []RequestSource `json:"requestSources"`
	// DeviceSources are the APIs beside the kubelet's that NUMA nodes of devices are taken from.
	DeviceSources []DeviceSource `json:"deviceSources,omitempty"`
	Nodes         []Node         `json:"nodes"`
	// CoverUnknown says why the nodes have no cover; absent when they have, and before the first sample.
	CoverUnknown string `json:"coverUnknown,omitempty"`
	// Groups are the groups of nodes that exist only because of containers that would fit single nodes.
	Groups []Group `json:"dissolvableGroups,omitempty"`
	// Moves are what would cover the deficits of the nodes; nothing is moved.
	Moves []Move `json:"moves,omitempty"`
	// NotMoved is what is not moved, and why, where memory is moved to cover deficits and a node still owes more than it has.
	NotMoved []NotMoved `json:"notMoved,omitempty"`
	// NotCounted is what the cover and the moves leave out, because its cgroup cannot be read.
	NotCounted []NotMoved `json:"notCounted,omitempty"`
	// Claims are absent unless dra is enabled.
	Claims    *Claims    `json:"claims,omitempty"`
	Ancestors []Ancestor `json:"ancestors"`
	Pods      []Pod      `json:"pods"`
	// Rejections are containers of living pods that could not be placed; those of a pod follow each other, newest first.
	Rejections []Rejection `json:"rejections"`
	// Overwrites are other writers' changes of files with values of ours since the daemon started.
	Overwrites []Overwrite `json:"overwrites"`
}

// Runtime is the container runtime that is, or was last, connected.
type Runtime struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// NRI is the version of NRI inside; absent when it is not known.
	NRI string `json:"nriVersion,omitempty"`
	// PreInstalled is set when the runtime has started the plugin itself.
	PreInstalled bool `json:"preInstalled,omitempty"`
	// MemoryPolicies is set where it applies memory policies to new containers.
	MemoryPolicies bool `json:"memoryPolicies,omitempty"`
}

// String is the runtime's name and version.
func (r *Runtime) String() string {
	if r == nil {
		return "no runtime connected yet"
	}
	return r.Name + " " + r.Version
}

// Policy is the configuration in force, as far as it decides about pods.
type Policy struct {
	MemoryManager     string   `json:"memoryManagerPolicy"`
	TopologyManager   string   `json:"topologyManagerPolicy"`
	Scope             string   `json:"topologyManagerScope"`
	ThrottlingFactor  *float64 `json:"memoryThrottlingFactor,omitempty"`
	MemoryReservation string   `json:"memoryReservationPolicy"`
	StallGuard        bool     `json:"stallGuard"`
	ProactiveReclaim  bool     `json:"proactiveReclaim,omitempty"`
	// UnpinnedMemoryPolicy is absent when it is None.
	UnpinnedMemoryPolicy string `json:"unpinnedMemoryPolicy,omitempty"`
	DryRun               bool   `json:"dryRun"`
	// KubeletConfig is the kubelet's configuration file that settings are taken from.
	KubeletConfig string `json:"kubeletConfig,omitempty"`
	// Migration is Always, Never or "UpTo 4Gi".
	Migration string `json:"migration"`
}

// Condition is one of readiness.
type Condition struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Message string `json:"message,omitempty"`
}

// RequestSource is an API that knows the pods' memory requests.
type RequestSource struct {
	Source    string `json:"source"`
	Connected bool   `json:"connected"`
	// Problem says why it does not answer; absent while it does, and while that is not known yet.
	Problem string `json:"problem,omitempty"`
}

// DeviceSource is an API that knows NUMA nodes of devices.
type DeviceSource struct {
	// Source is resourceslice, as a device shows it.
	Source    string `json:"source"`
	Connected bool   `json:"connected"`
	// Problem says why it cannot be read; absent while it can, and while that is not known yet.
	Problem string `json:"problem,omitempty"`
}

// Node is a NUMA node.
type Node struct {
	ID     int      `json:"id"`
	Group  []int    `json:"group"`
	Memory []Memory `json:"memory"`
	// Cover says whether the allocations hold; absent where that is not known.
	Cover *Cover `json:"cover,omitempty"`
}

// Memory is one type of memory of a node.
type Memory struct {
	Type        string `json:"type"`
	Total       uint64 `json:"total"`
	Reserved    uint64 `json:"systemReserved"`
	Allocatable uint64 `json:"allocatable"`
	Allocated   uint64 `json:"allocated"`
	Free        uint64 `json:"free"`
}

// Ancestor is a cgroup above the pods: what its files should show, in the kernel's whole pages, and what they show.
type Ancestor struct {
	Cgroup  string  `json:"cgroup"`
	Level   string  `json:"level"`
	Min     *uint64 `json:"memoryMin,omitempty"`
	Low     *uint64 `json:"memoryLow,omitempty"`
	RealMin *uint64 `json:"realMemoryMin,omitempty"`
	RealLow *uint64 `json:"realMemoryLow,omitempty"`
}

// Pod is a living pod.
type Pod struct {
	Namespace string  `json:"namespace"`
	Name      string  `json:"name"`
	UID       string  `json:"uid"`
	QOSClass  string  `json:"qosClass"`
	Cgroup    string  `json:"cgroup,omitempty"`
	Min       *uint64 `json:"memoryMin,omitempty"`
	Low       *uint64 `json:"memoryLow,omitempty"`
	// Blocks are the pod's own allocation (pod-level resources); its containers' are parts of it, and may overlap.
	Blocks     []Block     `json:"blocks,omitempty"`
	Containers []Container `json:"containers"`
	Problems   []string    `json:"problems,omitempty"`
}

// Rejected is the state of a container that was never created because it could not be placed; the others are the agent's.
const Rejected = "rejected"

// Container is a container of a living pod.
type Container struct {
	Name       string `json:"name"`
	ID         string `json:"id,omitempty"`
	Cgroup     string `json:"cgroup,omitempty"`
	Kind       string `json:"kind"`
	State      string `json:"state"`
	Nodes      []int  `json:"numaNodes,omitempty"`
	CpusetMems string `json:"cpusetMems,omitempty"`
	Pinning    string `json:"pinning,omitempty"`
	// MemoryPolicy is the NUMA memory policy that its process was started with, as far as that is known, and MemoryPolicySource
	// what it follows from; NoMemoryPolicy says why it has none although one is configured or asked for.
	MemoryPolicy       string `json:"memoryPolicy,omitempty"`
	MemoryPolicySource string `json:"memoryPolicySource,omitempty"`
	NoMemoryPolicy     string `json:"noMemoryPolicy,omitempty"`
	// Unplaced says at length why a living container has no nodes although it asked for some; absent when it has, or may not
	// have any.
	Unplaced      string  `json:"unplaced,omitempty"`
	Blocks        []Block `json:"blocks,omitempty"`
	Request       uint64  `json:"request"`
	RequestSource string  `json:"requestSource"`
	RequestError  uint64  `json:"requestError,omitempty"`
	Limit         uint64  `json:"limit,omitempty"`
	Min           *uint64 `json:"memoryMin,omitempty"`
	Low           *uint64 `json:"memoryLow,omitempty"`
	High          *uint64 `json:"memoryHigh,omitempty"`
	// Raised is the memory.high that the stall guard has set instead.
	Raised uint64 `json:"memoryHighRaised,omitempty"`
	// Stopped is set while the container is stopped by its memory.high and being given room.
	Stopped bool   `json:"stopped,omitempty"`
	Usage   *Usage `json:"usage,omitempty"`
	// Short is what a resize asks for beyond the blocks, by type of memory; its nodes are all until it is allocated.
	Short map[string]uint64 `json:"short,omitempty"`
	// Claims are its resource claims, as NAMESPACE/NAME; Claimed is what they allocate for it alone, by type of memory: absent where
	// it shares one with another container.
	Claims  []string          `json:"claims,omitempty"`
	Claimed map[string]uint64 `json:"claimed,omitempty"`
	// ExclusiveCPUs counts the container's own CPUs by NUMA node.
	ExclusiveCPUs map[string]int `json:"exclusiveCPUs,omitempty"`
	// Migration is what a write of its cpuset.mems moves while it runs; absent where none has moved anything.
	Migration *Migration `json:"migration,omitempty"`
	// KeptOff is set while it is kept off NUMA nodes that owed more than they had; absent for others. Its cpusetMems are the rest.
	KeptOff *KeptOff `json:"keptOff,omitempty"`
	// Devices are the container's devices and their NUMA nodes.
	Devices []Device `json:"devices,omitempty"`
	// Recording is where the last decision is recorded; absent unless that is on.
	Recording *Recording `json:"recording,omitempty"`
}

// Recording is an event in a recording, for replay.
type Recording struct {
	File  string `json:"file"`
	Event uint64 `json:"event"`
}

// Block is an allocation on NUMA nodes.
type Block struct {
	Nodes []int  `json:"numaNodes"`
	Type  string `json:"type"`
	Size  uint64 `json:"size"`
	// PerNode are the bytes on each node; empty in an explanation of a container that has no allocation.
	PerNode map[string]int64 `json:"perNode"`
	// Even is set where the bytes are spread evenly over the nodes (annotation numa: spread).
	Even bool `json:"even,omitempty"`
}

// Usage is what the kernel counts for a container.
type Usage struct {
	Current    uint64  `json:"current"`
	HighEvents uint64  `json:"highEvents"`
	FullStall  float64 `json:"fullStallSeconds"`
	// PerNode is anonymous and file memory per NUMA node (memory.numa_stat).
	PerNode map[string]uint64 `json:"perNode,omitempty"`
}

// Overwrite counts other writers' changes of a file of a level: kubepods, system, burstable, pod or container.
type Overwrite struct {
	Level string `json:"level"`
	File  string `json:"file"`
	Count uint64 `json:"count"`
}

// Recorded finds the last decision about a container of a pod; nil has no recordings.
type Recorded func(uid, container string) *Recording

func (r Recorded) find(uid, container string) *Recording {
	if r == nil {
		return nil
	}
	return r(uid, container)
}

// Sources are what a document is made from.
type Sources struct {
	View       func() *ledger.View
	Overwrites func() map[protect.Overwrite]uint64 // nil shows none
	Requests   func() podinfo.Stats                // nil shows no sources of requests
	Devices    func() []DeviceSource               // nil shows no sources of devices
	Migrations func() map[string]protect.Migration // by cgroup; nil shows none
	Statuses   func() map[string]guard.Status      // nil without the stall guard
	Recording  Recorded
	Tree       *cgroupfs.Tree // nil leaves out what the cgroups above the pods hold
	Usages     *Usages        // nil leaves the kernel's counters out
	Version    string
	Node       string // its name in the API; "" leaves it out
	// PreInstalled is set when the runtime has started the plugin itself.
	PreInstalled bool
}

// Make takes a picture now.
func (s Sources) Make() *Document {
	view := s.View()
	config := view.Config.Config
	d := &Document{
		Time: view.Taken, Version: s.Version, Node: s.Node,
		Policy: Policy{
			MemoryManager: string(config.MemoryManagerPolicy), TopologyManager: string(config.TopologyManagerPolicy),
			Scope: string(config.TopologyManagerScope), ThrottlingFactor: config.MemoryThrottlingFactor,
			MemoryReservation: string(config.MemoryReservationPolicy), StallGuard: config.StallGuard.Enabled,
			ProactiveReclaim: config.StallGuard.Enabled && config.StallGuard.ProactiveReclaim, DryRun: config.DryRun,
			KubeletConfig: config.KubeletConfig, Migration: config.Migration.String(),
		},
		Conditions: []Condition{}, Nodes: Nodes(view.Nodes), Claims: claimsOf(view), Ancestors: s.ancestors(view), Pods: []Pod{}, Rejections: rejections(current(view)),
		Overwrites: s.overwrites(), RequestSources: s.requestSources(), DeviceSources: s.deviceSources(),
	}
	if p := config.UnpinnedMemoryPolicy; p != "None" {
		d.Policy.UnpinnedMemoryPolicy = string(p)
	}
	d.addCover(view)
	d.Groups = dissolvable(view)
	if r := view.Runtime; r.Name != "" {
		d.Runtime = &Runtime{Name: r.Name, Version: r.Version, PreInstalled: s.PreInstalled, MemoryPolicies: r.MemoryPolicies}
		if nri := nriplugin.RuntimeNRIVersion(r.NRIVersion, r.Name, r.Version); nri.Known() {
			d.Runtime.NRI = nri.String()
		}
	}
	for _, c := range view.Conditions {
		d.Conditions = append(d.Conditions, Condition{c.Name, c.OK, c.Message})
	}
	known := s.known(view)
	for _, pod := range view.Pods {
		d.Pods = append(d.Pods, known.pod(pod))
	}
	return d
}

func (s Sources) overwrites() []Overwrite {
	list := []Overwrite{}
	if s.Overwrites == nil {
		return list
	}
	for o, count := range s.Overwrites() {
		list = append(list, Overwrite{Level: o.Level, File: o.File, Count: count})
	}
	slices.SortFunc(list, func(a, b Overwrite) int { return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(a.File, b.File)) })
	return list
}

func (s Sources) requestSources() []RequestSource {
	list := []RequestSource{}
	if s.Requests == nil {
		return list
	}
	for _, source := range s.Requests().Sources {
		list = append(list, RequestSource{Source: string(source.Source), Connected: source.Connected, Problem: source.Problem})
	}
	return list
}

func (s Sources) deviceSources() []DeviceSource {
	if s.Devices == nil {
		return nil
	}
	return s.Devices()
}

// RequestsFrom says where memory requests come from while some of the sources do not answer.
func (d *Document) RequestsFrom() string {
	var answering, estimates []string
	for _, s := range d.RequestSources {
		if s.Connected {
			answering = append(answering, s.Source)
		}
	}
	if len(answering) > 0 {
		return "memory requests come from " + strings.Join(answering, ", ")
	}
	for _, pod := range d.Pods {
		for _, c := range pod.Containers {
			if c.RequestError > 0 && !slices.Contains(estimates, c.RequestSource) {
				estimates = append(estimates, c.RequestSource)
			}
		}
	}
	text := "memory requests of Burstable pods are estimates from what the runtime's events carry"
	if len(estimates) > 0 {
		slices.Sort(estimates)
		text += ", now from " + strings.Join(estimates, ", ")
	}
	return text
}

// Nodes is the node map as it stands in the document.
func Nodes(states []memorymanager.NodeState) []Node {
	nodes := make([]Node, 0, len(states))
	for _, state := range states {
		node := Node{ID: state.ID, Group: state.Cells.IDs()}
		for _, t := range state.Memory {
			node.Memory = append(node.Memory, Memory{string(t.Type), t.Total, t.SystemReserved, t.Allocatable, t.Reserved, t.Free})
		}
		nodes = append(nodes, node)
	}
	return nodes
}

// known is what is known of containers beside the view.
type known struct {
	guarded map[string]guard.Status // by container ID
	usage   map[string]*Usage       // by cgroup
	moves   map[string]*Migration   // by cgroup
	record  Recorded
	refused map[[2]string]bool // by pod UID and container: the last word about its placement
}

func (s Sources) known(view *ledger.View) known {
	k := known{refused: map[[2]string]bool{}, record: s.Recording, moves: s.migrations(view)}
	if s.Statuses != nil {
		k.guarded = s.Statuses()
	}
	if s.Usages != nil {
		k.usage = s.Usages.read(view)
	}
	for _, r := range slices.Backward(view.Rejections) {
		k.refused[[2]string{r.UID, r.Container}] = r.Refused
	}
	return k
}

func (k known) pod(view *ledger.PodView) Pod {
	pod := Pod{Namespace: view.Namespace, Name: view.Name, UID: view.UID, QOSClass: string(view.Class), Cgroup: view.Cgroup,
		Min: view.Values.Min, Low: view.Values.Low, Blocks: blocks(view.Blocks), Containers: []Container{}}
	for _, problem := range view.Problems {
		pod.Problems = append(pod.Problems, problem.Message) // it names the annotation
	}
	for i := range view.Containers {
		pod.Containers = append(pod.Containers, k.container(view.UID, &view.Containers[i]))
	}
	return pod
}

func (k known) container(uid string, view *ledger.ContainerView) Container {
	c := Container{Name: view.Name, ID: view.ID, Cgroup: view.Cgroup, Kind: view.Kind.String(), State: view.State.String(),
		CpusetMems: view.Nodes.String(), Pinning: view.Pinning, MemoryPolicy: view.MemoryPolicy.String(), MemoryPolicySource: view.PolicySource, NoMemoryPolicy: view.NoPolicy,
		Request: view.Request.Request, RequestSource: string(view.Request.Source), RequestError: view.Request.Error,
		Limit: view.Limit, Min: view.Values.Min, Low: view.Values.Low, High: view.Values.High, Raised: view.Raised,
		Stopped: k.guarded[view.ID].Stopped, Usage: k.usage[view.Cgroup], Migration: k.moves[view.Cgroup],
		Recording: k.record.find(uid, view.Name)}
	if !view.Nodes.Empty() {
		c.Nodes = view.Nodes.IDs()
	}
	if view.Unplaced != nil {
		c.Unplaced = view.Unplaced.Text
	}
	c.Claims, c.Claimed = view.Claims, amounts(view.Claimed)
	c.Blocks, c.Short, c.ExclusiveCPUs = blocks(view.Blocks), amounts(view.Short), cpus(view.CPUs)
	c.Devices = devices(view.Devices)
	c.keepOff(view.KeptOff)
	if view.State == ledger.Stopped && len(c.Blocks) == 0 && k.refused[[2]string{uid, view.Name}] {
		c.State, c.Min, c.Low, c.High = Rejected, nil, nil, nil
	}
	return c
}

func blocks(allocations []memorymanager.Block) []Block {
	var list []Block
	for _, b := range allocations {
		block := Block{Nodes: b.Nodes.IDs(), Type: string(b.Type), Size: b.Size, PerNode: map[string]int64{}, Even: b.Even}
		for _, amount := range b.PerNode {
			block.PerNode[strconv.Itoa(amount.Node)] += int64(amount.Bytes)
		}
		list = append(list, block)
	}
	return list
}

// ancestors are the levels above the pods, wanted and real.
func (s Sources) ancestors(view *ledger.View) []Ancestor {
	list := []Ancestor{}
	if view.Kubepods == "" {
		return list
	}
	page := view.Config.QoS.PageSize
	list = append(list, s.ancestor(view.Kubepods, cgroup.LevelKubepods, view.Ancestors.Kubepods, page))
	burstable, system, systemBurstable := levelsOf(view.Pods)
	for _, above := range []struct {
		path, level string
		wanted      memoryqos.Values
	}{
		{burstable, cgroup.LevelBurstable, view.Ancestors.Burstable}, {system, cgroup.LevelSystem, view.Ancestors.System},
		{systemBurstable, cgroup.LevelBurstable, view.Ancestors.SystemBurstable},
	} {
		if above.path != "" {
			list = append(list, s.ancestor(above.path, above.level, above.wanted, page))
		}
	}
	return list
}

// levelsOf are the cgroups between kubepods and the pods, "" for one without pods.
func levelsOf(pods []*ledger.PodView) (burstable, system, systemBurstable string) {
	for _, pod := range pods {
		at, err := cgroup.ParsePod(pod.Cgroup)
		if err != nil {
			continue
		}
		qos := &burstable
		if above := at.System(); above != "" {
			system, qos = above, &systemBurstable
		}
		if at.Class == memoryqos.Burstable {
			*qos = at.QoS
		}
	}
	return burstable, system, systemBurstable
}

func (s Sources) ancestor(path, level string, wanted memoryqos.Values, page uint64) Ancestor {
	a := Ancestor{Cgroup: path, Level: level}
	if s.Tree != nil {
		a.RealMin, a.RealLow = s.read(path, cgroup.MemoryMin), s.read(path, cgroup.MemoryLow)
	}
	a.Min, a.Low = expected(wanted.Min, a.RealMin, page), expected(wanted.Low, a.RealLow, page)
	return a
}

// expected is what a file should show for a wanted value, and is what it shows where it holds that.
func expected(wanted, real *uint64, page uint64) *uint64 {
	switch {
	case wanted == nil:
		return nil
	case real != nil && memoryqos.Holds(*real, *wanted, page):
		return real
	}
	shown := memoryqos.InFile(*wanted, page)
	return &shown
}

func (s Sources) read(path string, knob cgroup.Knob) *uint64 {
	bytes, err := s.Tree.Get(path, knob)
	if err != nil {
		return nil
	}
	return &bytes
}

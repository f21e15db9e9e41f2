// Package status answers "where is my pod's memory, and is it protected": a document made from the agent's view and the
// kernel's files, and its table for people.
package status

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/reclaim"
)

// Document is the contract of `status -o json` and of /status. Sizes are in bytes; a value that is not set is absent.
type Document struct {
	Time    time.Time `json:"time"`
	Version string    `json:"version"`
	// Node is the node's name in the API; absent when it is not known.
	Node       string             `json:"node,omitempty"`
	Runtime    *Runtime           `json:"runtime,omitempty"`
	Policy     Policy             `json:"policy"`
	Conditions []ledger.Condition `json:"conditions"`
	// RequestSources are the APIs that memory requests are taken from, in their order.
	RequestSources []Source `json:"requestSources"`
	// DeviceSources are the APIs beside the kubelet's that NUMA nodes of devices are taken from.
	DeviceSources []Source `json:"deviceSources,omitempty"`
	Nodes         []Node   `json:"nodes"`
	// AvailableUnknown says why it is not known what is available; absent where it is, and before the first sample.
	AvailableUnknown string `json:"availableUnknown,omitempty"`
	// NotCounted is what available memory leaves out, because its cgroup cannot be read.
	NotCounted []NotCounted `json:"notCounted,omitempty"`
	// Claims are absent unless dra is enabled.
	Claims    *Claims    `json:"claims,omitempty"`
	Ancestors []Ancestor `json:"ancestors"`
	Pods      []Pod      `json:"pods"`
	// Rejections are containers of living pods that could not be placed; those of a pod follow each other, newest first.
	Rejections []ledger.Rejection `json:"rejections"`
	// Reclaim is page cache that was reclaimed before the kubelet would evict pods; absent unless reclaimBeforeEviction.
	Reclaim *reclaim.Report `json:"reclaim,omitempty"`
	// Overwrites are other writers' changes of files with values of ours since the daemon started.
	Overwrites []Overwrite `json:"overwrites"`
	// Problems is set for a document with problems only.
	Problems bool `json:"-"`
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
	// Profile is NUMA where Memory QoS is left to the kubelet.
	Profile           string   `json:"profile,omitempty"`
	MemoryManager     string   `json:"memoryManagerPolicy"`
	TopologyManager   string   `json:"topologyManagerPolicy"`
	Scope             string   `json:"topologyManagerScope"`
	ThrottlingFactor  *float64 `json:"memoryThrottlingFactor,omitempty"`
	MemoryReservation string   `json:"memoryReservationPolicy"`
	StallGuard        bool     `json:"stallGuard"`
	// UnpinnedMemoryPolicy is absent when it is None.
	UnpinnedMemoryPolicy string `json:"unpinnedMemoryPolicy,omitempty"`
	DryRun               bool   `json:"dryRun"`
	// RolledBack is set while it is a dry run because everything was set back by command.
	RolledBack bool `json:"rolledBack,omitempty"`
	// KubeletConfig is the kubelet's configuration file that settings are taken from.
	KubeletConfig string `json:"kubeletConfig,omitempty"`
	// MaxMigrationBytes is a quantity.
	MaxMigrationBytes string `json:"maxMigrationBytes"`
}

// Source is an API that knows the pods' memory requests, or the NUMA nodes of devices.
type Source struct {
	// Source is its name, as a container's request or a device shows it.
	Source    string `json:"source"`
	Connected bool   `json:"connected"`
	// Problem says why it does not answer; absent while it does, and while that is not known yet.
	Problem string `json:"problem,omitempty"`
}

// Node is a NUMA node.
type Node struct {
	memorymanager.NodeState
	// Available says whether the allocations hold; absent where that is not known.
	Available *Available `json:"available,omitempty"`
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
	ledger.PodView
	// Containers are the view's.
	Containers []Container `json:"containers"`
}

// States of a container by their names. One that was never created because it could not be placed is rejected; the others are the
// agent's.
const (
	Running  = "running"
	Stopped  = "stopped"
	Rejected = "rejected"
)

// Container is a container of a living pod: what the agent has decided, and what the kernel says of it.
type Container struct {
	ledger.ContainerView
	State string `json:"state"`
	// CpusetMems is what its cpuset.mems should be; absent where that is not the agent's to say.
	CpusetMems string `json:"cpusetMems,omitempty"`
	// Unplaced says at length why a living container has no nodes although it asked for some; absent when it has, or may not
	// have any.
	Unplaced string `json:"unplaced,omitempty"`
	// Stopped is set while the container is stopped by its memory.high and being given room.
	Stopped bool `json:"stopped,omitempty"`
	// FullBroken is set where full of its memory.pressure does not advance although it waits for memory.
	FullBroken bool   `json:"fullPressureBroken,omitempty"`
	Usage      *Usage `json:"usage,omitempty"`
	// OOMRisk is set where it was seen that page cache may have it killed.
	OOMRisk *oom.Risk `json:"oomRisk,omitempty"`
	// Migration is what a write of its cpuset.mems moves while it runs; absent where none has moved anything.
	Migration *Migration `json:"migration,omitempty"`
}

// Usage is what the kernel counts for a container.
type Usage struct {
	Current    uint64  `json:"current"`
	HighEvents uint64  `json:"highEvents"`
	FullStall  float64 `json:"fullStallSeconds"`
	// PerNode is anonymous and file memory per NUMA node (memory.numa_stat).
	PerNode map[int]uint64 `json:"perNode,omitempty"`
}

// Overwrite counts other writers' changes of a file of a level: kubepods, system, burstable, pod or container.
type Overwrite struct {
	Level string `json:"level"`
	File  string `json:"file"`
	Count uint64 `json:"count"`
}

// Sources are what a document is made from.
type Sources struct {
	View       func() *ledger.View
	Overwrites func() map[protect.Overwrite]uint64 // nil shows none
	Requests   func() podinfo.Stats                // nil shows no sources of requests
	Devices    func() []Source                     // nil shows no sources of devices
	Unmapped   func() string                       // of Claims; nil says nothing
	Migrations func() map[string]protect.Migration // by cgroup; nil shows none
	Statuses   func() map[string]guard.Status      // nil without the stall guard
	Reclaim    func() *reclaim.Report              // nil where there is no kernel to ask
	LastKill   func(uid, container string) *oom.Verdict
	Risks      func() map[string]*oom.Risk // by cgroup; nil shows none
	Tree       *cgroupfs.Tree              // nil leaves out what the cgroups above the pods hold
	Usages     *Usages                     // nil leaves the kernel's counters out
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
			Profile: string(config.Profile), MemoryManager: string(config.MemoryManagerPolicy), TopologyManager: string(config.TopologyManagerPolicy),
			Scope: string(config.TopologyManagerScope), ThrottlingFactor: config.MemoryThrottlingFactor,
			MemoryReservation: string(config.MemoryReservationPolicy), StallGuard: config.StallGuard, DryRun: config.DryRun(),
			RolledBack: config.RolledBack, KubeletConfig: config.Origin.KubeletConfig, MaxMigrationBytes: config.MaxMigrationBytes.String(),
		},
		Conditions: view.Conditions, Nodes: nodes(view), Claims: claimsOf(view), Ancestors: s.ancestors(view),
		Pods: make([]Pod, len(view.Pods)), Rejections: rejections(current(view)), Overwrites: s.overwrites(), RequestSources: []Source{},
	}
	if p := config.UnpinnedMemoryPolicy; p != "None" {
		d.Policy.UnpinnedMemoryPolicy = string(p)
	}
	if s.Reclaim != nil {
		d.Reclaim = s.Reclaim()
	}
	d.addNotCounted(view)
	if s.Requests != nil {
		for _, source := range s.Requests().Sources {
			d.RequestSources = append(d.RequestSources, Source{string(source.Source), source.Connected, source.Problem})
		}
	}
	if s.Devices != nil {
		d.DeviceSources = s.Devices()
	}
	if s.Unmapped != nil && d.Claims != nil {
		d.Claims.Unmapped = s.Unmapped()
	}
	if r := view.Runtime; r.Name != "" {
		d.Runtime = &Runtime{Name: r.Name, Version: r.Version, PreInstalled: s.PreInstalled, MemoryPolicies: r.MemoryPolicies}
		if nri := nriplugin.RuntimeNRIVersion(r.NRIVersion, r.Name, r.Version); nri.Known() {
			d.Runtime.NRI = nri.String()
		}
	}
	known := s.known(view)
	for i, pod := range view.Pods {
		d.Pods[i] = Pod{PodView: *pod, Containers: make([]Container, len(pod.Containers))}
		for j := range pod.Containers {
			d.Pods[i].Containers[j] = known.container(pod.UID, &pod.Containers[j])
		}
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

// Containers iterates over the containers of all pods.
func (d *Document) Containers() iter.Seq2[*Pod, *Container] {
	return func(yield func(*Pod, *Container) bool) {
		for i := range d.Pods {
			for j := range d.Pods[i].Containers {
				if !yield(&d.Pods[i], &d.Pods[i].Containers[j]) {
					return
				}
			}
		}
	}
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
	for _, c := range d.Containers() {
		if source := string(c.Source); !c.Exact() && !slices.Contains(estimates, source) {
			estimates = append(estimates, source)
		}
	}
	text := "memory requests of Burstable pods are estimates from what the runtime's events carry"
	if len(estimates) > 0 {
		slices.Sort(estimates)
		text += ", now from " + strings.Join(estimates, ", ")
	}
	return text
}

// nodes is the node map, with the sample of what is available.
func nodes(view *ledger.View) []Node {
	all := make([]Node, len(view.Nodes))
	for i, state := range view.Nodes {
		all[i].NodeState = state
		if n := view.NodeMemory.Node(state.ID); n != nil {
			all[i].Available = &Available{Unused: n.Unused, Free: n.Free, Reclaimable: n.Reclaimable, Deficit: n.Deficit()}
		}
	}
	return all
}

// known holds facts about containers that the view does not have.
type known struct {
	guarded map[string]guard.Status // by container ID
	usage   map[string]*Usage       // by cgroup
	moves   map[string]*Migration   // by cgroup
	risks   map[string]*oom.Risk    // by cgroup
	refused map[[2]string]bool      // by pod UID and container: the last word about its placement
}

func (s Sources) known(view *ledger.View) known {
	k := known{refused: map[[2]string]bool{}, moves: s.migrations(view)}
	if s.Statuses != nil {
		k.guarded = s.Statuses()
	}
	if s.Usages != nil {
		k.usage = s.Usages.read(view)
	}
	if s.Risks != nil {
		k.risks = s.Risks()
	}
	for _, r := range slices.Backward(view.Rejections) {
		k.refused[[2]string{r.UID, r.Container}] = r.Refused
	}
	return k
}

func (k known) container(uid string, view *ledger.ContainerView) Container {
	c := Container{ContainerView: *view, State: view.State.String(), CpusetMems: view.Mems().String(), Stopped: k.guarded[view.ID].Stopped,
		FullBroken: k.guarded[view.ID].FullBroken, Usage: k.usage[view.Cgroup], OOMRisk: k.risks[view.Cgroup], Migration: k.moves[view.Cgroup]}
	if view.Unplaced != nil {
		c.Unplaced = view.Unplaced.Text
	}
	if view.State == ledger.Stopped && len(c.Blocks) == 0 && k.refused[[2]string{uid, view.Name}] {
		c.State, c.Values = Rejected, memoryqos.Values{}
	}
	return c
}

// ancestors returns the desired and real values of the parents of the pods.
func (s Sources) ancestors(view *ledger.View) []Ancestor {
	list, page := []Ancestor{}, view.Config.QoS.PageSize
	for _, above := range view.Ancestors {
		a := Ancestor{Cgroup: above.Cgroup, Level: above.Level}
		if s.Tree != nil {
			a.RealMin, a.RealLow = s.read(above.Cgroup, cgroup.MemoryMin), s.read(above.Cgroup, cgroup.MemoryLow)
		}
		a.Min, a.Low = expected(above.Values.Min, a.RealMin, page), expected(above.Values.Low, a.RealLow, page)
		list = append(list, a)
	}
	return list
}

// expected returns the number that a file should show for a wanted value; the number that it shows if it holds the value.
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

package simulator

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// Result is what became of the pods. Its JSON is for programs and keeps its keys; sizes are bytes, and what is not set is
// left out.
type Result struct {
	Containers []*Container `json:"containers"`
	Ancestors  []Ancestor   `json:"ancestors"`
	// IgnoredAnnotations are wrong, and treated as if they were not there.
	IgnoredAnnotations []IgnoredAnnotation `json:"ignoredAnnotations,omitempty"`
	// Skipped says of what the manifests have besides that it is not simulated, a line for each reason; [] where there is none.
	Skipped []string `json:"skipped"`
	// State is the state file; null under the Memory Manager policy None.
	State json.RawMessage `json:"state"`

	nodes       []memorymanager.NodeState
	notLookedAt string
}

// Container is one container of a manifest, in the order of creation.
type Container struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	QOSClass  string `json:"qosClass"`
	Admitted  bool   `json:"admitted"`
	// Reason is why a container was not created, or runs without NUMA nodes although it asked for some, or by itself would have them.
	Reason string `json:"reason"`
	// ReasonCode and BarredBy are the plugin's, as "explain" has them.
	ReasonCode string `json:"reasonCode,omitempty"`
	BarredBy   string `json:"barredBy,omitempty"`
	NUMANodes  []int  `json:"numaNodes"`
	CpusetMems string `json:"cpusetMems"`
	// CpusetCpus are the exclusive CPUs that the kubelet has assigned, or the shared pool at that time; empty without the static CPU
	// manager policy.
	CpusetCpus string `json:"cpusetCpus,omitempty"`
	Memory     Memory `json:"memory"`
	// AssignedMemset is the container's variable ASSIGNED_MEMSET, its spec's own or the plugin's; empty without exposeAssignedMemset.
	AssignedMemset string `json:"assignedMemset,omitempty"`
	// OOMScoreAdj is what the container's processes have: the kubelet's, unless an annotation or the configuration sets another.
	OOMScoreAdj int64 `json:"oomScoreAdj"`
	// Defaults names the rule of the configuration that stands for annotations, and which.
	Defaults string `json:"defaults,omitempty"`
	// WithoutEffect are the pod's annotations that do nothing for the container, each with the reason.
	WithoutEffect []string `json:"withoutEffect,omitempty"`
	// OCI is linux.resources of the final OCI spec.
	OCI *rspec.LinuxResources `json:"oci,omitempty"`

	id, uid, kind string
	podMax        uint64            // memory.max of the pod's cgroup; 0 is none
	confined      bool              // its cpuset.mems is no NUMA nodes of its own
	unplaced      *ledger.Rejection // why the plugin has rejected it or gave it no NUMA nodes
	requestError  uint64
	hugepages     map[string]uint64
}

// Memory is a container's memory request and the files of its cgroup.
type Memory struct {
	Request uint64 `json:"request"`
	// RequestSource is where the plugin learned the request.
	RequestSource string  `json:"requestSource,omitempty"`
	Min           *uint64 `json:"min,omitempty"`
	Low           *uint64 `json:"low,omitempty"`
	// High is left out where it is above the limit that holds for the container.
	High *uint64 `json:"high,omitempty"`
	Max  *uint64 `json:"max,omitempty"`
}

// Ancestor is a cgroup above the containers.
type Ancestor struct {
	// Cgroup is relative to the cgroup mount.
	Cgroup    string  `json:"cgroup"`
	MemoryMin *uint64 `json:"memoryMin,omitempty"`
	MemoryLow *uint64 `json:"memoryLow,omitempty"`
	// MemoryMax is the kubelet's limit of a pod.
	MemoryMax *uint64 `json:"memoryMax,omitempty"`
}

// Rejected returns the containers that were not created.
func (r *Result) Rejected() []*Container {
	return slices.DeleteFunc(slices.Clone(r.Containers), func(c *Container) bool { return c.Admitted })
}

// unpinned returns the containers that were created without NUMA nodes although they asked for some.
func (r *Result) unpinned() []*Container {
	return slices.DeleteFunc(slices.Clone(r.Containers), func(c *Container) bool { return !c.Admitted || c.Reason == "" })
}

// Unexpected compares the containers that were not created with those that were to be rejected, as POD/CONTAINER: it
// returns those rejected that were not expected, and those expected that were not rejected.
func (r *Result) Unexpected(expected []string) (rejected, admitted []string) {
	missing := map[string]bool{}
	for _, name := range expected {
		missing[name] = true
	}
	for _, container := range r.Rejected() {
		name := container.Pod + "/" + container.Container
		if !slices.Contains(expected, name) {
			rejected = append(rejected, name)
		}
		delete(missing, name)
	}
	return rejected, slices.Sorted(maps.Keys(missing))
}

// result takes the node's state as it is now.
func (n *Node) result(ctx context.Context) (*Result, error) {
	nodes, err := n.plugin.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	result := &Result{Containers: n.containers, IgnoredAnnotations: n.ignoredAnnotations(), Skipped: []string{}, nodes: nodes, notLookedAt: n.admission.notLookedAt()}
	specs := map[string]*rspec.LinuxResources{}
	memsets := map[string]string{}
	for _, container := range n.runtime.Containers() {
		specs[container.Id] = container.Linux.Resources.ToOCI()
		for _, variable := range container.Env {
			if value, is := strings.CutPrefix(variable, ledger.MemsetVariable+"="); is && n.config.ExposeAssignedMemset {
				memsets[container.Id] = value
			}
		}
	}
	for _, container := range n.containers {
		if !container.Admitted {
			continue
		}
		container.AssignedMemset = memsets[container.id]
		// The plugin may have corrected a running container since its creation.
		if spec := specs[container.id]; spec != nil {
			container.OCI = spec
		}
		if err := container.read(container.OCI); err != nil {
			return nil, fmt.Errorf("container %s of pod %s/%s: %w", container.Container, container.Namespace, container.Pod, err)
		}
	}
	result.Ancestors = []Ancestor{}
	for _, cgroup := range n.ancestors() {
		ancestor := Ancestor{Cgroup: cgroup}
		for file, to := range map[string]**uint64{"memory.min": &ancestor.MemoryMin, "memory.low": &ancestor.MemoryLow, "memory.max": &ancestor.MemoryMax} {
			if *to, err = n.file(cgroup, file); err != nil {
				return nil, err
			}
		}
		result.Ancestors = append(result.Ancestors, ancestor)
	}
	if result.State, err = n.plugin.State(); len(result.State) == 0 {
		result.State = json.RawMessage("null")
	}
	return result, err
}

// read takes a container's nodes and memory files from its OCI spec.
func (c *Container) read(spec *rspec.LinuxResources) (err error) {
	if spec.CPU != nil {
		c.CpusetCpus = spec.CPU.Cpus
	}
	if spec.CPU != nil && spec.CPU.Mems != "" {
		c.CpusetMems = spec.CPU.Mems
		nodes, err := nodeset.Parse(spec.CPU.Mems)
		if err != nil {
			return fmt.Errorf("cpuset.mems: %w", err)
		}
		if !c.confined {
			c.NUMANodes = nodes.IDs()
		}
	}
	for key, to := range map[string]**uint64{"memory.min": &c.Memory.Min, "memory.low": &c.Memory.Low, "memory.high": &c.Memory.High} {
		if *to, err = value(spec.Unified[key]); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	if high := c.Memory.High; high != nil && *high > c.effectiveMax() {
		c.Memory.High = nil
	}
	return nil
}

// effectiveMax is the smallest limit that holds for the container. A container without a limit of its own has a memory.high that
// follows from the node's memory, as under a kubelet; above its pod's limit the kernel never reaches it.
func (c *Container) effectiveMax() uint64 {
	limit := uint64(math.MaxUint64)
	if c.Memory.Max != nil {
		limit = *c.Memory.Max
	}
	if c.podMax > 0 {
		limit = min(limit, c.podMax)
	}
	return limit
}

// value reads a memory file's text; "", "0" and "max" are what the kernel has without us.
func value(text string) (*uint64, error) {
	if text == "" || text == "0" || text == "max" {
		return nil, nil
	}
	bytes, err := strconv.ParseUint(text, 10, 64)
	return &bytes, err
}

func (n *Node) file(cgroup, file string) (*uint64, error) {
	text, err := n.Cgroups.Read(cgroup, file)
	if err != nil {
		return nil, err
	}
	return value(text)
}

package machine

import (
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// Description is a machine and its node as a simulated kubelet sees them. The daemon needs the Machine only: its kubelet has
// decided about the rest.
type Description struct {
	Machine
	// Cores has the core of each CPU, by the CPU's id: the lowest CPU of the core. A CPU that is not in it has its core for itself.
	Cores map[int]int
	// Labels are the node's; nil where they are not known.
	Labels map[string]string
	// Resources are the node's extended resources by name, for example nvidia.com/gpu.
	Resources map[string]uint64
	// MaxPods is the kubelet's maxPods; 0 where it is not known.
	MaxPods int
	// CPUManagerPolicy is the kubelet's: CPUsStatic, CPUsNone, or "" where it is not known.
	CPUManagerPolicy string
	// ReservedSystemCPUs are the kubelet's; empty where it has none.
	ReservedSystemCPUs cpuset.CPUSet
}

// The kubelet's CPU manager policies.
const (
	CPUsNone   = "none"
	CPUsStatic = "static"
)

// CPUs are all CPUs of the machine.
func (m Machine) CPUs() cpuset.CPUSet {
	all := cpuset.New()
	for _, node := range m.Nodes {
		all = all.Union(node.CPUs)
	}
	return all
}

// describe checks what a machine file says of the node beside its hardware.
func (f file) describe(doc *strictyaml.Document, m Machine) (Description, error) {
	d := Description{Machine: m, Labels: f.Labels, Resources: f.Resources, CPUManagerPolicy: f.CPUManagerPolicy}
	for _, name := range slices.Sorted(maps.Keys(f.Resources)) {
		if !strings.Contains(name, "/") {
			return d, doc.Errorf("resources", "%q is not an extended resource; want a name such as nvidia.com/gpu", name)
		}
		if own, isQuota := strings.CutPrefix(name, "requests."); isQuota {
			return d, doc.Errorf("resources", "%q is how a ResourceQuota names %q; want that", name, own)
		}
	}
	if f.MaxPods != nil {
		if d.MaxPods = *f.MaxPods; d.MaxPods < 1 {
			return d, doc.Errorf("maxPods", "want a number of pods of at least 1, got %d", d.MaxPods)
		}
	}
	if !slices.Contains([]string{"", CPUsNone, CPUsStatic}, d.CPUManagerPolicy) {
		return d, doc.Errorf("cpuManagerPolicy", "%q: want none or static", d.CPUManagerPolicy)
	}
	var err error
	if d.ReservedSystemCPUs, err = m.CPUsOf(f.ReservedSystemCPUs); err != nil {
		return d, doc.Errorf("reservedSystemCPUs", "%v", err)
	}
	if f.ThreadsPerCore != nil {
		d.Cores, err = m.cores(*f.ThreadsPerCore, doc)
	}
	return d, err
}

// CPUsOf reads a list of CPUs ("0-3,8") that the machine has; an empty one has none.
func (m Machine) CPUsOf(list string) (cpuset.CPUSet, error) {
	if _, err := m.CPUsByNode(list); err != nil {
		return cpuset.CPUSet{}, err
	}
	return ParseCPUs(strings.TrimSpace(list))
}

// cores numbers threads as Linux does on x86: first one of each core, then the others in the same order.
func (m Machine) cores(threads int, doc *strictyaml.Document) (map[int]int, error) {
	if threads < 1 || threads > 8 {
		return nil, doc.Errorf("threadsPerCore", "want 1 to 8, got %d", threads)
	}
	cores := map[int]int{}
	for _, node := range m.Nodes {
		cpus := node.CPUs.List()
		if len(cpus)%threads != 0 {
			return nil, doc.Errorf("threadsPerCore", "the %d CPUs of NUMA node %d are no cores of %d threads", len(cpus), node.ID, threads)
		}
		for i, cpu := range cpus {
			cores[cpu] = cpus[i%(len(cpus)/threads)]
		}
	}
	return cores, nil
}

// Marshal writes the hardware as a machine file (YAML) that Describe reads back. Cores are left out unless they are numbered as on x86.
func (d Description) Marshal() ([]byte, error) {
	f := file{PageSize: quantity.Bytes(d.PageSize), Swap: quantity.Bytes(d.Swap)}
	for threads := 1; threads <= 8 && len(d.Cores) > 0; threads++ {
		if cores, err := d.cores(threads, &strictyaml.Document{}); err == nil && maps.Equal(cores, d.Cores) {
			f.ThreadsPerCore = &threads
		}
	}
	sum := uint64(0)
	for _, node := range d.Nodes {
		sum += node.Memory
		pools := map[string]uint64{}
		for _, pool := range node.Hugepages {
			pools[quantity.Format(pool.PageSize)] = pool.Count
		}
		f.Nodes = append(f.Nodes, fileNode{&node.ID, quantity.Bytes(node.Memory), node.CPUs.String(), pools, node.Distances})
	}
	if sum != d.MemTotal {
		f.MemTotal = quantity.Bytes(d.MemTotal)
	}
	return yaml.Marshal(f)
}

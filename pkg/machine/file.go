package machine

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/strictyaml"
)

// The kernel's distances where a machine file has none (include/linux/topology.h).
const (
	localDistance  = 10
	remoteDistance = 20
	farthest       = 255 // DISTANCE_UNREACHABLE
)

// file is a machine file: a machine as a person writes it.
type file struct {
	Nodes []fileNode `yaml:"nodes"`
	// PageSize is 4Ki when left out.
	PageSize quantity.Bytes `yaml:"pageSize"`
	Swap     quantity.Bytes `yaml:"swap,omitempty"`
	// MemTotal is /proc/meminfo's if it differs from the sum of the nodes, for example after memory hotplug.
	MemTotal quantity.Bytes `yaml:"memTotal,omitempty"`
	// The rest is for a simulated kubelet: see Description.
	ThreadsPerCore     *int              `yaml:"threadsPerCore,omitempty"`
	Labels             map[string]string `yaml:"labels,omitempty"`
	Resources          map[string]uint64 `yaml:"resources,omitempty"`
	MaxPods            *int              `yaml:"maxPods,omitempty"`
	CPUManagerPolicy   string            `yaml:"cpuManagerPolicy,omitempty"`
	ReservedSystemCPUs string            `yaml:"reservedSystemCPUs,omitempty"`
}

// Instead says what a file of Kubernetes should have been (strictyaml.Replacer).
func (*file) Instead(key string) string {
	if key == "kind" {
		return "want a machine file, as the command machine prints it"
	}
	return ""
}

type fileNode struct {
	ID     *int           `yaml:"id"`
	Memory quantity.Bytes `yaml:"memory"`
	CPUs   string         `yaml:"cpus,omitempty"`
	// Hugepages are numbers of pages by page size ("2Mi").
	Hugepages map[string]uint64 `yaml:"hugepages,omitempty,flow"`
	Distances []int             `yaml:"distances,flow"`
}

// Describe reads a machine file's text (YAML): nodes with id, memory, cpus, hugepages and distances, optionally pageSize and
// swap, and what the file says of the node beside its hardware. MemTotal is the sum of the nodes where the file has none. Errors call the file name.
func Describe(name string, data []byte) (Description, error) {
	f := file{PageSize: 4096}
	doc, err := strictyaml.Decode(name, data, &f)
	if err != nil {
		return Description{}, err
	}
	m, err := f.machine(doc)
	if err != nil {
		return Description{}, err
	}
	return f.describe(doc, m)
}

// machine checks what was read and makes a machine of it.
func (f file) machine(doc *strictyaml.Document) (Machine, error) {
	if f.PageSize < 4096 || f.PageSize > 1<<20 || f.PageSize&(f.PageSize-1) != 0 {
		return Machine{}, doc.Errorf("pageSize", "want a power of two from 4Ki to 1Mi, got %s", f.PageSize)
	}
	if len(f.Nodes) == 0 {
		return Machine{}, doc.Errorf("nodes", "want at least one NUMA node")
	}
	m := Machine{PageSize: int(f.PageSize), Swap: uint64(f.Swap)}
	for i, from := range f.Nodes {
		path := fmt.Sprintf("nodes[%d]", i)
		if from.ID == nil {
			return Machine{}, doc.Errorf(path, "id is missing")
		}
		if *from.ID < 0 || *from.ID > nodeset.MaxID {
			return Machine{}, doc.Errorf(path+".id", "want a node id from 0 to %d, got %d", nodeset.MaxID, *from.ID)
		}
		if slices.ContainsFunc(m.Nodes, func(n Node) bool { return n.ID == *from.ID }) {
			return Machine{}, doc.Errorf(path+".id", "node %d is there twice", *from.ID)
		}
		node, err := from.node(doc, path, len(f.Nodes))
		if err != nil {
			return Machine{}, err
		}
		for _, other := range m.Nodes {
			if both := other.CPUs.Intersection(node.CPUs); !both.IsEmpty() {
				return Machine{}, doc.Errorf(path+".cpus", "CPU %s is on node %d too", both, other.ID)
			}
		}
		if m.MemTotal += node.Memory; m.MemTotal > math.MaxInt64 {
			return Machine{}, doc.Errorf(path+".memory", "the nodes together have more than a signed 64-bit number of bytes")
		}
		m.Nodes = append(m.Nodes, node)
	}
	largest := slices.MaxFunc(m.Nodes, func(a, b Node) int { return cmp.Compare(a.Memory, b.Memory) })
	switch {
	case m.MemTotal == 0:
		return Machine{}, doc.Errorf("nodes", "want memory on at least one NUMA node, got 0 on each")
	case f.MemTotal > 0 && uint64(f.MemTotal) < largest.Memory:
		return Machine{}, doc.Errorf("memTotal", "%s are less than the %s of NUMA node %d", f.MemTotal, quantity.Short(largest.Memory), largest.ID)
	}
	m.MemTotal = cmp.Or(uint64(f.MemTotal), m.MemTotal)
	slices.SortFunc(m.Nodes, func(a, b Node) int { return a.ID - b.ID })
	return m, m.fillDistances(doc)
}

func (f fileNode) node(doc *strictyaml.Document, path string, nodes int) (Node, error) {
	node := Node{ID: *f.ID, Memory: uint64(f.Memory), Distances: f.Distances}
	if node.Memory > 0 && node.Memory < 1<<20 {
		return Node{}, doc.Errorf(path+".memory", "%s is in bytes; want for example 64Gi", doc.Text(path+".memory"))
	}
	cpus, err := ParseCPUs(f.CPUs)
	if err != nil {
		return Node{}, doc.Errorf(path+".cpus", "%v", err)
	}
	node.CPUs = cpus
	rest := node.Memory
	for _, size := range slices.Sorted(maps.Keys(f.Hugepages)) {
		pool := Pool{Count: f.Hugepages[size]}
		pool.PageSize, err = quantity.Parse(size)
		field := path + ".hugepages"
		switch {
		case err != nil:
			return Node{}, doc.Errorf(field, "page size %v", err)
		case pool.PageSize < 4096 || pool.PageSize&(pool.PageSize-1) != 0:
			return Node{}, doc.Errorf(field, "page size %q is not one such as 2Mi or 1Gi", size)
		case slices.ContainsFunc(node.Hugepages, func(p Pool) bool { return p.PageSize == pool.PageSize }):
			return Node{}, doc.Errorf(field, "page size %q is there twice", size)
		case pool.Count > rest/pool.PageSize:
			return Node{}, doc.Errorf(field, "%d pages of %s do not fit the node's memory of %s", pool.Count, size, quantity.Short(node.Memory))
		}
		rest -= pool.Count * pool.PageSize
		node.Hugepages = append(node.Hugepages, pool)
	}
	slices.SortFunc(node.Hugepages, func(a, b Pool) int { return cmp.Compare(a.PageSize, b.PageSize) })
	if len(f.Distances) != 0 && len(f.Distances) != nodes {
		return Node{}, doc.Errorf(path+".distances", "want %d numbers, one per node in the order of ids, got %d", nodes, len(f.Distances))
	}
	for i, distance := range f.Distances {
		if distance < localDistance || distance > farthest {
			return Node{}, doc.Errorf(fmt.Sprintf("%s.distances[%d]", path, i), "want %d to %d, got %d", localDistance, farthest, distance)
		}
	}
	return node, nil
}

// fillDistances gives a machine without distances the kernel's defaults. Some rows without the others are a mistake.
func (m Machine) fillDistances(doc *strictyaml.Document) error {
	missing := 0
	for _, node := range m.Nodes {
		if len(node.Distances) == 0 {
			missing++
		}
	}
	if missing != 0 && missing != len(m.Nodes) {
		return doc.Errorf("nodes", "%d of %d nodes have no distances: give all or none", missing, len(m.Nodes))
	}
	for i := range m.Nodes {
		for j := 0; missing > 0 && j < len(m.Nodes); j++ {
			distance := remoteDistance
			if i == j {
				distance = localDistance
			}
			m.Nodes[i].Distances = append(m.Nodes[i].Distances, distance)
		}
	}
	return nil
}

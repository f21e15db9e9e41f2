package simulator

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// cpuManager assigns exclusive CPUs as the kubelet's static policy does without options: whole NUMA nodes first, then whole
// cores, then threads, on the nodes of the Topology Manager's hint. A NUMA node counts as a socket, the CPUs' hints are the
// only ones, and among hints that are alike the one with the lowest nodes wins, also under prefer-closest-numa-nodes.
type cpuManager struct {
	policy topologymanager.Policy
	scope  topologymanager.Scope
	nodes  []machine.Node // those with CPUs
	cores  map[int]int
	// reserved are of the shared pool, too, but never exclusive.
	reserved, shared cpuset.CPUSet
	pods             map[types.UID]map[string]cpuset.CPUSet
}

// newCPUManager returns the CPU manager of a node without pods, which keeps so many thousandths of CPUs.
func newCPUManager(of machine.Description, c config.Config, reservation int64) (*cpuManager, error) {
	m := &cpuManager{
		policy: c.TopologyManagerPolicy, scope: c.TopologyManagerScope, cores: of.Cores, reserved: of.ReservedSystemCPUs, shared: of.CPUs(),
		pods: map[types.UID]map[string]cpuset.CPUSet{},
	}
	for _, node := range of.Nodes {
		if !node.CPUs.IsEmpty() {
			m.nodes = append(m.nodes, node)
		}
	}
	if reservation == 0 {
		return nil, fmt.Errorf("the CPU manager policy static needs reserved CPUs, without which no kubelet starts: want --reserved-cpus, " +
			"reservedSystemCPUs in the machine file, or cpu in the configuration's kubeReserved or systemReserved")
	}
	if number := int((reservation + 999) / 1000); m.reserved.IsEmpty() && number <= m.shared.Size() {
		m.reserved = m.pack(m.shared, number)
	}
	if all := m.shared.Size(); m.reserved.IsEmpty() || m.reserved.Size() == all {
		return nil, fmt.Errorf("the CPU manager policy static: %d thousandths of CPUs are reserved, and the machine has %d CPUs", reservation, all)
	}
	return m, nil
}

// of are the CPUs of a container: its own, or the shared pool.
func (m *cpuManager) of(pod *corev1.Pod, container string) cpuset.CPUSet {
	if own, exclusive := m.pods[pod.UID][container]; exclusive {
		return own
	}
	return m.shared
}

// admit assigns exclusive CPUs to the containers of a pod, all or none. What an init container has goes to those after it.
func (m *cpuManager) admit(pod *corev1.Pod) error {
	var whole memoryqos.Peak
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	kind := func(i int) memoryqos.Kind {
		switch {
		case i >= len(pod.Spec.InitContainers):
			return memoryqos.App
		case podinfo.IsSidecar(&containers[i]):
			return memoryqos.Sidecar
		}
		return memoryqos.Init
	}
	for i := range containers {
		whole.Add(kind(i), uint64(exclusive(pod, &containers[i])))
	}
	if whole.Bytes() == 0 {
		return nil
	}
	assigned, reusable := map[string]cpuset.CPUSet{}, cpuset.New()
	m.pods[pod.UID] = assigned
	hint, err := m.hint(int(whole.Bytes()), reusable)
	for i := range containers {
		number := exclusive(pod, &containers[i])
		if number == 0 {
			continue
		}
		if m.scope != topologymanager.PodScope {
			hint, err = m.hint(number, reusable)
		}
		var cpus cpuset.CPUSet
		if err == nil {
			cpus, err = m.take(number, hint, reusable)
		}
		if err != nil {
			m.release(pod)
			return err
		}
		assigned[containers[i].Name] = cpus
		m.shared = m.shared.Difference(cpus)
		if reusable = reusable.Difference(cpus); kind(i) == memoryqos.Init {
			reusable = reusable.Union(cpus)
		}
	}
	return nil
}

func (m *cpuManager) release(pod *corev1.Pod) {
	for _, cpus := range m.pods[pod.UID] {
		m.shared = m.shared.Union(cpus)
	}
	delete(m.pods, pod.UID)
}

// exclusive is the number of CPUs that a container has for itself: those of a Guaranteed pod that asks for whole ones.
func exclusive(pod *corev1.Pod, container *corev1.Container) int {
	cpus := container.Resources.Requests.Cpu()
	if classOf(pod) != memoryqos.Guaranteed || resourcehelper.IsPodLevelResourcesSet(pod) || cpus.MilliValue()%1000 != 0 {
		return 0
	}
	return int(cpus.Value())
}

// hint is the NUMA nodes that the Topology Manager has a container or pod take CPUs from; empty where it has no preference.
func (m *cpuManager) hint(number int, reusable cpuset.CPUSet) (nodeset.Set, error) {
	rules := m.policy.Rules()
	if !rules.Aligns {
		return 0, nil
	}
	var holding nodeset.Set // CPUs that are used again must be of the hint
	for _, node := range m.nodes {
		if !node.CPUs.Intersection(reusable).IsEmpty() {
			holding = holding.Union(nodeset.Of(node.ID))
		}
	}
	available := m.available(reusable)
	nodes, fits := m.narrowest(number, holding, func(n machine.Node) int { return n.CPUs.Intersection(available).Size() })
	least, _ := m.narrowest(number, 0, func(n machine.Node) int { return n.CPUs.Size() })
	preferred := fits && nodes.Len() == least.Len() && (!rules.OneNode || nodes.Len() == 1)
	if rules.Insists && !preferred {
		return 0, &AdmissionError{memorymanager.TopologyAffinityError.String(), fmt.Sprintf(
			"Resources cannot be allocated with Topology locality (CPUs, policy %s: %d needed, %d of %d free)", m.policy, number, available.Size(), m.all())}
	}
	return nodes, nil
}

func (m *cpuManager) all() (number int) {
	for _, node := range m.nodes {
		number += node.CPUs.Size()
	}
	return number
}

// available are the CPUs that may become exclusive.
func (m *cpuManager) available(reusable cpuset.CPUSet) cpuset.CPUSet {
	return m.shared.Difference(m.reserved).Union(reusable)
}

// narrowest is the smallest set of nodes, these among them, that has room for a number of CPUs; of several the one without the
// highest nodes, which is the Topology Manager's order.
func (m *cpuManager) narrowest(number int, these nodeset.Set, room func(machine.Node) int) (nodeset.Set, bool) {
	// within reports whether the chosen nodes and the best of others, so many, have room.
	within := func(chosen nodeset.Set, others []machine.Node, many int) bool {
		sum := 0
		var more []int
		for _, node := range m.nodes {
			if chosen.Has(node.ID) {
				sum += room(node)
			} else if slices.ContainsFunc(others, func(o machine.Node) bool { return o.ID == node.ID }) {
				more = append(more, room(node))
			}
		}
		slices.SortFunc(more, func(a, b int) int { return cmp.Compare(b, a) })
		for _, cpus := range more[:min(many, len(more))] {
			sum += cpus
		}
		return sum >= number
	}
	size := max(these.Len(), 1)
	for !within(these, m.nodes, size-these.Len()) {
		if size++; size > len(m.nodes) {
			return 0, false
		}
	}
	chosen := these
	for i, node := range slices.Backward(m.nodes) {
		if !chosen.Has(node.ID) && !within(chosen, m.nodes[:i], size-chosen.Len()) {
			chosen = chosen.Union(nodeset.Of(node.ID))
		}
	}
	return chosen, true
}

// take takes CPUs, those of the hint first.
func (m *cpuManager) take(number int, hint nodeset.Set, reusable cpuset.CPUSet) (cpuset.CPUSet, error) {
	available := m.available(reusable)
	if number > available.Size() {
		return cpuset.CPUSet{}, &AdmissionError{memorymanager.UnexpectedAdmissionError.String(), fmt.Sprintf(
			"Allocate failed due to not enough cpus available to satisfy request: requested=%d, available=%d, which is unexpected", number, available.Size())}
	}
	aligned := cpuset.New()
	for _, node := range m.nodes {
		if hint.Has(node.ID) {
			aligned = aligned.Union(node.CPUs.Intersection(available))
		}
	}
	taken := m.pack(aligned, min(number, aligned.Size()))
	return taken.Union(m.pack(available.Difference(taken), number-taken.Size())), nil
}

// pack takes a number of CPUs of a set that has so many: whole NUMA nodes, whole cores, then single threads, each time from where
// the fewest are left.
func (m *cpuManager) pack(of cpuset.CPUSet, number int) cpuset.CPUSet {
	taken := cpuset.New()
	take := func(cpus cpuset.CPUSet) { taken, of = taken.Union(cpus), of.Difference(cpus) }
	fits := func(cpus cpuset.CPUSet, whole int) bool {
		return cpus.Size() == whole && whole > 0 && whole <= number-taken.Size()
	}
	for _, node := range m.byRoom(of) {
		if here := node.CPUs.Intersection(of); fits(here, node.CPUs.Size()) {
			take(here)
		}
	}
	for _, core := range m.coresByRoom(of) {
		if here := core.Intersection(of); fits(here, core.Size()) {
			take(here)
		}
	}
	for _, core := range m.coresByRoom(of) {
		here := core.Intersection(of).List()
		take(cpuset.New(here[:min(len(here), number-taken.Size())]...))
	}
	return taken
}

// byRoom are the nodes, the fullest first.
func (m *cpuManager) byRoom(of cpuset.CPUSet) []machine.Node {
	return slices.SortedStableFunc(slices.Values(m.nodes), func(a, b machine.Node) int {
		return cmp.Compare(a.CPUs.Intersection(of).Size(), b.CPUs.Intersection(of).Size())
	})
}

// coresByRoom are the cores with CPUs of a set: those of the fullest node first, and of each node the fullest first.
func (m *cpuManager) coresByRoom(of cpuset.CPUSet) (cores []cpuset.CPUSet) {
	for _, node := range m.byRoom(of) {
		threads := map[int][]int{}
		for _, cpu := range node.CPUs.UnsortedList() {
			core := cpu
			if first, shared := m.cores[cpu]; shared {
				core = first
			}
			threads[core] = append(threads[core], cpu)
		}
		var here []cpuset.CPUSet
		for _, cpus := range threads {
			if core := cpuset.New(cpus...); !core.Intersection(of).IsEmpty() {
				here = append(here, core)
			}
		}
		slices.SortFunc(here, func(a, b cpuset.CPUSet) int {
			return cmp.Or(cmp.Compare(a.Intersection(of).Size(), b.Intersection(of).Size()), cmp.Compare(a.List()[0], b.List()[0]))
		})
		cores = append(cores, here...)
	}
	return cores
}

package memorymanager_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// replayer is the agent's part in a scenario.
type replayer struct {
	s       *scenario
	machine machine
	reserve []reservation
	policy  string
	gates   map[string]bool
	manager *memorymanager.Manager
	// file is the state file's text; specs are the pods that were admitted last.
	file  []byte
	specs map[string][]podContainer
}

// replay answers every step of a scenario; the start is step -1.
func (s *scenario) replay() (answers []difference) {
	r := &replayer{s: s, machine: s.Machine, reserve: s.Reserved, policy: s.MemoryManagerPolicy, gates: s.FeatureGates, specs: map[string][]podContainer{}}
	start := difference{ID: s.ID, Step: -1, Result: &result{}}
	if err := r.start(); err != nil {
		start.InitError = err.Error()
		return append(answers, start)
	}
	start.Result.MachineState = r.nodes()
	start.Result.StateFile = string(r.file)
	answers = append(answers, start)
	for i := range s.Steps {
		got := r.step(&s.Steps[i])
		if r.manager != nil {
			r.save()
			got.Entries, got.PodEntries, got.MachineState = entries(r.manager.State()), podEntries(r.manager.State()), r.nodes()
		}
		got.StateFile = string(r.file)
		answers = append(answers, difference{ID: s.ID, Step: i, Result: &got})
	}
	return answers
}

func (r *replayer) save() {
	state := r.manager.State()
	for i := range state.Entries {
		for j := range state.Entries[i].Blocks {
			state.Entries[i].Blocks[j].PerNode = nil
		}
	}
	for i := range state.Pods {
		for j := range state.Pods[i].Blocks {
			state.Pods[i].Blocks[j].PerNode = nil
		}
	}
	r.file = checkpoint.Encode(checkpoint.PolicyStatic, state)
}

// start makes a manager and reads the state file. What can not be read is adopted from the containers that run.
func (r *replayer) start() error {
	before := r.manager
	r.manager = nil
	if r.policy == "None" {
		r.file = checkpoint.Encode("None", memorymanager.State{})
		return nil
	}
	nodes, err := capacities(r.machine, r.reserve)
	if err != nil {
		return err
	}
	r.manager, err = memorymanager.New(nodes, memorymanager.Options{
		Policy: topologymanager.Policy(r.s.TopologyPolicy), Scope: topologymanager.Scope(r.s.TopologyScope),
		AlignTo: topologymanager.AlignToKubelet, PreferClosest: r.s.TopologyOptions["prefer-closest-numa-nodes"] == "true",
	})
	if err != nil {
		return err
	}
	if r.file != nil {
		file, err := checkpoint.Decode(r.file)
		if err == nil && file.Policy == checkpoint.PolicyStatic {
			_, err = r.manager.Restore(file.State, memorymanager.DefaultTolerance)
		}
		if err != nil && before != nil {
			r.adopt(before.State())
		}
	}
	r.save()
	return nil
}

func (r *replayer) adopt(running memorymanager.State) {
	for _, e := range running.Entries {
		var request memorymanager.Request
		for _, b := range e.Blocks {
			request = append(request, memorymanager.Amount{Type: b.Type, Bytes: b.Size})
		}
		if _, err := r.manager.Adopt(e.Pod, e.Container, request, e.Blocks[0].Nodes); err != nil {
			panic(err)
		}
	}
}

// capacities are the nodes with their reservations, checked as the configuration does.
func capacities(m machine, reserved []reservation) (nodes []memorymanager.NodeCapacity, err error) {
	at := map[int]int{}
	for i, n := range m.Nodes {
		capacity := memorymanager.NodeCapacity{ID: n.ID, Total: n.Memory, Distances: n.Distances}
		for _, pool := range n.Hugepages {
			capacity.Pools = append(capacity.Pools, memorymanager.Pool{PageSize: pool.PageSize, Count: pool.Count})
		}
		nodes = append(nodes, capacity)
		at[n.ID] = i
	}
	var memory uint64
	for _, r := range reserved {
		i, ok := at[r.Node]
		if !ok {
			return nil, fmt.Errorf("reserved memory of node %d, which is not there", r.Node)
		}
		for name, bytes := range r.Limits {
			amounts := slices.DeleteFunc(nodes[i].Reserved, func(a memorymanager.Amount) bool { return string(a.Type) == name })
			nodes[i].Reserved = append(amounts, memorymanager.Amount{Type: memorymanager.MemoryType(name), Bytes: bytes})
			if name == "memory" {
				memory += bytes
			}
		}
	}
	if memory == 0 {
		return nil, errors.New("no memory is reserved")
	}
	return nodes, nil
}

func (r *replayer) step(s *step) (got result) {
	switch s.Op {
	case "admit":
		return r.admit(s)
	case "start":
		started := slices.IndexFunc(r.specs[s.Pod], func(c podContainer) bool { return c.Name == s.Container })
		for i, c := range r.specs[s.Pod] {
			if c.Init && !c.Restartable && (i < started || !r.specs[s.Pod][started].Init) {
				r.manager.Release(s.Pod, c.Name)
			}
		}
	case "remove":
		r.manager.Release(s.Pod, s.Container)
	case "remove_pod":
		r.manager.ReleasePod(s.Pod)
	case "restart":
		if s.Machine != nil {
			r.machine = *s.Machine
		}
		if s.Reserved != nil {
			r.reserve = s.Reserved
		}
		if s.FeatureGates != nil {
			r.gates = s.FeatureGates
		}
		r.policy = cmp.Or(s.MemoryManagerPolicy, r.policy)
		if s.RemoveStateFile {
			r.file = nil
		}
		if s.StateFileOverride != nil {
			r.file = []byte(*s.StateFileOverride)
		}
		ok := r.start() == nil
		got.OK = &ok
	}
	return got
}

func (r *replayer) admit(s *step) (got result) {
	inOrder := slices.Clone(s.Containers)
	slices.SortStableFunc(inOrder, func(a, b podContainer) int { return rank(a) - rank(b) })
	r.specs[s.Pod] = inOrder
	admitted := true
	answers := map[string]containerResult{}
	var containers []memorymanager.Container
	for _, c := range inOrder {
		request, err := c.request()
		if s.PodResources != nil && !c.qualifies() {
			request = nil
		}
		containers = append(containers, memorymanager.Container{
			Pod: s.Pod, Name: c.Name, Kind: c.kind(), Request: request, CPUs: r.machine.nodesOf(c.CPUs), Devices: c.devices(),
		})
		admitted = admitted && err == nil
	}
	switch {
	case s.QOS != "Guaranteed" || s.PodResources != nil && !r.gates["PodLevelResourceManagers"]:
		admitted = r.align(s.Pod, containers, answers)
	case !admitted:
		answers[containers[0].Name] = containerResult{Affinity: r.noPreference()}
	case s.PodResources != nil && r.s.TopologyScope == "pod" && r.s.TopologyPolicy != "none":
		admitted = r.admitWhole(s, containers, answers)
	default:
		admitted = r.admitAll(s.Pod, containers, answers)
	}
	before := r.manager.Generation()
	leftover, leftoverNodes := entries(r.manager.State()), r.nodes()
	if !admitted {
		r.manager.ReleasePod(s.Pod)
		if r.manager.Generation() != before {
			got.LeftoverEntries, got.LeftoverMachineState = leftover, leftoverNodes
		}
	}
	got.Admitted = &admitted
	for _, c := range s.Containers {
		answer := answers[c.Name]
		answer.Name = c.Name
		blocks := r.manager.Blocks(s.Pod, c.Name)
		answer.Blocks = blocksOf(blocks)
		if admitted && len(blocks) > 0 {
			answer.NUMANodes = blocks[0].Nodes.IDs()
		}
		got.Containers = append(got.Containers, answer)
	}
	return got
}

func (r *replayer) admitAll(pod string, containers []memorymanager.Container, answers map[string]containerResult) bool {
	if r.s.TopologyScope == "pod" {
		if _, err := r.manager.AdmitPod(pod, containers); err != nil {
			return false
		}
	}
	for _, c := range containers {
		if len(c.Request) == 0 { // it shares its pod's resources
			if !r.align(pod, []memorymanager.Container{c}, answers) {
				return false
			}
			continue
		}
		placement, err := r.manager.Admit(c)
		var rejected *memorymanager.Rejection
		if errors.As(err, &rejected) {
			if rejected.Affinity != nil {
				answers[c.Name] = containerResult{Affinity: r.affinity(*rejected.Affinity)}
			}
			return false
		}
		answers[c.Name] = containerResult{Affinity: r.affinity(placement.Affinity)}
	}
	return true
}

// align admits containers without memory of their own.
func (r *replayer) align(pod string, containers []memorymanager.Container, answers map[string]containerResult) bool {
	if r.s.TopologyScope == "pod" {
		hint, err := r.manager.AlignPod(pod, containers)
		for _, c := range containers {
			if err == nil {
				answers[c.Name] = containerResult{Affinity: r.affinity(hint)}
			}
		}
		return err == nil
	}
	for _, c := range containers {
		hint, err := r.manager.Align(c)
		if err != nil {
			return false
		}
		answers[c.Name] = containerResult{Affinity: r.affinity(hint)}
	}
	return true
}

// admitWhole admits a pod that has an allocation of its own.
func (r *replayer) admitWhole(s *step, containers []memorymanager.Container, answers map[string]containerResult) bool {
	budget := podContainer{Memory: &s.PodResources.Memory, Hugepages: s.PodResources.Hugepages}
	request, _ := budget.request()
	placement, err := r.manager.AllocatePod(memorymanager.Pod{Whole: memorymanager.Container{Pod: s.Pod, Request: request}, Containers: containers})
	hint := &placement.Affinity
	var rejected *memorymanager.Rejection
	if errors.As(err, &rejected) {
		hint = rejected.Affinity
	}
	for _, c := range containers {
		if hint != nil {
			answers[c.Name] = containerResult{Affinity: r.affinity(*hint)}
		}
	}
	return err == nil
}

func (r *replayer) affinity(hint topologymanager.Hint) *affinity {
	if r.s.TopologyPolicy == "none" {
		return nil
	}
	return &affinity{Nodes: hint.Nodes.IDs(), Preferred: hint.Preferred}
}

func (r *replayer) noPreference() *affinity {
	policy := topologymanager.Policy(r.s.TopologyPolicy)
	all := r.manager.Nodes()
	var hint topologymanager.Hint
	for _, n := range all {
		hint.Nodes |= 1 << n.ID
	}
	hint, _ = policy.Merge(topologymanager.Providers{All: hint.Nodes})
	return r.affinity(hint)
}

// nodesOf are the nodes of exclusive CPUs.
func (m machine) nodesOf(cpus []int) (nodes nodeset.Set) {
	for _, n := range m.Nodes {
		for _, cpu := range n.CPUs {
			if slices.Contains(cpus, cpu) {
				nodes |= nodeset.Of(n.ID)
			}
		}
	}
	return nodes
}

// devices are the nodes of the container's devices, one entry for each resource. As recorded, a resource has a single hint.
func (c podContainer) devices() (devices []topologymanager.Device) {
	for i, nodes := range c.Devices {
		if nodes != nil {
			devices = append(devices, topologymanager.Device{Resource: fmt.Sprint(i), Nodes: nodeset.Of(nodes...)})
		}
	}
	return devices
}

func rank(c podContainer) int {
	if c.Init {
		return 0
	}
	return 1
}

func (c podContainer) kind() memoryqos.Kind {
	switch {
	case c.Init && c.Restartable:
		return memoryqos.Sidecar
	case c.Init:
		return memoryqos.Init
	}
	return memoryqos.App
}

// qualifies reports whether a container of a pod with pod-level resources has a part of its own.
func (c podContainer) qualifies() bool {
	return c.CPU > 0 && c.CPU == c.CPULimit && c.Memory != nil && *c.Memory > 0 && *c.Memory == c.MemoryLimit
}

// request refuses quantities that a kubelet can not represent: an API server would have rewritten them.
func (c podContainer) request() (request memorymanager.Request, err error) {
	if c.MemoryQuantity != "" {
		quantity := resource.MustParse(c.MemoryQuantity)
		bytes, ok := quantity.AsInt64()
		if !ok {
			err = fmt.Errorf("quantity %s is not a whole number of bytes", c.MemoryQuantity)
		}
		request = append(request, memorymanager.Amount{Type: memorymanager.Memory, Bytes: uint64(bytes)})
	}
	if c.Memory != nil {
		request = append(request, memorymanager.Amount{Type: memorymanager.Memory, Bytes: *c.Memory})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Hugepages)) {
		request = append(request, memorymanager.Amount{Type: memorymanager.MemoryType(name), Bytes: c.Hugepages[name]})
	}
	slices.SortFunc(request, func(a, b memorymanager.Amount) int { return cmp.Compare(a.Type, b.Type) })
	return request, err
}

func (r *replayer) nodes() map[int]node {
	if r.manager == nil {
		return nil
	}
	nodes := map[int]node{}
	for _, n := range r.manager.Nodes() {
		tables := map[string]table{}
		for _, t := range n.Memory {
			tables[string(t.Type)] = table(t.Table)
		}
		nodes[n.ID] = node{NumberOfAssignments: n.Assignments, Cells: n.Cells.IDs(), MemoryMap: tables}
	}
	return nodes
}

func entries(s memorymanager.State) map[string]map[string][]block {
	pods := map[string]map[string][]block{}
	for _, e := range s.Entries {
		if pods[e.Pod] == nil {
			pods[e.Pod] = map[string][]block{}
		}
		pods[e.Pod][e.Container] = blocksOf(e.Blocks)
	}
	return pods
}

func podEntries(s memorymanager.State) map[string][]block {
	pods := map[string][]block{}
	for _, e := range s.Pods {
		pods[e.Pod] = blocksOf(e.Blocks)
	}
	return pods
}

func blocksOf(blocks []memorymanager.Block) (list []block) {
	for _, b := range blocks {
		list = append(list, block{Type: string(b.Type), Size: b.Size, NUMAAffinity: b.Nodes.IDs()})
	}
	return list
}

// compareText wants the kubelet's text to the byte. Where a container has several blocks, which a kubelet writes in any
// order, it wants the text for the same state with the blocks sorted by type.
func compareText(want, got string) string {
	file, err := checkpoint.Decode([]byte(want))
	if err != nil {
		return fmt.Sprintf("read the kubelet's file: %v", err)
	}
	several := slices.ContainsFunc(file.State.Entries, func(e memorymanager.Entry) bool { return len(e.Blocks) > 1 })
	if several || file.Format != checkpoint.V1 { // ours is the oldest layout that holds the state; other tests compare the layouts
		want = string(checkpoint.Encode(file.Policy, file.State))
	}
	if want != got {
		return fmt.Sprintf("want the file\n%s\ngot\n%s", want, got)
	}
	return ""
}

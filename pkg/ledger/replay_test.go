package ledger_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// replayer is a node on which a scenario happens: what the kubelet and the runtime do and say is an event of the ledger's. It does nothing
// that the ledger, or its driver, has to do.
type replayer struct {
	s       *scenario
	machine recordedMachine
	reserve []reservation
	policy  string
	gates   map[string]bool

	ledger *ledger.Ledger // nil where it does not start
	now    int64
	file   []byte // the state file's text
	pods   map[string]*runningPod
	runs   int

	// inTurn has each container start before the next one is created, and an init container end, as a runtime does.
	inTurn bool
	check  func(step int, got *result) // after each step; nil checks nothing
}

// runningPod is a pod that the runtime has.
type runningPod struct {
	ledger.Pod
	known      pods.Answer
	devices    map[string][]topologymanager.Device
	cpus       map[string]string
	containers []*ledger.Container // in the order in which the kubelet starts them
	init       map[string]bool     // those that end before the next one starts
}

// replay answers every step of a scenario; the start is step -1.
func (s *scenario) replay() (answers []difference) {
	return s.replayer().replay()
}

func (s *scenario) replayer() *replayer {
	return &replayer{s: s, machine: s.Machine, reserve: s.Reserved, policy: s.MemoryManagerPolicy, gates: s.FeatureGates, pods: map[string]*runningPod{}}
}

func (r *replayer) replay() (answers []difference) {
	s := r.s
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
		if state, static := r.ledger.Allocations(); static {
			got.Entries, got.PodEntries, got.MachineState = entries(state), podEntries(state), r.nodes()
		}
		got.StateFile = string(r.file)
		answers = append(answers, difference{ID: s.ID, Step: i, Result: &got})
		if r.check != nil {
			r.check(i, &got)
		}
	}
	return answers
}

// event has the ledger decide about an event, and writes the state file as the effects say.
func (r *replayer) event(e ledger.Event) ledger.Effects {
	r.now++
	effects := r.ledger.Step(time.Unix(r.now, 0), e)
	if effects.Allocations != nil {
		r.save()
	}
	return effects
}

func (r *replayer) save() {
	state, static := r.ledger.Allocations()
	policy := checkpoint.PolicyStatic
	if !static {
		policy = "None"
	}
	r.file = checkpoint.Encode(policy, state)
}

// start starts a daemon: it reads the state file, and hears from the runtime what is there.
func (r *replayer) start() error {
	resolved, err := r.configuration()
	if err != nil {
		return err
	}
	if r.ledger, err = ledger.New(time.Unix(r.now, 0), ledger.Options{Config: resolved}); err != nil {
		return err
	}
	if file, err := checkpoint.Decode(r.file); err == nil && file.Policy == checkpoint.PolicyStatic {
		_, _ = r.ledger.Restore(file.State) // with an error it has no allocations, and adopts what runs
	}
	connection := ledger.Synchronize{PodInfos: map[string]pods.Answer{}, Found: ledger.Found{Files: map[string]ledger.Files{}}}
	for _, p := range r.pods {
		connection.Pods = append(connection.Pods, p.Pod)
		connection.PodInfos[p.UID] = p.known
		for _, c := range p.containers {
			if c.State.Alive() {
				connection.Containers = append(connection.Containers, *c)
			}
		}
	}
	r.event(ledger.Connected{Runtime: ledger.Runtime{Name: "containerd"}})
	r.event(connection)
	r.save()
	return nil
}

// configuration is the kubelet's, with our names.
func (r *replayer) configuration() (config.Resolved, error) {
	c := config.Default()
	c.MemoryManagerPolicy = config.MemoryManagerPolicy(r.policy)
	c.TopologyManagerPolicy = topologymanager.Policy(r.s.TopologyPolicy)
	c.TopologyManagerScope = topologymanager.Scope(r.s.TopologyScope)
	c.TopologyManagerPolicyOptions = r.s.TopologyOptions
	c.PodLevelResourceManagers = r.gates["PodLevelResourceManagers"]
	c.OnConflict, c.OnUnsatisfiable = config.FollowKubelet, config.Reject
	c.NodesWithoutCPUs = config.IncludeNodes
	var reserved uint64
	for _, from := range r.reserve {
		limits := map[string]config.ReservedBytes{}
		for name, bytes := range from.Limits {
			limits[name] = config.ReservedBytes(bytes)
		}
		reserved += from.Limits["memory"]
		c.ReservedMemory = append(c.ReservedMemory, config.Reservation{NUMANode: from.Node, Limits: limits})
	}
	c.KubeReserved, c.EvictionHard = map[string]string{"memory": fmt.Sprint(reserved)}, map[string]string{"memory.available": "0%"}
	m := machine.Machine{PageSize: 4096}
	for _, n := range r.machine.Nodes {
		node := machine.Node{ID: n.ID, Memory: n.Memory, Distances: n.Distances, CPUs: cpuset.New(n.CPUs...)}
		for _, pool := range n.Hugepages {
			node.Hugepages = append(node.Hugepages, machine.Pool(pool))
		}
		m.Nodes, m.MemTotal = append(m.Nodes, node), m.MemTotal+n.Memory
	}
	resolved, err := c.Resolve(m)
	if err != nil {
		return resolved, err
	}
	// A kubelet's node map has nodes without memory, which the configuration leaves out.
	for _, n := range m.Nodes {
		if n.Memory == 0 {
			capacity := memorymanager.NodeCapacity{ID: n.ID}
			for _, pool := range n.Hugepages {
				capacity.Pools = append(capacity.Pools, memorymanager.Pool(pool))
			}
			resolved.Nodes = append(resolved.Nodes, capacity)
		}
	}
	slices.SortFunc(resolved.Nodes, func(a, b memorymanager.NodeCapacity) int { return a.ID - b.ID })
	for i := range resolved.Nodes {
		resolved.Nodes[i].Distances = m.Nodes[i].Distances
	}
	return resolved, err
}

func (r *replayer) step(s *step) (got result) {
	switch s.Op {
	case "admit":
		return r.admit(s)
	case "start":
		r.startContainer(r.pods[s.Pod], s.Container)
	case "remove": // no event does that, and no kubelet calls it while the pod lives
		r.end(r.pods[s.Pod].container(s.Container))
		r.ledger.Release(s.Pod, s.Container)
		r.save()
	case "remove_pod":
		r.endPod(s.Pod)
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
		if s.RemoveStateFile { // of a node that was drained
			r.file = nil
			for _, p := range r.pods {
				for _, c := range p.containers {
					c.State = ledger.Stopped
				}
			}
		}
		if s.StateFileOverride != nil {
			r.file = []byte(*s.StateFileOverride)
			r.takePodsOf(r.file)
		}
		ok := r.start() == nil
		got.OK = &ok
	}
	return got
}

// takePodsOf has the pods of a file that somebody wrote be there, of which nothing else is known.
func (r *replayer) takePodsOf(data []byte) {
	file, _ := checkpoint.Decode(data)
	for _, e := range file.State.Entries {
		if r.pods[e.Pod] == nil {
			r.pods[e.Pod] = r.pod(&step{Pod: e.Pod, QOS: "Guaranteed"}, nil)
			r.pods[e.Pod].known = pods.Answer{}
		}
	}
}

// startContainer starts a container as the runtime does: init containers before it have ended.
func (r *replayer) startContainer(p *runningPod, name string) {
	if p.container(name) == nil {
		return
	}
	for _, c := range p.containers {
		if c.State == ledger.Created {
			c.State = ledger.Running
			r.event(ledger.StartContainer{Pod: p.Pod, Container: *c})
		}
		if c.Name == name {
			return
		}
		if p.init[c.Name] {
			r.end(c)
		}
	}
}

func (r *replayer) end(c *ledger.Container) {
	if c != nil && c.State.Alive() {
		c.State = ledger.Stopped
		r.event(ledger.EndContainer{ID: c.ID})
	}
}

func (r *replayer) endPod(uid string) {
	if p := r.pods[uid]; p != nil {
		delete(r.pods, uid)
		r.event(ledger.EndPod{Pod: p.Pod, Gone: true})
	}
}

func (p *runningPod) container(name string) *ledger.Container {
	if p == nil {
		return nil
	}
	i := slices.IndexFunc(p.containers, func(c *ledger.Container) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return p.containers[i]
}

// pod is what the kubelet and the pod API say of a pod that is admitted.
func (r *replayer) pod(s *step, inOrder []podContainer) *runningPod {
	r.runs++
	class := map[string]string{"Burstable": "burstable/", "BestEffort": "besteffort/"}[s.QOS]
	p := &runningPod{
		Pod:     ledger.Pod{ID: fmt.Sprint("sandbox-", r.runs), UID: s.Pod, Namespace: "default", Name: s.Pod, CgroupParent: "/kubepods/" + class + "pod" + s.Pod},
		devices: map[string][]topologymanager.Device{}, cpus: map[string]string{}, init: map[string]bool{},
	}
	info := &pods.Pod{Ref: p.Ref(), Class: memoryqos.QOSClass(s.QOS)}
	if s.PodResources != nil {
		bytes := s.PodResources.Memory
		info.PodRequest, info.PodLimit = &bytes, &bytes
		info.PodHugepages = podContainer{Hugepages: s.PodResources.Hugepages}.hugepages()
		p.MemoryLimit = bytes
	}
	for _, c := range inOrder {
		spec := pods.Container{Name: c.Name, Kind: c.kind(), Limit: c.MemoryLimit, Guaranteed: c.qualifies(), Hugepages: c.hugepages()}
		if c.Memory != nil {
			spec.Request = *c.Memory
		}
		info.Containers = append(info.Containers, spec)
		p.devices[c.Name], p.cpus[c.Name] = c.devices(), cpuset.New(c.CPUs...).String()
		p.init[c.Name] = spec.Kind == memoryqos.Init
	}
	p.known = pods.Answer{Source: memoryqos.SourceKubelet, Pod: info}
	return p
}

// created is a container as the kubelet asks the runtime for it.
func (r *replayer) created(p *runningPod, c podContainer) *ledger.Container {
	r.runs++
	id := fmt.Sprint(p.Name, "-", c.Name, "-", r.runs)
	created := &ledger.Container{ID: id, PodID: p.ID, Name: c.Name, State: ledger.Created, CgroupsPath: p.CgroupParent + "/" + id, Devices: p.devices[c.Name]}
	limit := int64(c.MemoryLimit)
	if limit == 0 {
		limit = int64(p.MemoryLimit)
	}
	created.Resources.MemoryLimit = &limit
	if len(c.CPUs) > 0 {
		shares := 1024 * uint64(len(c.CPUs))
		created.Resources.CPUs, created.Resources.CPUShares = p.cpus[c.Name], &shares
	}
	for name, bytes := range c.Hugepages {
		size, _ := quantity.Parse(strings.TrimPrefix(name, "hugepages-"))
		text := fmt.Sprint(size>>10, "KB")
		if size >= 1<<30 {
			text = fmt.Sprint(size>>30, "GB")
		} else if size >= 1<<20 {
			text = fmt.Sprint(size>>20, "MB")
		}
		created.Resources.Hugepages = append(created.Resources.Hugepages, ledger.HugepageLimit{PageSize: text, Limit: bytes})
	}
	slices.SortFunc(created.Resources.Hugepages, func(a, b ledger.HugepageLimit) int { return cmp.Compare(a.PageSize, b.PageSize) })
	return created
}

// admit has a pod begin as the kubelet places it: all of its containers are decided before one starts. The kubelet does not ask the runtime
// for a pod that it rejects itself.
func (r *replayer) admit(s *step) (got result) {
	inOrder := slices.Clone(s.Containers)
	slices.SortStableFunc(inOrder, func(a, b podContainer) int { return rank(a) - rank(b) })
	for i := range inOrder {
		inOrder[i] = inOrder[i].inBytes()
	}
	admitted := !s.rejectedByKubelet(inOrder)
	answers := map[string]containerResult{}
	p := r.pod(s, inOrder)
	if admitted {
		p.containers, admitted = r.create(p, inOrder, answers)
	}
	state, _ := r.ledger.Allocations()
	leftover, leftoverNodes := entries(state), r.nodes()
	r.pods[s.Pod] = p
	if !admitted {
		r.endPod(s.Pod)
		if after, _ := r.ledger.Allocations(); len(entries(after)[s.Pod]) != len(leftover[s.Pod]) {
			got.LeftoverEntries, got.LeftoverMachineState = leftover, leftoverNodes
		}
	}
	got.Admitted = &admitted
	state, _ = r.ledger.Allocations()
	for _, c := range s.Containers {
		answer, asked := answers[c.Name]
		answer.NotAsked = answer.NotAsked || !asked
		answer.Name, answer.Blocks = c.Name, entries(state)[s.Pod][c.Name]
		if !admitted {
			answer.NUMANodes = nil
		}
		got.Containers = append(got.Containers, answer)
	}
	return got
}

// create asks for the containers of a pod, one after the other, until one is rejected.
func (r *replayer) create(p *runningPod, inOrder []podContainer, answers map[string]containerResult) (created []*ledger.Container, admitted bool) {
	r.event(ledger.RunPod{Pod: p.Pod})
	for _, asked := range inOrder {
		c := r.created(p, asked)
		devices, cpus := maps.Clone(p.devices), maps.Clone(p.cpus)
		delete(devices, c.Name)
		delete(cpus, c.Name)
		effects := r.event(ledger.CreateContainer{Pod: p.Pod, Container: *c, Facts: ledger.Facts{PodInfo: p.known, Devices: devices, CPUs: cpus}})
		var rejected *memorymanager.AllocationError
		if errors.As(effects.Err, &rejected) {
			answers[c.Name] = containerResult{}
			if rejected.Affinity != nil {
				answers[c.Name] = containerResult{Affinity: r.affinity(*rejected.Affinity)}
			}
		}
		if effects.Err != nil {
			return created, false
		}
		nodes, _ := nodeset.Parse(effects.Answer.CpusetMems)
		c.Resources.Mems = "" // the runtime's, and ours is a file's
		answer := containerResult{NUMANodes: nodes.IDs(), NotAsked: true}
		if effects.Decision != nil && effects.Decision.Affinity != nil {
			answer.Affinity, answer.NotAsked = r.affinity(*effects.Decision.Affinity), false
		}
		answers[c.Name] = answer
		created = append(created, c)
		if r.inTurn {
			c.State = ledger.Running
			r.event(ledger.StartContainer{Pod: p.Pod, Container: *c})
			if p.init[c.Name] {
				r.end(c)
			}
		}
	}
	return created, true
}

func (r *replayer) affinity(hint topologymanager.Hint) *affinity {
	if r.s.TopologyPolicy == "none" {
		return nil
	}
	return &affinity{Nodes: hint.Nodes.IDs(), Preferred: hint.Preferred}
}

// rejectedByKubelet reports whether a pod is rejected that has no memory to be placed, or asks for what is no whole number of bytes: an
// API server would have rewritten that.
func (s *step) rejectedByKubelet(containers []podContainer) bool {
	fraction := slices.ContainsFunc(containers, func(c podContainer) bool { return c.MemoryQuantity != "" && c.Memory == nil })
	return (s.QOS != "Guaranteed" || fraction) && !*s.Result.Admitted
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

// inBytes is the container with its request in bytes, where a kubelet can represent it.
func (c podContainer) inBytes() podContainer {
	if c.MemoryQuantity != "" {
		quantity := resource.MustParse(c.MemoryQuantity)
		if bytes, ok := quantity.AsInt64(); ok {
			memory := uint64(bytes)
			c.Memory, c.MemoryLimit = &memory, memory
		}
	}
	return c
}

// hugepages are the requests of huge pages.
func (c podContainer) hugepages() (request memorymanager.Request) {
	for _, name := range slices.Sorted(maps.Keys(c.Hugepages)) {
		request = append(request, memorymanager.Amount{Type: memorymanager.MemoryType(name), Bytes: c.Hugepages[name]})
	}
	return request
}

func (r *replayer) nodes() map[int]node {
	state, static := r.ledger.Allocations()
	if !static {
		return nil
	}
	nodes := map[int]node{}
	for _, n := range state.Nodes {
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
	want, got = withoutAmounts(want), withoutAmounts(got)
	several := slices.ContainsFunc(file.State.Entries, func(e memorymanager.Entry) bool { return len(e.Blocks) > 1 })
	if several || file.Format != checkpoint.V1 { // ours is the oldest layout that holds the state; other tests compare the layouts
		want = string(checkpoint.Encode(file.Policy, file.State))
	}
	if want != got {
		return fmt.Sprintf("want the file\n%s\ngot\n%s", want, got)
	}
	return ""
}

// withoutAmounts leaves out the keys that a kubelet skips: where containers are allocated beyond what a node has, the file has their parts.
func withoutAmounts(text string) string {
	if !strings.Contains(text, `"perNode"`) {
		return text
	}
	file, err := checkpoint.Decode([]byte(text))
	if err != nil {
		return text
	}
	for _, e := range file.State.Entries {
		for i := range e.Blocks {
			e.Blocks[i].PerNode = nil
		}
	}
	return string(checkpoint.Encode(file.Policy, file.State))
}

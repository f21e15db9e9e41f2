package memorymanager_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

var (
	seed  = flag.Uint64("seed", 1, "seed of the random cases; 0 takes the time")
	cases = flag.Int64("cases", 50_000, "number of random cases; a fifth of them with -short")
)

// number is how many random cases are wanted.
func number() int64 {
	if testing.Short() {
		return *cases / 5
	}
	return *cases
}

// TestDecisionsAreThoseOfABruteForce compares every decision on random machines with following the rules literally.
func TestDecisionsAreThoseOfABruteForce(t *testing.T) {
	start := *seed
	if start == 0 {
		start = uint64(time.Now().UnixNano())
	}
	fmt.Printf("random cases: seed %d\n", start)
	want := number()
	var done, admitted, bounded atomic.Int64
	t.Run("shards", func(t *testing.T) {
		for shard := range uint64(4) {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				for n := uint64(0); done.Load() < want && !t.Failed(); n++ {
					r := rand.New(rand.NewPCG(start+shard, n))
					g := newGame(t, r, 1+min(r.IntN(10), r.IntN(14)), 1+r.IntN(3), anyPolicy(r), 0)
					g.play()
					done.Add(g.decisions)
					admitted.Add(g.admitted)
					bounded.Add(int64(g.m.Bounded()))
				}
			})
		}
	})
	if bounded.Load() > 0 {
		t.Errorf("%d of the decisions ran into the search budget", bounded.Load())
	}
	fmt.Printf("random cases: %d decisions, %d admitted\n", done.Load(), admitted.Load())
}

// TestLargerMachines has more nodes than a kubelet takes; policy none where the cross product of several lists of hints is
// beyond a brute force.
func TestLargerMachines(t *testing.T) {
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 11))
		types, policy := 1, anyPolicy(r)
		if seed%2 == 0 {
			types, policy = 2+r.IntN(2), topologymanager.None
		}
		g := newGame(t, r, 11+r.IntN(2), types, policy, 0)
		g.play()
		if g.m.Bounded() > 0 {
			t.Errorf("seed %d: %d decisions ran into the search budget", seed, g.m.Bounded())
		}
	}
}

// TestBoundedSearchIsStillCorrect gives the search next to nothing: what fits is placed all the same, where it fits and
// within the group rules. Only the intersection of hints that best-effort may choose can lead to more nodes than a hint.
func TestBoundedSearchIsStillCorrect(t *testing.T) {
	var bounded uint64
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 13))
		n := 1 + r.IntN(20)
		g := newGame(t, r, n, 1+r.IntN(3), anyPolicy(r), 1+r.IntN(60))
		exact, err := memorymanager.New(g.nodes, memorymanager.Options{Policy: g.b.policy, PreferClosest: g.b.closest, Strategy: g.b.strategy, Weights: g.b.weights})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			c := memorymanager.Container{Pod: fmt.Sprint(i), Name: "c", Request: g.request()}
			best, refused := exact.Allocate(c)
			got, err := g.m.Allocate(c)
			switch {
			case refused == nil && err != nil:
				t.Fatalf("seed %d: %s should go to %s: %v\n%s", seed, c.Pod, best.Nodes, err, strings.Join(g.log, "\n"))
			case refused != nil && err == nil && !got.Bounded:
				t.Fatalf("seed %d: %s went to %s: %v", seed, c.Pod, got.Nodes, refused)
			case refused == nil && !got.Bounded && got.Nodes != best.Nodes,
				refused == nil && g.b.policy != topologymanager.BestEffort && got.Nodes.Len() < best.Nodes.Len():
				t.Fatalf("seed %d: %s went to %s, want %s", seed, c.Pod, got.Nodes, best.Nodes)
			}
			if problem := unbalanced(g.m.State()); problem != "" {
				t.Fatalf("seed %d: %s", seed, problem)
			}
			if refused != nil || got.Nodes != best.Nodes {
				break // the machines are no longer the same
			}
		}
		bounded += g.m.Bounded()
	}
	if bounded == 0 {
		t.Error("no search was bounded")
	}
}

// game is one random machine with a random sequence of pods.
type game struct {
	t                   *testing.T
	r                   *rand.Rand
	m                   *memorymanager.Manager
	b                   *brute
	scope               topologymanager.Scope
	log                 []string
	pods                []string
	names               map[string][]string
	nodes               []memorymanager.NodeCapacity
	equal               bool // each node is as close to itself
	decisions, admitted int64
}

var gameTypes = []memorymanager.MemoryType{memorymanager.Hugepages(1), memorymanager.Hugepages(2), memorymanager.Memory}

func anyPolicy(r *rand.Rand) topologymanager.Policy {
	return []topologymanager.Policy{
		topologymanager.None, topologymanager.BestEffort, topologymanager.BestEffort,
		topologymanager.Restricted, topologymanager.SingleNUMANode,
	}[r.IntN(5)]
}

// anyStrategy is none half of the time, and has weights of some types at times.
func anyStrategy(r *rand.Rand) (strategy topologymanager.Strategy, weights map[memorymanager.MemoryType]uint64) {
	strategies := append(topologymanager.Strategies(), topologymanager.NoStrategy)
	if r.IntN(2) == 0 {
		weights = map[memorymanager.MemoryType]uint64{}
		for _, name := range gameTypes[r.IntN(3):] {
			weights[name] = r.Uint64N(4)
		}
	}
	return strategies[r.IntN(4)], weights
}

// newGame has n nodes and some memory types.
func newGame(t *testing.T, r *rand.Rand, n, types int, policy topologymanager.Policy, budget int) *game {
	g := &game{t: t, r: r, names: map[string][]string{}}
	g.b = &brute{
		policy: policy, closest: r.IntN(2) == 0, podHint: map[string]bruteHint{}, types: gameTypes[3-types:],
	}
	g.b.strategy, g.b.weights = anyStrategy(r)
	g.b.alignTo = []topologymanager.AlignTo{topologymanager.AlignToCPUs, topologymanager.AlignToDevices, topologymanager.AlignToKubelet}[r.IntN(3)]
	g.scope = []topologymanager.Scope{topologymanager.ContainerScope, topologymanager.PodScope}[r.IntN(2)]
	nodes := g.machine(n)
	g.nodes = nodes
	var err error
	g.m, err = memorymanager.New(nodes, memorymanager.Options{Policy: g.b.policy, Scope: g.scope, PreferClosest: g.b.closest,
		Strategy: g.b.strategy, Weights: g.b.weights, AlignTo: g.b.alignTo})
	if err != nil {
		t.Fatal(err)
	}
	if budget > 0 {
		g.m.SetBudget(budget)
	}
	g.note("%s scope=%s closest=%v strategy=%s weights=%v alignTo=%s nodes=%+v", g.b.policy, g.scope, g.b.closest, g.b.strategy, g.b.weights, g.b.alignTo, nodes)
	return g
}

func (g *game) note(format string, args ...any) { g.log = append(g.log, fmt.Sprintf(format, args...)) }

func (g *game) fail(format string, args ...any) {
	g.t.Fatalf("%s\n%s", strings.Join(g.log, "\n"), fmt.Sprintf(format, args...))
}

// machine has equal nodes, nodes of a few kinds, or nodes of any size.
func (g *game) machine(n int) (nodes []memorymanager.NodeCapacity) {
	r, b := g.r, g.b
	gap, id, kinds := r.IntN(3), 0, []int{1, 2, n}[r.IntN(3)]
	if n > 12 {
		gap = 0 // ids end at 63
	}
	shapes := make([][3]uint64, kinds)
	for i := range shapes {
		shapes[i] = [3]uint64{uint64(r.IntN(7)), uint64(r.IntN(5)), uint64(1 + r.IntN(12))}
	}
	b.alloc, b.reserved = make([][]uint64, len(b.types)), make([][]uint64, len(b.types))
	for i := range n {
		id += 1 + gap*r.IntN(3)
		shape := shapes[r.IntN(kinds)]
		capacity := memorymanager.NodeCapacity{ID: id}
		for t, name := range b.types {
			amount := shape[3-len(b.types)+t]
			if name == memorymanager.Memory {
				reserved := uint64(r.IntN(2))
				capacity.Total += amount + reserved
				if reserved > 0 {
					capacity.Reserved = memorymanager.Request{{Type: name, Bytes: reserved}}
				}
			} else {
				size := uint64(3 - len(b.types) + t + 1)
				capacity.Pools = append(capacity.Pools, memorymanager.Pool{PageSize: size, Count: amount})
				amount *= size
				capacity.Total += amount
			}
			b.alloc[t], b.reserved[t] = append(b.alloc[t], amount), append(b.reserved[t], 0)
		}
		b.ids, b.count, b.cells = append(b.ids, id), append(b.count, 0), append(b.cells, 1<<i)
		nodes = append(nodes, capacity)
	}
	near := r.IntN(2) == 0
	g.equal = near
	for i := range nodes {
		row := make([]int, n)
		for j := range row {
			switch row[j] = 10 + r.IntN(4); {
			case near && i == j:
				row[j] = 10
			case near:
				row[j] = 12 + 8*((i^j)>>1&1)
			}
		}
		nodes[i].Distances = row
		b.distance = append(b.distance, row)
	}
	return nodes
}

func (g *game) play() {
	for range 6 + g.r.IntN(12) {
		switch {
		case len(g.pods) == 0 || g.r.IntN(3) > 0:
			g.pod()
		case g.r.IntN(3) == 0:
			pod := g.pods[g.r.IntN(len(g.pods))]
			name := g.names[pod][g.r.IntN(len(g.names[pod]))]
			g.note("release %s %s", pod, name)
			if got, want := g.m.Release(pod, name), g.b.release(pod, name); got != want {
				g.fail("released %v, want %v", got, want)
			}
		default:
			g.end(g.pods[g.r.IntN(len(g.pods))])
		}
		if g.b.drifted || g.b.leftOver() {
			if problem := unbalanced(g.m.State()); problem != "" {
				g.fail("%s", problem)
			}
			return // the kubelet's sums are wrong from here on
		}
		g.compare()
	}
	if g.r.IntN(4) == 0 && g.b.alignTo != topologymanager.AlignToKubelet { // whose groups may overlap
		g.restore()
	}
}

// restore takes the state over into another manager: as it is, without what the nodes had allocated, and without what the
// blocks know of that. All are exact, whatever came and went before.
func (g *game) restore() {
	var without [3]memorymanager.State
	for i := range without {
		without[i] = g.m.State()
	}
	text, err := json.Marshal(without[0])
	var back memorymanager.State
	if err == nil {
		err = json.Unmarshal(text, &back)
	}
	if diff := cmp.Diff(without[0], back, cmpopts.EquateEmpty()); err != nil || diff != "" {
		g.fail("%v: read back from JSON: -was +is\n%s", err, diff)
	}
	without[1].Nodes = nil
	for i := range without[2].Entries {
		for j := range without[2].Entries[i].Blocks {
			without[2].Entries[i].Blocks[j].PerNode = nil
		}
	}
	for i, s := range without {
		m, err := memorymanager.New(g.nodes, memorymanager.Options{})
		if err != nil {
			g.fail("%v", err)
		}
		report, err := m.Restore(s, 0)
		if err != nil || len(report.Problems)+len(report.Drifted)+len(report.Lost) > 0 {
			g.fail("restore %d: %+v, %v", i, report, err)
		}
		if was, is := g.m.State(), m.State(); !reflect.DeepEqual(was, is) {
			g.fail("restore %d: -was +is\n%s", i, cmp.Diff(was, is))
		}
	}
}

func (g *game) end(pod string) {
	g.note("release pod %s", pod)
	g.m.ReleasePod(pod)
	g.b.releasePod(pod)
	for i, p := range g.pods {
		if p == pod {
			g.pods = append(g.pods[:i], g.pods[i+1:]...)
			return
		}
	}
}

// pod admits one to four containers, init containers first.
func (g *game) pod() {
	pod := fmt.Sprintf("p%d", len(g.log))
	g.pods = append(g.pods, pod)
	var cpus nodeset.Set
	if g.r.IntN(4) == 0 {
		for _, id := range g.b.ids {
			if g.r.IntN(3) == 0 {
				cpus |= nodeset.Of(id)
			}
		}
	}
	devices := g.devices()
	var containers []memorymanager.Container
	early := min(g.r.IntN(3), g.r.IntN(4))
	for i := range early + 1 + g.r.IntN(2) {
		c := memorymanager.Container{Pod: pod, Name: fmt.Sprint("c", i), CPUs: cpus, Devices: devices, Request: g.request()}
		if i < early {
			c.Kind = []memoryqos.Kind{memoryqos.Init, memoryqos.Init, memoryqos.Sidecar}[g.r.IntN(3)]
		}
		containers = append(containers, c)
		g.names[pod] = append(g.names[pod], c.Name)
	}
	g.note("pod %+v", containers)
	if g.scope == topologymanager.PodScope {
		g.decisions++
		got, err := g.m.AlignPod(pod, containers)
		want, ok := g.b.admitPod(pod, containers)
		if (err == nil) != ok || ok && (g.b.mask(got.Nodes) != want.mask || got.Preferred != want.preferred) {
			g.fail("pod affinity %s %v (%v), want %s %v", got.Nodes, got.Preferred, err, g.b.set(want.mask), want.preferred)
		}
		if !ok {
			g.end(pod)
			return
		}
	}
	for _, c := range containers {
		g.decisions++
		got, err := g.m.Allocate(c)
		hint, mask := g.b.admit(c)
		if (err == nil) != (mask != 0) {
			g.fail("%s: got %s (%v), want %s", c.Name, got.Nodes, err, g.b.set(mask))
		}
		if mask == 0 {
			g.compare()
			g.end(pod)
			return
		}
		if got.Affinity.Nodes != g.b.set(hint.mask) || got.Affinity.Preferred != hint.preferred || got.Nodes != g.b.set(mask) {
			g.fail("%s: got %s %v and then %s, want %s %v and then %s", c.Name, got.Affinity.Nodes, got.Affinity.Preferred,
				got.Nodes, g.b.set(hint.mask), hint.preferred, g.b.set(mask))
		}
		g.admitted++
	}
}

// devices are none, or up to three resources on some nodes, or near any of them.
func (g *game) devices() (devices []topologymanager.Device) {
	if g.r.IntN(3) > 0 {
		return nil
	}
	for i := range 1 + g.r.IntN(3) {
		var nodes nodeset.Set
		for nodes.Empty() {
			for _, id := range g.b.ids {
				if g.r.IntN(len(g.b.ids)) == 0 {
					nodes |= nodeset.Of(id)
				}
			}
		}
		devices = append(devices, topologymanager.Device{
			Resource: fmt.Sprint("r", i), Nodes: nodes, Any: nodes.Len() > 1 && (g.equal || !g.b.closest) && g.r.IntN(2) == 0,
		})
	}
	return devices
}

func (g *game) request() (request memorymanager.Request) {
	share := []uint64{1, 1, 2, 4}[g.r.IntN(4)]
	for t, name := range g.b.types {
		if name != memorymanager.Memory && g.r.IntN(3) == 0 {
			continue
		}
		var most uint64
		for _, amount := range g.b.alloc[t] {
			most = max(most, amount)
		}
		request = append(request, memorymanager.Amount{Type: name, Bytes: g.r.Uint64N(most*share + 2)})
	}
	return request
}

// compare looks at the node map after every change, and at the allocations.
func (g *game) compare() {
	s := g.m.State()
	for i, n := range s.Nodes {
		if n.Assignments != g.b.count[i] || g.b.mask(n.Cells) != g.b.cells[i] {
			g.fail("node %d: %d in group %s, want %d in %s", n.ID, n.Assignments, n.Cells, g.b.count[i], g.b.set(g.b.cells[i]))
		}
		for t, table := range n.Memory {
			if table.Reserved != g.b.reserved[t][i] || table.Free != g.b.free(t, i) {
				g.fail("node %d: %+v, want reserved %d free %d", n.ID, table, g.b.reserved[t][i], g.b.free(t, i))
			}
		}
	}
	if len(s.Entries) != len(g.b.containers) {
		g.fail("%d entries, want %d", len(s.Entries), len(g.b.containers))
	}
	for _, c := range g.b.containers {
		blocks := g.m.Blocks(c.pod, c.name)
		for t, name := range g.b.types {
			if !c.asked[t] {
				continue
			}
			if b := blocks[0]; b.Type != name || b.Size != c.size[t] || b.Nodes != g.b.set(c.mask) {
				g.fail("%s %s: block %+v, want %s %d on %s", c.pod, c.name, b, name, c.size[t], g.b.set(c.mask))
			}
			blocks = blocks[1:]
		}
	}
}

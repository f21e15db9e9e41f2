package config

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/topologymanager"
)

// fixture reads a machine of testdata.
func fixture(t *testing.T, name string) machine.Machine {
	t.Helper()
	path := "../../testdata/machines/" + name + ".yaml"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	described, err := machine.Describe(path, data)
	if err != nil {
		t.Fatal(err)
	}
	return described.Machine
}

// resolve parses a text and applies it to a machine.
func resolve(t *testing.T, text string, m machine.Machine) (Resolved, error) {
	t.Helper()
	c, err := Files(nil).Parse("c.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c.Resolve(m)
}

// TestTaskPageReservations: the documentation's example, 4Gi + 1Gi + 100Mi = 3Gi + 2148Mi.
func TestTaskPageReservations(t *testing.T) {
	c, err := Files(os.ReadFile).Load("../../testdata/config/task-page.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m := fixture(t, "task-page")
	r, err := c.Resolve(m)
	if err != nil {
		t.Fatal(err)
	}
	pools := []memorymanager.Pool{{PageSize: 2 << 20}, {PageSize: 1 << 30}}
	want := Resolved{
		Machine: m,
		Static:  true,
		Nodes: []memorymanager.NodeCapacity{
			{ID: 0, Total: 134987354112, Pools: pools, Reserved: memorymanager.Request{{Type: "memory", Bytes: 3 << 30}}, Distances: []int{10, 21}},
			{ID: 1, Total: 135286722560, Pools: pools, Reserved: memorymanager.Request{{Type: "memory", Bytes: 2148 << 20}}, Distances: []int{21, 10}},
		},
		Manager:         memorymanager.Options{Policy: topologymanager.BestEffort, Scope: topologymanager.ContainerScope, FollowCPUs: true, FallBack: true, Strategy: topologymanager.NoStrategy, AlignTo: topologymanager.AlignToCPUs},
		OnUnsatisfiable: Unpinned,
		QoS: memoryqos.Settings{Factor: c.MemoryThrottlingFactor, Reservation: memoryqos.TieredReservation, GuaranteedHeadroom: 0.02,
			NodeAllocatable: 134987354112 + 135286722560 - 5<<30, PageSize: 4096},
		Reserved: c.ReservedMemory,
		Eviction: 100 << 20, StateTolerance: 64 << 20,
	}
	r.Config = Config{}
	if diff := cmp.Diff(want, r, sameConfig, cmp.Comparer(cpuset.CPUSet.Equals)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReservationsAreSpreadWithAWarning(t *testing.T) {
	r, err := resolve(t, "kubeReserved: {memory: 4Gi}\nsystemReserved: {memory: 1Gi}", fixture(t, "task-page"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "reservedMemory is not set: kubeReserved 4Gi + systemReserved 1Gi + evictionHard 100Mi = 5220Mi (5473566720 bytes) are spread over " +
		"the NUMA nodes in proportion to their memory: 0:memory=2669680Ki;1:memory=2675600Ki"
	if diff := cmp.Diff([]string{want}, r.Warnings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r.Nodes[0].Reserved[0].Bytes != 2669680<<10 || r.Nodes[1].Reserved[0].Bytes != 2675600<<10 {
		t.Errorf("reserved = %v, %v", r.Nodes[0].Reserved, r.Nodes[1].Reserved)
	}
}

// TestSpreadIsExactInPagesAndWithinRoom for random machines.
func TestSpreadIsExactInPagesAndWithinRoom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 5_000 {
		nodes := 1 + random.IntN(64)
		weights, room, all := make([]uint64, nodes), make([]uint64, nodes), uint64(0)
		for i := range weights {
			weights[i] = 1 + random.Uint64N(1<<40)
			room[i] = weights[i] - random.Uint64N(weights[i])*uint64(random.IntN(2))
			all += room[i]
		}
		sum := 1 + random.Uint64N(all)
		if random.IntN(4) == 0 {
			sum = all
		}
		shares, ok := proportional(sum, weights, room, 4096)
		total, odd := uint64(0), 0
		for i, share := range shares {
			total += share
			if share > room[i] {
				t.Fatalf("share %d of room %d", share, room[i])
			}
			if share%4096 != 0 && share != room[i] {
				odd++
			}
		}
		if !ok || total != sum || odd > 1 {
			t.Fatalf("%d bytes over %v with room %v: %v, %v, %d shares that are no whole pages", sum, weights, room, shares, ok, odd)
		}
		if _, ok := proportional(all+1, weights, room, 4096); ok {
			t.Fatalf("%d bytes fit room %v", all+1, room)
		}
	}
}

func TestSpreadLeavesRoomForHugePages(t *testing.T) {
	m := machine.Machine{PageSize: 4096, MemTotal: 4 << 30, Nodes: []machine.Node{
		{ID: 0, Memory: 2 << 30, Hugepages: []machine.Pool{{PageSize: 2 << 20, Count: 1000}}},
		{ID: 1, Memory: 2 << 30},
	}}
	r, err := resolve(t, "kubeReserved: {memory: 1Gi}", m)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Reserved.String(); got != "0:memory=48Mi;1:memory=1076Mi" {
		t.Errorf("reserved = %s, want what 1000 pages of 2Mi leave on node 0 and the rest on node 1", got)
	}
	m.Nodes[1].Hugepages = []machine.Pool{{PageSize: 2 << 20, Count: 1000}}
	_, err = resolve(t, "kubeReserved: {memory: 1Gi}", m)
	if want := "c.yaml:1: kubeReserved: kubeReserved 1Gi + systemReserved 0 + evictionHard 100Mi = 1124Mi (1178599424 bytes) do not fit what huge pages leave of the NUMA nodes' memory"; err == nil || err.Error() != want {
		t.Errorf("error = %v\nwant    %s", err, want)
	}
}

// Huge pages of kubeReserved and systemReserved are kept as the kubelet keeps them, which refuses more than there are.
func TestSpreadKeepsHugePages(t *testing.T) {
	m := machine.Machine{PageSize: 4096, MemTotal: 4 << 30, Nodes: []machine.Node{
		{ID: 0, Memory: 2 << 30, Hugepages: []machine.Pool{{PageSize: 2 << 20, Count: 300}}},
		{ID: 1, Memory: 2 << 30, Hugepages: []machine.Pool{{PageSize: 2 << 20, Count: 100}}},
	}}
	r, err := resolve(t, "kubeReserved: {hugepages-2Mi: 100Mi}\nsystemReserved: {hugepages-2Mi: 8Mi}", m)
	if err != nil {
		t.Fatal(err)
	}
	const want = "0:hugepages-2Mi=82Mi,memory=50Mi;1:hugepages-2Mi=26Mi,memory=50Mi"
	if got := r.Reserved.String(); got != want || len(r.Warnings) != 1 || !strings.HasSuffix(r.Warnings[0], want) || len(r.Nodes[1].Reserved) != 2 {
		t.Errorf("reserved = %s, of node 1 %v; warnings %q, want one with %s", got, r.Nodes[1].Reserved, r.Warnings, want)
	}
	for text, want := range map[string]string{
		"\nsystemReserved: {hugepages-2Mi: 1Gi}": "c.yaml:2: systemReserved: kubeReserved 0 + systemReserved 1Gi + evictionHard 0 = 1Gi (1073741824 bytes) do not fit the NUMA nodes' hugepages-2Mi",
		"kubeReserved: {hugepages-1Gi: 1Gi}":     "c.yaml:1: kubeReserved: kubeReserved 1Gi + systemReserved 0 + evictionHard 0 = 1Gi (1073741824 bytes) do not fit the NUMA nodes' hugepages-1Gi",
	} {
		if _, err := resolve(t, text, m); err == nil || err.Error() != want {
			t.Errorf("error = %v\nwant    %s", err, want)
		}
	}
}

func TestNodesWithoutMemoryOrCPUsAreLeftOut(t *testing.T) {
	m := fixture(t, "four-unequal")
	r, err := resolve(t, "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: true}", m)
	if err != nil {
		t.Fatal(err)
	}
	if r.LeftOut != nodeset.Of(3, 4) || len(r.Nodes) != 2 || !cmp.Equal(r.Nodes[1].Distances, []int{12, 10}) || !r.Manager.PreferClosest {
		t.Errorf("left out %s, nodes %+v, options %+v", r.LeftOut, r.Nodes, r.Manager)
	}
	near := map[int]memorymanager.Nearest{3: {Nodes: nodeset.Of(0, 1), Why: "has no CPUs and is left out"}, 4: {Nodes: nodeset.Of(0, 1), Why: "has no memory"}}
	if diff := cmp.Diff(near, r.Manager.Nearest); diff != "" {
		t.Errorf("the nearest nodes: -want +got\n%s", diff)
	}
	if want := "NUMA nodes without CPUs are left out (nodesWithoutCPUs: Exclude): 3; NUMA nodes with CPUs and without memory are left out: 4"; strings.Join(r.Warnings[:2], "; ") != want {
		t.Errorf("warnings = %q", r.Warnings)
	}
	if r, err := resolve(t, "nodesWithoutCPUs: Confine", m); err != nil || len(r.Nodes) != 2 || r.Warnings[0] != "NUMA nodes without CPUs are left out (nodesWithoutCPUs: Confine): 3" {
		t.Errorf("%v, nodes %+v, warnings %q", err, r.Nodes, r.Warnings)
	}
	// What is reserved there is kept from claims.
	r, err = resolve(t, "nodesWithoutCPUs: Confine\ndra: {enabled: true}\nreservedMemory: 0:memory=100Mi;3:memory=1Gi", m)
	if err != nil || len(r.Nodes) != 2 || len(r.ClaimNodes) != 1 || r.ClaimNodes[0].ID != 3 || r.ClaimNodes[0].Reserved.Of("memory") != 1<<30 {
		t.Errorf("%v, nodes for claims %+v", err, r.ClaimNodes)
	}
	if got := r.Claimable[2]; got.Node != 3 || got.Amounts.Of("memory") != (r.ClaimNodes[0].Total-1<<30)/(2<<20)*(2<<20) {
		t.Errorf("for claims: %+v, want all of node 3 that is not reserved, in steps of 2Mi", r.Claimable)
	}
	if len(r.Warnings) != 3 || r.Warnings[0] != "NUMA nodes without CPUs are for resource claims only (nodesWithoutCPUs: Confine): 3" {
		t.Errorf("warnings = %q", r.Warnings)
	}
	r, err = resolve(t, "nodesWithoutCPUs: Include", m)
	if err != nil || r.LeftOut != nodeset.Of(4) || len(r.Nodes) != 3 || !cmp.Equal(r.Nodes[2].Distances, []int{24, 24, 10}) {
		t.Errorf("%v, left out %s, nodes %+v", err, r.LeftOut, r.Nodes)
	}
	// A reservation on a node that is left out counts in the sum and has no place in the node map.
	r, err = resolve(t, "reservedMemory: 0:memory=100Mi,hugepages-1Gi=1Gi;3:memory=1Gi", m)
	if err != nil || len(r.Nodes) != 2 || len(r.Nodes[0].Reserved) != 2 || r.Nodes[0].Reserved[0].Type != "hugepages-1Gi" || len(r.Nodes[1].Reserved) != 0 {
		t.Errorf("%v, nodes %+v", err, r.Nodes)
	}
	if want := "reservedMemory[1]: NUMA node 3 is left out: what is reserved on it is kept on no other node"; !slices.Contains(r.Warnings, want) {
		t.Errorf("warnings = %q, want %q among them", r.Warnings, want)
	}
	m.Nodes = m.Nodes[2:]
	if _, err = resolve(t, "", m); err == nil || err.Error() != "c.yaml: nodesWithoutCPUs: no NUMA node of this machine has both memory and CPUs; want Include" {
		t.Errorf("error = %v", err)
	}
}

// POWER9 has the memory of GPUs on nodes that neither a set nor the kubelet holds: they are left out, and without placement nothing is.
func TestNodesAboveThoseOfASet(t *testing.T) {
	m := fixture(t, "power9")
	r, err := resolve(t, "", m)
	if err != nil || len(r.Nodes) != 2 || r.Nodes[1].ID != 8 || !cmp.Equal(r.Nodes[1].Distances, []int{40, 10}) {
		t.Errorf("%v, nodes %+v", err, r.Nodes)
	}
	if want := "NUMA nodes without CPUs are left out (nodesWithoutCPUs: Exclude): 252-255"; len(r.Warnings) != 1 || r.Warnings[0] != want {
		t.Errorf("warnings = %q, want %q alone", r.Warnings, want)
	}
	const want = "NUMA node %d cannot be placed on: Static has nodes 0 to 63, as in the kubelet; want None (profile: QoS), or nodesWithoutCPUs: Exclude where it has no CPUs"
	for _, use := range []string{"Include", "Confine"} { // what is confined could not be let onto these nodes again
		if _, err := resolve(t, "nodesWithoutCPUs: "+use, m); err == nil || err.Error() != "c.yaml:1: nodesWithoutCPUs: "+fmt.Sprintf(want, 252) {
			t.Errorf("%s: error = %v", use, err)
		}
	}
	m.Nodes[1].ID = 64
	if _, err := resolve(t, "", m); err == nil || err.Error() != "c.yaml: memoryManagerPolicy: "+fmt.Sprintf(want, 64) {
		t.Errorf("error = %v", err)
	}
	if r, err := resolve(t, "profile: QoS", m); err != nil || r.Static || len(r.Warnings) > 0 {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestReservationsThatDoNotFitTheMachine(t *testing.T) {
	const fullSum = "kubeReserved: {memory: 4Gi}\nsystemReserved: {memory: 1Gi}\n"
	tests := map[string]struct{ text, want string }{
		"absent node":          {"reservedMemory:\n- {numaNode: 0, limits: {memory: 1Gi}}\n- {numaNode: 2, limits: {memory: 1Gi}}", "c.yaml:3: reservedMemory[1].numaNode: this machine has no NUMA node 2, only 0-1"},
		"absent node in text":  {"reservedMemory: -1:memory=1Gi", "c.yaml:1: reservedMemory[0].numaNode: this machine has no NUMA node -1, only 0-1"},
		"larger than the node": {"reservedMemory: 0:memory=200Gi", "c.yaml:1: reservedMemory[0].limits.memory: 200Gi (214748364800 bytes) and huge pages of 0 bytes are more than the 131823588Ki (134987354112 bytes) of NUMA node 0"},
		"absent page size":     {"reservedMemory: 0:memory=1Gi,hugepages-64Ki=1Mi", `c.yaml:1: reservedMemory[0].limits.hugepages-64Ki: NUMA node 0 has no "hugepages-64Ki"`},
		"too many pages":       {"reservedMemory: 0:memory=1Gi,hugepages-2Mi=2Mi", "c.yaml:1: reservedMemory[0].limits.hugepages-2Mi: 2Mi (2097152 bytes) are more than the 0 bytes that NUMA node 0 has"},
		"no memory":            {"reservedMemory: 0:hugepages-2Mi=2Mi", "c.yaml:1: reservedMemory[0].limits.hugepages-2Mi: 2Mi (2097152 bytes) are more than the 0 bytes that NUMA node 0 has"},
		"one MiB short": {fullSum + "reservedMemory: 0:memory=3Gi;1:memory=2147Mi",
			"c.yaml:3: reservedMemory: the NUMA nodes' memory adds up to 5219Mi (5472518144 bytes), but kubeReserved 4Gi + systemReserved 1Gi + evictionHard 100Mi = 5220Mi (5473566720 bytes): make them equal"},
		"eviction given": {"evictionHard: {memory.available: 100Mi}\nreservedMemory: 0:memory=1Gi",
			"c.yaml:2: reservedMemory: the NUMA nodes' memory adds up to 1Gi (1073741824 bytes), but kubeReserved 0 + systemReserved 0 + evictionHard 100Mi = 100Mi (104857600 bytes): make them equal"},
		"huge pages": {"kubeReserved: {hugepages-2Mi: 2Mi}\nreservedMemory: 0:memory=1Gi",
			"c.yaml:2: reservedMemory: the NUMA nodes' hugepages-2Mi adds up to 0 bytes, but kubeReserved 2Mi + systemReserved 0 + evictionHard 0 = 2Mi (2097152 bytes): make them equal"},
		"nothing at all":      {"evictionHard: {}", "c.yaml: reservedMemory: no memory is reserved: memoryManagerPolicy Static needs reservedMemory, kubeReserved, systemReserved or evictionHard"},
		"kube too large":      {"kubeReserved: {memory: 1Ti}", "c.yaml:1: kubeReserved: kubeReserved 1Ti + systemReserved 0 + evictionHard 100Mi = 1048676Mi (1099616485376 bytes) leave nothing of the machine's memory of 263939528Ki (270274076672 bytes)"},
		"system too large":    {"kubeReserved: {memory: 7Ei}\nsystemReserved: {memory: 7Ei}\nevictionHard: {memory.available: 7Ei}", "c.yaml:1: kubeReserved: kubeReserved 7Ei + systemReserved 7Ei + evictionHard 7Ei = 18446744073709551615 bytes leave nothing of the machine's memory of 263939528Ki (270274076672 bytes)"},
		"both too large":      {"kubeReserved: {memory: 200Gi}\nsystemReserved: {memory: 200Gi}", "c.yaml:1: kubeReserved: kubeReserved 200Gi + systemReserved 200Gi + evictionHard 100Mi = 409700Mi (429601587200 bytes) leave nothing of the machine's memory of 263939528Ki (270274076672 bytes)"},
		"eviction too large":  {"evictionHard: {memory.available: 1Ti}", "c.yaml:1: evictionHard: kubeReserved 0 + systemReserved 0 + evictionHard 1Ti = 1Ti (1099511627776 bytes) leave nothing of the machine's memory of 263939528Ki (270274076672 bytes)"},
		"only pages reserved": {"", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			m := fixture(t, "task-page")
			if name == "only pages reserved" {
				m.Nodes[0].Hugepages[0].Count = 1
				tc.text, tc.want = "reservedMemory: 0:hugepages-2Mi=2Mi", "c.yaml:1: reservedMemory: no memory is reserved: memoryManagerPolicy Static needs some on at least one NUMA node"
			}
			if _, err := resolve(t, tc.text, m); err == nil || err.Error() != tc.want {
				t.Errorf("error = %v\nwant    %s", err, tc.want)
			}
		})
	}
}

func TestReservedMemoryAloneStandsForItself(t *testing.T) {
	r, err := resolve(t, "reservedMemory: 0:memory=3Gi;1:memory=2148Mi", fixture(t, "task-page"))
	if err != nil || len(r.Warnings) != 0 || r.QoS.NodeAllocatable != 270274076672 {
		t.Errorf("%v, warnings %q, allocatable %d", err, r.Warnings, r.QoS.NodeAllocatable)
	}
}

// TestEvictionPercentage: the kubelet multiplies with a 32-bit fraction.
func TestEvictionPercentage(t *testing.T) {
	for text, want := range map[string]uint64{"5%": 429496736, "0%": 0, "100%": 0, "100Mi": 100 << 20, "0.5%": 42949672} {
		got, err := threshold(text, 8<<30)
		if err != nil || got != want {
			t.Errorf("%s of 8Gi = %d, %v, want %d", text, got, err, want)
		}
	}
}

func TestPolicyNonePlacesNothing(t *testing.T) {
	r, err := resolve(t, "memoryManagerPolicy: None\nevictionHard: {}", fixture(t, "task-page"))
	if err != nil || r.Static || r.Nodes != nil || r.QoS.NodeAllocatable != 270274076672 {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestOnUnsatisfiableSuitsThePolicy(t *testing.T) {
	for text, want := range map[string]OnUnsatisfiable{
		"topologyManagerPolicy: none": Unpinned, "topologyManagerPolicy: best-effort": Unpinned,
		"topologyManagerPolicy: restricted": Reject, "topologyManagerPolicy: single-numa-node": Reject,
		"topologyManagerPolicy: restricted\nonUnsatisfiable: Unpinned": Unpinned, "onUnsatisfiable: Reject": Reject,
	} {
		if r, err := resolve(t, text, fixture(t, "task-page")); err != nil || r.OnUnsatisfiable != want {
			t.Errorf("%q: %v, %s, want %s", text, err, r.OnUnsatisfiable, want)
		}
	}
}

func TestOnConflictReachesTheMemoryManager(t *testing.T) {
	best := memorymanager.Options{FallBack: true, FollowCPUs: true, AlignTo: topologymanager.AlignToCPUs}
	devices := memorymanager.Options{FallBack: true, FollowCPUs: true, AlignTo: topologymanager.AlignToDevices}
	for text, want := range map[string]memorymanager.Options{
		"{}": best, "onConflict: CPUs": best, "onConflict: Devices": devices, "onConflict: Kubelet": {AlignTo: topologymanager.AlignToKubelet},
	} {
		r, err := resolve(t, text, fixture(t, "task-page"))
		got := memorymanager.Options{FallBack: r.Manager.FallBack, FollowCPUs: r.Manager.FollowCPUs, AlignTo: r.Manager.AlignTo}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v, (-want +got):\n%s", text, err, diff)
		}
	}
}

func TestMostMoved(t *testing.T) {
	for text, want := range map[string]uint64{
		"{}": 256 << 20, "maxMigrationBytes: 64Mi": 64 << 20, "maxMigrationBytes: 0": 0, "maxMigrationBytes: 1Pi": math.MaxUint64,
	} {
		if r, err := resolve(t, text, fixture(t, "task-page")); err != nil || r.MostMoved() != want {
			t.Errorf("%q: %v, %d, want %d", text, err, r.MostMoved(), want)
		}
	}
}

func TestProfiles(t *testing.T) {
	const kubelet = kubeletHead + "memoryManagerPolicy: Static\nmemoryThrottlingFactor: 0.5\n"
	for name, test := range map[string]struct {
		ours                   string
		places, throttles, dry bool
		reservation            memoryqos.ReservationPolicy
		guards                 bool
	}{
		"Full":               {"profile: Full", true, true, false, memoryqos.TieredReservation, true},
		"NUMA":               {"profile: NUMA", true, false, false, memoryqos.None, false},
		"QoS":                {"profile: QoS", false, true, false, memoryqos.TieredReservation, true},
		"Observe":            {"profile: Observe", true, true, true, memoryqos.TieredReservation, true},
		"the file wins":      {"profile: NUMA\nmemoryReservationPolicy: HardReservation", true, false, false, memoryqos.HardReservation, false},
		"the file wins, QoS": {"memoryManagerPolicy: Static\nprofile: QoS", true, true, false, memoryqos.TieredReservation, true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, from := range []string{"", kubelet} {
				ours, files := test.ours, Files(nil)
				if from != "" {
					ours, files = ours+"\nkubeletConfig: /kubelet", func(string) ([]byte, error) { return []byte(from), nil }
				}
				c, err := files.Parse("c.yaml", []byte(ours))
				if err != nil {
					t.Fatal(err)
				}
				if (c.MemoryManagerPolicy == MemoryManagerStatic) != test.places || (c.MemoryThrottlingFactor != nil) != test.throttles ||
					c.DryRun() != test.dry || c.MemoryReservationPolicy != test.reservation || c.StallGuard != test.guards {
					t.Errorf("over %q: %+v", from, c)
				}
			}
		})
	}
}

// TestDoubtfulKeys: what contradicts itself or has no effect is a warning with file, line and key; an empty file has none.
func TestDoubtfulKeys(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		"profile: QoS":              "",
		"memoryManagerPolicy: None": "",
		"memoryManagerPolicy: None\nonConflict: Kubelet":          "c.yaml:2: onConflict: has no effect: memoryManagerPolicy is None, which places nothing",
		"profile: NUMA\nmemoryReservationPolicy: HardReservation": "c.yaml:2: memoryReservationPolicy: has no effect: profile NUMA writes no memory.min, memory.low and memory.high",
		"profile: NUMA\ncacheRoom: 0.1":                           "c.yaml:2: cacheRoom: has no effect: profile NUMA writes no memory.min, memory.low and memory.high",
		"profile: QoS\nreservedMemory: 0:memory=1Gi":              "c.yaml:2: reservedMemory: has no effect: memoryManagerPolicy is None, which places nothing",
		"topologyManagerPolicyOptions: {prefer-closest-numa-nodes: true, numa-score-weights: memory=2}\ntopologyManagerPolicy: none": "c.yaml:1: topologyManagerPolicyOptions.prefer-closest-numa-nodes: has no effect under topologyManagerPolicy none\n" +
			"c.yaml:1: topologyManagerPolicyOptions.numa-score-weights: has no effect without numa-allocation-strategy",
		"topologyManagerPolicyOptions: {prefer-closest-numa-nodes: true}\ntopologyManagerPolicy: single-numa-node":                            "c.yaml:1: topologyManagerPolicyOptions.prefer-closest-numa-nodes: has no effect under topologyManagerPolicy single-numa-node",
		"topologyManagerPolicyOptions: {prefer-closest-numa-nodes: false}\ntopologyManagerPolicy: none":                                       "",
		"topologyManagerPolicyOptions: {prefer-closest-numa-nodes: true, numa-allocation-strategy: least-used, numa-score-weights: memory=2}": "",
		"topologyManagerPolicyOptions: {max-allowable-numa-nodes: 9}":                                                                         "c.yaml:1: topologyManagerPolicyOptions.max-allowable-numa-nodes: has no effect: any number may be",
		"topologyManagerPolicyOptions: {max-allowable-numa-nodes: 9}\nprofile: QoS":                                                           "c.yaml:1: topologyManagerPolicyOptions: has no effect: memoryManagerPolicy is None, which places nothing",
		"maxMigrationBytes: 512":                "c.yaml:1: maxMigrationBytes: 512 is in bytes, did you mean 512Mi?",
		"evictionHard: {memory.available: 100}": "c.yaml:1: evictionHard.memory.available: 100 is in bytes, did you mean 100Mi?\nreservedMemory is not set: kubeReserved 0 + systemReserved 0 + evictionHard 100 = 100 bytes are spread over the NUMA nodes in proportion to their memory: 0:memory=100",
		"maxMigrationBytes: 1048576":            "",
		"profile: QoS\nevictionHard: {memory.available: 100Mi, nodefs.available: 10%, imagefs.available: foo}": `c.yaml:2: evictionHard.imagefs.available: "foo" is not a quantity such as 64Mi, 2G or 4096, and no kubelet starts with it`,
		"profile: QoS\nkubeReserved: {cpu: 500m, pid: '1000'}\nsystemReserved: {cpu: -1}":                      `c.yaml:3: systemReserved.cpu: "-1" is negative, and no kubelet starts with it`,
		"maxMigrationBytes: 0": "",
		"annotationRules: [{namespaces: [a, '*']}, {labels: {a: b}}]":                                       "c.yaml:1: annotationRules[1]: has no effect: annotationRules[0] matches all pods",
		"annotationRules: [{namespaces: [a], minimumThrottlingFactor: 0.95}]":                               "c.yaml:1: annotationRules[0].minimumThrottlingFactor: 0.95 is above memoryThrottlingFactor 0.9: pods without the annotation have a smaller factor than any that they may choose",
		"memoryManagerPolicy: None\nannotationRules: [{namespaces: [a], defaults: {numa: required}}]":       "c.yaml:2: annotationRules[0].defaults.numa: has no effect: memoryManagerPolicy is None",
		"profile: QoS\nannotationRules: [{labels: {a: b}}, {namespaces: [a], defaults: {numa: preferred}}]": "c.yaml:2: annotationRules[1].defaults.numa: has no effect: memoryManagerPolicy is None",
		"profile: QoS\nannotationRules: [{namespaces: [a], defaults: {numa: none}}]":                        "",
		"profile: NUMA\nannotationRules: [{namespaces: [a], defaults: {reservation: min, numa: required, cache-room: '0.1', oom-group: process}}]": "c.yaml:2: annotationRules[0].defaults.cache-room: has no effect: the profile leaves Memory QoS to the kubelet\n" +
			"c.yaml:2: annotationRules[0].defaults.reservation: has no effect: the profile leaves Memory QoS to the kubelet",
		"stallGuard: false\nannotationRules: [{namespaces: [a], defaults: {cache-room: '0.1'}}]":                                                "c.yaml:2: annotationRules[0].defaults.cache-room: has no effect: without stallGuard it would stop a heap that needs its whole limit",
		"stallGuard: false\nannotationRules: [{namespaces: [a], defaults: {cache-room: '0.0'}}]":                                                "",
		"annotationRules: [{namespaces: [a], defaults: {cache-room: '0.1', numa: required}}]":                                                   "",
		"stallGuard: false\ncacheRoom: 0.1":                                                                                                     "c.yaml:2: cacheRoom: has no effect: without stallGuard it would stop a heap that needs its whole limit",
		"memoryReservationPolicy: None\nguaranteedHeadroom: 0":                                                                                  "c.yaml:2: guaranteedHeadroom: has no effect on pods without annotation: memoryReservationPolicy is None",
		"reclaimBeforeEviction: true":                                                                                                           "",
		"profile: QoS\nevictionHard: {}\nreclaimBeforeEviction: true":                                                                           "c.yaml:3: reclaimBeforeEviction: has no effect: evictionHard has no memory.available",
		"dra: {shares: [{limits: {memory: 1Gi}}]}":                                                                                              "c.yaml:1: dra.shares: has no effect: dra.enabled is false",
		"dra: {enabled: true, shares: [{numaNode: 1, limits: {memory: 50%}}, {limits: {memory: 1Ti, hugepages-1Gi: 3Gi, hugepages-3Mi: 50%}}]}": "c.yaml:1: dra.shares[1].limits.hugepages-1Gi: NUMA node 0 has less than 3Gi: claims get all of its 0\nc.yaml:1: dra.shares[1].limits.memory: NUMA node 0 has less than 1Ti: claims get all of its 125.7Gi",
		"dra: {enabled: true}\nprofile: Observe":                                                                                                "c.yaml:1: dra.enabled: under profile Observe nothing is published for claims",
		"nodeResourceTopology: true\nprofile: Observe":                                                                                          "c.yaml:1: nodeResourceTopology: has no effect: under profile Observe nothing is published",
		"dra: {publishNodeAllocatable: true}":                                                                                                   "c.yaml:1: dra.publishNodeAllocatable: has no effect: dra.enabled is false",
		"evictRejectedAfter: 5m\nevents: true\nmemoryManagerPolicy: None":                                                                       "c.yaml:1: evictRejectedAfter: has no effect: memoryManagerPolicy is None, which places nothing",
		"evictRejectedAfter: 5m\nevents: true\nprofile: Observe":                                                                                "c.yaml:1: evictRejectedAfter: has no effect: under profile Observe nothing is refused",
		"requestSources: [unified]\nannotationRules: [{namespaces: [a], priorityClasses: {db: last}}]":                                          "c.yaml:2: annotationRules[0].priorityClasses: has no effect: requestSources has neither kubelet nor apiserver, which know a pod's PriorityClass; nor has the rule's default of oom-score-adj",
		"evictRejectedAfter: 5m\nevents: true":                                                                                                  "c.yaml:1: evictRejectedAfter: has no effect on pods without the annotation numa: required: what cannot be placed runs unpinned",
		"evictRejectedAfter: 5m\ntopologyManagerPolicy: restricted":                                                                             "c.yaml:1: evictRejectedAfter: without events: true only this daemon's log says why a pod was evicted",

		"annotationRules: [{namespaces: [a, b], labels: {a: b}}, {namespaces: [a, b], labels: {a: c}}, {namespaces: [a, b], labels: {a: b}}]": "c.yaml:1: annotationRules[2]: has no effect: annotationRules[0] matches the same pods",
		"annotationRules: [{namespaces: ['*']}, {namespaces: ['*']}, {namespaces: ['*']}]":                                                    "c.yaml:1: annotationRules[1]: has no effect: annotationRules[0] matches all pods\nc.yaml:1: annotationRules[2]: has no effect: annotationRules[0] matches all pods",
		"annotationRules: [{namespaces: [a]}, {namespaces: [a], labels: {a: b}}, {labels: {a: b}}]":                                           "",
	} {
		r, err := resolve(t, text, fixture(t, "task-page"))
		if got := strings.Join(r.Warnings, "\n"); err != nil || got != want {
			t.Errorf("%q: %v, warnings\n%s\nwant\n%s", text, err, got, want)
		}
	}
}

// TestWhatIsRefused is the table of docs/configuration.md.
func TestWhatIsRefused(t *testing.T) {
	type outcome struct{ create, resize bool }
	const unpinned, reject = "\nonUnsatisfiable: Unpinned", "\nonUnsatisfiable: Reject"
	for text, want := range map[string]map[NUMAPreference]outcome{
		"none":                        {"": {}, NUMAPreferred: {}, NUMARequired: {true, true}},
		"best-effort":                 {"": {}, NUMAPreferred: {}, NUMARequired: {true, true}},
		"best-effort" + reject:        {"": {true, false}, NUMAPreferred: {}, NUMARequired: {true, true}},
		"restricted":                  {"": {true, false}, NUMAPreferred: {}, NUMARequired: {true, true}},
		"restricted" + unpinned:       {"": {}, NUMAPreferred: {}, NUMARequired: {true, true}},
		"restricted" + reject:         {"": {true, false}, NUMAPreferred: {}, NUMARequired: {true, true}},
		"single-numa-node":            {"": {true, true}, NUMAPreferred: {}, NUMARequired: {true, true}},
		"single-numa-node" + unpinned: {"": {}, NUMAPreferred: {}, NUMARequired: {true, true}},
	} {
		r, err := resolve(t, "topologyManagerPolicy: "+text, fixture(t, "task-page"))
		if err != nil {
			t.Fatal(err)
		}
		for wish, want := range want {
			if got := (outcome{r.RefusesCreate(wish), r.RefusesResize(wish)}); got != want {
				t.Errorf("%q, annotation %q: refused %+v, want %+v", text, wish, got, want)
			}
		}
	}
}

// TestConfigurationMadeByAProgramIsChecked: it comes from no file.
func TestConfigurationMadeByAProgramIsChecked(t *testing.T) {
	c := Default()
	c.GuaranteedHeadroom = -1
	if _, err := c.Resolve(fixture(t, "task-page")); err == nil || err.Error() != "configuration: guaranteedHeadroom: want 0 or more and less than 1, got -1" {
		t.Errorf("error = %v", err)
	}
	if r, err := Default().Resolve(fixture(t, "eight-socket")); err != nil || len(r.Nodes) != 8 || len(r.Warnings) > 0 || len(r.Reserved) != 8 {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestWarningsAboutTheKubeletAreKept(t *testing.T) {
	c, err := Files(os.ReadFile).Load(beside(t, kubeletHead+"memoryManagerPolicy: Static\nmemoryThrottlingFactor: 0.9", "reservedMemory: 0:memory=1Gi"))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := c.Resolve(fixture(t, "task-page")); err != nil || len(r.Warnings) != 1 {
		t.Errorf("%v, warnings %q", err, r.Warnings)
	}
}

func TestStateTolerance(t *testing.T) {
	m := fuzzMachine()
	for name, tc := range map[string]struct {
		text    string
		image   uint64
		want    uint64
		warning string
	}{
		"default":            {"", 48 << 20, 64 << 20, ""},
		"a quantity":         {"stateTolerance: 128Mi\n", 0, 128 << 20, ""},
		"auto":               {"stateTolerance: auto\n", 48 << 20, 117440512, ""},
		"auto, unprivileged": {"stateTolerance: auto\n", 0, 0, "stateTolerance auto: /proc/iomem does not show the size of the kernel's image, which takes CAP_SYS_ADMIN: every change of a NUMA node's memory is reported; set a quantity such as 128Mi instead"},
		"nothing is placed":  {"stateTolerance: auto\nmemoryManagerPolicy: None\n", 0, 0, "c.yaml:1: stateTolerance: has no effect: memoryManagerPolicy is None, which places nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			m.KernelImage = tc.image
			r, err := resolve(t, tc.text, m)
			if err != nil || r.StateTolerance != tc.want || strings.Join(r.Warnings, "\n") != tc.warning {
				t.Errorf("%d, %v, %q, want %d", r.StateTolerance, err, r.Warnings, tc.want)
			}
		})
	}
}

func TestStrategy(t *testing.T) {
	type weights = map[memorymanager.MemoryType]uint64
	const options = "topologyManagerPolicyOptions: "
	for name, tc := range map[string]struct {
		text     string
		strategy topologymanager.Strategy
		weights  weights
		warning  string
	}{
		"default":        {"", "none", nil, ""},
		"ours":           {options + "{numa-allocation-strategy: least-used}", "least-used", nil, ""},
		"option":         {options + "{numa-allocation-strategy: least-allocated}", "least-allocated", nil, ""},
		"empty option":   {options + `{numa-allocation-strategy: ""}`, "none", nil, ""},
		"weights":        {options + `{numa-allocation-strategy: least-allocated, numa-score-weights: "cpu=3, memory=0,hugepages-2Mi=100,nvidia.com/gpu=6,"}`, "least-allocated", weights{"memory": 0, "hugepages-2Mi": 100}, ""},
		"others' weight": {options + "{numa-score-weights: cpu=3, numa-allocation-strategy: most-allocated}", "most-allocated", nil, ""},
		"weights alone":  {options + "{numa-score-weights: memory=3}", "none", nil, "c.yaml:1: topologyManagerPolicyOptions.numa-score-weights: has no effect without numa-allocation-strategy"},
		"policy none":    {options + "{numa-allocation-strategy: most-allocated}\ntopologyManagerPolicy: none", "most-allocated", nil, "topologyManagerPolicyOptions: numa-allocation-strategy most-allocated has no effect under topologyManagerPolicy none: set best-effort, restricted or single-numa-node"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := resolve(t, tc.text+"\nreservedMemory: 0:memory=1Gi", fuzzMachine())
			if err != nil || r.Manager.Strategy != tc.strategy || !cmp.Equal(r.Manager.Weights, tc.weights) || strings.Join(r.Warnings, "\n") != tc.warning {
				t.Errorf("%+v, %v, %q", r.Manager, err, r.Warnings)
			}
		})
	}
}

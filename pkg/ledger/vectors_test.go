package ledger_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

var update = flag.Bool("update", false, "rewrite the expected results of known differences, and the document that lists them")

const (
	vectors     = "../../testdata/vectors"
	differences = vectors + "/differences.jsonl"
)

// scenario is a machine, a configuration and what was asked of a kubelet, with its answers.
type scenario struct {
	ID                  string            `json:"id"`
	Comment             string            `json:"comment"`
	Machine             recordedMachine   `json:"machine"`
	Reserved            []reservation     `json:"reserved"`
	MemoryManagerPolicy string            `json:"memoryManagerPolicy"`
	TopologyPolicy      string            `json:"topologyPolicy"`
	TopologyScope       string            `json:"topologyScope"`
	TopologyOptions     map[string]string `json:"topologyOptions"`
	FeatureGates        map[string]bool   `json:"featureGates"`
	InitError           string            `json:"initError"`
	InitialMachineState map[int]node      `json:"initialMachineState"`
	InitialStateFile    *string           `json:"initialStateFile"`
	Steps               []step            `json:"steps"`
}

type recordedMachine struct {
	Nodes []struct {
		ID        int    `json:"id"`
		Memory    uint64 `json:"memory"`
		Hugepages []struct {
			PageSize uint64 `json:"pageSize"`
			Count    uint64 `json:"count"`
		} `json:"hugepages"`
		Distances []int `json:"distances"`
		CPUs      []int `json:"cpus"`
	} `json:"nodes"`
}

type reservation struct {
	Node   int               `json:"node"`
	Limits map[string]uint64 `json:"limits"`
}

type step struct {
	Op           string          `json:"op"`
	Pod          string          `json:"pod"`
	QOS          string          `json:"qos"`
	Container    string          `json:"container"`
	Containers   []podContainer  `json:"containers"`
	PodResources *podResources   `json:"podResources"`
	FeatureGates map[string]bool `json:"featureGates"`
	// FixedLater says why later releases give another answer: a defect that is not to be reproduced.
	FixedLater          string           `json:"fixedLater"`
	Machine             *recordedMachine `json:"machine"`
	Reserved            []reservation    `json:"reserved"`
	MemoryManagerPolicy string           `json:"memoryManagerPolicy"`
	RemoveStateFile     bool             `json:"removeStateFile"`
	StateFileOverride   *string          `json:"stateFileOverride"`
	Result              result           `json:"result"`
}

type podContainer struct {
	Name           string            `json:"name"`
	Init           bool              `json:"init"`
	Restartable    bool              `json:"restartable"`
	Memory         *uint64           `json:"memory"`
	MemoryLimit    uint64            `json:"memoryLimit"`
	CPU            uint64            `json:"cpu"`
	CPULimit       uint64            `json:"cpuLimit"`
	MemoryQuantity string            `json:"memoryQuantity"`
	Hugepages      map[string]uint64 `json:"hugepages"`
	// CPUs are the exclusive ones; Devices has the nodes of the devices of each resource, nil without topology.
	CPUs    []int   `json:"cpus"`
	Devices [][]int `json:"devices"`
}

// podResources are spec.resources after the API server's defaults.
type podResources struct {
	Memory    uint64            `json:"memory"`
	Hugepages map[string]uint64 `json:"hugepages"`
}

// result is what a step's answer is compared by.
type result struct {
	OK                   *bool                         `json:"ok,omitempty"`
	Admitted             *bool                         `json:"admitted,omitempty"`
	Containers           []containerResult             `json:"containers,omitempty"`
	Entries              map[string]map[string][]block `json:"entries"`
	PodEntries           map[string][]block            `json:"podEntries,omitempty"`
	MachineState         map[int]node                  `json:"machineState"`
	LeftoverEntries      map[string]map[string][]block `json:"leftoverEntries,omitempty"`
	LeftoverMachineState map[int]node                  `json:"leftoverMachineState,omitempty"`
	StateFile            string                        `json:"stateFile,omitempty"`
}

type containerResult struct {
	Name      string    `json:"name"`
	Affinity  *affinity `json:"affinity,omitempty"`
	Blocks    []block   `json:"blocks,omitempty"`
	NUMANodes []int     `json:"numaNodes,omitempty"`
	// NotAsked is set where ours has no affinity to compare: nothing of the container is placed, or an earlier one was rejected.
	NotAsked bool `json:"-"`
}

type affinity struct {
	Nodes     []int `json:"nodes"`
	Preferred bool  `json:"preferred"`
}

type block struct {
	Type         string `json:"type"`
	Size         uint64 `json:"size"`
	NUMAAffinity []int  `json:"numaAffinity"`
}

type node struct {
	NumberOfAssignments int              `json:"numberOfAssignments"`
	Cells               []int            `json:"cells"`
	MemoryMap           map[string]table `json:"memoryMap"`
}

type table struct {
	Total          uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

// difference is our result where it is deliberately another one than the kubelet's.
type difference struct {
	ID string `json:"id"`
	// Step counts from 0; -1 is the start of the scenario.
	Step   int    `json:"step"`
	Reason string `json:"reason"`
	// Rest is set where the steps after this one are not compared: they follow from it.
	Rest      bool    `json:"rest,omitempty"`
	InitError string  `json:"initError,omitempty"`
	Result    *result `json:"result,omitempty"`
}

func readLines(t testing.TB, path string, line func([]byte) error) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(path, ".gz") {
		unzip, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if data, err = io.ReadAll(unzip); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	for lines := bufio.NewReader(bytes.NewReader(data)); ; {
		text, err := lines.ReadBytes('\n')
		if text = bytes.TrimSpace(text); len(text) > 0 {
			if err := line(text); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		}
		if err != nil {
			return
		}
	}
}

func readScenarios(t testing.TB, path string) (scenarios []scenario) {
	t.Helper()
	readLines(t, path, func(line []byte) error {
		var s scenario
		err := json.Unmarshal(line, &s)
		scenarios = append(scenarios, s)
		return err
	})
	return scenarios
}

func readDifferences(t testing.TB) (known []difference) {
	t.Helper()
	readLines(t, differences, func(line []byte) error {
		var d difference
		err := json.Unmarshal(line, &d)
		known = append(known, d)
		return err
	})
	return known
}

type key struct {
	id   string
	step int
}

func recordedSets() (files []string) {
	for _, name := range []string{"a", "c", "p", "l", "l-next", "e", "d"} {
		files = append(files, vectors+"/set-"+name+".jsonl.gz")
	}
	return files
}

// TestKubeletVectorsInTurn has what a kubelet was asked happen as a runtime does it: a container starts, and an init container ends, before
// the next one is created. What a kubelet decides at once is another answer then, so that this wants what must hold all the same.
func TestKubeletVectorsInTurn(t *testing.T) {
	t.Parallel()
	var admitted, freed int
	for _, file := range recordedSets() {
		for _, s := range readScenarios(t, file) {
			r := s.replayer()
			r.inTurn, r.check = true, func(step int, got *result) {
				if got.Admitted != nil && *got.Admitted {
					admitted++
				}
				freed += r.checkAllocations(t, step, got)
			}
			r.replay()
		}
	}
	fmt.Printf("in turn: %d pods admitted, %d times what an init container had was free for others\n", admitted, freed)
	if freed == 0 {
		t.Error("no init container has ended before another container started")
	}
}

// checkAllocations wants no allocation of an init container that has ended while a later container runs, and of all others what is reserved.
// It returns the number of init containers of the pod of this step that have none.
func (r *replayer) checkAllocations(t *testing.T, step int, got *result) (freed int) {
	t.Helper()
	if r.s.ID == "c-restart-node-gone" { // which keeps more than its machine has left
		return 0
	}
	sums := map[string]uint64{}
	for uid, containers := range got.Entries {
		blocks := got.PodEntries[uid]
		for name, of := range containers {
			p := r.pods[uid]
			if p != nil && p.init[name] && !p.container(name).State.Alive() && p.runsAfter(name) {
				t.Errorf("%s step %d: init container %s of pod %s has ended and keeps %v", r.s.ID, step, name, uid, of)
			}
			if got.PodEntries[uid] == nil {
				blocks = append(blocks, of...)
			}
		}
		for _, b := range blocks {
			sums[b.Type] += b.Size
		}
	}
	for _, n := range got.MachineState {
		for name, table := range n.MemoryMap {
			sums[name] -= table.Reserved
		}
	}
	for name, rest := range sums {
		if rest != 0 {
			t.Errorf("%s step %d: the containers have %d bytes of %s that no node has reserved", r.s.ID, step, int64(rest), name)
		}
	}
	if s := r.s.Steps[step]; s.Op == "admit" && r.pods[s.Pod] != nil {
		for name, init := range r.pods[s.Pod].init {
			if _, has := got.Entries[s.Pod][name]; init && !has {
				freed++
			}
		}
	}
	return freed
}

// runsAfter reports whether a container runs that starts after another one.
func (p *runningPod) runsAfter(name string) bool {
	i := slices.IndexFunc(p.containers, func(c *ledger.Container) bool { return c.Name == name })
	return slices.ContainsFunc(p.containers[i+1:], func(c *ledger.Container) bool { return c.State == ledger.Running })
}

// TestKubeletVectors replays what a real kubelet was asked and compares all answers.
func TestKubeletVectors(t *testing.T) {
	t.Parallel()
	known := map[key]difference{}
	for _, d := range readDifferences(t) {
		known[key{d.ID, d.Step}] = d
	}
	files := recordedSets()
	recorded := len(files)
	for _, file := range filepath.SplitList(os.Getenv("KUBELET_VECTORS")) {
		if _, err := os.Stat(file); err != nil && !filepath.IsAbs(file) {
			file = filepath.Join("../..", file) // named from the root of the repository
		}
		files = append(files, file)
	}
	var scenarios, steps, differ int
	used := map[key]bool{}
	for i, file := range files {
		ours := i < recorded
		for _, s := range readScenarios(t, file) {
			scenarios++
			steps += len(s.Steps)
			rest := false
			for _, got := range s.replay() {
				if rest {
					break
				}
				k := key{s.ID, got.Step}
				want := s.expected(got.Step)
				if got.Step >= 0 && s.Steps[got.Step].FixedLater != "" {
					continue
				}
				if d, ok := known[k]; ok {
					used[k], rest = true, d.Rest
					if *update {
						d.InitError, d.Result = got.InitError, got.Result
						known[k] = d
						continue
					}
					want = d
				}
				if !ours && want.Result.OK != nil && !*want.Result.OK {
					want = got // a kubelet that did not start: ours always does, see the known differences
				}
				if diff := compare(want, got); diff != "" {
					differ++
					t.Errorf("%s step %d (%s): -want +got\n%s", s.ID, got.Step, s.Comment, diff)
				}
			}
		}
	}
	for k := range known {
		if !used[k] {
			t.Errorf("%s: %s step %d is listed, but no scenario has it", differences, k.id, k.step)
		}
	}
	if *update {
		writeDifferences(t, known)
	}
	fmt.Printf("kubelet vectors: %d scenarios, %d steps, %d differences\n", scenarios, steps, differ)
}

func (s *scenario) expected(step int) difference {
	if step < 0 {
		return difference{InitError: s.InitError, Result: &result{
			MachineState: s.InitialMachineState, StateFile: text(s.InitialStateFile),
		}}
	}
	return difference{Result: &s.Steps[step].Result}
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func compare(want, got difference) string {
	if want.InitError != "" || got.InitError != "" {
		return cmp.Diff(want.InitError != "", got.InitError != "")
	}
	w, g := *want.Result, *got.Result
	if w.StateFile == "" || w.OK != nil && want.Reason == "" {
		g.StateFile = "" // after a restart the text may be what a person wrote
	} else if problem := compareText(w.StateFile, g.StateFile); problem != "" {
		return problem
	}
	w.StateFile, g.StateFile = "", ""
	w.Containers, g.Containers = slices.Clone(w.Containers), slices.Clone(g.Containers)
	for i := range g.Containers {
		if g.Containers[i].NotAsked && i < len(w.Containers) {
			w.Containers[i].Affinity, g.Containers[i].NotAsked = nil, false
		}
	}
	return cmp.Diff(normal(w), normal(g))
}

// normal makes nothing and absent the same. What containers were asked after one was rejected is not in our answers.
func normal(r result) result {
	if len(r.Entries) == 0 {
		r.Entries = nil
	}
	if len(r.PodEntries) == 0 {
		r.PodEntries = nil
	}
	if len(r.MachineState) == 0 {
		r.MachineState = nil
	}
	if len(r.LeftoverEntries) == 0 {
		r.LeftoverEntries, r.LeftoverMachineState = nil, nil
	}
	for _, n := range r.MachineState {
		slices.Sort(n.Cells) // a person may write them in any order, and the kubelet keeps it
	}
	containers := r.Containers
	r.Containers = nil
	for _, c := range containers {
		if len(c.Blocks) == 0 {
			c.Blocks = nil
		}
		if len(c.NUMANodes) == 0 {
			c.NUMANodes = nil
		}
		if c.Affinity != nil && len(c.Affinity.Nodes) == 0 {
			c.Affinity = &affinity{Preferred: c.Affinity.Preferred}
		}
		r.Containers = append(r.Containers, c)
	}
	return r
}

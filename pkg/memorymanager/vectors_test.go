package memorymanager_test

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
	Machine             machine           `json:"machine"`
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

type machine struct {
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
	FixedLater          string        `json:"fixedLater"`
	Machine             *machine      `json:"machine"`
	Reserved            []reservation `json:"reserved"`
	MemoryManagerPolicy string        `json:"memoryManagerPolicy"`
	RemoveStateFile     bool          `json:"removeStateFile"`
	StateFileOverride   *string       `json:"stateFileOverride"`
	Result              result        `json:"result"`
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
	Step      int     `json:"step"`
	Reason    string  `json:"reason"`
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

// TestKubeletVectors replays what a real kubelet was asked and compares all answers.
func TestKubeletVectors(t *testing.T) {
	known := map[key]difference{}
	for _, d := range readDifferences(t) {
		known[key{d.ID, d.Step}] = d
	}
	files := []string{
		vectors + "/set-a.jsonl.gz", vectors + "/set-c.jsonl.gz", vectors + "/set-p.jsonl.gz",
		vectors + "/set-l.jsonl.gz", vectors + "/set-l-next.jsonl.gz", vectors + "/set-e.jsonl.gz", vectors + "/set-d.jsonl.gz",
	}
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
			for _, got := range s.replay() {
				k := key{s.ID, got.Step}
				want := s.expected(got.Step)
				if got.Step >= 0 && s.Steps[got.Step].FixedLater != "" {
					continue
				}
				if d, ok := known[k]; ok {
					used[k] = true
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

package config

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

// reservedVector is a record of reserved-memory.jsonl: what a kubelet 1.36 makes of --reserved-memory.
type reservedVector struct {
	Kind    string   `json:"kind"`
	Comment string   `json:"comment"`
	Args    []string `json:"args"`
	OK      bool     `json:"ok"`
	Error   string   `json:"error"`
	Value   []struct {
		NUMANode int `json:"numaNode"`
		Limits   map[string]struct {
			Bytes int64 `json:"bytes"`
		} `json:"limits"`
	} `json:"value"`
	Canonical      string                       `json:"canonical"`
	ValidateErrors []string                     `json:"validateErrors"`
	StaticError    string                       `json:"staticError"`
	SystemReserved map[string]map[string]uint64 `json:"systemReserved"`

	Nodes           int               `json:"nodes"`
	Reserved        []string          `json:"reserved"`
	NodeAllocatable map[string]string `json:"nodeAllocatableReservation"`
}

// flags are the values of --reserved-memory.
func (v reservedVector) flags() []string {
	if v.Kind == "manager" {
		return v.Reserved
	}
	return v.Args
}

// outcome is what becomes of the flags: the error, or the bytes that are reserved per node and type.
type outcome struct {
	OK       bool              `json:"ok"`
	Error    string            `json:"error,omitempty"`
	Reserved map[string]uint64 `json:"reserved,omitempty"`
}

// kubelet's outcome: the first thing that would keep it from starting.
func (v reservedVector) kubelet() outcome {
	switch {
	case !v.OK:
		return outcome{Error: v.Error}
	case len(v.ValidateErrors) > 0:
		return outcome{Error: v.ValidateErrors[0]}
	case v.StaticError != "":
		return outcome{Error: v.StaticError}
	}
	o := outcome{OK: true, Reserved: map[string]uint64{}}
	for node, limits := range v.SystemReserved {
		for memoryType, bytes := range limits {
			if bytes > 0 {
				o.Reserved[node+":"+memoryType] = bytes
			}
		}
	}
	return o
}

// parseReservedMemory reads the values of --reserved-memory flags as one.
func parseReservedMemory(flags ...string) (reserved ReservedMemory, err error) {
	set := slices.DeleteFunc(slices.Clone(flags), func(flag string) bool { return flag == "" })
	err = reserved.UnmarshalText([]byte(strings.Join(set, ";")))
	return reserved, err
}

// ours is the outcome of the same flags for us, on the same machine.
func (v reservedVector) ours() outcome {
	c := Default()
	c.EvictionHard = nil
	reserved, err := parseReservedMemory(v.flags()...)
	if err != nil {
		return outcome{Error: err.Error()}
	}
	c.ReservedMemory = reserved
	nodes := 2
	if v.Kind == "manager" {
		nodes = v.Nodes
		c.KubeReserved = maps.Clone(v.NodeAllocatable)
		if v.NodeAllocatable["memory"] == "" && len(reserved) > 0 {
			c.KubeReserved["memory"] = "0"
		}
	} else {
		c.KubeReserved = map[string]string{}
		sum := uint64(0)
		for _, r := range reserved {
			sum += uint64(r.Limits["memory"])
		}
		if sum > 0 {
			c.KubeReserved["memory"] = strconv.FormatUint(sum, 10)
		}
	}
	m := machine.Machine{PageSize: 4096}
	for id := range nodes {
		m.Nodes = append(m.Nodes, machine.Node{ID: id, Memory: 16 << 30,
			Hugepages: []machine.Pool{{PageSize: 2 << 20, Count: 1024}, {PageSize: 1 << 30, Count: 2}}})
		m.MemTotal += 16 << 30
	}
	r, err := c.Resolve(m)
	if err != nil {
		return outcome{Error: err.Error()}
	}
	o := outcome{OK: true, Reserved: map[string]uint64{}}
	for _, node := range r.Nodes {
		for _, amount := range node.Reserved {
			o.Reserved[strconv.Itoa(node.ID)+":"+string(amount.Type)] = amount.Bytes
		}
	}
	return o
}

// difference is a record of reserved-differences.jsonl: where we differ on purpose.
type difference struct {
	// Record is the line in reserved-memory.jsonl, Flags what stands there.
	Record  int      `json:"record"`
	Flags   []string `json:"flags"`
	Kubelet outcome  `json:"kubelet"`
	Ours    outcome  `json:"ours"`
	Reason  string   `json:"reason"`
}

const vectorFolder = "../../testdata/vectors/"

// TestReservedMemoryVectors: every decision of the kubelet about --reserved-memory is ours too, but for the listed ones.
func TestReservedMemoryVectors(t *testing.T) {
	differences := map[int]difference{}
	for d := range records[difference](t, vectorFolder+"reserved-differences.jsonl") {
		differences[d.Record] = d
	}
	line, unexpected := 0, 0
	for v := range records[reservedVector](t, vectorFolder+"reserved-memory.jsonl") {
		line++
		kubelet, ours := v.kubelet(), v.ours()
		want, listed := differences[line]
		delete(differences, line)
		same := kubelet.OK == ours.OK && (v.Kind == "manager" || maps.Equal(kubelet.Reserved, ours.Reserved))
		switch {
		case listed && same:
			t.Errorf("record %d %q is listed as a difference and is none", line, v.flags())
		case listed:
			if diff := cmp.Diff(want, difference{line, v.flags(), kubelet, ours, want.Reason}); diff != "" || want.Reason == "" {
				t.Errorf("record %d (-listed +got):\n%s", line, diff)
			}
		case !same:
			unexpected++
			text, _ := json.Marshal(difference{line, v.flags(), kubelet, ours, ""})
			t.Errorf("record %d differs and is not listed:\n%s", line, text)
		}
		if v.OK && v.Kind == "flag" && ours.OK {
			v.compareValues(t, line)
		}
	}
	for line := range differences {
		t.Errorf("record %d of the list of differences does not exist", line)
	}
	t.Logf("reserved-memory vectors: %d records, %d differences", line, unexpected)
}

// compareValues compares the parsed amounts, and ours with what our own text of them reads as.
func (v reservedVector) compareValues(t *testing.T, line int) {
	t.Helper()
	reserved, _ := parseReservedMemory(v.Args...)
	again, err := parseReservedMemory(reserved.String())
	if diff := cmp.Diff(reserved, again); diff != "" || err != nil {
		t.Errorf("record %d: %q reads as (-want +got): %v\n%s", line, reserved, err, diff)
	}
	want := ReservedMemory{}
	for _, r := range v.Value {
		limits := map[string]ReservedBytes{}
		for memoryType, amount := range r.Limits {
			limits[memoryType] = ReservedBytes(amount.Bytes)
		}
		want = append(want, Reservation{r.NUMANode, limits})
	}
	if diff := cmp.Diff(want, reserved); diff != "" {
		t.Errorf("record %d (-kubelet +ours):\n%s", line, diff)
	}
	// The kubelet joins several groups with a comma, which its own flag does not read.
	if len(reserved) != 1 || v.Canonical == "" {
		return
	}
	canonical, err := parseReservedMemory(v.Canonical)
	if diff := cmp.Diff(canonical, reserved); diff != "" || err != nil {
		t.Errorf("record %d: the kubelet's text %q (-kubelet +ours): %v\n%s", line, v.Canonical, err, diff)
	}
}

// records yields the lines of a file of JSON lines.
func records[T any](t *testing.T, path string) func(func(T) bool) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return func(yield func(T) bool) {
		lines := bufio.NewScanner(bytes.NewReader(data))
		lines.Buffer(nil, 1<<20)
		for number := 1; lines.Scan(); number++ {
			var record T
			if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
				t.Fatalf("%s:%d: %v", path, number, err)
			}
			if !yield(record) {
				return
			}
		}
	}
}

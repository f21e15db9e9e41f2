package checkpoint

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// TestDamagedTextsAreJudgedAsTheKubeletDoes compares with what a kubelet 1.36 did with the same text at its start.
func TestDamagedTextsAreJudgedAsTheKubeletDoes(t *testing.T) {
	weRead := map[string]string{
		"c-restart-doc-file":     "the layout before 1.21, which today's kubelet can not read",
		"c-restart-doc-file-ck0": "the same without a checksum",
	}
	for _, kubelet := range readTexts(t, "testdata/damaged.jsonl") {
		file, err := Decode([]byte(kubelet.Text))
		if refused := kubelet.Kubelet != "" && weRead[kubelet.Name] == ""; (err != nil) != refused {
			t.Errorf("%s: %v, the kubelet: %s", kubelet.Name, err, kubelet.Kubelet)
		}
		if strings.Contains(kubelet.Name, "doc-file") && (file.Format != Nodes || file.Verified || len(file.State.Entries) != 1) {
			t.Errorf("%s: %+v", kubelet.Name, file)
		}
	}
}

const goodText = `{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":10842275840,"systemReserved":104857600,"allocatable":10737418240,"reserved":2147483648,"free":8589934592}},"cells":[0]}},"entries":{"a":{"c":[{"numaAffinity":[0],"type":"memory","size":2147483648}]}},"checksum":0}`

func TestDecodeErrorsSayWhatWouldBeRight(t *testing.T) {
	replaced := func(old, now string) string {
		if !strings.Contains(goodText, old) {
			t.Fatalf("%s is not in the text", old)
		}
		return strings.Replace(goodText, old, now, 1)
	}
	tests := map[string]struct{ text, want string }{
		"nothing":            {"", "is empty, want the kubelet's JSON text of a memory manager state"},
		"blanks":             {" \n", "is empty, want the kubelet's JSON text of a memory manager state"},
		"binary":             {"\x00\x01", "is not JSON from byte 1 on (cut short?): invalid character '\\x00' looking for beginning of value"},
		"cut short":          {goodText[:40], "is not JSON from byte 40 on (cut short?): unexpected end of JSON input"},
		"more behind it":     {goodText + "x", fmt.Sprintf("has text after the JSON, from byte %d on: invalid character 'x' after top-level value", len(goodText)+1)},
		"a list":             {"[]", "key \"\" before byte 1: found array, want an object"},
		"another file":       {`{"policyName":"none","defaultCpuSet":"0-3","checksum":0}`, `policyName is "none", want "Static" or "None"`},
		"no policy":          {`{}`, `policyName is "", want "Static" or "None"`},
		"wrong checksum":     {replaced(`"checksum":0`, `"checksum":7`), "checksum is 7, but the content has 2790510368: the file was changed or damaged after it was written"},
		"large checksum":     {replaced(`"checksum":0`, `"checksum":5503345474`), "checksum is 5503345474, but the content has 2790510368: the file was changed or damaged after it was written"},
		"text checksum":      {replaced(`"checksum":0`, `"checksum":"7"`), "key \"checksum\" before byte 313: found string, want a whole number"},
		"node out of range":  {replaced(`"0":{"n`, `"64":{"n`), "machineState: node 64: is out of range, want an id of 0 to 63"},
		"node below zero":    {replaced(`"0":{"n`, `"-1":{"n`), "machineState: node -1: is out of range, want an id of 0 to 63"},
		"node of null":       {`{"policyName":"Static","machineState":{"0":null}}`, "machineState: node 0: is null, want an object"},
		"table of null":      {`{"policyName":"Static","machineState":{"0":{"memoryMap":{"memory":null},"cells":[0]}}}`, "machineState: node 0: memoryMap: memory is null, want an object"},
		"no group":           {replaced(`"cells":[0]`, `"cells":[]`), "machineState: node 0: cells is [], want one or more distinct ids of 0 to 63"},
		"group twice":        {replaced(`"cells":[0]`, `"cells":[0,0]`), "machineState: node 0: cells is [0 0], want one or more distinct ids of 0 to 63"},
		"assignments":        {replaced(`"numberOfAssignments":1`, `"numberOfAssignments":-1`), "machineState: node 0: numberOfAssignments is -1, want 0 or more"},
		"block nowhere":      {replaced(`"numaAffinity":[0]`, `"numaAffinity":[99]`), "entries: pod a container c: numaAffinity is [99], want one or more distinct ids of 0 to 63"},
		"block without type": {replaced(`"type":"memory"`, `"type":""`), "entries: pod a container c: a block has no type, want memory or hugepages-<size>"},
		"negative size":      {replaced(`"size":2147483648`, `"size":-1`), "key \"entries.size\" before byte 286: found number -1, want a whole number"},
		"wrong sum":          {replaced(`"size":2147483648`, `"size":1`), "no checksum vouches for this text and it contradicts itself (1 findings): nodes 0: memory: reserved is 2Gi, but the containers' blocks are 1"},
		"pod level":          {replaced(`"checksum":0`, `"podEntries":{"p":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":1}]}},"checksum":0`), "no checksum vouches for this text and it contradicts itself (1 findings): pod p: has an allocation and no containers"},
		"pod block nowhere":  {replaced(`"checksum":0`, `"podEntries":{"p":{"memoryBlocks":[{"numaAffinity":[99],"type":"memory","size":1}]}},"checksum":0`), "podEntries: pod p: numaAffinity is [99], want one or more distinct ids of 0 to 63"},
		"wrapped, wrong sum": {`{"data":"{}","dataChecksum":5}`, "dataChecksum is 5, but data has 694314937: the file was changed or damaged after it was written"},
		"wrapped, no data":   {`{"dataChecksum":5}`, "dataChecksum is 5, but data has 441364273: the file was changed or damaged after it was written"},
		"wrapped, no JSON":   {wrap("x"), "data: is not JSON from byte 1 on (cut short?): invalid character 'x' looking for beginning of value"},
		"wrapped, no text":   {`{"data":5}`, "key \"data\" before byte 9: found number, want a string"},
		"amounts of nobody":  {replaced(`"checksum":0`, `"checksum":0,"perNodeChecksum":9`), "perNodeChecksum is 9, but the perNode amounts have 0: the file was changed or damaged after it was written"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Decode([]byte(test.text))
			if err == nil || err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

// wrap writes the layout of kubelets from 1.37 around a state's text.
func wrap(inner string) string {
	quoted, err := json.Marshal(inner)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"policyName":"Static","machineState":{},"checksum":1,"data":%s,"dataChecksum":%d}`, quoted, dataSum(inner))
}

func TestKubelet137IsRead(t *testing.T) {
	for _, kubelet := range readTexts(t, "testdata/kubelet.jsonl.gz") {
		plain, err := Decode([]byte(kubelet.Text))
		if err != nil {
			t.Fatal(err)
		}
		inner := kubelet.Text[:strings.LastIndex(kubelet.Text, `,"checksum"`)] + "}"
		file, err := Decode([]byte(wrap(inner)))
		if err != nil || file.Format != V3 || !file.Verified {
			t.Fatalf("%s: %v: %+v", kubelet.Name, err, file)
		}
		if string(Encode(file.Policy, file.State)) != string(Encode(plain.Policy, plain.State)) {
			t.Errorf("%s: not the state of the plain text", kubelet.Name)
		}
	}
}

func TestPodLevelKubeletWithoutPodsIsRead(t *testing.T) {
	text := `{"policyName":"Static","machineState":{},"checksum":%d}`
	sum := fnv1a([]byte("(*state.MemoryManagerCheckpoint){PolicyName:(string)Static MachineState:(state.NUMANodeMap)map[] " +
		"Entries:(state.ContainerMemoryAssignments)map[] PodEntries:(state.PodMemoryAssignments)map[] Checksum:(checksum.Checksum)0}"))
	if file, err := Decode(fmt.Appendf(nil, text, sum)); err != nil || !file.Verified || file.Format != V2 {
		t.Fatal(err)
	}
}

func TestOrderAndBlanksDoNotMatter(t *testing.T) {
	for _, kubelet := range readTexts(t, "testdata/kubelet.jsonl.gz") {
		var content any
		decoder := json.NewDecoder(strings.NewReader(kubelet.Text))
		decoder.UseNumber()
		if err := decoder.Decode(&content); err != nil {
			t.Fatal(err)
		}
		text, err := json.MarshalIndent(content, "", "\t") // sorts the keys
		if err != nil {
			t.Fatal(err)
		}
		if file, err := Decode(text); err != nil || !file.Verified {
			t.Errorf("%s: %v", kubelet.Name, err)
		}
	}
}

// FuzzDecode shows that a text is refused, or means a state that reads back the same.
func FuzzDecode(f *testing.F) {
	for _, file := range []string{"testdata/damaged.jsonl", "testdata/kubelet.jsonl.gz"} {
		for i, kubelet := range readTexts(f, file) {
			if i%8 == 0 || strings.Contains(file, "damaged") {
				f.Add([]byte(kubelet.Text))
			}
		}
	}
	f.Add([]byte(goodText))
	f.Add([]byte(wrap(goodText)))
	f.Add(Encode(PolicyStatic, overfull()))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Decode(data)
		if err != nil {
			return
		}
		Check(file.State)
		text := Encode(file.Policy, file.State)
		kubeletAccepts(t, text)
		again, err := Decode(text)
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, data, text)
		}
		if twice := Encode(again.Policy, again.State); string(twice) != string(text) {
			t.Fatalf("%s\n%s", text, twice)
		}
	})
}

// Before numa: spread was removed, a container had fixed parts on its nodes: it keeps its nodes and its memory, and the parts go with it.
func TestEvenPartsOfAnEarlierVersionAreRead(t *testing.T) {
	const node = `{"numberOfAssignments":1,"memoryMap":{"memory":{"total":17179869184,"systemReserved":0,"allocatable":17179869184,"reserved":2147483648,"free":15032385536}},"cells":[0,1]}`
	file, err := Decode([]byte(`{"policyName":"Static","machineState":{"0":` + node + `,"1":` + node + `},"entries":{"p":{"c":[{"numaAffinity":[0,1],"type":"memory","size":4294967296,` +
		`"perNode":{"0":2147483648,"1":2147483648},"even":true}]}},"checksum":3633226327,"perNodeChecksum":1652897830}`))
	if err != nil {
		t.Fatal(err)
	}
	m, err := memorymanager.New([]memorymanager.NodeCapacity{{ID: 0, Total: 16 << 30}, {ID: 1, Total: 16 << 30}}, memorymanager.Options{})
	if err != nil {
		t.Fatal(err)
	}
	report, err := m.Restore(file.State, 0)
	if err != nil || len(report.Problems) > 0 {
		t.Fatalf("%v, %v", report.Problems, err)
	}
	for _, n := range m.Nodes() {
		if n.Cells.Len() != 2 || n.Memory[0].Reserved != 2<<30 {
			t.Errorf("node %d is %+v", n.ID, n)
		}
	}
	m.Release("p", "c")
	for _, n := range m.Nodes() {
		if n.Grouped() || n.Memory[0].Free != 16<<30 {
			t.Errorf("after its end node %d is %+v", n.ID, n)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
)

// docState is the state file of the Kubernetes documentation's example, as a kubelet writes it today.
const docState = `{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"hugepages-1Gi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"memory":{"total":134987354112,"systemReserved":3221225472,"allocatable":131766128640,"reserved":131766128640,"free":0}},"cells":[0,1]},"1":{"numberOfAssignments":1,"memoryMap":{"hugepages-1Gi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"memory":{"total":135286722560,"systemReserved":2252341248,"allocatable":133034381312,"reserved":29295144960,"free":103739236352}},"cells":[0,1]}},"entries":{"fa9bdd38-6df9-4cf9-aa67-8c4814da37a8":{"guaranteed":[{"numaAffinity":[0,1],"type":"memory","size":161061273600}]}},"checksum":17296941}`

const docMachine = `nodes:
- {id: 0, memory: 134987354112, cpus: "0-3", hugepages: {1Gi: 0}}
- {id: 1, memory: 135286722560, cpus: "4-7", hugepages: {1Gi: 0}}
`

// runState runs "state" with the arguments.
func runState(args ...string) (code int, out, errOut string) {
	var stdout, stderr bytes.Buffer
	command := newStateCommand()
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetArgs(args)
	command.SetOut(&stdout)
	command.SetErr(&stderr)
	code = exitCode(command.ExecuteContext(context.Background()), &stderr)
	return code, stdout.String(), stderr.String()
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStateGoesFromTheKubeletAndBack(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "memory_manager_state", docState)
	dir := filepath.Join(t.TempDir(), "state")
	ours := filepath.Join(dir, checkpoint.FileName)
	code, out, errOut := runState("import", file, "--state-dir", dir)
	if want := "Took over 1 containers of " + file + " into " + ours + ".\n"; code != exitOK || out != want || errOut != "" {
		t.Fatalf("%d %q %q", code, out, errOut)
	}
	code, out, errOut = runState("import", file, "--state-dir", dir)
	if want := "nri-memory-manager: " + ours + " has 1 containers, not replaced without --force\n"; code != exitBadInput || errOut != want {
		t.Errorf("a second import: %d %q %q", code, out, errOut)
	}
	code, out, errOut = runState("import", file, "--state-dir", dir, "--force")
	if code != exitOK || !strings.HasPrefix(out, "The state file that was there is now "+ours+".replaced-") {
		t.Errorf("a forced import: %d %q %q", code, out, errOut)
	}
	if code, out, errOut = runState("export", "--state-dir", dir); code != exitOK || out != docState {
		t.Errorf("export: %d %q %q", code, out, errOut)
	}
	back := filepath.Join(t.TempDir(), "back")
	if code, out, errOut = runState("export", "--state-dir", dir, "-o", back); code != exitOK || out != "" {
		t.Errorf("export: %d %q %q", code, out, errOut)
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(back, link))
	must(t, os.WriteFile(back, nil, 0o600))
	if code, out, errOut = runState("export", "--state-dir", dir, "-o", link); code != exitOK || out != "" {
		t.Errorf("export: %d %q %q", code, out, errOut)
	}
	if text, err := os.ReadFile(back); err != nil || string(text) != docState {
		t.Errorf("export: %q %v", text, err)
	}
	if code, out, errOut = runState("export", "--state-dir", dir, "-o", "-"); code != exitOK || out != docState {
		t.Errorf("export: %d %q %q", code, out, errOut)
	}
}

func TestStateShow(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "memory_manager_state", docState)
	code, out, errOut := runState("show", file)
	if code != exitOK || errOut != "" {
		t.Fatalf("%d %q", code, errOut)
	}
	for _, want := range []string{
		file + ": policy Static, layout v1, checksum right, 1 containers\n",
		"NODE  GROUP  ASSIGNMENTS  TYPE           TOTAL    RESERVED  ALLOCATABLE  ALLOCATED  FREE",
		"1     0-1    1            memory         126Gi    2.098Gi   123.9Gi      27.28Gi    96.61Gi",
		"fa9bdd38-6df9-4cf9-aa67-8c4814da37a8  guaranteed  memory  150Gi  0-1",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	code, out, _ = runState("show", file, "-o", "json")
	for _, want := range []string{`"reserved": 131766128640`, `"verified": true`, `"container": "guaranteed"`} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

func TestStateVerify(t *testing.T) {
	t.Parallel()
	machine := writeFile(t, "machine.yaml", docMachine)
	tests := map[string]struct {
		state, machine string
		code           int
		want           []string
	}{
		"good": {docState, machine, exitOK, []string{" is good: 1 containers on 2 nodes.\n"}},
		"a kernel update": {
			docState, writeFile(t, "machine.yaml", strings.Replace(docMachine, "134987354112", "134987350016", 1)), exitOK, []string{" is good"},
		},
		"less memory": {
			docState, writeFile(t, "machine.yaml", strings.Replace(docMachine, "134987354112", "64Gi", 1)), exitFailed,
			[]string{
				"node 0: memory: total is 125.7Gi in the file and 64Gi on the machine, 61.72Gi apart (tolerated 64Mi)\n    to do: ",
				"node 0: memory: containers have 122.7Gi, the machine gives 61Gi\n",
			},
		},
		"one node": {
			docState, writeFile(t, "machine.yaml", docMachine[:strings.Index(docMachine, "- {id: 1")]), exitFailed,
			[]string{"node 1: is in the file, but not among the machine's nodes (1 assignments)\n    to do: "},
		},
		"less than is reserved": {
			docState, writeFile(t, "machine.yaml", strings.Replace(docMachine, "134987354112", "1Gi", 1)), exitFailed, []string{"machine: "},
		},
		"checksum, sums and groups at once": {
			strings.Replace(docState, `"size":161061273600`, `"size":1`, 1), machine, exitFailed,
			[]string{"checksum is 17296941, but the content has ", "nodes 0-1: memory: reserved is 150Gi, but the containers' blocks are 1\n"},
		},
		"no state file": {"no state", machine, exitFailed, []string{"is not JSON from byte 2 on", "    to do: put a good copy in its place"}},
		"cut short":     {docState[:200], machine, exitFailed, []string{"is not JSON from byte 200 on (cut short?)", "    to do: put a good copy in its place"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := runState("verify", writeFile(t, "state", test.state), "--machine", test.machine)
			if code != test.code || errOut != "" {
				t.Errorf("%d %q", code, errOut)
			}
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not in\n%s", want, out)
				}
			}
		})
	}
}

func TestStateVerifyWithConfiguration(t *testing.T) {
	t.Parallel()
	machine, state := writeFile(t, "machine.yaml", docMachine), writeFile(t, "state", docState)
	config := writeFile(t, "config.yaml", "reservedMemory: [{numaNode: 0, limits: {memory: 3Gi}}, {numaNode: 1, limits: {memory: 2148Mi}}]\n")
	if code, out, errOut := runState("verify", state, "--machine", machine, "--config", config); code != exitOK {
		t.Errorf("%d %q %q", code, out, errOut)
	}
	config = writeFile(t, "config.yaml", "reservedMemory: [{numaNode: 0, limits: {memory: 4Gi}}, {numaNode: 1, limits: {memory: 2148Mi}}]\n")
	code, out, errOut := runState("verify", state, "--machine", machine, "--config", config)
	if want := "node 0: memory: systemReserved is 3Gi in the file and 4Gi here\n"; code != exitFailed || !strings.Contains(out, want) {
		t.Errorf("%d %q %q", code, out, errOut)
	}
	config = writeFile(t, "config.yaml", "memoryManagerPolicy: None\n")
	if code, out, errOut := runState("verify", state, "--machine", machine, "--config", config); code != exitOK {
		t.Errorf("%d %q %q", code, out, errOut)
	}
}

// aKernel is the machine of docState as the kernel shows it, with so many KiB more on its nodes.
func aKernel(t *testing.T, iomem string, more ...int) string {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{"proc/meminfo": "MemTotal: 263939528 kB\n", "proc/iomem": iomem, "sys/devices/system/node/online": "0-1\n"}
	for id, kib := range []int{131823588, 132115940} {
		folder := fmt.Sprintf("sys/devices/system/node/node%d/", id)
		files[folder+"meminfo"] = fmt.Sprintf("Node %d MemTotal: %d kB\n", id, kib+more[id])
		files[folder+"cpulist"] = fmt.Sprintln(id)
		files[folder+"distance"] = "10 10\n"
		files[folder+"hugepages/hugepages-1048576kB/nr_hugepages"] = "0\n"
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestStateVerifyWithMemoryThatMoved(t *testing.T) {
	t.Parallel()
	const (
		image  = "00100000-7fffffff : System RAM\n  01000000-01ffffff : Kernel code\n  03a00000-03ffffff : Kernel bss\n"
		zeroed = "00000000-00000000 : Kernel code\n  00000000-00000000 : Kernel bss\n"
	)
	tests := map[string]struct {
		iomem, tolerance string
		more             []int // KiB
		want             string
	}{
		"12 KiB, auto":                 {image, "auto", []int{-12, 0}, " is good"},
		"12 KiB, exact":                {image, "0", []int{-12, 0}, "node 0: memory: total is 125.71677Gi in the file and 125.71676Gi on the machine, 12Ki apart (tolerated 0)\n"},
		"12 KiB, unprivileged":         {zeroed, "auto", []int{-12, 0}, "12Ki apart (tolerated 0)\n"},
		"from node to node, 128Mi":     {zeroed, "128Mi", []int{-42670, 42670}, " is good"},
		"from node to node, 32Mi":      {image, "32Mi", []int{-42670, 42670}, "41.67Mi apart (tolerated 32Mi)\n"},
		"as much as the bound":         {image, "auto", []int{0, 114688}, " is good"},
		"a page more than the bound":   {image, "auto", []int{0, 114692}, "112.004Mi apart (tolerated 112Mi)\n"},
		"within it, and does not fit":  {image, "200Gi", []int{-50 << 20, -50 << 20}, "nodes 0-1: memory: the memory assignment does not fit the machine state: containers have 150Gi, the machine gives 146.6Gi\n"},
		"more than 64Mi, the defaults": {image, "64Mi", []int{0, 65540}, "64.004Mi apart (tolerated 64Mi)\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			config := writeFile(t, "config.yaml", "stateTolerance: "+test.tolerance+"\nreservedMemory: 0:memory=3Gi;1:memory=2148Mi\n")
			code, out, errOut := runState("verify", writeFile(t, "state", docState), "--machine", aKernel(t, test.iomem, test.more...), "--config", config)
			if good := test.want == " is good"; good != (code == exitOK) || !strings.Contains(out, test.want) {
				t.Errorf("%d %q\n%s", code, errOut, out)
			}
		})
	}
}

func TestStateBadInput(t *testing.T) {
	t.Parallel()
	bad := writeFile(t, "bad", "no state")
	good := writeFile(t, "good", docState)
	none := writeFile(t, "none", `{"policyName":"None","machineState":{},"checksum":4236770233}`)
	odd := writeFile(t, "memory_manager_state", strings.Replace(strings.Replace(docState, `"reserved":29295144960`, `"reserved":29295144961`, 1), `"checksum":17296941`, `"checksum":3729482292`, 1))
	missing := filepath.Join(t.TempDir(), "missing")
	tests := map[string]struct {
		args []string
		code int
		want string
	}{
		"no file":             {[]string{"show", missing}, exitBadInput, "reading the state file: open " + missing + ": no such file or directory"},
		"no state":            {[]string{"show", bad}, exitBadInput, "state file " + bad + ": is not JSON from byte 2 on"},
		"no such output":      {[]string{"show", good, "-o", "yaml"}, exitBadInput, `--output "yaml": want one of table, json`},
		"import of no state":  {[]string{"import", bad}, exitBadInput, "state file " + bad + ": is not JSON from byte 2 on"},
		"import of nothing":   {[]string{"import", none, "--state-dir", t.TempDir()}, exitBadInput, `policyName is "None": there is nothing to take over, want "Static"`},
		"import into a file":  {[]string{"import", good, "--state-dir", bad}, exitBadInput, "making the state folder: mkdir " + bad + ": not a directory"},
		"export for 1.31":     {[]string{"export", "--for", "1.31"}, exitBadInput, "want a kubelet's version, one of 1.35, 1.36, 1.37; older ones read what 1.35 reads\n"},
		"export for v1.37.2":  {[]string{"export", "--for", "v1.37.2", "--state-dir", t.TempDir()}, exitBadInput, "no such file or directory"},
		"export of no state":  {[]string{"export", "--state-dir", t.TempDir()}, exitBadInput, "no such file or directory"},
		"export of bad sums":  {[]string{"export", "--state-dir", filepath.Dir(odd)}, exitFailed, "A kubelet would refuse this state:\nnode 1: memory: reserved 29295144961 + free 103739236352 is 133034381313, but allocatable is 133034381312\n"},
		"export to a folder":  {[]string{"export", "--state-dir", filepath.Dir(writeFile(t, checkpoint.FileName, docState)), "-o", t.TempDir()}, exitBadInput, "want a regular file"},
		"export to a device":  {[]string{"export", "--state-dir", filepath.Dir(writeFile(t, checkpoint.FileName, docState)), "-o", os.DevNull}, exitBadInput, "--output /dev/null: want a regular file"},
		"verify without file": {[]string{"verify", missing}, exitBadInput, "no such file or directory"},
		"verify, no machine":  {[]string{"verify", good, "--machine", missing}, exitBadInput, "machine: "},
		"verify, no config":   {[]string{"verify", good, "--machine", writeFile(t, "machine.yaml", docMachine), "--config", missing}, exitBadInput, missing},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			code, _, errOut := runState(test.args...)
			if code != test.code || !strings.Contains(errOut, test.want) {
				t.Errorf("%d %q, want %d %q", code, errOut, test.code, test.want)
			}
		})
	}
}

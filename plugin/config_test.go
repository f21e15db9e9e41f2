package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runConfig runs "config" with arguments and returns its exit code and what it printed.
func runConfig(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var outBuffer, errBuffer bytes.Buffer
	command := newConfigCommand()
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetArgs(append([]string{}, args...)) // of nil it takes the test binary's own
	command.SetOut(&outBuffer)
	code = exitCode(command.Execute(), &errBuffer)
	return code, outBuffer.String(), errBuffer.String()
}

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const taskPageMachine = "../testdata/machines/task-page.yaml"

func TestConfigCheckShowsWhatNodesHaveLeft(t *testing.T) {
	t.Parallel()
	code, out, errOut := runConfig(t, "check", "../testdata/config/task-page.yaml", "--machine", taskPageMachine)
	const want = `../testdata/config/task-page.yaml is valid.
NODE  TOTAL    RESERVED  HUGE PAGES  ALLOCATABLE
0     125.7Gi  3Gi       0           122.7Gi
1     126Gi    2.098Gi   0           123.9Gi
`
	if code != exitOK || out != want || errOut != "" {
		t.Errorf("exit %d, error %q, printed\n%s\nwant\n%s", code, errOut, out, want)
	}
}

// Nodes for claims alone are in the table, too, in the order of the nodes; what claims may have is a part of what is allocatable.
func TestConfigCheckShowsNodesForClaims(t *testing.T) {
	t.Parallel()
	machine := filepath.Join(t.TempDir(), "machine.yaml")
	must(t, os.WriteFile(machine, []byte("nodes:\n- {id: 0, memory: 16Gi, cpus: 0-7}\n- {id: 1, memory: 32Gi}\n- {id: 2, memory: 16Gi, cpus: 8-15, hugepages: {2Mi: 512}}\n"), 0o600))
	const confine = "nodesWithoutCPUs: Confine\nkubeReserved: {memory: 1948Mi}\n"
	for yaml, want := range map[string]string{
		confine + "dra: {enabled: true}": `NODE  TOTAL  RESERVED  HUGE PAGES  ALLOCATABLE  FOR CLAIMS
0     16Gi   1Gi       0           15Gi         7.5Gi
1     32Gi   0         0           32Gi         32Gi
2     16Gi   1Gi       1Gi         14Gi         7Gi
`,
		confine + "dra: {enabled: true, shares: [{limits: {memory: 0}}]}": `NODE  TOTAL  RESERVED  HUGE PAGES  ALLOCATABLE  FOR CLAIMS
0     16Gi   1Gi       0           15Gi         0
1     32Gi   0         0           32Gi         0
2     16Gi   1Gi       1Gi         14Gi         0
`,
		confine: `NODE  TOTAL  RESERVED  HUGE PAGES  ALLOCATABLE
0     16Gi   1Gi       0           15Gi
2     16Gi   1Gi       1Gi         14Gi
`,
	} {
		code, out, errOut := runConfig(t, "check", configFile(t, yaml), "--machine", machine)
		if _, table, _ := strings.Cut(out, "is valid.\n"); code != exitOK || table != want || errOut != "" {
			t.Errorf("%s: exit %d, error %q, printed\n%s\nwant\n%s", yaml, code, errOut, out, want)
		}
		var all []checked
		_, asJSON, _ := runConfig(t, "check", configFile(t, yaml), "--machine", machine, "-o", "json")
		must(t, json.Unmarshal([]byte(asJSON), &all))
		if claimed := strings.Contains(want, "32Gi\n"); claimed && (all[0].Nodes[1].ID != 1 || *all[0].Nodes[1].ForClaims != 32<<30) || strings.Contains(asJSON, "forClaims") != strings.Contains(want, "CLAIMS") {
			t.Errorf("%s: %s", yaml, asJSON)
		}
	}
}

func TestConfigCheckPrintsWarnings(t *testing.T) {
	t.Parallel()
	code, out, _ := runConfig(t, "check", configFile(t, "kubeReserved: {memory: 1Gi}"), "--machine", "../testdata/machines/four-unequal.yaml")
	for _, want := range []string{
		"warning: NUMA nodes without CPUs are left out (nodesWithoutCPUs: Exclude): 3\n", "warning: NUMA nodes with CPUs and without memory are left out: 4\n", "warning: reservedMemory is not set: kubeReserved 1Gi", "config.yaml is valid.\n", "\n0     62.76Gi  ", "5Gi ",
	} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("exit %d, printed\n%s\nwithout %q", code, out, want)
		}
	}
}

func TestConfigCheckWithoutPlacement(t *testing.T) {
	t.Parallel()
	path := configFile(t, "memoryManagerPolicy: None")
	if code, out, _ := runConfig(t, "check", path); code != exitOK || out != path+" is valid.\n" {
		t.Errorf("exit %d, printed %q", code, out)
	}
}

func TestConfigCommandsRefuseBadInput(t *testing.T) {
	t.Parallel()
	bad := configFile(t, "events: maybe")
	api := configFile(t, "events: true\nnodeResourceTopology: true\n")
	absentNode := configFile(t, "\nreservedMemory: 7:memory=1Gi")
	tests := map[string]struct {
		args []string
		want string
	}{
		"check a bad file":         {[]string{"check", bad, "--machine", taskPageMachine}, bad + `:1: events: want true or false, got "maybe"`},
		"check no file":            {[]string{"check"}, `FILE… is missing, as in "nri-memory-manager config check /etc/nri/memory-manager/config.yaml"`},
		"check without kubeconfig": {[]string{"check", api, "--machine", taskPageMachine, "--kubeconfig", "/nowhere/kubeconfig", "--node-name", "worker-1"}, "--kubeconfig: read kubeconfig /nowhere/kubeconfig: stat /nowhere/kubeconfig: no such file or directory"},
		"check a bad kubeconfig":   {[]string{"check", api, "--machine", taskPageMachine, "--kubeconfig", bad}, "--kubeconfig: read kubeconfig " + bad},
		"check a bad node name":    {[]string{"check", api, "--machine", taskPageMachine, "--node-name", "Worker/1"}, `--node-name "Worker/1" is not the name of a node: a lowercase RFC 1123 subdomain`},
		"check for another node":   {[]string{"check", absentNode, "--machine", taskPageMachine}, absentNode + ":2: reservedMemory[0].numaNode: this machine has no NUMA node 7, only 0-1"},
		"check without machine":    {[]string{"check", configFile(t, ""), "--machine", "absent"}, "machine: stat absent: no such file or directory"},
		"check nothing":            {[]string{"check", "-", "--machine", taskPageMachine}, "read the configuration: standard input has nothing in it"},
		"show a bad file":          {[]string{"show", bad}, bad + `:1: events: want true or false, got "maybe"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := runConfig(t, tc.args...)
			if code != exitBadInput || out != "" || !strings.HasPrefix(errOut, "nri-memory-manager: "+tc.want) || strings.Count(errOut, "\n") != 1 {
				t.Errorf("exit %d, printed %q, error %q, want %q", code, out, errOut, tc.want)
			}
		})
	}
}

// Several files, and standard input, for people and for programs; a key that was replaced names what replaces it.
func TestConfigChecksSeveralFiles(t *testing.T) {
	t.Parallel()
	good, bad := configFile(t, "profile: Observe"), configFile(t, "dryRun: true\nonGroupConflict: Fail")
	code, out, errOut := run(t, "log: {level: debug}", "config", "check", good, "-", bad, "--machine", taskPageMachine, "-o", "json")
	var all []checked
	must(t, json.Unmarshal([]byte(out), &all))
	wantErrors := []string{
		`standard input:1: unknown field "log": use logLevel, and the flag --log-format`,
		bad + `:1: unknown field "dryRun": use profile: Observe`,
		bad + `:2: unknown field "onGroupConflict": use onConflict: Kubelet in place of Fail, CPUs in place of FallBack`,
	}
	if want := "nri-memory-manager: " + strings.Join(wantErrors, "\nnri-memory-manager: ") + "\n"; code != exitBadInput || errOut != want {
		t.Errorf("exit %d, error %q, want %q", code, errOut, want)
	}
	if len(all) != 3 || !all[0].Valid || len(all[0].Nodes) != 2 || all[0].Nodes[1].Allocatable == 0 || all[1].Valid || !slices.Equal(slices.Concat(all[1].Errors, all[2].Errors), wantErrors) {
		t.Errorf("%+v", all)
	}
	if code, out, _ := run(t, "profile: QoS", "config", "check", good, "-", "--machine", taskPageMachine); code != exitOK || !strings.Contains(out, good+" is valid.\nNODE  TOTAL") ||
		!strings.HasSuffix(out, "\nstandard input is valid.\n") {
		t.Errorf("exit %d:\n%s", code, out)
	}
}

// yq prints "null" for a key that is not there.
func TestConfigRefusesNullOnStandardInput(t *testing.T) {
	t.Parallel()
	refused(t, "null\n", "read the configuration: standard input has nothing in it", "config", "show", "-")
}

func TestConfigShowPrintsWhatIsReadBack(t *testing.T) {
	t.Parallel()
	code, out, errOut := runConfig(t, "show", configFile(t, "memoryThrottlingFactor: null"))
	if code != exitOK || !strings.Contains(out, "memoryThrottlingFactor: null\n") || !strings.Contains(out, "stateTolerance: 64Mi\n") {
		t.Fatalf("exit %d, error %q, printed\n%s", code, errOut, out)
	}
	if code, again, errOut := runConfig(t, "show", configFile(t, out)); code != exitOK || again != out {
		t.Errorf("exit %d, error %q, printed\n%s\nwant\n%s", code, errOut, again, out)
	}
	if code, piped, _ := run(t, out, "config", "show", "-"); code != exitOK || piped != out {
		t.Errorf("from standard input: exit %d, printed\n%s\nwant\n%s", code, piped, out)
	}
	if code, _, errOut := run(t, "cacheRom: 1", "config", "show", "-"); code != exitBadInput || !strings.Contains(errOut, `standard input:1: unknown field "cacheRom"`) {
		t.Errorf("from standard input: exit %d, error %q", code, errOut)
	}
	// What a value leaves open is said.
	for _, want := range []string{
		"memoryThrottlingFactor: 0.9\n", "\nkubeletConfig: \"\"\n", "\nonUnsatisfiable: \"\" # Unpinned, by topologyManagerPolicy\n", "\nannotationRules: []\n",
		"\nreservedMemory: [] # kubeReserved, systemReserved and evictionHard, spread over the NUMA nodes\n",
		"\nrequestSources: [] # all that are there, in this order: kubelet, apiserver, unified, annotation, swap, oomscore\n",
	} {
		if code, defaults, _ := runConfig(t, "show"); code != exitOK || !strings.Contains(defaults, want) {
			t.Errorf("exit %d, want %q in\n%s", code, want, defaults)
		}
	}
	set := "topologyManagerPolicy: restricted\nrequestSources: [oomscore]\nreservedMemory: 0:memory=100Mi\n"
	if code, out, _ := run(t, set, "config", "show", "-"); code != exitOK || strings.Count(out, "#") != 1 || !strings.Contains(out, "\"\" # Reject, by ") {
		t.Errorf("exit %d, printed\n%s", code, out)
	}
}

func TestConfigAloneShowsItsHelp(t *testing.T) {
	t.Parallel()
	if code, out, _ := runConfig(t); code != exitOK || !strings.Contains(out, "config check FILE") && !strings.Contains(out, "check ") {
		t.Errorf("exit %d, printed %q", code, out)
	}
}

// Everything that is wrong has one line with its place, and what only follows from another error has none.
func TestConfigCheckReportsAllErrors(t *testing.T) {
	t.Parallel()
	path := configFile(t, `memoryManagerPolcy: Static
topologyManagerPolicy: strict
reservedMemory:
  - {numaNode: 7, limits: {memory: 1Gi}}
  - {numaNode: 8, limits: {memory: 1Gi, cpu: 1}}
kubeReserved: {memory: 1GB, memroy: 1Gi}
requestSources: [kubelet, etcd, apiserver]
stallGuard: maybe
events: true
`)
	code, out, errOut := runConfig(t, "check", path, "--machine", taskPageMachine, "--kubeconfig", "/nowhere/kubeconfig")
	want := []string{
		`:1: unknown field "memoryManagerPolcy", did you mean "memoryManagerPolicy"?`,
		`:8: stallGuard: want true or false, got "maybe"`,
		`:2: topologyManagerPolicy: want none, best-effort, restricted or single-numa-node, got "strict"`,
		`:5: reservedMemory[1].limits: "cpu" is neither memory nor hugepages-<size>`,
		`:6: kubeReserved.memory: "1GB" is not a quantity such as 64Mi, 2G or 4096`,
		`:6: kubeReserved: unknown resource "memroy", did you mean "memory"?`,
		`:7: requestSources[1]: want kubelet, apiserver, unified, annotation, swap or oomscore, got "etcd"`,
		"--kubeconfig: read kubeconfig /nowhere/kubeconfig: stat /nowhere/kubeconfig: no such file or directory",
	}
	lines := strings.Split(strings.TrimSpace(errOut), "\n")
	if code != exitBadInput || out != "" || len(lines) != len(want) {
		t.Fatalf("exit %d, printed %q, %d errors, want %d:\n%s", code, out, len(lines), len(want), errOut)
	}
	for i, line := range lines {
		if line = strings.TrimPrefix(strings.TrimPrefix(line, "nri-memory-manager: "), path); !strings.HasPrefix(line, want[i]) {
			t.Errorf("line %d is %q, want %q", i, line, want[i])
		}
	}
}

func TestConfigCheckReportsEveryReservation(t *testing.T) {
	t.Parallel()
	path := configFile(t, "reservedMemory:\n  - {numaNode: 7, limits: {memory: 1Gi}}\n  - {numaNode: 0, limits: {memory: 500Gi, hugepages-64Ki: 1Mi}}\nkubeReserved: {memory: 1Ti}\n")
	_, _, errOut := runConfig(t, "check", path, "--machine", taskPageMachine)
	for _, want := range []string{
		":4: kubeReserved: ", ":2: reservedMemory[0].numaNode: this machine has no NUMA node 7", ":3: reservedMemory[1].limits.memory: 500Gi",
		`:3: reservedMemory[1].limits.hugepages-64Ki: NUMA node 0 has no "hugepages-64Ki"`,
	} {
		if !strings.Contains(errOut, path+want) {
			t.Errorf("%q is not in\n%s", want, errOut)
		}
	}
}

// What depends on where run is started is a warning: the file may be checked elsewhere.
func TestConfigCheckWarnsOfCredentialsThatOnlyAPodHas(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("NODE_NAME", "")
	path := configFile(t, "events: true")
	code, out, errOut := runConfig(t, "check", path, "--machine", taskPageMachine)
	if code != exitOK || errOut != "" || !strings.Contains(out, "warning: "+path+":1: events: the credentials for the API server are those of the pod") {
		t.Errorf("exit %d, error %q, printed\n%s", code, errOut, out)
	}
}

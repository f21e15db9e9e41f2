package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// runConfig runs "config" with arguments and returns its exit code and what it printed.
func runConfig(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var outBuffer, errBuffer bytes.Buffer
	command := newConfigCommand()
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetArgs(args)
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
	code, out, errOut := runConfig(t, "check", "../testdata/config/task-page.yaml", "--machine", taskPageMachine)
	const want = `../testdata/config/task-page.yaml is valid.
NODE  MEMORY       RESERVED  HUGE PAGES  ALLOCATABLE
0     131823588Ki  3Gi       0           128677860Ki
1     132115940Ki  2148Mi    0           129916388Ki
`
	if code != exitOK || out != want || errOut != "" {
		t.Errorf("exit %d, error %q, printed\n%s\nwant\n%s", code, errOut, out, want)
	}
}

func TestConfigCheckPrintsWarnings(t *testing.T) {
	code, out, _ := runConfig(t, "check", configFile(t, "memoryManagerPolicy: Static"), "--machine", "../testdata/machines/four-unequal.yaml")
	for _, want := range []string{
		"warning: NUMA node 3 has no CPUs and is left out: ", "warning: reservedMemory is not set: ", "config.yaml is valid.\n", "\n0     65805228Ki   ", "5Gi ",
	} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("exit %d, printed\n%s\nwithout %q", code, out, want)
		}
	}
}

func TestConfigCheckWithoutPlacement(t *testing.T) {
	path := configFile(t, "memoryManagerPolicy: None")
	if code, out, _ := runConfig(t, "check", path); code != exitOK || out != path+" is valid.\n" {
		t.Errorf("exit %d, printed %q", code, out)
	}
}

func TestConfigCommandsRefuseBadInput(t *testing.T) {
	bad := configFile(t, "dryRun: maybe")
	absentNode := configFile(t, "\nreservedMemory: 7:memory=1Gi")
	tests := map[string]struct {
		args []string
		want string
	}{
		"check a bad file":       {[]string{"check", bad, "--machine", taskPageMachine}, bad + `:1: dryRun: want true or false, got "maybe"`},
		"check no file":          {[]string{"check"}, "accepts 1 arg(s), received 0"},
		"check for another node": {[]string{"check", absentNode, "--machine", taskPageMachine}, absentNode + ":2: reservedMemory[0].numaNode: this machine has no NUMA node 7, only 0-1"},
		"check without machine":  {[]string{"check", configFile(t, ""), "--machine", "absent"}, "machine: stat absent: no such file or directory"},
		"show a bad file":        {[]string{"show", bad}, bad + `:1: dryRun: want true or false, got "maybe"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := runConfig(t, tc.args...)
			if code != exitBadInput || out != "" || errOut != "nri-memory-manager: "+tc.want+"\n" {
				t.Errorf("exit %d, printed %q, error %q, want %q", code, out, errOut, tc.want)
			}
		})
	}
}

func TestConfigShowPrintsWhatIsReadBack(t *testing.T) {
	code, out, errOut := runConfig(t, "show", configFile(t, "memoryThrottlingFactor: null"))
	if code != exitOK || !strings.Contains(out, "memoryThrottlingFactor: null\n") || !strings.Contains(out, "stateTolerance: 64Mi\n") {
		t.Fatalf("exit %d, error %q, printed\n%s", code, errOut, out)
	}
	if code, again, errOut := runConfig(t, "show", configFile(t, out)); code != exitOK || again != out {
		t.Errorf("exit %d, error %q, printed\n%s\nwant\n%s", code, errOut, again, out)
	}
	if code, defaults, _ := runConfig(t, "show"); code != exitOK || !strings.Contains(defaults, "memoryThrottlingFactor: 0.9\n") {
		t.Errorf("exit %d, printed\n%s", code, defaults)
	}
}

func TestConfigAloneShowsItsHelp(t *testing.T) {
	if code, out, _ := runConfig(t); code != exitOK || !strings.Contains(out, "config check FILE") && !strings.Contains(out, "check ") {
		t.Errorf("exit %d, printed %q", code, out)
	}
}

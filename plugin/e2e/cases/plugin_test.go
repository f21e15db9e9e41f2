package cases

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// settings are lines of the configuration file; defaults of the tests follow
// unless they name the key themselves.
var settings = []string{
	"memoryManagerPolicy: Static",
	"topologyManagerPolicy: best-effort",
	"memoryThrottlingFactor: 0.9",
	"requestSources: [kubelet]",
	"stallGuard: false", // its cases turn it on
	"logLevel: debug",
}

// timings are for an emulated machine: a slow one must not fall to a worse source, and no case waits for the periodic check.
const timings = "--timings=check=2s,request=1500ms"

// plugin is a running process of the binary under test.
type plugin struct {
	t      *testing.T
	config string
	state  string
	log    string
	flags  []string // of run, beside those of every plugin
	args   []string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{}
}

// plugins counts the plugins that a test has made: each has its own files.
var plugins = map[string]int{}

// metricsAddress is where the plugin under test serves its metrics.
const metricsAddress = "127.0.0.1:8891"

// newPlugin prepares a plugin with this configuration and a state folder of
// the test's own; start starts it. Lines that begin with -- are flags.
func newPlugin(t *testing.T, lines ...string) *plugin {
	t.Helper()
	name := strings.ReplaceAll(t.Name(), "/", "-")
	if plugins[name]++; plugins[name] > 1 {
		name += fmt.Sprint("-", plugins[name])
	}
	p := &plugin{t: t, flags: append([]string{timings}, slices.DeleteFunc(slices.Clone(lines), isNoFlag)...), state: filepath.Join("/run/e2e/state", name), log: filepath.Join(setup.Logs, "plugin-"+name+".log")}
	p.config = filepath.Join("/run/e2e/config", name+".yaml")
	for _, dir := range []string{filepath.Dir(p.state), filepath.Dir(p.config)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.configure(lines...)
	p.keepStateIn(p.state)
	t.Cleanup(func() {
		p.kill()
		// The next case finds the node as before, whatever this one's plugin promised to kubepods and the QoS levels.
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		if out, err := exec.CommandContext(ctx, setup.Plugin, "rollback", "--state-dir", p.state).CombinedOutput(); err != nil {
			t.Logf("rollback after the case: %v: %s", err, out)
		}
		_ = os.RemoveAll(p.state)
	})
	return p
}

// keepStateIn has the next process keep its state in a folder.
func (p *plugin) keepStateIn(dir string) {
	p.state = dir
	p.args = []string{"run", "--config", p.config, "--state-dir", p.state, "--metrics-address", metricsAddress}
	p.args = append(p.args, p.flags...)
}

func isFlag(line string) bool { return strings.HasPrefix(line, "--") }

func isNoFlag(line string) bool { return !isFlag(line) }

// configure writes the configuration file.
func (p *plugin) configure(lines ...string) {
	p.t.Helper()
	all := slices.DeleteFunc(slices.Clone(lines), isFlag)
	for _, line := range settings {
		key, _, _ := strings.Cut(line, ":")
		if !strings.Contains("\n"+strings.Join(lines, "\n"), "\n"+key+":") {
			all = append(all, line)
		}
	}
	if err := os.WriteFile(p.config, []byte(strings.Join(all, "\n")+"\n"), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// startPlugin starts a plugin and waits until it has synchronized.
func startPlugin(t *testing.T, lines ...string) *plugin {
	t.Helper()
	p := newPlugin(t, lines...)
	p.start()
	p.waitSynchronized(1)
	return p
}

// start starts the process.
func (p *plugin) start() {
	p.t.Helper()
	if err := p.launch(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plugin) launch() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintln(log, startMark)
	cmd := exec.Command(setup.Plugin, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "NODE_NAME=e2e", "GOGC=100", "GOMAXPROCS=")
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	p.mu.Lock()
	p.cmd, p.done = cmd, done
	p.mu.Unlock()
	return nil
}

// startMark parts the log of one start from that of the one before.
const startMark = "=== start"

// output is what the process said since it was started last.
func (p *plugin) output() string {
	text := file(p.log)
	return text[max(0, strings.LastIndex(text, startMark)):]
}

// synchronized is what the plugin logs when it has taken over the runtime's containers.
const synchronized = "synchronized with the runtime"

// waitSynchronized waits until the running process has synchronized n times.
func (p *plugin) waitSynchronized(n int) {
	p.t.Helper()
	eventually(p.t, "the plugin synchronizes with the runtime", func() string {
		select {
		case <-p.done:
			p.t.Fatalf("the plugin ended:\n%s", p.output())
		default:
		}
		if out := p.output(); strings.Count(out, synchronized) < n {
			return out[max(0, len(out)-2000):]
		}
		return ""
	})
}

// kill ends the process at once; without one it does nothing.
func (p *plugin) kill() {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Signal(syscall.SIGKILL)
	<-done
}

// stop asks the process to end and waits for it.
func (p *plugin) stop() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.done
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("exit status %d after SIGTERM:\n%s", code, p.output())
	}
}

// restart starts the process again after its end and waits for it.
func (p *plugin) restart() {
	p.t.Helper()
	p.start()
	p.waitSynchronized(1)
}

// command runs another subcommand of the binary and returns what it printed
// and its exit status.
func (p *plugin) command(args ...string) (string, int) {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), setup.Plugin, args...)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// ask runs a subcommand that asks the running process.
func (p *plugin) ask(args ...string) (string, int) {
	p.t.Helper()
	return p.command(append(args, "--state-dir", p.state)...)
}

// stateFile is the state file's path.
func (p *plugin) stateFile() string { return filepath.Join(p.state, "memory_manager_state") }

// state is the content of the state file, which has the kubelet's form.
type state struct {
	PolicyName   string                        `json:"policyName"`
	MachineState map[string]nodeState          `json:"machineState"`
	Entries      map[string]map[string][]block `json:"entries"`
}

type nodeState struct {
	Assignments int                  `json:"numberOfAssignments"`
	Memory      map[string]nodeTable `json:"memoryMap"`
	Cells       []int                `json:"cells"`
}

type nodeTable struct {
	Total, Allocatable, Reserved, Free uint64
}

type block struct {
	Nodes []int  `json:"numaAffinity"`
	Type  string `json:"type"`
	Size  uint64 `json:"size"`
}

// read reads the state file.
func (p *plugin) read() (state, error) { return readState(p.stateFile()) }

// readState reads a checkpoint in the kubelet's form; an empty state when there is none yet.
func readState(file string) (state, error) {
	var s state
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("state file %q: %w", text, err)
	}
	return s, nil
}

// allocated returns a container's blocks in the state file.
func (p *plugin) allocated(pod *kubelet.Pod, container string) []block {
	p.t.Helper()
	s, err := p.read()
	if err != nil {
		p.t.Fatal(err)
	}
	return s.Entries[pod.UID][container]
}

// free says whether nothing is allocated, else what.
func (p *plugin) free() string {
	s, err := p.read()
	if err != nil {
		return err.Error()
	}
	if len(s.Entries) > 0 {
		return fmt.Sprintf("still allocated: %v", s.Entries)
	}
	for id, n := range s.MachineState {
		if n.Assignments != 0 || len(n.Cells) > 1 {
			return fmt.Sprintf("node %s: %d assignments, group %v", id, n.Assignments, n.Cells)
		}
		for kind, table := range n.Memory {
			if table.Reserved != 0 || table.Free != table.Allocatable {
				return fmt.Sprintf("node %s, %s: %+v", id, kind, table)
			}
		}
	}
	return ""
}

// waitFree waits until nothing is allocated.
func (p *plugin) waitFree() {
	p.t.Helper()
	eventually(p.t, "everything is free again", p.free)
}

// metric sums a metric over its labels, -1 when it is not there.
func metric(t *testing.T, name string) float64 {
	t.Helper()
	text, err := get("http://" + metricsAddress + "/metrics")
	if err != nil {
		t.Logf("metrics: %v", err)
		return -1
	}
	sum, found := 0.0, false
	for _, m := range regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(name)+`(?:\{[^}]*\})? (\S+)$`).FindAllStringSubmatch(text, -1) {
		var value float64
		if _, err := fmt.Sscan(m[1], &value); err == nil {
			sum, found = sum+value, true
		}
	}
	if !found {
		return -1
	}
	return sum
}

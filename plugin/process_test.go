package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/commandline"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cgroups"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

const exitOK, exitFailed, exitBadInput = commandline.ExitOK, commandline.ExitFailed, commandline.ExitBadInput

// bound is how long a test waits for what must come; only a broken plugin waits that long.
const bound = 60 * time.Second

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if socket := os.Getenv(idleVariable); socket != "" {
		return runIdle(socket)
	}
	if path := os.Getenv(profileVariable); path != "" {
		runProfiled(path)
		return 0
	}
	dir, err := os.MkdirTemp("", "nri-memory-manager")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	binary = filepath.Join(dir, "nri-memory-manager")
	if !raceDetector {
		err = build(binary, ".")
	} else if err = build(binary, ".", "-race"); err == nil {
		err = collectRaces(filepath.Join(dir, "races"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	races, _ := filepath.Glob(filepath.Join(dir, "races", "*"))
	for _, file := range races {
		report, err := os.ReadFile(file)
		fmt.Printf("--- FAIL: a daemon has a data race (%v)\n%s\n", err, report)
		code = 1
	}
	return code
}

// raceDetector has the tests run a daemon that is built with the race detector: `make test RACE=1`.
var raceDetector = os.Getenv("RACE") != ""

// released returns the binary as it is released, for tests of what it holds in memory and of what is linked into it.
func released(t testing.TB) string {
	t.Helper()
	path, err := plain()
	must(t, err)
	return path
}

var plain = sync.OnceValues(func() (string, error) {
	if !raceDetector {
		return binary, nil
	}
	return binary + "-released", build(binary+"-released", ".")
})

// collectRaces has every daemon, whatever its user and wherever its log goes, report its data races into files of a folder.
func collectRaces(folder string) error {
	if err := os.Mkdir(folder, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(folder, 0o777); err != nil { // whatever the umask
		return err
	}
	return os.Setenv("GORACE", "log_path="+filepath.Join(folder, "race"))
}

// makeFlags are the Makefile's, so that both find the same packages in Go's cache.
var makeFlags = []string{"-trimpath", "-gcflags=all=-dwarf=false", "-tags", "grpcnotrace,nethttpomithttp2"}

// build builds a program.
func build(out, program string, flags ...string) error {
	cmd := exec.Command("go", slices.Concat([]string{"build"}, makeFlags, []string{"-o", out}, flags, []string{program})...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if slices.Contains(flags, "-race") {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", program, err, output)
	}
	return nil
}

// host is a machine for one test: a runtime, a cgroup tree, a state folder, and the plugin as a process beside it.
type host struct {
	t       testing.TB
	dir     string
	tree    *cgroups.Tree
	runtime *cri.Runtime
	program string // in place of the binary under test; "" is that
	flags   []string
	stderr  *os.File // of the plugin; nil collects it
	env     []string // besides this process's own
	as      *syscall.Credential
	plugins int // that have connected
}

// inMemory is a folder in memory where there is one: a hundred daemons wait for their disk otherwise.
var inMemory = func() string {
	probe, err := os.MkdirTemp("/dev/shm", "nri")
	if err != nil {
		return ""
	}
	os.Remove(probe)
	return filepath.Dir(probe)
}()

// newHost starts a runtime. options may be the zero value.
func newHost(t testing.TB, options cri.Options, config string) *host {
	t.Helper()
	dir, err := os.MkdirTemp(inMemory, "nri") // t.TempDir's paths are too long for sockets
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &host{t: t, dir: dir}
	for _, folder := range []string{"cgroups", "state"} {
		must(t, os.Mkdir(filepath.Join(dir, folder), 0o755))
	}
	h.tree, err = cgroups.NewTree(filepath.Join(dir, "cgroups"))
	must(t, err)
	h.write("machine.yaml", "nodes: [{id: 0, memory: 16Gi, cpus: 0-3}, {id: 1, memory: 16Gi, cpus: 4-7}]\n")
	h.write("config.yaml", config)
	options.Socket, options.Cgroups = filepath.Join(dir, "nri.sock"), h.tree
	h.runtime = cri.New(options)
	must(t, h.runtime.Start())
	t.Cleanup(h.runtime.Stop)
	h.flags = []string{
		"run", "--nri-socket", options.Socket, "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups",
		"--machine", h.path("machine.yaml"), "--config", h.path("config.yaml"), "--kubelet-pods-socket", h.path("kubelet.sock"),
		"--kubelet-podresources-socket", h.path("devices.sock"),
		"--metrics-address", "127.0.0.1:0", "-v",
	}
	return h
}

// timings has the plugin go by other constants from its next start on.
func (h *host) timings(pairs string) { h.flags = append(h.flags, "--timings", pairs) }

// ofNode has the plugin reach an API server under the name of a node.
func (h *host) ofNode(name string) {
	h.flags = append(h.flags, "--kubeconfig", h.path("kubeconfig"), "--node-name", name)
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

func (h *host) write(name, text string) {
	h.t.Helper()
	must(h.t, os.WriteFile(h.path(name), []byte(text), 0o644))
}

// give makes everything below a path the plugin's user's own, but for the state folder.
func (h *host) give(path string) error {
	return filepath.WalkDir(path, func(path string, _ os.DirEntry, err error) error {
		if err != nil || path == h.path("state") {
			return err
		}
		return os.Chown(path, int(h.as.Uid), int(h.as.Gid))
	})
}

// process is a running plugin.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	log    *output
	ended  chan struct{}
	status error
}

// output collects what a process writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(data)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// launch starts the plugin and does not wait for anything.
func (h *host) launch(flags ...string) *process {
	h.t.Helper()
	p := &process{t: h.t, cmd: exec.Command(cmp.Or(h.program, binary), append(h.flags, flags...)...), log: &output{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if h.stderr != nil {
		p.cmd.Stderr = h.stderr
	}
	p.cmd.Env = append(os.Environ(), h.env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: h.as}
	must(h.t, p.cmd.Start())
	go func() {
		p.status = p.cmd.Wait()
		close(p.ended)
	}()
	h.t.Cleanup(func() {
		p.kill()
		if h.t.Failed() {
			h.t.Logf("log of the plugin:\n%s", p.log)
		}
	})
	return p
}

// start starts the plugin and waits until the runtime has synchronized it.
func (h *host) start(flags ...string) *process {
	h.t.Helper()
	p := h.launch(flags...)
	h.connected()
	return p
}

// connected waits for the next synchronization.
func (h *host) connected() {
	h.t.Helper()
	h.plugins++
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	must(h.t, h.runtime.WaitSynchronized(ctx, h.plugins))
}

// kill ends the process as a crash would.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

// stop ends the process as a service manager would, and returns its exit code.
func (p *process) stop() int {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(syscall.SIGTERM))
	return p.wait()
}

func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(bound):
		p.t.Fatalf("the plugin has not ended within %s; its log:\n%s", bound, p.log)
	}
	return p.cmd.ProcessState.ExitCode()
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bound); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", bound, what)
		}
	}
}

var address = regexp.MustCompile(`address="?(\S+:[0-9]+)`)

// address is where the plugin's HTTP server listens.
func (p *process) address() (at string) {
	p.t.Helper()
	eventually(p.t, "the plugin logs its HTTP address", func() bool {
		if match := address.FindStringSubmatch(p.log.String()); match != nil {
			at = match[1]
		}
		return at != ""
	})
	return at
}

// get returns the body behind a path of the plugin's HTTP server.
func (p *process) get(path string) string {
	p.t.Helper()
	response, err := http.Get("http://" + p.address() + path)
	must(p.t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(p.t, err)
	return string(body)
}

// entries are the allocations in the state file, as "pod/container nodes bytes" each.
func (h *host) entries() []string {
	h.t.Helper()
	file, err := checkpoint.ReadFile(h.path("state/" + checkpoint.FileName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	must(h.t, err)
	var all []string
	for _, entry := range file.State.Entries {
		for _, block := range entry.Blocks {
			if block.Type == memorymanager.Memory {
				all = append(all, fmt.Sprintf("%s/%s %s %d", entry.Pod, entry.Container, block.Nodes, block.Size))
			}
		}
	}
	return all
}

// knob is the text of a cgroup's file.
func (h *host) knob(cgroup, file string) string {
	h.t.Helper()
	text, err := h.tree.Read(cgroup, file)
	must(h.t, err)
	return text
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs the binary to its end.
func run(t testing.TB, stdin string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

func asJSON(t testing.TB, value any) string {
	t.Helper()
	text, err := json.MarshalIndent(value, "", " ")
	must(t, err)
	return string(text)
}

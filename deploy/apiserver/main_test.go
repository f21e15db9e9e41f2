// Package apiserver tests what the daemon and the kubectl plugin do with a real kube-apiserver over etcd. Its tests run in
// `make e2e`, which builds the kube-apiserver.
package apiserver

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// bound is how long a test waits for what must come; only a broken plugin waits that long.
const bound = 2 * time.Minute

// programs is the folder of the programs under test, built once.
var programs string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	var err error
	if programs, err = os.MkdirTemp("", "nri-memory-manager"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(programs)
	return m.Run()
}

var plugin = built("./plugin")

// built returns the path of a program of the main module, which the first call builds.
func built(program string) func(*testing.T) string {
	build := sync.OnceValues(func() (string, error) {
		path := filepath.Join(programs, filepath.Base(program))
		cmd := exec.Command("go", "-C", "../..", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-tags", "grpcnotrace,nethttpomithttp2", "-o", path, program)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // the Makefile's flags: both find the same packages in Go's cache
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %s: %w\n%s", program, err, out)
		}
		return path, nil
	})
	return func(t *testing.T) string {
		t.Helper()
		path, err := build()
		must(t, err)
		return path
	}
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bound); !condition(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", bound, what)
		}
	}
}

package cases

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// TestPreInstalledPluginIsLaunchedByTheRuntime puts the tarball's binary where
// runtimes look for plugins, as INSTALL.md says, and restarts the runtime.
func TestPreInstalledPluginIsLaunchedByTheRuntime(t *testing.T) {
	k := criOf(t)
	p := newPlugin(t)
	p.state = "/var/lib/nri-memory-manager" // the default: there are no arguments
	t.Cleanup(func() {
		_ = os.RemoveAll("/opt/nri/plugins")
		_ = os.RemoveAll("/etc/nri/conf.d")
		restartRuntime(t, k, "")
		_ = os.RemoveAll(p.state)
	})
	unpackTarball(t).follow("Started by the runtime")
	install(t, p.config, "/etc/nri/conf.d/memory-manager.conf")
	restartRuntime(t, k, "")
	pod := guaranteed("guaranteed", 48*MiB, 16*MiB)
	run(t, k, pod)
	placed(t, k, p, pod, "0", 16*MiB)
	if min := number(t, dirOf(t, k, pod, "app"), "memory.min"); min == 0 {
		t.Error("the container has no memory.min")
	}
	out, err := exec.Command("ps", "-o", "args").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "92-memory-manager") {
		t.Errorf("the runtime's child is not there: %v\n%s", err, out)
	}
	if err := k.Remove(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	p.waitFree()
}

func install(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o755); err != nil {
		t.Fatal(err)
	}
}

// startSecond starts another instance under another name and index.
func startSecond(t *testing.T, lines ...string) *plugin {
	t.Helper()
	second := newPlugin(t, lines...)
	second.args = append(second.args, "--name", "second", "--idx", "93", "--metrics-address", "")
	second.start()
	second.waitSynchronized(1)
	return second
}

// TestTwoPluginsThatSetTheSameKey runs a second instance under another name:
// the runtime itself names both in the create's error, and nothing is leaked.
func TestTwoPluginsThatSetTheSameKey(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	alone := guaranteed("alone", 32*MiB, MiB)
	run(t, k, alone)

	second := startSecond(t)
	pod := guaranteed("both", 32*MiB, MiB)
	if err := k.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	err := k.RunContainer(t.Context(), pod, "app")
	if err == nil || !strings.Contains(err.Error(), "second") || !strings.Contains(err.Error(), "memory-manager\" both tried to set") {
		t.Errorf("two plugins set one key and the runtime says %v", err)
	}
	second.kill()
	if err := k.RunContainer(t.Context(), pod, "app"); err != nil {
		t.Fatal(err)
	}
	p.onlyAllocated(alone, pod)
}

// TestPluginBesideAnotherThatDoesNothing runs a second instance that adjusts
// nothing: both are called, ours decides.
func TestPluginBesideAnotherThatDoesNothing(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	startSecond(t, "profile: Observe")
	pod := guaranteed("pod", 32*MiB, 8*MiB)
	run(t, k, pod)
	placed(t, k, p, pod, "0", 8*MiB)
	if err := k.Remove(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	p.waitFree()
}

// TestRequiredPluginKeepsPodsOutWithoutIt turns on the runtime's validator as
// the tarball's snippet says: pods start while the plugin is there, and without
// it only those that are annotated, as static pods have to be.
func TestRequiredPluginKeepsPodsOutWithoutIt(t *testing.T) {
	k := criOf(t)
	snippet := "containerd.toml"
	switch k.Plan.Runtime {
	case setup.Containerd17:
		t.Skip("containerd 1.7 has no validator")
	case setup.CRIO:
		snippet = "crio.conf"
	}
	t.Cleanup(func() { restartRuntime(t, k, "") })
	restartRuntime(t, k, unpackTarball(t).optional(snippet, "default_validator]"))
	p := startPlugin(t)
	with := guaranteed("with", 32*MiB, MiB)
	run(t, k, with)
	p.kill()
	without := guaranteed("without", 32*MiB, MiB)
	err := k.Run(t.Context(), without)
	if err == nil || !strings.Contains(err.Error(), "memory-manager") {
		t.Errorf("without the plugin the runtime says %v", err)
	}
	static := guaranteed("static", 24*MiB, MiB)
	static.Annotations = map[string]string{"tolerate-missing-nri-plugins.noderesource.dev": "true"}
	run(t, k, static)
	p.restart()
	if k.Sandbox(without) != "" {
		if err := k.RunContainer(t.Context(), without, "app"); err != nil {
			t.Errorf("with the plugin back: %v", err)
		}
	}
	p.onlyAllocated(with, without, static)
}

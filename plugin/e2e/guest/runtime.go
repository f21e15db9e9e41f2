package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// runtime is the container runtime of this guest, kept running.
type runtime struct {
	plan setup.Plan
}

func newRuntime(plan setup.Plan) *runtime { return &runtime{plan: plan} }

// supervise starts the runtime, and again whenever it ends: tests restart it
// by ending its process. Each start takes the configuration that tests left.
func (r *runtime) supervise() {
	log, err := os.OpenFile(setup.Logs+"/runtime.log", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		say("no runtime log: %v", err)
	}
	for {
		if err := r.configure(); err != nil {
			say("runtime configuration: %v", err)
		}
		cmd := r.command()
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			say("start %s: %v", r.plan.Runtime, err)
			time.Sleep(time.Second)
			continue
		}
		_ = os.MkdirAll(filepath.Dir(setup.RuntimePID), 0o755)
		_ = os.WriteFile(setup.RuntimePID, []byte(strconv.Itoa(cmd.Process.Pid)), 0o644)
		err := cmd.Wait()
		fmt.Fprintf(log, "E2E: the runtime ended: %v\n", err)
		time.Sleep(100 * time.Millisecond) // a runtime that cannot start must not fill the log
	}
}

func (r *runtime) command() *exec.Cmd {
	if r.plan.Runtime == setup.CRIO {
		return exec.Command("crio", "--config", "/etc/crio/crio.conf", "--config-dir", "")
	}
	return exec.Command("containerd", "--config", "/etc/containerd/config.toml")
}

// configure writes the runtime's configuration, with what a test added.
func (r *runtime) configure() error {
	extra, _ := os.ReadFile(setup.RuntimeExtra)
	file, text := "/etc/containerd/config.toml", ""
	switch r.plan.Runtime {
	case setup.Containerd24:
		text = fmt.Sprintf(containerd24, r.plan.Image(), r.plan.OCIRuntime, r.plan.Driver == setup.Systemd)
	case setup.Containerd17:
		text = fmt.Sprintf(containerd17, r.plan.Image(), r.plan.OCIRuntime, r.plan.Driver == setup.Systemd)
	case setup.CRIO:
		file = "/etc/crio/crio.conf"
		name := filepath.Base(r.plan.OCIRuntime)
		text = fmt.Sprintf(crio, r.plan.Image(), name, r.plan.Driver, name, r.plan.OCIRuntime)
		for name, text := range map[string]string{
			"/etc/containers/policy.json":     `{"default":[{"type":"insecureAcceptAnything"}]}`,
			"/etc/containers/registries.conf": "[[registry]]\nlocation = \"" + setup.Registry + "\"\ninsecure = true\n",
		} {
			if err := write(name, []byte(text)); err != nil {
				return err
			}
		}
	}
	return write(file, append([]byte(text), extra...))
}

func write(file string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// The time limits of NRI are wide: an emulated machine on a busy host is slow,
// and what is tested here is not the plugin's speed. stats_collect_period is one
// second unless set: each container's and sandbox's statistics, which nothing
// here asks for, would take most of an emulated CPU beside a few pods.
const containerd24 = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[debug]
  level = "info"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "%s"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  disable_hugetlb_controller = false
  stats_collect_period = "1h"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "%s"
        SystemdCgroup = %t
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  plugin_registration_timeout = "60s"
  plugin_request_timeout = "20s"
`

const containerd17 = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[debug]
  level = "info"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%s"
  disable_apparmor = true
  disable_hugetlb_controller = false
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "%s"
        SystemdCgroup = %t
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  plugin_registration_timeout = "60s"
  plugin_request_timeout = "20s"
`

const crio = `[crio]
root = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
storage_driver = "overlay"
version_file = "/run/crio/version"
version_file_persist = "/var/lib/crio/version"
clean_shutdown_file = "/var/lib/crio/clean.shutdown"
[crio.api]
listen = "/run/crio/crio.sock"
[crio.image]
pause_image = "%s"
pause_command = "/pause"
signature_policy = "/etc/containers/policy.json"
[crio.network]
network_dir = "/etc/cni/net.d"
plugin_dirs = ["/opt/cni/bin"]
[crio.runtime]
default_runtime = "%s"
cgroup_manager = "%s"
conmon_cgroup = "pod"
disable_hostport_mapping = true
apparmor_profile = "unconfined"
seccomp_profile = ""
log_level = "info"
hooks_dir = []
[crio.runtime.runtimes.%s]
runtime_path = "%s"
runtime_type = "oci"
runtime_root = "/run/oci"
[crio.nri]
enable_nri = true
nri_listen = "/var/run/nri/nri.sock"
nri_plugin_registration_timeout = "60s"
nri_plugin_request_timeout = "20s"
`

// importImages gives the runtime the image that sandboxes and workloads run,
// as soon as it answers.
func (r *runtime) importImages() error {
	if r.plan.Runtime == setup.CRIO {
		return serveImage(setup.ImageTar) // CRI-O pulls it
	}
	deadline := time.Now().Add(120 * time.Second)
	for {
		args := []string{"-n", "k8s.io", "images", "import", "--local", setup.ImageTar}
		if r.plan.Runtime == setup.Containerd17 {
			args = []string{"-n", "k8s.io", "images", "import", setup.ImageTar}
		}
		out, err := exec.Command("ctr", args...).CombinedOutput()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("import %s: %w: %s", setup.ImageTar, err, out)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

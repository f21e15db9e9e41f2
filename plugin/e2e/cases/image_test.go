package cases

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// daemon is the name of the plugin's container in its pod.
const daemon = "nri-memory-manager"

// daemonPod is the chart's pod (deploy/helm): its arguments, mounts, resources
// and security context. What differs is the network, the node's, because the
// guest has no CNI, and the folder that stands for the config map.
func daemonPod(t *testing.T, p *plugin, driver setup.Driver) *kubelet.Pod {
	t.Helper()
	config := t.TempDir()
	install(t, p.config, filepath.Join(config, "config.yaml"))
	if err := os.MkdirAll(p.state, 0o755); err != nil {
		t.Fatal(err)
	}
	mounts := map[string]string{
		"/etc/nri/memory-manager":     config + ":ro",
		"/var/run/nri":                "/var/run/nri",
		"/var/lib/nri-memory-manager": p.state,
		"/sys/fs/cgroup":              kubelet.Root,
		"/host/kubelet-pods-api":      filepath.Dir(kubelet.PodAPISocket) + ":ro",
	}
	if driver == setup.Systemd {
		mounts["/run/systemd"] = "/run/systemd:ro"
	}
	return &kubelet.Pod{Name: daemon, Annotations: map[string]string{"memory-high.memory-manager.noderesource.dev": "off"}, Containers: []kubelet.Container{{
		Name: daemon, Image: setup.ReleasedImage, Request: 48 * MiB, Limit: 128 * MiB,
		Args: []string{
			"run", "--idx=92", "--config=/etc/nri/memory-manager/config.yaml", "--state-dir=/var/lib/nri-memory-manager",
			"--metrics-address=:8891", "--kubelet-pods-socket=/host/kubelet-pods-api/pods-api.sock",
		},
		Mounts: mounts, Restricted: true, Seccomp: true,
	}}}
}

// importReleasedImage gives the runtime the plugin's own image, until the test ends.
func importReleasedImage(t *testing.T, k machine) {
	t.Helper()
	args := []string{"-n", "k8s.io", "images", "import", "--local", setup.ReleasedImageTar}
	if planOf(t).Runtime == setup.Containerd17 {
		args = []string{"-n", "k8s.io", "images", "import", setup.ReleasedImageTar}
	}
	if out, err := exec.CommandContext(t.Context(), "ctr", args...).CombinedOutput(); err != nil {
		t.Fatalf("import the image: %v: %s", err, out)
	}
	t.Cleanup(func() { // its files are in the guest's memory
		ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
		defer cancel()
		if err := k.RemoveImage(ctx, setup.ReleasedImage); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the runtime knows the image", func() string {
		if !k.HasImage(t.Context(), setup.ReleasedImage) {
			return setup.ReleasedImage + " is not there"
		}
		return ""
	})
}

// runDaemonPod runs the plugin as the chart's pod.
func runDaemonPod(t *testing.T, k machine, p *plugin) *kubelet.Pod {
	t.Helper()
	importReleasedImage(t, k)
	own := daemonPod(t, p, planOf(t).Driver)
	t.Cleanup(func() { _ = os.WriteFile(p.log, []byte(k.Output(own, daemon)), 0o644) })
	run(t, k, own)
	eventually(t, "the plugin synchronizes with the runtime", func() string {
		out := k.Output(own, daemon)
		if how, exited := k.Exited(t.Context(), own, daemon); exited {
			t.Fatalf("the plugin ended (%s):\n%s", how, out)
		}
		if !strings.Contains(out, "synchronized with the runtime") {
			return "it has said: " + out[max(0, len(out)-2000):]
		}
		return ""
	})
	return own
}

// terminate ends the plugin's container as the kubelet does at first, and waits for its end. It is content although it can
// restore every container's values but its own (cgroup.ErrOwn).
func terminate(t *testing.T, k machine, own *kubelet.Pod) {
	t.Helper()
	pids, err := k.PIDs(own, daemon)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pids[0], syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	how, err := k.WaitExit(ctx, own, daemon)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(how, "0 ") {
		t.Errorf("the plugin ends with %s:\n%s", how, k.Output(own, daemon))
	}
}

// confined checks that the kernel holds a container's process to what was asked for.
func confined(t *testing.T, k machine, pod *kubelet.Pod, container string) {
	t.Helper()
	pids, err := k.PIDs(pod, container)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"Uid": "0", "CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapBnd": "0000000000000000",
		"CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "0",
	}
	if pod.Container(container).Seccomp {
		want["Seccomp"] = "2"
	}
	for line := range strings.Lines(file("/proc", strconv.Itoa(pids[0]), "status")) {
		key, text, _ := strings.Cut(line, ":")
		value, asked := want[key]
		if fields := strings.Fields(text); asked && (len(fields) == 0 || fields[0] != value) {
			t.Errorf("%s of the plugin's process is %v, want %s", key, fields, value)
		}
		delete(want, key)
	}
	if len(want) > 0 {
		t.Errorf("the kernel does not show %v", want)
	}
}

// TestReleasedImageRunsAsAPod runs the plugin from its own container image as
// the chart's pod, root without any capability, and looks at placement and
// values as TestGuaranteedContainersLandOnTheirNodes and
// TestValuesAtEveryLevel do. The plugin's own pod gets its values, too. It
// survives a new systemd, the stall guard works in it, and when it ends it
// takes everything back.
func TestReleasedImageRunsAsAPod(t *testing.T) {
	k := criOf(t)
	if k.Plan.Runtime == setup.CRIO {
		t.Skip("CRI-O pulls its images, and the guest's registry has one only")
	}
	p := newPlugin(t, "memoryReservationPolicy: TieredReservation", "onTermination: Rollback")
	own := runDaemonPod(t, k, p)
	confined(t, k, own, daemon)

	const touched = 24 * MiB
	first, second := guaranteed("first", 48*MiB, touched), on(guaranteed("second", 48*MiB, touched), "1")
	run(t, k, first)
	run(t, k, second)
	placed(t, k, p, first, "0", touched)
	placed(t, k, p, second, "1", touched)

	if err := k.Remove(t.Context(), second); err != nil { // the simulator gives no exclusive CPUs
		t.Fatal(err)
	}
	pods := append([]*kubelet.Pod{own, first}, mixture()...)
	for _, pod := range pods[2:] {
		run(t, k, pod)
	}
	p.agrees(k, p.simulate(pods...), pods...)

	for _, question := range []struct{ command, want string }{{"status", "first"}, {"verify", "nothing is wrong"}, {"version", setup.Version}} {
		out, code, err := k.Exec(t.Context(), own, daemon, "nri-memory-manager", question.command)
		if err != nil {
			t.Fatal(err)
		}
		if code != 0 || !strings.Contains(out, question.want) {
			t.Errorf("%s in the container: exit status %d, and %q is wanted in what it says:\n%s", question.command, code, question.want, out)
		}
	}

	if k.Plan.Driver == setup.Systemd { // as an upgrade of systemd does: its sockets are recreated
		if out, err := exec.CommandContext(t.Context(), "systemctl", "daemon-reexec").CombinedOutput(); err != nil {
			t.Fatalf("daemon-reexec: %v: %s", err, out)
		}
		late := guaranteed("late", 40*MiB, MiB)
		run(t, k, late)
		pods = append(pods, late)
		p.agrees(k, p.simulate(pods...), pods...)
		holds(t, k.Dir(late), "memory.min", "MemoryMin")
		holds(t, k.Kubepods(), "memory.min", "MemoryMin")
	}

	p.configure("onTermination: Rollback", "stallGuard: true")
	install(t, p.config, filepath.Join(strings.TrimSuffix(own.Containers[0].Mounts["/etc/nri/memory-manager"], ":ro"), "config.yaml"))
	stopped := guardedThrough(t, k, func() string { return k.Output(own, daemon) })

	terminate(t, k, own)
	untouched(t, k, append(pods[1:], stopped)...)
}

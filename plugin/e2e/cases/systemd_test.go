package cases

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

const (
	unit = "nri-memory-manager.service"
	// exposure is the most that `systemd-analyze security` may say of the unit, times ten (docs/installation.md).
	exposure = 15
)

// TestTarballRunsAsASystemdUnit follows the tarball's INSTALL.md on a node with
// systemd: pods get what they get from any other start, through a reload, a
// restart and a crash, and after the last section nothing is left.
func TestTarballRunsAsASystemdUnit(t *testing.T) {
	k := criOf(t)
	if k.Plan.Driver != setup.Systemd {
		t.Skip("systemd is not PID 1")
	}
	r := unpackTarball(t)
	p := newPlugin(t, "memoryReservationPolicy: TieredReservation")
	p.state = "/var/lib/nri-memory-manager" // the unit's
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := r.try("journalctl --no-pager -o cat -n 60 -u " + unit + "; systemctl status --no-pager " + unit)
			t.Logf("journal:\n%s", out)
		}
		_, _ = r.try("systemctl disable --now " + unit)
	})

	t.Log(r.follow("Install"))
	r.waitSynchronized("")
	install(t, p.config, "/etc/nri/memory-manager/config.yaml")
	p.config = "/etc/nri/memory-manager/config.yaml"
	r.sh("systemctl reload nri-memory-manager")
	r.confined()
	security := r.sh(fmt.Sprintf("systemd-analyze security --no-pager --threshold=%d %s", exposure, unit))
	t.Log(security)

	pods := append([]*kubelet.Pod{on(guaranteed("placed", 32*MiB, 8*MiB), "1")}, mixture()...)
	for _, pod := range pods[:4] {
		run(t, k, pod)
	}
	placed(t, k, p, pods[0], "1", 8*MiB)
	if err := k.Remove(t.Context(), pods[0]); err != nil { // the simulator gives no exclusive CPUs
		t.Fatal(err)
	}
	pods = pods[1:]
	p.agrees(k, p.simulate(pods[:3]...), pods[:3]...)

	p.configure("memoryReservationPolicy: HardReservation", "memoryThrottlingFactor: 0.5")
	r.sh("systemctl reload nri-memory-manager")
	p.agrees(k, p.simulate(pods[:3]...), pods[:3]...)
	holds(t, k.Kubepods(), "memory.min", "MemoryMin")

	before := r.property("MainPID")
	r.sh("systemctl restart nri-memory-manager")
	r.waitSynchronized(before)
	run(t, k, pods[3])
	p.agrees(k, p.simulate(pods[:4]...), pods[:4]...)

	before = r.property("MainPID")
	r.sh("systemctl kill --signal=KILL nri-memory-manager")
	r.waitSynchronized(before)
	run(t, k, pods[4])
	p.agrees(k, p.simulate(pods...), pods...)
	p.onlyAllocated(pods[0])

	if out := r.sh("nri-memory-manager status"); !strings.Contains(out, "guaranteed") {
		t.Errorf("status does not know the pods:\n%s", out)
	}
	eventually(t, "verify finds nothing", func() string {
		out, err := r.try("nri-memory-manager verify")
		if err != nil {
			return out
		}
		return ""
	})

	p.configure("stallGuard: true")
	r.sh("systemctl reload nri-memory-manager")
	stopped := guardedThrough(t, k, r.log)

	t.Log(r.follow("Uninstall"))
	for _, name := range []string{p.state, p.config, "/usr/local/bin/nri-memory-manager", "/etc/systemd/system/" + unit} {
		if _, err := os.Stat(name); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	untouched(t, k, append(pods, stopped)...)
}

// guardedThrough runs a pod that its memory.high stops until the stall guard, woken by the kernel, gives it room.
func guardedThrough(t *testing.T, k machine, log func() string) *kubelet.Pod {
	t.Helper()
	g := newGrowing("stopped", 32*MiB, 64*MiB, 56*MiB, 0, nil)
	start(t, k, g)
	g.finish(t, k)
	eventually(t, "the stall guard says that it gave room", func() string {
		out := log()
		if strings.Contains(out, "without pressure from the kernel") {
			t.Fatal("the kernel gave no trigger")
		}
		if !strings.Contains(out, "raisedTo=") {
			return out[max(0, len(out)-2000):]
		}
		return ""
	})
	return g.pod
}

// untouched checks that nothing of what the plugin writes is left in the kernel or in systemd.
func untouched(t *testing.T, k machine, pods ...*kubelet.Pod) {
	t.Helper()
	dirs := []string{k.Kubepods()}
	for _, pod := range pods {
		dirs = append(dirs, k.QoS(pod), k.Dir(pod), dirOf(t, k, pod, pod.Containers[len(pod.Containers)-1].Name))
	}
	for _, dir := range dirs {
		for name, want := range map[string]string{"memory.min": "0", "memory.low": "0", "memory.high": "max"} {
			if got := file(dir, name); got != want {
				t.Errorf("%s/%s is %s, want %s", dir, name, got, want)
			}
		}
	}
	if planOf(t).Driver == setup.Systemd {
		holds(t, k.Kubepods(), "memory.min", "MemoryMin")
	}
}

// holds waits until systemd's own property of a slice is what the kernel's file says.
func holds(t *testing.T, dir, name, property string) {
	t.Helper()
	eventually(t, "systemd holds "+name, func() string {
		slice := filepath.Base(dir)
		out, err := exec.CommandContext(t.Context(), "systemctl", "show", "--value", "-p", property, slice).CombinedOutput()
		if got, want := strings.TrimSpace(string(out)), file(dir, name); err != nil || got != want {
			return fmt.Sprintf("%s of %s is %q (%v), the file says %s", property, slice, got, err, want)
		}
		return ""
	})
}

// release is the unpacked tarball and a shell in its folder.
type release struct {
	t      *testing.T
	folder string
	path   string
}

// unpackTarball unpacks the tarball with the tools that every node has.
func unpackTarball(t *testing.T) *release {
	t.Helper()
	folder := t.TempDir()
	r := &release{t: t, folder: folder, path: "/usr/local/bin:" + folder + "/busybox:" + os.Getenv("PATH")}
	r.sh("mkdir -p busybox /usr/local/bin /var/tmp") // the guest is barer than a node: PrivateTmp= wants /var/tmp
	r.sh("/bin/busybox --install -s busybox && tar -xzf " + setup.ReleasedTarball)
	r.folder = filepath.Join(folder, "nri-memory-manager-"+setup.Version+"-linux-amd64")
	return r
}

// try runs shell commands in the release's folder; the first that fails is the last.
func (r *release) try(commands string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-ec", commands)
	cmd.Dir, cmd.Env = r.folder, append(os.Environ(), "PATH="+r.path)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// sh is try for commands that must not fail.
func (r *release) sh(commands string) string {
	r.t.Helper()
	out, err := r.try(commands)
	if err != nil {
		r.t.Fatalf("%s: %v:\n%s", commands, err, out)
	}
	return out
}

// follow does what a section of INSTALL.md says: its indented lines up to the first blank one after them.
func (r *release) follow(section string) string {
	r.t.Helper()
	text := file(r.folder, "INSTALL.md")
	m := regexp.MustCompile(`(?s)\n## ` + section + `\n\n((?:    [^\n]*\n)+)`).FindStringSubmatch(text)
	if m == nil {
		r.t.Fatalf("INSTALL.md has no section %q that begins with commands:\n%s", section, text)
	}
	return r.sh(m[1])
}

// optional is the part of a file that is commented out, from the line that ends with these words on.
func (r *release) optional(name, from string) string {
	r.t.Helper()
	lines := strings.Split(file(r.folder, name), "\n")
	first := slices.IndexFunc(lines, func(line string) bool { return strings.HasSuffix(line, from) })
	if first < 0 {
		r.t.Fatalf("%s has no line that ends with %q", name, from)
	}
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(strings.TrimSpace(line), "# ")
	}
	return strings.Join(lines[first:], "\n") + "\n"
}

func (r *release) property(name string) string {
	return strings.TrimSpace(r.sh("systemctl show --value -p " + name + " " + unit))
}

// log is what the running process has said.
func (r *release) log() string {
	return r.sh("journalctl --no-pager -o cat -u " + unit + " _PID=" + r.property("MainPID"))
}

// waitSynchronized waits until another process than before has synchronized with the runtime.
func (r *release) waitSynchronized(before string) {
	r.t.Helper()
	eventually(r.t, "the unit synchronizes with the runtime", func() string {
		if pid := r.property("MainPID"); pid == before || pid == "0" {
			return "the unit is " + r.property("ActiveState") + " with process " + pid
		}
		if log := r.log(); !strings.Contains(log, "synchronized with the runtime") {
			return log
		}
		return ""
	})
}

// confined checks what the kernel lets the process do.
func (r *release) confined() {
	r.t.Helper()
	status := file("/proc", r.property("MainPID"), "status")
	for _, want := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, want+"\n") {
			r.t.Errorf("the unit's process does not have %q:\n%s", want, status)
		}
	}
}

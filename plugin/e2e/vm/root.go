package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/controlplane"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// root puts together the root file system of a variant's guest; member is nil where there is no cluster.
func (p *Parts) root(v Variant, plan setup.Plan, member *controlplane.Node) (*Tree, error) {
	t := NewTree()
	t.File("init", filepath.Join(p.bin, "guest"))
	t.Bytes(setup.PlanPath, mustJSON(plan))
	files := map[string]string{setup.Plugin: "release/nri-memory-manager", setup.Workload: "workload", setup.ImageTar: "image.tar"}
	if plan.Command == nil {
		files[setup.Cases], files[setup.ReleasedImageTar] = "cases.test", "release/image.tar"
		files[setup.ReleasedTarball] = "release/nri-memory-manager-" + setup.Version + "-linux-amd64.tar.gz"
	} else if err := p.addSuites(t, v); err != nil {
		return nil, err
	}
	for name, file := range files {
		t.File(name, filepath.Join(p.bin, file))
	}
	busybox := filepath.Join(p.busybox, "bin", "busybox")
	t.File("bin/busybox", busybox)
	for _, name := range []string{"sh", "mount", "umount", "mkswap", "swapon", "swapoff", "cat", "ls", "ps", "dmesg", "kill", "grep", "sed", "mkdir", "rm", "cp", "env"} {
		t.Link("bin/"+name, "busybox")
	}
	if member != nil {
		if err := p.addCluster(t, v, member); err != nil {
			return nil, err
		}
	}
	t.Bytes("etc/passwd", []byte("root:x:0:0:root:/root:/bin/sh\nmessagebus:x:100:100::/:/bin/false\n"))
	t.Bytes("etc/group", []byte("root:x:0:\nmessagebus:x:100:\n"))
	t.Bytes("etc/hostname", []byte("e2e\n"))
	t.Bytes("etc/machine-id", []byte("0123456789abcdef0123456789abcdef\n"))
	if err := p.addModules(t, v.Kernel); err != nil {
		return nil, err
	}
	if v.Driver == setup.Systemd {
		if err := p.addSystemd(t); err != nil {
			return nil, err
		}
	}
	if p.needsBus(v) {
		if err := t.Folder(p.bus, kept); err != nil {
			return nil, fmt.Errorf("add the message bus: %w", err)
		}
	}
	if err := p.addRuntime(t, v); err != nil {
		return nil, err
	}
	// The file system of the page cache case; its libraries come after the
	// runtime's, which may need newer ones.
	t.File("sbin/mke2fs", filepath.Join(p.systemd, "sbin", "mke2fs"))
	if err := p.addLibraries(t, filepath.Join(p.systemd, "sbin", "mke2fs"), p.systemd); err != nil || !v.SlowDisks {
		return t, err
	}
	mkfs := filepath.Join(p.xfs, "sbin", "mkfs.xfs")
	t.File("sbin/mkfs.xfs", mkfs)
	return t, p.addLibraries(t, mkfs, p.xfs)
}

// addCluster adds what a node of a cluster has beside its runtime, and what its administrator uses.
func (p *Parts) addCluster(t *Tree, v Variant, member *controlplane.Node) error {
	for name, text := range map[string][]byte{
		setup.CA: member.CA, setup.Certificate: member.Serving.Certificate, setup.Key: member.Serving.Key,
		setup.KubeletConf: member.Kubelet, setup.AdminConf: member.Admin,
	} {
		t.Bytes(name, text)
	}
	p.addNetwork(t)
	kubelet := p.kubernetes
	if v.OlderKubelet {
		kubelet = p.olderKubelet
	}
	t.File(setup.Kubelet, filepath.Join(kubelet, "kubelet"))
	t.File("usr/bin/kubectl", filepath.Join(p.kubernetes, "kubectl"))
	t.File("usr/bin/helm", filepath.Join(p.cluster, "helm"))
	charts, _ := filepath.Glob(filepath.Join(p.release(), "nri-memory-manager-*.tgz"))
	if len(charts) != 1 {
		return fmt.Errorf("want one packed chart in %s, found %v", p.release(), charts)
	}
	t.File(setup.ReleasedChart, charts[0])
	for _, page := range []string{"start.md", "migration.md"} {
		t.File(filepath.Join(setup.Pages, page), filepath.Join(p.Project, "docs", page))
	}
	return nil
}

// addNetwork adds the pods' network. Most pods have the host's; the kubelet is NotReady without a configuration.
func (p *Parts) addNetwork(t *Tree) {
	t.Bytes("etc/cni/net.d/10-e2e.conflist", []byte(`{"cniVersion":"1.0.0","name":"e2e","plugins":[{"type":"ptp","ipam":`+
		`{"type":"host-local","subnet":"10.244.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}}]}`))
	for _, name := range []string{"loopback", "ptp", "host-local"} {
		t.File("opt/cni/bin/"+name, filepath.Join(p.cluster, name))
	}
}

// addLibraries adds what a program of a bookworm tree needs and the guest does not have yet.
func (p *Parts) addLibraries(t *Tree, program, root string) error {
	own := NewTree()
	if err := own.libraries(program, root, map[string]bool{}); err != nil {
		return err
	}
	for name, e := range own.entries {
		if _, known := t.entries[name]; !known {
			t.add(name, e)
		}
	}
	return nil
}

func (p *Parts) addRuntime(t *Tree, v Variant) error {
	for _, name := range []string{"runc", "ctr"} {
		t.File("usr/bin/"+name, filepath.Join(p.tools, name))
	}
	switch v.Runtime {
	case setup.Containerd24:
		for _, name := range []string{"containerd", "containerd-shim-runc-v2"} {
			t.File("usr/bin/"+name, filepath.Join(p.tools, name))
		}
	case setup.Containerd17:
		for name, file := range map[string]string{
			"containerd": "usr/bin/containerd", "containerd-shim-runc-v2": "usr/bin/containerd-shim-runc-v2", "ctr": "usr/bin/ctr", "runc": "usr/sbin/runc",
		} {
			if _, err := os.Stat(filepath.Join(p.trixie, file)); err != nil {
				file = strings.Replace(file, "usr/sbin", "usr/bin", 1)
			}
			if err := t.Program("usr/bin/"+name, filepath.Join(p.trixie, file), p.trixie); err != nil {
				return err
			}
		}
	case setup.CRIO:
		return p.addCRIO(t)
	}
	return nil
}

// addCRIO adds a CRI-O of the host with its monitor and OCI runtime.
func (p *Parts) addCRIO(t *Tree) error {
	conmon := p.Conmon
	if conmon == "" {
		conmon = filepath.Join(filepath.Dir(p.CRIO), "conmon")
		if _, err := os.Stat(conmon); err != nil {
			if conmon, err = exec.LookPath("conmon"); err != nil {
				return fmt.Errorf("CRI-O needs conmon: not beside %s and not in PATH; set CONMON", p.CRIO)
			}
		}
	}
	programs := map[string]string{"crio": p.CRIO, "conmon": conmon}
	if pinns := filepath.Join(filepath.Dir(p.CRIO), "pinns"); exists(pinns) {
		programs["pinns"] = pinns
	}
	if p.OCIRuntime != "" {
		programs[filepath.Base(p.OCIRuntime)] = p.OCIRuntime
	}
	for name, file := range programs {
		if err := t.Program("usr/bin/"+name, file, "/"); err != nil {
			return err
		}
	}
	t.Link("usr/bin/nsenter", "/bin/busybox") // CRI-O does not start without one
	t.Bytes("var/tmp/.keep", nil)             // images are unpacked there
	return nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// needsBus is whether the guest needs D-Bus: crun asks systemd over the system
// bus only, where the others use systemd's own socket.
func (p *Parts) needsBus(v Variant) bool {
	return v.Runtime == setup.CRIO && v.Driver == setup.Systemd && p.OCIRuntime != ""
}

// kept is which files of a package tree are put into a guest.
func kept(name string) bool {
	if strings.HasPrefix(name, "usr/share/dbus-1/") {
		return true
	}
	for _, part := range []string{"usr/share/", "usr/lib/x86_64-linux-gnu/gconv", "usr/lib/x86_64-linux-gnu/perl", "var/", "usr/lib/udev", "lib/udev", "usr/lib/locale"} {
		if strings.HasPrefix(name, part) {
			return false
		}
	}
	return !strings.HasSuffix(name, ".deb")
}

// addSystemd adds systemd as the guest's first process, with one target that
// starts the tests and nothing that a VM without disks and network would wait for.
func (p *Parts) addSystemd(t *Tree) error {
	if err := t.Folder(p.systemd, kept); err != nil {
		return fmt.Errorf("add systemd: %w", err)
	}
	for _, unit := range []string{
		"systemd-udevd.service", "systemd-udev-trigger.service", "systemd-journal-flush.service", "systemd-update-utmp.service", "systemd-tmpfiles-setup.service",
		"systemd-tmpfiles-setup-dev.service", "systemd-sysusers.service", "systemd-random-seed.service", "systemd-remount-fs.service", "systemd-timesyncd.service",
		"systemd-logind.service", "systemd-networkd.service", "systemd-resolved.service", "systemd-binfmt.service", "systemd-modules-load.service", "systemd-sysctl.service",
		"sys-kernel-debug.mount", "sys-kernel-tracing.mount", "dev-hugepages.mount", "dev-mqueue.mount", "tmp.mount", "systemd-machine-id-commit.service", "systemd-hwdb-update.service",
		"systemd-tmpfiles-clean.timer", "apt-daily.timer", "e2scrub_reap.service", "fstrim.timer", "getty.target",
	} {
		t.Link("etc/systemd/system/"+unit, "/dev/null")
	}
	t.Bytes("etc/systemd/system/e2e.target", []byte("[Unit]\nDescription=VM tests\nRequires=basic.target e2e.service\nAfter=basic.target\nAllowIsolate=yes\n"))
	t.Bytes("etc/systemd/system/e2e.service", []byte("[Unit]\nDescription=VM tests\nAfter=basic.target\n[Service]\nType=simple\nExecStart=/init run\nDelegate=yes\nKillMode=none\nTasksMax=infinity\nLimitNOFILE=65536\nStandardOutput=tty\nStandardError=tty\nTTYPath=/dev/console\n"))
	t.Bytes("etc/systemd/system.conf", []byte("[Manager]\nLogLevel=notice\nLogTarget=kmsg\nShowStatus=no\nDefaultTimeoutStartSec=300s\nDefaultTimeoutStopSec=300s\nDefaultDeviceTimeoutSec=300s\n"))
	return nil
}

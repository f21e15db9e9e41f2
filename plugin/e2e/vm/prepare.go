package vm

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ulikunitz/xz"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/controlplane"
	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// Options say where things are and what was asked for.
type Options struct {
	Home       string // the folder plugin/e2e
	Project    string // the project's root
	Cache      string
	Run        string // the folder of this run: programs, consoles, logs
	CRIO       string // path of a CRI-O binary, or ""
	Conmon     string
	OCIRuntime string // path of the OCI runtime for CRI-O, or "" for the built runc
	Log        func(format string, args ...any)
}

// CacheFolder holds downloads and builds, for every clone of this user.
func CacheFolder() (string, error) {
	if dir := os.Getenv("CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a folder for downloads and builds (or set CACHE): %w", err)
	}
	return filepath.Join(dir, "nri-memory-manager-e2e"), nil
}

// Jobs is how many guests run at once; each keeps about one core busy.
func Jobs() int {
	if n, err := strconv.Atoi(os.Getenv("JOBS")); err == nil && n > 0 {
		return n
	}
	return 2
}

// Parts is everything that guests are made of, as paths on the host.
type Parts struct {
	Options
	qemu    string
	kernels map[string]string // release line → unpacked package
	tools   string            // folder of containerd, shim, ctr, runc
	etcd    string            // folder of etcd
	// kubernetes is the folder of the kubelet, the control plane and kubectl; cluster of Helm and the network plugins.
	kubernetes, cluster string
	olderKubelet        string // folder of a kubelet of the release before
	xfs                 string // mkfs.xfs with its closure
	systemd             string // systemd with its closure; mke2fs too
	bus                 string // the D-Bus system bus with its closure
	busybox             string
	trixie              string  // containerd 1.7 and its closure
	bin                 string  // our own programs
	suites              *Suites // Kubernetes' own tests, where the guest runs them
}

// Cases is the host's path of the test binary.
func (p *Parts) Cases() string { return filepath.Join(p.bin, "cases.test") }

// Prepare downloads and builds what the variants need, or finds it in the cache.
func Prepare(ctx context.Context, o Options, variants []Variant) (*Parts, error) {
	p := &Parts{Options: o, kernels: map[string]string{}, bin: filepath.Join(o.Run, "bin")}
	kernels, debian17, bus, cluster, older := map[string]bool{}, false, false, false, false
	for _, v := range variants {
		cluster = cluster || v.Cluster
		older = older || v.OlderKubelet
		bus = bus || p.needsBus(v)
		kernels[v.Kernel] = true
		debian17 = debian17 || v.Runtime == setup.Containerd17
	}
	deb := filepath.Join(o.Cache, "debian")
	p.xfs = filepath.Join(deb, "xfsprogs")
	p.systemd, p.bus, p.busybox = filepath.Join(deb, "systemd"), filepath.Join(deb, "dbus"), filepath.Join(deb, "busybox")
	bookworm := NewArchive(filepath.Join(o.Cache, "lists", "bookworm"), "bookworm")
	jobs := []func() error{
		func() error { return p.findQEMU(ctx) },
		func() error { return p.buildRuntimes(ctx) },
		func() error {
			if !cluster {
				return nil
			}
			return p.buildKubernetes(ctx)
		},
		func() error {
			if !older {
				return nil
			}
			return p.buildOlderKubelet(ctx)
		},
		func() error { return p.buildCluster(ctx) },
		func() error {
			if err := bookworm.Closure(ctx, p.systemd, "systemd", "mount", "e2fsprogs"); err != nil {
				return err
			}
			if err := bookworm.Closure(ctx, p.busybox, "busybox-static"); err != nil {
				return err
			}
			if bus {
				if err := bookworm.Closure(ctx, p.bus, "dbus"); err != nil {
					return err
				}
			}
			if cluster {
				if err := p.fetchEtcd(ctx, bookworm); err != nil {
					return err
				}
			}
			if slices.ContainsFunc(variants, func(v Variant) bool { return v.SlowDisks }) {
				if err := bookworm.Closure(ctx, p.xfs, "xfsprogs"); err != nil {
					return err
				}
			}
			if kernels["6.1"] {
				return p.kernel(ctx, "6.1", bookworm)
			}
			return nil
		},
	}
	if kernels["6.12"] {
		backports := NewArchive(filepath.Join(o.Cache, "lists", "backports"), "bookworm-backports")
		jobs = append(jobs, func() error { return p.kernel(ctx, "6.12", backports) })
	}
	for _, suite := range []string{"trixie", "testing"} {
		if kernels[suite] {
			archive := NewArchive(filepath.Join(o.Cache, "lists", "kernel-"+suite), suite)
			jobs = append(jobs, func() error { return p.kernel(ctx, suite, archive) })
		}
	}
	if debian17 {
		p.trixie = filepath.Join(deb, "containerd-1.7")
		trixie := NewArchive(filepath.Join(o.Cache, "lists", "trixie"), "trixie")
		jobs = append(jobs, func() error { return trixie.Closure(ctx, p.trixie, "containerd", "runc") })
	}
	return p, together(jobs)
}

// together runs jobs at once and returns the first error.
func together(jobs []func() error) error {
	errs := make([]error, len(jobs))
	var wg sync.WaitGroup
	for i, job := range jobs {
		wg.Go(func() { errs[i] = job() })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

var kernelLock sync.Mutex

func (p *Parts) kernel(ctx context.Context, line string, from *Archive) error {
	dir := filepath.Join(p.Cache, "debian", "linux-"+line)
	if err := from.Kernel(ctx, dir); err != nil {
		return err
	}
	kernelLock.Lock()
	defer kernelLock.Unlock()
	p.kernels[line] = dir
	return nil
}

// findQEMU looks for QEMU and installs it where it is missing.
func (p *Parts) findQEMU(ctx context.Context) (err error) {
	const name = "qemu-system-x86_64"
	if p.qemu, err = exec.LookPath(name); err == nil {
		return nil
	}
	if err := p.install(ctx, "qemu-system-x86"); err != nil {
		return err
	}
	p.qemu, err = exec.LookPath(name)
	return err
}

var installing sync.Mutex

// install installs Debian packages that are missing, which only root can.
func (p *Parts) install(ctx context.Context, packages ...string) error {
	installing.Lock()
	defer installing.Unlock()
	if _, err := run(ctx, "", nil, "dpkg", append([]string{"-s"}, packages...)...); err == nil {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("missing packages (Debian: apt-get install %s)", strings.Join(packages, " "))
	}
	p.Log("installing %s", strings.Join(packages, ", "))
	_, err := retry(ctx, 4, func(ctx context.Context) (string, error) {
		if out, err := run(ctx, "", nil, "apt-get", "-q", "-o", "Acquire::Retries=3", "update"); err != nil {
			return out, err
		}
		return run(ctx, "", []string{"DEBIAN_FRONTEND=noninteractive"}, "apt-get", append([]string{"-q", "-y", "-o", "DPkg::Lock::Timeout=120",
			"-o", "Acquire::Retries=3", "install", "--no-install-recommends"}, packages...)...)
	})
	return err
}

// pinned builds the programs of a module of pins into a folder of the cache,
// whose name holds a hash of the pins, so that a change of versions builds again.
func (p *Parts) pinned(name, module string, build func(module, dir string) error) (string, error) {
	module = filepath.Join(p.Home, module)
	key := sha256.New()
	for _, file := range []string{"go.mod", "go.sum", "main.go"} {
		text, err := os.ReadFile(filepath.Join(module, file))
		if file == "main.go" && errors.Is(err, fs.ErrNotExist) {
			continue // a module of pins only
		}
		if err != nil {
			return "", fmt.Errorf("read the pinned versions: %w", err)
		}
		key.Write(text)
	}
	fmt.Fprint(key, runtime.Version())
	folder := filepath.Join(p.Cache, fmt.Sprintf("%s-%x", name, key.Sum(nil)[:6]))
	return folder, once(folder, func(dir string) error { return build(module, dir) })
}

func (p *Parts) buildRuntimes(ctx context.Context) (err error) {
	p.tools, err = p.pinned("tools", "tools", func(module, dir string) error {
		p.Log("building containerd, its shim, ctr and runc (minutes, once)")
		if err := p.install(ctx, "libseccomp-dev", "pkgconf"); err != nil { // the kubelet's sandboxes ask for a seccomp profile
			return err
		}
		const containerd = "github.com/containerd/containerd/v2/cmd/"
		if err := p.build(ctx, module, dir, []string{"CGO_ENABLED=0"}, "-tags", "no_btrfs,no_devmapper,no_zfs,no_aufs,netgo,osusergo", "-ldflags", "-s -w",
			containerd+"containerd", containerd+"containerd-shim-runc-v2", containerd+"ctr"); err != nil {
			return err
		}
		return p.build(ctx, module, dir, []string{"CGO_ENABLED=1"}, "-tags", "seccomp,urfave_cli_no_docs,netgo,osusergo",
			"-ldflags", "-s -w -linkmode external -extldflags -static", "github.com/opencontainers/runc")
	})
	return err
}

// buildCluster builds Helm and the network plugins, which go into the guests.
func (p *Parts) buildCluster(ctx context.Context) (err error) {
	p.cluster, err = p.pinned("cluster", "tools/cluster", func(module, dir string) error {
		p.Log("building Helm and the network plugins (a minute, once)")
		const plugin = "github.com/containernetworking/plugins/plugins/"
		return p.build(ctx, module, dir, static, "-ldflags", "-s -w", plugin+"ipam/host-local", plugin+"main/loopback", plugin+"main/ptp", "helm.sh/helm/v3/cmd/helm")
	})
	return err
}

// fetchEtcd fetches the control plane's etcd, which runs on this machine, from Debian.
func (p *Parts) fetchEtcd(ctx context.Context, from *Archive) error {
	folder := filepath.Join(p.Cache, "debian", "etcd")
	p.etcd = filepath.Join(folder, "usr", "bin")
	return from.Closure(ctx, folder, "etcd-server")
}

// buildKubernetes builds the kubelet, which goes into the guests, and the
// control plane, which runs on this machine.
func (p *Parts) buildKubernetes(ctx context.Context) (err error) {
	p.kubernetes, err = p.buildRelease(ctx, "kubernetes", "the kubelet and the control plane", controlplane.Version,
		"kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
	return err
}

// buildOlderKubelet builds a kubelet of the release before, for nodes that are upgraded after their control plane.
func (p *Parts) buildOlderKubelet(ctx context.Context) (err error) {
	p.olderKubelet, err = p.buildRelease(ctx, "kubelet136", "the kubelet", controlplane.OlderKubelet, "kubelet")
	return err
}

// buildRelease builds commands of a release of Kubernetes, which a module in tools of this name pins.
func (p *Parts) buildRelease(ctx context.Context, name, what, release string, commands ...string) (string, error) {
	return p.pinned(name, "tools/"+name, func(module, dir string) error {
		p.Log("building %s of Kubernetes %s (minutes, once)", what, release)
		var packages []string
		for _, command := range commands {
			packages = append(packages, "k8s.io/kubernetes/cmd/"+command)
		}
		return p.build(ctx, module, dir, static, append([]string{"-ldflags", "-s -w" + versionFlags(release)}, packages...)...)
	})
}

// versionFlags have the linker note a release, v1.MINOR.PATCH, in a program of Kubernetes.
func versionFlags(release string) string {
	const version = " -X k8s.io/component-base/version."
	return version + "gitVersion=" + release + version + "gitMajor=1" + version + "gitMinor=" + strings.Split(release, ".")[1]
}

// ControlPlane returns the folders of the control plane's programs, and of the
// scheduler that reads NodeResourceTopologies.
func ControlPlane(ctx context.Context, o Options) ([]string, error) {
	p := &Parts{Options: o}
	if err := p.buildKubernetes(ctx); err != nil {
		return nil, err
	}
	if err := p.fetchEtcd(ctx, NewArchive(filepath.Join(o.Cache, "lists", "bookworm"), "bookworm")); err != nil {
		return nil, err
	}
	scheduler, err := p.pinned("scheduler", "tools/scheduler", func(module, dir string) error {
		p.Log("building the scheduler with NodeResourceTopologyMatch (three minutes, once)")
		return p.build(ctx, module, filepath.Join(dir, controlplane.TopologyAware), static, "-ldflags", "-s -w", ".")
	})
	return []string{p.kubernetes, p.etcd, scheduler}, err
}

// BuildPlugin writes the plugin as it is released: the binary of the tarball for this platform. The tarball stays in out's folder, with the
// other kinds of artefacts that are asked for.
func BuildPlugin(ctx context.Context, o Options, out string, kinds ...string) error {
	folder, name := filepath.Dir(out), fmt.Sprintf("nri-memory-manager-%s-linux-%s", setup.Version, runtime.GOARCH)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	args := slices.Concat([]string{"-n", "5", "go", "run"}, setup.Flags,
		[]string{"./release", "-platforms", "linux/" + runtime.GOARCH, "-version", setup.Version, "-out", folder, "tarballs"}, kinds)
	if _, err := run(ctx, filepath.Join(o.Project, "deploy"), static, "nice", args...); err != nil {
		return err
	}
	_, err := run(ctx, folder, nil, "tar", "--strip-components=1", "-xzf", name+".tar.gz", name+"/"+filepath.Base(out))
	return err
}

// release is the folder of what the project would release.
func (p *Parts) release() string { return filepath.Join(p.bin, "release") }

// plugin is the released binary.
func (p *Parts) plugin() string { return filepath.Join(p.release(), "nri-memory-manager") }

// BuildOwn builds what a release has, the guest's init, the workload, the test binary and the test image.
func (p *Parts) BuildOwn(ctx context.Context) error {
	if err := p.buildGuest(ctx, "image", "chart"); err != nil {
		return err
	}
	_, err := run(ctx, p.Home, static, "nice", slices.Concat([]string{"-n", "5", "go", "test", "-c", "-ldflags", "-s -w", "-o", p.Cases()}, setup.Flags, []string{"./cases"})...)
	return err
}

// buildGuest builds what every guest has: the plugin, init, the workload and the image of sandboxes; and more kinds of released artefacts.
func (p *Parts) buildGuest(ctx context.Context, kinds ...string) error {
	if err := BuildPlugin(ctx, p.Options, p.plugin(), kinds...); err != nil {
		return err
	}
	if err := p.build(ctx, p.Home, p.bin+"/", static, slices.Concat(setup.Flags, []string{"-ldflags", "-s -w", "./guest", "./workload"})...); err != nil {
		return err
	}
	return writeImage(filepath.Join(p.bin, "image.tar"), setup.Image, filepath.Join(p.bin, "workload"), filepath.Join(p.busybox, "bin", "busybox"))
}

// static is the environment of builds without a C library.
var static = []string{"CGO_ENABLED=0"}

func (p *Parts) build(ctx context.Context, dir, out string, env []string, args ...string) error {
	_, err := retry(ctx, 2, func(ctx context.Context) (string, error) {
		return run(ctx, dir, append([]string{"GOGC=400"}, env...), "nice", append([]string{"-n", "10", "go", "build", "-trimpath", setup.NoDebugging, "-o", out}, args...)...)
	})
	return err
}

// vmlinuz is the kernel image of a release line.
func (p *Parts) vmlinuz(line string) (string, error) {
	found, _ := filepath.Glob(filepath.Join(p.kernels[line], "boot", "vmlinuz-*"))
	if len(found) == 0 { // from Debian 14 on
		found, _ = filepath.Glob(filepath.Join(p.kernels[line], "usr", "lib", "modules", "*", "vmlinuz"))
	}
	if len(found) == 0 {
		return "", fmt.Errorf("no kernel image in %s", p.kernels[line])
	}
	return found[0], nil
}

// modules are loaded in this order where the kernel has them as files.
var modules = []string{
	"virtio", "virtio_ring", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_console",
	"failover", "net_failover", "virtio_net", "virtio_blk", "veth",
	"overlay", "lzo_compress", "lzo_decompress", "lzo", "lzo_rle", "lz4_compress", "lz4hc_compress", "lz4", "lz4hc", "zstd_compress", "zsmalloc", "zram",
	"crc16", "crc32c_generic", "libcrc32c", "mbcache", "jbd2", "ext4", "xfs",
}

// addModules puts the kernel's modules into the tree, unpacked and numbered in
// the order in which the guest loads them.
func (p *Parts) addModules(t *Tree, line string) error {
	found := map[string]string{}
	err := filepath.WalkDir(p.kernels[line], func(file string, d os.DirEntry, err error) error {
		if name, _, ok := strings.Cut(filepath.Base(file), ".ko"); ok {
			found[strings.ReplaceAll(name, "-", "_")] = file
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("look for kernel modules: %w", err)
	}
	for i, name := range modules {
		file, ok := found[name]
		if !ok {
			continue
		}
		data, err := readModule(file)
		if err != nil {
			return fmt.Errorf("unpack kernel module %s: %w", file, err)
		}
		t.Bytes(fmt.Sprintf("e2e/modules/%02d-%s.ko", i, name), data)
	}
	return nil
}

func readModule(file string) ([]byte, error) {
	in, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if !strings.HasSuffix(file, ".xz") {
		return io.ReadAll(in)
	}
	r, err := xz.NewReader(in)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

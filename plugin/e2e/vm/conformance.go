package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

// Conformance is the guest in which Kubernetes' own suites of the node run. Their control plane is in the guest, so it is no
// node of a cluster on the host. The suites allocate 1100 MiB of node 0 for the system, and 16 MiB of huge pages there. Some cases ask
// for pages of 1 GiB, which the emulated CPU does not have: with them (pdpe1gb) no sandbox was made within minutes.
// The suite of the Topology Manager expects of a machine without hyper-threading that CPUs 1 and 2 are in the socket of CPU 0.
func Conformance() Variant {
	return Variant{
		Name: "conformance", Summary: "Kubernetes' test/e2e_node: containerd 2.4, systemd as PID 1, 2 NUMA nodes, kernel 6.12",
		Kernel: "6.12", Runtime: setup.Containerd24, Driver: setup.Systemd, RootCPU: 3, Sockets: true,
		Nodes: []setup.Node{
			{ID: 0, MiB: 2560, CPUs: 3, Distances: []int{10, 21}},
			{ID: 1, MiB: 3072, CPUs: 3, Distances: []int{21, 10}},
		},
	}
}

// Suites are Kubernetes' suites of one release, built, with the kubelet of the same release.
type Suites struct {
	Version string // v1.37.2
	folder  string // of kubelet and e2e_node.test
	source  string // the release's module
}

// BuildSuites builds test/e2e_node and the kubelet of a release of Kubernetes, or finds them in the cache. They are built in
// a module that has the release's own go.mod, with the published modules in place of its staging folders.
func (p *Parts) BuildSuites(ctx context.Context, version string) (*Suites, error) {
	minor, patch, ok := strings.Cut(strings.TrimPrefix(version, "v1."), ".")
	if !ok {
		return nil, fmt.Errorf("want a release of Kubernetes like v1.37.2, got %q", version)
	}
	out, err := Output(ctx, "go", "mod", "download", "-json", "k8s.io/kubernetes@"+version)
	if err != nil {
		return nil, fmt.Errorf("download Kubernetes %s: %w", version, err)
	}
	var module struct{ GoMod, Dir string }
	if err := json.Unmarshal([]byte(out), &module); err != nil {
		return nil, fmt.Errorf("download Kubernetes %s: %w", version, err)
	}
	s := &Suites{Version: version, source: module.Dir, folder: filepath.Join(p.Cache, fmt.Sprintf("conformance-%s-%s", version, runtime.Version()))}
	return s, once(s.folder, func(dir string) error {
		p.Log("building Kubernetes' test/e2e_node and the kubelet of %s (ten minutes and more, once)", version)
		text, err := os.ReadFile(module.GoMod)
		if err != nil {
			return fmt.Errorf("read go.mod of Kubernetes %s: %w", version, err)
		}
		text = regexp.MustCompile(`(?m)^module .*$`).ReplaceAll(text, []byte("module conformance"))
		text = regexp.MustCompile(`(k8s\.io/\S+) => \./staging/\S+`).ReplaceAll(text, []byte("$1 => $1 v0."+minor+"."+patch))
		text = fmt.Appendf(text, "\nrequire k8s.io/kubernetes %s\n", version)
		if err := os.WriteFile(filepath.Join(dir, "go.mod"), text, 0o644); err != nil {
			return fmt.Errorf("build Kubernetes' suites: %w", err)
		}
		flags := []string{"-trimpath", setup.NoDebugging, "-mod=mod", "-ldflags", "-s -w" + versionFlags(version)}
		if _, err := run(ctx, dir, static, "nice", slices.Concat([]string{"-n", "10", "go", "build"}, flags, []string{"-o", "kubelet", "k8s.io/kubernetes/cmd/kubelet"})...); err != nil {
			return err
		}
		_, err = run(ctx, dir, static, "nice", slices.Concat([]string{"-n", "10", "go", "test", "-c", "-vet=off"}, flags, []string{"-o", "e2e_node.test", "k8s.io/kubernetes/test/e2e_node"})...)
		return err
	})
}

// images are the names of the images that pods of the suites have, as the release's own sources name them.
func (s *Suites) images() ([]string, error) {
	text, err := os.ReadFile(filepath.Join(s.source, "test/utils/image/manifest.go"))
	if err != nil {
		return nil, fmt.Errorf("look for the suites' images: %w", err)
	}
	busybox := regexp.MustCompile(`configs\[BusyBox\] = Config\{list\.PromoterE2eRegistry, "busybox", "([^"]+)"\}`).FindSubmatch(text)
	if busybox == nil {
		return nil, fmt.Errorf("test/utils/image/manifest.go of Kubernetes %s does not name the version of busybox", s.Version)
	}
	names := []string{"registry.k8s.io/e2e-test-images/busybox:" + string(busybox[1])}
	files, _ := filepath.Glob(filepath.Join(s.source, "test/e2e_node/*_test.go"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("look for the suites' images: %w", err)
		}
		names = append(names, regexp.MustCompile(`registry\.k8s\.io/e2e-test-images/busybox:[\w.-]+`).FindAllString(string(text), -1)...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// BuildConformance builds what the guest of the suites has of this project: the plugin, the guest's init, the program that runs
// the suites, and the images.
func (p *Parts) BuildConformance(ctx context.Context, suites *Suites) error {
	if err := p.buildGuest(ctx); err != nil {
		return err
	}
	if err := p.build(ctx, p.Home, p.bin+"/", static, slices.Concat(setup.Flags, []string{"-ldflags", "-s -w", "./conformance/node"})...); err != nil {
		return err
	}
	bookworm := NewArchive(filepath.Join(p.Cache, "lists", "bookworm"), "bookworm")
	if err := bookworm.Closure(ctx, p.utilLinux(), "util-linux"); err != nil {
		return err
	}
	names, err := suites.images()
	if err != nil {
		return err
	}
	busybox := filepath.Join(p.busybox, "bin", "busybox")
	applets, err := Output(ctx, busybox, "--list")
	if err != nil {
		return fmt.Errorf("list busybox's applets: %w", err)
	}
	p.suites = suites
	return writeSuiteImage(filepath.Join(p.bin, "suite-image.tar"), names, busybox, slices.DeleteFunc(strings.Fields(applets), func(name string) bool { return name == "busybox" }))
}

// utilLinux is the folder of lscpu, which the suites ask for the NUMA nodes.
func (p *Parts) utilLinux() string { return filepath.Join(p.Cache, "debian", "util-linux") }

// addSuites adds Kubernetes' suites, the kubelet that they start, and what they expect of a node.
func (p *Parts) addSuites(t *Tree, v Variant) error {
	t.File(setup.Conformance, filepath.Join(p.bin, "node"))
	t.File(setup.SuiteImageTar, filepath.Join(p.bin, "suite-image.tar"))
	t.File(setup.E2ENode, filepath.Join(p.suites.folder, "e2e_node.test"))
	t.File(setup.Kubelet, filepath.Join(p.suites.folder, "kubelet"))
	if err := t.Program("usr/bin/lscpu", filepath.Join(p.utilLinux(), "usr/bin/lscpu"), p.utilLinux()); err != nil {
		return err
	}
	p.addNetwork(t)
	configs, _ := filepath.Glob(filepath.Join(p.kernels[v.Kernel], "boot", "config-*"))
	for _, file := range configs { // the suites check it
		t.File("boot/"+filepath.Base(file), file)
	}
	return nil
}

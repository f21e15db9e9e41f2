package monitoring

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator/cgroups"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// bound is how long a test waits for what must come; only a broken daemon waits that long.
const bound = 2 * time.Minute

// built is the path of the daemon's binary, which the first call builds in a folder that TestMain removes.
var (
	folder string
	built  = sync.OnceValues(func() (string, error) {
		path := filepath.Join(folder, "nri-memory-manager")
		cmd := exec.Command("go", "-C", "../..", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-tags", "grpcnotrace,nethttpomithttp2", "-o", path, "./plugin")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // the Makefile's flags: both find the same packages in Go's cache
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building the daemon: %w\n%s", err, out)
		}
		return path, nil
	})
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	var err error
	if folder, err = os.MkdirTemp("", "nri"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	return m.Run()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// exporter is a daemon on a machine with two NUMA nodes, connected to a runtime.
type exporter struct {
	t       *testing.T
	dir     string
	tree    *cgroups.Tree
	runtime *cri.Runtime
}

func newExporter(t *testing.T, settings string) *exporter {
	t.Helper()
	binary, err := built()
	must(t, err)
	dir, err := os.MkdirTemp(folder, "n") // t.TempDir's paths are too long for sockets
	must(t, err)
	e := &exporter{t: t, dir: dir}
	must(t, os.Mkdir(e.path("cgroups"), 0o755))
	e.tree, err = cgroups.NewTree(e.path("cgroups"))
	must(t, err)
	e.write("machine.yaml", "nodes: [{id: 0, memory: 16Gi, cpus: 0-3}, {id: 1, memory: 16Gi, cpus: 4-7}]\n")
	e.write("config.yaml", settings)
	e.runtime = cri.New(cri.Options{Socket: e.path("nri.sock"), Cgroups: e.tree})
	must(t, e.runtime.Start())
	t.Cleanup(e.runtime.Stop)
	process := exec.Command(binary, "run", "--nri-socket", e.path("nri.sock"), "--state-dir", e.path("state"), "--cgroups", e.path("cgroups"),
		"--plain-cgroups", "--machine", e.path("machine.yaml"), "--config", e.path("config.yaml"), "--metrics-address", "",
		"--kubelet-pods-socket", e.path("kubelet.sock"), "--kubelet-podresources-socket", e.path("devices.sock"))
	var log bytes.Buffer
	process.Stdout, process.Stderr = &log, &log
	must(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
		if t.Failed() {
			t.Logf("log of the daemon:\n%s", &log)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	must(t, e.runtime.WaitSynchronized(ctx, 1))
	return e
}

func (e *exporter) path(name string) string { return filepath.Join(e.dir, name) }

func (e *exporter) write(name, text string) {
	e.t.Helper()
	must(e.t, os.WriteFile(e.path(name), []byte(text), 0o644))
}

// place starts a Guaranteed pod as the kubelet does; the error is the daemon's.
func (e *exporter) place(name string, limit int64) error {
	e.t.Helper()
	cgroup := "kubepods/pod" + name
	must(e.t, e.tree.Make(cgroup))
	resources := &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(limit)}, Cpu: &api.LinuxCPU{Shares: api.UInt64(uint64(1024))}}
	must(e.t, e.runtime.RunPodSandbox(e.t.Context(), &api.PodSandbox{Id: "sandbox-" + name, Uid: name, Namespace: "default", Name: name,
		Linux: &api.LinuxPodSandbox{CgroupParent: "/" + cgroup, PodResources: resources}}))
	_, err := e.runtime.CreateContainer(e.t.Context(), &api.Container{Id: name, PodSandboxId: "sandbox-" + name, Name: "app",
		Linux: &api.LinuxContainer{Resources: resources, OomScoreAdj: &api.OptionalInt{Value: -997}, CgroupsPath: "/" + cgroup + "/" + name}})
	return err
}

func (e *exporter) resize(name string, limit int64) error {
	return e.runtime.UpdateContainer(e.t.Context(), name, &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(limit)}})
}

// sample is a series with its value.
type sample struct {
	name   string
	labels map[string]string
	value  float64
}

// String is the series as promtool reads it.
func (s sample) String() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(s.labels)) {
		pairs = append(pairs, name+"="+strconv.Quote(s.labels[name]))
	}
	return s.name + "{" + strings.Join(pairs, ",") + "}"
}

// scrape returns the daemon's own series, without the Go runtime's and the process's.
func (e *exporter) scrape() (samples []sample) {
	e.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", e.path("state/admin.sock"))
	}}}
	response, err := client.Get("http://daemon/metrics")
	must(e.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	must(e.t, err)
	if response.StatusCode != http.StatusOK {
		e.t.Fatalf("%s: %s", response.Status, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	must(e.t, err)
	for name, family := range families {
		if strings.HasPrefix(name, "nri_memory_manager_") || strings.HasPrefix(name, "memory_") {
			for _, metric := range family.Metric {
				samples = append(samples, samplesOf(name, metric)...)
			}
		}
	}
	if len(samples) < 40 {
		e.t.Fatalf("the daemon exports %d series:\n%s", len(samples), text)
	}
	slices.SortFunc(samples, func(a, b sample) int { return strings.Compare(a.String(), b.String()) })
	return samples
}

// samplesOf are the series of a metric: one, or those of a histogram.
func samplesOf(name string, metric *dto.Metric) (samples []sample) {
	labels := map[string]string{}
	for _, pair := range metric.Label {
		labels[pair.GetName()] = pair.GetValue()
	}
	histogram := metric.GetHistogram()
	if histogram == nil {
		return []sample{{name, labels, metric.GetCounter().GetValue() + metric.GetGauge().GetValue()}}
	}
	for _, bucket := range histogram.Bucket {
		bounded := maps.Clone(labels)
		bounded["le"] = strconv.FormatFloat(bucket.GetUpperBound(), 'g', -1, 64)
		samples = append(samples, sample{name + "_bucket", bounded, float64(bucket.GetCumulativeCount())})
	}
	return append(samples, sample{name + "_count", labels, float64(histogram.GetSampleCount())}, sample{name + "_sum", labels, histogram.GetSampleSum()})
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/verify"
)

const operatorsConfig = testConfig + `
memoryReservationPolicy: TieredReservation
`

// busyHost runs a pinned and a throttled pod, and one that was rejected.
func busyHost(t *testing.T) (*host, *process) {
	t.Helper()
	h := newHost(t, cri.Options{}, operatorsConfig)
	h.timings("check=1h")
	plugin := h.start()
	h.deploy(guaranteed("database", 4*gi), burstable("web", 2*gi, 968))
	large := guaranteed("large", 64*gi)
	must(t, h.runPod(large))
	if err := h.create(large); err == nil {
		t.Fatal("a container larger than the machine was created")
	}
	return h, plugin
}

// ask runs a command of the binary against the running plugin.
func (h *host) ask(code int, args ...string) string {
	h.t.Helper()
	got, out, errOut := run(h.t, "", append(args, "--state-dir", h.path("state"))...)
	if got != code {
		h.t.Fatalf("%s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, out, errOut)
	}
	return out + errOut
}

func wantAll(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("want %q in\n%s", part, text)
		}
	}
}

func TestStatusAndExplainOfARunningPlugin(t *testing.T) {
	t.Parallel()
	h, plugin := busyHost(t)
	wantAll(t, h.ask(0, "status"), "NODE", "default/database", "default/web", "limit", "oomscore", "4Gi", "REJECTED OR UNPINNED", "default/large", "app (rejected)")
	wantAll(t, h.ask(0, "status", "-o", "wide"), "ON NODES", "kubepods/poduid-database/container-database-a")
	wantAll(t, h.ask(0, "status", "-o", "yaml"), "topologyManagerPolicy: restricted")
	var document, served status.Document
	must(t, json.Unmarshal([]byte(h.ask(0, "status", "-o", "json")), &document))
	must(t, json.Unmarshal([]byte(plugin.get("/status")), &served))
	document.Time = served.Time
	if difference := cmp.Diff(served, document); difference != "" {
		t.Errorf("status -o json and /status differ:\n%s", difference)
	}
	if nodes := document.Pods[0].Containers[0].Nodes; nodes != nodeset.Of(0) {
		t.Errorf("database is on %s, want node 0", nodes)
	}

	wantAll(t, h.ask(0, "explain", "default/database"), "4Gi of memory on node 0", "where it is", "memory.min =")
	wantAll(t, h.ask(0, "explain", "default/large/app"), "would be rejected", "last rejection", "64Gi needed\n")
	wantAll(t, h.ask(0, "explain", "web/app"), "memory.high = request ", "oomscore")
	wantAll(t, h.ask(0, "explain", "-n", "default", "large/app"), "would be rejected")
	wantAll(t, h.ask(0, "explain", "pod/database"), "4Gi of memory on node 0")
	wantAll(t, h.ask(0, "explain", "large", "-c", "app"), "would be rejected")
	wantAll(t, h.ask(1, "explain", "web/app", "-c", "app"), `no pod "web/app" on this node`)
	wantAll(t, h.ask(1, "explain", "default/nobody"), `no pod "default/nobody" on this node`)
	wantAll(t, h.ask(1, "explain", "database/nobody"), `no pod "database/nobody" on this node, and pod "database" has no container "nobody"`)
	for _, argument := range []string{"", "default/", "/database", "a/b/c/d"} {
		wantAll(t, h.ask(2, "explain", argument), `want [NAMESPACE/]POD[/CONTAINER]`)
	}
	wantAll(t, h.ask(2, "status", "-o", "xml"), "--output \"xml\": want one of table, wide, json, yaml")

	file := h.path("state/memory_manager_state")
	wantAll(t, h.ask(0, "explain", "uid-database/app", "--state-file", file, "--config", h.path("config.yaml")), "4Gi of memory on node 0", "where it is")
	wantAll(t, h.ask(0, "explain", "uid-database", "--container=app", "--state-file", file, "--config", h.path("config.yaml")), "4Gi of memory on node 0")
	wantAll(t, h.ask(1, "explain", "default/database", "--state-file", file), "the state file knows pods by UID")
	wantAll(t, h.ask(0, "explain", "pod/uid-database", "--state-file", file), "4Gi of memory on node 0")
	wantAll(t, h.ask(2, "explain", "uid", "--state-file", h.path("nowhere")), "nowhere")
	wantAll(t, h.ask(2, "explain", "uid-database", "--state-file", file, "-n", "default"), "--namespace: a state file names pods by their UID; leave it out")
	wantAll(t, h.ask(2, "explain", "database", "--config", h.path("config.yaml")), "--config is for --state-file: the daemon has its own")

	wantAll(t, plugin.get("/"), "<title>NUMA memory map</title>")
	wantAll(t, plugin.get("/healthz"), "ok")
	if ready := plugin.get("/readyz"); strings.Contains(ready, "[-]") || !strings.Contains(ready, "[+] synchronized") {
		t.Errorf("/readyz: %s", ready)
	}
	if info, err := os.Stat(h.path("state/admin.sock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket's mode is %v (%v), want 0600", info.Mode(), err)
	}
	plugin.stop()
	for _, command := range []string{"status", "status database", "explain database", "verify"} {
		wantAll(t, h.ask(1, strings.Fields(command)...), "no daemon answers on "+h.path("state/admin.sock"), "is it running, with this --state-dir?")
	}
}

func TestStatusOfAPodANamespaceAndProblems(t *testing.T) {
	t.Parallel()
	h, _ := busyHost(t)
	h.deploy(&testPod{name: "shopped", namespace: "shop", qos: "burstable", limit: gi, adj: 968})
	pods := func(args ...string) string {
		t.Helper()
		var document status.Document
		must(t, json.Unmarshal([]byte(h.ask(0, append([]string{"status", "-o", "json"}, args...)...)), &document))
		var names []string
		for _, pod := range document.Pods {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
		slices.Sort(names)
		return strings.Join(names, " ")
	}
	for _, test := range []struct{ args, want string }{
		{"", "default/database default/large default/web shop/shopped"}, {"web", "default/web"}, {"default/web", "default/web"}, {"uid-web", "default/web"},
		{"-n shop", "shop/shopped"}, {"--namespace shop shopped", "shop/shopped"}, {"pod/web", "default/web"}, {"-n shop pod/shopped", "shop/shopped"}, {"-n shop shop/shopped", "shop/shopped"}, {"--problems", "default/large"}, {"--problems -n shop", ""},
	} {
		if got := pods(strings.Fields(test.args)...); got != test.want {
			t.Errorf("status %s: %s, want %s", test.args, got, test.want)
		}
	}
	wantAll(t, h.ask(1, "status", "-n", "shopp"), `no pod on this node is in the namespace "shopp"`, "shop")
	if text := h.ask(0, "status", "database"); !strings.Contains(text, "default/database") || strings.Contains(text, "default/web") || strings.Contains(text, "REJECTED OR UNPINNED") {
		t.Errorf("status of a pod shows others:\n%s", text)
	}
	if text := h.ask(0, "status", "--problems"); !strings.Contains(text, "app (rejected)") || strings.Contains(text, "database") || strings.Contains(text, "NUMA NODES") {
		t.Errorf("status --problems:\n%s", text)
	}
	wantAll(t, h.ask(0, "status", "--problems", "-n", "shop"), "\n\nno problems\n")
	wantAll(t, h.ask(1, "status", "default/nobody"), `no pod "default/nobody" on this node`)
	wantAll(t, h.ask(1, "status", "-n", "shop", "web"), `no pod "shop/web" on this node`)
	wantAll(t, h.ask(2, "status", "-n", "shop", "default/web"), "want [NAMESPACE/]POD in the namespace shop")
	for _, argument := range []string{"", "default/", "/web", "a/b/c"} {
		wantAll(t, h.ask(2, "status", argument), "want [NAMESPACE/]POD")
	}

	for _, test := range []struct{ words, want string }{
		{"status|", "default/database default/large default/web shop/shopped"}, {"verify|d", "database default/database default/large default/web"},
		{"explain|default/w", "default/web"}, {"explain|we", "web"}, {"explain|default/web/", "default/web/app"}, {"explain|default/web|", ""}, {"verify|x", ""},
		{"status|-n|", "default shop"}, {"status|--namespace|s", "shop"},
	} {
		words := strings.Split(test.words, "|")
		words = slices.Insert(words, 1, "--state-dir", h.path("state"))
		_, out, _ := run(t, "", append([]string{"__complete"}, words...)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if got := strings.Join(lines[:len(lines)-1], " "); got != test.want || lines[len(lines)-1] != ":4" {
			t.Errorf("completion of %q: %q, want %s and no files", test.words, lines, test.want)
		}
	}
}

// The kubelet tries to create a container until it succeeds or the pod is gone.
func TestRejectionsOfAPodAreOneBlockAndGoWithIt(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]string{"rejected": operatorsConfig, "runs unpinned": operatorsConfig + "profile: Observe\n"} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, cri.Options{}, config)
			h.start()
			large, stays := guaranteed("large", 64*gi), guaranteed("stays", 65*gi)
			must(t, h.runPod(large))
			must(t, h.runPod(stays))
			for _, p := range []*testPod{large, stays, large, large} {
				_ = h.create(p) // dry run refuses nothing
				p.tries++
			}
			text := h.ask(0, "status")
			wantAll(t, text, "  default/large app, "+name+", 3 times (UnexpectedAdmissionError):\n", "  default/stays app, "+name+" (UnexpectedAdmissionError):\n")
			if n := strings.Count(text, "node 0: 15.5Gi of 15.5Gi free, 64Gi needed"); n != 1 {
				t.Errorf("the same is said %d times:\n%s", n, text)
			}
			rejections := func() (all []string) {
				var document status.Document
				must(t, json.Unmarshal([]byte(h.ask(0, "status", "-o", "json")), &document))
				for _, r := range document.Rejections {
					if r.Last.Before(r.At) || r.Last.Equal(r.At) != (r.Count == 1) {
						t.Errorf("%d times from %s to %s", r.Count, r.At, r.Last)
					}
					all = append(all, fmt.Sprintf("%s/%s %d %t", r.Pod, r.Container, r.Count, r.Refused))
				}
				return all
			}
			refused := fmt.Sprint(name == "rejected")
			if diff := cmp.Diff([]string{"large/app 3 " + refused, "stays/app 1 " + refused}, rejections()); diff != "" {
				t.Error(diff)
			}
			must(t, h.endPod(large)) // deleted, and never had a container that ran
			must(t, h.removePod(large))
			eventually(t, "the rejections of a pod go with its cgroup", func() bool {
				return slices.Equal([]string{"stays/app 1 " + refused}, rejections())
			})
			if text := h.ask(0, "status"); strings.Contains(text, "default/large") {
				t.Errorf("the pod is gone, and still shown:\n%s", text)
			}
			must(t, h.removePod(stays)) // not stopped before
			must(t, h.tree.Remove(stays.cgroup()))
			eventually(t, "no pod is left, and no rejection shown", func() bool {
				return !strings.Contains(h.ask(0, "status"), "REJECTED OR UNPINNED")
			})
		})
	}
}

func TestStatusWatchOutlivesThePlugin(t *testing.T) {
	t.Parallel()
	h, plugin := busyHost(t)
	watch := exec.Command(binary, "status", "--watch", "--state-dir", h.path("state"))
	var screen output
	watch.Stdout = &screen
	must(t, watch.Start())
	t.Cleanup(func() { watch.Process.Kill() })
	shows := func(part string, times int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%s is shown %d times", part, times), func() bool { return strings.Count(screen.String(), part) >= times })
	}
	shows("default/database", 1)
	plugin.stop()
	shows("no daemon answers", 1)
	before := strings.Count(screen.String(), "default/database")
	h.start()
	shows("default/database", before+1)
	must(t, watch.Process.Signal(os.Interrupt))
	if err := watch.Wait(); err != nil {
		t.Errorf("interrupted, it ends with %v", err)
	}
}

// overwrite writes a file again and again until stop is called: the plugin puts its value back sooner than a command starts.
func (h *host) overwrite(cgroup, file, text string) (stop func()) {
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
				_ = h.tree.Write(cgroup, file, text) // it is not there any more when the test has failed
			}
		}
	})
	return sync.OnceFunc(func() { close(done); group.Wait() })
}

func TestVerifyOfARunningPlugin(t *testing.T) {
	t.Parallel()
	h, _ := busyHost(t)
	h.write("kubelet.yaml", "memoryManagerPolicy: None\nfeatureGates: {MemoryQoS: false}\n")
	audit := func(code int, args ...string) string {
		return h.ask(code, append([]string{"verify", "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml"),
			"--kubelet-config", h.path("kubelet.yaml")}, args...)...)
	}
	before := h.written()
	wantAll(t, audit(0), "2 running containers looked at: nothing is wrong, 3 notes", "[estimate]",
		"NOTE     kubelet: ", "kubelet.sock: no such file or directory", "now from oomscore", "feature gate PodsAPI", "[request-source]")

	wantAll(t, audit(0, "default/database"), "1 running container looked at: nothing is wrong, 1 note", "[request-source]")
	if diff := cmp.Diff(before, h.written()); diff != "" {
		t.Errorf("verify has changed cgroup files: %s", diff)
	}
	wantAll(t, audit(0, "pod/database", "-n", "default"), "1 running container looked at")
	wantAll(t, audit(2, "-n", "default"), "--namespace is a pod's: want a pod, too")
	wantAll(t, audit(1, "default/other"), `nri-memory-manager: no pod "default/other" on this node`)

	h.write("kubelet.yaml", "memoryManagerPolicy: Static\n")
	found := map[string]bool{}
	defer h.overwrite("kubepods/burstable/poduid-web/container-web-a", "memory.high", "max")()
	defer h.overwrite("kubepods/poduid-database/container-database-a", "cpuset.mems", "0-1")()
	eventually(t, "verify names what others have written", func() bool {
		var report verify.Report
		must(t, json.Unmarshal([]byte(audit(1, "-o", "json")), &report))
		for _, f := range report.Findings {
			found[string(f.Severity)+" "+f.ID+" "+f.Object] = true
		}
		return found["error cpuset default/database/app"] && found["warning memory-high default/web/app"]
	})
	if want := "error kubelet-memory-manager " + h.path("kubelet.yaml"); !found[want] {
		t.Errorf("want %q in %v", want, found)
	}
	h.write("kubelet.yaml", "memoryManagerPolicy: [\n")
	wantAll(t, audit(2), "read the kubelet's configuration")
	wantAll(t, h.ask(2, "verify", "--machine", h.path("nowhere")), "nowhere")
}

// roundFiles gives the memory files what a kernel would show of them: whole pages.
func (h *host) roundFiles() {
	h.t.Helper()
	for path, text := range h.written() {
		if bytes, err := strconv.ParseUint(text, 10, 64); err == nil && strings.HasPrefix(filepath.Base(path), "memory.") {
			must(h.t, h.tree.Write(filepath.Dir(path), filepath.Base(path), fmt.Sprint(memoryqos.InFile(bytes, 4096))))
		}
	}
}

// Requests are seldom whole pages, and the kernel's files show nothing else.
func TestTheKernelsRoundingIsNoDifference(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, operatorsConfig)
	plugin := h.start()
	h.deploy(guaranteed("database", 10000001), guaranteed("decimal", 100_000_000), burstable("web", 2*gi+1, 968))
	h.roundFiles()
	if got := h.knob("kubepods/poduid-database", "memory.min"); got != "9998336" {
		t.Fatalf("the pod's memory.min is %s, want a request in whole pages", got)
	}
	text := h.ask(0, "status")
	wantAll(t, text, "kubepods ", "kubepods/burstable ", "the same")
	if strings.Contains(text, "overwritten") {
		t.Errorf("rounded files are called overwritten:\n%s", text)
	}
	for source, text := range map[string]string{"status -o json": h.ask(0, "status", "-o", "json"), "/status": plugin.get("/status")} {
		var document status.Document
		must(t, json.Unmarshal([]byte(text), &document))
		for _, a := range document.Ancestors {
			if !cmp.Equal(a.Min, a.RealMin) && a.Min != nil || !cmp.Equal(a.Low, a.RealLow) && a.Low != nil {
				t.Errorf("%s: what %s should show is not what it shows:\n%s", source, a.Cgroup, asJSON(t, a))
			}
		}
	}
	wantAll(t, h.ask(0, "verify", "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml")), "nothing is wrong")
}

func TestVerifyNamesTheLevelThatCancelsProtection(t *testing.T) {
	t.Parallel()
	h, _ := busyHost(t)
	audit := func() (text string) {
		_, text, _ = run(t, "", "verify", "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml"))
		return text
	}
	const want = "kubepods/burstable: its memory.low is 0: default/web/app has 0 instead of"
	stop := h.overwrite("kubepods/burstable", "memory.low", "0")
	eventually(t, "verify names the level", func() bool { return strings.Contains(audit(), want) })
	stop()
	eventually(t, "verify counts the overwrites", func() bool { return strings.Contains(audit(), "burstable memory.low: changed externally") })
	eventually(t, "the plugin has put its value back", func() bool { return !strings.Contains(audit(), want) })
}

// What somebody writes to a file of any level is repaired because the kernel tells of it: no periodic check comes.
func TestExternalChangesAreRepairedAtEachLevel(t *testing.T) {
	t.Parallel()
	h, _ := busyHost(t)
	const database, web = "kubepods/poduid-database", "kubepods/burstable/poduid-web"
	for dir, files := range map[string][]string{
		"kubepods": {"memory.min"}, "kubepods/burstable": {"memory.low"}, database: {"memory.min"}, web: {"memory.low"},
		database + "/container-database-a": {"memory.min", "cpuset.mems"}, web + "/container-web-a": {"memory.low", "memory.high"},
	} {
		for _, file := range files {
			was, err := h.tree.Read(dir, file)
			must(t, err)
			other := "1"
			if file == "memory.high" {
				other = "max"
			}
			must(t, h.tree.Write(dir, file, other))
			eventually(t, "the plugin has put "+dir+"/"+file+" back", func() bool {
				now, err := h.tree.Read(dir, file)
				return err == nil && now == was
			})
		}
	}
}

// Another writer of a container's files is counted as one of the parent cgroups is, and its value replaced.
func TestOverwrittenFilesOfContainersAreCounted(t *testing.T) {
	t.Parallel()
	h, plugin := busyHost(t)
	for file, container := range map[string]string{
		"cpuset.mems": "kubepods/poduid-database/container-database-a", "memory.high": "kubepods/burstable/poduid-web/container-web-a",
	} {
		counted := `nri_memory_manager_container_overwrites_total{file="` + file + `"} `
		wantAll(t, plugin.get("/metrics"), counted+"0\n")
		was, err := h.tree.Read(container, file)
		must(t, err)
		must(t, h.tree.Write(container, file, map[string]string{"cpuset.mems": "1", "memory.high": "max"}[file]))
		// An ordinary file is cut short first, which may be a change of its own.
		eventually(t, "the overwrite is counted", func() bool { return !strings.Contains(plugin.get("/metrics"), counted+"0\n") })
		eventually(t, "verify names the file", func() bool {
			_, text, _ := run(t, "", "verify", "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups", "--machine", h.path("machine.yaml"))
			return strings.Contains(text, "container "+file+": changed externally ")
		})
		eventually(t, "the plugin has put its value back", func() bool {
			now, err := h.tree.Read(container, file)
			return err == nil && now == was
		})
	}
}

func TestScrapeOfARunningPlugin(t *testing.T) {
	t.Parallel()
	_, plugin := busyHost(t)
	eventually(t, "a scrape has the time to read the containers", func() bool {
		return strings.Contains(plugin.get("/metrics"), "nri_memory_manager_container_memory_current_bytes{")
	})
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(plugin.get("/metrics")))
	must(t, err)
	for name, want := range map[string]float64{
		"memory_manager_pinning_requests_total": 2, "memory_manager_pinning_errors_total": 1, "nri_memory_manager_rejections_total": 1,
	} {
		var sum float64
		for _, metric := range families[name].GetMetric() {
			sum += metric.GetCounter().GetValue()
		}
		if sum != want {
			t.Errorf("%s is %v, want %v", name, families[name], want)
		}
	}
	handlers := map[string]uint64{}
	for _, metric := range families["nri_memory_manager_handler_duration_seconds"].GetMetric() {
		handlers[metric.Label[0].GetValue()] = metric.GetHistogram().GetSampleCount()
	}
	if handlers["CreateContainer"] != 3 || handlers["RunPodSandbox"] != 3 || handlers["StartContainer"]+handlers["PostStartContainer"] == 0 {
		t.Errorf("events answered: %v", handlers)
	}
	for _, name := range []string{"memory_qos_node_memory_min_bytes", "nri_memory_manager_numa_allocated_bytes", "nri_memory_manager_container_memory_current_bytes", "nri_memory_manager_build_info", "go_goroutines", "process_resident_memory_bytes"} {
		if families[name] == nil {
			t.Errorf("no %s", name)
		}
	}
}

func TestPodResourcesOfARunningPlugin(t *testing.T) {
	t.Parallel()
	h, _ := busyHost(t)
	connection, err := grpc.NewClient("unix://"+h.path("state/podresources.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { connection.Close() })
	client := podresources.NewPodResourcesListerClient(connection)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	pod, err := client.Get(ctx, &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: "database"}, grpc.WaitForReady(true))
	must(t, err)
	memory := pod.GetPodResources().GetContainers()[0].GetMemory()
	if len(memory) != 1 || memory[0].GetSize() != 4*gi || memory[0].GetMemoryType() != "memory" || memory[0].GetTopology().GetNodes()[0].GetID() != 0 {
		t.Errorf("memory of database: %v, want 4Gi on node 0", memory)
	}
	list, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	must(t, err)
	if n := len(list.GetPodResources()); n != 3 {
		t.Errorf("%d pods, want 3", n)
	}
	allocatable, err := client.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	must(t, err)
	if n := len(allocatable.GetMemory()); n != 2 {
		t.Errorf("allocatable: %v, want one for each node", allocatable)
	}
}

func TestEventsOfARunningPlugin(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var written []corev1.Event
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event corev1.Event
		if r.Method != http.MethodPost || r.URL.Path != "/api/v1/namespaces/default/events" || json.NewDecoder(r.Body).Decode(&event) != nil {
			http.NotFound(w, r)
			return
		}
		mu.Lock()
		written = append(written, event)
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(event)
	}))
	t.Cleanup(server.Close)
	h := newHost(t, cri.Options{}, "")
	h.write("kubeconfig", "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: '"+server.URL+"'}}]}")
	h.write("config.yaml", operatorsConfig+"events: true\nrequestSources: [oomscore]\n")
	h.ofNode("worker-1")
	h.start()
	large := guaranteed("large", 64*gi)
	must(t, h.runPod(large))
	if h.create(large) == nil {
		t.Fatal("a container larger than the machine was created")
	}
	eventually(t, "the pod has an event", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(written) > 0
	})
	event := written[0]
	if o := event.InvolvedObject; o.Kind != "Pod" || o.Name != "large" || string(o.UID) != large.uid() || event.Type != "Warning" || event.Source.Host != "worker-1" {
		t.Errorf("event %s", asJSON(t, event))
	}
	wantAll(t, event.Message, "64Gi needed; node 1")
}

package main

import (
	"debug/elf"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// Every node has the daemon in memory: what only tests and "make run" need must stay out of it.
func TestTheDaemonLinksNoRuntimeSide(t *testing.T) {
	t.Parallel()
	list := func(args ...string) []string {
		output, err := exec.Command("go", append([]string{"list"}, args...)...).Output()
		must(t, err)
		return strings.Fields(string(output))
	}
	packages, support := list("-deps", "."), list("../pkg/testing/...", "./demo")
	if len(support) == 0 {
		t.Error("there is no test support where it is looked for")
	}
	for _, unwanted := range append(support,
		"github.com/containerd/nri/pkg/adaptation", "github.com/containerd/nri/pkg/runtime-tools/generate",
		"github.com/containerd/nri/plugins/default-validator", "github.com/opencontainers/runtime-tools/generate",
		"github.com/nri-memory-manager/nri-memory-manager/pkg/kubectl", "k8s.io/client-go/tools/remotecommand",
		"k8s.io/client-go/kubernetes", "k8s.io/dynamic-resource-allocation/kubeletplugin",
	) {
		if slices.Contains(packages, unwanted) {
			t.Errorf("the daemon imports %s", unwanted)
		}
	}
}

// A feature is a room of its own and knows no other one; what tells people of them knows them all.
func TestFeaturesImportNoOther(t *testing.T) {
	t.Parallel()
	features := []string{"claims/dra", "deficit/sampler", "devices", "guard", "history", "nodetopology", "oom", "podresources", "reclaim", "recording"}
	for _, feature := range features {
		output, err := exec.Command("go", "list", "-f", "{{join .Imports \"\\n\"}}", "../pkg/"+feature).Output()
		must(t, err)
		for _, imported := range strings.Fields(string(output)) {
			other := strings.TrimPrefix(imported, "github.com/nri-memory-manager/nri-memory-manager/pkg/")
			if slices.Contains(features, other) {
				t.Errorf("%s imports %s", feature, other)
			}
		}
	}
}

// The kubectl plugin runs where kubectl does; most of the daemon's packages are for Linux alone.
func TestTheKubectlPluginLinksNoDaemon(t *testing.T) {
	t.Parallel()
	const ours = "github.com/nri-memory-manager/nri-memory-manager/"
	output, err := exec.Command("go", "list", "-deps", "./kubectl").Output()
	must(t, err)
	portable := []string{"commandline", "deficit", "kubectl", "memorymanager", "memoryqos", "nodeset", "printer", "quantity", "spelling", "tables", "topologymanager"}
	for _, name := range strings.Fields(string(output)) {
		if pkg, ok := strings.CutPrefix(name, ours+"pkg/"); ok && !slices.Contains(portable, pkg) {
			t.Errorf("the kubectl plugin imports %s", name)
		}
	}
}

// The linker leaves out what nothing reaches, as long as nothing reachable looks methods up by name: then it keeps the
// exported methods of every type, which makes a third of the binary. ExportAll, which nothing calls, shows that. gRPC's
// tracing pages did it, with text/template; the build tag grpcnotrace leaves them out. NRI's api package imports a WebAssembly
// engine for the runtime's side.
func TestTheLinkerLeavesOutWhatNothingReaches(t *testing.T) {
	t.Parallel()
	file, err := elf.Open(released(t))
	must(t, err)
	defer file.Close()
	symbols, err := file.Symbols()
	must(t, err)
	for _, unwanted := range []string{
		"github.com/godbus/dbus/v5.(*Conn).ExportAll", "text/template.(*state).evalField", "github.com/tetratelabs/wazero.NewRuntimeWithConfig",
		"net/http.(*http2Framer).ReadFrame",
	} {
		if slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == unwanted }) {
			t.Errorf("the binary contains %s", unwanted)
		}
	}
}

// The build tag nethttpomithttp2 leaves out net/http's own HTTP/2: requests go through golang.org/x/net's.
func TestRequestsToTheAPIServerAreHTTP2(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.Proto:
		default:
		}
		http.NotFound(w, r)
	}))
	//lint:ignore SA1019 the tests are built with the plugin's flags, so net/http has no HTTP/2 for Server.Protocols
	must(t, http2.ConfigureServer(server.Config, nil))
	server.TLS = server.Config.TLSConfig
	server.StartTLS()
	defer server.Close()
	h := newHost(t, cri.Options{}, testConfig+"nodeResourceTopology: true\n")
	h.write("kubeconfig", strings.Replace(kubeconfig(server.URL), "server:", "insecure-skip-tls-verify: true, server:", 1))
	h.ofNode("worker")
	h.start()
	select {
	case protocol := <-asked:
		if protocol != "HTTP/2.0" {
			t.Errorf("the API server was asked by %s", protocol)
		}
	case <-time.After(bound):
		t.Error("the API server was not asked")
	}
}

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

func parseConfig(t *testing.T, lines string) config.Config {
	t.Helper()
	c, err := config.Files(nil).Parse("config.yaml", []byte(lines))
	must(t, err)
	return c
}

func TestKeysThatNeedARestart(t *testing.T) {
	t.Parallel()
	for lines, want := range map[string]string{
		"requestSources: [kubelet]\nlogLevel: debug\nstallGuard: false\nprofile: Observe": "",
		"requestSources: [apiserver, kubelet]":                                            "requestSources",
		"requestSources: []":                                                              "requestSources",
		"requestSources: [kubelet, swap]\nevents: true":                                   "events",
		"requestSources: [kubelet]\nevictRejectedAfter: 5m":                               "evictRejectedAfter",
		"requestSources: [kubelet]\nfailurePolicy: Fail":                                  "failurePolicy",
		"requestSources: [kubelet]\nresourceSlices: true":                                 "resourceSlices",
		"requestSources: [kubelet]\nnodeResourceTopology: true":                           "nodeResourceTopology",
		"requestSources: [kubelet]\ndra: {enabled: true}":                                 "dra.enabled",
		"requestSources: [kubelet]\ndra: {enabled: true}\nprofile: Observe":               "dra.enabled",
	} {
		if got := strings.Join(parseConfig(t, "requestSources: [kubelet, oomscore]").StartKeys(parseConfig(t, lines)), " "); got != want {
			t.Errorf("%q: %q, want %q", lines, got, want)
		}
	}
	const dryRun, claims = "profile: Observe\n", "dra: {enabled: true}\n"
	if keys := parseConfig(t, dryRun+claims).StartKeys(parseConfig(t, claims)); len(keys) > 0 {
		t.Errorf("the end of a dry run with claims needs a start for %q", keys)
	}
}

func TestWhatAReloadLeavesOfClaims(t *testing.T) {
	t.Parallel()
	const tenth = "dra: {enabled: true, shares: [{limits: {memory: 10%}}]}"
	for name, test := range map[string]struct {
		started, before, next string
		want                  string // whether they are enabled, and whether they end, with their shares
	}{
		"other shares":           {tenth, tenth, "dra: {enabled: true}", "true false []"},
		"turned off":             {tenth, tenth, "dra: {enabled: false}", "true true [10%]"},
		"turned off, after both": {"dra: {enabled: true}", tenth, "{}", "true true [10%]"},
		"off, without placement": {tenth, tenth, "profile: QoS", "false true [10%]"},
		"on at the next start":   {"{}", "{}", tenth, "false false [10%]"},
	} {
		c := inForce(parseConfig(t, test.started), parseConfig(t, test.before), parseConfig(t, test.next))
		shares := []claims.Share{}
		for _, share := range c.DRA.Shares {
			shares = append(shares, share.Limits["memory"])
		}
		if got := fmt.Sprint(c.DRA.Enabled, c.DRA.Ending, shares); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// Another file of the folder, or the same bytes again, is no change.
func TestAConfigurationFileHasChanged(t *testing.T) {
	t.Parallel()
	f := textFile{path: file(t, "config.yaml", testConfig)}
	for _, step := range []struct {
		name string
		do   func() error
		want bool
	}{
		{"read first", func() error { return nil }, true},
		{"left alone", func() error { return nil }, false},
		{"written again", func() error { return os.WriteFile(f.path, []byte(testConfig), 0o600) }, false},
		{"another text", func() error { return os.WriteFile(f.path, []byte(testConfig+"events: true\n"), 0o600) }, true},
		{"removed", func() error { return os.Remove(f.path) }, true},
		{"still removed", func() error { return nil }, true},
		{"there again", func() error { return os.WriteFile(f.path, []byte(testConfig+"events: true\n"), 0o600) }, true},
	} {
		must(t, step.do())
		if got := f.changed(); got != step.want {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
	}
}

func TestAReloadWarnsOfKeysThatNeedARestart(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	h.write("config.yaml", testConfig+"events: true\n")
	said(plugin, `level=warning msg="these keys are taken at the start of the plugin only: what it was started with stays in force" keys=events`)
}

// When the export is turned off, by its key or by profile Observe, no scheduler goes on with what the node had free then.
func TestTheExportThatIsTurnedOffLeavesNoObject(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]string{"by its key": testConfig, "by profile Observe": testConfig + "nodeResourceTopology: true\nprofile: Observe\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			object := ""
			there := func() bool { mu.Lock(); defer mu.Unlock(); return object != "" }
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				body, _ := io.ReadAll(r.Body)
				switch {
				case !strings.Contains(r.URL.Path, "noderesourcetopologies"), r.Method == "GET" && object == "":
					http.NotFound(w, r)
					return
				case r.Method == "DELETE":
					object = ""
				case r.Method != "GET":
					object = string(body)
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, object)
			}))
			defer server.Close()
			h := newHost(t, cri.Options{}, testConfig+"nodeResourceTopology: true\n")
			h.write("kubeconfig", strings.Replace(kubeconfig(server.URL), "server:", "insecure-skip-tls-verify: true, server:", 1))
			h.ofNode("worker")
			h.start()
			eventually(t, "the object", there)
			h.write("config.yaml", off)
			eventually(t, "the object is gone", func() bool { return !there() })
		})
	}
}

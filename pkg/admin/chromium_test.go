package admin

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/browser"
)

// serve serves the page with a fixture of package status in place of a daemon, and notes what is asked for.
func serve(t *testing.T, fixture string) (url string, asked func() []string) {
	t.Helper()
	document, err := os.ReadFile(filepath.Join("../status/testdata", fixture))
	if err != nil {
		t.Fatal(err)
	}
	explanations, err := os.ReadFile("../status/testdata/explain.json")
	if err != nil {
		t.Fatal(err)
	}
	handler := Handler(Sources{View: func() *ledger.View { return &ledger.View{} }, Metrics: http.NotFoundHandler(),
		Explain: func(string, string) (any, error) { return json.RawMessage(explanations), nil },
		History: func() any {
			return json.RawMessage(`{"times": ["2026-05-04T11:59:00Z", "2026-05-04T11:59:30Z", "2026-05-04T12:00:00Z"], "rejections": [0, 2, 1], "oomKills": [0, 2, 0], "throttled": [0, 3, 1],
 "nodes": [{"id": 0, "allocated": [0, 65498251264, 42949672960]}]}`)
		},
		Status: func() any { return json.RawMessage(document) }, Page: Page()})
	requests := make(chan string, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r.URL.Path
		if r.URL.Path == "/driver" {
			io.WriteString(w, driver)
			return
		}
		if r.URL.Path == "/phone" { // a window cannot be as narrow
			io.WriteString(w, `<!doctype html><body style="margin:0"><iframe src="/" style="width:390px;height:100vh;border:0">`)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, func() (all []string) {
		for {
			select {
			case path := <-requests:
				all = append(all, path)
			default:
				return all
			}
		}
	}
}

func TestPageInChromium(t *testing.T) {
	t.Setenv("TZ", "UTC")
	url, asked := serve(t, "busy.json")
	dom := browser.Run(t, url, "--dump-dom")
	for name, part := range map[string]string{
		"a node's memory":         "<strong>NUMA 0</strong>",
		"its huge pages":          `title="default/database/postgres: 1Gi allocated here of hugepages-2Mi"`,
		"the legend":              "allocated for a container, each its colour",
		"a bar in words":          `aria-label="NUMA 0: memory 40Gi of 61Gi allocated, 21Gi free; hugepages-2Mi 1Gi of 2Gi allocated, 1Gi free"`,
		"how old it is":           "as of ",
		"a group":                 "in a group of NUMA 1, 2",
		"what is free":            "21Gi free",
		"a container in its bar":  `title="default/database/postgres: 39Gi allocated here, 30Gi really here"`,
		"the other node's share":  `title="analytics/spark-1/executor: 20Gi allocated here, 18Gi really here"`,
		"a container in the list": "shop/web-7d9c5b-x2x4l",
		"a range of the request":  "1Gi–1.188Gi",
		"a raised memory.high":    "1.9Gi → 1.951Gi",
		"a stopped container":     `<span class="bad">stopped</span>`,
		"an ancestor":             "kubepods.slice/kubepods-burstable.slice",
		"a cancelled protection":  `<td class="bad" data-label="low effective">0</td>`,
		"a rejection":             "worker, 14×: policy restricted, scope container: only NUMA 0-2 together have room",
		"who bars it":             "\nin the way: default/database/postgres, which has NUMA 0 alone",
		"what helps who waits":    "\nwhat helps: a request that one NUMA node has free, or, without NUMA nodes, the annotation numa: preferred",
		"a pod's rejections":      "<td>15×</td>",
		"its other container":     "proxy: policy restricted",
		"a pod that runs":         ">Unpinned (1 pod)</summary>",
		"why it is":               `<td>2026-05-04T11:40:00Z</td><td>3×</td><td class="text">app, 3×: no NUMA node has hugepages-1Gi</td>`,
		"those that do not run":   ">Rejected (1 pod)</summary>",
		"the time":                "as of 2026-05-04T12:00:00Z",
		"the axis of an hour":     `<div class="dim axis" aria-hidden="true"><span>1 h ago</span><span>0 to 61Gi</span><span>now</span></div>`,
		"that it is unpinned":     `<span class="bad" title="no NUMA node has hugepages-1Gi"> unpinned</span>`,
		"that it is not moved":    `<b>1</b> container whose memory is not moved`,
		"why it is not ready":     "checkpoint: write /var/lib/nri-memory-manager/memory_manager_state: no space left on device",
		"a wrong annotation":      "Unsupported value:",
		"the version":             "v0.1.0 · containerd v2.4.2",
		"the node's name":         `<strong id="node">worker-1</strong>`,
		"what is wrong":           "<b>1</b> container throttled or stalled",
		"a lost protection":       "kubepods.slice protects less than is promised below it",
		"the count":               "8 containers",
		"the order":               `aria-sort="ascending"`,
		"the last hour":           `aria-label="NUMA 0 allocated, last hour: 0 to 61Gi, now 40Gi"><path d="M118 30.00L119 2.00L120 11.64"></path><path class="mark" d="M119 0V30"><title>OOM kills: 2</title></path>`,
		"its OOM kills":           `aria-label="OOM kills, last hour: 2 in all"`,
		"its rejections":          `aria-label="Rejections, last hour: 3 in all"`,
		"its throttling":          `aria-label="Throttled containers, last hour: 0 to 3, now 1"`,
	} {
		if !strings.Contains(dom, part) {
			t.Errorf("%s: want %q in the page", name, part)
		}
	}
	for _, path := range asked() {
		if path != "/" && path != "/status" && path != "/history" && path != "/favicon.ico" {
			t.Errorf("the page asked for %s", path)
		}
	}
	if t.Failed() {
		t.Log(dom)
	}
}

// driver is a page that does what a reader does with the page in a frame, and writes what is there then.
const driver = `<!doctype html><iframe id="frame" src="/" style="width:1200px;height:900px"></iframe><pre id="seen"></pre><script>
const page = () => document.getElementById("frame").contentDocument, one = css => page().querySelector(css);
const see = what => { document.getElementById("seen").textContent += what + ": " + page().getElementById("count").textContent + ", " +
  [...page().querySelectorAll("#containers td:nth-child(2)")].map(e => e.textContent).join(" ") + "\n" };
const set = (css, value) => { const e = one(css); e.value = value; e.dispatchEvent(new Event("input")) };
const sort = name => [...page().querySelectorAll("#containers th button")].find(e => e.textContent.startsWith(name)).click();
const wait = setInterval(() => {
  if (!page() || !one("#containers td")) return;
  clearInterval(wait);
  set("#search", "database pro"); see("search");
  set("#search", "numa:2"); see("on node 2");
  set("#search", ""); set("#filter", "annotations"); see("filter");
  set("#filter", ""); sort("Limit"); sort("Limit"); see("sort");
  document.getElementById("seen").textContent += "focus: " + page().activeElement.tagName + "\n";
  one("#containers button[data-focus='row default/database/postgres']").focus();
  one("#containers button[data-focus='row default/database/postgres']").click();
  const shown = setInterval(() => {
    if (!one("#explained h3")) return;
    clearInterval(shown);
    document.getElementById("seen").textContent += "pod: " + one("#pod-heading").textContent + ", " + one("#explained").textContent + ", focus on " + page().activeElement.id + "\n";
    one("#close").click();
    setTimeout(() => document.getElementById("seen").textContent += "closed: " + one("#pod").hidden + "\n", 100);
  }, 50);
}, 50);
</script>`

func TestReaderOfThePageInChromium(t *testing.T) {
	url, _ := serve(t, "busy.json")
	dom := browser.Run(t, url+"/driver", "--dump-dom")
	for _, line := range []string{
		"search: 1 of 8 containers, proxy (sidecar)\n",
		"on node 2: 1 of 8 containers, executor\n",
		"filter: 2 of 8 containers, nginx metrics\n",
		"sort: 8 containers, executor postgres not moved nginx app unpinned proxy (sidecar) ",
		"pod: default/database (Guaranteed), ",
		"Allocated; 39Gi of memory (39Gi on NUMA 0)", "focus on pod-heading\n", "closed: true\n",
	} {
		if !strings.Contains(dom, line) {
			t.Errorf("want %q in\n%s", line, dom)
		}
	}
	// A narrow page shows no head of the table.
	if dom := browser.Run(t, url+"/#pod=22222222-0000-4000-8000-000000000002", "--dump-dom"); !strings.Contains(dom, `<td data-label="NUMA">0</td><td>preferred</td>`) {
		t.Errorf("the NUMA nodes that were considered have no label:\n%s", dom)
	}
}

func TestPageOfANewDaemonInChromium(t *testing.T) {
	url, _ := serve(t, "new.json")
	dom := browser.Run(t, url, "--dump-dom")
	for _, part := range []string{"no container is pinned", "dry run: nothing is changed", "no runtime", "No containers yet"} {
		if !strings.Contains(dom, part) {
			t.Errorf("want %q in the page", part)
		}
	}
	if t.Failed() {
		t.Log(dom)
	}
}

func TestPageWithoutADaemonInChromium(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", Page())
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	dom := browser.Run(t, server.URL, "--dump-dom")
	for _, part := range []string{"the daemon does not answer: status 404", `<main id="main" hidden=""`} {
		if !strings.Contains(dom, part) {
			t.Errorf("want %q in the page:\n%s", part, dom)
		}
	}
}

// What a pod is called must not become part of the page.
func TestPageTakesNoMarkupFromTheNodeInChromium(t *testing.T) {
	server := httptest.NewServer(Handler(Sources{View: func() *ledger.View { return &ledger.View{} }, Metrics: http.NotFoundHandler(), Page: Page(),
		Status: func() any {
			return json.RawMessage(`{"version":"<img id=evil src=x>","policy":{},"conditions":[],"nodes":[],"ancestors":[],"overwrites":[],
 "pods":[{"namespace":"<script id=evil>document.title='evil'</script>","name":"a","qosClass":"","containers":[{"name":"\"><b id=evil>","state":"running"}],"problems":["<i id=evil>"]}],
 "rejections":[{"time":"2026-05-04T11:58:03Z","namespace":"<u id=evil>","pod":"p","container":"c","text":"<b id=evil>","refused":true}]}`)
		}}))
	t.Cleanup(server.Close)
	dom := browser.Run(t, server.URL, "--dump-dom")
	if !strings.Contains(dom, "&lt;script id=evil&gt;") {
		t.Errorf("the pod is not shown:\n%s", dom)
	}
	for _, markup := range []string{"<img", "<b ", "<i id", "<u ", "<title>evil", "<script id"} {
		if strings.Contains(dom, markup) {
			t.Errorf("%q has become markup", markup)
		}
	}
}

// TestScreenshots takes pictures of the worst day to look at, where PAGE_SCREENSHOTS names a folder for them. README.md's are
// of a real daemon: `make pictures`.
func TestScreenshots(t *testing.T) {
	folder := os.Getenv("PAGE_SCREENSHOTS")
	if folder == "" {
		t.Skip("PAGE_SCREENSHOTS names no folder")
	}
	url, _ := serve(t, "busy.json")
	for name, shot := range map[string]struct {
		path  string
		flags []string
	}{
		"desktop": {"/", []string{"--window-size=1280,1250"}},
		"dark":    {"/", []string{"--window-size=1280,1250", "--blink-settings=preferredColorScheme=0"}},
		"phone":   {"/phone", []string{"--window-size=500,2000"}},
	} {
		browser.Run(t, url+shot.path, append(shot.flags, "--screenshot="+filepath.Join(folder, name+".png"))...)
	}
}

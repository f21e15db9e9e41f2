package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/history"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/browser"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// A node's bar shows what the daemon has allocated on it, also after a container that was beside another one in a group of
// nodes has released its memory on the group's first node.
func TestPageShowsTheDaemonsAllocationsInChromium(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, strings.Replace(testConfig, "restricted", "best-effort", 1))
	plugin := h.start()
	wide, beside := guaranteed("analytics", 20*gi), guaranteed("batch", 6*gi) // each node has 15.5Gi
	h.deploy(wide, beside)
	sums := func() string {
		t.Helper()
		var document status.Document
		must(t, json.Unmarshal([]byte(plugin.get("/status")), &document))
		return allocatedPerNode(document)
	}
	onPage := func() string {
		t.Helper()
		return browser.Run(t, "http://"+plugin.address()+"/", "--dump-dom")
	}
	explained := func(pod string) memorymanager.NodeAmounts {
		t.Helper()
		var documents []status.Explanation
		must(t, json.Unmarshal([]byte(h.ask(0, "explain", "default/"+pod, "-o", "json")), &documents))
		return documents[0].Placement.Blocks[0].PerNode
	}

	wantEqual(t, "the bytes of all blocks", sums(), "node 0: 15.5Gi of 15.5Gi; node 1: 10.5Gi of 10.5Gi; ")
	wantAll(t, onPage(), `aria-labelledby="claims-heading" hidden="">`, `title="default/analytics/app: 15.5Gi allocated here`, `title="default/analytics/app: 4.5Gi allocated here`,
		`title="default/batch/app: 6Gi allocated here`)
	wantEqual(t, "explain", asJSON(t, explained("batch")), asJSON(t, map[string]int64{"1": 6 * gi}))

	var hour history.Document
	must(t, json.Unmarshal([]byte(plugin.get("/history")), &hour))
	if got := len(hour.Times); got < 2 || hour.Nodes[0].Allocated[0] != 0 || hour.Nodes[0].Allocated[got-1] != 31*gi/2 {
		t.Errorf("the history is %+v, want that node 0 had nothing allocated at first and has 15.5Gi now", hour)
	}
	wantAll(t, onPage(), `aria-label="NUMA 0 allocated, last hour: 0 to 15.5Gi, now 15.5Gi"`)

	must(t, h.endPod(beside))
	eventually(t, "the memory of the pod that ended is released", func() bool {
		return sums() == "node 0: 9.5Gi of 9.5Gi; node 1: 10.5Gi of 10.5Gi; "
	})
	wantAll(t, onPage(), `title="default/analytics/app: 9.5Gi allocated here`, `title="default/analytics/app: 10.5Gi allocated here`)
	wantEqual(t, "explain after a release", asJSON(t, explained("analytics")), asJSON(t, map[string]int64{"0": 19 * gi / 2, "1": 21 * gi / 2}))
}

// The claims that the driver has prepared, whether or not a container uses them yet.
func TestPageShowsClaimsInChromium(t *testing.T) {
	t.Parallel()
	h := newClaimsHost(t)
	plugin := h.start()
	onPage := func() string {
		t.Helper()
		return browser.Run(t, "http://"+plugin.address()+"/", "--dump-dom")
	}
	wantAll(t, onPage(), `aria-labelledby="claims-heading"><h2`, "No claims yet.")
	one, two := h.api.allocate("one", []string{"a"}, 1), h.api.allocate("two", []string{"b"}, 0, 1)
	devices, problem := h.prepare(one)
	wantEqual(t, "preparing the first claim", problem, "")
	_, problem = h.prepare(two)
	wantEqual(t, "preparing the second claim", problem, "")
	a := guaranteed("a", 2*gi)
	must(t, h.runPod(a))
	must(t, h.createWith(a, devices, true))
	must(t, h.startContainer(a))
	h.uses(a, gi)
	wantAll(t, onPage(), "NUMA 0: 2Gi of 7.975Gi of memory claimed; NUMA 1: 4Gi of 7.975Gi of memory claimed",
		`<td>default/one</td><td data-label="Pods"><button type="button" data-focus="claim default/one uid-a" data-pod="uid-a">default/a</button></td><td data-label="NUMA">1</td>`+
			`<td data-label="Memory">2Gi of memory</td><td data-label="State">used by a/app</td>`,
		`<td>default/two</td><td data-label="Pods"><span>uid-b</span></td><td data-label="NUMA">0, 1</td>`+
			`<td data-label="Memory">4Gi of memory (2Gi on NUMA 0, 2Gi on NUMA 1)</td><td data-label="State">prepared</td>`,
		`NUMA 0: memory 0 of 7.977Gi allocated, 7.977Gi free, 2Gi of 7.975Gi claimed`, `title="5.975Gi free for resource claims"`, `title="3.975Gi free for resource claims"`)
	wantEqual(t, "what a claim has in the nodes' bars", strings.Join(regexp.MustCompile(`claim default/[^"]* here`).FindAllString(onPage(), -1), "; "),
		"claim default/two: 2Gi claimed here, 0 really here; claim default/one: 2Gi claimed here, 1Gi really here; claim default/two: 2Gi claimed here, 0 really here")
}

// README.md says that a container that cannot be placed runs unpinned by default, and its pictures show that.
func TestThePicturesShowTheDefault(t *testing.T) {
	t.Parallel()
	for manifest, want := range map[string]int{"60-pods": 1, "200-pods": 1} {
		code, out, errOut := run(t, "", "simulate", "--machine", "../testdata/machines/demo.yaml", "--config", "../testdata/page/config.yaml",
			"../testdata/page/"+manifest+".yaml")
		if n := strings.Count(out, "policy best-effort, scope container: "); code != exitOK || n != want {
			t.Errorf("%s: exit %d, %d containers without room, want %d that run all the same: %s\n%s", manifest, code, n, want, errOut, out)
		}
	}
	makefile, err := os.ReadFile("../Makefile")
	must(t, err)
	wantAll(t, string(makefile), "PICTURES    := $(DEMO) --config testdata/page/config.yaml\n", "$(PICTURES) --picture docs/page/light.png:1280x960 --picture docs/page/dark.png:1280x960:dark testdata/page/60-pods.yaml")
}

// README.md's pictures are of the page that a real daemon serves: `make pictures`.
func TestPictureOfThePageInChromium(t *testing.T) {
	t.Parallel()
	demo, folder := filepath.Join(t.TempDir(), "demo"), t.TempDir()
	browser.Run(t, "about:blank") // or skip
	must(t, build(demo, "./demo"))
	file := filepath.Join(folder, "page.png")
	if output, err := exec.Command(demo, "--plugin", binary, "--machine", "../testdata/machines/demo.yaml", "--config", "../testdata/config/demo.yaml",
		"--picture", file+":640x480:dark", "../testdata/pods/6-api.yaml").CombinedOutput(); err != nil {
		t.Fatalf("demo: %v\n%s", err, output)
	}
	opened, err := os.Open(file)
	must(t, err)
	defer opened.Close()
	picture, err := png.Decode(opened)
	must(t, err)
	wantEqual(t, "the picture's size", picture.Bounds().Size().String(), "(640,480)")
	colours := map[color.Color]bool{}
	for x := range 640 {
		for y := range 480 {
			colours[picture.At(x, y)] = true
		}
	}
	if r, g, b, _ := picture.At(0, 0).RGBA(); r+g+b > 0x8000 || len(colours) < 50 { // a page that failed to load is white
		t.Errorf("the corner's colour is %x %x %x, and there are %d colours: want a dark page with the bars of containers", r, g, b, len(colours))
	}
}

// `make run` ends with the address of the page, which is served until Ctrl-C, also where nothing is allocated, and with commands that ask
// the daemon. Beside JSON it is on stderr.
func TestTheDemoServesThePageUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	demo := filepath.Join(t.TempDir(), "demo")
	must(t, build(demo, "./demo"))
	for name, test := range map[string]struct{ config, output string }{"placed": {"profile: Full\n", "table"}, "nothing allocated": {"profile: QoS\n", "table"}, "JSON": {"", "json"}} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), demo, "--plugin", binary, "--machine", "../testdata/machines/demo.yaml", "--config", file(t, "config.yaml", test.config), "-o", test.output, "../testdata/pods/6-api.yaml")
			var other strings.Builder
			cmd.Stdout, cmd.Stderr = &other, &other
			pipe := cmd.StdoutPipe
			if test.output == "json" {
				cmd.Stderr, pipe = nil, cmd.StderrPipe
			} else {
				cmd.Stdout = nil
			}
			out, err := pipe()
			must(t, err)
			must(t, cmd.Start())
			lines, page, log, commands := bufio.NewScanner(out), "", "", 0
			for log == "" && lines.Scan() {
				if _, address, found := strings.Cut(lines.Text(), "The page, until Ctrl-C: "); found {
					page = address
				}
				if command := strings.TrimPrefix(lines.Text(), "In another terminal: "); strings.HasPrefix(strings.TrimSpace(command), binary) {
					commands++
					if output, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
						t.Errorf("%s: %v: %s", command, err, output)
					}
				}
				_, log, _ = strings.Cut(lines.Text(), "The plugin's log: ")
			}
			if commands != 2 {
				t.Errorf("%d commands for another terminal, want status and verify", commands)
			}
			if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "level=") {
				t.Errorf("the log %q: %v: %s", log, err, text)
			}
			response, err := http.Get(page)
			if err != nil {
				t.Fatalf("%v: %s", err, &other)
			}
			text, err := io.ReadAll(response.Body)
			must(t, errors.Join(err, response.Body.Close()))
			wantAll(t, string(text), "<title>NUMA memory map</title>")
			must(t, cmd.Process.Signal(os.Interrupt))
			if err := cmd.Wait(); err != nil {
				t.Errorf("after Ctrl-C: %v: %s", err, &other)
			}
			if test.output == "json" && !json.Valid([]byte(other.String())) {
				t.Errorf("no JSON: %s", &other)
			}
		})
	}
}

// What fails in the demo says what the plugin's log says.
func TestAFailureOfTheDemoShowsTheLog(t *testing.T) {
	t.Parallel()
	demo := filepath.Join(t.TempDir(), "demo")
	must(t, build(demo, "./demo"))
	output, err := exec.Command(demo, "--plugin", binary, "--machine", "../testdata/machines/demo.yaml", "--once", "--expect-rejected", "api/api",
		"../testdata/pods/6-api.yaml").CombinedOutput()
	if err == nil {
		t.Errorf("no error:\n%s", output)
	}
	wantAll(t, string(output), "not rejected as expected: [\"api/api\"]\nthe last lines of the plugin's log:\ntime=", "level=")
}

// allocatedPerNode is, for each node, the sum of the blocks' bytes of what the node has allocated.
func allocatedPerNode(document status.Document) (text string) {
	for _, node := range document.Nodes {
		var sum uint64
		for _, pod := range document.Pods {
			for _, container := range pod.Containers {
				for _, block := range container.Blocks {
					for _, part := range block.PerNode {
						if part.Node == node.ID {
							sum += part.Bytes
						}
					}
				}
			}
		}
		text += fmt.Sprintf("node %d: %vGi of %vGi; ", node.ID, float64(sum)/gi, float64(node.Memory[0].Reserved)/gi)
	}
	return text
}

func wantEqual(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/simulator"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/sysfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// A folder of testdata/releases is a node as a release left it when it was ended, with pods running:
//
//	machine.yaml, config.yaml  what the release was started with
//	pods.jsonl                 the runtime's pods as NRI shows them, one on each line
//	containers.jsonl           its containers, with what the release made of their resources
//	cgroups.json               the cgroup files that a runtime or the release wrote
//	state/                     the release's state folder
const releases = "../testdata/releases"

var record = flag.String("record", "", "write what this code leaves behind as this release into "+releases)

// TestRecord makes such a folder. Its pods have every kind of value that a state folder can hold: allocations of one node and of a
// group, huge pages, and a memory.high raised by the stall guard.
func TestRecord(t *testing.T) {
	t.Parallel()
	if *record == "" {
		t.Skip("only with -record RELEASE")
	}
	dir := filepath.Join(releases, *record)
	h := newHost(t, cri.Options{}, testConfig)
	h.write("machine.yaml", "nodes:\n- {id: 0, memory: 16Gi, cpus: 0-1, hugepages: {2Mi: 512}}\n- {id: 1, memory: 16Gi, cpus: 2-3}\n"+
		"- {id: 2, memory: 16Gi, cpus: 4-5}\n- {id: 3, memory: 16Gi, cpus: 6-7, hugepages: {2Mi: 1024}}\n")
	c, err := loadConfig(h.path("config.yaml"))
	must(t, err)
	m, err := sysfs.Load(h.path("machine.yaml"))
	must(t, err)
	log := logrus.New()
	log.SetOutput(io.Discard)
	ctx, cancel := context.WithCancel(t.Context())
	recorded, stop, err := startAgent(ctx, &simulator.Node{Cgroups: h.tree}, agent.Options{Config: c, Machine: m, StateDir: h.path("state"), Log: log})
	must(t, err)
	ended := make(chan error, 1)
	plugin := nriplugin.New(recorded, nriplugin.Options{Socket: h.path("nri.sock"), Name: defaultName, Index: defaultIndex, Log: log})
	go func() { ended <- plugin.Run(ctx) }()
	h.connected()

	pages, web := guaranteed("pages", 2*gi), burstable("web", 2*gi, 984)
	h.deploy(guaranteed("wide", 24*gi), guaranteed("first", 4*gi), web, &testPod{name: "batch", qos: "besteffort", adj: 1000})
	must(t, h.runPod(pages))
	container := pages.container()
	container.Linux.Resources.HugepageLimits = []*api.HugepageLimit{{PageSize: "2MB", Limit: 1536 * mi}}
	_, err = h.runtime.CreateContainer(ctx, container)
	must(t, err)
	must(t, h.startContainer(pages))
	must(t, recorded.SetHigh(ctx, web.id(), 2000*mi))
	cancel()
	must(t, <-ended)
	must(t, stop())

	must(t, os.MkdirAll(dir, 0o755))
	for _, name := range []string{"machine.yaml", "config.yaml"} {
		data, err := os.ReadFile(h.path(name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	must(t, os.CopyFS(filepath.Join(dir, "state"), os.DirFS(h.path("state"))))
	var pods, containers bytes.Buffer
	for _, pod := range h.runtime.Pods() {
		writeLine(t, &pods, pod)
	}
	for _, container := range h.runtime.Containers() {
		writeLine(t, &containers, container)
	}
	for name, text := range map[string]string{
		"pods.jsonl": pods.String(), "containers.jsonl": containers.String(), "cgroups.json": asJSON(t, h.written()) + "\n",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}

func writeLine(t *testing.T, lines *bytes.Buffer, message proto.Message) {
	t.Helper()
	data, err := protojson.Marshal(message)
	must(t, err)
	must(t, json.Compact(lines, data)) // protojson puts spaces at random
	lines.WriteByte('\n')
}

// written are the cgroup files that do not hold what a new cgroup has.
func (h *host) written() map[string]string {
	h.t.Helper()
	all := map[string]string{}
	must(h.t, fs.WalkDir(os.DirFS(h.tree.Root()), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !writable.MatchString(path) {
			return err
		}
		if text := h.knob(filepath.Dir(path), filepath.Base(path)); text != "" && text != "0" && text != "max" {
			all[path] = text
		}
		return nil
	}))
	return all
}

var writable = regexp.MustCompile(`/(memory\.(min|low|high|max)|cpuset\.mems)$`)

// asLeftBy returns a host whose pods run as a release left them, with a copy of its state folder.
func asLeftBy(t *testing.T, release string) *host {
	t.Helper()
	dir := filepath.Join(releases, release)
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		return data
	}
	h := newHost(t, cri.Options{}, string(read("config.yaml")))
	h.write("machine.yaml", string(read("machine.yaml")))
	must(t, os.Remove(h.path("state")))
	must(t, os.CopyFS(h.path("state"), os.DirFS(filepath.Join(dir, "state"))))

	// Nothing is connected to the runtime yet: it takes the containers as they are.
	for text := range bytes.Lines(read("pods.jsonl")) {
		var pod api.PodSandbox
		must(t, protojson.Unmarshal(text, &pod))
		must(t, h.tree.Make(pod.Linux.CgroupParent))
		must(t, h.runtime.RunPodSandbox(t.Context(), &pod))
	}
	for text := range bytes.Lines(read("containers.jsonl")) {
		var container api.Container
		must(t, protojson.Unmarshal(text, &container))
		_, err := h.runtime.CreateContainer(t.Context(), &container)
		must(t, err)
		must(t, h.runtime.StartContainer(t.Context(), container.Id))
	}
	var cgroups map[string]string
	must(t, json.Unmarshal(read("cgroups.json"), &cgroups))
	for path, text := range cgroups {
		must(t, h.tree.Write(filepath.Dir(path), filepath.Base(path), text))
	}
	if diff := cmp.Diff(cgroups, h.written()); diff != "" {
		t.Fatalf("the node is not as %s left it:\n%s", release, diff)
	}
	return h
}

// placements is the node's state as a kubelet would write it: to the byte.
func (h *host) placements() string {
	h.t.Helper()
	file, err := checkpoint.ReadFile(h.path("state/" + checkpoint.FileName))
	must(h.t, err)
	text, _, findings := checkpoint.Export(file, "")
	if len(findings) > 0 {
		h.t.Errorf("the state file contradicts itself: %v", findings)
	}
	return string(text)
}

// takeover starts the plugin on what another release left, and wants everything to be as it was.
func (h *host) takeover(placements string) *process {
	h.t.Helper()
	before := h.written()
	plugin := h.start()
	said(plugin, `msg="synchronized with the runtime"`)
	eventually(h.t, "the placements are as they were", func() bool { return h.placements() == placements })
	eventually(h.t, "all cgroup files are as they were", func() bool { return cmp.Equal(before, h.written()) })
	if log := plugin.log.String(); !strings.Contains(log, " placed=0 ") {
		h.t.Error("a running container was placed again")
	}
	// The next one gets what the others leave free.
	next := guaranteed("next", 8*gi)
	h.deploy(next)
	if got := h.mems(next); got != "2" {
		h.t.Errorf("the next pod is on node %s, want 2", got)
	}
	must(h.t, h.endPod(next))
	must(h.t, h.removePod(next))
	eventually(h.t, "nothing of the next pod is left", func() bool {
		return h.placements() == placements && cmp.Equal(before, h.written())
	})
	return plugin
}

// rolledBack ends the plugin, runs rollback, and wants that only the runtime's own values are left.
func (h *host) rolledBack(plugin *process) {
	h.t.Helper()
	if code := plugin.stop(); code != exitOK {
		h.t.Errorf("SIGTERM ended the plugin with %d", code)
	}
	code, out, errOut := run(h.t, "", "rollback", "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups")
	if code != exitOK {
		h.t.Errorf("rollback: exit %d\n%s%s", code, out, errOut)
	}
	for path, text := range h.written() {
		if filepath.Base(path) != "memory.max" {
			h.t.Errorf("after the rollback %s holds %s", path, text)
		}
	}
}

// setAside are the files in the state folder that were kept because they were not understood.
func (h *host) setAside() []string {
	h.t.Helper()
	kept, err := filepath.Glob(h.path("state/*.corrupt-*"))
	must(h.t, err)
	return kept
}

func said(p *process, text string) {
	p.t.Helper()
	eventually(p.t, "the plugin says "+text, func() bool { return strings.Contains(p.log.String(), text) })
}

// An upgrade: this code takes over what every release so far has left.
func TestUpgradeWithRunningPods(t *testing.T) {
	t.Parallel()
	folders, err := os.ReadDir(releases)
	must(t, err)
	for _, folder := range folders {
		if !folder.IsDir() {
			continue
		}
		t.Run(folder.Name(), func(t *testing.T) {
			t.Parallel()
			h := asLeftBy(t, folder.Name())
			plugin := h.takeover(h.placements())
			said(plugin, `msg="state file restored" entries=3`)
			if kept := h.setAside(); len(kept) > 0 {
				t.Errorf("set aside: %v", kept)
			}
			h.rolledBack(plugin)
		})
	}
}

// A downgrade: this code finds files in which a newer release, or a kubelet's, has more than it knows.
func TestDowngradeWithRunningPods(t *testing.T) {
	t.Parallel()
	const state, journal = "state/" + checkpoint.FileName, "state/" + protect.JournalFile
	for name, test := range map[string]struct {
		file     string
		old, new string // in the file's text; without old, new is the whole text
		aside    string // the log's line of the file that is set aside; empty when it is read
	}{
		"a new key in the state file":      {file: state, old: `,"checksum"`, new: `,"version":2,"checksum"`},
		"a new key of a block":             {file: state, old: `"size":`, new: `"tier":"dram","size":`},
		"a new key of a node":              {file: state, old: `,"cells"`, new: `,"tier":"dram","cells"`},
		"a new checksum":                   {file: state, old: `"checksum":`, new: `"checksum":1`, aside: "the state file cannot be used"},
		"another policy":                   {file: state, old: `"Static"`, new: `"BestEffort"`, aside: "the state file cannot be used"},
		"pod-level assignments of no pod":  {file: state, old: `"checksum":`, new: `"podEntries":{"uid-wide":{}},"checksum":`},
		"another layout of the state file": {file: state, new: `{"version":2,"nodes":[]}`, aside: "the state file cannot be used"},
		"a new key in the journal":         {file: journal, old: `"version":1`, new: `"version":1,"node":"worker-1"`},
		"a new key of a cgroup":            {file: journal, old: `"noted":`, new: `"by":"guard","noted":`},
		"a knob that this release does not write": {file: journal, old: `["memory.high"]`, new: `["memory.high","memory.swap.high"]`,
			aside: "unknown knob"},
		"a value to give back": {file: journal, old: `"noted":`, new: `"restore":{"memory.high":"max","memory.low":"0"},"noted":`},
		"a value to give back that this release does not know": {file: journal, old: `"noted":`, new: `"restore":{"memory.high":"50%"},"noted":`,
			aside: "restore of memory.high"},
		"another version of the journal": {file: journal, old: `"version":1`, new: `"version":2`, aside: "version is 2, want 1"},
		"another layout of the journal":  {file: journal, new: `{"version":2,"knobs":{}}`, aside: "version is 2, want 1"},
		"a damaged journal":              {file: journal, new: `{"version":1,"cgroups":[{"cgr`, aside: "unexpected end of JSON input"},
		"a new file":                     {file: "state/cpu_manager_state", new: "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := asLeftBy(t, "v0.1.0")
			placements := h.placements()
			text := test.new
			if test.old != "" {
				data, err := os.ReadFile(h.path(test.file))
				must(t, err)
				if text = strings.ReplaceAll(string(data), test.old, test.new); text == string(data) {
					t.Fatalf("%s has no %s", test.file, test.old)
				}
			}
			h.write(test.file, text)
			plugin := h.takeover(placements)
			kept := h.setAside()
			if test.aside == "" {
				if len(kept) > 0 {
					t.Errorf("set aside: %v", kept)
				}
			} else {
				said(plugin, test.aside)
				if len(kept) != 1 {
					t.Fatalf("set aside: %v, want one file", kept)
				}
				if data, err := os.ReadFile(kept[0]); err != nil || string(data) != text {
					t.Errorf("the file that was set aside holds %q (%v), want %q", data, err, text)
				}
				if lines := strings.Count(plugin.log.String(), kept[0]); lines != 1 {
					t.Errorf("%d lines of the log name %s, want 1", lines, kept[0])
				}
			}
			h.rolledBack(plugin)
		})
	}
}

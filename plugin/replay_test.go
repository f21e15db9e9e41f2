package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/status"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// TestAStormIsReplayed records 500 creates from several threads, with resizes, ends and crashes of the plugin among them, and
// replays what the binary has recorded.
func TestAStormIsReplayed(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	dir := h.path("recordings")
	h.flags = append(h.flags, "--record", dir)
	const threads, creates = 4, 500
	for half := range 2 {
		plugin := h.start()
		var group sync.WaitGroup
		for thread := range threads {
			group.Go(func() {
				for i := range creates / threads / 2 {
					name := fmt.Sprintf("storm-%d-%d-%d", half, thread, i)
					p := guaranteed(name, int64(1+i%3)*gi)
					p.annotations = map[string]string{"example.com/token": "SECRET"}
					if i%3 == 0 {
						p = burstable(name, int64(1+i%5)*gi, 900)
					}
					if err := h.runPod(p); err != nil {
						t.Errorf("%s: %v", name, err)
						return
					}
					if h.create(p) == nil { // some find no room
						_ = h.startContainer(p)
						if i%4 == 0 {
							_ = h.resize(p, p.limit+gi)
						}
						if i%5 == 0 {
							_ = h.stopContainer(p)
						}
					}
					if i%20 != 19 {
						_ = h.endPod(p)
					}
				}
			})
		}
		group.Wait()
		if half == 0 {
			plugin.kill() // what it has not written yet is missing
			continue
		}
		if code := plugin.stop(); code != exitOK {
			t.Fatalf("the plugin ends with %d", code)
		}
	}

	code, out, errOut := run(t, "", "replay", dir)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := lines[len(lines)-1]
	var events, decisions, differ int
	if _, err := fmt.Sscanf(last, "%d events, %d decisions, %d differ", &events, &decisions, &differ); err != nil || differ > 0 || code != exitOK {
		t.Fatalf("exit code %d: %s\n%s\n%s", code, last, errOut, strings.Join(regexp.MustCompile(`(?m)^.*\nDIFFERS.*\n.*$`).FindAllString(out, 3), "\n"))
	}
	if events < 3*creates || decisions < creates {
		t.Errorf("replayed %s of %d creates", last, creates)
	}
	wantAll(t, out, " CreateContainer default/storm-1-0-1 app ", `pinning="pinned under restricted"`, " UpdateContainer default/storm-1-")

	// A changed byte of a decision is found.
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	unpacked, err := exec.Command("gzip", "-dc", files[len(files)-1]).Output()
	must(t, err)
	if strings.Contains(string(unpacked), "SECRET") {
		t.Error("an annotation of the pods' owner is in the recording")
	}
	changed := regexp.MustCompile(`"Answer":\{"CpusetMems":"[01]`).ReplaceAllFunc(unpacked, func(match []byte) []byte {
		match[len(match)-1] ^= 1
		return match
	})
	one := h.path("changed.jsonl")
	must(t, os.WriteFile(one, changed, 0o600))
	code, out, _ = run(t, "", "replay", one, "-o", "json")
	if code != exitFailed || !strings.Contains(out, `"replayed":{`) || !regexp.MustCompile(`"differ":[1-9]`).MatchString(out) {
		t.Errorf("exit code %d for a changed recording:\n%.2000s", code, out)
	}
}

func TestExplainNamesTheRecording(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	h.flags = append(h.flags, "--record", h.path("recordings"))
	plugin := h.start()
	h.deploy(guaranteed("web", gi))
	var documents []status.Explanation
	eventually(t, "the decision is recorded", func() bool {
		must(t, json.Unmarshal([]byte(h.ask(exitOK, "explain", "default/web", "-o", "json")), &documents))
		return documents[0].Recording != nil
	})
	at := documents[0].Recording
	wantAll(t, h.ask(exitOK, "explain", "default/web"), fmt.Sprintf("  recorded as event %d of %s\n", at.Event, at.File))
	var document status.Document
	must(t, json.Unmarshal([]byte(h.ask(exitOK, "status", "-o", "json")), &document))
	if shown := document.Pods[0].Containers[0].Recording; shown == nil || *shown != *at {
		t.Errorf("status names %+v, explain %+v", shown, at)
	}
	plugin.stop()
	code, out, _ := run(t, "", "replay", at.File)
	if code != exitOK || !strings.Contains(out, fmt.Sprintf("  %d  CreateContainer default/web app ", at.Event)) {
		t.Errorf("exit code %d, event %d is not the creation:\n%s", code, at.Event, out)
	}
}

func TestReplayOfBadInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "notes.txt")
	must(t, os.WriteFile(file, []byte("hello\n"), 0o600))
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{dir + "/none"}, "nri-memory-manager: replay: stat " + dir + "/none: no such file or directory"},
		{[]string{dir}, "nri-memory-manager: replay: " + dir + " has no recordings: want files named recording-….jsonl.gz"},
		{[]string{file}, "nri-memory-manager: replay: " + file + ":1: want the header of a recording"},
		{[]string{file, "-o", "yaml"}, `--output "yaml": want one of text, json`},
	} {
		if code, _, errOut := run(t, "", append([]string{"replay"}, test.args...)...); code != exitBadInput || !strings.Contains(errOut, test.want) {
			t.Errorf("%q: exit code %d, %s; want %s", test.args, code, errOut, test.want)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "config.yaml"), nil, 0o600))
	if code, _, errOut := run(t, "", "run", "--record", file, "--cgroups", dir, "--plain-cgroups", "--nri-socket", dir+"/none", "--state-dir", dir+"/state"); code != exitBadInput {
		t.Errorf("a file in place of the folder: exit code %d, %s", code, errOut)
	}
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

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
	counts := lines[len(lines)-1]
	var events, decisions, differ int
	if _, err := fmt.Sscanf(counts, "%d events, %d decisions, %d differ", &events, &decisions, &differ); err != nil || differ > 0 || code != exitOK {
		t.Fatalf("exit code %d: %s\n%s\n%s", code, counts, errOut, strings.Join(regexp.MustCompile(`(?m)^.*\nDIFFERS.*\n.*$`).FindAllString(out, 3), "\n"))
	}
	if events < 3*creates || decisions < creates {
		t.Errorf("replayed %s of %d creates", counts, creates)
	}
	wantAll(t, out, " CreateContainer default/storm-1-0-0 app ", `pinning="pinned under restricted"`, " UpdateContainer default/storm-1-")

	// A changed byte of a decision is found.
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	last, err := os.ReadFile(files[len(files)-1])
	must(t, err)
	if strings.Contains(string(last), "SECRET") {
		t.Error("an annotation of the pods' owner is in the recording")
	}
	changed := regexp.MustCompile(`"Answer":\{"CpusetMems":"[01]`).ReplaceAllFunc(last, func(match []byte) []byte {
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
		{[]string{dir}, "nri-memory-manager: replay: " + dir + " has no recordings: want files named recording-….jsonl"},
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

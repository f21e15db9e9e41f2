package cases

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// verdict is what "oom -o json" says of a kill.
type verdict struct {
	Container string
	Kills     uint64
	Whole     bool `json:"wholeContainer"`
	Level     string
	Cause     string
	Itself    bool
	After     string
	Culprit   *struct{ Pod, Container string }
	Change    string
}

func (p *plugin) verdicts(t *testing.T, pod *kubelet.Pod) (all []verdict) {
	t.Helper()
	out, _ := p.ask("oom", kubelet.Namespace+"/"+pod.Name, "-o", "json")
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return all
}

// kill is a pod of which the kernel kills something, for a reason that is known.
type kill struct {
	name  string
	group string   // memory.oom.group
	args  []string // of container app
	limit uint64   // of container app; 0 makes the pod BestEffort
	// beside is the limit of a second container: without it the pod's limit is that of app, and is hit first.
	beside uint64
	// prepare, where set, is done when the pod runs, before the file go.
	prepare func(t *testing.T, k machine, pod *kubelet.Pod)
	want    verdict
}

// rewrite has a file of the kernel hold a text for the time of the test.
func rewrite(t *testing.T, text string, parts ...string) {
	t.Helper()
	before := file(parts...)
	write(t, text, parts...)
	t.Cleanup(func() { write(t, before, parts...) })
}

// TestOOMVerdicts has the kernel kill containers for reasons that are known, and compares what is said of them.
func TestOOMVerdicts(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t, "memoryManagerPolicy: None", "guaranteedHeadroom: 0")
	files := disk(t, 512*MiB)
	if err := os.Chmod(files, 0o777); err != nil {
		t.Fatal(err)
	}
	fill(t, files+"/big", int(256*MiB))
	grow := fmt.Sprint("grow=", 64*MiB)
	own := func(cause string) verdict {
		return verdict{Container: "app", Kills: 1, Level: "container", Cause: cause, Itself: true}
	}
	of := func(v verdict, level string) verdict { v.Level = level; return v }
	for _, c := range []kill{
		{name: "heap", limit: 32 * MiB, beside: 32 * MiB, args: []string{grow}, want: own("processes")},
		{name: "heap-alone", limit: 32 * MiB, args: []string{grow}, want: of(own("processes"), "pod")},
		{name: "shm", limit: 32 * MiB, beside: 32 * MiB, args: []string{fmt.Sprint("write=/dev/shm/file:", 64*MiB)}, want: own("tmpfs")},
		{name: "files", limit: 16 * MiB, beside: 32 * MiB, args: []string{"files=/dev/shm:100000"}, want: own("kernel")},
		{name: "protected-cache", limit: 64 * MiB, args: []string{"read=/data/big"}, want: of(own("page_cache"), "pod"),
			prepare: func(t *testing.T, _ machine, _ *kubelet.Pod) { write(t, "3", "/proc/sys/vm/drop_caches") }},
		{name: "child", limit: 32 * MiB, beside: 32 * MiB, args: []string{"child=" + grow}, want: own("processes")},
		{name: "group", group: "1", limit: 32 * MiB, beside: 32 * MiB, args: []string{"child=" + grow},
			want: verdict{Container: "app", Kills: 1, Whole: true, Level: "container", Cause: "processes", Itself: true}},
		{name: "pod", limit: 128 * MiB, beside: 128 * MiB, args: []string{grow}, want: of(own("processes"), "pod"),
			prepare: func(t *testing.T, k machine, pod *kubelet.Pod) {
				write(t, fmt.Sprint(40*MiB), k.Dir(pod), "memory.max")
			}},
		{name: "kubepods", args: []string{fmt.Sprint("grow=", 512*MiB)}, want: of(own("processes"), "parent"),
			prepare: func(t *testing.T, k machine, pod *kubelet.Pod) {
				kubepods := filepath.Dir(filepath.Dir(k.Dir(pod)))
				rewrite(t, fmt.Sprint(number(t, kubepods, "memory.current")+40*MiB), kubepods, "memory.max")
			}},
		{name: "numa", args: []string{fmt.Sprint("grow=", 4096*MiB)}, want: of(own("processes"), "numa_node"),
			prepare: func(t *testing.T, k machine, pod *kubelet.Pod) { write(t, "0", dirOf(t, k, pod, "app"), "cpuset.mems") }},
		{name: "node", args: []string{fmt.Sprint("grow=", 16384*MiB)}, want: of(own("processes"), "node")},
		{name: "away", limit: 32 * MiB, beside: 32 * MiB, args: []string{"child=" + grow}, want: own("unknown"),
			prepare: func(_ *testing.T, _ machine, _ *kubelet.Pod) { p.kill() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := guaranteed(c.name, c.limit, 0)
			app := &pod.Containers[0]
			app.Args = append(append([]string{"wait=/ctl/go"}, c.args...), "wait=/ctl/end")
			app.Mounts = map[string]string{"/data": files}
			app.Unified = map[string]string{"memory.oom.group": cmp.Or(c.group, "0")}
			if c.beside > 0 {
				pod.Containers = append(pod.Containers, kubelet.Container{Name: "beside", Request: c.beside, Limit: c.beside})
			}
			run(t, k, pod)
			if c.prepare != nil {
				c.prepare(t, k, pod)
			}
			touchFile(t, k.Control(pod), "go")
			if c.name == "away" {
				said(t, k, pod, "app", "done "+c.args[0])
				p.restart()
			}
			eventually(t, "there is a verdict", func() string {
				if len(p.verdicts(t, pod)) == 0 {
					return "none; the pod counts " + strings.ReplaceAll(file(k.Dir(pod), "memory.events"), "\n", ", ")
				}
				return ""
			})
			got := p.verdicts(t, pod)
			one := got[0]
			if (one.After != "") != (c.name == "away") {
				t.Errorf("it was killed after %q", one.After)
			}
			if one.Culprit, one.Change, one.After = nil, "", ""; len(got) != 1 || one != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			out, _ := p.ask("oom", pod.Name)
			t.Log("\n" + out)
			if lives := slices.Contains([]string{"child", "away"}, c.name); lives {
				said(t, k, pod, "app", "done "+c.args[0]) // PID 1 goes on
			} else if _, err := k.WaitExit(t.Context(), pod, "app"); err != nil {
				t.Error(err)
			}
			if err := k.Remove(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
		})
	}
	if n := metric(t, "nri_memory_manager_oom_kills_total"); n != 1 { // after a restart
		t.Errorf("the metric says %v kills", n)
	}
}

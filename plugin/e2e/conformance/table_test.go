package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/conformance/cgroups"
)

const junit = `<testsuites><testsuite>
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="9"></testcase>
<testcase name="[It] [sig-node] A [Serial] [Feature:Pages] case [sig-node, Serial]" status="passed" time="61.5"><system-err>&lt; Exit [It] A case - a_test.go:1 @ 11/25/26 00:18:59 (9s)
STEP: Destroying namespace "a-16" for this suite.
&lt; Exit [It] A case - a_test.go:1 @ 11/25/26 00:19:11.052 (15.765s)
STEP: Destroying namespace "a-17" for this suite.</system-err></testcase>
<testcase name="[It] [sig-node] Another" status="failed" time="3"><failure message="expected 1 | got 2"></failure></testcase>
<testcase name="[It] [sig-node] A third" status="skipped" time="0"><skipped message="skipped - no such device"></skipped></testcase>
<testcase name="[It] [sig-node] Not chosen" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>`

// TestReport reads Ginkgo's report: the cases that were chosen, with their outcome.
func TestReport(t *testing.T) {
	r := &result{run: reference}
	if err := r.addReport("memory_qos_test", strings.NewReader(junit)); err != nil {
		t.Fatal(err)
	}
	if len(r.cases) != 3 {
		t.Fatalf("cases: %+v", r.cases)
	}
	first := r.find("[sig-node] A [Serial] [Feature:Pages] case [sig-node, Serial]")
	if first == nil || first.status != "passed" || first.seconds != 61.5 || first.namespace != "a-17" || first.attempts != 2 {
		t.Errorf("the first case is %+v", first)
	}
	if want := time.Date(2026, 11, 25, 0, 19, 11, 52e6, time.UTC); first != nil && !first.ended.Equal(want) {
		t.Errorf("the first case ended at %v, want %v", first.ended, want)
	}
	if title(first.name) != "A case" {
		t.Errorf("its title is %q", title(first.name))
	}
	if got := verdict(r, first.name); got != "passed (attempt 2)" {
		t.Errorf("its verdict is %q", got)
	}
	if got := r.cases[2].message; got != "no such device" {
		t.Errorf("the third case was skipped for %q", got)
	}
}

// TestCompare compares the files of the same container in two runs, whose generated names differ, as they were at the case's end.
func TestCompare(t *testing.T) {
	run := func(namespace, pod, high string) *result {
		uuid := "85497b48-1271-4190-b324-" + strings.Repeat(namespace[len(namespace)-1:], 12)
		record := func(namespace string, since, at int64, high, low string) cgroups.Container {
			return cgroups.Container{Namespace: namespace, Pod: pod, Name: "app" + uuid, Since: time.Unix(since, 0), At: time.Unix(at, 0),
				Values: cgroups.Files{"container memory.high": high, "pod memory.min": "0", "kubepods memory.low": low}}
		}
		elsewhere := record("elsewhere", 1, 2, "1", "0")
		elsewhere.Ended = true
		return &result{cases: []testCase{{name: "case", namespace: namespace, ended: time.Unix(5, 0)}}, containers: []cgroups.Container{
			elsewhere, record(namespace, 2, 2, "0", "0"), record(namespace, 2, 3, high, "0"), record(namespace, 2, 6, namespace, "0"),
		}}
	}
	explained := map[string]int{}
	summary, lines := compare(run("ns-1", "pod-x8f2k", "4096"), run("ns-2", "pod-zz4w9", "4096"), "case", explained)
	if summary.String() != "3 the same" || len(lines) != 0 || len(explained) != 0 {
		t.Errorf("equal runs: %q, %v, %v", summary, lines, explained)
	}
	other := run("ns-2", "pod-zz4w9", "max")
	other.containers[2].Values["kubepods memory.low"] = "8192"
	summary, lines = compare(run("ns-1", "pod-x8f2k", "4096"), other, "case", explained)
	if summary.String() != "1 the same, 1 explained, 1 differ" || len(lines) != 1 || !strings.Contains(lines[0], "pod/app #1 | container memory.high | `4096` | `max`") ||
		explained[fileReasons[0].why] != 1 {
		t.Errorf("different runs: %q, %v, %v", summary, lines, explained)
	}
	other = run("ns-2", "pod-zz4w9", "4096")
	other.containers[2].Values["kubepods memory.min"] = "8192"
	first := run("ns-1", "pod-x8f2k", "4096")
	first.containers[2].Values["kubepods memory.min"] = "4096"
	if summary, lines = compare(first, other, "case", explained); summary.String() != "3 the same, 1 explained" || explained[besideOthers] != 1 {
		t.Errorf("a sum beside another case's pod: %q, %v, %v", summary, lines, explained)
	}
	ended := first.containers[3]
	ended.Ended, ended.At = true, ended.Since.Add(700*time.Millisecond)
	first.containers = append(first.containers, ended)
	if summary, lines = compare(first, other, "case", explained); summary.String() != "" || len(lines) != 0 {
		t.Errorf("a container that was seen once: %q, %v", summary, lines)
	}
	first.containers = first.containers[:4]
	first.containers[0].At, other.containers[0].At = time.Unix(-60, 0), time.Unix(-60, 0)
	if summary, lines = compare(first, other, "case", explained); summary.String() != "3 the same, 1 differ" || len(lines) != 1 {
		t.Errorf("a sum of the case's own pod: %q, %v", summary, lines)
	}
}

// TestOtherSectionsStay finds the section of a suite that did not run in the page of an earlier run.
func TestOtherSectionsStay(t *testing.T) {
	page := "# Head\n" + heading("memory_qos") + "\nfirst\n" + heading("hugepages") + "\nsecond\n"
	for suite, want := range map[string]string{"memory_qos": heading("memory_qos") + "\nfirst\n", "hugepages": heading("hugepages") + "\nsecond\n", "memory_manager": ""} {
		if got := kept(page, suite); got != want {
			t.Errorf("%s: %q, want %q", suite, got, want)
		}
	}
}

// TestPages writes one suite: its section and its own page, and the section of another suite as it was.
func TestPages(t *testing.T) {
	at := time.Date(2026, 11, 25, 8, 0, 0, 0, time.UTC)
	run := func(name, third string) *result {
		return &result{run: name, kernel: "6.12.1", ended: at, cases: []testCase{
			{suite: "memory_qos_test", name: "[sig-node] A case", status: "passed", attempts: 2, seconds: 90},
			{suite: "memory_qos_test", name: "Pages of a pod, small should fit", status: "failed", message: "no room"},
			{suite: "memory_qos_test", name: "Pages of a pod, large should fit", status: "failed", message: "no room either"},
			{suite: "memory_qos_test", name: "should persist container-level memory.low after rollback", status: third, message: "0"},
			{suite: "memory_qos_test", name: "A last", status: "skipped", message: "no such device"},
		}}
	}
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte(introduction+heading("hugepages")+"\nsecond\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options{version: "v1.2.3", suites: []string{"memory_qos"}, runs: []string{reference, plugin}, out: page}
	if err := write(o, []*result{run(reference, "passed"), run(plugin, "failed")}); err != nil {
		t.Fatal(err)
	}
	want := introduction + `
## memory_qos_test.go

Kubernetes v1.2.3, Linux 6.12.1, 2026-11-25; [each case](page/memory_qos.md).

Of 5 cases the kubelet's managers passed 2, failed 2 and skipped 1 in 2 minutes; the plugin passed 1, failed 3 and skipped 1 in 2 minutes.

| failed | kubelet | plugin | why |
| --- | --- | --- | --- |
| 2 cases: Pages of a pod, small should fit | **failed** | **failed** | ` + "`no room`" + ` |
| persist container-level memory.low after rollback | passed | **failed** | ` + reason("should persist container-level memory.low after rollback") + ` |

## hugepages_test.go

second
`
	for file, want := range map[string]string{
		page: want,
		strings.TrimSuffix(page, ".md") + "/memory_qos.md": `# memory_qos_test.go

Kubernetes v1.2.3, Linux 6.12.1, 2026-11-25; ` +
			"`make conformance KUBERNETES=v1.2.3 SUITES=memory_qos`" + `.

Of 5 cases the kubelet's managers passed 2, failed 2 and skipped 1 in 2 minutes; the plugin passed 1, failed 3 and skipped 1 in 2 minutes.

| case | kubelet | plugin | cgroup files | |
| --- | --- | --- | --- | --- |
| A case | passed (attempt 2) | passed (attempt 2) |  |  |
| Pages of a pod, small should fit | **failed** | **failed** |  | ` + "`no room`" + ` |
| Pages of a pod, large should fit | **failed** | **failed** |  | ` + "`no room either`" + ` |
| should persist container-level memory.low after rollback | passed | **failed** |  | ` + reason("should persist container-level memory.low after rollback") + ` |
| A last | skipped | skipped |  | ` + "`no such device`" + ` |
`} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
		} else if string(text) != want {
			t.Errorf("%s is\n%s\nwant\n%s", filepath.Base(file), text, want)
		}
	}
}

// TestRuns reads which runs are booted and which are there already.
func TestRuns(t *testing.T) {
	for text, want := range map[string]string{
		"reference,plugin":        "[reference plugin] map[]",
		"plugin":                  "[plugin] map[]",
		"reference=/a/b=c,plugin": "[reference plugin] map[reference:/a/b=c]",
		"plugins":                 `-runs: want reference or plugin, or one of them with =FOLDER, got "plugins"`,
		"reference=":              `-runs: want reference or plugin, or one of them with =FOLDER, got "reference="`,
	} {
		var o options
		got := ""
		if err := o.choose(text); err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprint(o.runs, o.earlier)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

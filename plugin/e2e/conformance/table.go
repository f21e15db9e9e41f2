package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// write writes the section of each suite that ran into the page, and leaves the others as they are. A choice of cases, or one of
// the two runs, makes no section: it is printed.
func write(o options, results []*result, kernel string) error {
	sections := map[string]string{}
	for _, suite := range o.suites {
		sections[suite] = section(o, results, suite, kernel)
	}
	if o.out == "" || o.focus != "" || o.skip != "" || len(o.runs) < 2 {
		for _, suite := range o.suites {
			fmt.Println(sections[suite])
		}
		return nil
	}
	old, err := os.ReadFile(o.out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	page := introduction
	for _, suite := range allSuites {
		text, ran := sections[suite]
		if !ran {
			text = kept(string(old), suite)
		}
		page += text
	}
	return os.WriteFile(o.out, []byte(page), 0o644)
}

func heading(suite string) string { return "\n## " + suite + "_test.go\n" }

// kept is a suite's section of an older page, empty where it has none.
func kept(page, suite string) string {
	_, text, found := strings.Cut(page, heading(suite))
	if !found {
		return ""
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return heading(suite) + strings.TrimSuffix(text, "\n") + "\n"
}

// section is the table of one suite with what its cases' cgroup files had different.
func section(o options, results []*result, suite, kernel string) string {
	by, took := map[string]*result{}, map[string]time.Duration{}
	var ended time.Time
	var cases []testCase // in the order of the first run; a case that only the other has follows
	for _, r := range results {
		by[r.run] = r
		if r.ended.After(ended) {
			ended = r.ended
		}
		for _, c := range r.cases {
			if c.suite != suite+"_test" {
				continue
			}
			took[r.run] += time.Duration(c.seconds * float64(time.Second))
			if !slices.ContainsFunc(cases, func(other testCase) bool { return other.name == c.name }) {
				cases = append(cases, c)
			}
		}
	}
	minutes := func(run string) int { return int(took[run].Round(time.Minute).Minutes()) }
	var rows, differences []string
	passed, explained := map[string]int{}, map[string]int{}
	for _, c := range cases {
		verdicts := map[string]string{}
		for _, run := range []string{reference, plugin} {
			verdicts[run] = verdict(by[run], c.name)
			if strings.HasPrefix(verdicts[run], "passed") {
				passed[run]++
			}
		}
		files, found := compare(by[reference], by[plugin], c.name, explained)
		differences = append(differences, found...)
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s | %s |\n", title(c.name), verdicts[reference], verdicts[plugin], files, remark(c.name, verdicts, by)))
	}
	var b strings.Builder
	b.WriteString(heading(suite))
	fmt.Fprintf(&b, "\nKubernetes %s, Linux %s, containerd 2.4, systemd, 2 NUMA nodes, emulated; %s; `make conformance KUBERNETES=%s SUITES=%s`.\n",
		o.version, kernel, ended.Format("2006-01-02"), o.version, suite)
	fmt.Fprintf(&b, "%d cases: %d passed with the kubelet's managers (%d minutes), %d with the plugin (%d minutes).\n",
		len(cases), passed[reference], minutes(reference), passed[plugin], minutes(plugin))
	b.WriteString("\n| case | kubelet | plugin | cgroup files | |\n| --- | --- | --- | --- | --- |\n" + strings.Join(rows, ""))
	for _, known := range fileReasons {
		if n := explained[known.why]; n > 0 {
			fmt.Fprintf(&b, "\nDifferent in %d places and explained (%s): %s\n", n, strings.Join(known.files, ", "), known.why)
		}
	}
	if n := explained[besideOthers]; n > 0 {
		fmt.Fprintf(&b, "\nNot compared in %d places, the sums of kubepods and its QoS classes: %s.\n", n, besideOthers)
	}
	if len(differences) > 0 {
		b.WriteString("\nCgroup files that differ:\n\n| case and container | file | kubelet | plugin |\n| --- | --- | --- | --- |\n" + strings.Join(differences, ""))
	}
	return b.String()
}

func verdict(r *result, name string) string {
	if r == nil {
		return "not run"
	}
	c := r.find(name)
	if c == nil {
		return "not run"
	}
	if c.status == "failed" || c.status == "timedout" || c.status == "panicked" || c.status == "interrupted" {
		return "**" + c.status + "**"
	}
	if c.attempts > 1 {
		return c.status + " (attempt " + strconv.Itoa(c.attempts) + ")"
	}
	return c.status
}

// labels are what Ginkgo chooses cases by.
var labels = regexp.MustCompile(`\[(sig-node|Serial|Disruptive|LinuxOnly|Alpha|Beta|Feature:[^]]*|FeatureGate:[^]]*)\] `)

// title is a case's name without its labels.
func title(name string) string {
	name, _, _ = strings.Cut(name, " [sig-node, ") // labels again
	name = labels.ReplaceAllString(name, "")
	return strings.ReplaceAll(name, "|", "\\|")
}

// unexplained are the cases that fail with the plugin, do not fail with the kubelet's managers, and have no known reason.
func unexplained(results []*result) (names []string) {
	by := map[string]*result{}
	for _, r := range results {
		by[r.run] = r
	}
	if by[plugin] == nil {
		return nil
	}
	for _, c := range by[plugin].cases {
		theirs := verdict(by[reference], c.name)
		if failed(verdict(by[plugin], c.name)) && !failed(theirs) && reason(c.name) == "" {
			names = append(names, title(c.name))
		}
	}
	return names
}

func failed(verdict string) bool { return strings.HasPrefix(verdict, "**") }

// reason is why a case cannot pass with the plugin, empty where none is known.
func reason(name string) string {
	for _, r := range reasons {
		if r.of.MatchString(name) {
			return r.why
		}
	}
	return ""
}

// remark is why a case does not pass, where a reason is known, or else its message.
func remark(name string, verdicts map[string]string, by map[string]*result) string {
	if strings.HasPrefix(verdicts[plugin], "passed") && strings.HasPrefix(verdicts[reference], "passed") {
		return ""
	}
	if why := reason(name); why != "" && failed(verdicts[plugin]) {
		return why
	}
	for _, run := range []string{plugin, reference} {
		if by[run] == nil {
			continue
		}
		if c := by[run].find(name); c != nil && c.message != "" {
			line := strings.Join(strings.Fields(c.message), " ")
			if len(line) > 160 {
				line = line[:160] + "…"
			}
			return "`" + strings.NewReplacer("|", "\\|", "`", "'").Replace(line) + "`"
		}
	}
	return ""
}

func (r fileReason) explains(name, file string) bool {
	return (r.of == nil || r.of.MatchString(name)) && slices.Contains(r.files, file)
}

// compare says how many files of a case were the same, and has a line for each that was not, and for which no reason is known;
// the others it counts in explained, by the reason.
func compare(a, b *result, name string, explained map[string]int) (summary string, lines []string) {
	if a == nil || b == nil {
		return "", nil
	}
	first, second := a.find(name), b.find(name)
	if first == nil || second == nil {
		return "", nil
	}
	before, after := a.files(first), b.files(second)
	same, known := 0, 0
	for _, container := range slices.Sorted(maps.Keys(before)) {
		other, there := after[container]
		if !there {
			continue
		}
		beside := before[container].beside || other.beside
		for _, file := range slices.Sorted(maps.Keys(before[container].files)) {
			theirs, ours := before[container].files[file], other.files[file]
			why := ""
			if i := slices.IndexFunc(fileReasons, func(r fileReason) bool { return r.explains(name, file) }); i >= 0 {
				why = fileReasons[i].why
			} else if beside && strings.HasPrefix(file, "kubepods") {
				why = besideOthers
			}
			switch {
			case theirs == ours:
				same++
			case why != "":
				known++
				explained[why]++
			default:
				lines = append(lines, fmt.Sprintf("| %s: %s | %s | `%s` | `%s` |\n", title(name), container, file, theirs, ours))
			}
		}
	}
	if same+known+len(lines) == 0 {
		return "", nil
	}
	summary = fmt.Sprintf("%d the same", same)
	if known > 0 {
		summary += fmt.Sprintf(", %d explained", known)
	}
	if len(lines) > 0 {
		summary += fmt.Sprintf(", %d differ", len(lines))
	}
	return summary, lines
}

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// write writes each suite that ran into the page and into a page of its own with its cases, and leaves the other suites as they are.
// A choice of cases, or one of the two runs, makes no pages: it is printed.
func write(o options, results []*result) error {
	if o.out == "" || o.focus != "" || o.skip != "" || len(o.runs) < 2 {
		for _, suite := range o.suites {
			fmt.Println(newOutcome(results, suite).page(o.version))
		}
		return nil
	}
	old, err := os.ReadFile(o.out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	folder := strings.TrimSuffix(o.out, filepath.Ext(o.out))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	page := introduction
	for _, suite := range allSuites {
		if !slices.Contains(o.suites, suite) {
			page += kept(string(old), suite)
			continue
		}
		ran := newOutcome(results, suite)
		page += ran.section(o.version, filepath.Base(folder))
		if err := os.WriteFile(filepath.Join(folder, suite+".md"), []byte(ran.page(o.version)), 0o644); err != nil {
			return err
		}
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

// outcome is what both runs have shown of one suite.
type outcome struct {
	suite, kernel string
	ended         time.Time
	took          map[string]time.Duration // by the run
	rows          []row                    // in the order of the first run; a case that only the other has follows
	explained     map[string]int           // files that differ, by the reason
	differences   []string                 // lines of a table: files that differ without a known reason
}

// row is one case.
type row struct {
	title             string
	reference, plugin string // verdicts
	files             comparison
	remark            string
}

func newOutcome(results []*result, suite string) outcome {
	o := outcome{suite: suite, took: map[string]time.Duration{}, explained: map[string]int{}}
	by, names := map[string]*result{}, []string(nil)
	for _, r := range results {
		by[r.run] = r
		o.kernel = cmp.Or(r.kernel, o.kernel)
		if r.ended.After(o.ended) {
			o.ended = r.ended
		}
		for _, c := range r.cases {
			if c.suite != suite+"_test" {
				continue
			}
			o.took[r.run] += time.Duration(c.seconds * float64(time.Second))
			if !slices.Contains(names, c.name) {
				names = append(names, c.name)
			}
		}
	}
	for _, name := range names {
		files, found := compare(by[reference], by[plugin], name, o.explained)
		o.differences = append(o.differences, found...)
		verdicts := map[string]string{reference: verdict(by[reference], name), plugin: verdict(by[plugin], name)}
		o.rows = append(o.rows, row{title(name), verdicts[reference], verdicts[plugin], files, remark(name, verdicts, by)})
	}
	return o
}

// where says what ran on what, and when.
func (o outcome) where(version string) string {
	return fmt.Sprintf("Kubernetes %s, Linux %s, %s", version, o.kernel, o.ended.Format(time.DateOnly))
}

// sums says how many cases passed with either, and compares their cgroup files.
func (o outcome) sums() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nOf %d cases", len(o.rows))
	for i, run := range []string{reference, plugin} {
		verdicts := map[string]int{}
		for _, r := range o.rows {
			word, _, _ := strings.Cut(r.verdict(run), " ")
			if failed(word) {
				word = "failed"
			}
			verdicts[word]++
		}
		who := [...]string{" the kubelet's managers", "; the plugin"}[i]
		fmt.Fprintf(&b, "%s passed %d, failed %d and skipped %d in %d minutes", who, verdicts["passed"], verdicts["failed"], verdicts["skipped"],
			int(o.took[run].Round(time.Minute).Minutes()))
	}
	b.WriteString(".\n")
	var all comparison
	for _, r := range o.rows {
		all.same += r.files.same
		all.explained += r.files.explained
		all.differ += r.files.differ
	}
	if all != (comparison{}) {
		fmt.Fprintf(&b, "Cgroup files: %s.\n", all)
	}
	return b.String()
}

func (r row) verdict(run string) string {
	if run == reference {
		return r.reference
	}
	return r.plugin
}

// section is what the page of all suites has of this one: the sums, and why cases failed. Cases that failed for one reason share a
// line, with how many they are: their titles are on the suite's page. Where no reason is known, it has the first one's message.
func (o outcome) section(version, folder string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s; [each case](%s/%s.md).\n%s", heading(o.suite), o.where(version), folder, o.suite, o.sums())
	type way struct{ reference, plugin, reason string }
	var ways []way
	number, first := map[way]int{}, map[way]row{}
	for _, r := range o.rows {
		if !failed(r.reference) && !failed(r.plugin) {
			continue
		}
		w := way{r.reference, r.plugin, reason(r.title)}
		if number[w] == 0 {
			ways = append(ways, w)
			first[w] = r
		}
		number[w]++
	}
	if len(ways) > 0 {
		b.WriteString("\n| failed | kubelet | plugin | why |\n| --- | --- | --- | --- |\n")
	}
	for _, w := range ways {
		what := shortly(first[w].title)
		if number[w] > 1 {
			what = fmt.Sprintf("%d cases: %s", number[w], what)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", what, w.reference, w.plugin, first[w].remark)
	}
	return b.String()
}

// shortly is what a title says should happen, at most ten words of it; where that is too short to tell, it is the title's last ten.
func shortly(title string) string {
	words := strings.Fields(title)
	_, what, _ := strings.Cut(title, "should ")
	if short := strings.Fields(what); len(short) > 10 {
		return strings.Join(short[:10], " ") + " …"
	} else if len(short) > 3 {
		return strings.Join(short, " ")
	}
	return strings.Join(words[max(0, len(words)-10):], " ")
}

// page is the suite's own page: each case, and how its cgroup files differ.
func (o outcome) page(version string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s_test.go\n\n%s; `make conformance KUBERNETES=%s SUITES=%s`.\n%s", o.suite, o.where(version), version, o.suite, o.sums())
	b.WriteString("\n| case | kubelet | plugin | cgroup files | |\n| --- | --- | --- | --- | --- |\n")
	for _, r := range o.rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.title, r.reference, r.plugin, r.files, r.remark)
	}
	var explained []string
	for _, known := range fileReasons {
		if n := o.explained[known.why]; n > 0 {
			explained = append(explained, fmt.Sprintf("| %d | %s | %s |\n", n, strings.Join(known.files, ", "), known.why))
		}
	}
	if n := o.explained[besideOthers]; n > 0 {
		explained = append(explained, fmt.Sprintf("| %d | the sums of kubepods and its QoS classes | not compared: %s |\n", n, besideOthers))
	}
	if len(explained) > 0 {
		b.WriteString("\n| explained | files | why they differ |\n| --- | --- | --- |\n" + strings.Join(explained, ""))
	}
	if len(o.differences) > 0 {
		b.WriteString("\n| files that differ: case and container | file | kubelet | plugin |\n| --- | --- | --- | --- |\n" + strings.Join(o.differences, ""))
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

// comparison is how many cgroup files were the same with both runs.
type comparison struct{ same, explained, differ int }

func (c comparison) String() string {
	if c == (comparison{}) {
		return ""
	}
	text := fmt.Sprintf("%d the same", c.same)
	if c.explained > 0 {
		text += fmt.Sprintf(", %d explained", c.explained)
	}
	if c.differ > 0 {
		text += fmt.Sprintf(", %d differ", c.differ)
	}
	return text
}

// compare compares the files of a case, and has a line for each that is different, and for which no reason is known; the others it
// counts in explained, by the reason.
func compare(a, b *result, name string, explained map[string]int) (c comparison, lines []string) {
	if a == nil || b == nil {
		return c, nil
	}
	first, second := a.find(name), b.find(name)
	if first == nil || second == nil {
		return c, nil
	}
	before, after := a.files(first), b.files(second)
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
				c.same++
			case why != "":
				c.explained++
				explained[why]++
			default:
				c.differ++
				lines = append(lines, fmt.Sprintf("| %s: %s | %s | `%s` | `%s` |\n", title(name), container, file, theirs, ours))
			}
		}
	}
	return c, lines
}

package metrics

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
)

// What docs/metrics.md has between these lines is made from a scrape.
const (
	tableBegins = "<!-- begin: made from a scrape -->\n"
	tableEnds   = "<!-- end -->\n"
)

func TestEveryMetricIsDocumented(t *testing.T) {
	const file = "../../docs/metrics.md"
	m := New()
	m.Attach(sources(t))
	m.Handled("CreateContainer", time.Millisecond, errors.New("rejected"))
	table := documented(t, parse(t, scrape(t, m)))
	for _, source := range []string{"metrics.go", "state.go", "containers.go"} {
		for _, name := range declared(t, source) {
			if !strings.Contains(table, "`"+name+"`") && !strings.Contains(table, "`"+name+"{") {
				t.Errorf("%s declares %s, and the fixture of this test does not make it appear", source, name)
			}
		}
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(page), tableBegins)
	was, tail, ended := strings.Cut(rest, tableEnds)
	if !found || !ended {
		t.Fatalf("%s: want the lines %q and %q", file, tableBegins, tableEnds)
	}
	if difference := cmp.Diff(was, table); difference != "" {
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(file, []byte(head+tableBegins+table+tableEnds+tail), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		t.Errorf("%s (-) and a scrape (+) differ; UPDATE_GOLDEN=1 rewrites it:\n%s", file, difference)
	}
}

// documented is a list of all families but the Go runtime's and the process's.
func documented(t *testing.T, families map[string]*dto.MetricFamily) string {
	t.Helper()
	var names []string
	for name := range families {
		if strings.HasPrefix(name, prefix) || strings.HasPrefix(name, "memory_") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		family := families[name]
		var labels []string
		for _, label := range family.Metric[0].Label {
			labels = append(labels, label.GetName())
		}
		if len(labels) > 0 {
			name += "{" + strings.Join(labels, ",") + "}"
		}
		fmt.Fprintf(&b, "- `%s`: %s\n", name, family.GetHelp())
		if isCounter := strings.HasSuffix(family.GetName(), "_total"); isCounter != (family.GetType() == dto.MetricType_COUNTER) {
			t.Errorf("%s is a %s: the page says that counters, and no others, end in _total", name, family.GetType())
		}
	}
	return b.String()
}

var declaration = regexp.MustCompile(`(?:gauge|counter|Name:\s+|\()(?:prefix\s?\+\s?)?"((?:nri_memory_manager|memory)?[a-z_]*_[a-z_]+)"`)

// declared are the names of the metrics in a source file.
func declared(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		if !strings.Contains(line, "gauge(") && !strings.Contains(line, "counter(") && !strings.Contains(line, "Name:") {
			continue
		}
		if match := declaration.FindStringSubmatch(line); match != nil {
			name := match[1]
			if strings.Contains(line, "prefix") {
				name = prefix + name
			}
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		t.Fatalf("%s declares no metric", file)
	}
	return names
}

// TestShippedQueriesAskForMetricsThatThereAre holds the alerts and the dashboard against what the registry exports.
func TestShippedQueriesAskForMetricsThatThereAre(t *testing.T) {
	m := New()
	m.Attach(sources(t))
	m.Handled("CreateContainer", time.Millisecond, nil)
	families := parse(t, scrape(t, m))
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		text, err := os.ReadFile("../../deploy/helm/nri-memory-manager/files/" + file)
		if err != nil {
			t.Fatal(err)
		}
		asked := regexp.MustCompile(`\b(?:nri_memory_manager|memory_manager|memory_qos)_[a-z_]+`).FindAllString(string(text), -1)
		if len(asked) == 0 {
			t.Errorf("%s asks for no metric", file)
		}
		for _, name := range asked {
			family := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base := strings.TrimSuffix(name, suffix); families[base] != nil {
					family = base
				}
			}
			if families[family] == nil {
				t.Errorf("%s asks for %s, which there is not", file, name)
			}
		}
	}
}

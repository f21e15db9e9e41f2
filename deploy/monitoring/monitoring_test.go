// Package monitoring tests the alert rules and the dashboard against the metrics that the plugin really has.
package monitoring

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

const (
	rules     = "../prometheus/rules.yaml"
	dashboard = "../grafana/nri-memory-manager.json"
	scrape    = "../../pkg/metrics/testdata/scrape.txt"
)

var metricName = regexp.MustCompile(`\b(?:nri_memory_manager|memory_manager|memory_qos)_[a-z_]+\b`)

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestEveryMetricUsedExists(t *testing.T) {
	known := map[string]bool{}
	for _, name := range metricName.FindAllString(read(t, scrape), -1) {
		known[name] = true
		known[strings.TrimSuffix(name, "_count")+"_bucket"] = true
	}
	for _, file := range []string{rules, dashboard} {
		used := metricName.FindAllString(read(t, file), -1)
		if len(used) == 0 {
			t.Errorf("%s uses no metric", file)
		}
		for _, name := range used {
			if !known[name] {
				t.Errorf("%s uses %s, which no scrape has", file, name)
			}
		}
	}
}

func TestRulesFire(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian package prometheus)")
	}
	command := exec.Command(promtool, "test", "rules", "rules_test.yaml")
	command.Dir = "../prometheus"
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDashboardIsWhole(t *testing.T) {
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, W int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, dashboard)), &d); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, panel := range d.Panels {
		if seen[panel.ID] || panel.Title == "" || len(panel.Targets) == 0 || panel.GridPos.X+panel.GridPos.W > 24 {
			t.Errorf("panel %d %q: its id is not unique, it has no title or query, or it is wider than the screen", panel.ID, panel.Title)
		}
		seen[panel.ID] = true
	}
}

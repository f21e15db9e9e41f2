// Package monitoring tests the alert rules and the dashboard of the chart. That the daemon has the metrics that they ask for is
// tested in pkg/metrics.
package monitoring

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/needs"
)

const (
	rules     = "../helm/nri-memory-manager/files/rules.yaml"
	dashboard = "../helm/nri-memory-manager/files/dashboard.json"
	project   = "NRIMemoryManager" // the names of alerts begin with it: those of a cluster are in one list
	docs      = "https://github.com/nri-memory-manager/nri-memory-manager/blob/main/docs/"
)

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// promtool runs Prometheus' own tool in this folder.
func promtool(t *testing.T, arguments ...string) {
	t.Helper()
	program := needs.Program(t, "promtool", "prometheus")
	if out, err := exec.Command(program, arguments...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

type rule struct {
	Alert       string
	Annotations map[string]string
}

func readRules(t *testing.T) []rule {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal([]byte(read(t, rules)), &file); err != nil {
		t.Fatal(err)
	}
	return file.Groups[0].Rules
}

// TestEveryAlertHasARunbook follows the links of the alerts to the sections of docs/alerts.md.
func TestEveryAlertHasARunbook(t *testing.T) {
	sections := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(read(t, "../../docs/alerts.md"), -1) {
		sections[strings.ToLower(heading[1])] = true
	}
	linked := map[string]bool{}
	for _, rule := range readRules(t) {
		link := rule.Annotations["runbook_url"]
		anchor, ok := strings.CutPrefix(link, docs+"alerts.md#")
		if !ok || anchor != strings.ToLower(rule.Alert) || !sections[anchor] {
			t.Errorf("%s has the runbook %q, want its own section of docs/alerts.md", rule.Alert, link)
		}
		if !strings.HasPrefix(rule.Alert, project) {
			t.Errorf("the name of %s does not begin with the project's, %s", rule.Alert, project)
		}
		if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
			t.Errorf("%s has no summary, or no description", rule.Alert)
		}
		linked[anchor] = true
	}
	for section := range sections {
		if !linked[section] {
			t.Errorf("docs/alerts.md has the section %s, and there is no such alert", section)
		}
	}
}

type panels struct {
	Panels []struct {
		ID                 int
		Title, Description string
		GridPos            struct{ X, Y, W, H int }
		Targets            []struct{ Expr string }
	}
}

func readDashboard(t *testing.T) (d panels) {
	t.Helper()
	if err := json.Unmarshal([]byte(read(t, dashboard)), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDashboardIsWhole(t *testing.T) {
	seen := map[int]bool{}
	taken := map[[2]int]string{}
	for _, panel := range readDashboard(t).Panels {
		if seen[panel.ID] || panel.Title == "" || panel.Description == "" || len(panel.Targets) == 0 {
			t.Errorf("panel %d %q: its id is not unique, or it has no title, description or query", panel.ID, panel.Title)
		}
		seen[panel.ID] = true
		at := panel.GridPos
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies on %q, or is wider than the screen", panel.Title, other)
				}
				taken[[2]int{x, y}] = panel.Title
			}
		}
	}
}

// TestDashboardAsksInPromQL has Prometheus parse every query of the dashboard, with its variables filled in.
func TestDashboardAsksInPromQL(t *testing.T) {
	type recording struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var all []recording
	variables := strings.NewReplacer("$__rate_interval", "5m", "$cluster", ".*", "$node", "a|b", "$type", "memory")
	for _, panel := range readDashboard(t).Panels {
		for _, target := range panel.Targets {
			query := variables.Replace(target.Expr)
			if !strings.Contains(target.Expr, `cluster=~"$cluster"`) {
				t.Errorf("panel %q mixes clusters: %s", panel.Title, target.Expr)
			}
			if strings.Contains(query, "$") {
				t.Errorf("panel %q has a variable that the dashboard has not: %s", panel.Title, target.Expr)
			}
			all = append(all, recording{"panel", query})
		}
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": all}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", "--lint=none", file)
}

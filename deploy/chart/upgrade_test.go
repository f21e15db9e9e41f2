package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
)

// TestEachTemplateChecksTheValues keeps the list of keys that the templates check, and the check at their head.
func TestEachTemplateChecksTheValues(t *testing.T) {
	var keys strings.Builder
	for _, v := range documentedValues(t) {
		keys.WriteString(v.path + "\n")
	}
	compareGolden(t, filepath.Join(folder, "files/keys.txt"), keys.String())
	for _, template := range load(t).Templates {
		if strings.HasPrefix(filepath.Base(template.Name), "_") {
			continue // it is rendered by others only
		}
		if !strings.HasPrefix(string(template.Data), `{{- include "nri-memory-manager.checkValues" . }}`+"\n") {
			t.Errorf("%s does not begin with the check of the values", template.Name)
		}
	}
}

// TestEachKeyThatIsMissingIsNamed leaves out each key of values.yaml, one after the other, as --reuse-values does for a chart that
// did not have it yet, and has null remove it.
func TestEachKeyThatIsMissingIsNamed(t *testing.T) {
	var paths []string
	for _, v := range documentedValues(t) {
		for path := v.path; path != ""; path, _ = cutLast(path) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		parents, key := cutLast(path)
		older := load(t)
		inner, nulls := older.Values, map[string]any{key: nil}
		for parent := range strings.SplitSeq(parents, ".") {
			if parent != "" {
				inner = inner[parent].(map[string]any)
			}
		}
		delete(inner, key)
		for above := parents; above != ""; {
			above, key = cutLast(above)
			nulls = map[string]any{key: nulls}
		}
		_, reused := renderChart(older, nil)
		_, removed := renderChart(load(t), nulls)
		for how, err := range map[string]error{"an older chart's values": reused, "null": removed} {
			want := "values without " + path + ": an upgrade that reuses the values of an older chart needs --reset-then-reuse-values in place of --reuse-values;"
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("without %s by %s: error %v, want %q", path, how, err, want)
			}
		}
	}
}

// cutLast cuts a path before its last key.
func cutLast(path string) (parents, key string) {
	i := strings.LastIndex(path, ".")
	return path[:max(i, 0)], path[i+1:]
}

// released are the values.yaml of the releases. With every release, at its tag, its own is added.
func released(t *testing.T) map[string]chartutil.Values {
	t.Helper()
	files, err := filepath.Glob("testdata/values/v*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no values of releases: %v", err)
	}
	all := map[string]chartutil.Values{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = read(t, string(text))
	}
	return all
}

// upgrade renders the chart for a release of an older one that was installed with config, as `helm upgrade` with the flag and
// further values does (reuseValues in helm.sh/helm/v3/pkg/action).
func upgrade(t *testing.T, older chartutil.Values, flag, config, further string) (string, error) {
	t.Helper()
	current, values := read(t, config), read(t, further)
	c := load(t)
	switch flag {
	case "--reuse-values":
		reused, err := chartutil.CoalesceValues(&chart.Chart{Metadata: c.Metadata, Values: older}, read(t, config))
		if err != nil {
			t.Fatal(err)
		}
		values, c.Values = chartutil.CoalesceTables(values, current), reused
	case "--reset-then-reuse-values":
		values = chartutil.CoalesceTables(values, current)
	}
	return renderChart(c, values)
}

// TestUpgradeFromEachRelease renders the chart with the values of releases of older ones: it works, or says which flag to use.
func TestUpgradeFromEachRelease(t *testing.T) {
	const (
		reuse   = "--reuse-values"
		reset   = "--reset-then-reuse-values"
		further = "config: {onTermination: Rollback}"
		config  = `{systemdSocket: false, config: {profile: Observe}, metrics: {podMonitor: {enabled: true}}, tolerations: []}`
	)
	text, err := os.ReadFile("../../docs/installation.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, found := strings.Cut(string(text), "Error: UPGRADE FAILED: ")
	shown, _, _ = strings.Cut(shown, "\n\n")
	if shown = strings.Join(strings.Fields(shown), " "); !found || !strings.Contains(shown, " - at ") {
		t.Fatalf("docs/installation.md shows the error %q", shown)
	}
	for version, older := range released(t) {
		fresh, err := renderChart(load(t), chartutil.CoalesceTables(read(t, further), read(t, config)))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := upgrade(t, older, reset, config, further); err != nil || got != fresh {
			t.Errorf("%s with %s: error %v, or it renders other objects than an installation with these values:\n%s", version, reset, err, got)
		}
		_, err = upgrade(t, older, reuse, config, further)
		if err == nil || !strings.Contains(err.Error(), reset) {
			t.Errorf("%s with %s: error %v, want one that names %s", version, reuse, err, reset)
			continue
		}
		for part := range strings.SplitSeq(shown, " - ") { // of some of the values, in any order
			if said := strings.Join(strings.Fields(err.Error()), " "); version == "v0.2.0" && !strings.Contains(said, part) {
				t.Errorf("docs/installation.md shows %q, which is not in the error of %s with %s: %v", part, version, reuse, err)
			}
		}
	}
}

// TestKeysThatAreNoMoreAreNamed sets each key that only an older release has, and has a user keep a copy of its values.yaml.
func TestKeysThatAreNoMoreAreNamed(t *testing.T) {
	const flag = "--reset-then-reuse-values"
	now, found := map[string]bool{}, 0
	for _, v := range documentedValues(t) {
		now[v.path] = true
	}
	for version, older := range released(t) {
		var nulls []string
		for _, path := range removedKeys("", older, now) {
			found++
			key := strings.ReplaceAll(path, ".", "/")
			_, err := upgrade(t, nil, flag, flags(t, path+"=/x"), "{}")
			if want := "at '/" + key + "': value must be 'left out: "; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), flag) {
				t.Errorf("%s: error %v, want one that says %q and %s", version, err, want, flag)
			}
			nulls = append(nulls, path+"=null")
		}
		copied, err := older.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := upgrade(t, nil, flag, copied, flags(t, nulls...)); err != nil {
			t.Errorf("%s with null for what is no more: %v", version, err)
		}
	}
	if found == 0 {
		t.Error("no release has a key that is no more: v0.1.0 has kubeletPodsDir")
	}
}

// removedKeys are the paths of older values that are no more. What a value of the chart holds is its user's.
func removedKeys(prefix string, older map[string]any, now map[string]bool) (removed []string) {
	for key, value := range older {
		inner, isMap := value.(map[string]any)
		switch path := prefix + key; {
		case now[path]:
		case isMap && len(inner) > 0:
			removed = append(removed, removedKeys(path+".", inner, now)...)
		default:
			removed = append(removed, path)
		}
	}
	return removed
}

// TestDocumentsUpgradeWithTheDefaultsOfTheChart reads each command of the documents and of the chart's notes.
func TestDocumentsUpgradeWithTheDefaultsOfTheChart(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../*/*.md", filepath.Join(folder, "*.md"), filepath.Join(folder, "templates/NOTES.txt")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	commands := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", "")) {
			if command := strings.TrimPrefix(strings.TrimSpace(line), "$ "); strings.HasPrefix(command, "helm upgrade ") {
				commands++
				if !strings.Contains(command, " --reset-then-reuse-values") {
					t.Errorf("%s: without --reset-then-reuse-values: %s", page, command)
				}
			}
		}
	}
	if commands < 4 {
		t.Errorf("%d commands were found, want those of the installation, of the alerts and of the notes", commands)
	}
}

package metrics

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/reclaim"
)

// firstScrape are the families of an agent to which nothing has happened yet.
func firstScrape(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	tree, err := cgroupfs.Open(t.TempDir(), cgroupfs.Plain())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	described, err := machine.Describe("machine.yaml", []byte("nodes: [{id: 0, memory: 16Gi, cpus: 0-3}, {id: 1, memory: 16Gi, cpus: 4-7}]"))
	if err != nil {
		t.Fatal(err)
	}
	log, _ := logtest.NewNullLogger()
	kubelet := podinfo.NewKubelet(filepath.Join(t.TempDir(), "kubelet.sock"))
	a, err := agent.New(agent.Options{
		Config: config.Default(), Machine: described.Machine, Tree: tree, StateDir: t.TempDir(), Log: log, Providers: []podinfo.Provider{kubelet},
	})
	if err != nil {
		t.Fatal(err)
	}
	m := New()
	m.Attach(Sources{View: a.View, Counters: a.Counters, Migrations: a.Migrations, Guard: func() guard.Totals { return guard.Totals{} },
		Kills:      func() map[oom.Total]uint64 { return nil },
		Reclaim:    reclaim.New(reclaim.Options{}).Totals,
		Containers: cgroupfs.NewSampler(0, tree.Counters), Version: "v1"})
	return parse(t, scrape(t, m))
}

// product are the label sets of all combinations, "event=StartContainer result=ok", in the order of labels that a scrape has.
func product(labels ...[]string) []string {
	all := []string{""}
	for _, values := range labels {
		var longer []string
		for _, before := range all {
			for _, value := range values[1:] {
				longer = append(longer, strings.TrimPrefix(before+" "+values[0]+"="+value, " "))
			}
		}
		all = longer
	}
	return all
}

func label(name string, values ...string) []string { return append([]string{name}, values...) }

// names is a label with values that are names of their own type.
func names[T ~string](name string, values []T) []string {
	all := label(name)
	for _, value := range values {
		all = append(all, string(value))
	}
	return all
}

func labelsOf(metric *dto.Metric) string {
	var pairs []string
	for _, pair := range metric.Label {
		pairs = append(pairs, pair.GetName()+"="+pair.GetValue())
	}
	return strings.Join(pairs, " ")
}

// unbounded has a label whose values nobody can list beforehand. docs/metrics.md names these counters.
func unbounded(family *dto.MetricFamily) bool {
	return slices.ContainsFunc(family.Metric[0].Label, func(pair *dto.LabelPair) bool { return pair.GetName() == "pod" })
}

// TestCountersWithLabelsBeginWithZero walks the counters of a busy node, of which another test knows that it has every metric, and
// compares those with labels with what the first scrape has.
func TestCountersWithLabelsBeginWithZero(t *testing.T) {
	var above, inside []string
	for _, o := range protect.Overwritable() {
		if o.Level == cgroup.LevelContainer {
			inside = append(inside, "file="+o.File)
		} else {
			above = append(above, "file="+o.File+" level="+o.Level)
		}
	}
	reasons := product(label("reason", memorymanager.Reasons()...))
	want := map[string][]string{
		prefix + "rejections_total":             reasons,
		prefix + "unpinned_total":               reasons,
		prefix + "ancestor_overwrites_total":    above,
		prefix + "container_overwrites_total":   inside,
		prefix + "container_writes_total":       product(label("result", results[:]...)),
		prefix + "config_reloads_total":         product(label("result", results[:]...)),
		prefix + "oom_kills_total":              product(names("cause", oom.Causes()), names("level", oom.Levels())),
		prefix + "reclaimed_bytes_total":        product(label("qos_class", "BestEffort", "Burstable")),
		prefix + "handler_results_total":        product(label("event", nriplugin.EventNames()...), label("result", results[:]...)),
		prefix + "handler_duration_seconds":     product(label("event", nriplugin.EventNames()...)),
		prefix + "request_source_answers_total": product(label("result", "answered", "error", "timeout", "not_found"), label("source", "kubelet")),
	}
	first := firstScrape(t)
	m := New()
	m.Attach(sources(t))
	for name, family := range parse(t, scrape(t, m)) {
		counts := family.GetType() == dto.MetricType_COUNTER || family.GetType() == dto.MetricType_HISTOGRAM
		if !counts || !strings.HasPrefix(name, prefix) || len(family.Metric[0].Label) == 0 || unbounded(family) {
			continue
		}
		if want[name] == nil {
			t.Errorf("%s has labels: where do its values come from?", name)
		}
	}
	for name, want := range want {
		var got []string
		for _, metric := range first[name].GetMetric() {
			got = append(got, labelsOf(metric))
			if metric.GetCounter().GetValue() != 0 || metric.GetHistogram().GetSampleCount() != 0 {
				t.Errorf("%s begins with %s", name, metric)
			}
		}
		slices.Sort(got)
		if difference := cmp.Diff(slices.Sorted(slices.Values(want)), got); difference != "" {
			t.Errorf("%s: the values of its labels (-) and the first scrape (+) differ:\n%s", name, difference)
		}
	}
}

// TestTheDocumentsNameTheCountersThatBeginLater finds those with labels of pods, and the alerts that ask for them.
func TestTheDocumentsNameTheCountersThatBeginLater(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## The first scrape\n")
	section, _, _ = strings.Cut(section, "\n## ")
	m := New()
	m.Attach(sources(t))
	for name, family := range parse(t, scrape(t, m)) {
		if family.GetType() == dto.MetricType_COUNTER && unbounded(family) && !strings.Contains(section, "`"+name+"`") {
			t.Errorf("docs/metrics.md, The first scrape (%t), does not name %s", found, name)
		}
	}
}

// TestThresholdsAreBounds: a quantile between two bounds is interpolated. Alerts compare with a bound, and the time after which
// a runtime goes on without the answer is one.
func TestThresholdsAreBounds(t *testing.T) {
	rules, err := os.ReadFile("../../deploy/helm/nri-memory-manager/files/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	family := firstScrape(t)[prefix+"handler_duration_seconds"]
	bounds := map[float64]bool{}
	for _, bucket := range family.Metric[0].GetHistogram().Bucket {
		bounds[bucket.GetUpperBound()] = true
	}
	wanted := map[float64]string{api.DefaultPluginRequestTimeout.Seconds(): "the runtime's time limit"}
	for _, match := range regexp.MustCompile(`histogram_quantile\(.*handler_duration_seconds_bucket.*\) > ([0-9.]+)`).FindAllStringSubmatch(string(rules), -1) {
		threshold, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		wanted[threshold] = "an alert's threshold"
	}
	if len(wanted) < 2 {
		t.Error("no alert asks for the histogram")
	}
	for bound, whose := range wanted {
		if !bounds[bound] {
			t.Errorf("%s of %vs is not among the bounds %v", whose, bound, slices.Sorted(maps.Keys(bounds)))
		}
	}
}

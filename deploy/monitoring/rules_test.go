package monitoring

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// prefix is that of the names of the daemon's metrics, but for the few that are the kubelet's.
const prefix = "nri_memory_manager_"

// minutes are how long the simulated Prometheus scrapes, once a minute.
const minutes = 120

// Labels of targets, as Prometheus Operator makes them of a PodMonitor or a ServiceMonitor, with the cluster's: of the node that something
// happens on, of one that stays as it is, and of one with the first one's name and address in another cluster.
var changed, unchanged, elsewhere = target("east", "a", "10.0.0.1:8891"), target("east", "b", "10.0.0.2:8891"), target("west", "a", "10.0.0.1:8891")

func target(cluster, node, instance string) map[string]string {
	return labels("cluster", cluster, "job", "kube-system/nri-memory-manager", "instance", instance, "node", node, "namespace", "kube-system",
		"pod", "nri-memory-manager-"+node, "container", "nri-memory-manager", "endpoint", "metrics", "service", "nri-memory-manager")
}

// honors is whether the chart's monitors have Prometheus keep the labels of series that the target has, too (honorLabels).
func honors(t *testing.T) bool {
	t.Helper()
	type endpoint struct{ HonorLabels bool }
	var endpoints []endpoint
	for document := range strings.SplitSeq(read(t, "../chart/testdata/everything.yaml")+read(t, "../chart/testdata/overrides.yaml"), "\n---\n") {
		var monitor struct {
			Spec struct{ PodMetricsEndpoints, Endpoints []endpoint }
		}
		_ = yaml.Unmarshal([]byte(document), &monitor) // others have no such fields
		endpoints = append(append(endpoints, monitor.Spec.PodMetricsEndpoints...), monitor.Spec.Endpoints...)
	}
	if len(endpoints) != 2 {
		t.Fatalf("the chart has %d endpoints to scrape, want the PodMonitor's and the ServiceMonitor's", len(endpoints))
	}
	return endpoints[0].HonorLabels && endpoints[1].HonorLabels
}

// scraped is a series as Prometheus keeps it of a target.
func scraped(one sample, target map[string]string, honors bool) sample {
	kept := maps.Clone(target)
	for name, value := range one.labels {
		if _, taken := target[name]; taken && !honors {
			name = "exported_" + name
		}
		kept[name] = value
	}
	return sample{one.name, kept, one.value}
}

var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// begun is a series in PromQL's notation, without the prefix.
func begun(text string) sample {
	name, pairs, _ := strings.Cut(text, "{")
	one := sample{name: prefix + name, labels: map[string]string{}}
	for _, pair := range label.FindAllStringSubmatch(pairs, -1) {
		one.labels[pair[1]] = pair[2]
	}
	return one
}

// unitTest is a test in promtool's file
// (https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules).
type unitTest struct {
	Interval string     `json:"interval"`
	Name     string     `json:"name"`
	Series   []series   `json:"input_series"`
	Queries  []query    `json:"promql_expr_test,omitempty"`
	Alerts   []expected `json:"alert_rule_test,omitempty"`
}

type series struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

type query struct {
	Expr    string   `json:"expr"`
	At      string   `json:"eval_time"`
	Samples []result `json:"exp_samples"`
}

type result struct {
	Value  float64 `json:"value"`
	Labels string  `json:"labels"`
}

type expected struct {
	At     string  `json:"eval_time"`
	Alert  string  `json:"alertname"`
	Alerts []alert `json:"exp_alerts"`
}

type alert struct {
	Labels      map[string]string `json:"exp_labels"`
	Annotations map[string]string `json:"exp_annotations"`
}

// values are those of a series in promtool's notation, from its value in the scrape.
type values func(before float64) string

// once is one event after so many scrapes.
func once(after int) values {
	return func(v float64) string { return fmt.Sprintf("%gx%d %gx%d", v, after-1, v+1, minutes-after) }
}

// each is so many events a minute.
func each(count float64) values {
	return func(v float64) string { return fmt.Sprintf("%g+%gx%d", v, count, minutes) }
}

// is another value from the start.
func is(value float64) values {
	return func(float64) string { return fmt.Sprintf("%gx%d", value, minutes) }
}

// from is another value after so many scrapes.
func from(after int, value float64) values {
	return func(v float64) string { return fmt.Sprintf("%gx%d %gx%d", v, after-1, value, minutes-after) }
}

// change is what happens to the series of the scrape that have these labels, among others.
type change struct {
	name   string
	labels map[string]string
	values values
}

func (c change) concerns(s sample) bool {
	for name, value := range c.labels {
		if s.labels[name] != value {
			return false
		}
	}
	return s.name == c.name
}

// scenario is what a node's series do, and the alerts that fire for it, by minute.
type scenario struct {
	changes []change
	// begins are series that no first scrape here can have: those of containers, gauges of what has been sampled, and the stall guard's,
	// which needs a kernel to watch. Where it has one, its counters are there from the first scrape on: they have no labels.
	begins map[string]string
	// ends is after how many scrapes the daemon answers no more; 0 is never.
	ends int
	// gone is whether Prometheus does not even find it then, the only one of its cluster.
	gone bool
	// alone is whether there is no other cluster.
	alone  bool
	firing map[int][]string
	texts  []expected
}

// of are the input series of a scrape's samples of a target.
func of(samples []sample, target map[string]string, honors bool, s scenario) (input []series) {
	up := fmt.Sprintf("1x%d", minutes)
	if s.ends > 0 {
		up = fmt.Sprintf("1x%d 0x%d", s.ends-1, minutes-s.ends)
	}
	if s.gone {
		up = fmt.Sprintf("1x%d stale", s.ends-1)
	}
	input = append(input, series{sample{"up", target, 1}.String(), up})
	for _, one := range samples {
		text := is(one.value)(0)
		for _, c := range s.changes {
			if c.concerns(one) {
				text = c.values(one.value)
			}
		}
		if s.ends > 0 {
			text = fmt.Sprintf("%gx%d stale", one.value, s.ends-1)
		}
		input = append(input, series{scraped(one, target, honors).String(), text})
	}
	for name, text := range s.begins {
		input = append(input, series{scraped(begun(name), target, honors).String(), text})
	}
	return input
}

// runRules has promtool run scenarios on the rules, each beside a node to which nothing happens. It is given the series that the rules name.
func runRules(t *testing.T, samples []sample, scenarios map[string]scenario) {
	t.Helper()
	path, err := filepath.Abs(rules)
	must(t, err)
	text, honors := read(t, rules), honors(t)
	named := slices.DeleteFunc(slices.Clone(samples), func(one sample) bool { return !strings.Contains(text, one.name) })
	var tests []unitTest
	for _, name := range slices.Sorted(maps.Keys(scenarios)) {
		s := scenarios[name]
		for _, c := range s.changes {
			if !slices.ContainsFunc(samples, c.concerns) {
				t.Errorf("%s: the first scrape has no series %s with %v", name, c.name, c.labels)
			}
		}
		test := unitTest{Interval: "1m", Name: name, Series: of(named, changed, honors, s), Alerts: s.texts}
		if !s.gone {
			test.Series = append(test.Series, of(named, unchanged, honors, scenario{})...)
		}
		if !s.alone {
			test.Series = append(test.Series, of(named, elsewhere, honors, scenario{})...)
		}
		for _, minute := range slices.Sorted(maps.Keys(s.firing)) {
			q := query{Expr: `count by (alertname, cluster, node) (ALERTS{alertstate="firing"})`, At: fmt.Sprintf("%dm", minute), Samples: []result{}}
			for _, alert := range s.firing[minute] {
				of := map[string]string{"alertname": project + alert, "cluster": changed["cluster"]}
				if !s.gone {
					of["node"] = changed["node"]
				}
				q.Samples = append(q.Samples, result{1, sample{labels: of}.String()})
			}
			test.Queries = append(test.Queries, q)
		}
		tests = append(tests, test)
	}
	input, err := yaml.Marshal(map[string]any{"rule_files": []string{path}, "evaluation_interval": "1m", "tests": tests})
	must(t, err)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	must(t, os.WriteFile(file, input, 0o644))
	promtool(t, "test", "rules", file)
}

// labels are pairs of names and values.
func labels(pairs ...string) map[string]string {
	set := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		set[pairs[i]] = pairs[i+1]
	}
	return set
}

// slow has 100 containers created a minute: so many take as long as the bucket with this bound has, the others the shortest.
func slow(samples []sample, count, bound float64) (changes []change) {
	for _, one := range samples {
		if one.name != prefix+"handler_duration_seconds_bucket" || one.labels["event"] != "CreateContainer" {
			continue
		}
		within := 100.0
		if le, err := strconv.ParseFloat(one.labels["le"], 64); err != nil || le < bound {
			within -= count
		}
		changes = append(changes, change{one.name, one.labels, each(within)})
	}
	return changes
}

// TestAlertsFire begins every scenario with the first scrape of a daemon, on two nodes, and lets something happen on one of them.
func TestAlertsFire(t *testing.T) {
	samples := newExporter(t, "").scrape()
	numa := func(node string) map[string]string { return labels("numa_node", node, "type", "memory") }
	full := func(nodes ...string) (changes []change) {
		for _, node := range nodes {
			changes = append(changes, change{prefix + "numa_free_bytes", numa(node), from(10, 0)})
		}
		return changes
	}
	const web = `{namespace="shop", pod="web", container="app"}`
	scenarios := map[string]scenario{
		"nothing happens":               {firing: map[int][]string{1: {}, 20: {}, 60: {}, 119: {}}},
		"the daemon is down":            {ends: 11, firing: map[int][]string{15: {}, 100: {"Down"}}},
		"no daemon is scraped":          {ends: 11, gone: true, firing: map[int][]string{20: {}, 60: {"Absent"}}},
		"no daemon is scraped anywhere": {ends: 11, gone: true, alone: true, firing: map[int][]string{20: {}, 60: {"Absent"}}},
		"a condition does not hold": {
			changes: []change{{prefix + "condition", labels("condition", "checkpoint"), from(10, 0)}},
			firing:  map[int][]string{14: {}, 16: {"NotReady"}},
			texts: []expected{{"16m", "NRIMemoryManagerNotReady", []alert{{labels("cluster", "east", "node", "a", "condition", "checkpoint", "severity", "warning"), map[string]string{
				"runbook_url": docs + "alerts.md#nrimemorymanagernotready",
				"summary":     "a: checkpoint has not held for 5 minutes",
				"description": "New containers on the node may start without NUMA nodes and without memory protection. `kubectl exec` into the plugin's pod and run `nri-memory-manager status`; the first lines say why.",
			}}}}},
		},
		"a container is rejected before the first scrape": {
			begins: map[string]string{`rejections_total{reason="BeforeTheFirstScrape"}`: fmt.Sprintf("_x5 1x%d", minutes-6)},
			firing: map[int][]string{4: {}, 6: {"RejectsContainers"}, 19: {"RejectsContainers"}, 21: {}, 119: {}},
		},
		"rejections from before a gap": {
			begins: map[string]string{`rejections_total{reason="BeforeAGap"}`: fmt.Sprintf("0 7x39 _x20 7x%d", minutes-60)},
			firing: map[int][]string{5: {"RejectsContainers"}, 35: {}, 61: {}, 75: {}, 79: {}, 119: {}},
		},
		"one write of the state file fails": {
			changes: []change{{prefix + "checkpoint_failures_total", nil, once(10)}},
			firing:  map[int][]string{11: {}, 16: {"CheckpointFails"}, 30: {}},
		},
		"one configuration is refused": {
			changes: []change{{prefix + "config_reloads_total", labels("result", "error"), once(10)}},
			firing:  map[int][]string{9: {}, 11: {"ConfigRefused"}, 30: {"ConfigRefused"}, 60: {}},
		},
		"configurations are read": {changes: []change{{prefix + "config_reloads_total", labels("result", "ok"), each(1)}}, firing: map[int][]string{30: {}}},
		"a process is killed": {
			changes: []change{{prefix + "oom_kills_total", labels("cause", "processes", "level", "container"), once(10)}},
			firing:  map[int][]string{9: {}, 11: {"OOMKills"}, 30: {}},
		},
		"page cache may have containers killed": {
			begins: map[string]string{
				`container_page_cache_risk{namespace="shop", pod="web", container="app", known="true"}`:   "_x10 1x12 stale",
				`container_page_cache_risk{namespace="shop", pod="mail", container="app", known="false"}`: "1x119",
			},
			firing: map[int][]string{9: {}, 11: {"PageCacheRisk"}, 22: {"PageCacheRisk"}, 24: {}},
			texts: []expected{{"11m", "NRIMemoryManagerPageCacheRisk", []alert{{labels("cluster", "east", "node", "a", "namespace", "shop", "pod", "web", "container", "app", "severity", "warning"), map[string]string{
				"runbook_url": docs + "alerts.md#nrimemorymanagerpagecacherisk",
				"summary":     "a: page cache may have shop/web, container app killed",
				"description": "It writes files at its limit, and this kernel was seen to kill such containers on XFS. The annotation cache-room of its pod, the key cacheRoom or a higher limit helps.",
			}}}}},
		},
		"a container runs unpinned": {
			begins: map[string]string{`unpinned_containers{reason="UnexpectedAdmissionError"}`: "_x15 1x24 stale"}, // until its pod ends
			firing: map[int][]string{14: {}, 17: {"ContainersRunUnpinned"}, 39: {"ContainersRunUnpinned"}, 45: {}},
		},
		// The kubelet's tick is a minute: 15 times in 15 minutes is its pace, and is repaired.
		"a kubelet with MemoryQoS": {
			changes: []change{{prefix + "ancestor_overwrites_total", labels("level", "kubepods", "file", "memory.min"), each(1)}},
			firing:  map[int][]string{40: {}, 119: {}},
		},
		"another writer of kubepods": {
			changes: []change{{prefix + "ancestor_overwrites_total", labels("level", "kubepods", "file", "memory.min"), each(60)}},
			firing:  map[int][]string{14: {}, 40: {"MemoryProtectionOverwritten"}},
		},
		"another writer of containers": {
			changes: []change{{prefix + "container_overwrites_total", labels("file", "cpuset.mems"), each(60)}},
			firing:  map[int][]string{14: {}, 40: {"ContainerFilesOverwritten"}},
		},
		"a container is throttled": {
			begins: map[string]string{"container_memory_high_events_total" + web: "_x10 0+600x100"},
			firing: map[int][]string{40: {}, 60: {"ContainerThrottled"}},
		},
		"a container is stalled": {
			begins: map[string]string{"container_memory_full_stall_seconds_total" + web: "_x10 0+30x100",
				`container_memory_full_stall_seconds_total{namespace="shop", pod="fast", container="app"}`: "_x10 0+1x100"},
			firing: map[int][]string{14: {}, 20: {"ContainerStalledOnMemory"}},
		},
		"memory.high stops containers": {
			begins: map[string]string{"stall_guard_episodes_total{}": "0+1x100"},
			firing: map[int][]string{15: {}, 30: {"MemoryHighStopsContainers"}},
		},
		"memory.high stops a container once": {begins: map[string]string{"stall_guard_episodes_total{}": "0x10 1x100"}, firing: map[int][]string{30: {}, 60: {}}},
		"the lowest NUMA node is full":       {changes: full("0"), firing: map[int][]string{60: {}, 119: {}}},
		"the highest NUMA node is full":      {changes: full("1"), firing: map[int][]string{60: {}, 119: {}}},
		"all NUMA nodes are full": {
			changes: full("0", "1"), firing: map[int][]string{30: {}, 60: {"AllNUMANodesAlmostFull"}},
			texts: []expected{{"60m", "NRIMemoryManagerAllNUMANodesAlmostFull", []alert{{labels("cluster", "east", "node", "a", "severity", "info"), map[string]string{
				"runbook_url": docs + "alerts.md#nrimemorymanagerallnumanodesalmostfull",
				"summary":     "a: no NUMA node has more than 0% left for pinned containers",
				"description": "New Guaranteed pods may find no room here, although the scheduler sees free memory on the node. `nri-memory-manager status` shows what each NUMA node has left.",
			}}}}},
		},
		"the only NUMA node with memory for containers is full": {
			changes: append(full("0"), change{prefix + "numa_allocatable_bytes", numa("1"), is(0)}, change{prefix + "numa_free_bytes", numa("1"), is(0)}),
			firing:  map[int][]string{60: {"AllNUMANodesAlmostFull"}},
		},
		"allocations exceed what is available": {
			begins: map[string]string{
				`numa_allocated_unused_bytes{numa_node="0"}`:                "0x5 4294967296x20",
				`numa_available_bytes{numa_node="0", source="free"}`:        "1073741824x25",
				`numa_available_bytes{numa_node="0", source="reclaimable"}`: "2147483648x25",
				`numa_allocated_unused_bytes{numa_node="1"}`:                "3221225472x25", // as much as is available
				`numa_available_bytes{numa_node="1", source="free"}`:        "1073741824x25",
				`numa_available_bytes{numa_node="1", source="reclaimable"}`: "2147483648x25",
			},
			firing: map[int][]string{5: {}, 10: {"AllocationsNotAvailable"}},
			texts: []expected{{"10m", "NRIMemoryManagerAllocationsNotAvailable", []alert{{labels("cluster", "east", "node", "a", "numa_node", "0", "severity", "warning"), map[string]string{
				"runbook_url": docs + "alerts.md#nrimemorymanagerallocationsnotavailable",
				"summary":     "a: NUMA node 0 lacks 1GiB for what is allocated to pinned containers",
				"description": "Memory that other containers use there is not available to the pinned ones. When these use what they have allocated, the kernel kills a process although other NUMA nodes may have free memory.",
			}}}}},
		},
		"a resize is short": {
			changes: []change{{prefix + "pending_resize_bytes", labels("type", "memory"), from(10, 1<<30)}},
			firing:  map[int][]string{35: {}, 45: {"ResizesPending"}},
		},
		"2 of 100 containers wait longer than 0.5 s": {
			changes: slow(samples, 2, 1),
			firing:  map[int][]string{14: {}, 40: {"Slow"}},
		},
		"2 of 100 containers wait up to 0.5 s": {
			changes: slow(samples, 2, 0.5),
			firing:  map[int][]string{40: {}, 119: {}},
		},
		"a source of requests is there, and lost": {
			changes: []change{{prefix + "request_source_connected", labels("source", "kubelet"), from(10, 0)}},
			firing:  map[int][]string{35: {}, 45: {"MemoryRequestSourceDown"}},
		},
	}
	// The first one of every reason fires, and for a quarter of an hour.
	healthy := len(scenarios)
	for _, one := range samples {
		if reason := one.labels["reason"]; one.name == prefix+"rejections_total" {
			scenarios["a container is rejected, "+reason] = scenario{
				changes: []change{{prefix + "rejections_total", labels("reason", reason), once(10)}},
				firing:  map[int][]string{9: {}, 11: {"RejectsContainers"}, 23: {"RejectsContainers"}, 40: {}},
			}
		}
	}
	if len(scenarios) == healthy {
		t.Error("the first scrape has no rejections")
	}
	for i := range samples {
		if samples[i].name == prefix+"request_source_connected" {
			samples[i].value = 1 // there is no kubelet on this machine
		}
	}
	runRules(t, samples, scenarios)
	fires := map[string]bool{}
	for name, s := range scenarios {
		for _, alerts := range s.firing {
			for _, alert := range alerts {
				fires[project+alert] = true
			}
		}
		for begins := range s.begins {
			if metric, _, _ := strings.Cut(begins, "{"); strings.HasSuffix(metric, "_total") && !strings.Contains(begins, "pod=") && !strings.Contains(begins, "Before") && !strings.HasPrefix(begins, "stall_guard_") {
				t.Errorf("%s: %s is a counter that the first scrape must have", name, begins)
			}
		}
	}
	for _, rule := range readRules(t) {
		if !fires[rule.Alert] {
			t.Errorf("%s fires in no scenario", rule.Alert)
		}
	}
}

// TestAbsenceIsToldUntilADaemonIsBack goes on for longer than the rule looks back for daemons.
func TestAbsenceIsToldUntilADaemonIsBack(t *testing.T) {
	path, err := filepath.Abs(rules)
	must(t, err)
	const hour = 60
	scraped := func(name, cluster, values string) series {
		return series{sample{labels: labels("__name__", name, "cluster", cluster, "job", name)}.String(), values}
	}
	daemon := func(cluster string, ends, begins int) series {
		return scraped(prefix+"build_info", cluster, fmt.Sprintf("1x%d _x%d 1x%d", ends, begins-ends, 40*hour-begins))
	}
	others := func(cluster string, hours int) series {
		return scraped("up", cluster, fmt.Sprintf("1x%d stale", hours*hour))
	}
	var tests []unitTest
	for name, test := range map[string]struct {
		series []series
		firing map[int][]string // the clusters, by hour
	}{
		"beside another cluster": {[]series{daemon("east", 2*hour, 32*hour), others("east", 40), daemon("west", 40*hour, 40*hour), others("west", 40)},
			map[int][]string{1: {}, 3: {"east"}, 25: {"east"}, 27: {"east"}, 31: {"east"}, 33: {}, 39: {}}},
		"of the only cluster": {[]series{daemon("east", 2*hour, 32*hour), others("east", 40)}, map[int][]string{1: {}, 3: {"east"}, 27: {"east"}, 31: {"east"}, 33: {}}},
		"of no cluster":       {[]series{daemon("", 2*hour, 32*hour), others("", 40)}, map[int][]string{1: {}, 3: {""}, 26: {""}, 27: {""}, 31: {""}, 33: {}}},
		"before the first":    {[]series{scraped(prefix+"build_info", "east", fmt.Sprintf("_x%d 1x%d", 30*hour, 10*hour)), others("east", 40)}, map[int][]string{1: {""}, 29: {""}, 31: {}, 39: {}}},
		"of a cluster that is gone": {[]series{daemon("east", 2*hour, 40*hour), others("east", 2), daemon("west", 40*hour, 40*hour), others("west", 40)},
			map[int][]string{3: {"east"}, 25: {"east"}, 27: {}, 39: {}}},
	} {
		unit := unitTest{Interval: "1m", Name: name, Series: test.series}
		for _, at := range slices.Sorted(maps.Keys(test.firing)) {
			q := query{Expr: `count by (cluster) (ALERTS{alertname="NRIMemoryManagerAbsent", alertstate="firing"})`, At: fmt.Sprintf("%dh", at), Samples: []result{}}
			for _, cluster := range test.firing[at] {
				of := map[string]string{}
				if cluster != "" {
					of["cluster"] = cluster
				}
				q.Samples = append(q.Samples, result{1, sample{labels: of}.String()})
			}
			unit.Queries = append(unit.Queries, q)
		}
		tests = append(tests, unit)
	}
	input, err := yaml.Marshal(map[string]any{"rule_files": []string{path}, "evaluation_interval": "5m", "tests": tests})
	must(t, err)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	must(t, os.WriteFile(file, input, 0o644))
	promtool(t, "test", "rules", file)
}

// TestWhatHappensToADaemonFires scrapes a daemon before and after its first rejection, and its first refused resize.
func TestWhatHappensToADaemonFires(t *testing.T) {
	const gi = 1 << 30
	for name, happen := range map[string]func(*exporter) error{
		"a container is rejected": func(e *exporter) error { return e.place("large", 64*gi) },
		"a resize is refused":     func(e *exporter) error { return e.resize("small", 64*gi) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newExporter(t, "topologyManagerPolicy: single-numa-node\n")
			must(t, e.place("small", gi))
			before := e.scrape()
			if err := happen(e); err == nil {
				t.Fatal("nothing was refused")
			}
			s := scenario{firing: map[int][]string{9: {}, 11: {"RejectsContainers"}, 40: {}}}
			was := map[string]float64{}
			for i, one := range before {
				if was[one.String()] = one.value; one.name == prefix+"request_source_connected" {
					before[i].value = 1 // there is no kubelet on this machine
				}
			}
			for _, one := range e.scrape() {
				switch value, there := was[one.String()]; {
				case !there:
					t.Errorf("%s begins with %v", one, one.value)
				case value != one.value:
					s.changes = append(s.changes, change{one.name, one.labels, from(10, one.value)})
				}
			}
			if len(s.changes) == 0 {
				t.Error("no series has changed")
			}
			runRules(t, before, map[string]scenario{name: s})
		})
	}
}

package metrics

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/reclaim"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

func pointer(bytes uint64) *uint64 { return &bytes }

func busyNode() *ledger.View {
	return &ledger.View{
		Claimable: []claims.Capacity{{Node: 1, Type: "memory", Capacity: 45, Claimed: 20}},
		Nodes: []memorymanager.NodeState{{ID: 1, Memory: []memorymanager.TypeTable{
			{Type: "memory", Table: memorymanager.Table{Total: 100, SystemReserved: 10, Allocatable: 90, Reserved: 40, Free: 50}}}}},
		Ancestors: []cgroup.Target{
			{Level: cgroup.LevelKubepods, Values: memoryqos.Values{Min: pointer(512), Low: pointer(384)}},
			{Level: cgroup.LevelBurstable, Values: memoryqos.Values{Low: pointer(384)}},
		},
		Pods: []*ledger.PodView{
			{Namespace: "a", Name: "web", Class: memoryqos.Burstable, Containers: []ledger.ContainerView{
				{Name: "app", State: ledger.Running, Cgroup: "kubepods/burstable/pod1/app", Values: memoryqos.Values{High: pointer(1000)},
					Estimate: pods.Estimate{Request: 500, Source: "oomscore", Error: 64}},
				{Name: "ended", State: ledger.Stopped}}},
			{Namespace: "a", Name: "web", Class: memoryqos.Burstable, Containers: []ledger.ContainerView{
				{Name: "app", State: ledger.Running, Cgroup: "kubepods/burstable/pod2/app", Values: memoryqos.Values{High: pointer(1000)},
					Estimate: pods.Estimate{Request: 500, Source: "oomscore", Error: 16}}}},
			{Namespace: "b", Name: "database", Class: memoryqos.Guaranteed, Containers: []ledger.ContainerView{
				{Name: "postgres", State: ledger.Running, Nodes: nodeset.Of(1), Estimate: pods.Estimate{Request: 40, Source: "limit"},
					PendingResize: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 30}}, Unanswered: true},
				{Name: "exporter", State: ledger.Running, Estimate: pods.Estimate{Request: 90, Source: "limit"},
					Unplaced: &ledger.Rejection{Reason: "UnexpectedAdmissionError"}}}},
		},
		NodeMemory: &deficit.Sample{Nodes: []deficit.NodeMemory{{ID: 1, Unused: 30, Free: 20, Reclaimable: 5}}},
		Conditions: []ledger.Condition{{Name: "connected", OK: true}, {Name: "checkpoint"}},
	}
}

func sources(t *testing.T) Sources {
	t.Helper()
	root := t.TempDir()
	cgroups.Fill(t, filepath.Join(root, "kubepods/burstable/pod1/app"), map[string]string{
		"memory.events":   "low 0\nhigh 766\nmax 0\noom 0\noom_kill 0\n",
		"memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n",
		"memory.current":  "4096\n",
	})
	tree, err := cgroupfs.Open(root, cgroupfs.Plain())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return Sources{
		Version: "v1", Containers: cgroupfs.NewSampler(0, tree.Counters), View: busyNode,
		Migrations: func() map[string]protect.Migration {
			return map[string]protect.Migration{"a": {Blocked: true}, "b": {Done: true}}
		},
		Guard: func() guard.Totals { return guard.Totals{Episodes: 2, Raised: time.Minute} },
		Reclaim: func() reclaim.Totals {
			return reclaim.Totals{Calls: 3, Bytes: map[memoryqos.QOSClass]uint64{memoryqos.BestEffort: 64 << 20}, Refaulted: 4096}
		},
		Evictions: func() uint64 { return 2 },
		Risks: func() map[string]*oom.Risk {
			return map[string]*oom.Risk{"kubepods/burstable/pod1/app": {Known: true}, "kubepods/burstable/pod2/app": {}, "ended": {}}
		},
		Kills: func() map[oom.Total]uint64 {
			return map[oom.Total]uint64{{Cause: oom.Tmpfs, Level: oom.Container}: 2}
		},
		Counters: func() agent.Counters {
			return agent.Counters{Counters: ledger.Counters{PinningRequests: 7, PinningErrors: 1,
				Rejections: map[string]uint64{"TopologyAffinityError": 1},
				Unpinned:   map[string]uint64{"UnexpectedAdmissionError": 3}},
				Overwrites: map[protect.Overwrite]uint64{{Level: "kubepods", File: "memory.min"}: 4},
				Checkpoint: checkpoint.Stats{Writes: 9},
				Requests:   podinfo.Stats{Sources: []podinfo.SourceStats{{Source: "kubelet", Answers: 5, Connected: true}}}}
		},
	}
}

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	response := httptest.NewRecorder()
	m.Handler().ServeHTTP(response, httptest.NewRequest("GET", "/metrics", nil))
	if response.Code != 200 {
		t.Fatalf("status %d: %s", response.Code, response.Body)
	}
	return response.Body.String()
}

func parse(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// ours are the lines of our own metrics, without the Go runtime's and the process's.
func ours(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		for _, name := range []string{"nri_memory_manager_", "memory_manager_", "memory_qos_"} {
			if strings.HasPrefix(line, name) && !strings.Contains(line, "build_info") && !strings.Contains(line, "_seconds_bucket") && !strings.Contains(line, "_seconds_sum") {
				lines = append(lines, line)
			}
		}
	}
	return strings.Join(lines, "")
}

func TestScrape(t *testing.T) {
	m := New()
	m.Attach(sources(t))
	m.Handled("CreateContainer", 150*time.Microsecond, nil)
	m.Handled("CreateContainer", time.Second, errors.New("rejected"))
	text := scrape(t, m)
	parse(t, text)
	want, err := os.ReadFile("testdata/scrape.txt")
	if err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(string(want), ours(text)); difference != "" {
		if os.Getenv("UPDATE_GOLDEN") != "" {
			_ = os.WriteFile("testdata/scrape.txt", []byte(ours(text)), 0o644)
		}
		t.Errorf("testdata/scrape.txt (-) and the scrape (+) differ; UPDATE_GOLDEN=1 rewrites it:\n%s", difference)
	}
}

func TestNamesFollowThePrometheusConventions(t *testing.T) {
	m := New()
	m.Attach(sources(t))
	m.Handled("CreateContainer", time.Millisecond, nil)
	problems, err := promlint.New(strings.NewReader(scrape(t, m))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
}

func TestAScrapeReadsWhatItHasTimeForAndGoesOnThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view := &ledger.View{}
		for i := range 10 {
			view.Pods = append(view.Pods, &ledger.PodView{Namespace: "a", Name: fmt.Sprint(i), Containers: []ledger.ContainerView{
				{Name: "app", State: ledger.Running, Cgroup: fmt.Sprint(i), Values: memoryqos.Values{High: pointer(1)}}}})
		}
		m := New()
		m.registry.MustRegister(containers{func() *ledger.View { return view }, cgroupfs.NewSampler(0, func(string) (cgroupfs.Counters, error) {
			time.Sleep(readingTime * 2 / 7) // the fourth is interrupted
			return cgroupfs.Counters{}, nil
		})})
		seen := map[string]bool{}
		for range 5 {
			families := parse(t, scrape(t, m))
			if left := families["nri_memory_manager_scrape_skipped_containers"].Metric[0].GetGauge().GetValue(); left != 7 {
				t.Errorf("%v of 10 containers left out, want 7", left)
			}
			for _, metric := range families["nri_memory_manager_container_memory_high_events_total"].Metric {
				for _, label := range metric.Label {
					if label.GetName() == "pod" {
						seen[label.GetValue()] = true
					}
				}
			}
			time.Sleep(time.Second)
		}
		if len(seen) != 10 {
			t.Errorf("after five scrapes %d of 10 containers were read", len(seen))
		}
	})
}

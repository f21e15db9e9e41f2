package status

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

func busy(t *testing.T) *Document {
	t.Helper()
	var document Document
	load(t, "busy.json", &document)
	return &document
}

func TestSelection(t *testing.T) {
	uid := busy(t).Pods[0].UID
	for name, test := range map[string]struct {
		only       Selection
		pods       string
		rejections string
		err        string
	}{
		"all":         {Selection{}, "analytics/spark-1 batch/legacy default/database shop/web-7d9c5b-x2x4l tools/debug", "analytics/cruncher-0 batch/legacy", ""},
		"a namespace": {Selection{Namespace: "batch"}, "batch/legacy", "batch/legacy", ""},
		"a pod of which only a rejection is known": {Selection{Pod: "cruncher-0"}, "", "analytics/cruncher-0", ""},
		"a namespace without pods":                 {Selection{Namespace: "other"}, "", "", `no pod on this node is in the namespace "other"; want analytics, batch, default, shop or tools`},
		"a namespace misspelt":                     {Selection{Namespace: "shp"}, "", "", `no pod on this node is in the namespace "shp", did you mean "shop"?`},
		"a pod":                                    {Selection{Pod: "default/database"}, "default/database", "", ""},
		"a pod by its name":                        {Selection{Pod: "legacy"}, "batch/legacy", "batch/legacy", ""},
		"a pod by its UID":                         {Selection{Pod: uid}, "analytics/spark-1", "", ""},
		"a pod by its UID and namespace":           {Selection{Namespace: "analytics", Pod: "analytics/" + uid}, "analytics/spark-1", "", ""},
		"a UID of another namespace":               {Selection{Pod: "batch/" + uid}, "", "", `no pod "batch/` + uid + `" on this node`},
		"a pod of a namespace":                     {Selection{Namespace: "batch", Pod: "legacy"}, "batch/legacy", "batch/legacy", ""},
		"a pod of another namespace":               {Selection{Namespace: "shop", Pod: "legacy"}, "", "", `no pod "legacy" on this node`},
		"no such pod":                              {Selection{Pod: "default/legacy"}, "", "", `no pod "default/legacy" on this node`},
		"problems":                                 {Selection{Problems: true}, "batch/legacy default/database shop/web-7d9c5b-x2x4l", "analytics/cruncher-0 batch/legacy", ""},
		"problems of a namespace":                  {Selection{Namespace: "shop", Problems: true}, "shop/web-7d9c5b-x2x4l", "", ""},
		"a pod without problems":                   {Selection{Pod: "debug", Problems: true}, "", "", ""},
		"no such pod, of its problems":             {Selection{Pod: "none", Problems: true}, "", "", `no pod "none" on this node`},
	} {
		t.Run(name, func(t *testing.T) {
			document := busy(t)
			got, err := document.Select(test.only)
			if difference := cmp.Diff(busy(t), document); difference != "" {
				t.Errorf("the document itself has changed:\n%s", difference)
			}
			if test.err != "" || err != nil {
				if err == nil || err.Error() != test.err {
					t.Errorf("error %v, want %s", err, test.err)
				}
				return
			}
			var pods, rejections []string
			for _, p := range got.Pods {
				pods = append(pods, p.Namespace+"/"+p.Name)
			}
			for _, r := range got.Rejections {
				rejections = append(rejections, r.Namespace+"/"+r.Pod)
			}
			if text := strings.Join(pods, " "); text != test.pods {
				t.Errorf("pods %s, want %s", text, test.pods)
			}
			if text := strings.Join(slices.Compact(rejections), " "); text != test.rejections {
				t.Errorf("rejections %s, want %s", text, test.rejections)
			}
		})
	}
}

// TestASelectionNamesNoOtherPods: memory that is not counted is shown with the pods that are selected.
func TestASelectionNamesNoOtherPods(t *testing.T) {
	all := busy(t)
	all.NotCounted = []NotCounted{{Namespace: "shop", Pod: "web-7d9c5b-x2x4l", Why: "no numa_stat"}, {Namespace: "batch", Pod: "legacy", Container: "app", Why: "no numa_stat"}}
	for name, test := range map[string]struct {
		only Selection
		want []NotCounted
	}{
		"all":         {Selection{}, all.NotCounted},
		"a namespace": {Selection{Namespace: "batch"}, all.NotCounted[1:]},
		"a pod":       {Selection{Pod: "shop/web-7d9c5b-x2x4l"}, all.NotCounted[:1]},
		"another pod": {Selection{Pod: "debug"}, []NotCounted{}},
	} {
		got, err := all.Select(test.only)
		if err != nil {
			t.Fatal(err)
		}
		if difference := cmp.Diff(test.want, got.NotCounted); difference != "" {
			t.Errorf("%s:\n%s", name, difference)
		}
	}
}

func TestOutputsOfASelection(t *testing.T) {
	for name, only := range map[string]Selection{"problems": {Problems: true}, "pod": {Pod: "default/database"}} {
		document, err := busy(t).Select(only)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		if err := document.Table(&text, false); err != nil {
			t.Fatal(err)
		}
		golden(t, "busy."+name+".txt", text.String())
		golden(t, "busy."+name+".json", asJSON(t, document))
	}
}

// Each kind of problem keeps its container, or what else it is about, and nothing else does.
func TestProblems(t *testing.T) {
	value := func(v uint64) *uint64 { return &v }
	memory := func(bytes uint64) memorymanager.Request {
		return memorymanager.Request{{Type: memorymanager.Memory, Bytes: bytes}}
	}
	running := func(name string) Container {
		return Container{ContainerView: ledger.ContainerView{Name: name}, State: Running}
	}
	container := func(change func(*Container)) func(*Document) {
		return func(d *Document) { change(&d.Pods[0].Containers[0]) }
	}
	for name, test := range map[string]struct {
		change func(*Document)
		want   string // in the table
	}{
		"none":           {func(*Document) {}, "no problems"},
		"request source": {func(d *Document) { d.RequestSources = []Source{{Source: "kubelet", Problem: "gone"}} }, "no problems"},
		"condition":      {func(d *Document) { d.Conditions[0].OK = false }, "NOT READY: connected"},
		"device source":  {func(d *Document) { d.DeviceSources = []Source{{Source: "resourceslice", Problem: "gone"}} }, "device source resourceslice cannot be read (gone)"},
		"deficit":        {func(d *Document) { d.Nodes[0].Available.Deficit = 1 << 30 }, "LACKS 1Gi"},
		"overwritten":    {func(d *Document) { d.Ancestors[0].RealMin = value(1) }, "overwritten or not yet written"},
		"annotation":     {func(d *Document) { d.Pods[0].Problems = []string{"wrong"} }, "IGNORED ANNOTATIONS\na/web: wrong"},
		"rejection": {func(d *Document) {
			d.Rejections = []ledger.Rejection{{Namespace: "a", Pod: "web", Container: "app", Text: "no room"}}
		}, "REJECTED OR UNPINNED"},
		"rejected":               {container(func(c *Container) { c.State = Rejected }), "app (rejected)"},
		"unpinned":               {container(func(c *Container) { c.Unplaced = "no room" }), "app (unpinned)"},
		"pending resize":         {container(func(c *Container) { c.PendingResize = memory(1) }), "PENDING RESIZES"},
		"not moved":              {container(func(c *Container) { c.Migration = &Migration{State: Blocked} }), "MEMORY ON OTHER NODES"},
		"moved":                  {container(func(c *Container) { c.Migration = &Migration{State: Moved} }), "no problems"},
		"stopped":                {container(func(c *Container) { c.Stopped = true }), "STOPPED"},
		"raised":                 {container(func(c *Container) { c.Raised = 2 << 30 }), "→2Gi"},
		"throttled at some time": {container(func(c *Container) { c.Usage = &Usage{HighEvents: 3} }), "no problems"},
		"no memory policy":       {container(func(c *Container) { c.NoPolicy = "the runtime applies none" }), "a/web  app"},
		"above its claim":        {container(func(c *Container) { c.Claimed = memory(1) }), "a/web  app"},
		"within its claim":       {container(func(c *Container) { c.Claimed = memory(2 << 30) }), "no problems"},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Document{
				Conditions: []ledger.Condition{{Name: "connected", OK: true}}, RequestSources: []Source{{Source: "kubelet", Connected: true}},
				DeviceSources: []Source{{Source: "resourceslice", Connected: true}}, Overwrites: []Overwrite{{Level: "pod", File: "memory.min", Count: 1}},
				Nodes: []Node{{NodeState: memorymanager.NodeState{Cells: nodeset.Of(0), Memory: []memorymanager.TypeTable{
					{Type: memorymanager.Memory, Table: memorymanager.Table{Total: 1 << 30}}}}, Available: &Available{}}},
				Ancestors: []Ancestor{{Cgroup: "kubepods", Min: value(1 << 30), RealMin: value(1 << 30)}},
				Pods: []Pod{
					{PodView: ledger.PodView{Namespace: "a", Name: "web"}, Containers: []Container{running("app"), running("fine")}},
					{PodView: ledger.PodView{Namespace: "b", Name: "fine"}, Containers: []Container{running("app")}},
				},
			}
			d.Pods[0].Containers[0].Limit, d.Pods[0].Containers[0].High = 1<<30, value(1<<20)
			test.change(d)
			selected, err := d.Select(Selection{Problems: true})
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			if err := selected.Table(&text, false); err != nil {
				t.Fatal(err)
			}
			_, shown, _ := strings.Cut(text.String(), "\n") // the version and the runtime
			if !strings.Contains(shown, test.want) || strings.Contains(shown, "fine") || strings.Contains(shown, "no pods") {
				t.Errorf("want %q and nothing that is fine in\n%s", test.want, shown)
			}
			if test.want != "no problems" && strings.Contains(shown, "no problems") {
				t.Errorf("the problem is said to be none:\n%s", shown)
			}
		})
	}
}

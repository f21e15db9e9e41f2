package status

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

const mib = 1 << 20

func TestWhatEndsThrottling(t *testing.T) {
	formula := memoryqos.Formula{Factor: 0.5, Top: 1000 * mib}
	for _, c := range []struct {
		name               string
		fixed, high, limit uint64
		formula            memoryqos.Formula
		want               string
	}{
		{"page cache", 600 * mib, 800 * mib, 1000 * mib, formula,
			"600Mi of it cannot be reclaimed, the rest is page cache, which a larger request or limit would leave it more of"},
		{"a heap", 800 * mib, 800 * mib, 1000 * mib, formula,
			"800Mi of it cannot be reclaimed: a request of 760Mi puts memory.high at 880Mi; the annotation throttling-factor: 1, or memory-high: off, without one"},
		{"a heap that needs its limit", 950 * mib, 800 * mib, 1000 * mib, formula, "950Mi of it cannot be reclaimed: raise its limit"},
		{"a memory.high of the pod's own", 800 * mib, 800 * mib, 1000 * mib, memoryqos.Formula{},
			"800Mi of it cannot be reclaimed: the annotation memory-high with more, or off"},
		{"no limit", 800 * mib, 800 * mib, 0, memoryqos.Formula{Factor: 0.5, Top: 1500 * mib},
			"800Mi of it cannot be reclaimed: a request of 260Mi puts memory.high at 880Mi; the annotation throttling-factor: 1, or memory-high: off, without one"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := helps(c.fixed, c.high, c.limit, c.formula); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestThrottlingIsReadFromTheKernel(t *testing.T) {
	root := t.TempDir()
	cgroups.Fill(t, filepath.Join(root, "kubepods"), map[string]string{
		"app/memory.current":     "838860800\n",
		"app/memory.stat":        "anon 800\nactive_file 52428800\ninactive_file 52428800\n",
		"app/memory.events":      "low 0\nhigh 431\nmax 0\n",
		"app/memory.pressure":    "some avg10=0.00 avg60=0.00 avg300=3.12 total=41250000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12000000\n",
		"quiet/memory.events":    "low 0\nhigh 0\nmax 0\n",
		"old/memory.current":     "838860800\n", // a kernel without pressure
		"old/memory.stat":        "anon 838860800\n",
		"old/memory.events":      "low 0\nhigh 2\nmax 0\n",
		"broken/memory.events":   "low 0\nhigh 2\nmax 0\n",
		"unlimited/memory.stat":  "anon 1\n",
		"unlimited/memory.event": "high 1\n",
	})
	tree, err := cgroupfs.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	high := uint64(900 * mib)
	explanation := func(name string, set *uint64) *ledger.Explanation {
		c := ledger.ContainerView{State: ledger.Running, Cgroup: "kubepods/" + name, Limit: 1000 * mib}
		c.High = set
		return &ledger.Explanation{Container: c}
	}
	s := Sources{Tree: tree}
	want := &Throttling{HighEvents: 431, Waited: 41.25, Stopped: 12, Lately: 3.12, Fixed: 700 * mib,
		Helps: "700Mi of it cannot be reclaimed, the rest is page cache, which a larger request or limit would leave it more of"}
	got := s.throttling(explanation("app", &high))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	const text = "memory.high was reached 431 times since it started; processes waited 41.3s for memory, all of them 12s, in the last five minutes 3.12 % of the time"
	if got.String() != text {
		t.Errorf("got  %s\nwant %s", got, text)
	}
	if got := s.throttling(explanation("old", &high)); got == nil || got.HighEvents != 2 || got.Waited != 0 {
		t.Errorf("without pressure: %+v", got)
	}
	for name, e := range map[string]*ledger.Explanation{"never reached": explanation("quiet", &high), "ended": explanation("broken", &high), "no memory.high": explanation("app", nil)} {
		if got := s.throttling(e); got != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

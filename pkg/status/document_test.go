package status

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

func TestAncestorsAreComparedAsTheKernelRounds(t *testing.T) {
	bytes := func(n uint64) *uint64 { return &n }
	for name, test := range map[string]struct {
		wanted memoryqos.Values
		files  map[string]string
		want   Ancestor
		says   string // the last column of the table
	}{
		"rounded down by the kernel": {
			memoryqos.Values{Min: bytes(10000001), Low: bytes(100000000)}, map[string]string{"memory.min": "9998336", "memory.low": "99999744"},
			Ancestor{Min: bytes(9998336), Low: bytes(99999744), RealMin: bytes(9998336), RealLow: bytes(99999744)}, "the same",
		},
		"kept to the byte by a folder": {
			memoryqos.Values{Min: bytes(10000001)}, map[string]string{"memory.min": "10000001", "memory.low": "0"},
			Ancestor{Min: bytes(10000001), RealMin: bytes(10000001), RealLow: bytes(0)}, "the same",
		},
		"a page less": {
			memoryqos.Values{Min: bytes(10000001)}, map[string]string{"memory.min": "9994240", "memory.low": "0"},
			Ancestor{Min: bytes(9998336), RealMin: bytes(9994240), RealLow: bytes(0)}, "9.531Mi, 0: overwritten or not yet written",
		},
		"not to be read": {
			memoryqos.Values{Min: bytes(10000001)}, map[string]string{"memory.min": "many", "memory.low": "0"},
			Ancestor{Min: bytes(9998336), RealLow: bytes(0)}, "the same",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.Mkdir(filepath.Join(root, "kubepods"), 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range test.files {
				if err := os.WriteFile(filepath.Join(root, "kubepods", file), fmt.Appendln(nil, text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			tree, err := cgroupfs.Open(root, cgroupfs.Plain())
			if err != nil {
				t.Fatal(err)
			}
			defer tree.Close()
			view := &ledger.View{Ancestors: []cgroup.Target{{Cgroup: "kubepods", Level: cgroup.LevelKubepods, Values: test.wanted}}}
			view.Config.QoS.PageSize = 4096
			document := Sources{View: func() *ledger.View { return view }, Tree: tree}.Make()
			test.want.Cgroup, test.want.Level = "kubepods", cgroup.LevelKubepods
			if difference := cmp.Diff([]Ancestor{test.want}, document.Ancestors); difference != "" {
				t.Error(difference)
			}
			var text strings.Builder
			if err := document.Table(&text, false); err != nil || !strings.Contains(text.String(), "  "+test.says+"\n") {
				t.Errorf("%v; want %q in\n%s", err, test.says, text.String())
			}
		})
	}
}

// The parents of the pods are the view's, each with its own sums.
func TestLevelsAboveThePods(t *testing.T) {
	view := &ledger.View{}
	view.Config.QoS.PageSize = 1
	want := []string{"kubepods kubepods 1", "burstable kubepods/burstable 2", "system kubepods/system 3", "burstable kubepods/system/burstable 4"}
	for i, path := range []string{"kubepods", "kubepods/burstable", "kubepods/system", "kubepods/system/burstable"} {
		low := uint64(i + 1)
		view.Ancestors = append(view.Ancestors, cgroup.Target{Cgroup: path, Level: cgroup.LevelOf(path), Values: memoryqos.Values{Low: &low}})
	}
	for n := range len(want) + 1 {
		shown := *view
		shown.Ancestors = view.Ancestors[:n]
		got := []string{}
		for _, a := range (Sources{View: func() *ledger.View { return &shown }}).Make().Ancestors {
			got = append(got, fmt.Sprint(a.Level, " ", a.Cgroup, " ", *a.Low))
		}
		if difference := cmp.Diff(want[:n], got); difference != "" {
			t.Error(difference)
		}
	}
}

func TestClaimsThatAreTurnedOff(t *testing.T) {
	for ending, want := range map[bool]string{
		false: "RESOURCE CLAIMS\n",
		true:  "RESOURCE CLAIMS   (turned off: nothing is published; restart the plugin once no pod has a claim)\n",
	} {
		view := &ledger.View{}
		view.Config.Config.DRA.Enabled, view.Config.Config.DRA.Ending = true, ending
		var text strings.Builder
		document := Sources{View: func() *ledger.View { return view }}.Make()
		if err := document.Table(&text, false); err != nil || !strings.Contains(text.String(), want) {
			t.Errorf("%v; want %q in\n%s", err, want, text.String())
		}
	}
}

// TestTheKubeletsFileIsFoundFromAnywhere: verify reads it, in another working folder than the daemon's.
func TestTheKubeletsFileIsFoundFromAnywhere(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubelet.yaml"), []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	view := &ledger.View{}
	var err error
	if view.Config.Config, err = config.Files(os.ReadFile).Parse(filepath.Join(dir, "config.yaml"), []byte("kubeletConfig: kubelet.yaml\n")); err != nil {
		t.Fatal(err)
	}
	got := Sources{View: func() *ledger.View { return view }}.Make().Policy.KubeletConfig
	if want := filepath.Join(dir, "kubelet.yaml"); got != want {
		t.Errorf("the document has %q, want %q", got, want)
	}
}

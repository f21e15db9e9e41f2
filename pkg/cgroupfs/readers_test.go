package cgroupfs

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
)

// kernelFiles are as a kernel 6.12 writes them, shortened.
var kernelFiles = map[string]string{
	"kubepods/pod1/memory.events":    "low 1\nhigh 309\nmax 2\noom 3\noom_kill 4\noom_group_kill 5\nsock_throttled 6\n",
	"kubepods/pod1/memory.stat":      "anon 1048576\nfile 4096\nworkingset_refault_anon 7\n",
	"kubepods/pod1/memory.numa_stat": "anon N0=4096 N1=0\nfile N0=0 N1=8192\ninactive_file N0=0 N1=4096\nslab_unreclaimable N0=2 N1=0\n",
	"kubepods/pod1/memory.pressure": "some avg10=53.10 avg60=12.00 avg300=1.50 total=123456\n" +
		"full avg10=50.00 avg60=11.00 avg300=1.25 total=120000\n",
	"kubepods/pod1/cgroup.events": "populated 1\nfrozen 0\n",
	"kubepods/pod2/":              "",
}

func TestKernelFilesAreRead(t *testing.T) {
	tree := makeTree(t, kernelFiles)
	const cgroup = "kubepods/pod1"
	check := func(name string, got any, err error, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
	events, err := tree.Events(cgroup)
	check("memory.events", events, err, Events{Low: 1, High: 309, Max: 2, OOM: 3, OOMKill: 4, OOMGroupKill: 5})
	stat, err := tree.Stat(cgroup)
	check("memory.stat", stat, err, map[string]uint64{"anon": 1048576, "file": 4096, "workingset_refault_anon": 7})
	numa, err := tree.NUMAStat(cgroup)
	check("memory.numa_stat", numa, err, map[string]map[int]uint64{"anon": {0: 4096, 1: 0}, "file": {0: 0, 1: 8192}, "inactive_file": {0: 0, 1: 4096}, "slab_unreclaimable": {0: 2, 1: 0}})
	pages, err := tree.Pages(cgroup)
	check("memory.numa_stat", pages, err, map[int]NodePages{0: {Resident: 4096 + 2}, 1: {Resident: 8192, File: 4096}})
	pressure, ok, err := tree.Pressure(cgroup)
	check("memory.pressure", pressure, err, Pressure{
		Some: PressureLine{Avg10: 53.1, Avg60: 12, Avg300: 1.5, Total: 123456},
		Full: PressureLine{Avg10: 50, Avg60: 11, Avg300: 1.25, Total: 120000},
	})
	check("there is pressure", ok, nil, true)
	populated, err := tree.Populated(cgroup)
	check("cgroup.events", populated, err, true)
}

func TestMissingOptionalFilesAreNoError(t *testing.T) {
	tree := makeTree(t, kernelFiles)
	if s, err := tree.NUMAStat("kubepods/pod2"); s != nil || err != nil {
		t.Errorf("memory.numa_stat: %v, %v", s, err)
	}
	if p, err := tree.Pages("kubepods/pod2"); p != nil || !errors.Is(err, ErrNoNUMAStat) {
		t.Errorf("pages: %v, %v", p, err)
	}
	if p, ok, err := tree.Pressure("kubepods/pod2"); p != (Pressure{}) || ok || err != nil {
		t.Errorf("memory.pressure: %v, %v, %v", p, ok, err)
	}
	// A missing cgroup is one.
	_, err1 := tree.Populated("kubepods/pod3")
	_, err2 := tree.NUMAStat("kubepods/pod3")
	_, _, err3 := tree.Pressure("kubepods/pod3")
	_, err4 := tree.Events("kubepods/pod2")
	_, err5 := tree.Stat("kubepods/pod2")
	_, err6 := tree.Populated("kubepods/pod2")
	_, err7 := tree.EffectiveMems("kubepods/pod2")
	for i, err := range []error{err1, err2, err3, err4, err5, err6, err7} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%d: %v", i+1, err)
		}
	}
}

func TestDamagedKernelFilesAreNamed(t *testing.T) {
	tree := makeTree(t, map[string]string{
		"kubepods/memory.events": "low\n", "kubepods/memory.stat": "\nanon -1\n", "kubepods/memory.numa_stat": "\nanon N0=1 0=1\n",
		"kubepods/memory.pressure": "\nhalf avg10=1\nsome avg10=x\n", "kubepods/cgroup.events": "populated\n",
	})
	_, err1 := tree.Events("kubepods")
	_, err2 := tree.Stat("kubepods")
	_, err3 := tree.NUMAStat("kubepods")
	_, _, err4 := tree.Pressure("kubepods")
	_, err5 := tree.Populated("kubepods")
	for want, err := range map[string]error{
		`memory.events: line "low": want a name and a number`:                     err1,
		`memory.stat: line "anon -1": want a name and a number`:                   err2,
		`memory.numa_stat: line "anon N0=1 0=1": want N<node>=<bytes>, not "0=1"`: err3,
		`memory.pressure: line "some avg10=x": avg10 is "x", want a number`:       err4,
		`cgroup.events: line "populated": want a name and a number`:               err5,
	} {
		if err == nil || err.Error() != "parse "+tree.Root()+"/kubepods/"+want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestReclaimAsksTheKernelOnce(t *testing.T) {
	tree := makeTree(t, map[string]string{"kubepods/pod1/memory.reclaim": "", "kubepods/pod2/": ""})
	if err := tree.Reclaim("kubepods/pod1", 4096); err != nil || content(t, tree, "kubepods/pod1/memory.reclaim") != "4096" {
		t.Errorf("got %v", err)
	}
	if err := tree.ReclaimCache("kubepods/pod1", 8192); err != nil || content(t, tree, "kubepods/pod1/memory.reclaim") != "8192 swappiness=0" {
		t.Errorf("page cache alone: %v", err)
	}
	if err := tree.Reclaim("kubepods/pod2", 4096); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a kernel without it: %v", err)
	}
	if err := tree.Reclaim("system.slice", 4096); err == nil {
		t.Error("reclaimed outside kubepods")
	}
}

func TestReclaimThatFindsLessSaysSo(t *testing.T) {
	for err, want := range map[error]error{
		unix.EAGAIN: ErrReclaimedLess, unix.EINTR: ErrReclaimedLess, unix.ENODEV: fs.ErrNotExist, unix.EINVAL: unix.EINVAL,
	} {
		if got := New("cgroups", answering{err: err}).Reclaim("kubepods", 4096); !errors.Is(got, want) {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

func TestOnlyPureCgroupV2WillDo(t *testing.T) {
	root := t.TempDir()
	cgroups.Fill(t, root, map[string]string{
		"v1/memory/memory.limit_in_bytes": "", "hybrid/unified/cgroup.controllers": "", "hybrid/memory/memory.limit_in_bytes": "", "other/": "",
	})
	for dir, want := range map[string]string{
		"v1": "it is cgroup v1: Memory QoS needs cgroup v2", "hybrid": "it is a hybrid of cgroup v1 and v2",
		"other": "it is no cgroup v2 file system", "absent": "no such file or directory",
	} {
		err := RequireUnified(root + "/" + dir)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), root+"/"+dir+" is not usable: ") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestControllersAreRequired(t *testing.T) {
	root := t.TempDir()
	cgroups.Fill(t, root, map[string]string{
		"all/cgroup.controllers": "cpuset cpu io memory pids\n", "none/": "",
		"nocpuset/cgroup.controllers": "cpu io memory\n", "nomemory/cgroup.controllers": "\n",
	})
	for dir, want := range map[string]string{
		"all": "", "none": "no such file", "nocpuset": `the controller cpuset is missing in cgroup.controllers "cpu io memory"`,
		"nomemory": `the controller memory is missing in cgroup.controllers ""`,
	} {
		err := requireControllers(root + "/" + dir)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %s", dir, err, want)
		}
	}
}

// fuzzParser feeds a parser with the kernel's files and whatever the fuzzer makes of them: it must not panic, and must not
// answer beside an error.
func fuzzParser[T any](f *testing.F, parse func(string) (T, error), empty func(T) bool) {
	for _, text := range kernelFiles {
		f.Add(text)
	}
	f.Add("max")
	f.Add("anon =")
	f.Fuzz(func(t *testing.T, text string) {
		if v, err := parse(text); err != nil && !empty(v) {
			t.Errorf("%q: %v beside %v", text, v, err)
		}
	})
}

func FuzzParseEvents(f *testing.F) {
	fuzzParser(f, parseEvents, func(e Events) bool { return e == Events{} })
}

func FuzzParseStat(f *testing.F) {
	fuzzParser(f, parseFlat, func(m map[string]uint64) bool { return m == nil })
}

func FuzzParseNUMAStat(f *testing.F) {
	fuzzParser(f, parseNUMAStat, func(m map[string]map[int]uint64) bool { return m == nil })
}

func FuzzParsePressure(f *testing.F) {
	fuzzParser(f, parsePressure, func(p Pressure) bool { return p == Pressure{} })
}

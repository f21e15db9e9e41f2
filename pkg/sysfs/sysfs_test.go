package sysfs

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/cpuset"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/deficit"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

const fixtures = "../../testdata/machines/"

// unpack writes a fixture, a text archive of files after "-- path --" lines, into a folder.
func unpack(t *testing.T, archive string) string {
	t.Helper()
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for part := range strings.SplitSeq("\n"+string(data), "\n-- ") {
		name, text, isFile := strings.Cut(part, " --\n")
		if isFile {
			write(t, filepath.Join(root, name), text+"\n")
		}
	}
	return root
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestTreeAndFileTellTheSameMachine: each fixture is there as the kernel shows it and as a person writes it.
func TestTreeAndFileTellTheSameMachine(t *testing.T) {
	for _, name := range []string{"task-page", "four-unequal", "eight-socket", "power9"} {
		t.Run(name, func(t *testing.T) {
			tree, err := Load(unpack(t, fixtures+name+".txtar"))
			if err != nil {
				t.Fatal(err)
			}
			file, err := Load(fixtures + name + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			if tree.PageSize != os.Getpagesize() {
				t.Errorf("page size of this machine = %d, want %d", tree.PageSize, os.Getpagesize())
			}
			tree.PageSize = file.PageSize
			if diff := cmp.Diff(tree, file, sameCPUs); diff != "" {
				t.Errorf("(-tree +file):\n%s", diff)
			}
			text, err := machine.Description{Machine: tree}.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			marshaled, err := machine.Describe("marshaled", text)
			if diff := cmp.Diff(tree, marshaled.Machine, sameCPUs); diff != "" || err != nil {
				t.Errorf("%v (-tree +marshaled):\n%s", err, diff)
			}
		})
	}
}

// Copies of sysfs, as hwloc keeps them: without the file online, and with NUL bytes behind what a file says.
func TestACopyOfSysfsIsTheSameMachine(t *testing.T) {
	for _, name := range []string{"task-page", "four-unequal", "eight-socket", "power9"} {
		root := unpack(t, fixtures+name+".txtar")
		want, err := Load(root)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(root + "/sys/devices/system/node/online"); err != nil {
			t.Fatal(err)
		}
		if err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, append(bytes.TrimSpace(text), 0, 0), 0o644)
		}); err != nil {
			t.Fatal(err)
		}
		got, err := Load(root)
		if diff := cmp.Diff(want, got, sameCPUs); diff != "" || err != nil {
			t.Errorf("%s: %v (-sysfs +copy):\n%s", name, err, diff)
		}
	}
}

func TestTaskPageMachineToTheByte(t *testing.T) {
	m, err := Load(fixtures + "task-page.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if m.Nodes[0].Memory != 134987354112 || m.Nodes[1].Memory != 135286722560 || m.MemTotal != 134987354112+135286722560 {
		t.Errorf("memory = %d, %d, sum %d", m.Nodes[0].Memory, m.Nodes[1].Memory, m.MemTotal)
	}
	if got := m.Nodes[0].CPUs.Size(); got != 48 {
		t.Errorf("node 0 has %d CPUs, want 48", got)
	}
}

func TestNodesWithoutMemoryOrCPUsAndGapsAreKept(t *testing.T) {
	m, err := Load(unpack(t, fixtures+"four-unequal.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	want := []machine.Node{
		{ID: 0, Memory: 65805228 << 10, CPUs: cpus(t, "0-15"), Hugepages: []machine.Pool{{PageSize: 2 << 20, Count: 512}, {PageSize: 1 << 30, Count: 4}}, Distances: []int{10, 12, 24, 20}},
		{ID: 1, Memory: 131915592 << 10, CPUs: cpus(t, "16-31"), Hugepages: []machine.Pool{{PageSize: 2 << 20, Count: 1024}, {PageSize: 1 << 30, Count: 0}}, Distances: []int{12, 10, 24, 20}},
		{ID: 3, Memory: 263891044 << 10, Hugepages: []machine.Pool{{PageSize: 2 << 20, Count: 0}, {PageSize: 1 << 30, Count: 0}}, Distances: []int{24, 24, 10, 30}},
		{ID: 4, CPUs: cpus(t, "32-47"), Distances: []int{20, 20, 30, 10}},
	}
	if diff := cmp.Diff(want, m.Nodes, sameCPUs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if m.Swap != 8388604<<10 {
		t.Errorf("swap = %d, want %d", m.Swap, 8388604<<10)
	}
}

func cpus(t *testing.T, list string) cpuset.CPUSet {
	t.Helper()
	set, err := cpuset.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestSysfsWithoutProcTakesTheNodesSum(t *testing.T) {
	root := unpack(t, fixtures+"task-page.txtar")
	m, err := Load(filepath.Join(root, "sys"))
	if err != nil {
		t.Fatal(err)
	}
	if want := uint64(134987354112 + 135286722560); m.MemTotal != want || m.Swap != 0 {
		t.Errorf("MemTotal %d and swap %d, want %d and 0", m.MemTotal, m.Swap, want)
	}
}

func TestKernelWithoutNUMAIsOneNode(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/proc/meminfo", "MemTotal: 2048 kB\nSwapTotal: 0 kB\n")
	write(t, root+"/sys/devices/system/cpu/online", "0-3\n")
	write(t, root+"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n")
	m, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []machine.Node{{Memory: 2 << 20, CPUs: cpus(t, "0-3"), Hugepages: []machine.Pool{{PageSize: 2 << 20, Count: 0}}, Distances: []int{10}}}
	if diff := cmp.Diff(want, m.Nodes, sameCPUs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhatIsNoPoolIsSkipped(t *testing.T) {
	root := unpack(t, fixtures+"task-page.txtar")
	write(t, root+"/sys/devices/system/node/node0/hugepages/power/x", "")
	m, err := Load(root)
	if err != nil || len(m.Nodes[0].Hugepages) != 2 {
		t.Errorf("pools = %v, %v, want two", m.Nodes[0].Hugepages, err)
	}
}

func TestThisMachineIsRead(t *testing.T) {
	m, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Nodes) == 0 || m.MemTotal == 0 {
		t.Errorf("this machine = %+v", m)
	}
}

// TestDamagedTreeIsOneClearError replaces or removes ("-") one file of a good tree.
func TestDamagedTreeIsOneClearError(t *testing.T) {
	const node = "sys/devices/system/node/"
	tests := map[string]struct{ file, text, want string }{
		"no such folder":          {"", "", "machine: stat "},
		"proc without MemTotal":   {"proc/meminfo", "SwapTotal: 0 kB\n", "proc/meminfo: no MemTotal"},
		"proc with a wrong value": {"proc/meminfo", "MemTotal: x kB\n", `proc/meminfo: "x" is not a number of kB`},
		"proc with too much":      {"proc/meminfo", "MemTotal: 18446744073709551615 kB\n", `"18446744073709551615" is not a number of kB`},
		"proc without meminfo":    {"proc/meminfo", "-", "proc/meminfo: no such file or directory"},
		"online empty":            {node + "online", "\n", "online: no NUMA node is online"},
		"node 1024":               {node + "online", "0-1,1024\n", "node/online: node list \"0-1,1024\": node id 1024 is above 1023"},
		"online unreadable":       {node + "online/x", "", "online: is a directory"},
		"node gone":               {node + "online", "0,2\n", "node2/meminfo: no such file or directory"},
		"node without MemTotal":   {node + "node1/meminfo", "Node 1 MemFree: 1 kB\n", "node1/meminfo: no MemTotal"},
		"cpulist gone":            {node + "node0/cpulist", "-", "node0/cpulist: no such file or directory"},
		"cpulist wrong":           {node + "node0/cpulist", "0-x\n", `node0/cpulist: CPU list "0-x" is not in the form 0-3,8`},
		"CPUs on two nodes":       {node + "node1/cpulist", "1-3\n", "node1/cpulist: CPU 1-3 is on node 0 too"},
		"distance gone":           {node + "node0/distance", "-", "node0/distance: no such file or directory"},
		"distance wrong":          {node + "node0/distance", "10 -1\n", `node0/distance: "-1" is not a distance`},
		"distance short":          {node + "node0/distance", "10\n", "node0/distance: 1 distances for 2 online nodes"},
		"page size wrong":         {node + "node0/hugepages/hugepages-0kB/nr_hugepages", "1\n", `hugepages-0kB: "0kB" is not a page size`},
		"pages wrong":             {node + "node0/hugepages/hugepages-2048kB/nr_hugepages", "-1\n", `nr_hugepages: "-1" is not a number of pages`},
		"pages beyond":            {node + "node0/hugepages/hugepages-2048kB/nr_hugepages", "99999999999999\n", `nr_hugepages: "99999999999999" is not a number of pages`},
		"pages gone":              {node + "node0/hugepages/hugepages-2048kB/nr_hugepages", "-", "nr_hugepages: no such file or directory"},
		"pools are a file":        {node + "node0/hugepages", "", "node0/hugepages: not a directory"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root := unpack(t, fixtures+"task-page.txtar")
			path := filepath.Join(root, tc.file)
			switch {
			case tc.file == "":
				root = filepath.Join(root, "absent")
			case tc.text == "-":
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			default:
				// A file where a folder was, and a folder where a file was, take the old one's place.
				for _, old := range []string{path, filepath.Dir(path)} {
					if info, err := os.Stat(old); err == nil && info.IsDir() != (old != path) {
						if err := os.RemoveAll(old); err != nil {
							t.Fatal(err)
						}
					}
				}
				write(t, path, tc.text)
			}
			_, err := Load(root)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want it to contain %q", err, tc.want)
			}
		})
	}
}

func TestKernelWithoutNUMAAndWithDamage(t *testing.T) {
	for name, tc := range map[string]struct{ file, text, want string }{
		"no CPUs":     {"sys/x", "", "cpu/online: no such file or directory"},
		"wrong pools": {"sys/kernel/mm/hugepages/hugepages-xkB/nr_hugepages", "0", `"xkB" is not a page size`},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root+"/proc/meminfo", "MemTotal: 2048 kB\n")
			if name != "no CPUs" {
				write(t, root+"/sys/devices/system/cpu/online", "0\n")
			}
			write(t, filepath.Join(root, tc.file), tc.text)
			if _, err := Load(root); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want it to contain %q", err, tc.want)
			}
		})
	}
}

// sameCPUs compares sets of CPUs; the zero value and an empty set are the same.
var sameCPUs = cmp.Comparer(func(a, b cpuset.CPUSet) bool { return a.String() == b.String() })

func TestFreePages(t *testing.T) {
	root := unpack(t, fixtures+"task-page.txtar")
	m, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	pool := func(node string) string {
		return filepath.Join(root, "sys/devices/system/node", node, "hugepages/hugepages-2048kB/free_hugepages")
	}
	write(t, pool("node0"), "7\n")
	write(t, pool("node1"), "0\n")
	read := func(pageSize uint64, want string, bytes ...uint64) {
		t.Helper()
		got, err := FreePages(filepath.Join(root, "sys"), m, pageSize)
		text := ""
		if err != nil {
			text = strings.ReplaceAll(err.Error(), root, "ROOT")
		}
		var pages []memorymanager.FreePages
		for node, free := range bytes {
			pages = append(pages, memorymanager.FreePages{Node: node, Type: memorymanager.Hugepages(pageSize), Bytes: free})
		}
		if text != want || !cmp.Equal(got, pages) {
			t.Errorf("%v, %q, want %v, %q", got, text, pages, want)
		}
	}
	read(2<<20, "", 14<<20, 0)
	read(64<<10, "", 0, 0) // a size that the machine does not have
	write(t, pool("node1"), "many\n")
	read(2<<20, `read the free huge pages: ROOT/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages: "many" is not a number of pages`)
	write(t, pool("node1"), "9223372036854775807\n")
	read(2<<20, `read the free huge pages: ROOT/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages: "9223372036854775807" is not a number of pages`)
	if err := os.RemoveAll(filepath.Join(root, "sys/devices/system/node/node1/hugepages")); err != nil {
		t.Fatal(err)
	}
	read(2<<20, "read the free huge pages: stat ROOT/sys/devices/system/node/node1/hugepages: no such file or directory")

	root = t.TempDir() // a kernel without NUMA
	m = machine.Machine{Nodes: []machine.Node{{ID: 0}}}
	write(t, filepath.Join(root, "sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages"), "2\n")
	read(1<<30, "", 2<<30)
}

func TestMemInfo(t *testing.T) {
	root := t.TempDir()
	m := machine.Machine{Nodes: []machine.Node{{ID: 0, Memory: 1}, {ID: 1}, {ID: 3, Memory: 1}}} // node 1 has none to read
	for id, text := range map[string]string{"0": "Node 0 MemFree: 3 kB\nNode 0 Active(file): 1 kB\nNode 0 Inactive(file): 4 kB\n", "3": "Node 3 MemFree: 0 kB\n"} {
		folder := filepath.Join(root, "devices/system/node/node"+id)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "meminfo"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := MemInfo(root, m)
	if want := []deficit.MemInfo{{Node: 0, Free: 3 << 10, File: 5 << 10}, {Node: 3}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	m.Nodes[0].ID = 7
	if _, err := MemInfo(root, m); err == nil || !strings.HasPrefix(err.Error(), "read the memory of NUMA node 7: open ") {
		t.Errorf("a node that is not there: %v", err)
	}
	if err := os.WriteFile(filepath.Join(root, "devices/system/node/node3/meminfo"), []byte("Node 3 MemTotal: 1 kB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	m.Nodes = m.Nodes[2:]
	if _, err := MemInfo(root, m); err == nil || !strings.HasSuffix(err.Error(), "meminfo has no MemFree") {
		t.Errorf("a meminfo without MemFree: %v", err)
	}
}

func TestMemoryIsReadAgain(t *testing.T) {
	const node = "sys/devices/system/node/"
	tests := map[string]struct {
		file, text string // "-" removes it
		memory     [2]uint64
		pages      uint64 // of 2Mi on node 1
		err        string
	}{
		"nothing":            {"proc/meminfo", "MemTotal: 1 kB\n", [2]uint64{134987354112, 135286722560}, 0, ""},
		"memory plugged in":  {node + "node1/meminfo", "Node 1 MemTotal: 1048576 kB\n", [2]uint64{134987354112, 1 << 30}, 0, ""},
		"all of it offline":  {node + "node1/meminfo", "Node 1 MemTotal: 0 kB\n", [2]uint64{134987354112, 0}, 0, ""},
		"a pool resized":     {node + "node1/hugepages/hugepages-2048kB/nr_hugepages", "7\n", [2]uint64{134987354112, 135286722560}, 7, ""},
		"CPUs and distances": {node + "node1/cpulist", "\n", [2]uint64{134987354112, 135286722560}, 0, ""},
		"a node gone":        {node + "node1/meminfo", "-", [2]uint64{}, 0, "read the memory of the NUMA nodes again: open "},
		"a pool unreadable":  {node + "node1/hugepages/hugepages-2048kB/nr_hugepages", "x\n", [2]uint64{}, 0, `"x" is not a number of pages`},
		"a kernel without":   {"sys/devices/system/node", "-", [2]uint64{134987354112, 135286722560}, 0, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := unpack(t, fixtures+"task-page.txtar")
			was, err := Load(root)
			if err != nil {
				t.Fatal(err)
			}
			kept, err := Load(root)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(root, test.file)
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			if test.text != "-" {
				write(t, path, test.text)
			}
			now, err := Refresh(filepath.Join(root, "sys"), was)
			if diff := cmp.Diff(kept, was, sameCPUs); diff != "" {
				t.Errorf("the machine that was read again changed:\n%s", diff)
			}
			if err != nil || test.err != "" {
				if test.err == "" || err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want %q", err, test.err)
				}
				return
			}
			want := kept
			want.Nodes = slices.Clone(kept.Nodes)
			want.Nodes[1].Hugepages = slices.Clone(kept.Nodes[1].Hugepages)
			want.Nodes[0].Memory, want.Nodes[1].Memory, want.Nodes[1].Hugepages[0].Count = test.memory[0], test.memory[1], test.pages
			if diff := cmp.Diff(want, now, sameCPUs); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if same := cmp.Equal(kept, want, sameCPUs); now.SameMemory(was, 0) != same {
				t.Errorf("the same memory: %v, want %v", !same, same)
			}
			away := max(want.Nodes[1].Memory, kept.Nodes[1].Memory) - min(want.Nodes[1].Memory, kept.Nodes[1].Memory)
			if away > 0 && (!now.SameMemory(was, away) || now.SameMemory(was, away-1)) {
				t.Errorf("%d bytes are not the bound of a tolerance", away)
			}
		})
	}
}

func TestDescribeReadsTheCoresFromSysfs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"node/online": "0\n", "node/node0/meminfo": "Node 0 MemTotal: 1048576 kB\n", "node/node0/cpulist": "0-4\n", "node/node0/distance": "10\n",
		"cpu/cpu0/topology/thread_siblings_list": "0,2\n", "cpu/cpu2/topology/thread_siblings_list": "0,2\n",
		"cpu/cpu1/topology/thread_siblings_list": "1,3\n", "cpu/cpu3/topology/thread_siblings_list": "1,3\n", // nothing about CPU 4
	} {
		path := filepath.Join(dir, "devices/system", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Describe(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[int]int{0: 0, 2: 0, 1: 1, 3: 1}, got.Cores); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMachineFileThatCannotBeRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket") // which is no folder, and cannot be opened
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, err = Load(path)
	if err == nil || !strings.HasPrefix(err.Error(), "read the machine file: open ") {
		t.Errorf("error = %v", err)
	}
}

// FuzzMeminfo: any text is read or refused.
func FuzzMeminfo(f *testing.F) {
	f.Add("MemTotal: 131823588 kB\nHugePages_Total: 0\n")
	f.Add("Node 0 MemTotal:       131823588 kB\n")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "meminfo")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		info, err := readMeminfo(path)
		for name, bytes := range info {
			if err == nil && bytes%1024 != 0 {
				t.Errorf("%s = %d", name, bytes)
			}
		}
	})
}

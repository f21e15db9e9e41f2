package world

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// minFree is vm.min_free_kbytes in bytes, as a kernel with huge pages sets it.
const minFree = 67584 << 10

// nodeStats are counters of the machine.
type nodeStats struct {
	allocstall uint64
	kswapd     uint64 // bytes
	kswapdLeft uint64 // bytes in this second
}

// versionOf reads 6.12.95-amd64.
func versionOf(release string) (v [2]int, patch int) {
	_, _ = fmt.Sscanf(release, "%d.%d.%d", &v[0], &v[1], &patch)
	return v, patch
}

func (k *Kernel) atLeast(major, minor int) bool {
	return k.version[0] > major || k.version[0] == major && k.version[1] >= minor
}

const (
	nodes = "sys/devices/system/node/"
	pools = "/hugepages/hugepages-2048kB/"
)

// fixed are the files of proc and sys that do not change while the machine runs.
func (k *Kernel) fixed() map[string]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	files := map[string]string{
		"proc/sys/kernel/random/boot_id":   "5e8fd1a0-0000-4000-8000-000000000001\n",
		"proc/sys/kernel/osrelease":        k.machine.Kernel + "\n",
		"proc/sys/vm/min_free_kbytes":      fmt.Sprintln(minFree >> 10),
		"proc/self/mounts":                 "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime," + k.mount + " 0 0\n",
		"sys/kernel/mm/lru_gen/enabled":    map[bool]string{false: "0x0000\n", true: "0x0007\n"}[k.multiGen()],
		"sys/fs/xfs/vda1/log/log_head_lsn": "1:0\n",
	}
	var online nodeset.Set
	cpu := 0
	for id, node := range k.machine.Nodes {
		online = online.Union(nodeset.Of(id))
		var distances []string
		for other, o := range k.machine.Nodes {
			distance := "21"
			switch {
			case id == other:
				distance = "10"
			case node.Near != nil && *node.Near == other, o.Near != nil && *o.Near == id:
				distance = "12"
			}
			distances = append(distances, distance)
		}
		folder := nodes + fmt.Sprintf("node%d", id)
		files[folder+"/distance"] = strings.Join(distances, " ") + "\n"
		files[folder+"/cpulist"] = "\n"
		if node.CPUs > 0 {
			files[folder+"/cpulist"] = fmt.Sprintf("%d-%d\n", cpu, cpu+node.CPUs-1)
			cpu += node.CPUs
		}
		files[folder+pools+"nr_hugepages"] = fmt.Sprintln(node.Hugepages)
	}
	files[nodes+"online"] = online.String() + "\n"
	files["sys/devices/system/cpu/online"] = fmt.Sprintf("0-%d\n", cpu-1)
	return files
}

// measured are those that do.
func (k *Kernel) measured() map[string]string {
	files := map[string]string{}
	var size, free, outside, huge uint64
	for id, node := range k.machine.Nodes {
		size, free, outside, huge = size+node.Memory, free+k.free(id), outside+node.Outside, huge+node.Hugepages
		of := k.top.all[id : id+1]
		folder := nodes + fmt.Sprintf("node%d", id)
		files[folder+pools+"free_hugepages"] = fmt.Sprintln(k.hugeFree[id])
		files[folder+"/meminfo"] = lines(fmt.Sprintf("Node %d ", id),
			"MemTotal", node.Memory, "MemFree", k.free(id), "MemUsed", node.Memory-k.free(id),
			"Active(file)", sumOf(of, []kind{active}), "Inactive(file)", sumOf(of, []kind{inactive, dirty}), "Dirty", sumOf(of, []kind{dirty}),
			"FilePages", sumOf(of, []kind{inactive, active, dirty, shmem}), "AnonPages", sumOf(of, []kind{anon})+node.Outside, "Shmem", sumOf(of, []kind{shmem}),
			"SUnreclaim", sumOf(of, []kind{slab})) + fmt.Sprintf("Node %d HugePages_Total: %d\nNode %d HugePages_Free: %d\n", id, node.Hugepages, id, k.hugeFree[id])
	}
	t := &k.top.memory
	cache := t.total(inactive, active, dirty)
	// mm/show_mem.c, si_mem_available: without the low watermarks, and half of the page cache or the low watermark at most.
	low := uint64(minFree + minFree/4)
	available := less(free, minFree) + less(cache, min(cache/2, low))
	files["proc/meminfo"] = lines("", "MemTotal", size, "MemFree", free, "MemAvailable", available, "Buffers", 0, "Cached", cache+t.total(shmem), "SwapCached", 0,
		"Active(file)", t.total(active), "Inactive(file)", t.total(inactive, dirty), "SwapTotal", k.machine.Swap, "SwapFree", k.swapFree,
		"Dirty", t.total(dirty), "Writeback", 0, "AnonPages", t.total(anon)+outside, "Shmem", t.total(shmem), "SUnreclaim", t.total(slab), "KernelStack", 0, "PageTables", 0,
		"Hugepagesize", hugePage, "Hugetlb", huge*hugePage)
	files["proc/vmstat"] = fmt.Sprintf("nr_free_pages %d\npgsteal_kswapd %d\nallocstall_dma 0\nallocstall_normal %d\nallocstall_movable 0\n", free/page, k.stats.kswapd/page, k.stats.allocstall)
	return files
}

// lines are those of a meminfo, of names and bytes.
func lines(before string, pairs ...any) string {
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		var bytes uint64
		switch v := pairs[i+1].(type) {
		case uint64:
			bytes = v
		case int:
			bytes = uint64(v)
		}
		b.WriteString(before + pairs[i].(string) + ": " + strconv.FormatUint(bytes>>10, 10) + " kB\n")
	}
	return b.String()
}

// save writes what has changed. A reader finds the old file or the new one.
func (k *Kernel) save(files map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := files[name]
		if k.files[name] == text {
			continue
		}
		path := filepath.Join(k.root, name)
		if k.files[name] == "" {
			must(os.MkdirAll(filepath.Dir(path), 0o755))
		}
		must(os.WriteFile(path+".new", []byte(text), 0o644))
		must(os.Rename(path+".new", path))
		k.files[name] = text
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

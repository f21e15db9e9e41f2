package cases

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// writerBound is how long a writer may take before it counts as standing.
const writerBound = time.Minute

// writers is a cell of the table: containers that hold a share of their limit as heap and write a file.
type writers struct {
	kind     string // of the file system
	speed    int    // of the disk, in MB a second
	limit    uint64
	heap     uint64 // percent of the limit
	chunk    uint64 // bytes of a write()
	runs     int
	file     origin
	files    int    // written one after another
	kernels  string // where this cell is tried
	withHigh uint64 // memory.high in percent of the limit
	min      uint64 // memory.min in percent of the limit, of the container and the cgroups above it
}

// origin is where a file comes from that a container writes: the kernel counts what is dirty in it against the cgroup that dirtied it
// first (fs/fs-writeback.c, inode_attach_wb), and slows down who has too much of that.
type origin string

const (
	own     origin = "its own"       // it makes the file
	nodes   origin = "the node's"    // the node has dirtied it just before
	earlier origin = "another run's" // a container that has ended wrote it, and this one overwrites it
)

// TestPageCacheKills logs a table: of containers that write files three times as large as their limit to a slow disk, how many
// are killed, with memory.high unset and at 90 % of the limit. Pages that are not written to the disk yet cannot be reclaimed.
// No plugin runs: it is the kernel that is measured.
func TestPageCacheKills(t *testing.T) {
	k := criOf(t)
	t.Logf("kernel %s", file("/proc/sys/kernel/osrelease"))
	t.Log("| filesystem, disk | limit | heap | write() | files | memory.min | memory.high | killed | stand after a minute | seconds of those that ended | full stall | MB/s |")
	for _, w := range []writers{
		{"xfs", 20, 64 * MiB, 0, MiB, 10, nodes, 1, "trixie 6.12 6.1 testing", 90, 0},
		{"xfs", 20, 64 * MiB, 0, MiB, 10, own, 1, "trixie 6.12", 90, 98},
		{"xfs", 20, 64 * MiB, 0, MiB, 6, earlier, 1, "trixie", 90, 0},
		{"xfs", 20, 64 * MiB, 0, MiB, 6, own, 12, "trixie", 90, 0},
		{"xfs", 20, 64 * MiB, 0, MiB, 10, own, 1, "6.12", 90, 0},
		{"xfs", 20, 64 * MiB, 0, MiB, 2, own, 1, "trixie 6.1 testing", 90, 0},
		{"xfs", 20, 64 * MiB, 50, MiB, 4, own, 1, "trixie 6.12 6.1 testing", 90, 0},
		{"xfs", 20, 64 * MiB, 50, MiB, 4, nodes, 1, "trixie 6.12 6.1 testing", 90, 0},
		{"xfs", 20, 64 * MiB, 90, MiB, 2, own, 1, "trixie 6.12", 90, 0},
		{"ext4", 20, 64 * MiB, 0, MiB, 4, nodes, 1, "trixie 6.12", 90, 0},
		{"xfs", 50, 200 * MiB, 0, MiB, 4, nodes, 1, "trixie 6.12 6.1 testing", 90, 0},
		{"xfs", 50, 64 * MiB, 0, MiB, 4, nodes, 1, "trixie 6.12", 90, 0},
	} {
		if !strings.Contains(" "+w.kernels+" ", " "+k.Plan.Kernel+" ") {
			continue
		}
		t.Run(fmt.Sprintf("%s-%d-%d-%d-%s-%d-%d", w.kind, w.speed, w.limit/MiB, w.heap, w.file, w.files, w.min), func(t *testing.T) {
			dir := slowDisk(t, w.kind, w.speed)
			rows := map[uint64][]writer{}
			highs := []uint64{0, w.withHigh}
			for i := range w.runs { // by turns, so that neither has the older file system
				for _, high := range highs {
					one := w.run(t, k, dir, high)
					t.Logf("run %d, memory.high %d %%: %+v", i+1, high, one)
					rows[high] = append(rows[high], one)
				}
			}
			for _, high := range highs {
				t.Logf("| %s, %d MB/s | %d MiB | %d %% | %d KiB | %d, %s | %d %% | %s |", w.kind, w.speed, w.limit/MiB, w.heap, w.chunk>>10, w.files, w.file, w.min, summed(high, rows[high]))
			}
		})
	}
}

// writer is what became of one container.
type writer struct {
	how     string // ended, killed, or where it stands
	seconds float64
	stalled float64 // full stall, in seconds
	written uint64  // MiB
	kills   uint64  // oom_kill of the pod
	last    string  // what memory.stat said last
}

// summed is a row of the table.
func summed(high uint64, all []writer) string {
	var killedOnes, standing int
	var took, stalled, speed []float64
	for _, one := range all {
		switch one.how {
		case ended:
			took = append(took, one.seconds)
			speed = append(speed, float64(one.written)/one.seconds)
		case killed:
			killedOnes++
		default:
			standing++
		}
		stalled = append(stalled, one.stalled)
	}
	name := "unset"
	if high > 0 {
		name = fmt.Sprint(high, " %")
	}
	return fmt.Sprintf("%s | %d of %d | %d | %s | %s | %s", name, killedOnes, len(all), standing, spread(took), spread(stalled), spread(speed))
}

// spread is the smallest and the largest of some values.
func spread(values []float64) string {
	if len(values) == 0 {
		return "-"
	}
	least, most := values[0], values[0]
	for _, v := range values {
		least, most = min(least, v), max(most, v)
	}
	return fmt.Sprintf("%.1f to %.1f", least, most)
}

// run runs one container until it has written its file, is killed, or takes too long.
func (w writers) run(t *testing.T, k machine, dir string, high uint64) writer {
	t.Helper()
	if w.file != earlier {
		left, _ := filepath.Glob(dir + "/new*")
		for _, name := range left {
			_ = os.Remove(name)
		}
		syscall.Sync()
		write(t, "3", "/proc/sys/vm/drop_caches")
	}
	if w.file == nodes {
		if err := os.WriteFile(dir+"/new1", make([]byte, MiB), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	var steps []string
	for i := range w.files {
		steps = append(steps, fmt.Sprintf("write=/data/new%d:%d:%d", i+1, 3*w.limit/uint64(w.files), w.chunk))
	}
	pod := guaranteed("writer", w.limit, 0)
	app := &pod.Containers[0]
	app.Mounts = map[string]string{"/data": dir}
	app.Args = []string{"wait=/ctl/go"}
	if w.heap > 0 {
		app.Args = append(app.Args, fmt.Sprint("touch=", w.limit*w.heap/100))
	}
	app.Args = append(append(app.Args, steps...), "wait=/ctl/end", "exit=0")
	run(t, k, pod)
	cgroup := dirOf(t, k, pod, "app")
	if high > 0 {
		write(t, fmt.Sprint(w.limit*high/100), cgroup, "memory.high")
	}
	if w.min > 0 {
		for dir := cgroup; strings.Contains(dir, "kubepods"); dir = filepath.Dir(dir) {
			write(t, fmt.Sprint(w.limit*w.min/100), dir, "memory.min")
		}
	}
	touchFile(t, k.Control(pod), "go")
	one := w.watch(t, k, pod, cgroup, steps[len(steps)-1])
	for i := range w.files {
		if info, err := os.Stat(fmt.Sprintf("%s/new%d", dir, i+1)); err == nil {
			one.written += uint64(info.Size()) / MiB
		}
	}
	if err := k.Remove(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return one
}

func (w writers) watch(t *testing.T, k machine, pod *kubelet.Pod, cgroup, step string) (one writer) {
	t.Helper()
	began := time.Now()
	for one.how == "" {
		time.Sleep(50 * time.Millisecond)
		if stat := chosen(file(cgroup, "memory.stat")); stat != "" {
			one.last = stat
		}
		one.seconds = time.Since(began).Seconds()
		if strings.Contains(k.Output(pod, "app"), "done "+step) {
			one.how = ended
		} else if status, exited := k.Exited(t.Context(), pod, "app"); exited {
			if one.how = "ended with " + status; strings.HasPrefix(status, "137 ") {
				one.how = killed
			}
		} else if one.seconds > writerBound.Seconds() {
			one.how = "stands"
		}
	}
	one.kills = event(k.Dir(pod), "memory.events", "oom_kill")
	one.stalled = fullStall(t, k.Dir(pod)).Seconds()
	return one
}

// chosen are the values of memory.stat that say what a container's memory is, in MiB.
func chosen(stat string) string {
	var parts []string
	for line := range strings.Lines(stat) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "anon", "file", "file_dirty", "file_writeback":
			bytes, _ := strconv.ParseUint(value, 10, 64)
			parts = append(parts, fmt.Sprintf("%s %d", key, bytes/MiB))
		}
	}
	return strings.Join(parts, ", ")
}

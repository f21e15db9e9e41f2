package cases

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// writerBound is how long a writer may take before it counts as standing.
const writerBound = 2 * time.Minute

// writers is a cell of the table: containers that hold a share of their limit as heap and write a file three times as large as it.
type writers struct {
	kernels string // where this cell is tried
	kind    string // of the file system
	speed   int    // of the disk, in MB a second
	limit   uint64
	heap    uint64   // percent of the limit
	shared  bool     // the heap is files of a tmpfs, not anonymous memory
	classic bool     // the multi-gen LRU is off
	busy    bool     // the node writes to the same disk all the time
	files   []origin // by turns
	runs    int      // fewer if none was killed in the first five
}

// origin is where a file comes from that a container writes: the kernel counts what is dirty in it against the cgroup that dirtied it
// first (fs/fs-writeback.c, inode_attach_wb), and slows down who has too much of that.
type origin string

const (
	own   origin = "its own"    // it makes the file
	nodes origin = "the node's" // the node has dirtied it just before
)

// TestPageCacheKills logs a table: of containers that write files to a slow disk, how many are killed, with memory.high unset and
// at 90 % of the limit. Pages that are not written to the disk yet cannot be reclaimed.
// No plugin runs: it is the kernel that is measured.
func TestPageCacheKills(t *testing.T) {
	k := criOf(t)
	usual := file(lruGen)
	t.Cleanup(func() { write(t, usual, lruGen) })
	t.Logf("kernel %s, lru_gen %s", file("/proc/sys/kernel/osrelease"), usual)
	t.Log("| filesystem, disk | limit | heap | lru_gen | file | memory.high | killed | stand after two minutes | seconds of those that ended | full stall | MB/s |")
	for _, w := range []writers{
		{"trixie 6.12 6.1 testing", "xfs", 20, 64 * MiB, 70, false, false, false, []origin{own}, 10},
		{"trixie 6.1 testing", "xfs", 20, 64 * MiB, 0, false, false, false, []origin{own, nodes}, 10},
		{"trixie testing", "xfs", 20, 64 * MiB, 70, false, true, false, []origin{own}, 5},
		{"trixie", "xfs", 20, 64 * MiB, 50, false, false, false, []origin{own}, 5},
		{"trixie", "ext4", 20, 64 * MiB, 70, false, false, false, []origin{own}, 5},
		{"trixie", "xfs", 50, 200 * MiB, 70, false, false, false, []origin{own}, 5},
		{"trixie", "xfs", 20, 64 * MiB, 90, false, false, false, []origin{own}, 2},
		{"trixie", "xfs", 20, 64 * MiB, 85, true, false, false, []origin{own}, 3},
		{"trixie", "xfs", 20, 64 * MiB, 70, false, false, true, []origin{own}, 3},
	} {
		if slices.Contains(strings.Fields(w.kernels), k.Plan.Kernel) {
			t.Run(w.String(), func(t *testing.T) { w.measure(t, k) })
		}
	}
}

const lruGen = "/sys/kernel/mm/lru_gen/enabled"

func (w writers) String() string {
	disk, heap, lru := fmt.Sprintf("%s, %d MB/s", w.kind, w.speed), fmt.Sprint(w.heap, " %"), "as usual"
	if w.busy {
		disk += ", the node writes, too"
	}
	if w.shared {
		heap += " tmpfs"
	}
	if w.classic {
		lru = "off"
	}
	return fmt.Sprintf("%s | %d MiB | %s | %s", disk, w.limit/MiB, heap, lru)
}

// measure runs a cell's containers by turns, so that no setting has the older file system, and logs its rows.
func (w writers) measure(t *testing.T, k machine) {
	usual := file(lruGen)
	if w.classic {
		write(t, "n", lruGen)
		defer write(t, usual, lruGen)
	}
	dir := slowDisk(t, w.kind, w.speed)
	if w.busy {
		defer busyDisk(t, dir)()
	}
	type setting struct {
		file origin
		high uint64 // percent of the limit
	}
	var settings []setting
	for _, from := range w.files {
		settings = append(settings, setting{from, 0}, setting{from, 90})
	}
	rows, kills := map[setting][]writer{}, 0
	for i := 0; i < w.runs && (i < 5 || kills > 0); i++ {
		for _, s := range settings {
			one := w.run(t, k, dir, s.file, s.high)
			t.Logf("run %d, %+v: %+v", i+1, s, one)
			rows[s] = append(rows[s], one)
			if one.how == killed {
				kills++
			}
		}
	}
	for _, s := range settings {
		t.Logf("| %s | %s | %s |", w, s.file, summed(s.high, rows[s]))
	}
}

// busyDisk writes to the disk until it is told to stop.
func busyDisk(t *testing.T, dir string) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for block := make([]byte, MiB); ; {
			out, err := os.Create(dir + "/busy")
			for n := 0; n < 200 && err == nil; n++ {
				select {
				case <-over:
					out.Close()
					return
				default:
					_, err = out.Write(block)
				}
			}
			out.Close()
			if err != nil {
				t.Error(err)
				return
			}
		}
	}()
	return func() {
		close(over)
		<-done
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
func (w writers) run(t *testing.T, k machine, dir string, from origin, high uint64) writer {
	t.Helper()
	name := dir + "/new"
	_ = os.Remove(name)
	if !w.busy { // it would take a long time
		syscall.Sync()
		write(t, "3", "/proc/sys/vm/drop_caches")
	}
	if from == nodes {
		if err := os.WriteFile(name, make([]byte, MiB), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	step := fmt.Sprint("write=/data/new:", 3*w.limit)
	pod := guaranteed("writer", w.limit, 0)
	app := &pod.Containers[0]
	app.Mounts = map[string]string{"/data": dir}
	app.Args = []string{"wait=/ctl/go", step, "wait=/ctl/end", "exit=0"}
	if heap := w.limit * w.heap / 100; w.shared {
		app.Args = slices.Insert(app.Args, 1, fmt.Sprint("write=/ctl/heap:", heap))
	} else if heap > 0 {
		app.Args = slices.Insert(app.Args, 1, fmt.Sprint("touch=", heap))
	}
	run(t, k, pod)
	cgroup := dirOf(t, k, pod, "app")
	if high > 0 {
		write(t, fmt.Sprint(w.limit*high/100), cgroup, "memory.high")
	}
	touchFile(t, k.Control(pod), "go")
	one := w.watch(t, k, pod, cgroup, step)
	if info, err := os.Stat(name); err == nil {
		one.written = uint64(info.Size()) / MiB
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
		case "anon", "file", "shmem", "file_dirty", "file_writeback":
			bytes, _ := strconv.ParseUint(value, 10, 64)
			parts = append(parts, fmt.Sprintf("%s %d", key, bytes/MiB))
		}
	}
	return strings.Join(parts, ", ")
}

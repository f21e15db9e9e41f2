package cases

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
)

const (
	cacheLimit = 64 * MiB
	cacheFile  = 6 * cacheLimit
)

// TestPageCacheOfAGuaranteedContainer reads (with FULL=1 also writes) a file of six times the
// container's limit on a real file system. With memory.min as large as
// memory.max the kernel finds nothing that it may reclaim and kills the
// container; with headroom the read comes to its end. What it
// logs with FULL=1 is the table of docs/measurements.md.
func TestPageCacheOfAGuaranteedContainer(t *testing.T) {
	k := criOf(t)
	dir := disk(t, 2*cacheFile+64*MiB)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	fill(t, dir+"/big", int(cacheFile))
	p := newPlugin(t)
	t.Logf("limit %d MiB, file %d MiB, page size %d", cacheLimit/MiB, cacheFile/MiB, os.Getpagesize())
	t.Log("| guaranteedHeadroom | memory.min | sandbox uses | read | write |")
	// What 2 % of so small a limit leaves is a matter of a few pages (docs/measurements.md); the table shows it, the test
	// does not hang on it.
	headrooms := []string{"0", "0.1"}
	if k.Plan.Full {
		headrooms = []string{"0", "0.01", "0.02", "0.05", "0.1"}
	}
	for _, headroom := range headrooms {
		p.kill()
		p.configure("guaranteedHeadroom: " + headroom)
		p.restart()
		read := cacheRun(t, k, dir, "read=/data/big")
		written := outcome{how: "not tried"}
		if k.Plan.Full { // whether a write ends well depends on how fast the disk takes dirty pages
			written = cacheRun(t, k, dir, fmt.Sprintf("write=/data/new:%d", cacheFile))
		}
		t.Logf("| %s | %d | %d | %s | %s |", headroom, read.min, read.sandbox, read.how, written.how)
		switch headroom {
		case "0":
			if read.how != killed {
				t.Errorf("with memory.min == memory.max a read %s", read.how)
			}
		case "0.1":
			if read.how != ended {
				t.Errorf("with headroom a read %s", read.how)
			}
		}
	}
}

// fill writes a file of the node, outside of any pod.
func fill(t *testing.T, name string, bytes int) {
	t.Helper()
	out, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i >> 8)
	}
	for written := 0; written < bytes; written += len(block) {
		if _, err := out.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Sync(); err != nil {
		t.Fatal(err)
	}
}

// outcome is how one run ended, with memory.min and the sandbox's use of the pod's limit.
type outcome struct {
	min, sandbox uint64
	how          string
}

const (
	ended  = "runs to its end"
	killed = "OOM-killed"
)

// cacheRun runs a Guaranteed pod with one step of file work and says how it ended.
func cacheRun(t *testing.T, k machine, dir, step string) outcome {
	t.Helper()
	_ = os.Remove(dir + "/new")
	write(t, "3", "/proc/sys/vm/drop_caches")
	pod := guaranteed("cache", cacheLimit, 0)
	pod.Containers[0].Mounts = map[string]string{"/data": dir}
	pod.Containers[0].Args = []string{"wait=/ctl/go", step, "exit=0"}
	run(t, k, pod)
	now := outcome{min: number(t, dirOf(t, k, pod, "app"), "memory.min"), sandbox: number(t, k.Dir(pod), "memory.current") - number(t, dirOf(t, k, pod, "app"), "memory.current")}
	touchFile(t, k.Control(pod), "go")
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitLimit)
	defer cancel()
	status, err := k.WaitExit(ctx, pod, "app")
	if err != nil {
		t.Fatalf("%s: %v; usage and events: %s", step, err, strings.ReplaceAll(file(k.Dir(pod), "memory.events"), "\n", ", "))
	}
	if err := k.Remove(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	switch {
	case strings.HasPrefix(status, "0 "):
		now.how = ended
	case strings.HasPrefix(status, "137 "):
		now.how = killed
	default:
		now.how = "ended with " + status
	}
	return now
}

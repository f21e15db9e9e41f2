package cases

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

const (
	cacheLimit = 48 * MiB
	cacheFile  = 6 * cacheLimit
)

// TestPageCacheOfAGuaranteedContainer reads and writes a file of six times the
// container's limit on a real file system. With memory.min as large as
// memory.max the kernel finds nothing that it may reclaim and kills the
// container; with the default headroom the work comes to its end.
// The environment of the guest decides whether all headrooms are tabulated.
func TestPageCacheOfAGuaranteedContainer(t *testing.T) {
	k := kubeletOf(t)
	dir := disk(t, cacheFile+64*MiB)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	p := newPlugin(t)
	t.Logf("limit %d MiB, file %d MiB, page size %d", cacheLimit/MiB, cacheFile/MiB, os.Getpagesize())
	t.Log("| guaranteedHeadroom | memory.min | write | read |")
	for i, headroom := range []string{"0.02", "0", "0.01", "0.05", "0.1"} {
		p.kill()
		p.configure("guaranteedHeadroom: " + headroom)
		p.restart()
		min, written := cacheRun(t, k, dir, fmt.Sprintf("write=/data/file:%d", cacheFile))
		if written == ended && headroom != "0.02" || i == 0 {
			// the file is there
		} else if _, err := os.Stat(dir + "/file"); err != nil {
			t.Fatal("nothing to read")
		}
		_, readBack := cacheRun(t, k, dir, "read=/data/file")
		t.Logf("| %s | %d | %s | %s |", headroom, min, written, readBack)
		switch headroom {
		case "0":
			if readBack != killed {
				t.Errorf("with memory.min == memory.max a read %s", readBack)
			}
		case "0.02":
			if written != ended || readBack != ended {
				t.Errorf("with the default headroom: write %s, read %s", written, readBack)
			}
		}
	}
}

const (
	ended  = "runs to its end"
	killed = "OOM-killed"
)

// cacheRun runs a Guaranteed pod with one step of file work and says how it ended.
func cacheRun(t *testing.T, k *kubelet.Kubelet, dir, step string) (min uint64, how string) {
	t.Helper()
	write(t, "3", "/proc/sys/vm/drop_caches")
	pod := guaranteed("cache", cacheLimit, 0)
	pod.Containers[0].Mounts = map[string]string{"/data": dir}
	pod.Containers[0].Args = []string{"wait=/ctl/go", step, "exit=0"}
	run(t, k, pod)
	min = number(t, dirOf(t, k, pod, "app"), "memory.min")
	touchFile(t, k.Control(pod), "go")
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
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
		return min, ended
	case strings.HasPrefix(status, "137 "):
		return min, killed
	}
	return min, "ended with " + status
}

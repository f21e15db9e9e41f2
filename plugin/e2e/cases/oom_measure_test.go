package cases

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// TestMeasureOOMVerdicts logs a table: of kills for reasons that are known, ten of each and three of those that fill NUMA nodes, how many verdicts are right, and how long they take.
func TestMeasureOOMVerdicts(t *testing.T) {
	k := criOf(t)
	measureVerdicts(t, k, killsPlugin(t), killsOf(t), 10, nil)
}

// TestMeasureOOMVerdictsBesideTheKubelet logs the same table of kills in pods that a real kubelet runs, three of each, with what it shows of
// them: the container's state in the pod's status, and the highest container_oom_events_total of the pod in half a minute.
func TestMeasureOOMVerdictsBesideTheKubelet(t *testing.T) {
	k := kubeletOf(t)
	k.Kill(syscall.SIGTERM)
	k.Housekeeping = 10 * time.Second // the kubelet's default
	t.Cleanup(func() {
		k.Kill(syscall.SIGTERM)
		k.Housekeeping = 0
	})
	if err := k.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	limit := func(bytes uint64) *corev1.ResourceRequirements {
		return &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(int64(bytes), resource.BinarySI)}}
	}
	var causes []kill
	for _, c := range killsOf(t) {
		switch c.name {
		case "heap", "child", "protected-cache":
		case "shm": // as a volume
			c.name, c.mounts, c.args = "emptydir", map[string]string{"/memory": kubelet.Memory}, []string{fmt.Sprint("write=/memory/file:", 64*MiB)}
		case "pod":
			c.limit, c.beside, c.prepare, c.whole = 0, 0, nil, limit(40*MiB)
		case "neighbour":
			c.request, c.limit, c.beside, c.prepare, c.whole = 0, 0, 0, nil, limit(56*MiB)
		default:
			continue
		}
		causes = append(causes, c)
	}
	measureVerdicts(t, k, killsPlugin(t), causes, 3, func(pod *kubelet.Pod, container string) string {
		var state string
		counted := -1
		for range 15 {
			object, err := k.Get(t.Context(), pod)
			if err != nil {
				t.Fatal(err)
			}
			state = stateOf(object, container)
			text, err := k.Metrics(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			counted = max(counted, oomEvents(text, pod.Name))
			time.Sleep(2 * time.Second)
		}
		if counted < 0 {
			return state + ", no counter"
		}
		return fmt.Sprintf("%s, counter %d", state, counted)
	})
}

func stateOf(pod *corev1.Pod, container string) string {
	for _, s := range pod.Status.ContainerStatuses {
		switch {
		case s.Name != container:
		case s.State.Terminated != nil:
			return fmt.Sprintf("%s (%d)", s.State.Terminated.Reason, s.State.Terminated.ExitCode)
		case s.State.Running != nil:
			return "running"
		}
	}
	return "waiting"
}

var oomEventsLine = regexp.MustCompile(`(?m)^container_oom_events_total\{([^}]*)\} (\d+)`)

// oomEvents is the kubelet's highest counter of a pod's cgroups, -1 where it has none.
func oomEvents(text, pod string) int {
	most := -1
	for _, m := range oomEventsLine.FindAllStringSubmatch(text, -1) {
		if n, err := strconv.Atoi(m[2]); err == nil && strings.Contains(m[1], fmt.Sprintf("pod=%q", pod)) {
			most = max(most, n)
		}
	}
	return most
}

// measureVerdicts has the kernel kill for each reason, by turns, and logs a row for each. Shown, where set, says what else is seen of it.
func measureVerdicts(t *testing.T, k machine, p *plugin, causes []kill, times int, shown func(pod *kubelet.Pod, container string) string) {
	t.Helper()
	all, seen := map[string][]found{}, map[string]map[string]int{}
	for i := range times {
		for _, c := range causes {
			if c.slow && i >= 3 {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				f := c.happen(t, k, p, func(victim *kubelet.Pod) {
					if shown == nil {
						return
					}
					if seen[c.name] == nil {
						seen[c.name] = map[string]int{}
					}
					seen[c.name][shown(victim, c.want.Container)]++
				})
				t.Logf("%+v", f)
				all[c.name] = append(all[c.name], f)
			})
		}
	}
	t.Logf("kernel %s", file("/proc/sys/kernel/osrelease"))
	t.Log("| kill | what ran out, used for | said | culprit | verdict after, median | at most | Kubernetes shows |")
	for _, c := range causes {
		var delays []time.Duration
		said, culprits := 0, 0
		for _, f := range all[c.name] {
			delays = append(delays, f.delay)
			if f.Level == c.want.Level && f.Cause == c.want.Cause && f.Container == c.want.Container {
				said++
			}
			if f.Itself == c.want.Itself && f.Culprit == c.want.Culprit {
				culprits++
			}
		}
		slices.Sort(delays)
		n := len(delays)
		if n == 0 {
			continue
		}
		var shows []string
		for _, what := range slices.Sorted(maps.Keys(seen[c.name])) {
			shows = append(shows, fmt.Sprintf("%s: %d", what, seen[c.name][what]))
		}
		t.Logf("| %s | %s, %s | %d of %d | %d of %d | %d ms | %d ms | %s |", c.name, c.want.Level, c.want.Cause, said, n, culprits, n,
			delays[n/2].Milliseconds(), delays[n-1].Milliseconds(), strings.Join(shows, "; "))
	}
}

package cases

import (
	"cmp"
	"encoding/json"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/kubelet"
)

// verdict is what "oom -o json" says of a kill.
type verdict struct {
	Container string
	Processes uint64 `json:"killedProcesses"`
	Whole     bool   `json:"wholeContainer"`
	Level     string
	Cause     string
	Itself    bool
	After     string
	Culprit   *struct{ Pod, Container string }
	Change    string
}

func (p *plugin) verdicts(t *testing.T, pod *kubelet.Pod) (all []verdict) {
	t.Helper()
	out, _ := p.ask("oom", kubelet.Namespace+"/"+pod.Name, "-o", "json")
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return all
}

// kill is a container whose end is known beforehand.
type kill struct {
	name  string
	group string // memory.oom.group
	args  []string
	limit uint64
	// beside is another container's limit: with it the pod's limit is far, without it is hit before the container's.
	beside uint64
	want   verdict
}

// TestOOMVerdicts has the kernel kill containers for reasons that are known, and compares what is said of them.
func TestOOMVerdicts(t *testing.T) {
	k := criOf(t)
	p := startPlugin(t)
	for _, c := range []kill{
		{name: "heap", limit: 32 * MiB, beside: 32 * MiB, args: []string{"wait=/ctl/go", "grow=67108864"},
			want: verdict{Container: "app", Processes: 1, Level: "container", Cause: "processes", Itself: true}},
		{name: "heap-alone", limit: 32 * MiB, args: []string{"wait=/ctl/go", "grow=67108864"},
			want: verdict{Container: "app", Processes: 1, Level: "pod", Cause: "processes", Itself: true}},
		{name: "tmpfs", limit: 32 * MiB, beside: 32 * MiB, args: []string{"wait=/ctl/go", "write=/dev/shm/file:67108864"},
			want: verdict{Container: "app", Processes: 1, Level: "container", Cause: "tmpfs", Itself: true}},
		{name: "pipes", limit: 32 * MiB, beside: 32 * MiB, args: []string{"wait=/ctl/go", "pipes=67108864"},
			want: verdict{Container: "app", Processes: 1, Level: "container", Cause: "kernel", Itself: true}},
		{name: "child", limit: 32 * MiB, beside: 32 * MiB, args: []string{"wait=/ctl/go", "child=grow=67108864", "wait=/ctl/end"},
			want: verdict{Container: "app", Processes: 1, Level: "container", Cause: "processes", Itself: true}},
		{name: "group", group: "1", limit: 32 * MiB, beside: 32 * MiB, args: []string{"wait=/ctl/go", "child=grow=67108864", "wait=/ctl/end"},
			want: verdict{Container: "app", Processes: 2, Whole: true, Level: "container", Cause: "processes", Itself: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := guaranteed(c.name, c.limit, 0)
			pod.Containers[0].Args = c.args
			pod.Containers[0].Unified = map[string]string{"memory.oom.group": cmp.Or(c.group, "0")}
			if c.beside > 0 {
				pod.Containers = append(pod.Containers, kubelet.Container{Name: "beside", Request: c.beside, Limit: c.beside})
			}
			run(t, k, pod)
			touchFile(t, k.Control(pod), "go")
			eventually(t, "there is a verdict", func() string {
				got := p.verdicts(t, pod)
				if len(got) == 0 {
					return "none"
				}
				one := got[0]
				if one.Culprit, one.Change = nil, ""; len(got) != 1 || one != c.want {
					t.Errorf("%+v, want %+v", got, c.want)
				}
				return ""
			})
			out, _ := p.ask("oom", pod.Name)
			t.Log(out)
			if c.name == "child" {
				if _, exited := k.Exited(t.Context(), pod, "app"); exited {
					t.Error("PID 1 has ended, too")
				}
			}
		})
	}
}

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/devices"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/events"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// The outcomes of input, as docs/limits.md has them; taken is within the bound.
const (
	taken       = ""
	notLookedAt = "not looked at"
	notShown    = "not shown"
	isRefused   = "refused"
	isIgnored   = "ignored"
	isCut       = "cut"
)

// limits feed input of a size, and say what becomes of it, by the row of docs/limits.md.
var limits = map[string]func(t *testing.T, size int) string{
	"variables at either end of a container's environment, the image's among them": func(_ *testing.T, size int) string {
		others, before := slices.Repeat([]string{"A=b"}, 5000), slices.Repeat([]string{"A=b"}, size-1)
		claim := []string{"NUMA_MEMORY_CLAIM_A_0="}
		first := len(nriplugin.ContainerOf(&api.Container{Env: slices.Concat(before, claim, others)}).Claims)
		last := len(nriplugin.ContainerOf(&api.Container{Env: slices.Concat(others, claim, before)}).Claims)
		device := nriplugin.ContainerOf(&api.Container{Env: slices.Concat(before, []string{"PCIDEVICE_A="}, others)}).PCIDevices
		return outcome(notLookedAt, first == 1, last == 1, device)
	},
	"parts of resource claims that a container names, by CDI devices or variables": func(t *testing.T, size int) string {
		container := &api.Container{Id: "id", Name: "app"}
		for i := range size {
			container.Env = append(container.Env, fmt.Sprintf("NUMA_MEMORY_CLAIM_A_%d=", i))
		}
		l := ledgerOf(t, "dra: {enabled: true}")
		err := l.Step(time.Unix(1, 0), ledger.CreateContainer{Pod: podNamed("p"), Container: nriplugin.ContainerOf(container)}).Err
		return outcome(isRefused, strings.Contains(err.Error(), "is not prepared"))
	},
	"CDI devices of a container among which parts of claims are looked for": func(_ *testing.T, size int) string {
		return outcome(notLookedAt, len(nriplugin.ContainerOf(withCDI(size, "driver/numa-memory=a-0")).Claims) == 1)
	},
	"CDI devices of a container that are kept": func(_ *testing.T, size int) string {
		return outcome(notLookedAt, slices.Contains(nriplugin.ContainerOf(withCDI(size, "a/b=last")).CDIDevices, "a/b=last"))
	},
	"bytes of the name of a CDI device": func(_ *testing.T, size int) string {
		return outcome(notLookedAt, len(nriplugin.ContainerOf(withCDI(1, strings.Repeat("a", size))).CDIDevices) == 1)
	},
	"device files of a container": func(_ *testing.T, size int) string {
		nodes := slices.Repeat([]*api.LinuxDevice{{Path: "/dev/a", Type: "c"}}, size)
		return outcome(notLookedAt, len(nriplugin.ContainerOf(&api.Container{Linux: &api.LinuxContainer{Devices: nodes}}).DeviceNodes) == size)
	},
	"bytes of the path of a device file": func(_ *testing.T, size int) string {
		nodes := []*api.LinuxDevice{{Path: strings.Repeat("a", size), Type: "c"}}
		return outcome(notLookedAt, len(nriplugin.ContainerOf(&api.Container{Linux: &api.LinuxContainer{Devices: nodes}}).DeviceNodes) == 1)
	},
	"devices of a container in the kubelet's PodResources answer": func(t *testing.T, size int) string {
		found := devicesOf(t, func(c *podresources.ContainerResources) {
			for i := range size {
				c.Devices[0].DeviceIds = append(c.Devices[0].DeviceIds, fmt.Sprint(i))
			}
		})
		return outcome(notLookedAt, found == size)
	},
	"bytes of this answer": func(t *testing.T, size int) string {
		found := devicesOf(t, func(c *podresources.ContainerResources) {
			c.Devices[0].DeviceIds = []string{"a"}
			answer := &podresources.GetPodResourcesResponse{PodResources: &podresources.PodResources{Containers: []*podresources.ContainerResources{c}}}
			c.Devices[0].ResourceName = strings.Repeat("a", size-100)
			c.Devices[0].ResourceName += strings.Repeat("a", size-proto.Size(answer))
		})
		return outcome(notLookedAt, found == 1)
	},
	"sizes of huge pages that a container asks for": func(_ *testing.T, size int) string {
		resources := &api.LinuxResources{HugepageLimits: slices.Repeat([]*api.HugepageLimit{{PageSize: "2MB", Limit: 1}}, size)}
		return outcome(notLookedAt, len(resourcesOf(resources).Hugepages) == size)
	},
	"bytes of the value of a cgroup file in unified (of which memory.min, memory.low, memory.high, memory.oom.group and memory.swap.max are read)": func(t *testing.T, size int) string {
		files := map[string]string{"memory.min": strings.Repeat("1", size), "io.max": "1"}
		got := resourcesOf(&api.LinuxResources{Unified: files}).Unified
		if _, there := got["io.max"]; there {
			t.Error("another file is read")
		}
		return outcome(notLookedAt, len(got) == 1)
	},
	"bytes of a list of CPUs or NUMA nodes": func(_ *testing.T, size int) string {
		list := strings.Repeat("1", size)
		got := resourcesOf(&api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: list, Mems: list}})
		return outcome(notLookedAt, got.CPUs == list, got.Mems == list)
	},
	"bytes of a pod's labels, keys and values": func(_ *testing.T, size int) string {
		got := nriplugin.PodOf(&api.PodSandbox{Labels: map[string]string{"a": strings.Repeat("b", size-1)}}).Labels
		return outcome(notLookedAt, len(got) == 1)
	},
	"annotations of this plugin in a pod": func(_ *testing.T, size int) string {
		keys := map[string]string{}
		for i := range size {
			keys[fmt.Sprintf("numa.memory-manager.noderesource.dev/container.c%d", i)] = "none"
		}
		return outcome(isIgnored, !hasProblem(keys, "this and all later keys are ignored"))
	},
	"bytes of their keys and values": func(_ *testing.T, size int) string {
		keys, left := map[string]string{}, size
		for left > 0 {
			key := fmt.Sprintf("numa.memory-manager.noderesource.dev/container.%04d", len(keys))
			next := min(left, 300)
			if rest := left - next; rest > 0 && rest < 100 {
				next -= 100
			}
			keys[key+strings.Repeat("a", next-len(key)-len("none"))] = "none"
			left -= next
		}
		return outcome(isIgnored, !hasProblem(keys, "this and all later keys are ignored"))
	},
	"bytes of a value that are kept and shown": func(_ *testing.T, size int) string {
		return outcome(isCut, !hasProblem(map[string]string{"numa.memory-manager.noderesource.dev": strings.Repeat("a", size)}, "…"))
	},
	"problems of a pod that are shown": func(_ *testing.T, size int) string {
		keys := map[string]string{}
		for i := range size {
			keys[fmt.Sprintf("wrong%d.memory-manager.noderesource.dev", i)] = "a"
		}
		_, problems := config.ReadAnnotations(keys).Wishes("", config.Default().AnnotationRulesFor(config.Subject{Namespace: "default"}))
		return outcome(notShown, len(problems) == size)
	},
	"bytes of the annotation noderesource.dev/resources": func(_ *testing.T, size int) string {
		text := `{"containers":{}}`
		return outcome(isIgnored, readClaims(text+strings.Repeat(" ", size-len(text))) == nil)
	},
	"containers in this annotation": func(_ *testing.T, size int) string {
		names := make([]string, size)
		for i := range names {
			names[i] = fmt.Sprintf(`"c%d":{}`, i)
		}
		return outcome(isIgnored, readClaims(`{"containers":{`+strings.Join(names, ",")+`}}`) == nil)
	},
	"bytes of a pod's name, namespace, UID or id": func(t *testing.T, size int) string {
		l, long := ledgerOf(t, ""), strings.Repeat("a", size)
		var within []bool
		for _, change := range []func(*ledger.Pod){
			func(p *ledger.Pod) { p.Name = long }, func(p *ledger.Pod) { p.Namespace = long },
			func(p *ledger.Pod) { p.UID = long }, func(p *ledger.Pod) { p.ID = long },
		} {
			pod := podNamed("p")
			change(&pod)
			err := l.Step(time.Unix(1, 0), ledger.RunPod{Pod: pod}).Err
			within = append(within, err == nil)
			l.Step(time.Unix(1, 0), ledger.Synchronize{Pods: []ledger.Pod{pod}})
			if found := len(l.View().Pods) == 1; found != (err == nil) {
				t.Errorf("a pod that runs is known: %v, a new one: %v", found, err)
			}
			l.Step(time.Unix(1, 0), ledger.Synchronize{})
		}
		return outcome(isRefused, within...)
	},
	"bytes of a container's name or id": func(t *testing.T, size int) string {
		l, long := ledgerOf(t, ""), strings.Repeat("a", size)
		return outcome(isRefused, admits(t, l, ledger.Container{ID: "id", Name: long}), admits(t, l, ledger.Container{ID: long, Name: "app"}))
	},
	"containers of a pod": func(t *testing.T, size int) string {
		l, pod := ledgerOf(t, ""), podNamed("p")
		containers := make([]ledger.Container, size-1)
		for i := range containers {
			containers[i] = ledger.Container{ID: fmt.Sprint("id", i), PodID: pod.ID, Name: fmt.Sprint("c", i), State: ledger.Running}
		}
		l.Step(time.Unix(1, 0), ledger.Synchronize{Pods: []ledger.Pod{pod}, Containers: containers})
		return outcome(isRefused, l.Step(time.Unix(1, 0), ledger.CreateContainer{Pod: pod, Container: ledger.Container{ID: "last", Name: "last"}}).Err == nil)
	},
	"bytes of a pod's cgroup path": func(_ *testing.T, size int) string {
		const above = "/kubepods/pod"
		_, err := cgroup.ParsePod(above + strings.Repeat("a", size-len(above)))
		return outcome(isRefused, err == nil)
	},
	"rejected containers that are shown": func(t *testing.T, size int) string {
		l := ledgerOf(t, "topologyManagerPolicy: restricted\nonUnsatisfiable: Reject")
		bytes := int64(100 * gi)
		for i := range size {
			l.Step(time.Unix(int64(i), 0), ledger.CreateContainer{Pod: podNamed(fmt.Sprint("p", i)),
				Container: ledger.Container{ID: fmt.Sprint(i), Name: "app", Resources: ledger.Resources{MemoryLimit: &bytes}}})
		}
		return outcome(notShown, len(l.View().Rejections) == size)
	},
	"bytes of an Event's message": func(t *testing.T, size int) string {
		const begin = "container app: runs without NUMA nodes of its own: "
		written := make(writtenEvents, 1)
		view := &ledger.View{Rejections: []ledger.Rejection{{At: time.Unix(1, 0), Namespace: "default", Pod: "p", UID: "u", Container: "app", Reason: "r",
			Text: strings.Repeat("a", size-len(begin))}}}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- events.New(events.Options{Sink: written, Node: "n", View: func() *ledger.View { return view },
				Overwritten: func() map[protect.File]uint64 { return nil }}).Run(ctx)
		}()
		message := (<-written).Message
		cancel()
		must(t, <-done)
		return outcome(isCut, len(message) == size && !strings.HasSuffix(message, "…"))
	},
}

// outcome is taken where everything is within the bound, and beyond where nothing is.
func outcome(beyond string, within ...bool) string {
	switch {
	case !slices.Contains(within, false):
		return taken
	case !slices.Contains(within, true):
		return beyond
	}
	return fmt.Sprintf("some of it is taken: %v", within)
}

func resourcesOf(resources *api.LinuxResources) ledger.Resources {
	return nriplugin.ContainerOf(&api.Container{Linux: &api.LinuxContainer{Resources: resources}}).Resources
}

// withCDI has so many CDI devices, of which this is the last.
func withCDI(number int, last string) *api.Container {
	all := slices.Repeat([]*api.CDIDevice{{Name: "a/b=c"}}, number)
	all[number-1] = &api.CDIDevice{Name: last}
	return &api.Container{CDIDevices: all}
}

func hasProblem(annotations map[string]string, text string) bool {
	_, problems := config.ReadAnnotations(annotations).Wishes("", config.Default().AnnotationRulesFor(config.Subject{Namespace: "default"}))
	return slices.ContainsFunc(problems, func(p config.Problem) bool { return strings.Contains(p.Message, text) })
}

func readClaims(annotation string) error {
	_, err := pods.Node{MemTotal: 32 * gi}.ReadClaims(map[string]string{pods.ResourcesAnnotation: annotation})
	return err
}

func podNamed(name string) ledger.Pod {
	return ledger.Pod{ID: "sandbox-" + name, UID: "uid-" + name, Namespace: "default", Name: name, CgroupParent: "/kubepods/pod" + name}
}

// ledgerOf has two nodes with 15.5Gi for pods each.
func ledgerOf(t *testing.T, yaml string) *ledger.Ledger {
	t.Helper()
	described, err := machine.Describe("machine", []byte("nodes:\n- {id: 0, memory: 16Gi, cpus: 0-7, distances: [10, 21]}\n- {id: 1, memory: 16Gi, cpus: 8-15, distances: [21, 10]}\n"))
	must(t, err)
	c, err := config.Files(nil).Parse("config", []byte("reservedMemory: 0:memory=512Mi;1:memory=512Mi\nkubeReserved: {memory: 924Mi}\n"+yaml))
	must(t, err)
	resolved, err := c.Resolve(described.Machine)
	must(t, err)
	l, err := ledger.New(time.Unix(0, 0), ledger.Options{Config: resolved, Raises: map[string]uint64{}})
	must(t, err)
	return l
}

// admits reports whether a container is admitted, and fails where one that runs is treated otherwise.
func admits(t *testing.T, l *ledger.Ledger, c ledger.Container) bool {
	t.Helper()
	pod := podNamed("p")
	err := l.Step(time.Unix(1, 0), ledger.CreateContainer{Pod: pod, Container: c}).Err
	l.Step(time.Unix(1, 0), ledger.Synchronize{})
	c.PodID, c.State = pod.ID, ledger.Running
	l.Step(time.Unix(1, 0), ledger.Synchronize{Pods: []ledger.Pod{pod}, Containers: []ledger.Container{c}})
	if found := len(l.View().Pods[0].Containers) == 1; found != (err == nil) {
		t.Errorf("a container that runs is known: %v, a new one: %v", found, err)
	}
	return err == nil
}

// podResources is a kubelet that gives one answer.
type podResources struct {
	podresources.UnimplementedPodResourcesListerServer
	answer *podresources.GetPodResourcesResponse
}

func (p podResources) Get(context.Context, *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	return p.answer, nil
}

// devicesOf is how many devices are found of a container, of which the kubelet's answer says this.
func devicesOf(t *testing.T, fill func(*podresources.ContainerResources)) int {
	t.Helper()
	container := &podresources.ContainerResources{Name: "app", Devices: []*podresources.ContainerDevices{{
		ResourceName: "a", Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: 1}}}}}}
	fill(container)
	dir, err := os.MkdirTemp("", "limits")
	must(t, err)
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	server := grpc.NewServer()
	defer server.Stop()
	podresources.RegisterPodResourcesListerServer(server, podResources{answer: &podresources.GetPodResourcesResponse{
		PodResources: &podresources.PodResources{Containers: []*podresources.ContainerResources{container}}}})
	go server.Serve(listener)
	finder := devices.New(devices.Options{Socket: socket})
	defer finder.Close()
	found := 0
	for _, device := range finder.Find(t.Context(), devices.Container{UID: "u", Namespace: "default", Pod: "p", Name: "app", PCI: true})["app"] {
		found += len(device.IDs)
	}
	return found
}

// writtenEvents passes on the events that are written.
type writtenEvents chan *corev1.Event

func (s writtenEvents) Create(event *corev1.Event) (*corev1.Event, error) {
	select {
	case s <- event:
	default:
	}
	return event, nil
}

func (s writtenEvents) Update(event *corev1.Event) (*corev1.Event, error) { return event, nil }

func (s writtenEvents) Patch(event *corev1.Event, _ []byte) (*corev1.Event, error) { return event, nil }

var (
	limitRow  = regexp.MustCompile(`(?m)^- (.+): (\d+(?:Ki|Mi)?), (.+)$`)
	markdown  = regexp.MustCompile("`|\\[([^]]*)\\]\\([^)]*\\)")
	firstPart = regexp.MustCompile(`^[a-z ]+`)
)

// TestLimits walks the list of docs/limits.md: input within each bound is taken, and one more has the outcome that the list says.
func TestLimits(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/limits.md")
	must(t, err)
	rows := limitRow.FindAllStringSubmatch(string(text), -1)
	if lines := strings.Count(string(text), "\n- "); len(rows) != lines {
		t.Errorf("%d of %d rows have a bound", len(rows), lines)
	}
	proved := map[string]bool{}
	for _, row := range rows {
		input, beyond := markdown.ReplaceAllString(row[1], "$1"), firstPart.FindString(row[3])
		size, err := quantity.Parse(row[2])
		must(t, err)
		proof := limits[input]
		if proof == nil {
			t.Errorf("nothing proves the row %q", input)
			continue
		}
		proved[input] = true
		t.Run(input, func(t *testing.T) {
			wantEqual(t, "within the bound", proof(t, int(size)), taken)
			wantEqual(t, "beyond the bound", proof(t, int(size)+1), beyond)
		})
	}
	for input := range limits {
		if !proved[input] {
			t.Errorf("docs/limits.md has no row %q", input)
		}
	}
}

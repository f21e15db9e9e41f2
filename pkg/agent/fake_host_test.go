package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"runtime"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cgroups"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/systemd"
)

// fakeHost is a kubelet, a runtime and a systemd over a folder tree, without a plugin.
type fakeHost struct {
	cgroups.Folder
	runtime cri.Record
	systemd *systemd.Units // nil is none
	pods    []*fakePod
	made    int
	// foreign are the files that another writer has written: what they hold is its value where the plugin desires none.
	foreign map[string]bool
}

// newFakeHost has a systemd for a kubelet with the systemd cgroup driver.
func newFakeHost(root string, s setup) *fakeHost {
	m := &fakeHost{Folder: cgroups.Folder(root), foreign: map[string]bool{}}
	m.runtime = cri.Record{CRIO: s.crio, Crun: s.inner, Cgroups: m}
	if s.systemd {
		m.systemd = &systemd.Units{Folder: m.Folder, NoSystemd: protect.ErrNoSystemd, NoUnit: protect.ErrNoUnit}
		m.systemd.Turn(answers)
		m.runtime.Applied = m.systemd.Applied
	}
	return m
}

// fakePod is a pod with the spec that the kubelet has admitted.
type fakePod struct {
	Pod
	class      memoryqos.QOSClass
	level      uint64 // pod-level request and limit; 0 is none
	dir        string
	spec       []pods.Container
	containers map[string]*fakeContainer // the newest of each name
	stopped    bool                      // the sandbox has been stopped and not been removed
}

// fakeContainer is a container as the runtime tells of it.
type fakeContainer struct {
	Container
	record *api.Container // nil until it is created
	dir    string
}

// told has a container be what the runtime's record says by now.
func (c *fakeContainer) told() { c.Container = nriplugin.ContainerOf(c.record) }

// update is how an update of a container's resources goes on after the plugin was asked.
type outcome int

const (
	succeeds   outcome = iota
	ends               // it succeeds, and no Post event follows
	fails              // the OCI runtime fails: files and record stay as they were
	late               // the plugin's answer is too late: the runtime goes on without it and disconnects the plugin
	lateRefuse         // the plugin is too late: the runtime fails the request and keeps the plugin
	lateAnswer         // the plugin answers in time, as it believes: as late
	outcomes
)

func (o outcome) String() string {
	return [...]string{
		"", ", no Post event", ", fails in the OCI runtime", ", the plugin is late: done without it", ", the plugin is late: fails",
		", the answer is late: done without it",
	}[o]
}

var sizes = []uint64{100*mi + 1000, 64 * mi, gi, 3 * gi, 8 * gi, 14 * gi, 20 * gi}

// runPod makes a pod's sandbox and its cgroups, as the kubelet does.
func (m *fakeHost) runPod(class memoryqos.QOSClass, containers int, size uint64) *fakePod {
	m.made++
	p := &fakePod{class: class, containers: map[string]*fakeContainer{}}
	p.Pod = Pod{
		ID: fmt.Sprintf("sandbox%d", m.made), UID: fmt.Sprintf("u%d", m.made), Namespace: "default", Name: fmt.Sprintf("pod%d", m.made),
	}
	p.CgroupParent = "/kubepods/" + strings.ToLower(string(class)) + "/pod" + p.UID
	if class == memoryqos.Guaranteed {
		p.CgroupParent = "/kubepods/pod" + p.UID
	}
	if m.systemd != nil {
		names := strings.Split(p.CgroupParent[1:], "/")
		for i := range names {
			names[i] = strings.Join(append([]string{}, strings.Split(p.CgroupParent[1:], "/")[:i+1]...), "-") + ".slice"
		}
		p.CgroupParent = "/" + path.Join(names...)
	}
	p.dir = p.CgroupParent[1:]
	for i := range containers {
		c := pods.Container{Name: string(rune('a' + i)), Kind: memoryqos.App}
		if class != memoryqos.BestEffort {
			c.Request, c.Limit = size, size
		}
		if class == memoryqos.Burstable {
			c.Request = size / uint64(i+2)
		}
		p.spec = append(p.spec, c)
	}
	must(m.Make(p.dir))
	m.limitPod(p)
	m.pods = append(m.pods, p)
	return p
}

// limitPod has the kubelet write a pod's own limit.
func (m *fakeHost) limitPod(p *fakePod) {
	if p.class == memoryqos.Guaranteed {
		must(m.Write(p.dir, "memory.max", bytesOf(p.limit())))
	}
}

// share gives a pod resources of its own: its first container keeps its request, the others have none.
func (m *fakeHost) share(p *fakePod) {
	p.level = 2 * p.spec[0].Limit
	p.spec[0].Guaranteed = true
	for i := range p.spec[1:] {
		p.spec[1+i].Request, p.spec[1+i].Limit = 0, 0
	}
	m.limitPod(p)
}

func (p *fakePod) limit() (sum uint64) {
	if p.level > 0 {
		return p.level
	}
	for _, c := range p.spec {
		sum += c.Limit
	}
	return sum
}

func (p *fakePod) facts() *pods.Pod {
	facts := &pods.Pod{Ref: p.Ref(), Class: p.class, Containers: append([]pods.Container{}, p.spec...)}
	if p.level > 0 {
		level := p.level
		facts.PodRequest, facts.PodLimit = &level, &level
	}
	return facts
}

// ask is what the kubelet asks the runtime for.
func (m *fakeHost) ask(p *fakePod, spec pods.Container) *fakeContainer {
	m.made++
	c := &fakeContainer{Container: Container{ID: fmt.Sprintf("%s-%s%d", p.Name, spec.Name, m.made), PodID: p.ID, Name: spec.Name}}
	c.CgroupsPath, c.dir = m.runtime.Path(p.CgroupParent, c.ID)
	if has := cmp.Or(spec.Limit, p.level); has > 0 { // the kubelet gives a container without a limit its pod's
		c.Resources.MemoryLimit = limit(int64(has))
	}
	if p.class == memoryqos.Burstable {
		c.Resources.OOMScoreAdj = limit(int64(min(max(1000-1000*spec.Request/(32*gi), 3), 999)))
	}
	return c
}

// create makes a container with what the kubelet asks for and the plugin answers.
func (m *fakeHost) create(p *fakePod, c *fakeContainer, answer Adjustment) {
	c.enter(&m.runtime, answer)
	p.containers[c.Name] = c
}

// enter has a runtime create a container.
func (c *fakeContainer) enter(runtime *cri.Record, answer Adjustment) {
	c.record = &api.Container{Id: c.ID, PodSandboxId: c.PodID, Name: c.Name, Linux: &api.LinuxContainer{
		CgroupsPath: c.CgroupsPath, Resources: resourcesOf(c.Resources, answer),
	}}
	if score := c.Resources.OOMScoreAdj; score != nil {
		c.record.Linux.OomScoreAdj = &api.OptionalInt{Value: *score}
	}
	must(runtime.Create(c.record))
	c.told()
}

// resourcesOf is what the kubelet asks for with what the plugin answers, as NRI names it.
func resourcesOf(asked Resources, answer Adjustment) *api.LinuxResources {
	all := with(asked, answer)
	return &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(all.MemoryLimit)}, Cpu: &api.LinuxCPU{Mems: all.Mems}, Unified: all.Unified}
}

// run has a created container run.
func (c *fakeContainer) run() {
	c.record.State = api.ContainerState_CONTAINER_RUNNING
	c.told()
}

// update changes a container as the kubelet asks and the plugin answers.
func (m *fakeHost) update(c *fakeContainer, to Resources, answer Adjustment) {
	must(m.runtime.Update(c.record, resourcesOf(to, answer)))
	c.told()
}

// correct has the runtime know that a file of a container holds the kernel's default.
func (m *fakeHost) correct(c *fakeContainer, file string) {
	m.runtime.Correct(c.record, &api.LinuxResources{Unified: map[string]string{file: cgroup.Default(file)}})
	c.told()
}

// restart restarts the runtime.
func (m *fakeHost) restart() {
	m.runtime.Restart()
	for _, p := range m.pods {
		for _, c := range p.containers {
			c.told()
		}
	}
}

// exit ends a container's processes: its cgroup is removed.
func (m *fakeHost) exit(c *fakeContainer) {
	must(m.runtime.Exit(c.record))
	c.told()
}

// end ends a pod: its containers' and its own cgroup are removed.
func (m *fakeHost) end(p *fakePod) {
	for _, c := range p.containers {
		m.exit(c)
	}
	must(m.Remove(p.dir))
	p.stopped = true
}

// list is what the runtime has: all sandboxes, and the containers that were created or run.
func (m *fakeHost) list() (pods []Pod, containers []Container) {
	for _, p := range m.pods {
		pods = append(pods, p.Pod)
	}
	for _, c := range m.runtime.Living() {
		containers = append(containers, nriplugin.ContainerOf(c))
	}
	return pods, containers
}

// find finds a container that lives.
func (m *fakeHost) find(id string) *fakeContainer {
	for _, p := range m.pods {
		for _, c := range p.containers {
			if c.ID == id && c.State.Alive() {
				return c
			}
		}
	}
	return nil
}

// Remove removes a cgroup; systemd does not write into it meanwhile.
func (m *fakeHost) Remove(dir string) error {
	remove := m.Folder.Remove
	if m.systemd != nil {
		remove = m.systemd.Remove
	}
	maps.DeleteFunc(m.foreign, func(file string, _ bool) bool { return strings.HasPrefix(file, dir+"/") })
	return remove(dir)
}

// read is what a file shows, the kernel's default when it was never written.
func (m *fakeHost) read(dir, file string) string {
	text, err := m.Read(dir, file)
	must(err)
	return cmp.Or(text, cgroup.Default(file))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// systemdMode and what follows are systemd's names, as the tests use them.
type systemdMode = systemd.Mode

const (
	answers      = systemd.Answers
	absent       = systemd.Absent
	systemdModes = systemd.Modes
)

// settled waits until the plugin's queue has done what it can while systemd answers as it does.
func (m *fakeHost) settled(p *protect.Protector) {
	for {
		mode, stuck := m.systemd.Mode()
		switch {
		case mode == answers:
			err := p.Flush(context.Background())
			for errors.Is(err, protect.ErrNoSystemd) { // the call that found nobody ends only now
				err = p.Flush(context.Background())
			}
			must(err)
			return
		case stuck || p.Unconfirmed() == 0:
			return
		}
		runtime.Gosched()
	}
}

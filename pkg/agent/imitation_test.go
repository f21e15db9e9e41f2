package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
)

// imitation is a kubelet, a runtime and a systemd over a folder tree, without a plugin.
type imitation struct {
	root    string
	crio    bool // the runtime is CRI-O 1.35, else containerd 2.4
	inner   bool // crun's cgroup inside each container's
	systemd *imitatedSystemd
	pods    []*imitatedPod
	made    int
	// foreign are the files that another writer has written: what they hold is its value where the plugin desires none.
	foreign map[string]bool
}

// imitatedPod is a pod with the spec that the kubelet has admitted.
type imitatedPod struct {
	Pod
	class      memoryqos.QOSClass
	level      uint64 // pod-level request and limit; 0 is none
	dir        string
	spec       []pods.Container
	containers map[string]*imitatedContainer // the newest of each name
	stopped    bool                          // the sandbox has been stopped and not been removed
}

// imitatedContainer is a container as the runtime's record has it.
type imitatedContainer struct {
	Container
	created Resources // the record of its creation
	dir     string
}

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
func (m *imitation) runPod(class memoryqos.QOSClass, containers int, size uint64) *imitatedPod {
	m.made++
	p := &imitatedPod{class: class, containers: map[string]*imitatedContainer{}}
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
	m.mkdir(p.dir)
	m.limitPod(p)
	m.pods = append(m.pods, p)
	return p
}

// limitPod has the kubelet write a pod's own limit.
func (m *imitation) limitPod(p *imitatedPod) {
	if p.class == memoryqos.Guaranteed {
		m.write(p.dir, "memory.max", bytesOf(p.limit()))
	}
}

// share gives a pod resources of its own: its first container keeps its request, the others have none.
func (m *imitation) share(p *imitatedPod) {
	p.level = 2 * p.spec[0].Limit
	p.spec[0].Guaranteed = true
	for i := range p.spec[1:] {
		p.spec[1+i].Request, p.spec[1+i].Limit = 0, 0
	}
	m.limitPod(p)
}

func (p *imitatedPod) limit() (sum uint64) {
	if p.level > 0 {
		return p.level
	}
	for _, c := range p.spec {
		sum += c.Limit
	}
	return sum
}

func (p *imitatedPod) facts() *pods.Pod {
	facts := &pods.Pod{Ref: p.Ref(), Class: p.class, Containers: append([]pods.Container{}, p.spec...)}
	if p.level > 0 {
		level := p.level
		facts.PodRequest, facts.PodLimit = &level, &level
	}
	return facts
}

// ask is what the kubelet asks the runtime for.
func (m *imitation) ask(p *imitatedPod, spec pods.Container) *imitatedContainer {
	m.made++
	c := &imitatedContainer{Container: Container{ID: fmt.Sprintf("%s-%s%d", p.Name, spec.Name, m.made), PodID: p.ID, Name: spec.Name}}
	name := c.ID
	switch {
	case m.systemd == nil && m.crio:
		name = "crio-" + c.ID
		c.CgroupsPath = p.CgroupParent + "/" + name
	case m.systemd == nil:
		c.CgroupsPath = p.CgroupParent + "/" + c.ID
	default:
		prefix := "cri-containerd"
		if m.crio {
			prefix = "crio"
		}
		name = prefix + "-" + c.ID + ".scope"
		c.CgroupsPath = path.Base(p.CgroupParent) + ":" + prefix + ":" + c.ID
	}
	c.dir = p.dir + "/" + name
	if has := cmp.Or(spec.Limit, p.level); has > 0 { // the kubelet gives a container without a limit its pod's
		c.Resources.MemoryLimit = limit(int64(has))
	}
	if p.class == memoryqos.Burstable {
		c.Resources.OOMScoreAdj = limit(int64(min(max(1000-1000*spec.Request/(32*gi), 3), 999)))
	}
	return c
}

// create makes a container with the resources that its record has.
func (m *imitation) create(p *imitatedPod, c *imitatedContainer) {
	c.State, c.created = Created, c.Resources
	m.mkdir(c.dir)
	if m.inner {
		m.mkdir(c.dir + "/container")
	}
	p.containers[c.Name] = c
	m.apply(c, c.Resources)
}

// update lays resources over a container's record and applies them: containerd all of its record, CRI-O what it was asked for.
func (m *imitation) update(c *imitatedContainer, to Resources, answer Adjustment) {
	c.Resources = with(c.Resources.Updated(to), answer)
	if m.crio {
		m.apply(c, with(to, answer))
		return
	}
	m.apply(c, c.Resources)
}

// apply has the OCI runtime write resources.
func (m *imitation) apply(c *imitatedContainer, r Resources) {
	files := maps.Clone(r.Unified)
	if files == nil {
		files = map[string]string{}
	}
	if r.Mems != "" {
		files["cpuset.mems"] = r.Mems
	}
	if r.MemoryLimit != nil && *r.MemoryLimit > 0 {
		files["memory.max"] = strconv.FormatInt(*r.MemoryLimit&^4095, 10) // as the kernel shows it
	}
	for file, text := range files {
		m.write(c.dir, file, text)
		if m.inner {
			m.write(c.dir+"/container", file, text)
		}
	}
	if m.systemd != nil {
		m.systemd.runtime(c.dir, files)
	}
}

// exit ends a container's processes: its cgroup is removed.
func (m *imitation) exit(c *imitatedContainer) {
	c.State = Stopped
	m.rmdir(c.dir)
}

// end ends a pod: its containers' and its own cgroup are removed.
func (m *imitation) end(p *imitatedPod) {
	for _, c := range p.containers {
		c.State = Stopped
	}
	m.rmdir(p.dir)
	p.stopped = true
}

// list is what the runtime has: all sandboxes, and the containers that were created or run.
func (m *imitation) list() (pods []Pod, containers []Container) {
	for _, p := range m.pods {
		pods = append(pods, p.Pod)
		for _, c := range p.containers {
			if c.State.Alive() {
				containers = append(containers, c.Container)
			}
		}
	}
	return pods, containers
}

// find finds a container that lives.
func (m *imitation) find(id string) *imitatedContainer {
	for _, p := range m.pods {
		for _, c := range p.containers {
			if c.ID == id && c.State.Alive() {
				return c
			}
		}
	}
	return nil
}

func (m *imitation) path(dir, file string) string { return filepath.Join(m.root, dir, file) }

func (m *imitation) mkdir(dir string) { must(os.MkdirAll(m.path(dir, ""), 0o755)) }

func (m *imitation) rmdir(dir string) {
	if m.systemd != nil { // which does not write into a cgroup that is being removed
		m.systemd.mu.Lock()
		defer m.systemd.mu.Unlock()
	}
	err := os.RemoveAll(m.path(dir, ""))
	for errors.Is(err, unix.ENOTEMPTY) { // the plugin has written a file meanwhile, which a kernel does not let in
		err = os.RemoveAll(m.path(dir, ""))
	}
	must(err)
	maps.DeleteFunc(m.foreign, func(file string, _ bool) bool { return strings.HasPrefix(file, dir+"/") })
}

// write replaces what a file holds in one step, as in a kernel's file: it is never cut short first, and so the text is padded to
// be longer than any.
func (m *imitation) write(dir, file, text string) {
	f, err := os.OpenFile(m.path(dir, file), os.O_WRONLY|os.O_CREATE, 0o644)
	must(err)
	_, err = fmt.Fprintf(f, "%-24s\n", text)
	must(errors.Join(err, f.Close()))
}

func (m *imitation) there(dir string) bool {
	_, err := os.Stat(m.path(dir, ""))
	return err == nil
}

// read is what a file shows, the kernel's default when it was never written.
func (m *imitation) read(dir, file string) string {
	data, err := os.ReadFile(m.path(dir, file))
	if errors.Is(err, os.ErrNotExist) {
		return cgroup.Default(file)
	}
	must(err)
	return strings.TrimSpace(string(data))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// imitatedSystemd holds properties of units, and writes all that it holds for a unit whenever it is asked to set one.
type imitatedSystemd struct {
	*imitation

	mu      sync.Mutex
	mode    systemdMode
	held    map[string]map[cgroup.Knob]uint64 // by cgroup
	release chan struct{}                     // closed when a call that waits may go on
	waiting bool                              // one does
	refused bool                              // a call has failed in this mode
	orphans []func()                          // calls whose caller did not wait for their end
}

// systemdMode is how systemd answers.
type systemdMode int

const (
	answers systemdMode = iota
	absent              // nobody listens
	failing             // an error
	losing              // it sets the properties, and its answer is lost
	slow                // it answers when it has been released
	systemdModes
)

func (s systemdMode) String() string {
	return [...]string{"answers", "is absent", "fails", "loses its answers", "is slow"}[s]
}

// SetMemory implements protect.Units.
func (s *imitatedSystemd) SetMemory(ctx context.Context, unit string, values map[cgroup.Knob]uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := s.dir(unit)
	switch s.mode {
	case absent:
		s.refused = true
		return protect.ErrNoSystemd
	case failing, losing:
		if s.refused = true; s.mode == losing {
			s.set(dir, values)
		}
		return errors.New("systemd: an error of the test")
	case slow:
		release := s.release
		s.waiting = true
		s.mu.Unlock()
		var err error
		select {
		case <-release:
		case <-ctx.Done():
			err = ctx.Err()
		}
		s.mu.Lock()
		s.waiting = false
		if err != nil { // it has the request all the same
			s.orphans = append(s.orphans, func() { s.set(dir, values) })
			return err
		}
	}
	if dir == "" {
		return protect.ErrNoUnit
	}
	s.set(dir, values)
	return nil
}

// dir finds a unit's cgroup; "" when there is none.
func (s *imitatedSystemd) dir(unit string) string {
	for dir := range s.held {
		if path.Base(dir) == unit {
			return dir
		}
	}
	return ""
}

// loaded makes the units known whose cgroups are there. The plugin's goroutines do not run meanwhile.
func (s *imitatedSystemd) loaded(dirs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, dir := range dirs {
		if s.held[dir] == nil {
			s.held[dir] = map[cgroup.Knob]uint64{}
		}
	}
}

// set sets properties of a unit that is loaded and writes all that it has.
func (s *imitatedSystemd) set(dir string, values map[cgroup.Knob]uint64) {
	if s.held[dir] == nil || !s.there(dir) {
		return
	}
	maps.Copy(s.held[dir], values)
	s.rewrite(dir)
}

func (s *imitatedSystemd) rewrite(dir string) {
	for knob, value := range s.held[dir] {
		text := cgroup.FormatLimit(value)
		if knob == cgroup.CpusetMems {
			text = nodeset.Set(value).String()
		}
		s.write(dir, string(knob), text)
	}
}

// runtime takes the properties that a runtime sets with a container's files.
func (s *imitatedSystemd) runtime(dir string, files map[string]string) {
	s.loaded(dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	for file, text := range files {
		if file == "memory.max" {
			continue
		}
		if file == "cpuset.mems" {
			nodes, err := nodeset.Parse(text)
			must(err)
			s.held[dir][cgroup.CpusetMems] = uint64(nodes)
			continue
		}
		value, err := cgroup.ParseLimit([]byte(text))
		must(err)
		s.held[dir][cgroup.Knob(file)] = value
	}
}

// holds reports whether it has properties of any unit.
func (s *imitatedSystemd) holds() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, held := range s.held {
		if len(held) > 0 {
			return true
		}
	}
	return false
}

// reload is a daemon-reload: every unit's files hold what systemd holds, and the kernel's default where it holds nothing.
func (s *imitatedSystemd) reload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for dir, held := range s.held {
		if !s.there(dir) {
			delete(s.held, dir)
			continue
		}
		if strings.HasSuffix(dir, ".slice") {
			for _, knob := range []cgroup.Knob{cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh} {
				if _, set := held[knob]; !set {
					s.write(dir, string(knob), cgroup.Default(string(knob)))
				}
			}
		}
		s.rewrite(dir)
	}
}

// turn changes the mode. Calls that wait go on, and those that were abandoned are carried out.
func (s *imitatedSystemd) turn(mode systemdMode) {
	s.mu.Lock()
	if s.release != nil {
		close(s.release)
	}
	s.mode, s.refused, s.release = mode, false, make(chan struct{})
	orphans := s.orphans
	s.orphans = nil
	for _, call := range orphans {
		call()
	}
	s.mu.Unlock()
}

// settled waits until the plugin's queue has done what it can in this mode.
func (s *imitatedSystemd) settled(p *protect.Protector) {
	for {
		s.mu.Lock()
		mode, stuck := s.mode, s.waiting || s.refused
		s.mu.Unlock()
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

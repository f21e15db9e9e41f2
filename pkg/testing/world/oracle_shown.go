package world

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	shown   Promise = "status and metrics show what runs and what it is allocated"
	counted Promise = "each change by another writer that is repaired is counted, and nothing else"
)

// admin is the socket that one life of the daemon answers status and metrics on.
type admin struct {
	clients chan net.Conn
	closed  chan struct{}
	close   func()
}

func newAdmin() *admin {
	a := &admin{clients: make(chan net.Conn), closed: make(chan struct{})}
	a.close = sync.OnceFunc(func() { close(a.closed) })
	return a
}

// Accept and what follows implement net.Listener.
func (a *admin) Accept() (net.Conn, error) {
	select {
	case conn := <-a.clients:
		return conn, nil
	case <-a.closed:
		return nil, net.ErrClosed
	}
}

func (a *admin) Close() error   { a.close(); return nil }
func (a *admin) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func (a *admin) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, daemon := net.Pipe() // unlike a socket it has deadlines, by which net/http ends a read
	select {
	case a.clients <- unixPipe{daemon}:
		return client, nil
	case <-a.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// unixPipe is a pipe that net/http takes for the socket.
type unixPipe struct{ net.Conn }

func (unixPipe) LocalAddr() net.Addr  { return &net.UnixAddr{Net: "unix"} }
func (unixPipe) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// get asks the daemon.
func (a *admin) get(path string) ([]byte, error) { return a.ask(http.MethodGet, path) }

func (a *admin) ask(method, path string) ([]byte, error) {
	transport := &http.Transport{DialContext: a.dial, DisableKeepAlives: true}
	client := http.Client{Transport: transport, Timeout: 30 * time.Second}
	request, err := http.NewRequest(method, "http://localhost"+path, nil)
	must(err)
	reply, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s", method, path, reply.Status)
	}
	return io.ReadAll(reply.Body)
}

// statusDocument is what the oracles read of /status.
type statusDocument struct {
	Nodes []struct {
		ID     int `json:"id"`
		Memory []struct {
			Type                         string
			Allocatable, Allocated, Free uint64
		} `json:"memory"`
	} `json:"nodes"`
	Pods []struct {
		UID, Name  string
		Containers []struct {
			Name, ID, State string
			Blocks          []struct {
				NUMANodes []int `json:"numaNodes"`
				Type      string
				Size      uint64
			} `json:"blocks"`
			Mems      string `json:"cpusetMems"`
			Migration struct{ State string }
		}
	} `json:"pods"`
	Ancestors []struct {
		Cgroup  string
		RealMin *uint64 `json:"realMemoryMin"`
		RealLow *uint64 `json:"realMemoryLow"`
	} `json:"ancestors"`
	Claims *struct {
		Prepared []struct{ UID string }
	} `json:"claims"`
	Overwrites []struct {
		Level, File string
		Count       uint64
	} `json:"overwrites"`
	RequestSources []struct {
		Source, Problem string
		Connected       bool
	} `json:"requestSources"`
	Policy struct {
		Profile, TopologyManagerPolicy, MemoryReservationPolicy string
		StallGuard                                              bool
	} `json:"policy"`
}

// mostMoved is the default of maxMigrationBytes: beyond it, status says that cpuset.mems is not written.
const mostMoved = 256 * mi

// answers are what the daemon says of itself at one moment.
type answers struct {
	status  statusDocument
	metrics map[string]uint64 // by NAME{LABELS}
	problem error
}

func (n *simulation) answers() (a answers) {
	at := n.current().admin
	text, err := at.get("/status")
	if err == nil {
		err = json.Unmarshal(text, &a.status)
	}
	if err == nil {
		text, err = at.get("/metrics")
	}
	a.metrics, a.problem = map[string]uint64{}, err
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if number, err := strconv.ParseFloat(value, 64); err == nil && (strings.HasPrefix(name, "nri_") || strings.HasPrefix(name, "memory_")) {
			a.metrics[name] = uint64(number)
		}
	}
	return a
}

// asShown compares what the daemon says with what runs and with the state file. What crashes in that moment is looked at again a little later.
func (n *simulation) asShown() {
	for try := 1; ; try++ {
		a := n.answers()
		var wrong []string
		n.judge(func() { wrong = n.differences(a) })
		if len(wrong) == 0 {
			n.judge(func() {
				n.overwritesCounted(a)
				n.killsShown(a)
				n.raisesCounted(a)
				n.reclaimsCounted(a)
			})
			return
		}
		if try == 3 {
			n.judge(func() {
				for _, text := range wrong {
					n.broken(shown, "%s", text)
				}
			})
			return
		}
		time.Sleep(3 * time.Second)
	}
}

// differences are those between what the daemon says, what runs and the state file.
func (n *simulation) differences(a answers) (wrong []string) {
	if a.problem != nil {
		return []string{a.problem.Error()}
	}
	wrong = append(n.runDifferences(a), n.countDifferences(a)...)
	if !n.settings().places() {
		return wrong
	}
	return slices.Concat(wrong, n.blockDifferences(a), n.nodeDifferences(a), n.claimDifferences(a))
}

// runDifferences compares the containers that status shows as running with those that do.
func (n *simulation) runDifferences(a answers) (wrong []string) {
	runs := map[string]LiveContainer{}
	for _, c := range n.containers() {
		if n.runs(c) {
			runs[c.ID] = c
		}
	}
	places := n.settings().places()
	for _, p := range a.status.Pods {
		for _, c := range p.Containers {
			if c.State != "running" {
				continue
			}
			live, there := runs[c.ID]
			delete(runs, c.ID)
			switch {
			case !there:
				wrong = append(wrong, fmt.Sprintf("status shows %s/%s as running, which has ended", p.Name, c.ID))
			case places && c.Mems != "" && bits(c.Mems) != bits(n.text(live.Cgroup, "cpuset.mems")) && !(c.Migration.State == "blocked" && n.kernel.number(live.Cgroup, "memory.current") > mostMoved):
				wrong = append(wrong, fmt.Sprintf("status has %s/%s with cpuset.mems %s, which is %q", p.Name, c.Name, c.Mems, n.text(live.Cgroup, "cpuset.mems")))
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(runs)) {
		wrong = append(wrong, fmt.Sprintf("status does not show container %s, which runs", id))
	}
	return wrong
}

// blockDifferences compares what status shows to be allocated with the state file, and for a container with claims with these: all of them, or
// nothing where another pod has one.
func (n *simulation) blockDifferences(a answers) (wrong []string) {
	file, shared := n.stateFile(), n.contesting()
	for _, p := range a.status.Pods {
		for _, c := range p.Containers {
			var blocks []block
			for _, b := range c.Blocks {
				blocks = append(blocks, block{b.NUMANodes, b.Type, b.Size})
			}
			has := file.Entries[p.UID][c.Name]
			claims := n.blocksOf(p.UID, c.Name)
			if len(claims) > 0 && c.State == "running" && n.drives() && (len(blocks) > 0 || !shared[p.UID+"/"+c.Name]) {
				has = claims
			}
			if fmt.Sprint(blocks) != fmt.Sprint(has) {
				wrong = append(wrong, fmt.Sprintf("status has %s/%s allocated %v, the state file %v", p.Name, c.Name, blocks, has))
			}
		}
	}
	return wrong
}

// nodeDifferences compares the node map of status and metrics with the state file's.
func (n *simulation) nodeDifferences(a answers) (wrong []string) {
	file := n.stateFile()
	for _, node := range a.status.Nodes {
		for _, m := range node.Memory {
			want := file.MachineState[node.ID].MemoryMap[m.Type]
			metric := func(what string) uint64 {
				return a.metrics[fmt.Sprintf(`nri_memory_manager_numa_%s_bytes{numa_node="%d",type="%s"}`, what, node.ID, m.Type)]
			}
			for _, show := range []struct {
				in    string
				bytes [3]uint64
			}{
				{"status", [3]uint64{m.Allocatable, m.Allocated, m.Free}},
				{"metrics", [3]uint64{metric("allocatable"), metric("allocated"), metric("free")}},
			} {
				if show.bytes != [3]uint64{want.Allocatable, want.Reserved, want.Free} {
					wrong = append(wrong, fmt.Sprintf("NUMA node %d has %v of %s allocatable, allocated and free in %s, and %v in the state file", node.ID, show.bytes, m.Type, show.in, want))
				}
			}
		}
	}
	if len(a.status.Nodes) != len(file.MachineState) {
		wrong = append(wrong, fmt.Sprintf("status shows %d NUMA nodes, the state file %d", len(a.status.Nodes), len(file.MachineState)))
	}
	return wrong
}

// repair is a change by another writer that the daemon has taken back.
type repair struct {
	by          *life
	level, file string
}

// levelOf is how metrics name the level of a cgroup that is overwritten.
func levelOf(target string) string {
	level, _, _ := strings.Cut(target, " ")
	return strings.ToLower(level)
}

// overwritten notes what another writer has changed, and a little later what of it the daemon has taken back.
func (n *simulation) overwritten(level, cgroup string, before memoryQoS) {
	by, after, now := n.current(), n.values(cgroup), time.Now()
	if n.trouble.calm(verdictEach, now).After(now) { // counts only what is repaired while nothing else goes wrong
		return
	}
	if level == "kubepods" && cgroup == n.kubelet.Parent("Burstable") {
		level = "burstable"
	}
	for file, have := range map[string][2]uint64{"memory.min": {before.min, after.min}, "memory.low": {before.low, after.low}, "memory.high": {before.high, after.high}} {
		if have[0] == have[1] {
			continue
		}
		time.AfterFunc(2*time.Second, func() {
			n.judge(func() {
				if n.current() == by && n.kernel.number(cgroup, file) == have[0] {
					n.repairs[repair{by, level, file}]++
				}
			})
		})
	}
}

// overwritesCounted compares what the daemon has counted with what was changed. Who else than the faults writes to the files of containers, as
// they themselves and the runtime do, may be counted there.
func (n *simulation) overwritesCounted(a answers) {
	for r, times := range n.repairs {
		name := fmt.Sprintf(`nri_memory_manager_ancestor_overwrites_total{file="%s",level="%s"}`, r.file, r.level)
		if r.level == "container" {
			name = fmt.Sprintf(`nri_memory_manager_container_overwrites_total{file="%s"}`, r.file)
		}
		if r.by == n.current() && a.metrics[name] < times && !n.scenario.Machine.Systemd { // where it writes, too, and takes changes back
			n.broken(counted, "%s is %d, and %d changes were taken back", name, a.metrics[name], times)
		}
	}
	for _, o := range a.status.Overwrites {
		known := o.Level == "container" || o.Count == 0 || n.scenario.Machine.Systemd // which writes what it holds
		for _, f := range n.scenario.Faults {                                         // in this life or before
			known = known || f.Kind == Reset || f.Kind == Overwritten && (levelOf(f.Target) == o.Level || levelOf(f.Target) == "kubepods" && o.Level == "burstable")
		}
		if !known {
			n.broken(counted, "%s of %s is counted %d times, and nobody has written it", o.File, o.Level, o.Count)
		}
	}
}

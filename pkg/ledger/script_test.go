package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
)

// TestScripts runs the files in testdata: each is a node's life, with what has to happen after each event. A script reads
//
//	create web app memory=4Gi
//	----
//	the answer, the files that are written, the allocations that are stored, and what is logged
//
// An outcome that is meant to change is written anew by `go test ./pkg/ledger -run Scripts -rewrite`, and read before it is committed.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{T: t, ids: map[string]int{}, infos: map[string]*pods.Pod{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.T, s.TestData = t, d
			return s.run()
		})
	})
}

// script is a node on which a script's events happen, a second after one another.
type script struct {
	*testing.T
	*datadriven.TestData
	l     *Ledger
	now   int64
	pods  []Pod
	alive []Container          // as the runtime has them
	ids   map[string]int       // runs of containers so far, by pod and name
	infos map[string]*pods.Pod // what a pod API says
}

// keys are the arguments with values.
var keys = []string{"annotate", "class", "containers", "memory", "mems", "oomgroup", "score", "to"}

func (s *script) run() string {
	for _, arg := range s.CmdArgs {
		if len(arg.Vals) > 0 && !slices.Contains(keys, arg.Key) {
			s.T.Fatalf("%s: no such argument: %s, want one of %v", s.Pos, arg.Key, keys)
		}
	}
	switch s.Cmd {
	case "node":
		return s.node()
	case "reopen":
		s.l = reopened(s.T, s.l)
		return ""
	case "score": // what the views say of a container's oom_score_adj and its request
		for _, pod := range s.l.View().Pods {
			for _, c := range pod.Containers {
				if c.ID == s.container().ID {
					return fmt.Sprintf("%s; request %s from %s; %s\n", c.Order(), quantity.Short(c.Request), c.Source, cmp.Or(c.NoOOMScore, "as wanted"))
				}
			}
		}
	case "missed": // a container is created while nobody listens
		s.add(Running)
		return ""
	}
	s.now++
	return s.difference(s.l.Step(time.Unix(s.now, 0), s.event()))
}

// node begins with a configuration on a machine of two or three NUMA nodes of 16Gi.
func (s *script) node() string {
	on := twoNodes
	if s.HasArg("three") {
		on = threeNodes
	}
	if s.l == nil {
		s.l = newLedgerOn(s.T, on, s.Input)
		s.l.Step(time.Unix(0, 0), Connected{Runtime: Runtime{Name: "containerd", Version: "v2.2.0", ReplyUnified: true, OOMScores: !s.HasArg("old")}})
		s.l.Step(time.Unix(0, 0), Synchronize{})
		return ""
	}
	s.now++
	_, resolved := resolvedOn(s.T, on, s.Input)
	return s.difference(s.l.Step(time.Unix(s.now, 0), Reconfigure{Config: resolved}))
}

func (s *script) event() Event {
	switch s.Cmd {
	case "run":
		return RunPod{Pod: s.pod(true)}
	case "stop":
		pod := s.pod(false)
		if s.HasArg("old") { // another sandbox runs
			pod.ID = strings.TrimSuffix(pod.ID, "-again")
		}
		return EndPod{Pod: pod}
	case "describe":
		return s.describe()
	case "gone": // the pod's cgroup
		pod := s.pod(false)
		return Presence{Gone: []CgroupRef{{UID: pod.UID, ID: pod.ID}}}
	case "synchronize":
		return Synchronize{Pods: s.pods, Containers: s.alive}
	case "create":
		pod := s.pod(false)
		return CreateContainer{Pod: pod, Container: s.add(Created), Facts: Facts{PodInfo: s.known(pod)}}
	}
	c := s.container()
	switch s.Cmd {
	case "start":
		c.State = Running
		return StartContainer{Pod: s.pod(false), Container: *c}
	case "update":
		to := s.resources()
		c.Resources = c.Resources.Updated(to)
		at, _ := s.l.CgroupOf(c.ID)
		return UpdateContainer{Pod: s.pod(false), Container: *c, To: to, Facts: Facts{PodInfo: s.known(s.pod(false)), Usage: map[string]Usage{at.Cgroup: {}}}}
	case "updated":
		return FinishUpdate{ID: c.ID}
	case "end":
		id := c.ID
		s.alive = slices.DeleteFunc(s.alive, func(other Container) bool { return other.ID == id })
		return EndContainer{ID: id}
	case "raise":
		return Raise{ID: c.ID, Bytes: s.bytes("to")}
	case "shows": // memory.max, another than was asked for
		at, _ := s.l.CgroupOf(c.ID)
		limit := s.bytes("memory")
		return Observed{ID: c.ID, Revision: at.Revision, Limit: limit}
	}
	s.T.Fatalf("%s: no such event: %s", s.Pos, s.Cmd)
	return nil
}

// pod is the first argument; a new one is of the class that the second one names.
func (s *script) pod(anew bool) Pod {
	name := s.CmdArgs[0].Key
	i := slices.IndexFunc(s.pods, func(p Pod) bool { return p.Name == name })
	if i < 0 {
		class, ok := map[string]string{"guaranteed": "", "burstable": "burstable/", "besteffort": "besteffort/"}[s.CmdArgs[1].Key]
		if !ok {
			s.T.Fatalf("%s: no such class: %s", s.Pos, s.CmdArgs[1].Key)
		}
		i, s.pods = len(s.pods), append(s.pods, claimPod(name, class))
		if s.HasArg("annotate") {
			s.pods[i].Annotations = map[string]string{}
			for _, text := range s.values("annotate") {
				key, value, _ := strings.Cut(text, ":")
				s.pods[i].Annotations[key+".memory-manager.noderesource.dev"] = value
			}
		}
	} else if anew {
		s.pods[i].ID += "-again"
	}
	return s.pods[i]
}

// add adds a container that the second argument names.
func (s *script) add(phase Phase) Container {
	pod, name := s.pod(false), s.CmdArgs[1].Key
	key := pod.Name + "-" + name
	if s.ids[key]++; s.ids[key] > 1 {
		key += fmt.Sprint("-", s.ids[key])
	}
	c := Container{ID: key, PodID: pod.ID, Name: name, CgroupsPath: pod.CgroupParent + "/" + key, Resources: s.resources(), State: phase,
		HasMemset: s.HasArg("has-memset")}
	s.alive = append(s.alive, c)
	return c
}

// container is the living one that the second argument names.
func (s *script) container() *Container {
	pod, name := s.pod(false), s.CmdArgs[1].Key
	for i := range s.alive {
		if c := &s.alive[i]; c.Name == name && strings.HasPrefix(c.ID, pod.Name+"-") {
			return c
		}
	}
	s.T.Fatalf("%s: pod %s has no container %s", s.Pos, pod.Name, name)
	return nil
}

func (s *script) resources() (r Resources) {
	if s.HasArg("memory") {
		limit := int64(s.bytes("memory"))
		r.MemoryLimit = &limit
	}
	if s.HasArg("mems") {
		r.Mems = s.values("mems")[0]
	}
	if s.HasArg("score") {
		score, err := strconv.ParseInt(s.values("score")[0], 10, 64)
		if err != nil {
			s.T.Fatalf("%s: %v", s.Pos, err)
		}
		r.OOMScoreAdj = &score
	}
	if s.HasArg("oomgroup") {
		r.OOMGroup = s.values("oomgroup")[0]
	}
	return r
}

// describe has a pod API say what the containers of a pod ask for: name:role:request:limit, the role app, init or sidecar.
func (s *script) describe() Event {
	pod := s.pod(false)
	path, _, _ := pod.Path()
	info := &pods.Pod{Ref: pod.Ref(), Class: path.Class}
	if s.HasArg("class") {
		info.PriorityClass = s.values("class")[0]
	}
	for _, text := range s.values("containers") {
		part := strings.Split(text, ":")
		c := pods.Container{Name: part[0], Kind: map[string]memoryqos.Kind{"app": memoryqos.App, "init": memoryqos.Init, "sidecar": memoryqos.Sidecar}[part[1]]}
		c.Request, c.Limit = s.quantity(part[2]), s.quantity(part[3])
		info.Containers = append(info.Containers, c)
	}
	s.infos[pod.UID] = info
	return PodFacts{UID: pod.UID, PodInfo: s.known(pod)}
}

func (s *script) known(pod Pod) pods.Answer {
	if info := s.infos[pod.UID]; info != nil {
		return pods.Answer{Source: memoryqos.SourceKubelet, Pod: info}
	}
	return pods.Answer{}
}

func (s *script) values(key string) []string {
	for _, arg := range s.CmdArgs {
		if arg.Key == key {
			return arg.Vals
		}
	}
	return nil
}

func (s *script) bytes(key string) uint64 { return s.quantity(s.values(key)[0]) }

func (s *script) quantity(text string) uint64 {
	bytes, err := quantity.Parse(text)
	if err != nil {
		s.T.Fatalf("%s: %v", s.Pos, err)
	}
	return bytes
}

// difference is what has to happen after a Step, a line each.
func (s *script) difference(e Effects) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if e.DryRun {
		return "nothing: a dry run\n"
	}
	if e.Err != nil {
		add("refused: %s", strings.Join(strings.Fields(e.Err.Error()), " "))
	}
	if !e.Answer.Empty() {
		add("answer: %s", spoken(e.Answer))
	}
	for _, delta := range e.Allocations {
		entries, nodes := delta.Allocations.Entries, delta.Nodes
		if delta.State != nil {
			entries, nodes = delta.State.Entries, delta.State.Nodes
		}
		add("stored: %s", allocations(entries, nodes))
	}
	files := e.Files
	if e.AllFiles {
		files = s.l.Targets()
	}
	for _, target := range files {
		by := ""
		if target.ByRuntime {
			by = " (by the runtime)"
		}
		add("%s: %s%s", target.Cgroup, held(target), by)
	}
	for _, dir := range e.Ended {
		add("%s: nothing any more", dir)
	}
	for _, update := range s.l.updates(e.Sync...) {
		add("the runtime is asked for %s: %s", update.ContainerID, spoken(update.Adjustment))
	}
	for _, w := range e.Journal {
		if before, written := w.Asked[string(cgroup.MemoryOOMGroup)]; written {
			add("rollback gives %s: memory.oom.group=%s", w.Cgroup, before)
		}
	}
	for _, ref := range e.Forget {
		add("forgotten: %s", ref.Name)
	}
	for _, note := range e.Notes {
		if note.Level > Info {
			add("log: %s", note.Text)
		}
	}
	if lines == nil {
		return "nothing\n"
	}
	return strings.Join(lines, "\n") + "\n"
}

func spoken(a Adjustment) string {
	var parts []string
	if a.CpusetMems != "" {
		parts = append(parts, "cpuset.mems="+a.CpusetMems)
	}
	for _, knob := range []cgroup.Knob{cgroup.MemoryMin, cgroup.MemoryLow, cgroup.MemoryHigh, cgroup.MemoryOOMGroup} {
		if text, set := a.Unified[string(knob)]; set {
			parts = append(parts, string(knob)+"="+readable(text))
		}
	}
	if a.Memset != "" {
		parts = append(parts, MemsetVariable+"="+a.Memset)
	}
	if a.OOMScore != nil {
		parts = append(parts, a.OOMScore.String())
	}
	return strings.Join(parts, " ")
}

// spokenOf are updates of containers by id.
func spokenOf(updates []Update) string {
	var parts []string
	for _, update := range updates {
		parts = append(parts, update.ContainerID+": "+spoken(update.Adjustment))
	}
	return strings.Join(parts, "; ")
}

func readable(text string) string {
	if bytes, err := quantity.Parse(text); err == nil {
		return quantity.Short(bytes)
	}
	return text
}

func held(target cgroup.Target) string {
	var parts []string
	if target.Mems != "" {
		parts = append(parts, "cpuset.mems="+target.Mems)
	}
	for _, value := range []struct {
		knob cgroup.Knob
		is   *uint64
	}{
		{cgroup.MemoryMin, target.Values.Min}, {cgroup.MemoryLow, target.Values.Low}, {cgroup.MemoryHigh, target.Values.High},
		{cgroup.MemoryOOMGroup, target.Values.OOMGroup},
	} {
		if value.is != nil {
			parts = append(parts, string(value.knob)+"="+cgroup.Readable(*value.is))
		}
	}
	if parts == nil {
		return "the kernel's defaults"
	}
	return strings.Join(parts, " ")
}

func allocations(entries []memorymanager.Entry, nodes []memorymanager.NodeState) string {
	var parts []string
	for _, entry := range entries {
		for _, b := range entry.Blocks {
			parts = append(parts, fmt.Sprintf("%s %s has %s on %s", entry.Pod, entry.Container, quantity.Short(b.Size), b.Nodes.Named()))
		}
	}
	if parts == nil {
		parts = append(parts, "no allocation")
	}
	for _, node := range nodes {
		for _, table := range node.Memory {
			if table.Type == memorymanager.Memory {
				parts = append(parts, fmt.Sprintf("node %d %s free", node.ID, quantity.Short(table.Free)))
			}
		}
	}
	return strings.Join(parts, ", ")
}

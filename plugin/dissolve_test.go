package main

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

const dissolves = "topologyManagerPolicy: best-effort\nkubeReserved: {memory: 924Mi}\nrebalance: {consolidate: true, maxBytes: 4Gi}\n"

func (h *host) cpusetMems(p *testPod) string {
	h.t.Helper()
	return h.knob(path.Join(p.cgroup(), p.id()), "cpuset.mems")
}

const (
	moved3, moved2 = "uid-b/app 0 3221225472", "uid-a/app 0 2147483648"
	stays2         = "uid-a/app 0-1 2147483648"
)

// The containers of a group that is not needed any more are moved, the larger one first, and the next one only after its pages.
func TestAGroupThatIsNotNeededIsDissolved(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, dissolves)
	plugin := h.start("--record", h.path("recording"))
	large, b, a := guaranteed("large", 20*gi), guaranteed("b", 3*gi), guaranteed("a", 2*gi)
	h.deploy(large, b, a)
	h.on(b, gi, gi)
	h.on(a, gi, gi)
	must(t, h.endPod(large))
	eventually(t, "b has its node", func() bool { return h.cpusetMems(b) == "0" })
	if got := h.entries(); !slices.Equal(got, []string{stays2, moved3}) {
		t.Errorf("while the pages of b move, the allocations are %q", got)
	}
	if got := h.cpusetMems(a); got != "0-1" {
		t.Errorf("cpuset.mems of a is %q before the pages of b have moved", got)
	}
	h.on(b, 2*gi, 1<<20)
	eventually(t, "a has its node", func() bool { return h.cpusetMems(a) == "0" })
	h.on(a, 2*gi, 0)
	eventually(t, "both are counted", func() bool {
		return strings.Contains(plugin.get("/metrics"), `nri_memory_manager_container_moves_total{result="done"} 2`)
	})
	log := plugin.log.String()
	arrived, next := strings.Index(log, "is on its new NUMA nodes\" bytes=1Mi "), strings.LastIndex(log, "moving the memory of a container")
	if arrived < 0 || next < arrived {
		t.Error("the second move began before the first was observed")
	}
	if got := h.entries(); !slices.Equal(got, []string{moved2, moved3}) {
		t.Errorf("the allocations are %q", got)
	}
	eventually(t, "the runtime's records follow", func() bool { return h.mems(a) == "0" && h.mems(b) == "0" })
	const why = "moved from nodes 0-1: its group of nodes is not needed any more"
	wantAll(t, h.ask(0, "explain", "a"), "on node 0, pinned under best-effort, "+why)
	wantAll(t, h.ask(0, "status", "-o", "wide"), why)
	h.deploy(guaranteed("next", 15*gi)) // one node is whole again
	plugin.stop()
	if code, out, errOut := run(t, "", "replay", h.path("recording")); code != 0 || !strings.Contains(out, " 0 differ\n") {
		t.Errorf("replay: exit code %d\n%s%s", code, out, errOut)
	}
	flags := []string{"rollback", "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups"}
	if code, out, errOut := run(t, "", flags...); code != exitOK {
		t.Errorf("rollback: exit code %d\n%s%s", code, out, errOut)
	}
	if code, out, _ := run(t, "", flags...); code != exitOK || out != "nothing to restore\n" {
		t.Errorf("rollback, a second time: exit code %d\n%s", code, out)
	}
}

// A container beyond rebalance.maxBytes is named, and with it all stay, until it has less.
func TestAGroupStaysWithAContainerThatIsTooLarge(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, strings.Replace(dissolves, "4Gi", "1500Mi", 1))
	h.start()
	large, b, a := guaranteed("large", 20*gi), guaranteed("b", 3*gi), guaranteed("a", 2*gi)
	h.deploy(large, b, a)
	h.on(b, gi, 2*gi)
	h.on(a, gi, gi)
	must(t, h.endPod(large))
	const held = "not moved there: that is 2Gi of memory, more than rebalance.maxBytes (1500Mi)"
	wantAll(t, h.shows(held, "status"), "default/b app on node 0 ("+held+"), default/a app on node 0\n")
	wantAll(t, h.ask(0, "explain", "b"), "this one on node 0\n  "+held)
	if h.cpusetMems(a) != "0-1" || h.cpusetMems(b) != "0-1" {
		t.Error("one was moved")
	}
	h.on(b, gi, gi)
	eventually(t, "b has its node", func() bool { return h.cpusetMems(b) == "0" })
}

// A container keeps its nodes while the state file with its new ones is not on disk, also over a crash.
func TestAMoveWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, dissolves)
	plugin := h.start()
	large, b := guaranteed("large", 20*gi), guaranteed("b", 3*gi)
	h.deploy(large, b)
	before := slices.Clone(h.entries())
	h.on(b, gi, gi)
	inTheWay := h.blockStateFile(unix.Mkdir)
	must(t, h.endPod(large))
	said(plugin, "moving the memory of a container")
	failures := regexp.MustCompile(`nri_memory_manager_checkpoint_failures_total ([5-9]|\d\d)`)
	eventually(t, "the writer has tried often", func() bool { return failures.MatchString(plugin.get("/metrics")) })
	if got := h.cpusetMems(b); got != "0-1" {
		t.Errorf("cpuset.mems is %q although the allocation is not on disk", got)
	}
	if diff := cmp.Diff(before, h.entries()); diff != "" {
		t.Errorf("the state file has changed on a disk that fails:\n%s", diff)
	}
	plugin.kill()
	for _, dir := range inTheWay {
		must(t, os.Remove(dir))
	}
	h.start()
	eventually(t, "b has its node", func() bool { return h.cpusetMems(b) == "0" })
	if got := h.entries(); !slices.Equal(got, []string{moved3}) {
		t.Errorf("the allocations are %q", got)
	}
}

// Killed at every step of a move, the plugin leaves no cpuset.mems that the state file does not have, and goes on.
func TestKilledWhileItMoves(t *testing.T) {
	t.Parallel()
	for name, reached := range map[string]func(h *host, b *testPod, plugin *process) bool{
		"decided": func(_ *host, _ *testPod, plugin *process) bool {
			return strings.Contains(plugin.log.String(), "moving the memory of a container")
		},
		"stored":   func(h *host, _ *testPod, _ *process) bool { return slices.Contains(h.entries(), moved3) },
		"written":  func(h *host, b *testPod, _ *process) bool { return h.cpusetMems(b) == "0" },
		"recorded": func(h *host, b *testPod, _ *process) bool { return h.mems(b) == "0" },
		"observed": func(h *host, b *testPod, plugin *process) bool {
			if h.cpusetMems(b) == "0" {
				h.on(b, 2*gi, 0)
			}
			return strings.Contains(plugin.log.String(), "is on its new NUMA nodes")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, cri.Options{}, dissolves)
			large, b, a := guaranteed("large", 20*gi), guaranteed("b", 3*gi), guaranteed("a", 2*gi)
			plugin := h.start()
			h.deploy(large, b, a)
			h.on(b, gi, gi)
			h.on(a, gi, gi)
			must(t, h.endPod(large))
			eventually(t, name, func() bool { return reached(h, b, plugin) })
			plugin.kill()
			if allocated := slices.Contains(h.entries(), moved3); h.cpusetMems(b) == "0" && !allocated {
				t.Errorf("cpuset.mems is 0, and the allocations are %q", h.entries())
			}
			h.start()
			for _, p := range []*testPod{b, a} {
				eventually(t, p.name+" has its node", func() bool { return h.cpusetMems(p) == "0" })
				h.on(p, 2*gi, 0)
			}
			eventually(t, "both are allocated there", func() bool { return slices.Equal(h.entries(), []string{moved2, moved3}) })
			h.deploy(guaranteed("next", 15*gi))
		})
	}
}

// A container that is rejected for want of one node names the move that would make room, and with rebalance.consolidate it is made.
func TestAMoveMakesRoom(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config    string
		namespace string // of the container in the way
		moves     bool
	}{
		"named":                       {"", "", false},
		"named without the namespace": {"", "other", false},
		"made":                        {"rebalance: {consolidate: true, maxBytes: 4Gi}\n", "", true},
		"made, rejected":              {"rebalance: {consolidate: true, maxBytes: 512Mi}\n", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, cri.Options{}, testConfig+test.config)
			plugin := h.start("--record", h.path("recording"))
			first, small, second := guaranteed("first", 10*gi), guaranteed("small", 3*gi), guaranteed("second", 12*gi)
			small.namespace = test.namespace
			h.deploy(first, small, second)
			if h.mems(first) != "0" || h.mems(small) != "0" || h.mems(second) != "1" {
				t.Fatalf("the containers are on %s, %s and %s", h.mems(first), h.mems(small), h.mems(second))
			}
			h.on(small, gi, 0)
			large := guaranteed("large", 5*gi)
			must(t, h.runPod(large))
			var err error
			if test.moves {
				created := make(chan error, 1)
				go func() { created <- h.create(large) }()
				eventually(t, "small is moved", func() bool { return h.cpusetMems(small) == "1" })
				h.on(small, 0, gi)               // as the kernel does
				if err = <-created; err != nil { // it took longer than the runtime waits: the kubelet tries again
					err = h.create(large)
				}
			} else {
				err = h.create(large)
			}
			shown, told := "; it would fit node 0 if default/small app (3Gi) were on node 1:", ""
			if told = shown; test.namespace != "" {
				shown = "; it would fit node 0 if other/small app (3Gi) were on node 1:"
				told = "; it would fit node 0 if a container of another namespace were on node 1:"
			}
			switch {
			case test.moves:
				must(t, err)
				if got := h.mems(large); got != "0" {
					t.Errorf("large is on %s", got)
				}
				eventually(t, "small is on node 1, in the runtime's record, too", func() bool {
					return h.cpusetMems(small) == "1" && h.mems(small) == "1"
				})
				wantAll(t, h.ask(0, "explain", "small"), "moved from node 0: to make room for default/large app")
				if out := h.ask(0, "status"); strings.Contains(out, "REJECTED OR UNPINNED") {
					t.Errorf("a container that was placed is shown as rejected:\n%s", out)
				}
			case err == nil || !strings.Contains(err.Error(), told):
				t.Errorf("the create ended with %v, want %q", err, told)
			default:
				wantAll(t, h.ask(0, "status"), shown)
				if shown != told {
					said(plugin, `relief="it would fit node 0 if other/small app (3Gi) were on node 1"`)
				}
				if got := h.cpusetMems(small); got != "0" {
					t.Errorf("small is on %s", got)
				}
			}
			plugin.stop()
			if code, out, errOut := run(t, "", "replay", h.path("recording")); code != 0 || !strings.Contains(out, " 0 differ\n") {
				t.Errorf("replay: exit code %d\n%s%s", code, out, errOut)
			}
		})
	}
}

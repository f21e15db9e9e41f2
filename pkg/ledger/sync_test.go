package ledger

import (
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// TestAnAnswerMovesNoMoreThanTheBound: a running container with a pending resize, with all nodes, shrinks to what node 0 has. What the
// runtime is told is cpuset.mems with those of its pages in mind that the kernel would move.
func TestAnAnswerMovesNoMoreThanTheBound(t *testing.T) {
	const mi = 1 << 20
	on := func(bytes uint64, set func(*Usage)) map[string]Usage {
		u := Usage{Mems: "0-1", Mapped: cgroup.Mapped{Nodes: nodeset.Of(0, 1), Bytes: map[int]uint64{0: 4 << 30, 1: bytes}}}
		if set != nil {
			set(&u)
		}
		return map[string]Usage{"kubepods/podweb/web-main": u}
	}
	for name, test := range map[string]struct {
		maxBytes string
		usage    map[string]Usage
		want     string
	}{
		"as much as the bound":        {"64Mi", on(64*mi, nil), "0"},
		"more":                        {"64Mi", on(64*mi+4096, nil), "0-1"},
		"more, and it had none":       {"64Mi", on(65*mi, func(u *Usage) { u.Mems = "" }), ""},
		"nothing, and nothing may be": {"0", on(0, nil), "0"},
		"any amount":                  {"1Pi", on(8<<30, nil), "0"},
		"what cannot be counted":      {"64Mi", on(0, func(u *Usage) { u.Unread = "damaged" }), "0-1"},
		"and any amount":              {"1Pi", on(0, func(u *Usage) { u.Unread = "damaged" }), "0"},
		"no cgroup":                   {"0", on(0, func(u *Usage) { u.Unread, u.Gone = "gone", true }), "0"},
		"not measured":                {"64Mi", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, "topologyManagerPolicy: restricted\nmaxMigrationBytes: "+test.maxBytes)
			pod, c := claimPod("web", ""), claimed(claimPod("web", ""), "main", 4*claimGi).Container
			for i, e := range []CreateContainer{claimed(pod, "main", 4*claimGi), claimed(claimPod("db", ""), "main", 11*claimGi), claimed(claimPod("cache", ""), "main", 14*claimGi)} {
				l.Step(time.Unix(int64(i), 0), e)
			}
			l.Step(time.Unix(3, 0), StartContainer{Pod: pod, Container: c})
			resize := func(gi int64, usage map[string]Usage) Adjustment {
				limit := gi << 30
				e := UpdateContainer{Pod: pod, Container: c, To: Resources{MemoryLimit: &limit}, Facts: Facts{Usage: usage}}
				return l.Step(time.Unix(4, 0), e).Answer
			}
			if got := resize(6, on(0, func(u *Usage) { u.Mems = "0" })).CpusetMems; got != "0-1" {
				t.Fatalf("while its resize is pending it has %q", got)
			}
			if got := resize(4, test.usage).CpusetMems; got != test.want {
				t.Errorf("the runtime is told %q, want %q", got, test.want)
			}
			want := test.want == "0"
			if update, lacks := l.containers[c.ID].syncUpdate(&l.containers[c.ID].pod.derived.runs[0]); lacks == want {
				t.Errorf("the next answer has %+v", update) // it names the nodes again
			}
		})
	}
}

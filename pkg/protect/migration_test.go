package protect

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nodeset"
)

// migrating is a node with a running container that has 64Mi on node 1, may use both nodes, and is to be on node 0.
func migrating(t *testing.T) (n *node, apply func() []string) {
	t.Helper()
	n = newNode(t, nil, runcA)
	n.overwriteAll(t, map[string]string{runcA + "/cpuset.mems": "0-1", runcA + "/memory.numa_stat": "anon N0=4096 N1=67108864\n"})
	targets := Targets([]Pod{{Path: mustPod(t, podG), Containers: []Container{{Cgroup: runcA, Mems: "0"}}}})
	return n, func() []string {
		t.Helper()
		return n.do(t, func() error { return errors.Join(n.applyAll(t.Context(), targets), n.WriteLate(t.Context())) })
	}
}

// look is one turn of Run.
func (n *node) look(t *testing.T) []string {
	t.Helper()
	return n.do(t, func() error {
		_, err := n.Reconcile(t.Context())
		return errors.Join(err, n.WriteLate(t.Context()))
	})
}

func (n *node) warnings() (count int) {
	for _, entry := range n.log.AllEntries() {
		if strings.Contains(entry.Message, "the write would move more memory than maxMigrationBytes") {
			count++
		}
	}
	return count
}

var moves = cgroup.Migration{Bytes: 64 << 20, From: nodeset.Of(1), To: nodeset.Of(0)}

func TestAWriteThatMovesTooMuchIsBlockedUntilItMovesLess(t *testing.T) {
	n, apply := migrating(t)
	n.BoundMigration(64<<20 - 1)
	wantWrites(t, apply())
	want := map[string]Migration{runcA: {Migration: moves, Blocked: true, At: n.clock}}
	n.clock = n.clock.Add(1)
	for range 3 {
		wantWrites(t, n.look(t))
	}
	if diff := cmp.Diff(want, n.Migrations()); diff != "" {
		t.Error(diff)
	}
	if n.warnings() != 1 || n.Repairs() != (Repairs{Containers: 1}) || len(n.overwrites) > 0 { // 1 as it was found
		t.Errorf("%d warnings, repairs %+v, overwrites %v", n.warnings(), n.Repairs(), n.overwrites)
	}
	n.overwrite(t, runcA+"/memory.numa_stat", "anon N0=4096 N1=1048576\n")
	wantWrites(t, n.look(t), runcA+"/cpuset.mems=0")
	moved := moves
	moved.Bytes = 1 << 20
	if diff := cmp.Diff(map[string]Migration{runcA: {Migration: moved, Done: true, At: n.clock}}, n.Migrations()); diff != "" {
		t.Error(diff)
	}
	wantWrites(t, n.look(t))
}

func TestMigrationWithinTheBound(t *testing.T) {
	for name, bound := range map[string]uint64{"just": 64 << 20, "Always": math.MaxUint64} {
		t.Run(name, func(t *testing.T) {
			n, apply := migrating(t)
			n.BoundMigration(bound)
			wantWrites(t, apply(), runcA+"/cpuset.mems=0")
			if diff := cmp.Diff(map[string]Migration{runcA: {Migration: moves, Done: true, At: n.clock}}, n.Migrations()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestABoundThatIsRaisedLetsABlockedWriteBeMade(t *testing.T) {
	n, apply := migrating(t)
	wantWrites(t, apply())
	n.BoundMigration(math.MaxUint64)
	wantWrites(t, apply(), runcA+"/cpuset.mems=0")
}

// A repair of what another writer did is a write like any other.
func TestARepairIsBlockedToo(t *testing.T) {
	n, apply := migrating(t)
	n.overwrite(t, runcA+"/memory.numa_stat", "")
	wantWrites(t, apply(), runcA+"/cpuset.mems=0")
	n.overwriteAll(t, map[string]string{runcA + "/cpuset.mems": "1", runcA + "/memory.numa_stat": "anon N0=0 N1=4096\nfile_mapped N0=0 N1=4096\n"})
	wantWrites(t, n.look(t))
	if m := n.Migrations()[runcA]; !m.Blocked || m.Bytes != 8192 {
		t.Errorf("%+v, want 8192 bytes blocked", m)
	}
}

func TestAContainerThatIsAboutToRunIsNeverBlocked(t *testing.T) {
	n, apply := migrating(t)
	wantWrites(t, apply())
	wantWrites(t, n.do(t, func() error { return n.Start(t.Context(), runcA) }), runcA+"/cpuset.mems=0")
	n.overwrite(t, runcA+"/cpuset.mems", "0-1")
	wantWrites(t, n.look(t)) // it runs now
	wantWrites(t, n.do(t, func() error { return n.Start(t.Context(), "kubepods/podunknown/c") }))
}

func TestPagesThatCannotBeCountedAreNotMoved(t *testing.T) {
	n, apply := migrating(t)
	n.BoundMigration(math.MaxUint64 - 1)
	n.overwrite(t, runcA+"/memory.numa_stat", "anon 1\n")
	n.clearWrites()
	targets := Targets([]Pod{{Path: mustPod(t, podG), Containers: []Container{{Cgroup: runcA, Mems: "0"}}}})
	err := errors.Join(n.applyAll(t.Context(), targets), n.WriteLate(t.Context()))
	if err == nil || !strings.Contains(err.Error(), `memory.numa_stat: line "anon 1"`) {
		t.Errorf("the error is %v", err)
	}
	wantWrites(t, n.allWrites())
	n.BoundMigration(math.MaxUint64)
	wantWrites(t, apply(), runcA+"/cpuset.mems=0")
}

// What crun has inside is the same container.
func TestMigrationOfACgroupInside(t *testing.T) {
	n := newNode(t, nil, crunB+"/container")
	for _, dir := range []string{crunB, crunB + "/container"} {
		n.overwriteAll(t, map[string]string{dir + "/cpuset.mems": "0-1", dir + "/memory.numa_stat": "anon N0=4096 N1=67108864\n"})
	}
	targets := Targets([]Pod{{Path: mustPod(t, podB), Containers: []Container{{Cgroup: crunB, Mems: "0"}}}})
	wantWrites(t, n.do(t, func() error { return errors.Join(n.applyAll(t.Context(), targets), n.WriteLate(t.Context())) }))
	if diff := cmp.Diff(map[string]Migration{crunB: {Migration: moves, Blocked: true, At: n.clock}}, n.Migrations()); diff != "" {
		t.Error(diff)
	}
}

package protect

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroupfs"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// overlaps drives passes by hand: what was planned is written later, what came of it is entered later still, in any order, and rows
// change and end in between.
type overlaps struct {
	*Protector
	t       *testing.T
	rand    *rand.Rand
	living  map[string]cgroup.Target
	made    int
	fast    *pass // whose plan is under way; there is one at most
	writes  []change
	slow    []slowly
	written int
	ended   int // rows that ended with a write under way
}

// slowly is a slow change, or its write.
type slowly struct {
	change
	scope scope
	turn  bool
	step  step
	put   bool
	err   error
}

const (
	ourUnit     = 8192 // of values of ours
	foreignUnit = 4096 // of those of others: odd multiples
)

var walkSeed = flag.Uint64("seed", 1, "seed of the random walks")

// TestRandomWalkOfOverlappingWrites ends each walk with what is desired in all files, and with nothing of ours in the others.
func TestRandomWalkOfOverlappingWrites(t *testing.T) {
	walks, steps := 40, 1000
	if testing.Short() {
		walks = 5
	}
	written, ended := 0, 0
	for walk := range walks {
		root := t.TempDir()
		put(t, root, map[string]string{podG + "/": ""})
		tree, err := cgroupfs.Open(root, cgroupfs.Plain())
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		w := &overlaps{
			Protector: New(Options{Tree: tree, Journal: openJournal(t, t.TempDir()), Migration: 1 << 40}),
			t:         t, rand: rand.New(rand.NewPCG(*walkSeed, uint64(walk))), living: map[string]cgroup.Target{},
		}
		for range steps {
			w.step()
		}
		w.drain()
		w.verify(walk)
		for _, dir := range w.dirs() {
			w.end(dir)
		}
		w.drain()
		left := slices.DeleteFunc(w.journal.Entries(), func(e Entry) bool { return e.Knob == cgroup.CpusetMems }) // it has no default
		if len(w.rows) > 0 || len(left) > 0 {
			t.Errorf("walk %d: %d rows are left, and in the journal %v", walk, len(w.rows), left)
		}
		written, ended = written+w.written, ended+w.ended
	}
	if written < walks*100 || ended < walks {
		t.Errorf("%d writes, %d rows that ended in between", written, ended)
	}
}

// dirs are the living containers, in an order that is the same at each run.
func (w *overlaps) dirs() (dirs []string) {
	for dir := range w.living {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	return dirs
}

func (w *overlaps) step() {
	dirs := w.dirs()
	if len(dirs) == 0 || len(dirs) < 4 && w.rand.IntN(20) == 0 {
		w.made++
		dir := fmt.Sprintf("%s/c%d", podG, w.made)
		inner := []string{"", "/container"}[w.rand.IntN(2)]
		put(w.t, w.tree.Root(), map[string]string{dir + inner + "/": "", dir + "/memory.oom.group": "1"}) // the kubelet's
		w.desire(dir)
		return
	}
	dir := dirs[w.rand.IntN(len(dirs))]
	switch n := w.rand.IntN(40); {
	case n == 0:
		w.end(dir)
	case n < 8:
		w.desire(dir)
	case n < 10:
		w.overwrite(dir)
	case n < 18:
		w.begin(dir)
	case n < 24:
		w.writeFast()
	case len(w.slow) > 0:
		w.goOn(w.rand.IntN(len(w.slow)))
	}
}

func (w *overlaps) value(unit uint64) *uint64 {
	if w.rand.IntN(4) == 0 {
		return nil
	}
	v := (2*w.rand.Uint64N(8) + 1) * foreignUnit
	if unit == ourUnit {
		v = w.rand.Uint64N(16) * ourUnit
	}
	return &v
}

// desire makes new values desired. The runtime may be about to write them.
func (w *overlaps) desire(dir string) {
	target := cgroup.Target{
		Cgroup: dir, Level: cgroup.LevelContainer, Values: memoryqos.Values{Min: w.value(ourUnit), High: w.value(ourUnit)},
		Mems: []string{"", "0", "1", "0-1"}[w.rand.IntN(4)], ByRuntime: w.rand.IntN(4) == 0,
	}
	if group := w.rand.Uint64N(3); group < 2 {
		target.Values.OOMGroup = &group
	}
	w.living[dir] = target
	w.must(w.Desire([]cgroup.Target{target}, nil))
	if target.ByRuntime && w.rand.IntN(2) == 0 && target.Values.Min != nil {
		w.must(w.tree.Set(dir, cgroup.MemoryMin, *target.Values.Min))
	}
}

// end ends a container. Its cgroup may stay.
func (w *overlaps) end(dir string) {
	under := func(r *row) bool { return r.cgroup == dir }
	if slices.ContainsFunc(w.slow, func(s slowly) bool { return under(s.row) && s.step.writes }) ||
		slices.ContainsFunc(w.writes, func(c change) bool { return under(c.row) }) {
		w.ended++
	}
	delete(w.living, dir)
	if w.rand.IntN(2) == 0 {
		w.must(os.RemoveAll(filepath.Join(w.tree.Root(), dir)))
	}
	w.must(w.Desire(nil, []string{dir}))
}

// overwrite is another writer.
func (w *overlaps) overwrite(dir string) {
	if v := w.value(foreignUnit); v != nil {
		w.must(w.tree.Set(dir, []cgroup.Knob{cgroup.MemoryMin, cgroup.MemoryHigh}[w.rand.IntN(2)], *v))
	}
}

// begin begins a pass.
func (w *overlaps) begin(dir string) {
	l := []scope{applying, periodic, checking, checkingHigh, raising}[w.rand.IntN(5)]
	if w.fast != nil && !l.onlyHigh {
		return // its plan would wait
	}
	s := w.compare(l, func() (rows []*row) {
		for d, r := range w.rows {
			if d == dir || l == periodic || l == applying {
				rows = append(rows, r)
			}
		}
		slices.SortFunc(rows, func(a, b *row) int { return strings.Compare(a.cgroup, b.cgroup) })
		return rows
	})
	fast, slow, waits := w.plan(s)
	if waits { // nothing waits for the disk
		s.stored = s.noted
		fast, slow, _ = w.plan(s)
	}
	for _, c := range slow {
		w.slow = append(w.slow, slowly{change: c, scope: l})
	}
	if len(fast) > 0 {
		w.fast, w.writes = s, fast
		return
	}
	w.finish(s)
}

// writeFast makes the next of the writes that were planned, or enters what came of all of them.
func (w *overlaps) writeFast() {
	if w.fast == nil {
		return
	}
	for i := range w.writes {
		if c := &w.writes[i]; !c.systemdOnly {
			c.systemdOnly, c.err = true, w.tree.Set(c.dir, knobs[c.index], c.value)
			w.written++
			return
		}
	}
	w.record(w.fast, w.writes)
	w.finish(w.fast)
	w.fast, w.writes = nil, nil
}

// goOn takes a slow change one step further: it is planned, written, entered.
func (w *overlaps) goOn(i int) {
	s := &w.slow[i]
	switch {
	case !s.step.writes:
		var counted cgroupfs.Counted
		if s.turn {
			counted = w.countPages(w.t.Context(), s.dir, s.scope.unbounded)
		}
		s.step = w.nextStep(s.scope, s.change, s.turn, counted)
		switch {
		case s.step.waits:
			s.turn = !slices.ContainsFunc(w.slow, func(o slowly) bool { return o.turn && o.row == s.row })
		case !s.step.writes:
			w.slow = slices.Delete(w.slow, i, i+1)
		}
	case !s.put:
		s.put, s.err = true, w.tree.Set(s.dir, knobs[s.index], s.step.value)
		w.written++
	default:
		_ = w.recordSlow(s.change, s.step.value, s.err)
		s.step, s.put = step{}, false
	}
}

// drain lets all that is under way come to its end, the runtime be done, and Run look.
func (w *overlaps) drain() {
	for w.fast != nil {
		w.writeFast()
	}
	for len(w.slow) > 0 {
		w.goOn(w.rand.IntN(len(w.slow)))
	}
	var targets []cgroup.Target
	for _, dir := range w.dirs() {
		target := w.living[dir]
		target.ByRuntime = false
		targets = append(targets, target)
	}
	ctx := w.t.Context()
	w.must(w.applyAll(ctx, targets))
	w.must(w.WriteLate(ctx))
	w.must(w.Check(ctx, w.dirs()...))
	for range 2 {
		_, err := w.Reconcile(ctx)
		w.must(err)
		w.must(w.WriteLate(ctx))
	}
}

func (w *overlaps) verify(walk int) {
	for dir, target := range w.living {
		if r := w.rows[dir]; r == nil || !r.done() || r.any(func(f *file) bool { return f.goal == dropped }) {
			w.t.Fatalf("walk %d: %s is not settled: %+v", walk, dir, r)
		}
		for _, part := range w.rows[dir].parts {
			if group, err := w.tree.Get(dir, cgroup.MemoryOOMGroup); err != nil || target.Values.OOMGroup == nil && group != 1 {
				w.t.Errorf("walk %d: the kubelet's memory.oom.group of %s is %d, %v", walk, dir, group, err)
			}
			for i, want := range []*uint64{target.Values.OOMGroup, target.Values.Min, nil, target.Values.High} {
				got, err := w.tree.Get(part.dir, knobs[i])
				w.must(err)
				switch {
				case want != nil && got != *want:
					w.t.Errorf("walk %d: %s of %s is %d, want %d", walk, knobs[i], part.dir, got, *want)
				case want == nil && got != initial[i] && got%ourUnit == 0:
					w.t.Errorf("walk %d: %s of %s has %d left, which is ours", walk, knobs[i], part.dir, got)
				case part.files[i].pendingWrites != 0:
					w.t.Errorf("walk %d: %s of %s has writes under way", walk, knobs[i], part.dir)
				}
			}
			if got, err := w.tree.Mems(part.dir); target.Mems != "" && (got != target.Mems || err != nil) {
				w.t.Errorf("walk %d: cpuset.mems of %s is %q, want %q", walk, part.dir, got, target.Mems)
			}
		}
	}
}

func (w *overlaps) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// A pass that had to wait for another one's write finds what came of it: the newest value is written, whatever the other one knew.
func TestAPassThatWaitedWritesTheNewestValue(t *testing.T) {
	for name, fails := range map[string]bool{"after a write": false, "after a failure": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			target := func(v uint64) []cgroup.Target {
				return []cgroup.Target{{Cgroup: podG, Level: cgroup.LevelPod, Driver: cgroup.Cgroupfs, Values: minimum(v)}}
			}
			if err := n.applyPart(t.Context(), target(50), nil); err != nil {
				t.Fatal(err)
			}
			rows := func() []*row { return []*row{n.rows[podG]} }
			if err := n.Desire(target(100), nil); err != nil {
				t.Fatal(err)
			}
			older := n.compare(applying, rows)
			older.stored = n.notes // neither waits for the disk
			fast, _, _ := n.plan(older)
			if err := n.Desire(target(200), nil); err != nil {
				t.Fatal(err)
			}
			newer := n.compare(applying, rows)
			newer.stored = n.notes
			for i := range fast {
				w := &fast[i]
				if w.err = os.ErrPermission; !fails {
					w.err = n.tree.Set(w.dir, knobs[w.index], w.value)
				}
			}
			n.record(older, fast)
			n.writeFast(t.Context(), newer)
			if got := content(t, n.Tree, podG+"/memory.min"); got != "200" || !n.rows[podG].done() {
				t.Errorf("memory.min is %s, settled %t", got, n.rows[podG].done())
			}
		})
	}
}

// A pass that compared one cgroup before others of its branch were to change, too, writes them all, in their order.
func TestAPassTakesWhatHasBecomeDesiredMeanwhile(t *testing.T) {
	for name, test := range map[string]struct {
		cgroup, level string
		to            uint64
		want          []string
	}{
		"raised":  {podG, cgroup.LevelPod, 200, []string{"kubepods/min=200", podG + "/min=200"}},
		"lowered": {"kubepods", cgroup.LevelKubepods, 40, []string{podG + "/min=40", "kubepods/min=40"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			n.apply(t, map[string]memoryqos.Values{podG: minimum(100)})
			n.clearWrites()
			alone := cgroup.Target{Cgroup: test.cgroup, Level: test.level, Driver: cgroup.Cgroupfs, Values: minimum(99)}
			if err := n.Desire([]cgroup.Target{alone}, nil); err != nil {
				t.Fatal(err)
			}
			s := n.compare(applying, func() []*row { return []*row{n.rows[test.cgroup]} })
			if err := n.DesireAll(Targets([]Pod{{Path: mustPod(t, podG), Values: minimum(test.to)}})); err != nil {
				t.Fatal(err)
			}
			n.writeAll(t.Context(), s)
			wantWrites(t, n.allWrites(), test.want...)
		})
	}
}

// A pass that compares a container alone leaves its protection to the one that is about to read its pod's.
func TestAContainersProtectionWaitsForItsPods(t *testing.T) {
	n := newNode(t, nil, runcA)
	targets := containers(t, Container{Values: low(20)}, Container{})
	if err := n.DesireAll(targets); err != nil {
		t.Fatal(err)
	}
	wantWrites(t, n.do(t, func() error { return n.Check(t.Context(), runcA) }), "kubepods/min=20", "kubepods/low=20")
	wantWrites(t, n.do(t, func() error { return n.Apply(t.Context()) }), podG+"/low=20", runcA+"/low=20")
}

// A pass waits for what another one has noted in the journal since: its own note was dropped when the other's first write failed.
func TestAPassWaitsForWhatOthersHaveNoted(t *testing.T) {
	n := newNode(t, nil)
	if err := n.DesireAll(Targets([]Pod{{Path: mustPod(t, podG), Values: minimum(100)}})); err != nil {
		t.Fatal(err)
	}
	rows := func() []*row { return slices.Collect(maps.Values(n.rows)) }
	first, other := n.compare(applying, rows), n.compare(applying, rows)
	waits := func(s *pass) bool {
		_, _, waits := n.plan(s)
		return waits
	}
	if !waits(first) || !waits(other) {
		t.Error("they do not wait for their notes")
	}
	first.stored, other.stored = first.noted, other.noted // the file has them
	n.journal.forget(podG, cgroup.MemoryMin, false)
	if !waits(other) || !waits(first) {
		t.Error("they do not wait for the new note")
	}
	if first.stored = first.noted; waits(first) {
		t.Error("it waits for nothing")
	}
}

// A pod's file that cannot be written holds up its containers no longer than the pass that has tried it.
func TestAPodWhoseFileFailsDoesNotHoldItsContainers(t *testing.T) {
	n := newNode(t, nil, runcA)
	targets := containers(t, Container{Values: low(20)}, Container{})
	if err := os.Mkdir(filepath.Join(n.Tree.Root(), podG, "memory.low"), 0o755); err != nil {
		t.Fatal(err)
	}
	_ = n.applyAll(t.Context(), targets)
	again := targets[slices.IndexFunc(targets, func(target cgroup.Target) bool { return target.Cgroup == runcA })]
	again.Values = low(30)
	_ = n.applyPart(t.Context(), []cgroup.Target{again}, nil)
	if got := content(t, n.Tree, runcA+"/memory.low"); got != "30" {
		t.Errorf("memory.low is %s", got)
	}
}

// What was due before a wait for the journal and is left to the pod after it, is not written.
func TestWhatIsLeftAfterAWaitIsNotWritten(t *testing.T) {
	n := newNode(t, nil, runcA)
	if err := n.applyAll(t.Context(), containers(t, Container{}, Container{})); err != nil {
		t.Fatal(err)
	}
	targets := containers(t, Container{Values: low(20)}, Container{})
	if err := n.applyAll(t.Context(), targets); err != nil {
		t.Fatal(err)
	}
	n.overwrite(t, runcA+"/memory.low", "0")
	n.clearWrites()
	s := n.compare(checking, func() []*row { return []*row{n.rows[runcA]} })
	s.changes[0].ready = true // a first plan found it due, and waits for the journal's file
	n.rows[podG].parts[0].setRemade()
	n.toWrite(n.rows[podG])
	s.stored = n.notes
	fast, _, _ := n.plan(s)
	for _, c := range fast {
		t.Errorf("%s of %s is written all the same", c.knob(), c.dir)
	}
}

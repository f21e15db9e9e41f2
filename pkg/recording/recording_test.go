package recording

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/machine"
)

const twoNodes = `
nodes:
  - {id: 0, memory: 16Gi, cpus: 0-7, hugepages: {2Mi: 512}, distances: [10, 21]}
  - {id: 1, memory: 16Gi, cpus: 8-15, hugepages: {2Mi: 512}, distances: [21, 10]}
`

// driver drives a ledger and records it, as the agent does.
type driver struct {
	testing.TB
	*ledger.Ledger
	*Recorder
	dir string
	now time.Time
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newLedger is one without pods.
func newLedger(t testing.TB, now time.Time, yaml string) *ledger.Ledger {
	t.Helper()
	described, err := machine.Describe("machine", []byte(twoNodes))
	must(t, err)
	c, err := config.Files(nil).Parse("config", []byte("reservedMemory: 0:memory=512Mi;1:memory=512Mi\nkubeReserved: {memory: 924Mi}\n"+yaml))
	must(t, err)
	resolved, err := c.Resolve(described.Machine)
	must(t, err)
	l, err := ledger.New(now, ledger.Options{Config: resolved})
	must(t, err)
	return l
}

func newDriver(t testing.TB, size int64) *driver {
	t.Helper()
	d := &driver{TB: t, dir: filepath.Join(t.TempDir(), "recordings"), now: time.Now()}
	d.Ledger = newLedger(t, d.now, "")
	var err error
	d.Recorder, err = New(Options{Dir: d.dir, Size: size, Version: "test"})
	must(t, err)
	d.Begin(d.now, d.Ledger)
	return d
}

func (d *driver) step(event ledger.Event) ledger.Effects {
	d.now = d.now.Add(time.Second)
	effects := d.Step(d.now, event)
	d.Record(d.now, d.Ledger, event, effects)
	return effects
}

func (d *driver) close() {
	d.Helper()
	must(d, d.Recorder.Close(context.Background()))
}

func podNamed(name string) ledger.Pod {
	return ledger.Pod{
		ID: name + "-sandbox", UID: name + "-uid", Namespace: "default", Name: name,
		CgroupParent: "/kubepods/pod" + name + "-uid", Annotated: &ledger.ReadAnnotations{},
	}
}

func containerOf(p ledger.Pod, limit int64) ledger.Container {
	id := p.Name + "-main"
	adj := int64(-997)
	return ledger.Container{
		ID: id, PodID: p.ID, Name: "main", CgroupsPath: p.CgroupParent + "/" + id,
		Resources: ledger.Resources{MemoryLimit: &limit, OOMScoreAdj: &adj},
	}
}

const gi = int64(1) << 30

// create creates, starts and ends a pod's container.
func (d *driver) create(name string, limit int64) {
	p := podNamed(name)
	c := containerOf(p, limit)
	d.step(ledger.RunPod{Pod: p})
	d.step(ledger.CreateContainer{Pod: p, Container: c})
	d.step(ledger.StartContainer{Pod: p, Container: c})
}

func (d *driver) end(name string) { d.step(ledger.EndPod{Pod: podNamed(name), Gone: true}) }

// drained waits until the goroutine has received everything.
func (d *driver) drained() {
	for len(d.queue) > 0 {
		runtime.Gosched()
	}
}

// files are the paths of the segments, the oldest first.
func (d *driver) files() []string {
	d.Helper()
	paths, err := segmentsIn(d.dir)
	must(d, err)
	return paths
}

func text(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}

// replayed replays and wants so many differences.
func replayed(t testing.TB, path string, differ uint64) (Summary, []Decision) {
	t.Helper()
	var decisions []Decision
	summary, err := Replay(path, func(d Decision) error {
		decisions = append(decisions, d)
		return nil
	})
	must(t, err)
	if summary.Differ != differ {
		t.Fatalf("%d decisions differ, want %d: %+v", summary.Differ, differ, decisions)
	}
	return summary, decisions
}

func TestADecisionIsReplayed(t *testing.T) {
	d := newDriver(t, 1<<20)
	d.create("web", gi)
	d.create("large", 40*gi)
	d.end("web")
	d.close()
	summary, decisions := replayed(t, d.dir, 0)
	if summary.Events != 7 || summary.Decisions != 3 || summary.Missing != 0 || summary.Cut != nil {
		t.Errorf("replayed %+v", summary)
	}
	for i, want := range []string{"2 CreateContainer default/web main", "5 CreateContainer default/large main", "7 EndPod default/web "} {
		got := fmt.Sprintf("%d %s %s %s", decisions[i].Event, decisions[i].Kind, decisions[i].Pod, decisions[i].Container)
		if got != want {
			t.Errorf("decision %d is %q, want %q", i, got, want)
		}
	}
}

func TestAChangedByteIsReported(t *testing.T) {
	d := newDriver(t, 1<<20)
	d.create("web", gi)
	d.create("db", gi)
	d.close()
	whole := text(t, d.files()[0])
	changed := strings.Replace(whole, `"Answer":{"CpusetMems":"0"`, `"Answer":{"CpusetMems":"1"`, 1)
	if changed == whole {
		t.Fatalf("no answer in\n%s", whole)
	}
	path := filepath.Join(t.TempDir(), "changed.jsonl")
	must(t, os.WriteFile(path, []byte(changed), 0o600))
	_, decisions := replayed(t, path, 1)
	if !decisions[0].Differs() || !bytes.Contains(decisions[0].Replayed, []byte(`"Answer":{"CpusetMems":"0"`)) || decisions[1].Differs() {
		t.Errorf("replayed %+v", decisions)
	}
	_, shown, _ := strings.Cut(decisions[0].String(), "\n")
	both := strings.HasPrefix(shown, `DIFFERS  recorded {"Answer":{"CpusetMems":"1"`) && strings.Contains(shown, `replayed {"Answer":{"CpusetMems":"0"`)
	if !both || strings.Contains(shown, "Allocations") || !strings.Contains(changed, "Allocations") {
		t.Errorf("shown are more fields than the one that differs: %s", shown)
	}
}

func TestALossOfPower(t *testing.T) {
	d := newDriver(t, 1<<20)
	d.create("web", gi)
	d.create("db", gi)
	d.close()
	whole, events := text(t, d.files()[0]), uint64(6)
	cut := filepath.Join(t.TempDir(), "cut")
	must(t, os.WriteFile(cut, []byte(whole[:len(whole)-40]), 0o600))
	if summary, _ := replayed(t, cut, 0); len(summary.Cut) != 1 || summary.Events != events-1 {
		t.Errorf("replayed %+v", summary)
	}
	for name, left := range map[string]string{"9": "", "91": whole[:40]} { // made, and not written yet
		must(t, os.WriteFile(filepath.Join(d.dir, prefix+name+suffix), []byte(left), 0o600))
	}
	if summary, _ := replayed(t, d.dir, 0); summary.Events != events || len(summary.Cut) != 2 {
		t.Errorf("replayed %+v", summary)
	}
}

func TestTheRingIsBounded(t *testing.T) {
	const size = 2 << 20
	d := newDriver(t, size)
	for i := 0; i < 1500; i++ {
		name := fmt.Sprintf("pod%d", rand.Uint64())
		d.create(name, gi)
		d.end(name)
		d.drained() // the disk is not what is tested
	}
	d.close()
	total := 0
	for _, path := range d.files() {
		total += len(text(t, path))
	}
	if total > size || len(d.files()) != segments {
		t.Errorf("%d segments have %d bytes, want %d with at most %d", len(d.files()), total, segments, size)
	}
	summary, _ := replayed(t, d.dir, 0)
	if summary.Missing > 0 || summary.Events < 500 || summary.Events >= 6000 {
		t.Errorf("replayed %+v", summary)
	}
	for _, path := range d.files() { // each is whole by itself
		replayed(t, path, 0)
	}
}

// TestAClockThatWasAhead leaves segments whose names sort last: they are the oldest all the same.
func TestAClockThatWasAhead(t *testing.T) {
	const size = 256 << 10
	d := newDriver(t, size)
	fill := func() {
		for range 200 {
			name := fmt.Sprintf("pod%d", rand.Uint64())
			d.create(name, gi)
			d.end(name)
			d.drained()
		}
		d.close()
	}
	fill()
	ahead := len(d.files())
	var err error
	d.Recorder, err = New(Options{Dir: d.dir, Size: size, Version: "test"})
	must(t, err)
	right := d.now.AddDate(-1, 0, 0)
	d.now = right
	d.Ledger = newLedger(t, d.now, "")
	d.Begin(d.now, d.Ledger)
	fill()
	now := 0
	for _, path := range d.files() {
		if filepath.Base(path) < prefix+right.AddDate(0, 6, 0).UTC().Format(nameTime) {
			now++
		}
	}
	if ahead < segments/2 || now < segments/2 {
		t.Errorf("%d segments with the clock ahead, then %d with the right time, want most of %d", ahead, now, segments)
	}
}

// TestEventsThatFindTheQueueFull are missing, and what follows them is replayed exactly.
func TestEventsThatFindTheQueueFull(t *testing.T) {
	d := &driver{TB: t, dir: t.TempDir(), now: time.Now()}
	d.Ledger = newLedger(t, d.now, "")
	d.Recorder = newRecorder(Options{Dir: d.dir, Size: 64 << 20, Version: "test"}) // nobody writes yet
	d.Begin(d.now, d.Ledger)
	for i := range 400 {
		d.create(fmt.Sprintf("pod%d", i), gi/64)
	}
	recorded := uint64(queueSize - 1) // the other one is the beginning
	go d.run()
	for d.step(ledger.FinishUpdate{}); d.gap; d.step(ledger.FinishUpdate{}) {
		runtime.Gosched() // until there is room
	}
	d.create("later", gi)
	d.close()
	summary, decisions := replayed(t, d.dir, 0)
	if summary.Missing < 1200-recorded || len(d.files()) != 2 || decisions[len(decisions)-1].Pod != "default/later" {
		t.Errorf("replayed %+v from %q", summary, d.files())
	}
}

// read reads a pod's annotations, as the agent does.
func (d *driver) read(p ledger.Pod) ledger.Pod {
	var facts ledger.Gathered
	p.Annotated = nil
	facts.Ask(d.Needs(ledger.RunPod{Pod: p}, &facts))
	return ledger.With(ledger.RunPod{Pod: p}, facts).(ledger.RunPod).Pod
}

func TestNothingPrivateIsWritten(t *testing.T) {
	d := newDriver(t, 1<<20)
	p := podNamed("web")
	p.Annotations = map[string]string{
		"example.com/token": "SECRET-annotation", "numa.memory-manager.noderesource.dev": "required",
		"noderesource.dev/resources": `{"containers":{"main":{"requests":{"memory":"1Gi"},"x":"SECRET-claim"}}}`,
	}
	c := containerOf(p, gi)
	raw := p // as an event that was never read
	p = d.read(p)
	d.step(ledger.RunPod{Pod: raw})
	d.step(ledger.CreateContainer{Pod: p, Container: c})
	d.step(ledger.Synchronize{Pods: []ledger.Pod{p}, Containers: []ledger.Container{c}})
	d.step(ledger.EndPod{Pod: raw, Gone: true})
	d.step(ledger.RunPod{Pod: podNamed("other")})
	d.Begin(d.now, d.Ledger) // a state with the pods
	d.close()
	for _, path := range d.files() {
		whole := text(t, path)
		if at := strings.Index(whole, "SECRET"); at >= 0 {
			t.Errorf("%s: …%s…", path, whole[max(0, at-100):at+30])
		}
		if path == d.files()[0] && !strings.Contains(whole, "required") {
			t.Errorf("the annotation of ours is missing in\n%s", whole)
		}
	}
	replayed(t, d.dir, 0)
}

func TestBadInput(t *testing.T) {
	d := newDriver(t, 1<<20)
	d.create("web", gi)
	d.close()
	whole := text(t, d.files()[0])
	header, events, _ := strings.Cut(whole, "\n")
	change := func(old, new string) string { return strings.Replace(whole, old, new, 1) }
	for name, test := range map[string]struct{ content, want string }{
		"empty":        {"", "FILE:1: the file is empty, want the header of a recording"},
		"text":         {"hello\n", `FILE:1: want the header of a recording, {"recording":7,…}: invalid character 'h'`},
		"no header":    {events, `FILE:1: want the header of a recording, {"recording":7,…}: it has no format`},
		"old format":   {`{"recording":1,"version":"v0.2.0","ledger":{"&":1},"sum":""}` + "\n", "FILE:1: want a recording of format 7, got 1: replay it with version v0.2.0"},
		"other format": {change(`"recording":7`, `"recording":8`), "FILE:1: want a recording of format 7, got 8: replay it with version test"},
		"state":        {change(`"MemTotal":`, `"MemTotel":`), `FILE:1: the state of the ledger of version test cannot be read: json: unknown field "MemTotel"`},
		"no state":     {`{"recording":7}` + "\n", "FILE:1: the state of the ledger of version  cannot be read: EOF"},
		"event":        {header + "\n{}\n", "FILE:2: want event 1, got 0: lines are missing"},
		"line":         {change("\n"+`{"n":2`, "\n"+`{"n":3`), "FILE:3: want event 2, got 3: lines are missing"},
		"kind":         {change(`"kind":"RunPod"`, `"kind":"RunPot"`), `FILE:2: event 1: kind "RunPot" is not known: was it recorded by another version?`},
		"field":        {change(`"event":{"Pod":{"ID"`, `"event":{"Pod":{"IDD"`), `FILE:2: event 1: RunPod: json: unknown field "IDD": was it recorded by another version?`},
		"type":         {change(`"MemoryLimit":1073741824`, `"MemoryLimit":"1Gi"`), "event 2: CreateContainer: json: cannot unmarshal string into Go struct field "},
		"number":       {change(`"MemoryLimit":1073741824`, `"MemoryLimit":1e999`), "event 2: CreateContainer: json: cannot unmarshal number 1e999 into Go struct field "},
		"list":         {change(`"event":{`, `"event":[{`), "FILE:2: want an event: "},
		"cut header":   {header, "FILE:1: want the header"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "cut header" {
				test.content = test.content[:len(test.content)-9]
			}
			path := filepath.Join(t.TempDir(), "FILE")
			must(t, os.WriteFile(path, []byte(test.content), 0o600))
			_, err := Replay(path, nil)
			if err == nil || !strings.Contains(strings.Replace(err.Error(), path, "FILE", 1), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
	empty := t.TempDir()
	if _, err := Replay(empty, nil); err == nil || err.Error() != "replay: "+empty+" has no recordings: want files named recording-….jsonl" {
		t.Errorf("error %v", err)
	}
	old := filepath.Join(d.dir, prefix+"20250102T150405.000000000Z.jsonl.gz")
	must(t, os.WriteFile(old, nil, 0o600))
	if _, err := Replay(old, nil); err == nil || err.Error() != "replay: "+old+": recorded by a version before v0.3.0: replay it with that version" {
		t.Errorf("an older file: %v", err)
	}
	if summary, _ := replayed(t, d.dir, 0); !slices.Equal(summary.Older, []string{old}) {
		t.Errorf("of a folder with it %q are left out", summary.Older)
	}
	must(t, os.Rename(old, filepath.Join(empty, filepath.Base(old))))
	old = filepath.Join(empty, filepath.Base(old))
	if _, err := Replay(empty, nil); err == nil || err.Error() != "replay: "+old+": recorded by a version before v0.3.0: replay it with that version" {
		t.Errorf("a folder with nothing else: %v", err)
	}
}

// A daemon that is started again and again begins a file each time.
func TestRestartsLeaveWhatWasRecorded(t *testing.T) {
	d := newDriver(t, 1<<20)
	for i := range 3 * segments {
		d.create(fmt.Sprintf("pod%d", i), gi)
		d.close()
		var err error
		d.Recorder, err = New(Options{Dir: d.dir, Size: 1 << 20, Version: "test"})
		must(t, err)
		d.now = d.now.Add(time.Second)
		d.Begin(d.now, d.Ledger)
	}
	d.close()
	if _, decisions := replayed(t, d.dir, 0); len(decisions) != 3*segments {
		t.Errorf("%d decisions are left, want %d", len(decisions), 3*segments)
	}
}

// Every event of the ledger can be recorded.
func TestEveryEventIsAKind(t *testing.T) {
	names, err := filepath.Glob("../ledger/*.go")
	must(t, err)
	found := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") { // its tests have some of their own
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		must(t, err)
		for _, declared := range file.Decls {
			f, ok := declared.(*ast.FuncDecl)
			if !ok || f.Name.Name != "apply" || f.Recv == nil {
				continue
			}
			found++
			if name := f.Recv.List[0].Type.(*ast.Ident).Name; kinds[name] == nil {
				t.Errorf("%s is missing among the kinds of events", name)
			}
		}
	}
	if found != len(kinds) {
		t.Errorf("%d events in the ledger, %d kinds", found, len(kinds))
	}
}

// Whatever is recorded can be read again: its fields are exported, or its type reads and writes itself.
func TestWhatIsRecordedIsPlain(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var look func(path string, of reflect.Type)
	look = func(path string, of reflect.Type) {
		if seen[of] {
			return
		}
		seen[of] = true
		has := func(of reflect.Type, method string) bool {
			_, there := of.MethodByName(method)
			return there
		}
		readsJSON, readsText := has(reflect.PointerTo(of), "UnmarshalJSON"), has(reflect.PointerTo(of), "UnmarshalText")
		writesJSON, writesText := has(of, "MarshalJSON"), has(of, "MarshalText")
		if writesJSON && !readsJSON || !readsJSON && writesText != readsText {
			t.Errorf("%s: %s is not read as it is written", path, of)
		}
		if writesJSON || writesText {
			return
		}
		switch of.Kind() {
		case reflect.Interface, reflect.Func, reflect.Chan:
			t.Errorf("%s is a %s", path, of)
		case reflect.Map:
			look(path+"[key]", of.Key())
			if of.Key().Kind() == reflect.Struct {
				t.Errorf("%s has keys of %s", path, of.Key())
			}
			look(path+"[]", of.Elem())
		case reflect.Pointer, reflect.Slice, reflect.Array:
			look(path+"[]", of.Elem())
		case reflect.Struct:
			for i := range of.NumField() {
				f := of.Field(i)
				if of == reflect.TypeFor[config.Config]() && f.Name == "places" {
					continue // for messages about the file
				}
				if !f.IsExported() {
					t.Errorf("%s has the private field %s", path, f.Name)
				} else if f.Tag.Get("json") != "-" {
					look(path+"."+f.Name, f.Type)
				}
			}
		}
	}
	for kind, of := range kinds {
		look(kind, of)
	}
	look("config", reflect.TypeFor[config.Config]()) // of which a resolved one is made
	look("effects", reflect.TypeFor[ledger.Effects]())
	look("state", reflect.TypeFor[ledger.State]())
}

// The wall clock may jump while events come: durations stay those that the ledger has seen.
func TestMomentsFollowTheMonotonicClock(t *testing.T) {
	g := segment{anchor: time.Now()}
	later := g.anchor.Add(3 * time.Second)
	if got := g.moment(later).Sub(g.moment(g.anchor)); got != 3*time.Second {
		t.Errorf("%s between moments that are 3s apart", got)
	}
}

func TestAFolderThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := New(Options{Dir: file}); err == nil || !strings.HasPrefix(err.Error(), "record: mkdir "+file) {
		t.Errorf("error %v", err)
	}
}

// TestTheFolderIsRemoved has the segment that follows tried again after a minute, and counts what is missing.
func TestTheFolderIsRemoved(t *testing.T) {
	d := newDriver(t, 256<<10)
	for len(d.files()) == 0 {
		runtime.Gosched() // until the first segment is there
	}
	away := d.dir + "-away"
	must(t, os.Rename(d.dir, away))
	for range 2000 { // until it wants another segment
		name := fmt.Sprint(rand.Uint64())
		d.create(name, gi)
		d.end(name)
		d.drained()
	}
	must(t, os.Rename(away, d.dir))
	d.now = d.now.Add(retryInterval)
	for range 10 {
		d.step(ledger.FinishUpdate{})
		d.drained()
		d.now = d.now.Add(retryInterval)
	}
	d.create("later", gi)
	d.close()
	summary, decisions := replayed(t, d.dir, 0)
	said := strings.Contains(summary.String(), fmt.Sprintf(" differ, %d events between them were not recorded", summary.Missing))
	if summary.Missing == 0 || !said || len(decisions) == 0 || decisions[len(decisions)-1].Pod != "default/later" {
		t.Errorf("replayed %+v", summary)
	}
}

// FuzzReplay never panics, and names the line of what is wrong.
func FuzzReplay(f *testing.F) {
	d := newDriver(f, 1<<20)
	d.create("web", gi)
	d.step(ledger.Disconnected{Reason: "gone"})
	d.end("web")
	d.close()
	header, events, _ := strings.Cut(text(f, d.files()[0]), "\n")
	f.Add(events)
	f.Add("{}\n")
	f.Add(`{"n":1,"at":"2026-01-01T00:00:00Z","kind":"FinishUpdate","event":{"IDs":[]}}` + "\n")
	f.Add(`{"n":1,"at":"2026-01-01T00:00:00Z","kind":"Presence","event":{"Gone":[{"UID":"x"}]},"outcome":{}}` + "\n")
	located := regexp.MustCompile(`^recording:[0-9]+: `)
	f.Fuzz(func(t *testing.T, events string) {
		r := replay{}
		if err := r.segment("recording", []byte(header+"\n"+events)); err != nil && !located.MatchString(err.Error()) {
			t.Errorf("an error without its place: %v", err)
		}
		_ = (&replay{}).segment("recording", []byte(events)) // as a header
		_, _ = resume([]byte(events))
	})
}

// BenchmarkSnapshot is the beginning of a segment of a node with 1,000 containers.
func BenchmarkSnapshot(b *testing.B) {
	d := newDriver(b, 1<<30)
	for i := range 1000 {
		d.create(fmt.Sprintf("pod%d", i), gi/64)
	}
	d.close()
	b.ReportAllocs()
	for b.Loop() {
		state, err := json.Marshal(d.Snapshot())
		must(b, err)
		b.ReportMetric(float64(len(state)), "bytes")
	}
}

// A disk without room for a segment's state, which is tried again each minute, does not fill up with the beginnings of segments.
func TestBeginningsThatDoNotFitAreRemoved(t *testing.T) {
	if os.Getenv("FILES_ARE_LIMITED") == "" { // the limit is a whole process's: also of what go test logs of this one
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
		child.Env = append(os.Environ(), "FILES_ARE_LIMITED=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	var before unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &before))
	const size = 64 << 10
	d := &driver{TB: t, dir: t.TempDir(), now: time.Now()}
	d.Ledger = newLedger(t, d.now, "")
	w := writer{Recorder: newRecorder(Options{Dir: d.dir, Size: size, Version: "test"})}
	must(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1024, Max: before.Max}))
	for minute := range 120 { // two hours
		w.begin(start{at: d.now.Add(time.Duration(minute) * time.Minute), state: d.Snapshot(), first: 1})
	}
	must(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &before))
	total, files := int64(0), 0
	entries, err := os.ReadDir(d.dir)
	must(t, err)
	for _, entry := range entries {
		info, err := entry.Info()
		must(t, err)
		total, files = total+info.Size(), files+1
	}
	if total > size || files > segments {
		t.Errorf("%d files have %d bytes, want at most %d with %d", files, total, segments, size)
	}
}

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

const bound = 60 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}

// A disk takes writes one by one, each when the test lets it.
type disk struct {
	begun   chan []byte
	results chan error
}

func newDisk() *disk { return &disk{begun: make(chan []byte), results: make(chan error)} }

func (d *disk) save(data []byte) error {
	d.begun <- slices.Clone(data)
	return <-d.results
}

func submit(w *Writer, pod int) Ticket {
	name := fmt.Sprintf("pod%03d", pod)
	return w.Submit(nil, name, []memorymanager.Entry{{Pod: name, Container: "c", Blocks: []memorymanager.Block{{Nodes: 1, Type: "memory", Size: 1}}}})
}

func pods(t *testing.T, text []byte) int {
	t.Helper()
	content, _, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return len(content.Entries)
}

func answered(ticket Ticket) bool {
	select {
	case <-ticket.round.done:
		return true
	default:
		return false
	}
}

func TestDecisionsDuringAWriteShareTheNextOne(t *testing.T) {
	d := newDisk()
	w := startWriter(d.save, bound)
	first := submit(w, 0)
	if n := pods(t, <-d.begun); n != 1 {
		t.Fatalf("the first write has %d pods", n)
	}
	var storm []Ticket
	for pod := 1; pod < 500; pod++ { // the disk hangs: none of these waits
		storm = append(storm, submit(w, pod))
	}
	same := submit(w, 0) // nothing new, but what it says is on its way with the others
	if answered(first) || answered(storm[0]) {
		t.Fatal("answered before the write has ended")
	}
	if s := w.Stats(); !s.Pending || s.PendingSince.IsZero() || s.Writes != 0 {
		t.Errorf("%+v", s)
	}
	d.results <- nil
	if err := first.Wait(within(t)); err != nil {
		t.Fatal(err)
	}
	second := <-d.begun
	if n := pods(t, second); n != 500 {
		t.Fatalf("the second write has %d pods", n)
	}
	if answered(storm[0]) || answered(same) {
		t.Fatal("answered before its write has ended")
	}
	again := submit(w, 0) // nothing new: it waits for the write under way
	d.results <- nil
	for _, ticket := range append(storm, same, again) {
		if err := ticket.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	if ticket := submit(w, 0); ticket != (Ticket{}) || ticket.Wait(within(t)) != nil {
		t.Error("a decision that is on disk asks for a write")
	}
	s := w.Stats()
	if s.Writes != 2 || s.Failures != 0 || s.Decisions != 503 || s.Size != len(second) || s.Bytes <= uint64(len(second)) || s.Pending || s.Seconds <= 0 {
		t.Errorf("%+v", s)
	}
	if err := w.Close(within(t)); err != nil {
		t.Error(err)
	}
}

func TestErrorReachesAllAndTheNextDecisionTriesAgain(t *testing.T) {
	d := newDisk()
	w := startWriter(d.save, bound)
	tickets := []Ticket{submit(w, 0)}
	<-d.begun
	d.results <- nil
	full := errors.New("disk full")
	tickets = append(tickets[:0], submit(w, 1), submit(w, 2))
	<-d.begun
	d.results <- full
	if err := tickets[0].Wait(within(t)); !errors.Is(err, full) {
		t.Fatal(err)
	}
	if tickets[1].round != tickets[0].round { // it came after the write had begun
		<-d.begun
		d.results <- full
		if err := tickets[1].Wait(within(t)); !errors.Is(err, full) {
			t.Fatal(err)
		}
	}
	if s := w.Stats(); s.Failures == 0 || s.LastError != "disk full" || !s.Pending {
		t.Errorf("%+v", s)
	}
	same := submit(w, 2) // says nothing new, but is not on disk
	if n := pods(t, <-d.begun); n != 3 {
		t.Errorf("the write has %d pods", n)
	}
	d.results <- nil
	if err := same.Wait(within(t)); err != nil {
		t.Error(err)
	}
	if s := w.Stats(); s.LastError != "" || s.Pending {
		t.Errorf("%+v", s)
	}
	if err := w.Close(within(t)); err != nil {
		t.Error(err)
	}
}

func TestFailedWriteIsTriedAgainByItself(t *testing.T) {
	d := newDisk()
	w := startWriter(d.save, time.Millisecond)
	submit(w, 0)
	for range 3 {
		<-d.begun
		d.results <- errors.New("disk full")
	}
	<-d.begun
	d.results <- nil
	if err := w.Close(within(t)); err != nil {
		t.Error(err)
	}
}

func TestHangingDiskEndsWaitAndCloseByTheirContext(t *testing.T) {
	d := newDisk()
	w := startWriter(d.save, bound)
	ticket := submit(w, 0)
	<-d.begun
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := ticket.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := w.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := submit(w, 1).Wait(within(t)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	d.results <- nil
	if err := ticket.Wait(within(t)); err != nil {
		t.Error(err)
	}
	select { // the decision after Close may go along
	case <-d.begun:
		d.results <- nil
	case <-w.ended:
	}
	<-w.ended
}

func TestCloseWritesWhatIsPendingAndSaysWhatFailed(t *testing.T) {
	d := newDisk()
	w := startWriter(d.save, bound)
	submit(w, 0)
	<-d.begun
	last := submit(w, 1)
	closed := make(chan error, 1)
	go func() { closed <- w.Close(context.Background()) }()
	d.results <- nil
	if n := pods(t, <-d.begun); n != 2 {
		t.Errorf("the last write has %d pods", n)
	}
	full := errors.New("disk full")
	d.results <- full
	if err := last.Wait(within(t)); !errors.Is(err, full) {
		t.Error(err)
	}
	select { // a failure before Close was seen is tried once more
	case <-d.begun:
		d.results <- full
	case err := <-closed:
		closed <- err
	}
	if err := <-closed; !errors.Is(err, full) {
		t.Error(err)
	}
}

func TestCloseWithoutDecisionsWritesNothing(t *testing.T) {
	w := startWriter(func([]byte) error { t.Error("a write"); return nil }, bound)
	if err := w.Close(within(t)); err != nil {
		t.Error(err)
	}
}

func TestStormIsOnDisk(t *testing.T) {
	store := openStore(t, t.TempDir())
	w := NewWriter(store)
	m := benchManager(t, 4, 0)
	if err := w.Replace(m.State()).Wait(within(t)); err != nil {
		t.Fatal(err)
	}
	var lock sync.Mutex
	var group sync.WaitGroup
	for i := range 60 {
		group.Go(func() {
			c := memorymanager.Container{Pod: podUID(i), Name: "c", Request: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 64 * mib}}}
			lock.Lock()
			_, err := m.Admit(c)
			ticket := w.Submit(m.Nodes(), c.Pod, m.Entries(c.Pod))
			lock.Unlock()
			if err == nil {
				err = ticket.Wait(context.Background())
			}
			if err != nil {
				t.Error(err)
			}
			file, err := ReadFile(store.Path())
			if err != nil || !slices.ContainsFunc(file.State.Entries, func(e memorymanager.Entry) bool { return e.Pod == c.Pod }) {
				t.Errorf("pod %s was answered, but is not on disk: %v", c.Pod, err)
			}
		})
	}
	group.Wait()
	if err := w.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	file, err := store.Load()
	if err != nil {
		t.Fatal(err)
	}
	if findings := Check(file.State); len(findings) > 0 {
		t.Error(findings)
	}
	again := benchManager(t, 4, 0)
	if _, err := again.Restore(file.State, 0); err != nil {
		t.Fatal(err)
	}
	if got, want := string(Encode(PolicyStatic, again.State())), string(Encode(PolicyStatic, m.State())); got != want {
		t.Errorf("not the same state after a restart:\n%s\n%s", got, want)
	}
	if s := w.Stats(); s.Decisions != 61 {
		t.Errorf("%+v", s)
	}
}

package durable

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
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
	begun   chan string
	results chan error
}

func newDisk(retry, interval time.Duration) (*disk, *Writer) {
	d := &disk{begun: make(chan string), results: make(chan error)}
	w := NewWriter(Options{Path: "/state/file", Interval: interval, Write: func(data []byte) error {
		d.begun <- string(data)
		return <-d.results
	}})
	w.retry = retry
	return d, w
}

func text(s string) Content {
	return func(buffer []byte) ([]byte, error) { return append(buffer, s...), nil }
}

func answered(ticket Ticket) bool {
	select {
	case <-ticket.round.done:
		return true
	default:
		return false
	}
}

func TestChangesDuringAWriteShareTheNextOne(t *testing.T) {
	d, w := newDisk(bound, 0)
	first := w.Submit(text("0"))
	if got := <-d.begun; got != "0" {
		t.Fatalf("the first write has %s", got)
	}
	var storm []Ticket
	for i := 1; i < 500; i++ { // the disk hangs: none of these waits
		storm = append(storm, w.Submit(text(strconv.Itoa(i))))
	}
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
	if got := <-d.begun; got != "499" {
		t.Fatalf("the second write has %s", got)
	}
	under := w.Flush() // nothing new: it waits for the write under way
	if answered(storm[0]) || answered(under) {
		t.Fatal("answered before its write has ended")
	}
	d.results <- nil
	for _, ticket := range append(storm, under) {
		if err := ticket.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	if ticket := w.Flush(); ticket != (Ticket{}) || ticket.Wait(within(t)) != nil {
		t.Error("what is on disk asks for a write")
	}
	if s := w.Stats(); s.Writes != 2 || s.Failures != 0 || s.Size != 3 || s.Pending || s.Seconds <= 0 {
		t.Errorf("%+v", s)
	}
	if err := w.Close(within(t)); err != nil {
		t.Error(err)
	}
}

func TestAnErrorReachesAllWhoWaitAndFlushTriesAgain(t *testing.T) {
	d, w := newDisk(bound, 0)
	first := w.Submit(text("0"))
	<-d.begun
	second := w.Submit(text("1"))
	d.results <- unix.ENOSPC
	if err := first.Wait(within(t)); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	<-d.begun
	d.results <- unix.ENOSPC
	if err := second.Wait(within(t)); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if s := w.Stats(); s.Failures != 2 || s.LastError != unix.ENOSPC.Error() || !s.Pending || s.PendingSince != first.round.since {
		t.Errorf("%+v", s)
	}
	again := w.Flush()
	if got := <-d.begun; got != "1" {
		t.Errorf("the write has %s", got)
	}
	d.results <- nil
	if err := again.Wait(within(t)); err != nil {
		t.Error(err)
	}
	if s := w.Stats(); s.LastError != "" || s.Pending {
		t.Errorf("%+v", s)
	}
	if err := w.Close(within(t)); err != nil {
		t.Error(err)
	}
}

func TestAFailedWriteIsTriedAgainByItself(t *testing.T) {
	d, w := newDisk(time.Millisecond, 0)
	w.Submit(text("0"))
	for range 3 {
		<-d.begun
		d.results <- unix.EIO
	}
	<-d.begun
	d.results <- nil
	if err := w.Close(within(t)); err != nil {
		t.Error(err)
	}
}

func TestContentThatCannotBeEncoded(t *testing.T) {
	_, w := newDisk(bound, 0)
	ticket := w.Submit(func([]byte) ([]byte, error) { return nil, errors.New("no such kind") })
	if err := ticket.Wait(within(t)); err == nil || err.Error() != "encode /state/file: no such kind" {
		t.Errorf("got %v", err)
	}
	if err := w.Close(within(t)); err == nil {
		t.Error("no error")
	}
}

// The interval is longer than the test: only Flush and Close get past it.
func TestFlushDoesNotWaitForTheInterval(t *testing.T) {
	d, w := newDisk(bound, time.Hour)
	w.Submit(text("0"))
	<-d.begun
	w.Submit(text("1"))
	flushed := w.Flush()
	d.results <- nil
	if got := <-d.begun; got != "1" {
		t.Errorf("the write has %s", got)
	}
	d.results <- nil
	if err := flushed.Wait(within(t)); err != nil {
		t.Error(err)
	}
	w.Submit(text("2"))
	closed := make(chan error, 1)
	go func() { closed <- w.Close(context.Background()) }()
	if got := <-d.begun; got != "2" {
		t.Errorf("the last write has %s", got)
	}
	d.results <- nil
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestAHangingDiskEndsWaitAndCloseByTheirContext(t *testing.T) {
	d, w := newDisk(bound, 0)
	ticket := w.Submit(text("0"))
	<-d.begun
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	const want = "write /state/file: context canceled"
	if err := ticket.Wait(ctx); !errors.Is(err, context.Canceled) || err.Error() != want {
		t.Error(err)
	}
	if err := w.Close(ctx); !errors.Is(err, context.Canceled) || err.Error() != want {
		t.Error(err)
	}
	if err := w.Submit(text("1")).Wait(within(t)); !errors.Is(err, ErrClosed) || err.Error() != "write /state/file: the writer is closed" {
		t.Error(err)
	}
	d.results <- nil
	if err := ticket.Wait(within(t)); err != nil {
		t.Error(err)
	}
	if got := <-d.begun; got != "1" { // the change after Close goes along with what Close tries
		t.Errorf("the last write has %s", got)
	}
	d.results <- nil
	<-w.ended
}

func TestCloseWritesWhatIsPendingAndSaysWhatFailed(t *testing.T) {
	d, w := newDisk(bound, 0)
	w.Submit(text("0"))
	<-d.begun
	last := w.Submit(text("1"))
	closed := make(chan error, 1)
	go func() { closed <- w.Close(context.Background()) }()
	d.results <- nil
	if got := <-d.begun; got != "1" {
		t.Errorf("the last write has %s", got)
	}
	d.results <- unix.ENOSPC
	if err := last.Wait(within(t)); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	select { // a failure before Close was seen is tried once more
	case <-d.begun:
		d.results <- unix.ENOSPC
	case err := <-closed:
		closed <- err
	}
	if err := <-closed; !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
}

func TestCloseWithoutChangesWritesNothing(t *testing.T) {
	_, w := newDisk(bound, 0)
	for range 2 {
		if err := w.Close(within(t)); err != nil {
			t.Error(err)
		}
	}
}

// What a ticket has been waited for is on disk, whoever else submits.
func TestConcurrentSubmitters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	w := NewWriter(Options{Path: path})
	var mu sync.Mutex
	var all []string
	content := func(buffer []byte) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Appendln(buffer, all), nil
	}
	var group sync.WaitGroup
	for i := range 50 {
		group.Go(func() {
			name := strconv.Itoa(i)
			mu.Lock()
			all = append(all, name)
			ticket := w.Submit(content)
			mu.Unlock()
			if err := ticket.Wait(within(t)); err != nil {
				t.Error(err)
			}
			data, err := os.ReadFile(path)
			if err != nil || !slices.Contains(strings.Fields(strings.Trim(string(data), "[]\n")), name) {
				t.Errorf("%s was answered, but is not on disk: %v", name, err)
			}
		})
	}
	group.Wait()
	if err := w.Close(within(t)); err != nil {
		t.Error(err)
	}
	if s := w.Stats(); s.Writes == 0 || s.Writes > 50 || s.Pending {
		t.Errorf("%+v", s)
	}
}

// A disk that hangs is waited for once; one that has answered is waited for again.
func TestAwaitWaitsForAHangingDiskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := newDisk(bound, 0)
		first := w.Submit(text("0"))
		<-d.begun
		if err := w.Await(within(t), first); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		second := w.Submit(text("1"))
		if w.awaitTimeout() > 0 {
			t.Error("the disk is waited for again")
		}
		if err := w.Await(within(t), second); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		d.results <- unix.EIO
		<-d.begun
		if w.awaitTimeout() <= 0 {
			t.Error("the disk has answered, and is not waited for")
		}
		d.results <- nil
		if err := w.Await(within(t), second); err != nil {
			t.Error(err)
		}
		if err := errors.Join(w.Await(within(t), Ticket{}), w.Close(within(t))); err != nil {
			t.Error(err)
		}
	})
}

// Deferred content has no write of its own where other content follows: the hour is longer than the test.
func TestDeferredContentGoesAlongWithTheNext(t *testing.T) {
	d, w := newDisk(bound, 0)
	w.delay = time.Hour
	w.Defer(text("0"))
	w.Defer(text("1"))
	submitted := w.Submit(text("2"))
	if got := <-d.begun; got != "2" {
		t.Errorf("the first write has %s", got)
	}
	w.Defer(text("3"))
	d.results <- nil
	if err := submitted.Wait(within(t)); err != nil {
		t.Fatal(err)
	}
	if s := w.Stats(); s.Writes != 1 || !s.Pending {
		t.Errorf("%+v", s)
	}
	flushed := w.Flush()
	if got := <-d.begun; got != "3" {
		t.Errorf("Flush writes %s", got)
	}
	d.results <- nil
	if err := flushed.Wait(within(t)); err != nil {
		t.Fatal(err)
	}
	w.Defer(text("4"))
	closed := make(chan error, 1)
	go func() { closed <- w.Close(context.Background()) }()
	if got := <-d.begun; got != "4" {
		t.Errorf("Close writes %s", got)
	}
	d.results <- nil
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestDeferredContentIsWrittenByItself(t *testing.T) {
	d, w := newDisk(bound, 0)
	w.delay = time.Millisecond
	w.Defer(text("0"))
	if got := <-d.begun; got != "0" {
		t.Errorf("the write has %s", got)
	}
	d.results <- nil
	if err := w.Close(within(t)); err != nil {
		t.Error(err)
	}
}

// Sync follows the writes, shared by those of a second. No write waits for it, and where it fails the content is written again.
func TestSyncFollowsTheWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var written []string
		syncing, synced := make(chan struct{}), make(chan error)
		w := NewWriter(Options{
			Path:  "/state/file",
			Write: func(data []byte) error { written = append(written, string(data)); return nil },
			Sync:  func() error { syncing <- struct{}{}; return <-synced },
		})
		submit := func(s string) {
			t.Helper()
			if err := w.Submit(text(s)).Wait(within(t)); err != nil {
				t.Fatal(err)
			}
		}
		submit("0")
		submit("1")
		<-syncing
		if s := w.Stats(); !s.Pending || s.PendingSince.IsZero() {
			t.Errorf("a Sync that hangs is not seen: %+v", s)
		}
		submit("2")
		synced <- unix.EIO
		synctest.Wait()
		if s := w.Stats(); s.LastError != unix.EIO.Error() || s.Failures != 1 || !slices.Equal(written, []string{"0", "1", "2", "2"}) {
			t.Errorf("after a Sync that failed %q are written: %+v", written, s)
		}
		<-syncing
		synced <- nil
		synctest.Wait()
		if s := w.Stats(); s.LastError != "" || s.Failures != 1 || s.Writes != 4 || s.Pending {
			t.Errorf("%+v", s)
		}
		submit("3")
		at := time.Now()
		closed := make(chan error, 1)
		go func() { closed <- w.Close(t.Context()) }()
		<-syncing
		synced <- unix.ENOSPC
		if err := <-closed; !errors.Is(err, unix.ENOSPC) || !time.Now().Equal(at) {
			t.Errorf("Close returns %v after %v", err, time.Since(at))
		}
	})
}

// A write of 300 ms is no disk that hangs: who comes while another's write is under way is told that its own has ended.
func TestAwaitWaitsForASlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWriter(Options{Path: "x", Write: func([]byte) error { time.Sleep(300 * time.Millisecond); return nil }})
		content := func(b []byte) ([]byte, error) { return b, nil }
		w.Submit(content)
		time.Sleep(200 * time.Millisecond)
		if err := w.Await(t.Context(), w.Submit(content)); err != nil {
			t.Error(err)
		}
		if err := w.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

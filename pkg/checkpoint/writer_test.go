package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

const bound = 60 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}

func submit(w *Writer, pod int) Ticket {
	name := fmt.Sprintf("pod%03d", pod)
	entries := []memorymanager.Entry{{Pod: name, Container: "c", Blocks: []memorymanager.Block{{Nodes: 1, Type: "memory", Size: 1}}}}
	return w.Submit(nil, memorymanager.PodAllocations{Pod: name, Entries: entries})
}

// A decision whose write has failed is written again with one that says nothing new.
func TestAWriteThatFailedIsTriedAgain(t *testing.T) {
	store := openStore(t, t.TempDir())
	w := NewWriter(store)
	wait := func(ticket Ticket) {
		t.Helper()
		if err := ticket.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	wait(w.Replace(memorymanager.State{}))
	wait(submit(w, 0))
	file, err := ReadFile(store.Path())
	if err != nil || len(file.State.Entries) != 1 {
		t.Errorf("%+v, %v", file, err)
	}
	if s := w.Stats(); s.Writes != 2 || s.Failures != 0 || s.Size == 0 {
		t.Errorf("%+v", s)
	}
	if err := os.Remove(store.Path()); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(store.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := submit(w, 1).Wait(within(t)); !errors.Is(err, unix.EISDIR) {
		t.Fatal(err)
	}
	if err := submit(w, 1).Wait(within(t)); !errors.Is(err, unix.EISDIR) {
		t.Fatal(err)
	}
	if err := os.Remove(store.Path()); err != nil {
		t.Fatal(err)
	}
	wait(submit(w, 1))
	if err := w.Close(within(t)); err != nil {
		t.Error(err)
	}
}

// A pod that is gone leaves the file with the next decision, and its memory is in no file twice.
func TestAReleaseGoesAlongWithTheNextDecision(t *testing.T) {
	store := openStore(t, t.TempDir())
	w := NewWriter(store)
	onDisk := func(ticket Ticket, want ...string) {
		t.Helper()
		if err := ticket.Wait(within(t)); err != nil {
			t.Fatal(err)
		}
		file, err := ReadFile(store.Path())
		var pods []string
		for _, entry := range file.State.Entries {
			pods = append(pods, entry.Pod)
		}
		if err != nil || !slices.Equal(pods, want) {
			t.Errorf("on disk are %q, want %q: %v", pods, want, err)
		}
	}
	onDisk(submit(w, 0), "pod000")
	w.Release(nil, "pod000")
	w.Release(nil, "pod000")
	onDisk(submit(w, 1), "pod001")
	w.Release(nil, "pod001")
	if err := w.Close(within(t)); err != nil {
		t.Fatal(err)
	}
	onDisk(Ticket{})
}

// A clean stop has the state file on disk: one that somebody has replaced by what has no place there is an error.
func TestAStopSyncsTheStateFile(t *testing.T) {
	store := openStore(t, t.TempDir())
	w := NewWriter(store)
	if err := submit(w, 0).Wait(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(store.Path()), unix.Mkfifo(store.Path(), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err, want := w.Close(within(t)), "writing the state file: sync "+store.Path()+": invalid argument"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
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
			_, err := m.Allocate(c)
			ticket := w.Submit(m.Nodes(), m.Allocations(c.Pod))
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
	if s := w.Stats(); s.Writes > 61 {
		t.Errorf("%+v", s)
	}
}

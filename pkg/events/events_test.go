package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/reclaim"
)

// server is the part of an API server that keeps events.
type server struct {
	*httptest.Server
	failing atomic.Int64 // requests to be answered with 503

	mu     sync.Mutex
	events map[string]*corev1.Event
	wrong  []string
}

func newServer(t *testing.T) *server {
	s := &server{events: map[string]*corev1.Event{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/namespaces/{namespace}/events", s.create)
	mux.HandleFunc("PATCH /api/v1/namespaces/{namespace}/events/{name}", s.patch)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wrong = append(s.wrong, r.Method+" "+r.URL.Path)
		http.NotFound(w, r)
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.failing.Add(-1) >= 0 {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) create(w http.ResponseWriter, r *http.Request) {
	event := &corev1.Event{}
	if err := json.NewDecoder(r.Body).Decode(event); err != nil || event.Kind != "Event" || event.Namespace != r.PathValue("namespace") || len(event.Message) > longest {
		http.Error(w, fmt.Sprintf("bad event: %v", err), http.StatusUnprocessableEntity)
		return
	}
	s.mu.Lock()
	s.events[event.Namespace+"/"+event.Name] = event
	s.mu.Unlock()
	answer(w, http.StatusCreated, event)
}

func (s *server) patch(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	event := s.events[r.PathValue("namespace")+"/"+r.PathValue("name")]
	if event == nil {
		answer(w, http.StatusNotFound, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
		return
	}
	before, _ := json.Marshal(event)
	patch, _ := io.ReadAll(r.Body)
	after, err := strategicpatch.StrategicMergePatch(before, patch, corev1.Event{})
	if err == nil {
		err = json.Unmarshal(after, event)
	}
	if err != nil {
		s.wrong = append(s.wrong, err.Error())
	}
	answer(w, http.StatusOK, event)
}

func answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

// written are the events as "object field type reason count: message".
func (s *server) written() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]bool{}
	for _, e := range s.events {
		o := e.InvolvedObject
		all[fmt.Sprintf("%s %s/%s %s %s %s %d×: %s", o.Kind, o.Namespace, o.Name, o.UID, o.FieldPath, e.Reason, e.Count, e.Message)] = true
	}
	return all
}

// node is what a Reporter looks at.
type node struct {
	mu     sync.Mutex
	view   ledger.View
	counts map[protect.File]uint64
}

func (n *node) change(change func(*node)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

func start(t *testing.T, s *server, n *node) *Reporter {
	t.Helper()
	sink, err := NewSink(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	r := New(Options{Sink: sink, Node: "worker-1", Log: log,
		View: func() *ledger.View {
			n.mu.Lock()
			defer n.mu.Unlock()
			view := n.view
			return &view
		},
		Overwritten: func() map[protect.File]uint64 {
			n.mu.Lock()
			defer n.mu.Unlock()
			counts := map[protect.File]uint64{}
			for file, count := range n.counts {
				counts[file] = count
			}
			return counts
		}})
	r.every, r.retry = time.Millisecond, time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the reporter ended with: %v", err)
		}
		if len(s.wrong) > 0 {
			t.Errorf("wrong requests: %q", s.wrong)
		}
	})
	return r
}

func (s *server) eventually(t *testing.T, want ...string) {
	t.Helper()
	wanted := map[string]bool{}
	for _, text := range want {
		wanted[text] = true
	}
	var difference string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if difference = cmp.Diff(wanted, s.written()); difference == "" {
			return
		}
	}
	t.Fatal(difference)
}

func busyNode() *node {
	return &node{
		view: ledger.View{Pods: []*ledger.PodView{{UID: "u1", Namespace: "shop", Name: "web", Cgroup: "kubepods/burstable/podu1",
			Containers: []ledger.ContainerView{{ID: "c1", Name: "nginx"}}}}},
		counts: map[protect.File]uint64{{Cgroup: "kubepods", Knob: cgroup.MemoryMin}: 3}, // from before
	}
}

func rejection(pod string, refused bool) ledger.Rejection {
	return ledger.Rejection{At: time.Now(), Namespace: "shop", Pod: pod, UID: "uid-" + pod, Container: "app",
		Reason: "TopologyAffinityError", Text: "fits nowhere", Refused: refused}
}

func TestEventsOfAPod(t *testing.T) {
	s, n := newServer(t), busyNode()
	r := start(t, s, n)
	const rejected = "Pod shop/large uid-large spec.containers{app} TopologyAffinityError 1×: container app: fits nowhere"
	const unpinned = "Pod shop/odd uid-odd spec.containers{app} TopologyAffinityError 1×: container app: runs without NUMA nodes of its own: fits nowhere"
	n.change(func(n *node) { n.view.Rejections = []ledger.Rejection{rejection("large", true)} })
	s.eventually(t, rejected)
	n.change(func(n *node) {
		n.view.Rejections = append([]ledger.Rejection{rejection("odd", false)}, n.view.Rejections...)
	})
	s.eventually(t, rejected, unpinned)
	// A resize that the kubelet tries again is no news.
	n.change(func(n *node) {
		n.view.Rejections = slices.Clone(n.view.Rejections)
		n.view.Rejections[0].Count, n.view.Rejections[0].Last = 2, time.Now()
	})
	// What goes with its pod makes the older ones no news.
	n.change(func(n *node) { n.view.Rejections = n.view.Rejections[1:] })

	r.Throttled(guard.Episode{Container: guard.Container{ID: "c1"}, From: 64 << 20, To: 96 << 20, Stalled: 3 * time.Second})
	r.Throttled(guard.Episode{Container: guard.Container{ID: "gone"}, From: 1, To: 2})
	const throttled = "Pod shop/web u1 spec.containers{nginx} MemoryThrottled 1×: stopped by its memory.high of 64Mi for 3s, which was raised to 96Mi: it needs more than its memory request lets it have"
	s.eventually(t, rejected, unpinned, throttled)

	// Who reads a pod's events need not know the pods of other namespaces.
	r.Killed(oom.Verdict{Namespace: "shop", Pod: "web", UID: "u1", Container: "nginx", Kills: 1, Level: oom.Node, Cause: oom.Processes,
		Held: &oom.Held{Processes: 64 << 20}, Culprit: &oom.User{Namespace: "team", Pod: "batch", Used: 1 << 30}, Change: "give it a limit"})
	const killed = "Pod shop/web u1 spec.containers{nginx} OOMKilled 1×: container nginx: the kernel killed one process for want of memory; " +
		"what ran out: the node's memory; used for: processes 64Mi, page cache 0 (0 not on the disk yet), files in memory 0, kernel 0; " +
		"most beyond its share has a pod of another namespace; what helps: give it a limit"
	s.eventually(t, rejected, unpinned, throttled, killed)
	r.Reclaimed(reclaim.Freed{Container: reclaim.Container{Namespace: "shop", Pod: "web", UID: "u1", Name: "nginx"}, Last: time.Time{}.Add(40 * time.Second), Bytes: 1 << 30, Refaulted: 1 << 20,
		Signal: reclaim.Signal{Name: reclaim.Available, Available: 1200 << 20, Threshold: 1000 << 20}})
	const reclaimed = "Pod shop/web u1 spec.containers{nginx} PageCacheReclaimed 1×: container nginx: 1Gi of its page cache was reclaimed in 40s, " +
		"1Mi of which it read again: memory.available was 1.172Gi, and below 1000Mi the kubelet evicts pods"
	s.eventually(t, rejected, unpinned, throttled, killed, reclaimed)

	// What repeats is one event that counts.
	const overwritten = "Pod shop/web u1  MemoryProtectionOverwritten %d×: memory.low of cgroup kubepods/burstable/podu1 was changed externally and restored"
	for i := range 3 {
		n.change(func(n *node) { n.counts[protect.File{Cgroup: "kubepods/burstable/podu1", Knob: cgroup.MemoryLow}]++ })
		s.eventually(t, rejected, unpinned, throttled, killed, reclaimed, fmt.Sprintf(overwritten, i+1))
	}
	n.change(func(n *node) { n.counts[protect.File{Cgroup: "kubepods", Knob: cgroup.MemoryMin}]++ })
	s.eventually(t, rejected, unpinned, throttled, killed, reclaimed,
		fmt.Sprintf(overwritten, 3),
		"Node /worker-1 worker-1  MemoryProtectionOverwritten 1×: memory.min of cgroup kubepods was changed externally and restored")
}

func TestEventsWaitForAnAPIServerThatIsAway(t *testing.T) {
	s, n := newServer(t), busyNode()
	s.failing.Store(3)
	start(t, s, n)
	n.change(func(n *node) { n.view.Rejections = []ledger.Rejection{rejection("large", true)} })
	s.eventually(t, "Pod shop/large uid-large spec.containers{app} TopologyAffinityError 1×: container app: fits nowhere")
}

func TestAnEpisodeInWords(t *testing.T) {
	for want, e := range map[string]guard.Episode{
		"stopped by its memory.high of 64Mi for 1.2s, which was raised to max":             {From: 64 << 20, To: cgroup.Max, Stalled: 1234 * time.Millisecond},
		"stopped by its memory.high of 64Mi for 0s; 8Mi of page cache was freed":           {From: 64 << 20, To: 64 << 20, Reclaimed: 8 << 20},
		"stopped by its memory.high of 64Mi for 0s: it needs more than its memory request": {From: 64 << 20, To: 64 << 20},
	} {
		if got := episode(e); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q first", got, want)
		}
	}
}

func TestAMessageIsCutAtACharacter(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", 2000), strings.Repeat("é", 1000), "x" + strings.Repeat("世", 700)} {
		got := bounded(text)
		if len(got) > longest || len(got) < longest-5 || !strings.HasSuffix(got, "…") || strings.ContainsRune(got, '\uFFFD') {
			t.Errorf("%d bytes: %q", len(got), got[max(0, len(got)-20):])
		}
	}
	if got := bounded("short"); got != "short" {
		t.Errorf("%q", got)
	}
}

func TestFailuresAreToldOnce(t *testing.T) {
	var text strings.Builder
	log := logrus.New()
	log.SetOutput(&text)
	sink := &telling{log: log}
	for _, err := range []error{nil, errors.New("refused"), errors.New("refused"), nil, nil} {
		_ = sink.tell(err)
	}
	if n := strings.Count(text.String(), "\n"); n != 2 || !strings.Contains(text.String(), "again") {
		t.Errorf("want two lines:\n%s", text.String())
	}
}

// A container that may use more memory than its resource claims have is reported once, and so is the next one of its name.
func TestEventsOfALimitAboveAClaim(t *testing.T) {
	s, n := newServer(t), busyNode()
	claiming := func(id string, limit uint64) func(*node) {
		return func(n *node) {
			n.view.Pods = []*ledger.PodView{{UID: "u1", Namespace: "shop", Name: "web", Containers: []ledger.ContainerView{
				{ID: id, Name: "app", State: ledger.Running, Limit: limit, Claimed: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 1 << 30}}},
				{ID: "within", Name: "side", State: ledger.Running, Limit: 1 << 30, Claimed: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 1 << 30}}},
				{ID: "shared", Name: "other", State: ledger.Running, Limit: 1 << 40, Claims: []string{"shop/c"}},
			}}}
		}
	}
	n.change(claiming("c1", 2<<30))
	start(t, s, n)
	const above = "Pod shop/web u1 spec.containers{app} MemoryLimitAboveClaim 1×: container app: its memory limit of 2Gi is above the 1Gi that its resource claims have"
	const unlimited = "Pod shop/web u1 spec.containers{app} MemoryLimitAboveClaim 1×: container app: it has no memory limit, and its resource claims have 1Gi"
	s.eventually(t, above)
	n.change(claiming("c2", 0))
	s.eventually(t, above, unlimited)
}

// A refused resize that is tried again comes back to the front of the list with its old time, once others have pushed it out. What was refused since is news.
func TestAResizeThatComesBackHidesNoNews(t *testing.T) {
	s, n := newServer(t), busyNode()
	start(t, s, n)
	old := rejection("resized", true)
	old.At = time.Now().Add(-time.Hour)
	const first = "Pod shop/resized uid-resized spec.containers{app} TopologyAffinityError 1×: container app: fits nowhere"
	const news = "Pod shop/large uid-large spec.containers{app} TopologyAffinityError 1×: container app: fits nowhere"
	const last = "Pod shop/last uid-last spec.containers{app} TopologyAffinityError 1×: container app: fits nowhere"
	n.change(func(n *node) { n.view.Rejections = []ledger.Rejection{old} })
	s.eventually(t, first)
	n.change(func(n *node) { n.view.Rejections = []ledger.Rejection{rejection("large", true)} })
	s.eventually(t, first, news)
	n.change(func(n *node) { n.view.Rejections = []ledger.Rejection{old, rejection("last", true)} })
	deadline := time.Now().Add(2 * time.Second)
	for !s.written()[last] {
		if time.Now().After(deadline) {
			t.Fatalf("no event of what was refused last: %v", s.written())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// The newest rejection that others' retries push out and that comes back with its next try is no news.
func TestTheNewestResizeThatComesBackIsNoNews(t *testing.T) {
	s, n := newServer(t), busyNode()
	start(t, s, n)
	old, newest := rejection("old", true), rejection("newest", true)
	old.At, newest.At = time.Now().Add(-time.Hour), time.Now()
	old.Count, newest.Count = 5, 1
	const first = "Pod shop/old uid-old spec.containers{app} TopologyAffinityError 1×: container app: fits nowhere"
	const second = "Pod shop/newest uid-newest spec.containers{app} TopologyAffinityError 1×: container app: fits nowhere"
	n.change(func(n *node) { n.view.Rejections = []ledger.Rejection{newest, old} })
	s.eventually(t, first, second)
	n.change(func(n *node) { n.view.Rejections = []ledger.Rejection{old} }) // 64 others of the namespace retried
	time.Sleep(200 * time.Millisecond)
	newest.Count = 9
	n.change(func(n *node) { n.view.Rejections = []ledger.Rejection{newest, old} })
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if got := s.written(); !got[second] {
			t.Fatalf("it was reported again: %v", got)
		}
	}
}

package evict

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/config"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
)

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// node is what an Evictor sees: an agent's view, and an API server.
type node struct {
	*Evictor
	view   *ledger.View
	pods   map[string]*corev1.Pod
	refuse error // what evictions fail with
	reads  int
	done   []string // evictions that were granted, and when
	now    time.Time
	log    bytes.Buffer
}

func newNode(after time.Duration) *node {
	n := &node{view: &ledger.View{}, pods: map[string]*corev1.Pod{}, now: start}
	n.view.Config.Config.EvictRejectedAfter = config.Duration(after)
	log := logrus.New()
	log.SetOutput(&n.log)
	log.SetFormatter(&logrus.TextFormatter{DisableTimestamp: true, DisableQuote: true})
	n.Evictor = New(Options{API: n, View: func() *ledger.View { return n.view }, Log: log, OnEvicted: func(r ledger.Rejection, why string) {
		n.done = append(n.done, fmt.Sprintf("%s after %s: %s", r.Pod, n.now.Sub(start), why))
	}})
	return n
}

func (n *node) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	n.reads++
	if pod := n.pods[name]; pod != nil {
		return pod, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
}

func (n *node) Evict(_ context.Context, pod *corev1.Pod) error {
	if n.refuse == nil {
		delete(n.pods, pod.Name)
	}
	return n.refuse
}

// create has a pod whose controller has this name and kind.
func (n *node) create(name, controller, kind string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}}
	if controller != "" {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: controller, UID: types.UID(controller), Controller: new(true)}}
	}
	n.pods[name] = pod
	return pod
}

// refused has the node refuse a container of each pod that there is, as a kubelet has it tried, and the Evictor look, until the time has gone by.
func (n *node) refused(until time.Duration, change ...func(*ledger.Rejection)) {
	for ; n.now.Sub(start) <= until; n.now = n.now.Add(10 * time.Second) {
		for name := range n.pods {
			r := ledger.Rejection{At: n.now, Last: n.now, Count: 1, Namespace: "shop", Pod: name, UID: "uid-" + name, Container: "app", Refused: true,
				Reason: memorymanager.UnexpectedAdmissionError.String(), Text: "no room:\nnode 0: 1Gi of 8Gi free, 2Gi needed"}
			for _, change := range change {
				change(&r)
			}
			rejections := append([]ledger.Rejection{r}, n.view.Rejections...)
			n.view.Rejections = rejections[:min(len(rejections), ledger.RejectionsKept)]
		}
		n.look(context.Background(), n.now)
	}
}

func TestOnlyWhatWaitsForMemoryIsEvicted(t *testing.T) {
	t.Parallel()
	const minutes = 20 * time.Minute
	placed := func(n *node) { n.create("web-1", "web", "ReplicaSet") }
	tests := map[string]struct {
		prepare func(*node)
		change  func(*ledger.Rejection)
		want    string // the first eviction
		log     string
	}{
		"a ReplicaSet's":  {prepare: placed, want: "web-1 after 5m0s: refused on this node for 5m0s: no room: node 0: 1Gi of 8Gi free, 2Gi needed", log: "evicted: refused on this node for 5m0s"},
		"not by its rank": {prepare: placed, change: func(r *ledger.Rejection) { r.Reason = memorymanager.NotPreferred.String() }, want: "web-1 after 5m0s: refused on this node for 5m0s: no room: node 0: 1Gi of 8Gi free, 2Gi needed"},
		"nobody's":        {prepare: func(n *node) { n.create("web-1", "", "") }, log: "is not evicted: it has no controller, which would make another"},
		"a DaemonSet's":   {prepare: func(n *node) { n.create("web-1", "web", "DaemonSet") }, log: "is not evicted: its DaemonSet would have it on this node again"},
		"a static pod":    {prepare: func(n *node) { n.create("web-1", "worker", "Node") }, log: "is not evicted: its Node would have it on this node again"},
		"being deleted": {prepare: func(n *node) {
			n.create("web-1", "web", "ReplicaSet").DeletionTimestamp = &metav1.Time{Time: start}
		}, log: "is not evicted: it is being deleted"},
		"has run": {prepare: func(n *node) {
			n.create("web-1", "web", "ReplicaSet").Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "side", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		}, log: "is not evicted: its container side has run here"},
		"restarts": {prepare: func(n *node) {
			n.create("web-1", "web", "ReplicaSet").Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", RestartCount: 1}}
		}, log: "is not evicted: its container app has run here"},
		"only an init container has run": {prepare: func(n *node) {
			n.create("web-1", "web", "ReplicaSet").Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		}, want: "web-1 after 5m0s: refused on this node for 5m0s: no room: node 0: 1Gi of 8Gi free, 2Gi needed"},
		"a wrong annotation": {prepare: placed, change: func(r *ledger.Rejection) { r.Reason = ledger.BadAnnotation.String() }},
		"it runs unpinned":   {prepare: placed, change: func(r *ledger.Rejection) { r.Refused = false }},
		"it was placed after all": {prepare: func(n *node) {
			placed(n)
			n.view.Pods = []*ledger.PodView{{UID: "uid-web-1", Containers: []ledger.ContainerView{{Name: "app", State: ledger.Running}}}}
		}},
		"another has its name": {prepare: placed, change: func(r *ledger.Rejection) { r.UID = "uid-old" }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(5 * time.Minute)
			test.prepare(n)
			if test.change == nil {
				test.change = func(*ledger.Rejection) {}
			}
			n.refused(minutes, test.change)
			got := strings.Join(n.done, "\n")
			if got != test.want || !strings.Contains(n.log.String(), test.log) {
				t.Errorf("evicted: %q\nwant %q\nlog: %s\nwant %q", got, test.want, n.log.String(), test.log)
			}
			if n.reads > 1 {
				t.Errorf("the pod was read %d times, want once", n.reads)
			}
		})
	}
}

func TestNothingIsEvictedWithoutTheKey(t *testing.T) {
	t.Parallel()
	n := newNode(0)
	n.create("web-1", "web", "ReplicaSet")
	if n.refused(time.Hour); len(n.done)+n.reads > 0 {
		t.Errorf("evicted %q, read %d times", n.done, n.reads)
	}
}

// A pod that is not tried any more, and is refused again later, begins to wait anew.
func TestAWaitIsForgotten(t *testing.T) {
	t.Parallel()
	n := newNode(5 * time.Minute)
	pod := n.create("web-1", "web", "ReplicaSet")
	n.refused(4 * time.Minute)
	delete(n.pods, "web-1")
	n.refused(8 * time.Minute)
	n.pods["web-1"] = pod
	n.view.Rejections = nil
	n.refused(20 * time.Minute)
	if want := "web-1 after 13m10s"; len(n.done) != 1 || !strings.HasPrefix(n.done[0], want) {
		t.Errorf("evicted: %q, want %q", n.done, want)
	}
}

// Pods leave one at a time, and an owner whose pods come back to this node waits twice as long each time.
func TestPausesGrow(t *testing.T) {
	t.Parallel()
	n := newNode(5 * time.Minute)
	n.create("web-1", "web", "ReplicaSet")
	n.create("db-1", "db", "StatefulSet")
	waited, last := map[string][]string{}, map[string]time.Duration{}
	n.OnEvicted = func(r ledger.Rejection, _ string) {
		owner, number, _ := strings.Cut(r.Pod, "-")
		at := n.now.Sub(start)
		waited[owner], last[owner] = append(waited[owner], (at-last[owner]).String()), at
		n.create(owner+"-"+number+"1", owner, "ReplicaSet") // which the scheduler puts here again
	}
	n.refused(3 * time.Hour)
	want := map[string][]string{
		"db":  {"5m0s", "5m10s", "10m0s", "20m0s", "40m0s", "1h20m0s"},
		"web": {"5m30s", "5m10s", "10m0s", "20m0s", "40m0s", "1h20m0s"},
	}
	if difference := cmp.Diff(want, waited); difference != "" {
		t.Errorf("the times between evictions (-want +got):\n%s", difference)
	}
}

// A server that refuses an eviction for now, or is away, is asked again.
func TestRefusedEvictions(t *testing.T) {
	t.Parallel()
	n := newNode(5 * time.Minute)
	n.create("web-1", "web", "ReplicaSet")
	n.refuse = apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10)
	n.refused(10 * time.Minute)
	if len(n.done) > 0 || strings.Count(n.log.String(), "cannot be evicted") != 1 || !strings.Contains(n.log.String(), "disruption budget") || n.reads < 4 {
		t.Errorf("evicted %q, read %d times, log %s", n.done, n.reads, n.log.String())
	}
	n.refuse = errors.New("connection refused")
	n.refused(15 * time.Minute)
	n.refuse = nil
	n.refused(17 * time.Minute)
	if len(n.done) != 1 || n.Evictions() != 1 {
		t.Errorf("evicted %q (%d), want one", n.done, n.Evictions())
	}
}

// slowAPI has a reload come while the API server answers.
type slowAPI struct {
	*node
	change func(*config.Config)
}

func (s slowAPI) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	view := *s.view
	s.change(&view.Config.Config)
	s.node.view = &view
	return s.node.Pod(ctx, namespace, name)
}

func TestNothingIsEvictedOnceTheKeyIsTurnedOff(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*config.Config){
		"0":       func(c *config.Config) { c.EvictRejectedAfter = 0 },
		"longer":  func(c *config.Config) { c.EvictRejectedAfter = config.Duration(time.Hour) },
		"Observe": func(c *config.Config) { c.Profile = config.ProfileObserve },
	} {
		n := newNode(5 * time.Minute)
		n.Evictor = New(Options{API: slowAPI{n, change}, View: func() *ledger.View { return n.view }, Log: n.Evictor.Log, OnEvicted: n.OnEvicted})
		n.create("web-1", "web", "ReplicaSet")
		n.refused(6 * time.Minute)
		if len(n.done) > 0 {
			t.Errorf("%s: evicted %q", name, n.done)
		}
	}
}

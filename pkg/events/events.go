// Package events writes Kubernetes Events, so that "kubectl describe pod" shows what happened to a pod's memory: that it
// could not be placed, that its memory.high stopped it, why the kernel killed it, that another writer changes its cgroup files. client-go's recorder
// joins what repeats and bounds the rate.
package events

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/guard"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/quantity"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/reclaim"
)

// The reasons of events. A rejection has the memory manager's own, the kubelet's words.
const (
	Throttled   = "MemoryThrottled"
	Overwritten = "MemoryProtectionOverwritten"
	AboveClaim  = "MemoryLimitAboveClaim"
	Killed      = "OOMKilled"
	Reclaimed   = "PageCacheReclaimed"
	Evicted     = "EvictedForMemory"
)

const (
	component = "nri-memory-manager"
	// lookEvery is how often the agent is looked at for news.
	lookEvery  = 2 * time.Second
	retryEvery = 10 * time.Second
	// longest is the API's bound of a message, in bytes.
	longest = 1024
	// waiting is how many notes may wait to be written; more are dropped.
	waiting = 64
)

// Options are what a Reporter works with.
type Options struct {
	Sink record.EventSink
	// Node is the node's name in the API.
	Node        string
	View        func() *ledger.View
	Overwritten func() map[protect.File]uint64
	Log         logrus.FieldLogger
}

// Reporter writes events about what it finds in the agent. A nil one takes note of nothing.
type Reporter struct {
	Options
	notes      chan func()
	recorder   record.EventRecorder
	rejections []ledger.Rejection // of the last view
	newest     time.Time          // first time of the newest rejection so far
	counted    map[protect.File]uint64
	above      map[string]bool // containers that may use more than their claims have and were reported, by the runtime's id
	every      time.Duration
	retry      time.Duration // pause before an event is tried again
}

// New returns a Reporter; nothing is written before Run.
func New(o Options) *Reporter {
	return &Reporter{Options: o, notes: make(chan func(), waiting), every: lookEvery, retry: retryEvery}
}

// note makes Run write an event. It never waits.
func (r *Reporter) note(write func()) {
	if r == nil {
		return
	}
	select {
	case r.notes <- write:
	default:
	}
}

// Throttled takes note of a container that was stopped by its memory.high.
func (r *Reporter) Throttled(e guard.Episode) { r.note(func() { r.throttled(e) }) }

// Killed takes note of a verdict on an OOM kill.
func (r *Reporter) Killed(v oom.Verdict) {
	r.note(func() { r.write(podReference(v.Namespace, v.Pod, v.UID, v.Container), Killed, v.PodText()) })
}

// Reclaimed takes note of page cache that a container had to give up. Nothing is wrong with it.
func (r *Reporter) Reclaimed(f reclaim.Freed) {
	r.note(func() {
		text := fmt.Sprintf("container %s: %s", f.Name, f.Text())
		r.recorder.Event(podReference(f.Namespace, f.Pod, f.UID, f.Name), corev1.EventTypeNormal, Reclaimed, bounded(text))
	})
}

// Evicted takes note of a pod that leaves the node, and why.
func (r *Reporter) Evicted(rejection ledger.Rejection, why string) {
	r.note(func() {
		r.write(podReference(rejection.Namespace, rejection.Pod, rejection.UID, rejection.Container), Evicted,
			fmt.Sprintf("container %s: %s", rejection.Container, why))
	})
}

// Run writes events until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	silent := klog.NewContext(ctx, klog.New(nil)) // failures are reported once, by the sink
	broadcaster := record.NewBroadcaster(record.WithContext(silent), record.WithSleepDuration(r.retry))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&telling{EventSink: r.Sink, log: r.Log})
	r.recorder = broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: component, Host: r.Node})
	r.counted = r.Overwritten()
	ticker := time.NewTicker(r.every)
	defer ticker.Stop()
	for {
		r.look()
		select {
		case <-ctx.Done():
			return nil
		case write := <-r.notes:
			write()
		case <-ticker.C:
		}
	}
}

// look reports what is new.
func (r *Reporter) look() {
	view := r.View()
	for _, rejection := range slices.Backward(view.Rejections) { // newest first
		if r.known(rejection) {
			continue
		}
		text := memorymanager.InLine(rejection.Text)
		if !rejection.Refused {
			text = "runs without NUMA nodes of its own: " + text
		}
		text = fmt.Sprintf("container %s: %s", rejection.Container, text) // describe does not show whose container an event is
		r.write(podReference(rejection.Namespace, rejection.Pod, rejection.UID, rejection.Container), rejection.Reason, text)
		if rejection.At.After(r.newest) {
			r.newest = rejection.At
		}
	}
	r.rejections = view.Rejections
	r.lookAtClaims(view)
	counts := r.Overwritten()
	for _, file := range slices.SortedFunc(maps.Keys(counts), func(a, b protect.File) int {
		return strings.Compare(a.Cgroup+string(a.Knob), b.Cgroup+string(b.Knob))
	}) {
		if counts[file] > r.counted[file] {
			r.write(r.owner(view, file.Cgroup), Overwritten,
				fmt.Sprintf("%s of cgroup %s was changed externally and restored", file.Knob, file.Cgroup))
		}
	}
	r.counted = counts
}

// lookAtClaims reports containers that may use more memory than their resource claims have, each once.
func (r *Reporter) lookAtClaims(view *ledger.View) {
	above := map[string]bool{}
	for pod, c := range view.Containers() {
		text := c.AboveClaim()
		if !c.State.Alive() || text == "" {
			continue
		}
		if above[c.ID] = true; !r.above[c.ID] {
			r.write(podReference(pod.Namespace, pod.Name, pod.UID, c.Name), AboveClaim, fmt.Sprintf("container %s: %s", c.Name, text))
		}
	}
	r.above = above
}

// known reports whether a rejection was in the last view, or before: a resize that is tried again comes back once others have pushed it out.
func (r *Reporter) known(rejection ledger.Rejection) bool {
	return slices.ContainsFunc(r.rejections, rejection.Same) || rejection.Count > 1 && !rejection.At.After(r.newest)
}

// owner is the pod of a cgroup, or the node for the parents of the pods.
func (r *Reporter) owner(view *ledger.View, path string) *corev1.ObjectReference {
	for _, pod := range view.Pods {
		if pod.Cgroup == path {
			return podReference(pod.Namespace, pod.Name, pod.UID, "")
		}
	}
	// The kubelet's events on its node have the name for the UID too; kubectl finds them by it.
	return &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: r.Node, UID: types.UID(r.Node)}
}

func (r *Reporter) throttled(e guard.Episode) {
	for pod, c := range r.View().Containers() {
		if c.ID == e.Container.ID {
			r.write(podReference(pod.Namespace, pod.Name, pod.UID, c.Name), Throttled, episode(e))
			return
		}
	}
}

func episode(e guard.Episode) string {
	high := cgroup.Apart(e.From, e.To)
	text := fmt.Sprintf("stopped by its memory.high of %s for %s", high[0], e.Stalled.Round(100*time.Millisecond))
	switch {
	case e.To > e.From:
		text += ", which was raised to " + high[1]
	case e.Reclaimed > 0:
		text += "; " + quantity.Short(e.Reclaimed) + " of page cache was freed"
	}
	return text + ": it needs more than its memory request lets it have"
}

func podReference(namespace, name, uid, container string) *corev1.ObjectReference {
	reference := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: namespace, Name: name, UID: types.UID(uid)}
	if container != "" {
		reference.FieldPath = "spec.containers{" + container + "}"
	}
	return reference
}

func (r *Reporter) write(object *corev1.ObjectReference, reason, message string) {
	r.recorder.Event(object, corev1.EventTypeWarning, reason, bounded(message))
}

// bounded cuts a message to what the API takes, at a character.
func bounded(message string) string {
	if len(message) <= longest {
		return message
	}
	end := longest - len("…")
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "…"
}

// telling logs when events cannot be written, and when they can again. The recorder calls it from one goroutine.
type telling struct {
	record.EventSink
	log     logrus.FieldLogger
	failing bool
}

func (t *telling) Create(event *corev1.Event) (*corev1.Event, error) {
	written, err := t.EventSink.Create(event)
	return written, t.tell(err)
}

func (t *telling) Patch(event *corev1.Event, patch []byte) (*corev1.Event, error) {
	written, err := t.EventSink.Patch(event, patch)
	if apierrors.IsNotFound(err) { // it has expired; the recorder recreates it
		return written, err
	}
	return written, t.tell(err)
}

func (t *telling) tell(err error) error {
	switch {
	case err != nil && !t.failing:
		t.log.WithError(err).Warn("events cannot be written to the API server")
	case err == nil && t.failing:
		t.log.Info("events can be written to the API server again")
	}
	t.failing = err != nil
	return err
}

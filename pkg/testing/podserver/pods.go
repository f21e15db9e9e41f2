// Package podserver plays the list and the watch of pods of the Kubernetes API, in protobuf. It is no API server: it has no storage, no
// admission and no other resource. deploy/apiserver has a test against a real one. The daemon must not link it.
package podserver

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
)

// Pods are the pods of one node, as an http.Handler. With guards what may change while it serves.
type Pods struct {
	Node string
	// NoStream has lists not be streamed (Kubernetes before 1.32).
	NoStream bool
	// Before is asked before each request and may wait; what it returns is the answer where it is no 0. Wait comes before each event of a watch.
	// Both may be nil.
	Before func(*http.Request) (status int)
	Wait   func()

	Broken   bool // every request fails
	Requests []string
	Watchers map[chan metav1.WatchEvent]struct{}
	History  []Past

	codec   runtime.SerializerInfo
	mu      sync.Mutex
	version int
	oldest  int // a watch from before it is 410 Gone
	pods    map[string]*corev1.Pod
}

// Past is an event of the past, for a watch that starts before it.
type Past struct {
	version int
	event   metav1.WatchEvent
}

// New has no pods yet.
func New(node string) *Pods {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	codecs := serializer.NewCodecFactory(scheme)
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		panic("no protobuf")
	}
	return &Pods{Node: node, codec: info, pods: map[string]*corev1.Pod{}, Watchers: map[chan metav1.WatchEvent]struct{}{}, version: 100}
}

// With changes what it has.
func (s *Pods) With(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// Cut ends all watches; in With.
func (s *Pods) Cut() {
	for watcher := range s.Watchers {
		close(watcher)
	}
	clear(s.Watchers)
}

// Expire ends all watches, and forgets the events so far (compaction); in With.
func (s *Pods) Expire() {
	s.Cut()
	s.version++
	s.oldest, s.History = s.version, nil
}

// Put makes or changes a pod.
func (s *Pods) Put(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := watch.Added
	if _, ok := s.pods[pod.Name]; ok {
		kind = watch.Modified
	}
	s.version++
	pod = pod.DeepCopy()
	pod.ResourceVersion = strconv.Itoa(s.version)
	s.pods[pod.Name] = pod
	s.send(kind, pod)
}

// Drop deletes a pod by its name.
func (s *Pods) Drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	pod := s.pods[name].DeepCopy() // a list may be sending it
	pod.ResourceVersion = strconv.Itoa(s.version)
	delete(s.pods, name)
	s.send(watch.Deleted, pod)
}

func (s *Pods) send(kind watch.EventType, pod *corev1.Pod) {
	event := s.event(kind, pod)
	s.History = append(s.History, Past{s.version, event})
	for watcher := range s.Watchers {
		watcher <- event
	}
}

func (s *Pods) event(kind watch.EventType, pod *corev1.Pod) metav1.WatchEvent {
	pod = pod.DeepCopy()
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	return s.encoded(kind, pod)
}

func (s *Pods) encoded(kind watch.EventType, object runtime.Object) metav1.WatchEvent {
	raw, err := runtime.Encode(s.codec.Serializer, object)
	if err != nil {
		panic(err)
	}
	return metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: raw}}
}

func (s *Pods) bookmark(annotations map[string]string) metav1.WatchEvent {
	return s.event(watch.Bookmark, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(s.version), Annotations: annotations}})
}

// ServeHTTP implements http.Handler.
func (s *Pods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if s.Before != nil {
		if status := s.Before(r); status != 0 {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "no", status)
			return
		}
	}
	s.mu.Lock()
	s.Requests = append(s.Requests, r.URL.String())
	switch streamed := query.Get("sendInitialEvents") == "true"; {
	case s.Broken, r.URL.Path != "/api/v1/pods", query.Get("fieldSelector") != "spec.nodeName="+s.Node:
		s.mu.Unlock()
		http.Error(w, "no", http.StatusInternalServerError)
	case streamed && s.NoStream:
		s.mu.Unlock()
		http.Error(w, "sendInitialEvents is forbidden", http.StatusUnprocessableEntity)
	case query.Get("watch") != "true":
		list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
		for _, pod := range s.pods {
			list.Items = append(list.Items, *pod)
		}
		s.mu.Unlock()
		list.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
		_ = s.codec.Serializer.Encode(list, w) // the client may be gone
	default:
		events := make(chan metav1.WatchEvent, 10_000)
		since, _ := strconv.Atoi(query.Get("resourceVersion"))
		switch {
		case streamed:
			for _, pod := range s.pods {
				events <- s.event(watch.Added, pod)
			}
			events <- s.bookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		case since < s.oldest:
			gone := &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old resource version"}
			gone.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("Status"))
			gone.APIVersion = "v1"
			events <- s.encoded(watch.Error, gone)
		default:
			for _, past := range s.History {
				if past.version > since {
					events <- past.event
				}
			}
		}
		s.Watchers[events] = struct{}{}
		s.mu.Unlock()
		s.stream(w, r, events)
		s.With(func() { delete(s.Watchers, events) })
	}
}

// stream sends events, and a bookmark each minute, until the client goes or its timeout ends.
func (s *Pods) stream(w http.ResponseWriter, r *http.Request, events chan metav1.WatchEvent) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	frames := s.codec.StreamSerializer.Framer.NewFrameWriter(w)
	seconds, err := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	if err != nil {
		seconds = 1800
	}
	end := time.After(time.Duration(seconds) * time.Second)
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	for {
		var event metav1.WatchEvent
		open := true
		select {
		case <-r.Context().Done():
			return
		case <-end:
			return
		case <-minute.C:
			s.With(func() {
				if _, watches := s.Watchers[events]; watches && len(events) == 0 { // a bookmark says that all before it was sent
					event = s.bookmark(nil)
				}
			})
			if event.Type == "" {
				continue
			}
		case event, open = <-events:
		}
		if !open {
			return
		}
		if s.Wait != nil {
			s.Wait()
		}
		if err := s.codec.StreamSerializer.Serializer.Encode(&event, frames); err != nil {
			return
		}
		w.(http.Flusher).Flush()
	}
}

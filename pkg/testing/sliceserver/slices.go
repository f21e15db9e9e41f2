// Package sliceserver plays ResourceSlices and ResourceClaims of the Kubernetes API, in JSON, and the UID of a Node. It is no API server: slices are
// listed, watched, created and updated, claims are read. deploy/apiserver has tests against a real one. The daemon must not link it.
package sliceserver

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Server has the slices of one node, as an http.Handler. With guards what may change while it serves.
type Server struct {
	Node string
	// NoStream has lists not be streamed (Kubernetes before 1.32).
	NoStream bool
	// Before is called before each request and may wait; what it returns is the answer where it is no 0. Wait comes before each event of a watch.
	// Both may be nil.
	Before func(*http.Request) (status int)
	Wait   func()

	Broken   bool                                  // every request fails
	Claims   map[string]*resourceapi.ResourceClaim // by NAMESPACE/NAME
	Slices   map[string]*resourceapi.ResourceSlice // by name
	Gets     int                                   // of claims
	Watchers map[chan metav1.WatchEvent]struct{}

	mux     *http.ServeMux
	mu      sync.Mutex
	version int
}

// New has no claims and no slices yet.
func New(node string) *Server {
	s := &Server{Node: node, mux: http.NewServeMux(), version: 100, Claims: map[string]*resourceapi.ResourceClaim{},
		Slices: map[string]*resourceapi.ResourceSlice{}, Watchers: map[chan metav1.WatchEvent]struct{}{}}
	const group = "/apis/resource.k8s.io/v1/"
	s.mux.HandleFunc("GET /api/v1/nodes/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: r.PathValue("name"), UID: "uid-of-the-node"}})
	})
	s.mux.HandleFunc("GET "+group+"namespaces/{namespace}/resourceclaims/{name}", s.getClaim)
	s.mux.HandleFunc("GET "+group+"resourceslices/{name}", s.getSlice)
	s.mux.HandleFunc("GET "+group+"resourceslices", s.listOrWatch)
	s.mux.HandleFunc("POST "+group+"resourceslices", s.write)
	s.mux.HandleFunc("PUT "+group+"resourceslices/{name}", s.write)
	return s
}

// With changes what it has.
func (s *Server) With(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// Cut ends all watches; in With.
func (s *Server) Cut() {
	for watcher := range s.Watchers {
		close(watcher)
	}
	clear(s.Watchers)
}

// Put makes or changes a slice.
func (s *Server) Put(slice *resourceapi.ResourceSlice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(slice.DeepCopy())
}

func (s *Server) put(slice *resourceapi.ResourceSlice) {
	kind := watch.Added
	if s.Slices[slice.Name] != nil {
		kind = watch.Modified
	}
	s.version++
	slice.ResourceVersion = strconv.Itoa(s.version)
	s.Slices[slice.Name] = slice
	s.send(kind, slice)
}

// Drop deletes a slice by its name, if there is one.
func (s *Server) Drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slice := s.Slices[name].DeepCopy(); slice != nil {
		s.version++
		slice.ResourceVersion = strconv.Itoa(s.version)
		delete(s.Slices, name)
		s.send(watch.Deleted, slice)
	}
}

func (s *Server) send(kind watch.EventType, slice *resourceapi.ResourceSlice) {
	for watcher := range s.Watchers {
		watcher <- eventOf(kind, slice)
	}
}

func eventOf(kind watch.EventType, slice *resourceapi.ResourceSlice) (event metav1.WatchEvent) {
	slice = slice.DeepCopy()
	slice.Kind, slice.APIVersion = "ResourceSlice", "resource.k8s.io/v1"
	text, err := json.Marshal(slice)
	if err != nil {
		panic(err)
	}
	event.Type, event.Object.Raw = string(kind), text
	return event
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.Before != nil {
		if status := s.Before(r); status != 0 {
			w.Header().Set("Retry-After", "1")
			refuse(w, status)
			return
		}
	}
	s.mux.ServeHTTP(w, r)
}

func (s *Server) getClaim(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Gets++; s.Broken {
		refuse(w, http.StatusForbidden)
		return
	}
	answer(w, s.Claims[r.PathValue("namespace")+"/"+r.PathValue("name")])
}

func (s *Server) getSlice(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer(w, s.Slices[r.PathValue("name")])
}

// write makes or changes a slice, but refuses a writer that has not seen it as it is.
func (s *Server) write(w http.ResponseWriter, r *http.Request) {
	slice := &resourceapi.ResourceSlice{}
	if err := json.NewDecoder(r.Body).Decode(slice); err != nil {
		refuse(w, http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch known := s.Slices[slice.Name]; {
	case known == nil && r.Method == http.MethodPut:
		refuse(w, http.StatusNotFound)
	case known != nil && slice.ResourceVersion != known.ResourceVersion:
		refuse(w, http.StatusConflict)
	default:
		s.put(slice)
		answer(w, slice)
	}
}

// listOrWatch serves all slices of the node, or watches of them and of one by its name. A watch begins with what there is.
func (s *Server) listOrWatch(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	name, one := strings.CutPrefix(query.Get("fieldSelector"), "metadata.name=")
	streamed := query.Get("sendInitialEvents") == "true"
	s.mu.Lock()
	switch {
	case s.Broken || !one && query.Get("fieldSelector") != "spec.nodeName="+s.Node:
		s.mu.Unlock()
		refuse(w, http.StatusForbidden)
		return
	case streamed && s.NoStream:
		s.mu.Unlock()
		refuse(w, http.StatusUnprocessableEntity)
		return
	case query.Get("watch") != "true":
		list := &resourceapi.ResourceSliceList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
		list.Kind, list.APIVersion = "ResourceSliceList", "resource.k8s.io/v1"
		for _, slice := range s.Slices {
			list.Items = append(list.Items, *slice)
		}
		s.mu.Unlock()
		answer(w, list)
		return
	}
	events := make(chan metav1.WatchEvent, 10_000)
	if since, _ := strconv.Atoi(query.Get("resourceVersion")); streamed || since < s.version {
		for _, slice := range s.Slices {
			if !one || slice.Name == name {
				events <- eventOf(watch.Added, slice)
			}
		}
	}
	if streamed {
		end := metav1.ObjectMeta{ResourceVersion: strconv.Itoa(s.version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
		events <- eventOf(watch.Bookmark, &resourceapi.ResourceSlice{ObjectMeta: end})
	}
	s.Watchers[events] = struct{}{}
	s.mu.Unlock()
	s.stream(w, r, events)
	s.With(func() { delete(s.Watchers, events) })
}

// stream sends events until the client goes or the watch is cut.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, events <-chan metav1.WatchEvent) {
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case event, open := <-events:
			if !open {
				return
			}
			if s.Wait != nil {
				s.Wait()
			}
			if json.NewEncoder(w).Encode(event) != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

// answer writes an object, NotFound where it is nil.
func answer[T any](w http.ResponseWriter, object *T) {
	if object == nil {
		refuse(w, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object) // the client may be gone
}

func refuse(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	reasons := map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusConflict: metav1.StatusReasonConflict,
		http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusUnprocessableEntity: metav1.StatusReasonInvalid}
	_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: reasons[status], Code: int32(status)})
}

package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// maxAge is for how long a document is handed to further readers: the memory in use moves without the view.
const maxAge = time.Second

// document serves a JSON document. All who read it at the same time share one copy of it for each generation of the view, so
// that clients which read slowly, or not at all, hold no memory of their own.
type document struct {
	view func() *ledger.View
	make func() any

	mu         sync.Mutex
	readers    int    // of body and of the bodies before it
	body       []byte // nil when there is no reader
	generation uint64 // of the view, when body was made
	made       time.Time
}

func (d *document) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	body, err := d.open()
	defer d.close()
	write(w, body, err)
}

// open returns the document: a new one where none is being read or the last one is out of date.
func (d *document) open() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.readers++
	generation := d.view().Generation
	if d.body != nil && d.generation == generation && time.Since(d.made) < maxAge {
		return d.body, nil
	}
	body, err := encode(d.make())
	d.body, d.generation, d.made = body, generation, time.Now()
	return body, err
}

func (d *document) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.readers--; d.readers == 0 {
		d.body = nil
	}
}

func encode(value any) ([]byte, error) {
	body, err := json.MarshalIndent(value, "", "  ")
	return append(body, '\n'), err
}

func write(w http.ResponseWriter, body []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client went away
}

// explainWait is how long an explanation waits for those before it: the answer is to be sent within requestTimeout.
const explainWait = 5 * time.Second

// explainer answers /explain one request at a time: an explanation takes longer than all else that is served, and clients that ask
// for many must not keep the processors from the runtime's events.
func explainer(explain func(pod, container string) (any, error)) http.Handler {
	busy := fmt.Sprintf("pods are explained one at a time, and others were before this one for %s: ask again", explainWait)
	return queue{make(chan struct{}, 1), explainWait, busy, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		pod := query.Get("pod")
		if pod == "" {
			http.Error(w, "explain what? The query needs pod=NAMESPACE/NAME or pod=UID", http.StatusBadRequest)
			return
		}
		answer, err := explain(pod, query.Get("container"))
		respond(w, answer, err, http.StatusNotFound)
	})}
}

// respond sends an answer, or an error with its code.
func respond(w http.ResponseWriter, answer any, err error, code int) {
	if err != nil {
		http.Error(w, err.Error(), code)
		return
	}
	body, err := encode(answer)
	write(w, body, err)
}

// queue bounds how many requests a handler has at the same time, and has it end before its answer is sent: it must not be
// occupied by clients that do not read. A request that has waited too long is told that it is busy.
type queue struct {
	places chan struct{} // full while all are occupied
	wait   time.Duration
	busy   string
	next   http.Handler
}

func (q queue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), q.wait)
	defer cancel()
	select {
	case q.places <- struct{}{}:
	case <-ctx.Done():
		http.Error(w, q.busy, http.StatusServiceUnavailable)
		return
	}
	held := &answer{ResponseWriter: w, code: http.StatusOK}
	func() {
		defer func() { <-q.places }()
		q.next.ServeHTTP(held, r)
	}()
	w.WriteHeader(held.code)
	_, _ = w.Write(held.body.Bytes()) // the client went away
}

// answer keeps what a handler writes.
type answer struct {
	http.ResponseWriter
	code int
	body bytes.Buffer
}

func (a *answer) WriteHeader(code int) { a.code = code }

func (a *answer) Write(data []byte) (int, error) { return a.body.Write(data) }

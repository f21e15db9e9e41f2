// Package admin answers over HTTP what people and probes ask of a running daemon: health, metrics, status, explanations and
// a page that draws the NUMA memory map. It only reads; nothing over HTTP changes state.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// Sources are what is shown.
type Sources struct {
	View    func() *ledger.View
	Metrics http.Handler
	// Status is the document behind /status, status.Document.
	Status func() any
	// Explain is the document behind /explain: why a pod's containers are where they are.
	Explain func(pod, container string) (any, error)
	// Page is served at /; nil serves none.
	Page http.Handler
}

// Handler serves /healthz, /readyz, /metrics, /status, /explain?pod=NAMESPACE/NAME&container=NAME and /.
func Handler(s Sources) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { ready(w, s.View()) })
	mux.Handle("GET /metrics", s.Metrics)
	if s.Status != nil {
		mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { document(w, s.Status()) })
	}
	if s.Explain != nil {
		mux.HandleFunc("GET /explain", func(w http.ResponseWriter, r *http.Request) { explain(w, r, s.Explain) })
	}
	if s.Page != nil {
		mux.Handle("GET /{$}", s.Page)
	}
	return mux
}

// ready names every condition, and answers 503 while one does not hold.
func ready(w http.ResponseWriter, view *ledger.View) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if !view.Ready() {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	for _, condition := range view.Conditions {
		if condition.OK {
			fmt.Fprintf(w, "[+] %s\n", condition.Name)
		} else {
			fmt.Fprintf(w, "[-] %s: %s\n", condition.Name, condition.Message)
		}
	}
}

func explain(w http.ResponseWriter, r *http.Request, explain func(pod, container string) (any, error)) {
	pod := r.URL.Query().Get("pod")
	if pod == "" {
		http.Error(w, "explain what? The query needs pod=NAMESPACE/NAME or pod=UID", http.StatusBadRequest)
		return
	}
	answer, err := explain(pod, r.URL.Query().Get("container"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	document(w, answer)
}

func document(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(value) // the client went away
}

// ListenTCP listens on an address such as "127.0.0.1:8891" or ":8891".
func ListenTCP(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve metrics and status: %w", err)
	}
	return listener, nil
}

// ListenUnix listens on a socket that only its owner may use. A socket that an earlier run left behind is replaced.
func ListenUnix(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode().Type() != os.ModeSocket {
			return nil, fmt.Errorf("serve status: %s exists and is no socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("serve status: %w", err)
		}
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("serve status: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("serve status: %w", err)
	}
	return listener, nil
}

// Serve answers on a listener until ctx ends.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return nil
}

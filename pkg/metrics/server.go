package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/agent"
)

// Server answers /metrics, /healthz and /readyz over HTTP. Nothing over HTTP changes state.
type Server struct {
	listener net.Listener
	mux      *http.ServeMux
}

// Listen opens the address, for example "127.0.0.1:8891".
func Listen(address string, gatherer prometheus.Gatherer, view func() *agent.View) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics address %q: %w", address, err)
	}
	s := &Server{listener: listener, mux: http.NewServeMux()}
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	s.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { ready(w, view()) })
	return s, nil
}

// ready names each condition with its state, and answers 503 while one does not hold.
func ready(w http.ResponseWriter, view *agent.View) {
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

// Handle adds a path, before Run.
func (s *Server) Handle(pattern string, handler http.Handler) { s.mux.Handle(pattern, handler) }

// Address is where the server listens.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	server := &http.Server{Handler: s.mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving metrics: %w", err)
	}
	return nil
}

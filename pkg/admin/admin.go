// Package admin answers over HTTP what people and probes ask of a running daemon: health, metrics, status, explanations and
// a page that draws the NUMA memory map.
//
// Probes and metrics are for everybody who reaches the listener. What shows the pods of all namespaces is for this machine
// alone, or this pod's network: a unix socket, or loopback by a local name. What changes something is for a unix socket alone.
package admin

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// Sources are what is shown.
type Sources struct {
	View func() *ledger.View
	// Health is an error while what serves containers does not move; nil is healthy.
	Health  func() error
	Metrics http.Handler
	// Status is the document behind /status, status.Document.
	Status func() any
	// Explain is the document behind /explain: why a pod's containers are where they are.
	Explain func(pod, container string) (any, error)
	// History is the document behind /history, history.Document; nil serves none.
	History func() any
	// State is the state file behind /state; the error says why there is none. nil serves none.
	State func() ([]byte, error)
	// Orders change what the daemon does. Their names are the paths that are posted to, over a unix socket.
	Orders map[string]func(context.Context) (any, error)
	// Page is served at /; nil serves none.
	Page http.Handler
}

// Handler serves /healthz, /readyz and /metrics; and /status, /history, /state, /explain?pod=NAMESPACE/NAME&container=NAME and / to
// clients on this machine.
func Handler(s Sources) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if s.Health != nil {
			if err := s.Health(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { ready(w, s.View()) })
	mux.Handle("GET /metrics", queue{make(chan struct{}, scrapesAtOnce), requestTimeout, "other scrapes were before this one", s.Metrics})
	if s.Status != nil {
		mux.Handle("GET /status", local(&document{view: s.View, make: s.Status}))
	}
	if s.History != nil {
		mux.Handle("GET /history", local(&document{view: s.View, make: s.History}))
	}
	if s.Explain != nil {
		mux.Handle("GET /explain", local(explainer(s.Explain)))
	}
	if s.State != nil {
		mux.Handle("GET /state", local(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if body, err := s.State(); err != nil {
				http.Error(w, err.Error(), http.StatusNotFound)
			} else {
				write(w, body, nil)
			}
		})))
	}
	for path, order := range s.Orders {
		mux.Handle("POST "+path, carryOut(order))
	}
	if s.Page != nil {
		mux.Handle("GET /{$}", local(s.Page))
	}
	return mux
}

// scrapesAtOnce bounds how many requests of metrics are answered at the same time; the others wait.
const scrapesAtOnce = 2

//go:embed page.html
var page []byte

// Page serves the NUMA memory map: one page that asks /status every few seconds, /history twice a minute, and
// /explain for the pod that is picked.
func Page() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		header := w.Header()
		header.Set("Content-Type", "text/html; charset=utf-8")
		header.Set("Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'")
		header.Set("Cache-Control", "no-cache")
		_, _ = w.Write(page) // the client went away
	})
}

// local refuses clients that come over a network, and those on loopback that ask for another host.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch peer := peerOf(r); {
		case peer == remote:
			http.Error(w, r.URL.Path+" shows pods and is not served over the network, where /metrics, /healthz and /readyz are: "+
				`run "nri-memory-manager status" on the node, or use loopback, as kubectl port-forward does`, http.StatusForbidden)
		case peer == loopback && !isLocalName(r.Host):
			http.Error(w, fmt.Sprintf("%s shows pods and is served on loopback under a local name only: "+
				"ask for localhost, 127.0.0.1 or [::1], not for the host %q", r.URL.Path, r.Host), http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// Deadline is the header of an order that says until when it is waited for, in RFC 3339. A daemon that hung does not carry out later what its
// client was told has failed.
const Deadline = "Order-Deadline"

// carryOut answers an order, which does not end with a client that goes away. Its error refuses it.
func carryOut(order func(context.Context) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if peerOf(r) != socket {
			http.Error(w, r.URL.Path+" is taken over the daemon's unix socket only", http.StatusForbidden)
			return
		}
		if until, err := time.Parse(time.RFC3339Nano, r.Header.Get(Deadline)); err == nil && time.Now().After(until) {
			http.Error(w, r.URL.Path+" is not waited for any more", http.StatusRequestTimeout)
			return
		}
		answer, err := order(context.WithoutCancel(r.Context()))
		respond(w, answer, err, http.StatusConflict)
	})
}

// peer is where a request comes from.
type peer int

const (
	remote peer = iota
	loopback
	socket
)

// peerOf tells a unix socket, and loopback to loopback, from all else: a node may route packets of its neighbors to its loopback
// addresses (net.ipv4.conf.*.route_localnet).
func peerOf(r *http.Request) peer {
	switch address := r.Context().Value(http.LocalAddrContextKey).(type) {
	case *net.UnixAddr:
		return socket
	case *net.TCPAddr:
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err == nil && address.IP.IsLoopback() && net.ParseIP(host).IsLoopback() {
			return loopback
		}
	}
	return remote
}

// isLocalName reports whether a request's Host is localhost or a loopback address, with any port. A web page can have its own name
// resolve to 127.0.0.1 (DNS rebinding), and would read what is served under that name; these it cannot have.
func isLocalName(host string) bool {
	name := (&url.URL{Host: host}).Hostname()
	if strings.EqualFold(strings.TrimSuffix(name, "."), "localhost") {
		return true
	}
	address, err := netip.ParseAddr(name)
	return err == nil && address.IsLoopback()
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

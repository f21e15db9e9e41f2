package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

func TestEndpoints(t *testing.T) {
	conditions := []ledger.Condition{{Name: "connected", OK: true}, {Name: "checkpoint", OK: true}}
	sources := Sources{
		View:    func() *ledger.View { return &ledger.View{Conditions: conditions} },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "# metrics\n") }),
		Status:  func() any { return map[string]int{"nodes": 2} },
		Explain: func(pod, container string) (any, error) {
			if pod != "default/database" {
				return nil, errors.New("pod " + pod + " is not on this node")
			}
			return map[string]string{"pod": pod, "container": container}, nil
		},
		Page: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<!doctype html>") }),
	}
	handler := Handler(sources)
	for name, test := range map[string]struct {
		method, url string
		code        int
		body        string
	}{
		"alive":                 {"GET", "/healthz", 200, "ok\n"},
		"ready":                 {"GET", "/readyz", 200, "[+] connected\n[+] checkpoint\n"},
		"metrics":               {"GET", "/metrics", 200, "# metrics\n"},
		"status":                {"GET", "/status", 200, "{\n  \"nodes\": 2\n}\n"},
		"explain":               {"GET", "/explain?pod=default/database&container=postgres", 200, `"container": "postgres"`},
		"explain nothing":       {"GET", "/explain", 400, "explain what? The query needs pod=NAMESPACE/NAME or pod=UID\n"},
		"explain an absent":     {"GET", "/explain?pod=default/web", 404, "pod default/web is not on this node\n"},
		"page":                  {"GET", "/", 200, "<!doctype html>"},
		"no such page":          {"GET", "/etc/passwd", 404, "404 page not found\n"},
		"nothing can be put":    {"PUT", "/status", 405, "Method Not Allowed\n"},
		"nothing can be posted": {"POST", "/", 405, "Method Not Allowed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			response := httptest.NewRecorder()
			handler.ServeHTTP(response, over(httptest.NewRequest(test.method, test.url, nil), &net.UnixAddr{Name: "admin.sock", Net: "unix"}, "@"))
			if response.Code != test.code || !strings.Contains(response.Body.String(), test.body) {
				t.Errorf("%d %q, want %d %q", response.Code, response.Body, test.code, test.body)
			}
		})
	}
	conditions[1] = ledger.Condition{Name: "checkpoint", Message: "the disk is full"}
	stands := errors.New("an event has not moved for 6s")
	sources.Health = func() error { return stands }
	response := httptest.NewRecorder()
	Handler(sources).ServeHTTP(response, httptest.NewRequest("GET", "/healthz", nil))
	if response.Code != 503 || response.Body.String() != stands.Error()+"\n" {
		t.Errorf("%d %q, want 503 %q", response.Code, response.Body, stands)
	}
	response = httptest.NewRecorder()
	handler.ServeHTTP(response, httptest.NewRequest("GET", "/readyz", nil))
	if want := "[+] connected\n[-] checkpoint: the disk is full\n"; response.Code != 503 || response.Body.String() != want {
		t.Errorf("%d %q, want 503 %q", response.Code, response.Body, want)
	}
}

// over is a request that came to a local address from a remote one.
func over(r *http.Request, local net.Addr, remote string) *http.Request {
	r.RemoteAddr = remote
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local))
}

func TestOnlyProbesAndMetricsAreServedOverTheNetwork(t *testing.T) {
	ok := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }
	handler := Handler(Sources{
		View: func() *ledger.View { return &ledger.View{} }, Metrics: http.HandlerFunc(ok), Page: http.HandlerFunc(ok),
		Status: func() any { return nil }, Explain: func(string, string) (any, error) { return nil, nil },
	})
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 8891} }
	const allowed, refused = http.StatusOK, http.StatusForbidden
	for name, test := range map[string]struct {
		local  net.Addr
		remote string
		code   int
	}{
		"the unix socket":                {&net.UnixAddr{Name: "admin.sock", Net: "unix"}, "@", allowed},
		"loopback":                       {tcp("127.0.0.1"), "127.0.0.1:40000", allowed},
		"loopback, IPv6":                 {tcp("::1"), "[::1]:40000", allowed},
		"the pod network":                {tcp("10.244.1.7"), "10.244.3.9:40000", refused},
		"the pod network, IPv6":          {tcp("fd00::7"), "[fd00::9]:40000", refused},
		"the machine's own address":      {tcp("10.244.1.7"), "10.244.1.7:40000", refused},
		"a neighbor routed to loopback":  {tcp("127.0.0.1"), "10.0.0.9:40000", refused},
		"an address that is not known":   {nil, "127.0.0.1:40000", refused},
		"a remote that cannot be parsed": {tcp("127.0.0.1"), "localhost", refused},
	} {
		t.Run("an order over "+name, func(t *testing.T) {
			carried := false
			handler := Handler(Sources{Metrics: http.HandlerFunc(ok), Orders: map[string]func(context.Context) (any, error){
				"/rollback": func(context.Context) (any, error) { carried = true; return nil, nil },
			}})
			request := over(httptest.NewRequest("POST", "/rollback", nil), test.local, test.remote)
			request.Host = "localhost:8891"
			response := httptest.NewRecorder()
			handler.ServeHTTP(response, request)
			if socket := name == "the unix socket"; carried != socket || response.Code == http.StatusOK != socket {
				t.Errorf("carried out: %t, %d %q", carried, response.Code, response.Body)
			}
		})
		t.Run(name, func(t *testing.T) {
			for path, code := range map[string]int{
				"/healthz": allowed, "/readyz": allowed, "/metrics": allowed, "/status": test.code, "/explain?pod=a/b": test.code, "/": test.code,
			} {
				response := httptest.NewRecorder()
				request := over(httptest.NewRequest("GET", path, nil), test.local, test.remote)
				request.Host = "localhost:8891"
				handler.ServeHTTP(response, request)
				if response.Code != code {
					t.Errorf("%s: %d, want %d", path, response.Code, code)
				}
				want := `shows pods and is not served over the network, where /metrics, /healthz and /readyz are: run "nri-memory-manager status" on the node, or use loopback`
				if code == refused && !strings.Contains(response.Body.String(), want) {
					t.Errorf("%s: %q, want %q", path, response.Body, want)
				}
			}
		})
	}
}

func TestUnixSocketIsItsOwnersAlone(t *testing.T) {
	folder, err := os.MkdirTemp("", "a")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	path := filepath.Join(folder, "s")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close() // as a killed daemon leaves it
	listener, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v, want 0600", info.Mode(), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, listener, Handler(Sources{Metrics: http.NotFoundHandler()})) }()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	response, err := client.Get("http://daemon/healthz")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the server ended with: %v", err)
	}

	file := filepath.Join(folder, "file")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(file); err == nil || !strings.Contains(err.Error(), "exists and is no socket") {
		t.Errorf("error %v, want one that says that the file is no socket", err)
	}
	if content, _ := os.ReadFile(file); string(content) != "kept" {
		t.Error("the file was touched")
	}
}

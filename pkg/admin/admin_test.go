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
			handler.ServeHTTP(response, httptest.NewRequest(test.method, test.url, nil))
			if response.Code != test.code || !strings.Contains(response.Body.String(), test.body) {
				t.Errorf("%d %q, want %d %q", response.Code, response.Body, test.code, test.body)
			}
		})
	}
	conditions[1] = ledger.Condition{Name: "checkpoint", Message: "the disk is full"}
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, httptest.NewRequest("GET", "/readyz", nil))
	if want := "[+] connected\n[-] checkpoint: the disk is full\n"; response.Code != 503 || response.Body.String() != want {
		t.Errorf("%d %q, want 503 %q", response.Code, response.Body, want)
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

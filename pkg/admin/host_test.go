package admin

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// everything serves one text everywhere.
func everything() http.Handler {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "secret-project/database") })
	text := func() any { return "secret-project/database" }
	return Handler(Sources{
		View: func() *ledger.View { return &ledger.View{} }, Metrics: ok, Page: ok, Status: text, History: text,
		Explain: func(string, string) (any, error) { return text(), nil },
	})
}

// showPods are the paths that show pods, forEverybody the others.
var (
	showPods     = []string{"/", "/status", "/history", "/explain?pod=a/b"}
	forEverybody = []string{"/healthz", "/readyz", "/metrics"}
)

// A web page may have its own name resolve to 127.0.0.1, and a browser then takes what is here for that page's own.
func TestLoopbackAnswersLocalNamesOnly(t *testing.T) {
	listener, err := ListenTCP("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go Serve(t.Context(), listener, everything())
	ask := func(t *testing.T, request string) (code int, body string) {
		t.Helper()
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, request)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text)
	}
	const sent = "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n"
	for host, code := range map[string]int{
		"localhost": 200, "localhost:8891": 200, "LocalHost:80": 200, "localhost.:8891": 200,
		"127.0.0.1": 200, "127.0.0.1:8891": 200, "127.255.0.9:1": 200,
		"[::1]": 200, "[::1]:8891": 200, "[0:0:0:0:0:0:0:1]:8891": 200, "[::1%25lo]:8891": 200, "[::ffff:127.0.0.1]:8891": 200,
		"evil.example": 403, "evil.example:8891": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403, "evil.localhost": 403,
		"worker-1:8891": 403, "10.244.1.7:8891": 403, "128.0.0.1": 403, "[fd00::7]:8891": 403, "0.0.0.0:8891": 403, "[::]:8891": 403,
		"127.1": 403, "2130706433": 403, "localhost:evil.example": 403, "::1": 403, "localhost..": 403, ":8891": 403, "": 403,
	} {
		t.Run(host, func(t *testing.T) {
			for _, path := range showPods {
				got, body := ask(t, fmt.Sprintf(sent, path, host))
				if got != code || strings.Contains(body, "secret") != (code == 200) {
					t.Errorf("%s: %d %q, want %d", path, got, body, code)
				}
				if want := fmt.Sprintf("under a local name only: ask for localhost, 127.0.0.1 or [::1], not for the host %q\n", host); code == 403 && !strings.HasSuffix(body, want) {
					t.Errorf("%s: %q, want %q", path, body, want)
				}
			}
			for _, path := range forEverybody {
				if got, body := ask(t, fmt.Sprintf(sent, path, host)); got != 200 {
					t.Errorf("%s: %d %q, want 200", path, got, body)
				}
			}
		})
	}
	for name, request := range map[string]string{
		"without a Host":             "GET /status HTTP/1.0\r\n\r\n",
		"with the host in the path":  "GET http://evil.example/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
		"with a second, hidden name": "GET /status HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: localhost\r\nConnection: close\r\n\r\n",
	} {
		if code, body := ask(t, request); code != 403 {
			t.Errorf("%s: %d %q, want 403", name, code, body)
		}
	}
}

func TestTheUnixSocketAnswersAnyName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	go Serve(t.Context(), listener, everything())
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	for _, path := range append(showPods, forEverybody...) {
		response, err := client.Get("http://evil.example" + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != 200 {
			t.Errorf("%s: %s", path, response.Status)
		}
	}
}

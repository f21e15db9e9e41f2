package admin

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// scraped has metrics that are held in the middle of a scrape: began receives when there is one, and it ends with finish.
func scraped() (handler http.Handler, began, finish chan bool) {
	began, finish = make(chan bool, 4*maxConnections), make(chan bool)
	return Handler(Sources{
		View: func() *ledger.View { return &ledger.View{} },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			began <- true
			<-finish
			io.WriteString(w, "# metrics\n")
		}),
	}), began, finish
}

// exchange sends a request on a connection and returns the answer's body.
func exchange(t *testing.T, conn net.Conn, path string) string {
	t.Helper()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return answered(t, conn)
}

func answered(t *testing.T, conn net.Conn) string {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// Clients of one address want all connections, three times over. Probes of theirs are answered, and a scrape from another address ends.
func TestOneClientCannotHaveAllConnections(t *testing.T) {
	for name, sent := range map[string]string{
		"say nothing":           "",
		"never end a request":   "GET /healthz HTTP/1.1\r\nHost: x\r\n",
		"read no answer":        strings.Repeat("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 20),
		"wait for their scrape": "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			handler, began, finish := scraped()
			listener, err := ListenTCP("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go Serve(t.Context(), listener, handler)
			dial := func(from string) net.Conn {
				conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				return conn
			}
			prometheus := dial("127.0.0.2")
			io.WriteString(prometheus, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
			<-began
			for range 3 * maxConnections {
				io.WriteString(dial("127.0.0.1"), sent)
			}
			for _, from := range []string{"127.0.0.1", "127.0.0.3"} {
				if got := exchange(t, dial(from), "/healthz"); got != "ok\n" {
					t.Errorf("the probe from %s got %q", from, got)
				}
			}
			close(finish)
			if got := answered(t, prometheus); got != "# metrics\n" {
				t.Errorf("the scrape from another address got %q", got)
			}
		})
	}
}

// The oldest connection waits for its answer while others of the same client have had theirs.
func TestAConnectionInUseOutlivesIdleOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handler, began, finish := scraped()
		listener, done := newPipes(), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- Serve(ctx, listener, handler) }()
		scrape := listener.dial()
		io.WriteString(scrape, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
		<-began
		for range 3 * maxConnections {
			if got := exchange(t, listener.dial(), "/healthz"); got != "ok\n" {
				t.Errorf("/healthz: %q", got)
			}
			synctest.Wait() // the connection is idle
		}
		finish <- true
		if got := answered(t, scrape); got != "# metrics\n" {
			t.Errorf("the scrape got %q", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

package admin

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse >> 20
}

// The clients pipeline requests, wait for the first byte and read no more.
func TestClientsThatDoNotReadHoldLittleMemoryAndNoProbeBack(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	for name, path := range map[string]string{"status": "/status", "metrics": "/metrics"} {
		t.Run(name, func(t *testing.T) {
			// As promhttp does, these metrics bound how many requests are served at once.
			rendering := make(chan bool, 2)
			var generation uint64
			handler := Handler(Sources{
				View: func() *ledger.View { return &ledger.View{Generation: generation} },
				Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					rendering <- true
					defer func() { <-rendering }()
					io.WriteString(w, large[:256<<10])
				}),
				Status: func() any { return large },
			})
			listener, err := ListenTCP("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go Serve(t.Context(), listener, handler)
			before := heap()
			for range 150 {
				conn, err := net.Dial("tcp", listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				conn.(*net.TCPConn).SetReadBuffer(4096)
				io.WriteString(conn, strings.Repeat("GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n", 20))
				_, _ = conn.Read(make([]byte, 1)) // an error: it was cut off already
			}
			if after := heap(); after > before+48 {
				t.Errorf("the heap has grown from %d to %d MiB, want at most 48 MiB more", before, after)
			}
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
			for _, path := range []string{"/healthz", "/metrics"} {
				response, err := client.Get("http://" + listener.Addr().String() + path)
				if err != nil {
					t.Fatal(err)
				}
				response.Body.Close()
				if response.StatusCode != http.StatusOK {
					t.Errorf("%s: %s", path, response.Status)
				}
			}
		})
	}
}

// pipes is a listener whose connections are in memory, so that their deadlines follow the clock of a synctest bubble.
type pipes struct {
	incoming chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func newPipes() *pipes { return &pipes{incoming: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.incoming <- server
	return client
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.incoming:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func TestSlowClientsAreCutOff(t *testing.T) {
	const request = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, test := range map[string]struct {
		sent  string
		after time.Duration
	}{
		"says nothing":                       {"", headerTimeout},
		"never ends its header":              {"GET /healthz HTTP/1.1\r\n", headerTimeout},
		"reads its answer, and does no more": {request, idleTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := serveInMemory(t)
				began := time.Now()
				io.WriteString(conn, test.sent)
				if _, err := io.ReadAll(conn); err != nil || time.Since(began) != test.after {
					t.Errorf("cut off after %s with error %v, want %s", time.Since(began), err, test.after)
				}
			})
		})
	}
	t.Run("never reads", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			conn := serveInMemory(t)
			io.WriteString(conn, request)
			time.Sleep(requestTimeout + time.Millisecond)
			if answer, err := io.ReadAll(conn); err != nil || len(answer) > 0 {
				t.Errorf("it still gets %q, error %v", answer, err)
			}
		})
	})
}

// serveInMemory returns a client's connection to a server that ends with the test.
func serveInMemory(t *testing.T) net.Conn {
	listener, done := newPipes(), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- Serve(ctx, listener, Handler(Sources{Metrics: http.NotFoundHandler()})) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener.dial()
}

func TestReadersShareADocument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view, made := &ledger.View{Generation: 1}, 0
		d := &document{view: func() *ledger.View { return view }, make: func() any { made++; return made }}
		var readers []*slow
		read := func(want string) {
			t.Helper()
			r := &slow{ResponseRecorder: httptest.NewRecorder(), reads: make(chan bool)}
			readers = append(readers, r)
			go d.ServeHTTP(r, httptest.NewRequest("GET", "/status", nil))
			synctest.Wait()
			if r.sent != want {
				t.Errorf("reader %d gets %q, want %q", len(readers), r.sent, want)
			}
		}
		read("1\n")
		read("1\n") // beside the first
		view = &ledger.View{Generation: 2}
		read("2\n")
		read("2\n")
		time.Sleep(maxAge)
		read("3\n") // what is not in the view has moved
		for _, r := range readers {
			close(r.reads)
		}
		synctest.Wait()
		if d.body != nil {
			t.Error("a document that nobody reads is kept")
		}
		read("4\n") // nobody else reads
		close(readers[len(readers)-1].reads)
	})
}

// slow is a client that reads when it is told to.
type slow struct {
	*httptest.ResponseRecorder
	sent  string
	reads chan bool
}

func (s *slow) Write(data []byte) (int, error) {
	s.sent = string(data)
	<-s.reads
	return len(data), nil
}

func TestAnAnswerThatCannotBeEncodedIsAnError(t *testing.T) {
	d := &document{view: func() *ledger.View { return &ledger.View{} }, make: func() any { return func() {} }}
	response := httptest.NewRecorder()
	d.ServeHTTP(response, httptest.NewRequest("GET", "/status", nil))
	if want := "json: unsupported type: func()\n"; response.Code != 500 || response.Body.String() != want {
		t.Errorf("%d %q, want 500 %q", response.Code, response.Body, want)
	}
}

package admin

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/ledger"
)

// The first explanation is held in its middle while others ask.
func TestOneExplanationAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		underWay, finish := 0, make(chan error)
		handler := Handler(Sources{
			View: func() *ledger.View { return &ledger.View{} }, Metrics: http.NotFoundHandler(),
			Explain: func(pod, _ string) (any, error) {
				underWay++
				defer func() { underWay-- }()
				return pod, <-finish
			},
		})
		ask := func(ctx context.Context) *httptest.ResponseRecorder {
			t.Helper()
			response := httptest.NewRecorder()
			request := over(httptest.NewRequestWithContext(ctx, "GET", "/explain?pod=a/b", nil), &net.UnixAddr{Net: "unix"}, "@")
			response.Code = 0
			go handler.ServeHTTP(response, request)
			synctest.Wait()
			if underWay != 1 {
				t.Errorf("%d explanations are under way, want 1", underWay)
			}
			return response
		}
		gone, leave := context.WithCancel(t.Context())
		first, left, late := ask(t.Context()), ask(gone), ask(t.Context())
		leave()
		synctest.Wait()
		if left.Code == 0 {
			t.Error("a client that has left still waits for its turn")
		}
		time.Sleep(explainWait)
		second, third := ask(t.Context()), ask(t.Context())
		synctest.Wait()
		for name, test := range map[string]struct {
			response *httptest.ResponseRecorder
			code     int
			body     string
		}{
			"one that has waited": {late, 503, "pods are explained one at a time, and others were before this one for 5s: ask again\n"},
			"the first":           {first, 0, ""},
			"the second":          {second, 0, ""},
		} {
			if got := test.response.Body.String(); test.response.Code != test.code || got != test.body {
				t.Errorf("%s: %d %q, want %d %q", name, test.response.Code, got, test.code, test.body)
			}
		}
		for _, err := range []error{nil, errors.New("it has ended"), nil} { // one that fails ends its turn, too
			finish <- err
		}
		synctest.Wait()
		codes := map[int]int{first.Code: 1}
		codes[second.Code]++
		codes[third.Code]++
		if first.Code != 200 || codes[200] != 2 || codes[404] != 1 {
			t.Errorf("answered with %d, %d and %d, want 200 for the first, and 200 and 404 for the others", first.Code, second.Code, third.Code)
		}
	})
}

// A client that does not read its explanation keeps no other from being explained.
func TestAnExplanationThatIsNotReadEndsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener, done := newPipes(), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			done <- Serve(ctx, listener, explainer(func(pod, _ string) (any, error) { return pod, nil }))
		}()
		for range 2 {
			io.WriteString(listener.dial(), "GET /explain?pod=unread HTTP/1.1\r\nHost: x\r\n\r\n")
			synctest.Wait()
		}
		conn := listener.dial()
		io.WriteString(conn, "GET /explain?pod=read HTTP/1.0\r\n\r\n")
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(answer), "\r\n\r\n\"read\"\n") {
			t.Errorf("answered with %q, error %v", answer, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// Clients that never read, or never finish their request, keep the process small, and probes and metrics answered.
func TestClientsThatDoNotReadAreHarmless(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	h.program = released(t)
	plugin := h.start()
	for i := range 150 {
		h.deploy(burstable(fmt.Sprintf("pod-%d", i), 64*mi, 999))
	}
	size := len(plugin.get("/status"))
	at := plugin.address()
	const header = " HTTP/1.1\r\nHost: x\r\n"
	for _, client := range []struct {
		sends    string
		finishes bool
	}{
		{strings.Repeat("GET /status"+header+"\r\n", 20), true},
		{strings.Repeat("GET /metrics"+header+"\r\n", 20), true},
		{"GET /status" + header + "X-Large: " + strings.Repeat("x", 8<<10), false},
	} {
		for range 150 {
			conn, err := net.Dial("tcp", at)
			must(t, err)
			defer conn.Close()
			must(t, conn.(*net.TCPConn).SetReadBuffer(4096))
			_, err = io.WriteString(conn, client.sends)
			must(t, err)
			if client.finishes {
				_, _ = conn.Read(make([]byte, 1)) // it is served; an error: it was cut off already
			}
		}
		for _, path := range []string{"/healthz", "/readyz", "/metrics", "/status"} {
			response, err := http.Get("http://" + at + path)
			must(t, err)
			response.Body.Close()
			if response.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", path, response.Status)
			}
		}
	}
	if memory := plugin.memory("VmHWM") - plugin.memory("RssFile"); memory > 64*mi {
		t.Errorf("the process has held %d MiB, with a status of %d KiB; want at most 64", memory/mi, size>>10)
	}
}

// memory is a field of the process's status, in bytes: RssAnon is what it holds without the pages of its binary, which are
// RssFile; VmHWM is the most that it has ever held, with them.
func (p *process) memory(field string) int {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	must(p.t, err)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); fields[0] == field+":" {
			kibibytes, err := strconv.Atoi(fields[1])
			must(p.t, err)
			return kibibytes << 10
		}
	}
	p.t.Fatalf("the process's status has no %s", field)
	return 0
}

func TestPodsAreNotShownOverTheNetwork(t *testing.T) {
	t.Parallel()
	own := ""
	addresses, err := net.InterfaceAddrs()
	must(t, err)
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && !network.IP.IsLoopback() && network.IP.To4() != nil {
			own = network.IP.String()
		}
	}
	if own == "" {
		t.Skip("this machine has no address but loopback")
	}
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start("--metrics-address", "0.0.0.0:0")
	h.deploy(guaranteed("secret", gi))
	_, port, err := net.SplitHostPort(plugin.address())
	must(t, err)
	for path, code := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 200, "/status": 403, "/explain?pod=default/secret": 403, "/": 403} {
		for ip, want := range map[string]int{"127.0.0.1": 200, own: code} {
			response, err := http.Get("http://" + net.JoinHostPort(ip, port) + path)
			must(t, err)
			body, err := io.ReadAll(response.Body)
			must(t, err)
			response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("%s on %s: %s, want %d", path, ip, response.Status, want)
			}
			if want == 403 && (strings.Contains(string(body), "secret") || !strings.Contains(string(body), `run "nri-memory-manager status" on the node`)) {
				t.Errorf("%s on %s: %s", path, ip, body)
			}
		}
	}
	if !strings.Contains(h.ask(0, "status"), "default/secret") {
		t.Error("status over the socket does not show the pod")
	}
}

// A web page whose own name resolves to 127.0.0.1 sees no pods, and what is asked for by a local name is there all the same.
func TestPodsAreNotShownToAForeignHostName(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	h.deploy(guaranteed("secret", gi))
	at := plugin.address()
	_, port, err := net.SplitHostPort(at)
	must(t, err)
	for path, code := range map[string]int{
		"/healthz": 200, "/readyz": 200, "/metrics": 200, "/status": 403, "/history": 403, "/explain?pod=default/secret": 403, "/": 403,
	} {
		for host, want := range map[string]int{"evil.example:" + port: code, "localhost:" + port: 200, at: 200} {
			request, err := http.NewRequest(http.MethodGet, "http://"+at+path, nil)
			must(t, err)
			request.Host = host
			response, err := http.DefaultClient.Do(request)
			must(t, err)
			body, err := io.ReadAll(response.Body)
			must(t, err)
			response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("%s of %s: %s, want %d", path, host, response.Status, want)
			}
			if want == 403 && (strings.Contains(string(body), "secret") || !strings.Contains(string(body), "ask for localhost, 127.0.0.1 or [::1]")) {
				t.Errorf("%s of %s: %s", path, host, body)
			}
		}
	}
}

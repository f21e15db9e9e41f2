package main

import (
	"bytes"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// What a busy daemon says is not taken for "no such pod".
func TestExplainOfABusyDaemonSaysSo(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(folder, adminSocket))
	must(t, err)
	busy := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "pods are explained one at a time: ask again", http.StatusServiceUnavailable)
	})}
	go busy.Serve(listener)
	t.Cleanup(func() { busy.Close() })
	var out, errOut bytes.Buffer
	code := execute(t.Context(), []string{"explain", "default/database", "--state-dir", folder}, strings.NewReader(""), &out, &errOut)
	if want := "nri-memory-manager: pods are explained one at a time: ask again\n"; code != exitFailed || out.Len() > 0 || errOut.String() != want {
		t.Errorf("exit code %d, %q and %q, want %d and %q", code, out.String(), errOut.String(), exitFailed, want)
	}
}

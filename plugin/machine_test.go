package main

import (
	"strings"
	"testing"
)

// The machine file of this machine is the same to simulate as this machine.
func TestTheMachineFileOfThisMachine(t *testing.T) {
	t.Parallel()
	code, text, errOut := run(t, "", "machine")
	if code != exitOK || !strings.HasPrefix(text, "nodes:\n    - id: ") {
		t.Fatalf("exit %d: %s%s", code, text, errOut)
	}
	_, want, _ := run(t, pod("{}"), "simulate", "--machine", "/", "-")
	if code, got, errOut := run(t, pod("{}"), "simulate", "--machine", file(t, "worker-1.yaml", text), "-"); code != exitOK || got != want {
		t.Errorf("exit %d: %s%s\nwant\n%s", code, got, errOut, want)
	}
}

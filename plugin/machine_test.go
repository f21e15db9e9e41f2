package main

import (
	"strings"
	"testing"
)

// The machine file of this machine is the same to simulate as this machine.
func TestTheMachineFileOfThisMachine(t *testing.T) {
	t.Parallel()
	for range 10 {
		code, text, errOut := run(t, "", "machine")
		if code != exitOK || !strings.HasPrefix(text, "nodes:\n    - id: ") {
			t.Fatalf("exit %d: %s%s", code, text, errOut)
		}
		_, want, _ := run(t, pod("{}"), "simulate", "--machine", "/", "-")
		if _, now, _ := run(t, "", "machine"); now != text {
			continue // a hypervisor has given it memory, or taken some, meanwhile
		}
		if code, got, errOut := run(t, pod("{}"), "simulate", "--machine", file(t, "worker-1.yaml", text), "-"); code != exitOK || got != want {
			t.Errorf("exit %d: %s%s\nwant\n%s", code, got, errOut, want)
		}
		return
	}
	t.Error("this machine's memory has changed in each of ten tries")
}

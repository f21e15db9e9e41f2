package metrics

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/needs"
)

func TestPromtoolFindsNothing(t *testing.T) {
	promtool := needs.Program(t, "promtool", "prometheus") // without it the client library's linter has looked
	m := New()
	m.Attach(sources(t))
	m.Handled("CreateContainer", time.Millisecond, nil)
	cmd := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(scrape(t, m))
	if output, err := cmd.CombinedOutput(); err != nil || len(output) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, output)
	}
}

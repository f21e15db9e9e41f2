package vm

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Output runs a command and returns what it printed.
func Output(ctx context.Context, name string, args ...string) (string, error) {
	return run(ctx, "", nil, name, args...)
}

// Show prints what a failed guest left: the failed tests' output, the console
// and the ends of its logs.
func (g Guest) Show(out io.Writer, name string) {
	part := func(title, text string, lines int) {
		fmt.Fprintf(out, "\n===== %s: %s =====\n%s\n", name, title, short(tail(text, lines)))
	}
	part("output of the tests that did not pass", unpassed(g.Tests()), 250)
	part("console", g.Console(), 30)
	part("qemu", read(filepath.Join(g.Dir, "qemu.log")), 10)
	logs, err := os.Open(filepath.Join(g.Dir, "logs.tar"))
	if err != nil {
		return
	}
	defer logs.Close()
	for r := tar.NewReader(logs); ; {
		header, err := r.Next()
		if err != nil {
			break
		}
		text, err := io.ReadAll(r)
		if err != nil {
			break
		}
		part("log "+header.Name, string(text), 25)
	}
	fmt.Fprintf(out, "\n===== %s: everything is in %s =====\n", name, g.Dir)
}

// short cuts very long lines: runtimes log whole specs.
func short(text string) string {
	const most = 400
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if len(line) > most {
			lines[i] = line[:most] + "…"
		}
	}
	return strings.Join(lines, "\n")
}

// unpassed leaves out the output of tests that passed.
func unpassed(text string) string {
	var kept, current []string
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "=== RUN   ") && !strings.Contains(line, "/") {
			kept, current = append(kept, current...), nil
		}
		current = append(current, line)
		if strings.HasPrefix(line, "--- PASS") {
			current = nil
		}
	}
	return strings.Join(append(kept, current...), "\n")
}
